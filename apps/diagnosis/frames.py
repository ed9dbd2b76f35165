"""Frames of one progress bar that the next frame makes obsolete: a day of downloading is a million of them, and only
the first and the last of a run tell anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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


# Bars of downloads run side by side, one a file; what one of them shows depends on no other. Those of an engine's load are
# counted by rank, in order.
_LOADS = re.compile(rb"shards|Loading|Streamer|apturing|utotun|AutoTuner|Fetching")


def _side_by_side(key: tuple[bytes, ...]) -> bool:
    return len(key) == 3 and key[2] == b"B/s" and _LOADS.search(key[0]) is None


def superseded(lines: Sequence[bytes]) -> list[int]:
    """For each line that is a frame between two of the same bar that grows, the place of the last frame before it that
    is none, counted from 1; 0 for every other line. Empty when there is none. Between the frames of a download there may
    be those of others."""
    found = [0] * len(lines)
    bars: dict[tuple[bytes, ...], _Bar] = {}  # one, or several that run side by side
    together = False
    for place, line in enumerate(lines):
        frame = frame_of(line) if b"%" in line else None
        if frame is None:
            bars.clear()
            continue
        key, percent, done = frame
        known = bars.get(key)
        if known is not None and known.done <= done and known.percent <= percent:
            if known.between >= 0:
                found[known.between] = known.read + 1
            known.between, known.percent, known.done = place, percent, done
            continue
        if known is None:
            beside = _side_by_side(key)
            if not (beside and together):
                bars.clear()
            together = beside
        bars[key] = _Bar(place, percent, done)
    return found if any(found) else []


@dataclass(slots=True)
class _Bar:
    read: int  # the place of its last frame that is not passed over for certain
    percent: int
    done: float
    between: int = -1  # the place of its newest frame, once another came before it
