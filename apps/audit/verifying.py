"""Reads the whole chain again and says whether anybody edited it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connection

from apps.audit.models import GENESIS, Entry

_AT_ONCE = 2000


def verify() -> dict[str, Any]:
    """`{"entries": N, "ok": True, "head": hash}`, or ok False with `broken` (an entry's number) and `why`.

    A chain proves that nothing before a known head was changed; somebody who owns the database and rewrites all of it
    from one entry on is found only by comparing with a head that was noted elsewhere.
    """
    # id and hash are read as stored; nothing here trusts the primary key's order to be free of gaps
    verdict = verify_chain(Entry.objects.order_by("id").iterator(chunk_size=_AT_ONCE))
    if not verdict["ok"]:
        return {**verdict, "entries": Entry.objects.count()}
    missing = _missing_triggers()
    return {**verdict, "ok": False, "broken": None, "why": missing} if missing else verdict


def verify_chain(entries: Iterable[Entry]) -> dict[str, Any]:
    """The same for entries in their order, wherever they come from; `entries` counts those before a fault."""
    expected, previous = 1, GENESIS
    for entry in entries:
        why = _fault(entry, expected, previous)
        if why:
            return {"entries": expected - 1, "ok": False, "head": previous, "broken": entry.id, "why": why}
        expected, previous = expected + 1, entry.hash
    return {"entries": expected - 1, "ok": True, "head": previous}


def _fault(entry: Entry, expected: int, previous: str) -> str:
    if entry.id != expected:
        return f"entry {expected} is missing" if entry.id > expected else f"entry {entry.id} was put before the first"
    if entry.prev_hash != previous:
        return f"entry {entry.id} does not follow entry {entry.id - 1}: one of them was replaced"
    if entry.computed_hash() != entry.hash:
        return f"entry {entry.id} was edited: its content does not match its hash"
    return ""


def head_is_sound(last: int = 200) -> dict[str, Any]:
    """The same for the newest `last` entries only, quick enough for a page; `checked` says how many were read."""
    entries = list(Entry.objects.order_by("-id")[: last + 1])[::-1]
    if not entries:
        return {"ok": True, "checked": 0, "head": GENESIS}
    if entries[0].id == 1:
        expected, previous = 1, GENESIS
    else:
        expected, previous = entries[0].id + 1, entries[0].hash
        entries = entries[1:]
    for entry in entries:
        why = _fault(entry, expected, previous)
        if why:
            return {"ok": False, "checked": len(entries), "broken": entry.id, "why": why}
        expected, previous = expected + 1, entry.hash
    return {"ok": True, "checked": len(entries), "head": previous}


TRIGGERS = {
    "sqlite": {"audit_entry_update", "audit_entry_delete", "audit_entry_insert"},
    "postgresql": {"audit_entry_change", "audit_entry_truncate", "audit_entry_insert"},
}


def _missing_triggers() -> str:
    """Says which of the triggers that keep entries from being changed is gone; empty when all are there."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit_entry'")
        else:
            cursor.execute(
                "SELECT tgname FROM pg_trigger WHERE tgrelid = 'audit_entry'::regclass AND tgenabled IN ('O', 'A')"
            )
        present = {str(row[0]) for row in cursor.fetchall()}
    missing = sorted(TRIGGERS[connection.vendor] - present)
    return f"the database no longer protects the trail: trigger {', '.join(missing)} is gone" if missing else ""
