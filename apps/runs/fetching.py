"""Fetching a model revision onto a node. It holds no node: launches and stops go on beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from apps.audit import record
from apps.audit.actor import Actor
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan import stories
from apps.plan.fetching.wish import BadWish, Wish, wish_from
from apps.plan.step import Plan
from apps.runs import services
from apps.runs.models import ACTIVE, Run


def wished(node: Node, body: Mapping[str, Any]) -> Wish:
    """Raises Refused naming the field."""
    try:
        return wish_from(node.name, body)
    except BadWish as problem:
        detail = f"{problem.detail[:1].upper()}{problem.detail[1:]}."
        raise Refused("bad_input", detail, field=problem.field, remedy=problem.remedy) from None


def preview(node: Node, body: Mapping[str, Any]) -> Plan:
    """What would run. Changes nothing. Raises Refused."""
    return stories.fetch(wished(node, body))


def start(actor: Actor, node: Node, body: Mapping[str, Any], *, reason: str = "", idempotency_key: str = "") -> Run:
    """A run that fetches, or the one that fetches the same there already. Raises Refused: a field, a secret that is missing, a
    node that may not be opened."""
    wish, reason = wished(node, body), reason.strip()
    if len(reason) > services.LONGEST_REASON:
        raise Refused(
            "bad_input", f"The reason is longer than {services.LONGEST_REASON} characters.", field="reason", remedy="Shorten it."
        )  # fmt: skip

    def known() -> Run | None:
        run = services.same_request(actor, idempotency_key, story="fetch", nodes=[node.name], reason=reason)
        if run is not None and run.parameters.get("wish") != wish.to_json():
            raise services._reused(run)
        return run

    return services.once(known, lambda: _start(actor, node, wish, reason, idempotency_key))


@transaction.atomic
def _start(actor: Actor, node: Node, wish: Wish, reason: str, idempotency_key: str) -> Run:
    inventory.endpoint(node)
    _need_secret(wish)
    Node.objects.select_for_update().get(pk=node.pk)  # two requests for the same bytes come one after the other
    joined = running(wish)
    if joined is None and (other := _of_the_same_model(wish)) is not None:
        raise Refused(
            "in_use",
            f"Run {other.pk}, which {other.actor_name} started, fetches files of {wish.repo} to {wish.node} now.",
            field="repo",
            status=409,
            remedy="Wait until it has ended, or cancel it: what it has brought is kept.",
            extra={"run": other.pk},
        )
    run = joined or services.planned_run(
        actor,
        stories.fetch(wish),
        why=reason,
        idempotency_key=idempotency_key,
        parameters={"wish": wish.to_json()},
    )
    after = {"repo": wish.repo, "revision": wish.revision, "hub": wish.folder or wish.endpoint}
    record(
        actor,
        "node:fetch",
        object_type="node",
        object_id=str(node.pk),
        object_name=node.name,
        outcome="requested",
        reason=reason,
        run=run.pk,
        after=after | ({"joined": run.pk} if joined else {}),
    )
    services.wake(run.pk)
    return run


def running(wish: Wish) -> Run | None:
    """The run that fetches the same bytes to the same place now."""
    for run in Run.objects.filter(story="fetch", state__in=ACTIVE, cancel_asked_at=None).order_by("pk"):
        if run.parameters.get("wish") and _same(run.parameters["wish"], wish):
            return run
    return None


def _of_the_same_model(wish: Wish) -> Run | None:
    """A run that fetches other files or another revision of it to the same node now: two would write the same lists there."""
    for run in Run.objects.filter(story="fetch", state__in=ACTIVE).order_by("pk"):
        stored = run.parameters.get("wish") or {}
        if (stored.get("node"), stored.get("repo")) == (wish.node, wish.repo):
            return run
    return None


def _same(stored: Mapping[str, Any], wish: Wish) -> bool:
    lists = {name: tuple(stored[name]) for name in ("include", "exclude")}
    return Wish(**{**stored, **lists}).same == wish.same


def _need_secret(wish: Wish) -> None:
    if not wish.token:
        return
    try:
        inventory.secret_value(wish.token)
    except Refused as missing:
        raise Refused(missing.reason, missing.detail, field="token", remedy=missing.remedy) from None
