"""Two versions side by side: which fields differ, and which lines of their YAML. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apps.recipes.formats import bodies


@dataclass(frozen=True)
class Pair:
    """A line of both sides; "" and 0 where a side has none. kind: same, changed, removed, added, or skipped (lines that are
    the same and far from any change; `older` says how many)."""

    kind: str
    older_number: int = 0
    older: str = ""
    newer_number: int = 0
    newer: str = ""


AROUND = 4  # same lines shown before and after a change


def lines(older: str, newer: str) -> tuple[Pair, ...]:
    left, right = older.splitlines(), newer.splitlines()
    made: list[Pair] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=len(left) > 2000).get_opcodes():
        if tag == "equal":
            made += [Pair("same", at + 1, left[at], c + at - a + 1, right[c + at - a]) for at in range(a, b)]
            continue
        for at in range(max(b - a, d - c)):
            has_left, has_right = a + at < b, c + at < d
            kind = "changed" if has_left and has_right else "removed" if has_left else "added"
            made.append(
                Pair(
                    kind,
                    a + at + 1 if has_left else 0,
                    left[a + at] if has_left else "",
                    c + at + 1 if has_right else 0,
                    right[c + at] if has_right else "",
                )
            )
    return tuple(_folded(made))


def _folded(pairs: list[Pair]) -> Iterator[Pair]:
    near = {at + off for at, pair in enumerate(pairs) if pair.kind != "same" for off in range(-AROUND, AROUND + 1)}
    skipped = 0
    for at, pair in enumerate(pairs):
        if pair.kind == "same" and at not in near:
            skipped += 1
            continue
        if skipped:
            yield Pair("skipped", older=str(skipped))
            skipped = 0
        yield pair
    if skipped:
        yield Pair("skipped", older=str(skipped))


def changes(older: Mapping[str, Any], newer: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(field, before, after) of two bodies, defaults filled in. Bodies that can't be read are compared as they stand."""
    try:
        before, after = bodies.normal(older), bodies.normal(newer)
    except (TypeError, ValueError):
        before, after = dict(older), dict(newer)
    names = [*before, *(name for name in after if name not in before)]
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
