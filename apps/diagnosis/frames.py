"""Frames of one progress bar that the next frame makes obsolete: a day of downloading is a million of them, and only
the first and the last of a run tell anything."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TQDM = re.compile(
    rb"(?P<label>[^%]{0,300}?)[ ]{0,4}(?<!\d)(?P<pct>\d{1,2})%\|[^|]{0,400}\|[ ]{0,4}(?P<done>\d{1,12}(?:\.\d{1,6})?)(?P<scale>[kKMGTP]?)"
    rb"(?:i?B)?/(?P<total>\d[\d.]{0,19}[kKMGTP]?(?:i?B)?) {0,4}\[[\d:]{1,12}<[\d:?]{1,12}(?P<rate>,[ ]{0,4}[\d.?]{1,12} ?"
    rb"(?:[kKMGTP]?i?B/s|[kKMGTP]?it/s|s/it))?\] {0,200}"
)
_RSYNC = re.compile(
    rb"[ ]{0,40}(?P<done>\d[\d,.]{0,30}[KMGT]?) {1,8}(?P<pct>\d{1,2})% {1,8}[\d.,]{1,12}[kKMGT]?B/s {1,8}\d{1,6}:\d\d:\d\d"
    rb"(?P<left> {1,4}\(xfe?r#\d{1,9}, (?:to|ir)-chk=\d{1,9}/\d{1,9}\))? {0,200}"
)
# Words that make a number behind them mean something else than a count: such a line is read like any other.
_SAYS_MORE = re.compile(rb"rror|rrno|HTTP|[Ss]tatus|[Cc]ode|ailed|arning")
_RSYNC_PLAIN, _RSYNC_LEFT = (b"rsync",), (b"rsync", b"left")
_SCALES = {b"": 1.0, b"k": 1e3, b"K": 1e3, b"M": 1e6, b"G": 1e9, b"T": 1e12, b"P": 1e15}


# (what two frames of one bar have in common, percent, done). Never one of 100 %: that one tells something.
Frame = tuple[tuple[bytes, ...], int, float]  # a plain tuple: it is made for every frame of 100 MB


def frame_of(line: bytes) -> Frame | None:
    """The frame that a line consists of; None for every other line."""
    if b"%|" in line:
        found = _TQDM.fullmatch(line)
        if found is None:
            return None
        label, percent, done, scale, total, rate = found.groups()
        if _SAYS_MORE.search(label):
            return None
        per_second = b"B/s" if rate is not None and rate.endswith(b"B/s") else b""
        return (label, total, per_second), int(percent), float(done) * _SCALES[scale]
    found = _RSYNC.fullmatch(line) if b"B/s" in line else None
    if found is None:
        return None
    return _RSYNC_LEFT if found[3] else _RSYNC_PLAIN, int(found[2]), 0.0


def superseded(lines: Sequence[bytes]) -> bytearray:
    """1 for each line that is a frame between two of the same bar that grows; empty when there is none."""
    flags = bytearray(len(lines))
    before: Frame | None = None
    here: Frame | None = None
    some = False
    for place, line in enumerate(lines):
        after = frame_of(line) if b"%" in line else None
        if (
            after is not None
            and here is not None
            and before is not None
            and before[0] == here[0] == after[0]
            and before[2] <= here[2] <= after[2]
            and here[1] <= after[1]
        ):
            flags[place - 1] = 1
            some = True
        before, here = here, after
    return flags if some else bytearray()
