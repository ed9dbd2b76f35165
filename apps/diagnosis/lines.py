"""Bytes of a log into numbered, clean lines, and the pieces that many logs share: process prefixes, progress bars,
words.

A line ends at \\n, at \\r or at \\r\\n (one end), because progress bars rewrite their line with \\r. Memory is bounded:
of a
line longer than LONGEST only the beginning is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

LONGEST = 16_384  # bytes kept of one line
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Lower case letters, digits and underscore stay; everything else becomes a space. Non-ASCII bytes stay, inside words.
_TO_WORDS = bytes(
    byte
    if 97 <= byte <= 122 or 48 <= byte <= 57 or byte == 95 or byte >= 128
    else byte + 32
    if 65 <= byte <= 90
    else 32
    for byte in range(256)
)


class Splitter:
    """Cut a stream into lines. `feed` gives the lines that have ended; `tail` is what has not."""

    def __init__(self) -> None:
        self.tail = b""
        self._after_return = False  # the last line ended with \r: a \n now belongs to it

    def feed(self, data: bytes) -> list[bytes]:
        if self._after_return and data:
            self._after_return = False
            if data.startswith(b"\n"):
                data = data[1:]
        if not data:
            return []
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        if len(lines) == 1:
            if len(self.tail) < LONGEST:
                self.tail = (self.tail + data)[:LONGEST]
            return []
        if self.tail:
            lines[0] = (self.tail + lines[0])[:LONGEST]
        self.tail = lines.pop()[:LONGEST]
        return lines

    def close(self) -> list[bytes]:
        """The last line, if it did not end."""
        lines = [self.tail] if self.tail else []
        self.tail, self._after_return = b"", False
        return lines


def clean(line: bytes) -> bytes:
    """Without ANSI escapes, cut at LONGEST."""
    if len(line) > LONGEST:
        line = line[:LONGEST]
    return _ANSI.sub(b"", line) if b"\x1b" in line else line


# What carried a line to us and is no part of it: `docker logs -t` and CRI, docker compose, kubectl --prefix, journald.
CARRIED = re.compile(
    rb"(?:\[pod/[\w./-]{1,200}\] ?)?"
    rb"(?:[a-z0-9][\w.-]{0,60} {0,40}\| {1,2})?"
    rb"(?:(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?[+-]\d\d:?\d\d)"
    rb" [\w.-]{1,64} (?!systemd|kernel)[\w@./:\\-]{1,80}\[\d{1,9}\]: )?"
    rb"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)(?: std(?:out|err) [FP])?(?: |\Z))?"
)
_JSON_LINE = re.compile(rb"\{\s*\"(?:log|message|msg|line|MESSAGE|stream|time|timestamp|ts|_[A-Z_]+|[A-Z_]+)\"\s*:")
_PARSE = json.JSONDecoder().decode  # as json.loads, which first guesses at the encoding
_SAID_IN = ("log", "MESSAGE", "message", "msg", "line")


def carrier_of(line: bytes) -> int:
    """How many bytes at the line's beginning are its carrier's: time stamps and names."""
    first = line[:1]
    if first.isdigit():
        may_be = line[4:5] == b"-" or line.find(b" | ", 0, 104) >= 0
    elif first.isalpha():
        may_be = line.find(b"| ", 0, 104) >= 0 or line.find(b"]: ", 0, 256) >= 0
    else:
        may_be = line[:5] == b"[pod/"
    if not may_be:
        return 0
    found = CARRIED.match(line)
    return found.end() if found is not None else 0


def speaks_json(line: bytes, at: int = 0) -> bool:
    """Whether what a line says stands in a JSON object that begins there."""
    return line[at : at + 1] == b"{" and _JSON_LINE.match(line, at) is not None


def uncarried(line: bytes) -> bytes:
    """The line without what a log's carrier put around it: time stamps and names in front, or a JSON object a line."""
    at = carrier_of(line)
    rest = line[at:] if at else line
    return _said_in_json(rest) if speaks_json(rest) else rest


def _said_in_json(line: bytes) -> bytes:
    try:
        parsed = _PARSE(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return line
    for name in _SAID_IN:
        said = parsed.get(name)
        if isinstance(said, str):
            return said.strip("\r\n").replace("\n", " ").encode("utf-8", "replace")
    return line


def words(line: bytes) -> list[bytes]:
    """The words of a line in lower case, without punctuation."""
    return line.translate(_TO_WORDS).split()


class Bar(NamedTuple):
    """One frame of a tqdm progress bar. `done` and `total` are in the bar's own unit, bytes where it counts in k, M,
    G."""

    label: str
    percent: int
    done: float
    total: float | None
    unit: str  # items or bytes
    seconds_per_item: float | None
    rate: str


_BAR = re.compile(
    r"(?P<percent>\d{1,3})%(?: Completed "
    r"\||\|[^|\n]{0,400}\|)\s{0,4}(?P<done>[\d.]{1,20}[kKMGTP]?)(?:i?B)?/(?P<total>[\d.]{1,20}[kKMGTP]?|\?)(?:i?B)?"
    r"\s{0,4}\[[\d:]{1,12}<[^,\]]{1,20}(?:,\s{0,4}(?P<rate>[^\],]{0,40}))?[^\]]{0,80}\]"
)
_RATE = re.compile(r"(?P<figure>[\d.]+\s*[kKMGTP]?)(?P<per>s/\w+|\w+/s)")
_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass  # with a scale behind it, or no figure at all
    try:
        return float(text.rstrip("kKMGTP")) * _SCALE.get(text[-1], 1.0)
    except ValueError:
        return 0.0


class BarPlaces(NamedTuple):
    """Where the parts of a frame stand: the same in all lines that differ in digits only."""

    label: tuple[int, int]
    percent: tuple[int, int]
    done: tuple[int, int]
    total: tuple[int, int] | None
    unit: str
    rate: tuple[int, int]
    speed: tuple[int, int] | None  # the figure in the rate
    per_item: bool  # whether that is seconds an item

    def read(self, text: str) -> Bar:
        label, percent, done, total, unit, rate, _, _ = self
        return Bar(
            text[label[0] : label[1]],
            min(int(text[percent[0] : percent[1]]), 100),
            _number(text[done[0] : done[1]]),
            None if total is None else _number(text[total[0] : total[1]]),
            unit,
            self._seconds_per_item(text),
            text[rate[0] : rate[1]],
        )

    def _seconds_per_item(self, text: str) -> float | None:
        if self.speed is None:
            return None
        value = _number(text[self.speed[0] : self.speed[1]])
        if self.per_item:
            return value
        return 1.0 / value if value else None


def bar_places(text: str) -> Iterator[BarPlaces]:
    """All whole frames in a line, in order; several may stand one after the other without any separator."""
    at = 0
    for match in _BAR.finditer(text):
        total, rate = match["total"], match["rate"] or ""
        speed = _RATE.search(rate)
        rate_at = match.start("rate")
        yield BarPlaces(
            label=_label_within(text, at, match.start()),
            percent=match.span("percent"),
            done=match.span("done"),
            total=None if total == "?" else match.span("total"),
            unit="bytes" if total[-1] in "kKMGTP" or "B/s" in rate else "items",
            rate=match.span("rate") if match["rate"] else (0, 0),
            speed=(rate_at + speed.start("figure"), rate_at + speed.end("figure")) if speed else None,
            per_item=speed is not None and speed["per"].startswith("s/"),
        )
        at = match.end()


def _label_within(text: str, start: int, end: int) -> tuple[int, int]:
    """The label without blanks around it and colons after it."""
    before = text[start:end]
    label = before.strip().rstrip(":").strip()
    start += len(before) - len(before.lstrip())
    return start, start + len(label)


def bars(text: str) -> Iterator[Bar]:
    """The frames themselves."""
    return (places.read(text) for places in bar_places(text))


@dataclass(frozen=True)
class Origin:
    """Who printed a line: `(Worker_TP1 pid=77)` is process "Worker_TP1", key "Worker_TP1 pid=77", tensor rank 1."""

    process: str = ""
    key: str = ""
    rank: int | None = None  # the number in the prefix, which is the world rank where pipeline and data parallel are 1
    local: bool = True  # False: Ray says that it runs at another address
    stage: int | None = None  # of pipeline parallel; then `rank` is the tensor rank within it
    replica: int | None = None  # of data parallel


NOBODY = Origin()
PREFIX = re.compile(
    r"[ \t]{0,4}\((?P<process>[A-Za-z]\w{0,60}) (?P<rest>(?:[^()\n]{0,60} )?(?:pid|rank)=\d[^()\n]{0,100})\)[ \t]?"
)
MOST_PREFIXES = 4
_TAG = re.compile(r"(?:_|\b)(DP|PP|TP)(\d{1,4})(?![0-9A-Za-z])")
_RANK = re.compile(r"\brank=(\d{1,5})")
RANK_TAG = re.compile(r"\[rank(\d{1,5})\]:")
_ADDRESS = re.compile(r"\bip=([0-9a-fA-F.:]+)")


def origin_of(text: str) -> tuple[Origin, str]:
    """(who printed the line, the line without that prefix). Of nested prefixes, as the driver of Ray's workers prints
    them, the innermost tells."""
    match, at = None, 0
    for _ in range(MOST_PREFIXES if "(" in text else 0):
        inner = PREFIX.match(text, at)
        if inner is None:
            break
        match, at = inner, inner.end()
    if match is None:
        tag = RANK_TAG.match(text) if text[:1] == "[" else None
        return (Origin(rank=int(tag[1])), text[tag.end() :]) if tag else (NOBODY, text)
    process, rest = match["process"], match["rest"].strip()
    tags = {kind: int(number) for kind, number in _TAG.findall(f"{process} {rest}")}
    said = _RANK.search(rest)
    rank = int(said[1]) if said else tags.get("TP")
    local = _ADDRESS.search(rest) is None
    return Origin(process, f"{process} {rest}", rank, local, tags.get("PP"), tags.get("DP")), text[match.end() :]
