"""What lines have in common that differ in nothing but digits and hexadecimal ids: of layers, nodes, actors, requests.

No two lines of a log that names an id in each are of one shape (`diagnosis.alike`), and to search each of them is twenty
times as dear as to read it. So one is searched with a veil in place of its ids. A pattern is searched twice: as `must`,
in which a part stands for a veiled character only where it stands for every hexadecimal digit, and as `may`, in which it
does where it stands for any of them. Whatever the ids are, the ways in which the pattern itself is found are between
the two: so where `may` finds nothing, neither does the pattern, and where both find the same, so does it. In all other
cases the ids decide, and each line has to be searched for itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

VEIL = "ª"  # a letter that stands in no pattern, in place of each digit of an id
_VEIL_BYTE = b"\x01"  # the same in bytes
_HEXADECIMAL = "0123456789abcdef"
ANY_IDENTITY = bytes.maketrans(b"123456789abcdef", b"0" * 15)
_IDENTITY = re.compile(
    rb"(?P<uuid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f]))|0x(?P<address>[0-9a-f]{4,})|(?P<run>[0-9a-f]{8,})"
)
_LETTER = re.compile(rb"[a-f]")
SHORTEST = 8  # digits of an id that is a word, or part of one; groups of a UUID and addresses are shorter


class Unknown(Enum):
    """The ids decide."""

    UNKNOWN = "unknown"


UNKNOWN = Unknown.UNKNOWN


class Veiled(NamedTuple):
    """A line without its ids."""

    line: bytes
    text: str
    kept: tuple[tuple[slice, bytes], ...]  # what stands between the ids, and where
    uuids: bool


def veiled(blurred: bytes) -> Veiled | None:
    """The ids of a line with blurred digits taken away; None where it has none, or could not be told from its veil."""
    kept: list[tuple[slice, bytes]] = []
    parts: list[bytes] = []
    at, uuids = 0, False
    for match in _IDENTITY.finditer(blurred):
        begin, end = match.span(match.lastgroup or 0)
        if match.lastgroup == "run" and not _LETTER.search(blurred, begin, end):
            continue  # a number
        kept.append((slice(at, begin), blurred[at:begin]))
        parts += (blurred[at:begin], re.sub(rb"[^-]", _VEIL_BYTE, blurred[begin:end]))
        at, uuids = end, uuids or match.lastgroup == "uuid"
    if not parts or _VEIL_BYTE in blurred or VEIL.encode() in blurred:
        return None
    kept.append((slice(at, len(blurred)), blurred[at:]))
    line = b"".join((*parts, blurred[at:]))
    return Veiled(line, unveil(line), tuple(each for each in kept if each[1]), uuids)


def unveil(line: bytes) -> str:
    """The text of a veiled line."""
    return line.decode("utf-8", "replace").replace("\x01", VEIL)


# An atom that stands for one character, or whatever else a pattern is made of.
_TOKEN = re.compile(
    r"(?P<refused>\\[1-9DBG]|\(\?P=|\(\?>|[+*?}]\+|\(\?\()|(?P<negative>\(\?<?!)|(?P<group>\((?:\?(?:P<\w+>|[:=]|<=|[a-zA-Z]+\)))?)"
    r"|(?P<end>\))|(?P<count>\{\d*,?\d*\})|(?P<place>\\[AbZ]|[\^$])|(?P<plain>[|*+?.])"
    r"|(?P<atom>\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|.)",
    re.DOTALL,
)


@dataclass(frozen=True)
class _Bounds:
    must: re.Pattern[str]
    may: re.Pattern[str]


@lru_cache(4096)
def _bounds(pattern: re.Pattern[str]) -> _Bounds | None:
    """None where a pattern holds something for which the two cannot be told."""
    if pattern.flags & re.VERBOSE:
        return None
    must, may = [], []
    turned = [False]  # by open group: whether it stands within what must not be there
    for token in _TOKEN.finditer(pattern.pattern):
        if token["refused"]:
            return None
        text = token[0]
        if token["negative"] or (token["group"] and not re.fullmatch(r"\(\?[a-zA-Z]+\)", text)):
            turned.append(turned[-1] != bool(token["negative"]))
        elif token["end"]:
            turned.pop()
        if not token["atom"]:
            must.append(text)
            may.append(text)
            continue
        least, most = _atom(text, pattern.flags)
        must.append(most if turned[-1] else least)
        may.append(least if turned[-1] else most)
    return _Bounds(re.compile("".join(must), pattern.flags), re.compile("".join(may), pattern.flags))


@lru_cache(4096)
def _atom(text: str, flags: int) -> tuple[str, str]:
    """What stands for one character, as it stands in `must` and in `may`."""
    atom = re.compile(text, flags & (re.IGNORECASE | re.ASCII | re.DOTALL))
    stands_for = [atom.match(digit) is not None for digit in _HEXADECIMAL]
    veil = atom.match(VEIL) is not None
    forms = {veil: text, not veil: f"(?:(?!{VEIL}){text})" if veil else f"(?:{text}|{VEIL})"}
    return forms[all(stands_for)], forms[any(stands_for)]


def search(
    pattern: re.Pattern[str], text: str, at: int = 0, end: int | None = None, *, begins: bool = False
) -> re.Match[str] | Unknown | None:
    """What the pattern finds in a veiled text, whatever the ids are. `begins`: at `at` and nowhere else."""
    bounds = _bounds(pattern)
    if bounds is None:
        return UNKNOWN
    end = len(text) if end is None else end
    most = bounds.may.match(text, at, end) if begins else bounds.may.search(text, at, end)
    if most is None:
        return None
    least = bounds.must.match(text, at, end) if begins else bounds.must.search(text, at, end)
    return most if least is not None and least.regs == most.regs else UNKNOWN
