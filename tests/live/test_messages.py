from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as some

from apps.live import messages


def line(text: str, n: int = 1) -> messages.LineJson:
    return {
        "n": n,
        "time": "t",
        "node": "a",
        "rank": 0,
        "step": "s",
        "stream": "output",
        "text": text,
        "redraw": False,
        "continued": False,
    }


@given(some.lists(some.text(max_size=3000), max_size=80))
def test_frames_hold_every_line_once_in_order_and_stay_small(texts: list[str]) -> None:
    lines = [line(text, number) for number, text in enumerate(texts)]
    frames = messages.in_frames(lines, 8000)
    assert [one for frame in frames for one in json.loads(frame.text)] == lines
    for frame in frames:
        held = json.loads(frame.text)
        assert frame.last == held[-1]["n"]
        assert len(held) == 1 or len(frame.text.encode("utf-8", "replace")) <= 8000


@given(
    some.text(max_size=200)
    | some.recursive(
        some.none() | some.integers() | some.text(),
        lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
    ).map(json.dumps)
)
def test_anything_is_either_read_or_refused(text: str) -> None:
    try:
        messages.read(text)
    except messages.Unreadable as problem:
        assert str(problem)


def test_what_is_said_is_what_is_read() -> None:
    assert messages.read('{"op":"watch","objects":["run:42","fleet:0"]}') == messages.Watch(
        frozenset({("run", 42), ("fleet", 0)})
    )
    assert messages.read('{"op":"log","run":42,"after":7,"rank":1}') == messages.Follow(42, 7, 1, None)
    assert messages.read('{"op":"page","run":42,"before":7,"limit":99999}') == messages.PageOf(
        42, None, 7, messages.MOST_LINES
    )
