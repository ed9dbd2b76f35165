"""What a robot does about a lost deployment, under the policy that a person chose for it; and what it says of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import robot
from apps.deployments import services as deployments
from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.doorbell.ring import ring_on_commit
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan.spec import Clear
from apps.plan.step import Plan, Problem
from apps.runs import fatal
from apps.runs import services as runs
from apps.runs.models import ACTIVE, Run, at_work
from apps.runs.services import LONGEST_REASON
from apps.runs.settling import newest_attempt
from apps.watch import braking

log = logging.getLogger(__name__)
WATCH = robot("watch")
RELAUNCH = robot("relaunch")
State = Deployment.State
STEADY_S = 600.0  # served so long after a robot's relaunch: what it tried before counts no more
FRESH_S = 60.0  # facts older than that are asked for again before a robot plans with them
LONGEST_WAIT_S = 24 * 3600.0
LONGEST_COMING_S = 3600.0  # a node that is half up is asked again and again for so long
# A node that has just booted may not have these yet; they are waited for, not given up on.
COMES_UP = frozenset(
    {"not_probed", "docker_down", "driver_not_running", "no_gpu", "no_driver", "fabric_down", "addresses_unknown"}
)
COUNTED = 50
LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Try:
    """One relaunch that the robot began."""

    ended: datetime | None
    boots: Mapping[str, str] = field(default_factory=dict)  # node -> boot id that it was begun in
    only_looked: bool = False  # it ended before anything was changed on a node


@dataclass(frozen=True)
class Case:
    """What a decision is made from."""

    policy: str
    limit: int
    backoff_s: int
    lost: bool  # its state is one that a robot may answer
    boots: Mapping[str, str]  # node -> boot id now, of those that were rebooted since the last good launch
    untried: int = 0  # number of the newest revision, where it has never served; 0: it has
    tries: tuple[Try, ...] = ()  # since a person last did something, or it served long enough; the newest last
    now: datetime = LONG_AGO


@dataclass(frozen=True)
class Decision:
    """state: "" (nothing to do), act, waits, gave_up."""

    state: str
    sentence: str = ""
    next_at: datetime | None = None


def decide(case: Case) -> Decision:
    """Whether the policy wants a relaunch now. Pure."""
    if case.policy == "manual" or not case.lost:
        return Decision("")
    if case.policy == "once" and not case.boots:
        return Decision(
            "gave_up", "No node was rebooted, and the policy is one relaunch after a reboot: a person decides."
        )
    if case.untried:
        return Decision(
            "gave_up", f"Revision {case.untried} has never served, so what to relaunch is for a person to decide."
        )
    if case.policy == "once":
        return _once(case)
    spent = len(case.tries)
    if spent >= case.limit:
        return Decision("gave_up", f"Gave up after {_times(spent)}: the limit of this policy is {case.limit}.")
    return _after_backoff(case, spent)


def _once(case: Case) -> Decision:
    """One relaunch a boot; one that met a node that was not ready, and changed nothing, may come again."""
    here = [one for one in case.tries if any(one.boots.get(node) == boot for node, boot in case.boots.items())]
    if any(not one.only_looked for one in here):
        return Decision("gave_up", "It was relaunched once after this reboot, as the policy says: a person decides.")
    if len(here) >= case.limit:
        return Decision("gave_up", f"Gave up after {_times(len(here))}, none of which got past its preflight.")
    return _after_backoff(case, len(here))


def _after_backoff(case: Case, spent: int) -> Decision:
    last = case.tries[-1].ended if spent and case.tries else None
    if last is None:
        return Decision("act")
    wait = min(case.backoff_s * 2.0 ** (spent - 1), LONGEST_WAIT_S)
    due = last + timedelta(seconds=wait)
    if case.now < due:
        return Decision(
            "waits", f"{_times(spent).capitalize()} of {case.limit} spent; the next comes after a wait.", due
        )
    return Decision("act")


def _times(count: int) -> str:
    return "1 try" if count == 1 else f"{count} tries"


BRAKED = Decision("waits", "Most of the fleet fell silent at once, which is most likely our own network: robots wait.")


# What the watch calls


def consider(deployment_id: int) -> None:
    """After a deployment was concluded to be lost or degraded: stop what a lost rank left, where it wants that; else relaunch it,
    where its policy wants that and nothing stands in the way that nobody agreed to clear."""
    deployment = Deployment.objects.get(pk=deployment_id)
    if deployment.archived_at is not None or at_work(deployment).exists():
        return
    services = deployment.observed.get("services") or {}
    if not _stop_the_others(deployment, [name for name, one in services.items() if one.get("left")]):
        _relaunch(deployment)


def go_on() -> None:
    """Of those that no look concludes anything about: a robot's relaunch failed, or a lost rank's others were stopped."""
    waiting = Deployment.objects.filter(archived_at=None).exclude(relaunch_policy="manual")
    states = (State.FAILED, State.SERVING, State.STOPPED)
    for one in waiting if braking.current() is not None else waiting.filter(state__in=states):
        try:
            at_rest = one.state in (State.SERVING, State.STOPPED) and not one.relaunching
            if not at_rest and not at_work(one).exists():
                _relaunch(one)
        except Exception:  # one deployment must not keep the robot from the others
            log.exception("%s could not be considered", one.name)


def _stop_the_others(deployment: Deployment, left: Sequence[str]) -> bool:
    """One dead rank is a dead service: what is left of it only holds memory, and is stopped where the deployment wants it so; of
    several services only those (`left`) of which something is. Asked for at every look until it happened. What was adopted is not
    ours to stop. Whether that is the thing to do, done or not."""
    if (deployment.state, deployment.reason, deployment.on_rank_lost) != ("degraded", "rank_lost", "stop"):
        return False
    several = bool(deployment.observed.get("services"))
    if deployment.found or (several and not left):
        return False
    only = tuple(left) if several else None
    try:
        plan = runs.preview(WATCH, deployment, story="stop", only=only)
        why = f"A rank is lost. {deployment.evidence}{_last_words(deployment, left if several else ())}"[
            :LONGEST_REASON
        ]
        runs.start(WATCH, deployment, story="stop", digest=plan.digest, reason=why, because="rank_lost", only=only)
    except Refused as no:
        log.info("what is left of %s is not stopped: %s", deployment.name, no.detail)
    return True


def _last_words(deployment: Deployment, services: Sequence[str]) -> str:
    run = runs.last_good(deployment)
    said = fatal.first_fatal_line(run, service=services[0] if len(services) == 1 else None) if run else None
    return f" First fatal line, of rank {said.rank} on {said.node}: {said.text}" if said else ""


# Relaunching


def _relaunch(deployment: Deployment) -> None:
    if deployment.relaunch_policy == "manual" and not deployment.relaunching:
        return
    decision = decide(case_of(deployment))
    if decision.state == "act":
        decision = BRAKED if braking.current() is not None else _act(deployment)
    _say(deployment, decision)


def case_of(deployment: Deployment) -> Case:
    back = runs.to_go_back_to(deployment)
    return Case(
        policy=deployment.relaunch_policy,
        limit=deployment.relaunch_limit,
        backoff_s=deployment.relaunch_backoff_s,
        lost=_may_answer(deployment),
        boots=_rebooted(deployment),
        untried=deployment.revision.number if back is not None else 0,
        tries=_tries(deployment),
        now=timezone.now(),
    )


def _may_answer(deployment: Deployment) -> bool:
    """Lost, a dead service, or what robots left of one. Never after a stop, a cancel or a failed launch of a person, and not of what
    was only found."""
    if deployment.adopted or newest_attempt(deployment) is None:
        return False
    if deployment.state in (State.LOST, State.DEGRADED):
        return deployment.state == State.LOST or deployment.observed.get("reason") == "rank_lost"
    newest = deployment.runs.filter(story__in=("launch", "relaunch", "stop", "adopt")).first()
    if deployment.state != State.FAILED or newest is None or newest.cancel_asked_at is not None:
        return False
    return _is_robots(newest) or (newest.story == "stop" and newest.actor_kind == "robot")


def _is_robots(run: Run) -> bool:
    return (run.actor_kind, run.actor_name) == (RELAUNCH.kind, RELAUNCH.name)


def _rebooted(deployment: Deployment) -> dict[str, str]:
    """Node -> its boot id now, where that is another than at the last good launch."""
    return {
        rank.node.name: rank.node.boot_id
        for rank in deployment.ranks.select_related("node")
        if rank.boot_id and rank.node.boot_id and rank.boot_id != rank.node.boot_id
    }


def _tries(deployment: Deployment) -> tuple[Try, ...]:
    """Those that count: after the policy was set, after a person's own run, and after it served for long."""
    since = _moment(deployment.relaunch_set.get("at"))
    found: list[Try] = []
    recent = deployment.runs.filter(story__in=("launch", "relaunch", "stop"), created_at__gte=since).order_by("-pk")
    for run in recent[:COUNTED]:
        if run.actor_kind != "robot":
            break
        if not _is_robots(run) or run.second_try_of_id is not None:
            continue
        second = Run.objects.filter(second_try_of=run).first()
        last = second or run
        if not found and _served_long(deployment, last):
            break
        looked = last.state != Run.State.SUCCEEDED and last.phase in (None, "preflight")
        under = run.parameters.get("under") or {}
        found.append(Try(last.ended_at, under.get("boots") or {}, looked))
        if under.get("try", 1) == 1:
            break
    return tuple(reversed(found))


def _served_long(deployment: Deployment, run: Run) -> bool:
    """Whether it was seen serving so long after this relaunch that a new loss is another matter."""
    if run.state != Run.State.SUCCEEDED or run.ended_at is None or deployment.served_at is None:
        return False
    return (deployment.served_at - run.ended_at).total_seconds() >= STEADY_S


def _moment(text: Any) -> datetime:
    return datetime.fromisoformat(text) if text else LONG_AGO


def _act(deployment: Deployment) -> Decision:
    """Begin a relaunch, or say what it waits for, or why it is not the robot's to do."""
    nodes = list(Node.objects.filter(name__in=deployment.revision.spec.nodes).order_by("name"))
    away = [node.name for node in nodes if node.unreachable_since is not None]
    if away:
        return Decision("waits", f"Waits until {_words(away)} {'answers' if len(away) == 1 else 'answer'}.")
    before = [node for node in nodes if not _of_this_boot(node)]
    if before:
        return _wait_for_facts(deployment, before)
    try:
        clear, plan = agreed_plan(deployment)
    except Refused as no:
        return Decision("gave_up", f"Does not act: {no.detail} {no.remedy}".strip())
    refused = _refused(plan.refused)
    if refused is not None and refused.state != "waits":
        return refused
    stale = [node for node in nodes if _age_s(node) > FRESH_S]
    if stale:
        return _wait_for_facts(deployment, stale, refused)
    if refused is not None:
        return refused
    try:
        runs.start(
            RELAUNCH,
            deployment,
            story="relaunch",
            digest=plan.digest,
            reason=_why(deployment),
            clear=clear,
            under=_under(deployment),
        )
    except Refused as no:
        return Decision("waits", f"{no.detail} {no.remedy}".strip())
    return Decision("")


def agreed_plan(deployment: Deployment) -> tuple[tuple[Clear, ...], Plan]:
    """The relaunch that clears what is in the way and an editor agreed to clear for this deployment, and nothing else."""
    agreed = {(one.node, one.kind, one.name): one for one in deployments.consented(deployment)}
    plan = runs.preview(RELAUNCH, deployment, story="relaunch")
    asked = {(item["node"], item["kind"], item["name"]) for problem in plan.problems for item in problem.clear}
    clear = tuple(agreed[thing] for thing in sorted(asked & set(agreed)))
    return clear, runs.preview(RELAUNCH, deployment, story="relaunch", clear=clear) if clear else plan


def _wait_for_facts(deployment: Deployment, nodes: Sequence[Node], said: Decision | None = None) -> Decision:
    """Ask the nodes anew, for at most LONGEST_COMING_S after it was lost: each time is a run."""
    if (timezone.now() - deployment.since).total_seconds() > LONGEST_COMING_S:
        what = (
            said.sentence.removeprefix("Waits: ")
            if said
            else f"Nothing new is known of {_words([n.name for n in nodes])}."
        )
        return Decision("gave_up", f"Gave up waiting after {LONGEST_COMING_S / 3600:g} h. {what}")
    _ask_again(nodes)
    return said or Decision("waits", f"Waits for fresh facts of {_words([node.name for node in nodes])}.")


def _refused(problems: Sequence[Problem]) -> Decision | None:
    if not problems:
        return None
    lasting = [one for one in problems if one.name not in COMES_UP]
    if not lasting:
        return Decision("waits", f"Waits: {problems[0].title}.")
    first = lasting[0]
    if first.name == "already_serving":
        return Decision("")
    if first.severity == "consent":
        things = _words([f"{item['kind']} {item['name']} on {item['node']}" for item in first.clear])
        return Decision(
            "gave_up",
            f"Does not act: {things} would have to be cleared, and no editor has agreed to that for this deployment.",
        )
    return Decision("gave_up", f"Does not act: {first.title}. {first.remedy}".strip())


def _of_this_boot(node: Node) -> bool:
    machine = inventory.part_of_sheet(node, "machine").machine
    return machine is not None and (not node.boot_id or machine.boot_id == node.boot_id)


def _age_s(node: Node) -> float:
    """Of its newest facts. What started since they were taken may hold the memory."""
    taken = node.sheets.order_by("-taken_at").values_list("taken_at", flat=True).first()
    return (timezone.now() - taken).total_seconds() if taken else float("inf")


def _ask_again(nodes: Sequence[Node]) -> None:
    asked = Run.objects.filter(story="probe", state__in=ACTIVE, steps__node__in=nodes)
    if asked.exists():
        return
    try:
        runs.probe(RELAUNCH, nodes)
    except Refused as no:
        log.info("no fresh facts: %s", no.detail)


def _why(deployment: Deployment) -> str:
    by = deployment.relaunch_set.get("by", "somebody")
    return f"Policy “{WORDS[deployment.relaunch_policy]}”, set by {by}. {deployment.evidence}"[:LONGEST_REASON]


WORDS = {"manual": "manual", "once": "once after a reboot", "always": "always"}


def _under(deployment: Deployment) -> dict[str, Any]:
    """What a robot's run is begun under; kept with the run and in the trail."""
    return {
        "policy": deployment.relaunch_policy,
        "limit": deployment.relaunch_limit,
        "set_by": deployment.relaunch_set.get("by", ""),
        "set_at": deployment.relaunch_set.get("at", ""),
        "boots": _rebooted(deployment),
        "try": len(_tries(deployment)) + 1,
    }


def _say(deployment: Deployment, decision: Decision) -> None:
    """On the page and in the API what the robot waits for or why it gave up; the latter once in the trail."""
    said = (
        {
            "state": decision.state,
            "sentence": decision.sentence,
            "next_at": decision.next_at.isoformat() if decision.next_at else None,
        }
        if decision.state
        else {}
    )
    with transaction.atomic():
        found = Deployment.objects.select_for_update(of=("self",)).get(pk=deployment.pk)
        if found.relaunching == said:
            return
        before = found.relaunching.get("sentence")
        Deployment.objects.filter(pk=found.pk).update(relaunching=said, version=F("version") + 1)
        if decision.state == "gave_up" and before != decision.sentence:
            record(
                RELAUNCH,
                "deployment:relaunch",
                object_type="deployment",
                object_id=str(found.pk),
                object_name=found.name,
                outcome="denied",
                reason=decision.sentence,
                after={"under": deployments.policy_of(found) | {"set_by": found.relaunch_set.get("by", "")}},
            )
            ring_on_commit("audit", 0)
        ring_on_commit("deployment", found.pk, found.version + 1)
        ring_on_commit("fleet", 0)


def _words(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
