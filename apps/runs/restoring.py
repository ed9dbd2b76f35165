"""Restore previous services: put back what runs cleared on some nodes, as a run of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from apps.audit.actor import Actor
from apps.deployments.models import Deployment
from apps.deployments.queries import others
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan import stories
from apps.plan.spec import Given
from apps.plan.step import Plan
from apps.runs import provisioning
from apps.runs.models import Run, Step
from apps.runs.services import once, same_request, sheets_of

CLEARING = ("clear.units.", "clear.containers.", "clear.stop-containers.")
Thing = tuple[str, str, str]  # node, kind, name


@dataclass(frozen=True)
class Cleared:
    """Something that a run stopped, as it was before."""

    node: str
    kind: str  # unit, container
    name: str
    run: int
    before: dict[str, Any]


def cleared(nodes: Sequence[str]) -> list[Cleared]:
    """What runs stopped on these nodes, and no restore has put back since, the oldest first. Steps that were begun count, also
    those that failed: who knows how far they came."""
    back = _put_back(nodes)
    found = [one for one in _stopped(nodes) if one.run > back.get((one.node, one.kind, one.name), 0)]
    return sorted(found, key=lambda one: one.run)


def _stopped(nodes: Sequence[str]) -> Iterator[Cleared]:
    keys = [f"{key}{node}" for key in CLEARING for node in nodes]
    begun = Step.objects.filter(key__in=keys).exclude(state__in=(Step.State.WAITING, Step.State.SKIPPED))
    wanted: dict[int, set[str]] = {}
    for run, key in begun.values_list("run_id", "key"):
        wanted.setdefault(run, set()).add(key)
    for run, plan in Run.objects.filter(pk__in=wanted).order_by("pk").values_list("pk", "plan"):
        for step in (step for stage in plan.get("stages", ()) for step in stage["steps"]):
            if step["key"] in wanted[run]:
                undo = step.get("undo") or {}
                for unit in undo.get("units", ()):
                    yield Cleared(undo["node"], "unit", str(unit["unit"]), run, unit)
                for container in undo.get("containers", ()):
                    yield Cleared(undo["node"], "container", str(container["name"]), run, container)


def _put_back(nodes: Sequence[str]) -> dict[Thing, int]:
    """The newest restore run that has put a thing back, all that it had to do for it done."""
    made: dict[Thing, int] = {}
    runs = Run.objects.filter(story="restore", steps__node__name__in=list(nodes)).distinct().order_by("pk")
    for run in runs:
        states = dict(run.steps.values_list("key", "state"))
        good: dict[Thing, bool] = {}
        for step in (step for stage in run.plan.get("stages", ()) for step in stage["steps"]):
            for thing in (step.get("gate") or {}).get("puts_back", ()):
                kind, _, name = thing.partition(" ")
                key = (step["node"], kind, name)
                good[key] = good.get(key, True) and states.get(step["key"]) == Step.State.SUCCEEDED
        made |= {key: run.pk for key, done in good.items() if done}
    return made


def _checked(nodes: Sequence[str]) -> tuple[str, ...]:
    """Raises Refused naming the place."""
    names = tuple(dict.fromkeys(nodes))
    known = {node.name: node for node in Node.objects.filter(name__in=names).select_related("credential")}
    for place, name in enumerate(names):
        if name not in known:
            raise Refused(
                "not_found",
                f"There is no node {name[:80]!r}.",
                field=f"nodes[{place}]",
                status=404,
                remedy="Add it first.",
            )
        inventory.endpoint(known[name])
    if not names:
        raise Refused("bad_input", "No node is named.", field="nodes", remedy="Name at least one.")
    return names


def preview(nodes: Sequence[str]) -> Plan:
    """How everything that runs cleared on these nodes would be put back. Changes nothing. Raises Refused."""
    names = _checked(nodes)
    found = cleared(names)
    if not found:
        raise Refused(
            "nothing_recorded", f"Nothing that sparkweb stopped on {', '.join(names)} is left to be put back.", status=409,
            field="nodes", remedy="There is nothing to do.",
        )  # fmt: skip
    undo = [{"node": one.node, f"{one.kind}s": [one.before]} for one in found]
    return stories.restore(undo, names, sheets_of(names), given=Given(others=others(None, names)))


def start(
    actor: Actor,
    nodes: Sequence[str],
    *,
    digest: str,
    reason: str,
    deployment: Deployment | None = None,
    idempotency_key: str = "",
) -> Run:
    """Store the plan that was previewed and hand it to a worker. `deployment`: in whose history it stands. Raises Refused:
    plan_changed, node_reserved, a missing reason, a deployment of ours on a node, nothing to do."""

    def known() -> Run | None:
        return same_request(
            actor,
            idempotency_key,
            story="restore",
            deployment=deployment.pk if deployment else None,
            nodes=list(dict.fromkeys(nodes)),
            digest=digest,
            reason=reason,
        )

    def make() -> Run:
        plan = preview(nodes)
        for problem in plan.refused:
            raise Refused(
                problem.name, f"{problem.title}. {problem.meaning}", status=409, remedy=problem.remedy,
                evidence=problem.evidence,
                extra={"node": problem.node} | ({"deployment": problem.deployment} if problem.deployment else {}),
            )  # fmt: skip
        if plan.digest == digest and not does_something(plan):
            raise Refused(
                "nothing_recorded", "Everything that can be put back stands already.", status=409, field="nodes",
                remedy="There is nothing to do.",
            )  # fmt: skip
        return provisioning.begin(
            actor, plan, digest=digest, reason=reason, idempotency_key=idempotency_key, deployment=deployment
        )

    return once(known, make)


def does_something(plan: Plan) -> bool:
    return any(step.kind == "job" for stage in plan.stages for step in stage.steps)
