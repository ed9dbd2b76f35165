"""All systems of the fleet at once: which of them are fine, what happened to the others, and what to do about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from apps.audit.actor import Actor
from apps.deployments.models import Deployment
from apps.diagnosis.reasons import REASONS
from apps.diagnosis.refusal import Refused
from apps.inventory.models import Node
from apps.plan.spec import Clear
from apps.runs import line
from apps.runs import services as runs
from apps.runs.models import ACTIVE, Run, at_work
from apps.watch import relaunching

State = Deployment.State
MOST = 64  # systems of one triage
RESTING = (State.DRAFT, State.STOPPED)  # nobody wishes that they serve
LOST = ("rebooted", "replaced", "vanished", "rank_lost")  # it served; a launch that failed is another matter
TROUBLE = (State.LOST, State.DEGRADED, State.FAILED, State.UNREACHABLE)


@dataclass(frozen=True)
class Away:
    node: str
    reason: str  # no_route, ssh_timeout …
    evidence: str


@dataclass(frozen=True)
class System:
    """verdict: fine, busy, rebooted, replaced, vanished, rank_lost, unreachable, failed or degraded. action: nothing, wait, reach,
    look (its plan needs somebody) or relaunch (ready: one reason is all that it needs)."""

    deployment: Deployment
    verdict: str
    why: str
    action: str
    next: str  # the next action in words
    nodes: tuple[str, ...] = ()
    away: tuple[Away, ...] = ()
    digest: str = ""  # of the relaunch that is ready
    clear: tuple[Clear, ...] = ()  # what that clears, as editors agreed
    run: Run | None = None  # that is at work on it


@dataclass(frozen=True)
class Begun:
    """What came of one system's relaunch: a run, or a refusal of its own."""

    deployment: Deployment
    run: Run | None = None
    refused: Refused | None = None


@dataclass(frozen=True)
class Wish:
    deployment: int
    digest: str
    reason: str
    clear: tuple[Clear, ...] = field(default_factory=tuple)


def any_trouble() -> bool:
    return Deployment.objects.filter(archived_at=None, state__in=TROUBLE).exists()


def systems() -> list[System]:
    """Every deployment that is meant to serve, trouble first. Reads what the watch saw; asks no node."""
    rows = Deployment.objects.filter(archived_at=None).exclude(state__in=RESTING).order_by("pk")[:MOST]
    away = {
        node.name: Away(node.name, node.unreachable_reason or "ssh_timeout", node.unreachable_evidence)
        for node in Node.objects.filter(unreachable_since__isnull=False)
    }
    found = [_of(row, away) for row in rows]
    return sorted(found, key=lambda one: ("relaunch", "look", "reach", "wait", "nothing").index(one.action))


def _of(deployment: Deployment, unreachable: Mapping[str, Away]) -> System:
    nodes = _nodes(deployment)
    away = tuple(unreachable[name] for name in nodes if name in unreachable)
    run = at_work(deployment).first()
    if run is not None:
        said = f"Run {run.pk}, the {run.story} that {run.actor_name} started, is at work on it."
        return System(deployment, "busy", said, "wait", f"Watch run {run.pk}.", nodes, away, run=run)
    if away:
        return _unreachable(deployment, nodes, away)
    if deployment.state == State.SERVING:
        return System(deployment, "fine", "It serves.", "nothing", "Nothing to do.", nodes)
    verdict = _verdict(deployment)
    if deployment.adopted:
        next_words = (
            "Watched only: what brings it back is its own unit or restart policy, or somebody who takes it over."
        )
        return System(deployment, verdict, deployment.evidence, "look", next_words, nodes)
    return _planned(deployment, verdict, nodes)


def _nodes(deployment: Deployment) -> tuple[str, ...]:
    """Of what runs, or ran last, and of what would be relaunched."""
    ran = deployment.ranks.values_list("node__name", flat=True)
    return tuple(dict.fromkeys((*deployment.revision.body.get("nodes", ()), *ran)))


def _verdict(deployment: Deployment) -> str:
    if deployment.state in (State.LOST, State.DEGRADED, State.FAILED) and deployment.reason in LOST:
        return deployment.reason
    return str(deployment.state)


def _unreachable(deployment: Deployment, nodes: tuple[str, ...], away: tuple[Away, ...]) -> System:
    first = away[0]
    reason = REASONS.get(first.reason)
    title = reason.title.lower() if reason else first.reason
    why = "; ".join(f"{one.node}: {one.evidence.strip()[:200] or one.reason}" for one in away)
    seen = f" Before that: {deployment.evidence}" if deployment.state == State.LOST and deployment.evidence else ""
    remedy = reason.remedy if reason else f"See that {first.node} is on and on the network."
    return System(
        deployment, "unreachable", f"{title.capitalize()}. {why}.{seen}", "reach", remedy, nodes, away
    )  # fmt: skip


def _planned(deployment: Deployment, verdict: str, nodes: tuple[str, ...]) -> System:
    try:
        clear, plan = relaunching.agreed_plan(deployment)
    except Refused as no:
        return System(deployment, verdict, deployment.evidence, "look", f"{no.detail} {no.remedy}".strip(), nodes)
    if plan.refused:
        first, more = plan.refused[0], len(plan.refused) - 1
        words = f"{first.title}{f', and {more} more' if more else ''}: open its plan."
        return System(deployment, verdict, deployment.evidence, "look", words, nodes)
    for held in line.holders(plan.nodes):
        words = f"{held.node} is held by run {held.run}, the {held.what} that {held.by} started: wait for it."
        return System(deployment, verdict, deployment.evidence, "wait", words, nodes)
    cleared = f"; clears {len(clear)} thing{'s' if len(clear) > 1 else ''}, as agreed" if clear else ""
    words = f"Relaunch on {' and '.join(plan.nodes)}{cleared}."
    return System(
        deployment, verdict, deployment.evidence, "relaunch", words, nodes, digest=plan.digest, clear=clear
    )  # fmt: skip


def relaunch(actor: Actor, wishes: Sequence[Wish]) -> list[Begun]:
    """Each by itself, with its own reason and the plan that was seen: one that is refused holds up no other."""
    made = []
    for wish in wishes:
        deployment = Deployment.objects.filter(pk=wish.deployment, archived_at=None).first()
        if deployment is None:
            continue
        try:
            run = runs.start(
                actor, deployment, story="relaunch", digest=wish.digest, reason=wish.reason, clear=wish.clear
            )  # fmt: skip
            made.append(Begun(deployment, run=run))
        except Refused as no:
            made.append(Begun(deployment, refused=no))
    return made


def check(actor: Actor) -> list[Run]:
    """Fresh facts of all systems that do not serve, a run for each, so that one whose nodes are silent delays nobody's answer."""
    made = []
    for one in systems():
        if one.verdict in ("fine", "busy"):
            continue
        nodes = Node.objects.filter(name__in=one.nodes, state=Node.State.READY)
        busy = Run.objects.filter(story="probe", state__in=ACTIVE, steps__node__in=nodes).exists()
        if nodes and not busy:
            made.append(runs.probe(actor, list(nodes)))
    return made


def as_json(one: System) -> dict[str, Any]:
    return {
        "deployment": one.deployment.pk,
        "name": one.deployment.name,
        "state": one.deployment.state,
        "verdict": one.verdict,
        "why": one.why or None,
        "action": one.action,
        "next": one.next,
        "nodes": list(one.nodes),
        "unreachable": [asdict(away) for away in one.away],
        "digest": one.digest or None,
        "clear": [asdict(item) for item in one.clear],
        "run": one.run.pk if one.run else None,
        "policy": one.deployment.relaunch_policy,
        "robot": one.deployment.relaunching.get("sentence"),
    }
