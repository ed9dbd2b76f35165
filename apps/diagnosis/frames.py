"""Frames of one progress bar that the next frame makes obsolete: a day of downloading is a million of them, and only
the first and the last of a run tell anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from apps.diagnosis.alike import LONGEST_SHAPE, MOST_SHAPES, shape_of

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
    return _frame(line, shape_of(line))


def _frame(line: bytes, blurred: bytes) -> Frame | None:
    places = _places_of(blurred) if len(line) <= LONGEST_SHAPE else _search(blurred)
    if places is None:
        return None
    label, percent, done, scale, total, per_second = places
    if total is None:
        return _RSYNC_LEFT if per_second else _RSYNC_PLAIN, int(line[percent]), 0.0
    return (line[label], line[total], per_second), int(line[percent]), float(line[done]) * scale


# Where label, percent and done stand, the scale of done, where total stands, and whether the rate is bytes a second. Of
# rsync's frames, which have no total: whether they say what is left.
_Places = tuple[slice, slice, slice, float, slice | None, bytes]


def _search(line: bytes) -> _Places | None:
    """Of a line whose digits are blurred; the same in all lines of that shape, since no pattern here tells digits apart."""
    if b"%|" in line:
        found = _TQDM.fullmatch(line)
        if found is None or _SAYS_MORE.search(found["label"]):
            return None
        per_second = b"B/s" if (found["rate"] or b"").endswith(b"B/s") else b""
        label, percent, done, total = (slice(*found.span(name)) for name in ("label", "pct", "done", "total"))
        return label, percent, done, _SCALES[found["scale"]], total, per_second
    found = _RSYNC.fullmatch(line) if b"B/s" in line else None
    if found is None:
        return None
    nothing = slice(0)
    return nothing, slice(*found.span("pct")), nothing, 0.0, None, b"left" if found["left"] else b""


_places_of = lru_cache(MOST_SHAPES)(_search)


# Bars of downloads run side by side, one a file; what one of them shows depends on no other. Those of an engine's load are
# counted by rank, in order.
_LOADS = re.compile(rb"shards|Loading|Streamer|apturing|utotun|AutoTuner|Fetching")


def _side_by_side(key: tuple[bytes, ...]) -> str:
    """Which bars this one may run beside; "" for one that stands alone. Of rsync's frames the short ones say nothing that
    the long ones do not, so the last of either kind tells."""
    if len(key) < 3:
        return "rsync"
    return "download" if key[2] == b"B/s" and _LOADS.search(key[0]) is None else ""


def superseded(lines: Sequence[bytes], shapes: Sequence[bytes]) -> list[int]:
    """For each line that is a frame between two of the same bar that grows, the place of the last frame before it that
    is none, counted from 1; 0 for every other line. Empty when there is none. Between the frames of a download there may
    be those of others. `shapes`: the lines with blurred digits."""
    found = [0] * len(lines)
    bars: dict[tuple[bytes, ...], _Bar] = {}  # one, or several that run side by side
    together = ""
    for place, line in enumerate(lines):
        frame = _frame(line, shapes[place]) if b"%" in line else None
        if frame is None:
            if bars:
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
            if not beside or beside != together:
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
