"""The only writer of the trail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from apps.audit.actor import Actor
from apps.audit.context import request_id
from apps.audit.models import GENESIS, Entry
from apps.audit.secrecy import canonical, clean, withheld
from apps.audit.tags import Outcome, checked
from apps.doorbell.ring import ring_on_commit

_CHAIN_LOCK = 0x737061726B  # any constant; all writers of one database take the same


def _lock_chain() -> None:
    """Make writers of the chain queue until the transaction ends. SQLite's are IMMEDIATE, so they queue already."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_CHAIN_LOCK])


def _stored(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else canonical(withheld(value))


def _run_id(run: object | None) -> int | None:
    if run is None or isinstance(run, int):
        return run
    return int(getattr(run, "pk"))  # noqa: B009 - any model will do


def write(
    actor: Actor,
    action: str,
    *,
    object_type: str,
    object_id: object,
    object_name: str,
    outcome: str,
    reason: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    run: object | None,
) -> Entry:
    """See apps.audit.record."""
    with transaction.atomic():
        _lock_chain()
        last = Entry.objects.order_by("-id").only("id", "hash").first()
        entry = Entry(
            id=last.id + 1 if last else 1,
            time=timezone.now(),
            actor_kind=clean(actor.kind, 16),
            actor_id=actor.id,
            actor_name=clean(actor.name, 128),
            actor_role=clean(actor.role, 16),
            address=clean(actor.address, 64),
            session=clean(actor.session, 64),
            request_id=clean(request_id.get(), 64),
            action=checked(action),
            object_type=clean(object_type, 32),
            object_id=clean(str(object_id), 64),
            object_name=clean(object_name, 256),
            outcome=Outcome(outcome).value,
            reason=clean(reason, 2000),
            before_json=_stored(before),
            after_json=_stored(after),
            run_id=_run_id(run),
            prev_hash=last.hash if last else GENESIS,
        )
        entry.hash = entry.computed_hash()
        entry.save(force_insert=True)
        ring_on_commit("audit", 0, entry.id)
    return entry
