"""Reading the trail: filters, newest first, paged by the number of an entry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TypedDict, Unpack

from django.db.models import Q, QuerySet

from apps.audit.models import Entry

PAGE = 50
MOST = 1000


class Filters(TypedDict, total=False):
    """What `matching` takes; all are optional, and an empty one matches everything."""

    actor: str
    action: str
    object: str
    outcome: str
    run: int | None
    since: datetime | None
    until: datetime | None


def matching(
    *,
    actor: str = "",
    action: str = "",
    object: str = "",
    outcome: str = "",
    run: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> QuerySet[Entry]:
    """All entries that match, the newest first. Empty filters match everything.

    `actor` is a part of a name, or kind:id as in person:3. `action` is a tag, or its beginning as in `deployment:`.
    `object` is type:id as in node:3, a type, or a part of a name. Times are inclusive at `since`, exclusive at `until`.
    """
    found = Entry.objects.order_by("-id")
    if actor:
        kind, colon, identity = actor.partition(":")
        if colon and identity.isdecimal() and len(identity) < 19:
            found = found.filter(actor_kind=kind, actor_id=int(identity))
        else:
            found = found.filter(actor_name__icontains=actor)
    if action:
        found = found.filter(action=action) if not action.endswith(":") else found.filter(action__startswith=action)
    if object:
        kind, colon, identity = object.partition(":")
        exact = Q(object_type=kind, object_id=identity) if colon and identity else Q(object_type=kind)
        found = found.filter(exact | Q(object_name__icontains=object))
    if outcome:
        found = found.filter(outcome=outcome)
    if run is not None:
        found = found.filter(run_id=run)
    if since is not None:
        found = found.filter(time__gte=since)
    if until is not None:
        found = found.filter(time__lt=until)
    return found


def entries(*, older_than: int | None = None, limit: int = PAGE, **filters: Unpack[Filters]) -> list[Entry]:
    """One page of `matching(…)`: up to `limit` (at most 1000) entries numbered below `older_than`, the newest first."""
    found = matching(**filters)
    if older_than is not None:
        found = found.filter(id__lt=older_than)
    return list(found[: max(1, min(limit, MOST))])


def actions_seen() -> list[str]:
    """The tags that occur in the trail, in order, to filter by."""
    return list(Entry.objects.order_by("action").values_list("action", flat=True).distinct())


def oldest_first(found: QuerySet[Entry]) -> Iterator[Entry]:
    """For an export: the same entries in the order of the chain, without holding them all in memory."""
    return found.order_by("id").iterator(chunk_size=500)
