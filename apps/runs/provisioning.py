"""Provision runs and their way back: what would run, and the start of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import IntegrityError, transaction

from apps.audit import record
from apps.audit.actor import Actor
from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.doorbell.ring import ring_on_commit
from apps.facts.sheet import Sheet
from apps.inventory import services as inventory
from apps.inventory.models import HostKey, Node
from apps.plan import stories
from apps.plan.provision.addressing import suggest
from apps.plan.provision.wish import OFFERS, BadWish, Wish, wish_from
from apps.plan.step import Plan
from apps.plan.stories.provision import passwords, suggested
from apps.runs import passing
from apps.runs.models import Reservation, Run, Step
from apps.runs.services import LONGEST_REASON, _held, once, planned_run, same_request, sheets_of, wake

OFFERED = tuple(offer.name for offer in OFFERS)
UNIT_MARKS = ("vllm", "sglang", "llama", "ray", "model", "engine")


@dataclass(frozen=True)
class Provisioning:
    """What a person is shown: the wish with all that was filled in, its plan, the passwords that it asks for."""

    wish: Wish
    plan: Plan
    passwords: tuple[str, ...]


def wished(body: Mapping[str, Any]) -> tuple[Wish, dict[str, Sheet]]:
    """The wish of a request, completed: without `ticks` all that is not optional, without `fabric` the suggested addresses,
    without `units` those that start an engine; the same for the nodes in `fill` and, addresses only, in `fill_fabric`, whom
    a form did not ask about yet. Raises Refused naming the field."""
    try:
        wish = wish_from(body)
    except BadWish as problem:
        detail = f"{problem.detail[:1].upper()}{problem.detail[1:]}."
        raise Refused("bad_input", detail, field=problem.field, remedy=problem.remedy) from None
    nodes = {node.name: node for node in Node.objects.filter(name__in=wish.nodes).select_related("credential")}
    for place, name in enumerate(wish.nodes):
        if name not in nodes:
            raise Refused(
                "not_found", f"There is no node {name!r}.", field=f"nodes[{place}]", status=404, remedy="Add it first."
            )
        inventory.endpoint(nodes[name])  # Refused for an unconfirmed or stopped one
    sheets = sheets_of(wish.nodes)
    known = {name: sheet for name, sheet in sheets.items() if name not in wish.key}
    pinned = HostKey.objects.filter(node__name__in=wish.nodes, state=HostKey.State.PINNED).order_by("node_id", "type")

    def fill(name: str, *more: str) -> set[str]:
        asked = {str(node) for which in ("fill", *more) for node in body.get(which) or ()}
        return asked if name in body else set(known)

    ticks = {one for one in suggested(known) if one[0] in fill("ticks")}
    units = {one for one in _units(known) if one[0] in fill("units")}
    places = tuple(one for one in suggest(known) if one.node in fill("fabric", "fill_fabric"))
    return replace(
        wish,
        ticks=tuple(sorted({*wish.ticks, *ticks})),
        places=tuple(sorted({*wish.places, *places}, key=lambda one: (one.node, one.interface))),
        units=tuple(sorted({*wish.units, *units})),
        hosts=tuple((key.node.name, f"{key.type} {key.base64}") for key in pinned.select_related("node")),
        public_keys=tuple((name, nodes[name].credential.public_key) for name in wish.key),
    ), sheets


def _units(sheets: Mapping[str, Sheet]) -> tuple[tuple[str, str], ...]:
    """Units that start a container, or whose name speaks of an engine."""
    return tuple(
        sorted(
            (node, unit.name)
            for node, sheet in sheets.items()
            for unit in sheet.units or ()
            if not unit.vendor and (unit.containers or any(mark in unit.name for mark in UNIT_MARKS))
            if unit.name.endswith(".service") and "@" not in unit.name
        )
    )


def preview(body: Mapping[str, Any]) -> Provisioning:
    """What would run now. Changes nothing. Raises Refused."""
    wish, sheets = wished(body)
    plan = stories.provision(wish, sheets)
    return Provisioning(wish, plan, passwords(plan))


def start(
    actor: Actor,
    body: Mapping[str, Any],
    *,
    digest: str,
    reason: str,
    passwords: Mapping[str, str] | None = None,
    idempotency_key: str = "",
) -> Run:
    """Store the plan that was previewed and hand it to a worker. Raises Refused: plan_changed, node_reserved, a missing reason or
    password, an address that must not be."""
    wish, _ = wished(body)

    def known() -> Run | None:
        return same_request(actor, idempotency_key, story="provision", nodes=wish.nodes, digest=digest, reason=reason)

    def make() -> Run:
        made = preview(body)
        for problem in made.plan.refused:
            raise Refused(
                problem.name, f"{problem.title}. {problem.meaning}", status=409, remedy=problem.remedy,
                evidence=problem.evidence, extra={"node": problem.node},
            )  # fmt: skip
        return begin(
            actor,
            made.plan,
            digest=digest,
            reason=reason,
            wanted=made.passwords,
            given=passwords,
            idempotency_key=idempotency_key,
        )

    return once(known, make)


# The way back


def recorded(nodes: Sequence[str], *, with_key: bool = False) -> list[dict[str, Any]]:
    """What provision runs changed on these nodes and no restore has put back yet, the newest first."""
    names = set(nodes)
    done = _restored(names)
    found = []
    for run in Run.objects.filter(story="provision", steps__node__name__in=names).distinct().order_by("-pk"):
        begun = set(run.steps.exclude(state__in=(Step.State.WAITING, Step.State.SKIPPED)).values_list("key", flat=True))
        steps = [step for stage in run.plan.get("stages", []) for step in stage["steps"] if step["key"] in begun]
        seen = set()
        for step in reversed(steps):
            undo = step.get("undo") or {}
            mark = (undo.get("node"), undo.get("provision"), run.code)
            if not undo or mark in seen or mark in done or undo["node"] not in names:
                continue
            seen.add(mark)
            if undo["provision"] != "key" or with_key:
                found.append({**undo, "code": run.code})
    return found


def _restored(names: set[str]) -> set[tuple[str, str, str]]:
    """(node, offer, code of the run) of all that was put back already."""
    steps = Step.objects.filter(run__story="restore", state=Step.State.SUCCEEDED, node__name__in=names, kind="job")
    made = set()
    for key in steps.values_list("key", flat=True):
        what, _, node = key.removeprefix("restore.").partition(".")
        name, _, code = what.rpartition("-")
        made.add((node, name, code))
    return made


def preview_restore(nodes: Sequence[str], *, with_key: bool = False) -> Provisioning:
    """Everything that provision runs changed on these nodes, put back, the newest first. Raises Refused."""
    wish, sheets = wished({"nodes": list(nodes), "ticks": {}, "fabric": [], "units": {}})
    undo = recorded(wish.nodes, with_key=with_key)
    if not undo:
        raise Refused(
            "nothing_recorded", f"Nothing that sparkweb changed on {', '.join(wish.nodes)} is left to be put back.", status=409,
            field="nodes", remedy="There is nothing to do.",
        )  # fmt: skip
    plan = stories.restore(undo, wish.nodes, sheets)
    return Provisioning(wish, plan, passwords(plan))


def start_restore(
    actor: Actor,
    nodes: Sequence[str],
    *,
    digest: str,
    reason: str,
    with_key: bool = False,
    passwords: Mapping[str, str] | None = None,
    idempotency_key: str = "",
) -> Run:
    """As `start`, for the way back."""

    def known() -> Run | None:
        return same_request(actor, idempotency_key, story="restore", nodes=nodes, digest=digest, reason=reason)

    def make() -> Run:
        made = preview_restore(nodes, with_key=with_key)
        return begin(
            actor,
            made.plan,
            digest=digest,
            reason=reason,
            wanted=made.passwords,
            given=passwords,
            idempotency_key=idempotency_key,
        )

    return once(known, make)


def begin(
    actor: Actor,
    plan: Plan,
    *,
    digest: str,
    reason: str,
    wanted: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
    idempotency_key: str = "",
    deployment: Deployment | None = None,
) -> Run:
    """A run of this plan, if it is still the one with `digest`; all its nodes are taken. `given`: the passwords that it asks for
    (`wanted`). Raises Refused."""
    reason = reason.strip()
    if not reason or len(reason) > LONGEST_REASON:
        raise Refused(
            "bad_input", f"A {plan.story} needs a reason of at most {LONGEST_REASON} characters.", field="reason",
            remedy="Say why in a few words; it is kept in the audit trail.",
        )  # fmt: skip
    if plan.digest != digest:
        raise Refused(
            "plan_changed", "What would run is not what was previewed any more.", status=409, field="digest",
            remedy="Look at the new plan and start again.", extra={"digest": plan.digest},
        )  # fmt: skip
    held = passing.check(given or {}, wanted=tuple(wanted))
    if Reservation.objects.filter(node__name__in=plan.nodes).exists():
        raise _held(plan.nodes)
    try:
        with transaction.atomic():
            return _stored(
                actor, plan, reason=reason, held=held, idempotency_key=idempotency_key, deployment=deployment
            )
    except IntegrityError:  # somebody was faster, perhaps this very request
        raise _held(plan.nodes) from None


def _stored(
    actor: Actor,
    plan: Plan,
    *,
    reason: str,
    held: Mapping[str, str],
    idempotency_key: str,
    deployment: Deployment | None,
) -> Run:
    run = planned_run(actor, plan, why=reason, idempotency_key=idempotency_key, deployment=deployment)
    nodes = list(Node.objects.filter(name__in=plan.nodes).order_by("pk"))
    for node in nodes:
        Reservation.objects.create(node=node, run=run)
    passing.keep(run, held)
    steps = [step for stage in plan.stages for step in stage.steps if step.kind in ("job", "key")]
    about = ("node", nodes[0].pk) if len(nodes) == 1 else ("run", run.pk)
    kind, number = ("deployment", deployment.pk) if deployment else about
    record(
        actor,
        f"{'deployment' if deployment else 'node'}:{plan.story}",
        object_type=kind,
        object_id=str(number),
        object_name=deployment.name if deployment else ", ".join(plan.nodes)[:200],
        outcome="requested",
        reason=reason,
        run=run.pk,
        after={
            "plan": plan.digest,
            "nodes": list(plan.nodes),
            "steps": [f"{step.title} on {step.node}" for step in steps],
        },
    )
    ring_on_commit("audit", 0)
    wake(run.pk)
    return run
