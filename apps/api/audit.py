"""The audit trail, newest first."""

from __future__ import annotations

from datetime import UTC
from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router

from apps.api.finding import LARGEST_ID, MOST
from apps.api.schemas import LIMIT, ActorOut, Audit, EntryOut, Identity, Limit, Moment, ObjectOut, Word
from apps.audit import queries
from apps.audit.models import Entry
from apps.people.access import allow

router = Router(tags=["audit"])
Before = Annotated[int | None, Query(ge=1, le=LARGEST_ID, description="`next` of the answer before")]
About = Annotated[Word, Query("", description="type:id as in node:3, a type, or part of a name")]


def _shown(entry: Entry) -> EntryOut:
    return EntryOut(
        id=entry.id,
        time=entry.time.astimezone(UTC).isoformat(timespec="microseconds"),
        actor=ActorOut(kind=entry.actor_kind, id=entry.actor_id, name=entry.actor_name, role=entry.actor_role),
        address=entry.address or None,
        session=entry.session or None,
        request_id=entry.request_id or None,
        action=entry.action,
        object=ObjectOut(type=entry.object_type, id=entry.object_id, name=entry.object_name),
        outcome=entry.outcome,
        reason=entry.reason or None,
        before=entry.before,
        after=entry.after,
        run=entry.run_id,
        prev_hash=entry.prev_hash,
        hash=entry.hash,
    )


@router.get("audit", response=Audit)
@allow("view")
def list_audit(
    request: HttpRequest,
    actor: Word = "",
    action: Word = "",
    object: About = "",
    outcome: Word = "",
    run: Identity = None,
    since: Moment | None = None,
    until: Moment | None = None,
    before: Before = None,
    limit: Limit = LIMIT,
) -> Audit:
    """Who did what. `actor`: part of a name, or kind:id; `action`: a tag, or its beginning as in `deployment:`."""
    limit = min(limit, MOST)
    found = queries.entries(
        actor=actor,
        action=action,
        object=object,
        outcome=outcome,
        run=run,
        since=since,
        until=until,
        older_than=before,
        limit=limit + 1,
    )
    following = found[limit - 1].id if len(found) > limit else None
    return Audit(entries=[_shown(one) for one in found[:limit]], next=following)
