"""What lines that differ in nothing but their digits have in common.

A log of a hundred megabytes is a few hundred messages with other figures. Two lines of one shape (every digit a 0) are cut
the same way by every pattern that names no digit of its own, so the places of its groups are searched for once a shape, and
only read again in the lines. `names_digits` says for which patterns that does not hold; those are searched in every line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

MOST_SHAPES, LONGEST_SHAPE = 4096, 2048  # shapes that are remembered, and the bytes of the longest of them
BLUR = bytes.maketrans(b"123456789", b"000000000")
_COUNTS = re.compile(r"(?<!\\)\{(?:\d+(?:,\d*)?|,\d+)\}")
_LOOKS_AROUND = re.compile(r"\(\?<?!")
_OTHER_DIGITS = re.compile(r"\\[\dux]|\(\?P<[A-Za-z_]*\d")  # of groups, code points and names


def shape_of(line: bytes) -> bytes:
    """The line with a 0 for every digit."""
    return line.translate(BLUR)


def blurred(text: str) -> str:
    """The text with a 0 for every digit of ASCII."""
    return text.translate(_BLURRED)


_BLURRED = {ord(digit): "0" for digit in "123456789"}


@lru_cache(4096)
def names_digits(pattern: str) -> bool:
    """Whether a regular expression tells digits apart. `\\d`, `0-9` and counts in braces do not. May say yes for one that
    does not, never no for one that does."""
    return re.search(r"[0-9]", _COUNTS.sub("", pattern).replace("0-9", "")) is not None


def any_digits(pattern: re.Pattern[str]) -> re.Pattern[str] | None:
    """A pattern that is found at least where `pattern` is, whatever the digits; None where there is no simple one."""
    if _LOOKS_AROUND.search(pattern.pattern) or _OTHER_DIGITS.search(pattern.pattern):
        return None
    counts = _COUNTS.findall(pattern.pattern)
    parts = [re.sub(r"\d-\d|\d", r"\\d", part) for part in _COUNTS.split(pattern.pattern)]
    counts.append("")
    return re.compile("".join(part + count for part, count in zip(parts, counts, strict=True)), pattern.flags)


Places = Mapping[str, slice | None]  # of a match's named groups; None for one that took no part
_NONE: Places = {}


def places_of(match: re.Match[str]) -> Places:
    """Where the named groups stand in the text."""
    names = match.re.groupindex
    if not names:
        return _NONE
    spans = match.regs
    return {name: slice(*spans[number]) if spans[number][0] >= 0 else None for name, number in names.items()}


class Found:
    """A match as rules see it: named groups of a text, by their places."""

    __slots__ = ("_places", "_text")

    def __init__(self, text: str, places: Places) -> None:
        self._text, self._places = text, places

    def __getitem__(self, name: str) -> str | Any:
        """The text of a named group; None for one that took no part."""
        place = self._places[name]
        return None if place is None else self._text[place]

    def names(self) -> AbstractSet[str]:
        return self._places.keys()

    def groupdict(self) -> dict[str, str | Any]:
        text = self._text
        return {name: place and text[place] for name, place in self._places.items()}
