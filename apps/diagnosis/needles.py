"""What to look for in a text before a regular expression is searched in it, which is some ten times as dear."""

from __future__ import annotations

import re
from collections.abc import Iterator

Needles = tuple[str, ...]  # at least one of them stands in whatever is matched; none: nothing is known

_TOKEN = re.compile(  # the beginning of a group, an escaped letter, a class, a count, a plain letter, or anything else
    r"\((?P<group>\?(?:P<\w+>|:))?(?P<other>\?)?|\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|(?P<escaped>\W)|.)"
    r"|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|(?P<plain>[^\\.^$|()\[\]{}*+?])|.",
    re.DOTALL,
)
_OPTIONAL = ("*", "?", "{")
MOST_NEEDLES = 8


def needles_of(pattern: re.Pattern[str], *, known: str = "") -> Needles:
    """The longest texts that are easily seen to be needed. `known`: words of which one stands in the text anyhow."""
    if pattern.flags & (re.IGNORECASE | re.VERBOSE):
        return ()
    found = _alternatives(_Tokens(pattern.pattern, frozenset(known.split())))
    return found if len(found) <= MOST_NEEDLES and all(found) else ()


class _Tokens:
    def __init__(self, pattern: str, known: frozenset[str]) -> None:
        self._known = known
        self._left: Iterator[re.Match[str]] = _TOKEN.finditer(pattern)
        self.next: re.Match[str] | None = next(self._left, None)

    def take(self) -> re.Match[str]:
        taken = self.next
        assert taken is not None  # asked for only where there is one: the pattern was compiled
        self.next = next(self._left, None)
        return taken

    def comes(self, *signs: str) -> bool:
        return self.next is not None and self.next[0][:1] in signs

    def worth(self, needles: Needles) -> tuple[int, int]:
        """The length of the shortest, first without those that are known."""
        new = [0 if self._is_known(needle) else len(needle) for needle in needles]
        return min(new, default=0), min(map(len, needles), default=0)

    def _is_known(self, needle: str) -> bool:
        word = _BESIDE.sub("", needle).lower()
        return any(word in known for known in self._known)


_BESIDE = re.compile(r"^\W+|\W+$")


def _alternatives(tokens: _Tokens) -> Needles:
    branches = [_sequence(tokens)]
    while tokens.comes("|"):
        tokens.take()
        branches.append(_sequence(tokens))
    return tuple(dict.fromkeys(needle for branch in branches for needle in branch)) if all(branches) else ()


def _sequence(tokens: _Tokens) -> Needles:
    best: Needles = ()
    run = ""
    while tokens.next is not None and not tokens.comes("|", ")"):
        token = tokens.take()
        needed: Needles = ()
        letter = token["plain"] or token["escaped"] or ""
        if token[0][0] == "(":
            needed = _alternatives(tokens)
            tokens.take()  # its end
            if token["other"]:
                needed = ()  # looks around, or something rare
        if tokens.comes(*_OPTIONAL):
            letter, needed = "", ()
        run = run + letter if letter else ""
        best = max(best, needed, (run,) if run else (), key=tokens.worth)
        if tokens.comes("+"):
            run = ""
    return best
