"""The words of the socket, typed on both sides (static/js/live.js is the other one). JSON objects, one a frame.

Client: {"op":"watch","objects":["run:42","fleet:0"]}   news of these, replacing what was watched before
        {"op":"log","run":42,"after":null,"rank":null,"step":null}   follow; without `after` the first frame is the tail
        {"op":"page","run":42,"after":N | "before":N,"limit":500,"rank":null,"step":null}   some lines, once
        {"op":"unlog"}, {"op":"ping"}
Server: {"type":"changed","object":"run","id":42,"version":7}
        {"type":"snapshot","run","lines","next","ended","total"}  the tail; what a reader has is thrown away
        {"type":"lines","run","lines","next","ended"}             what came after the cursor
        {"type":"page","run","lines","after","before","ended"}
        {"type":"pong"}, {"type":"refused","why"}, {"type":"closed","why"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

FRAME_BYTES = 64 * 1024
MESSAGE_BYTES = 16 * 1024
MOST_WATCHED = 400
MOST_LINES = 1000
OBJECT = re.compile(r"(run|deployment|node|fleet|audit|person):(\d{1,18})")
KINDS = ("run", "deployment", "node", "fleet", "audit", "person")


class Unreadable(ValueError):
    """The client said something that is not in the protocol; the text says what."""


@dataclass(frozen=True)
class Watch:
    objects: frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Follow:
    """Follow a run's log from after line `after`; None begins with the tail."""

    run: int
    after: int | None = None
    rank: int | None = None
    step: str | None = None


@dataclass(frozen=True)
class PageOf:
    run: int
    after: int | None
    before: int | None
    limit: int
    rank: int | None = None
    step: str | None = None


@dataclass(frozen=True)
class Unfollow:
    pass


@dataclass(frozen=True)
class Ping:
    pass


Message = Watch | Follow | PageOf | Unfollow | Ping


class Gap(TypedDict):
    bytes: int
    lines: int


class LineJson(TypedDict):
    n: int
    time: str
    node: str
    rank: int | None
    step: str
    stream: str
    text: str
    redraw: bool  # began after a bare carriage return: takes the place of its stream's line before
    continued: bool  # the rest of a line whose beginning has a lower number
    gap: NotRequired[Gap]  # what of its stream stood before it and is not kept


class Changed(TypedDict):
    type: Literal["changed"]
    object: str
    id: int
    version: int


class Lines(TypedDict):
    type: Literal["lines", "snapshot"]
    run: int
    lines: list[LineJson]
    next: int
    ended: bool
    total: int


class PageLines(TypedDict):
    type: Literal["page"]
    run: int
    lines: list[LineJson]
    after: int | None
    before: int | None
    ended: bool


class Closed(TypedDict):
    type: Literal["closed"]
    why: str


def _whole(body: dict[str, Any], name: str, *, least: int = 0, required: bool = False) -> int | None:
    value = body.get(name)
    if value is None and not required:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**62:
        raise Unreadable(f"{name} must be a whole number from {least} on")
    return value


def _step(body: dict[str, Any]) -> str | None:
    value = body.get("step")
    if value is None or (isinstance(value, str) and len(value) <= 120 and value.isprintable()):
        return value
    raise Unreadable("step must be the key of a step")


def read(text: str) -> Message:
    """The client's message. Raises Unreadable."""
    if len(text) > MESSAGE_BYTES:
        raise Unreadable("the message is too long")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable("this is not JSON") from None
    if not isinstance(body, dict):
        raise Unreadable("a message is an object with op")
    match body.get("op"):
        case "ping":
            return Ping()
        case "unlog":
            return Unfollow()
        case "watch":
            return Watch(_objects(body.get("objects")))
        case "log":
            run = _whole(body, "run", least=1, required=True)
            return Follow(run or 0, _whole(body, "after"), _whole(body, "rank"), _step(body))
        case "page":
            run = _whole(body, "run", least=1, required=True)
            limit = min(_whole(body, "limit", least=1) or 500, MOST_LINES)
            return PageOf(
                run or 0, _whole(body, "after"), _whole(body, "before"), limit, _whole(body, "rank"), _step(body)
            )
    raise Unreadable("op is one of watch, log, page, unlog, ping")


def _objects(value: Any) -> frozenset[tuple[str, int]]:
    if not isinstance(value, list) or len(value) > MOST_WATCHED:
        raise Unreadable(f"objects is a list of at most {MOST_WATCHED}")
    found = []
    for name in value:
        match = OBJECT.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            raise Unreadable(f"an object looks like run:42; kinds are {', '.join(KINDS)}")
        found.append((match.group(1), int(match.group(2))))
    return frozenset(found)


@dataclass(frozen=True)
class Frame:
    """Some lines as the JSON of a list, made once for everybody who is sent them."""

    text: str
    last: int  # the number of its last line


def in_frames(lines: Sequence[Mapping[str, Any]], most: int = FRAME_BYTES) -> list[Frame]:
    """The lines in order, in frames whose JSON stays under `most` bytes (a single longer line stands alone)."""
    frames: list[Frame] = []
    parts: list[str] = []
    size = last = 0
    for line in lines:
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
        length = len(text) + 1 if text.isascii() else len(text.encode("utf-8", "replace")) + 1
        if parts and size + length > most - 256:
            frames.append(Frame(f"[{','.join(parts)}]", last))
            parts, size = [], 0
        parts.append(text)
        size, last = size + length, int(line["n"])
    if parts:
        frames.append(Frame(f"[{','.join(parts)}]", last))
    return frames
