"""Objects by the id in an address or by the id or name in a body, and pages of lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from apps.diagnosis.refusal import Refused

LARGEST_ID = 2**63 - 1
PAGE, MOST = 50, 200
_Row = TypeVar("_Row", bound=Model)


def by_id(rows: QuerySet[_Row], identity: int) -> _Row:
    """The object of an address. Raises Refused (404)."""
    found = rows.filter(pk=identity).first() if 0 < identity <= LARGEST_ID else None
    if found is None:
        kind = _kind(rows)
        raise Refused(
            "not_found",
            f"There is no {kind} {str(identity)[:40]}.",
            status=404,
            remedy=f"GET /api/v1/{rows.model._meta.model_name}s lists those that exist.",
        )
    return found


def by_reference(rows: QuerySet[_Row], reference: int | str, *, field: str, names: Sequence[str] = ("name",)) -> _Row:
    """The object that a body means: a number is an id, text is a name (or, where nothing has that name, an id).

    Raises Refused (422) naming the field.
    """
    found = None
    for name in names if isinstance(reference, str) else ():
        found = found or rows.filter(**{name: reference}).order_by("pk").first()
    if found is None:
        identity = _number(reference)
        found = rows.filter(pk=identity).first() if identity is not None else None
    if found is None:
        listed = f"GET /api/v1/{rows.model._meta.model_name}s lists those that exist."
        raise Refused("bad_input", f"There is no {_kind(rows)} {str(reference)[:80]}.", field=field, remedy=listed)
    return found


def _number(reference: int | str) -> int | None:
    if isinstance(reference, str):
        if not (reference.isascii() and reference.isdecimal() and len(reference) < 19):
            return None
        reference = int(reference)
    return reference if 0 < reference <= LARGEST_ID else None


def _kind(rows: QuerySet[Any]) -> str:
    return str(rows.model._meta.verbose_name)


def page(
    rows: QuerySet[_Row], *, after: int | None, limit: int, newest_first: bool = False
) -> tuple[list[_Row], int | None]:
    """(up to `limit`, at most 200, objects that follow the one with id `after`; the id to pass as `after` for more, or
    None)."""
    if after is not None:
        rows = rows.filter(pk__lt=after) if newest_first else rows.filter(pk__gt=after)
    limit = min(limit, MOST)
    found = list(rows.order_by("-pk" if newest_first else "pk")[: limit + 1])
    return found[:limit], found[limit - 1].pk if len(found) > limit else None
