"""Frames of a bar that the next one makes obsolete are passed over: the reading is the same as if each had been read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.diagnosis import following
from apps.diagnosis.alike import shape_of
from apps.diagnosis.explaining import as_json, explain_all
from apps.diagnosis.frames import frame_of
from apps.diagnosis.frames import superseded as superseded_in

LABELS = (
    "Loading safetensors checkpoint shards",
    "(Worker_TP0 pid=7) Loading pt checkpoint shards",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)",
    "Capturing batches (bs=1 avail_mem=3.00 GB)",
    "[AutoTuner]: Tuning",
    "model-00001-of-00039.safetensors",
    "Fetching 44 files",
    "",
    "[Errno 98] HTTP Error 401",
)


def tqdm(label: str, done: int, total: int, rate: str) -> str:
    return f"{label}: {done * 100 // total:3d}%|{'█' * (done * 10 // total):<10}| {done}/{total} [00:{done % 60:02d}<00:10, {rate}]"


def shards(done: int, total: int) -> str:
    return f"Loading safetensors checkpoint shards: {done * 100 // total:3d}% Completed | {done}/{total} [00:05<00:10,  2.10s/it]"


def rsync(done: int, percent: int, left: bool) -> str:
    tail = f" (xfr#{done}, to-chk={100 - percent}/100)" if left else ""
    return f"    {done:,}  {percent}%  600.10MB/s    0:00:{done % 60:02d}{tail}"


RATES = st.sampled_from(["1.10s/it", "3.2it/s", "101MB/s", "12.3kB/s", "?it/s", "? it/s"])
BARS = st.one_of(
    st.builds(tqdm, st.sampled_from(LABELS), st.integers(0, 98), st.sampled_from([98, 401, 120]), RATES),
    st.builds(shards, st.integers(0, 39), st.just(39)),
    st.builds(rsync, st.integers(0, 9_999_999), st.integers(0, 100), st.booleans()),
)
RUNS = st.builds(
    lambda label, steps, rate: "\r".join(tqdm(label, done, 98, rate) for done in sorted(steps)),
    st.sampled_from(LABELS),
    st.lists(st.integers(0, 98), min_size=2, max_size=8),
    RATES,
)
OTHERS = st.sampled_from(
    [
        "INFO 02-03 10:11:42 [loader.py:1] Loading weights took 12.30 seconds",
        "INFO:     Application startup complete.",
        "vLLM API server version 0.17.1",
        "sent 100 bytes  received 35 bytes  90.00 bytes/sec",
        "RuntimeError: something",
        "",
        "OSError: [Errno",
        "98] Address already in use",
    ]
)


def superseded(lines: list[bytes]) -> list[int]:
    return superseded_in(lines, [shape_of(line) for line in lines])


TEXT = st.lists(st.tuples(st.one_of(BARS, RUNS, OTHERS), st.sampled_from(["\r", "\n", "\r\n"])), max_size=20).map(
    lambda lines: "".join(line + end for line, end in lines).encode()
)


BESIDE = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *LABELS,
                "model-00002-of-00039.safetensors",
                "tokenizer.json",
                "Downloading (incomplete total...)",
                "(Worker_TP0 pid=7) model.gguf",
                "(Worker_TP1 pid=8) Loading safetensors using Runai Model Streamer",
                "a/b: something",
            ]
        ),
        st.integers(-3, 9),
        st.sampled_from(["101MB/s", "12.3kB/s", "101MB/s", "1.10s/it"]),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def slowly() -> Iterator[Any]:
    """Reads every frame."""

    def read(data: bytes) -> list[dict[str, Any]]:
        kept = following.superseded
        following.superseded = lambda lines, shapes: []  # type: ignore[assignment]
        try:
            return [as_json(reading) for reading in explain_all(data)]
        finally:
            following.superseded = kept

    yield read


@settings(max_examples=200, deadline=None)
@given(BESIDE, OTHERS, st.sampled_from(["\r", "\n"]))
def test_side_by_side_too(slowly: Any, frames: list[tuple[str, int, str]], last: str, end: str) -> None:
    reached: dict[str, int] = {}
    lines = []
    for label, step, rate in frames:
        reached[label] = max(0, min(reached.get(label, 0) + step, 98))
        lines.append(tqdm(label, reached[label], 98, rate))
    data = end.join([*lines, last, *lines[:3]]).encode()
    assert [as_json(reading) for reading in explain_all(data)] == slowly(data)


@settings(max_examples=150, deadline=None)
@given(TEXT, st.lists(st.integers(0, 4000), max_size=4))
def test_the_same_as_reading_each(slowly: Any, data: bytes, cuts: list[int]) -> None:
    expected = slowly(data)
    assert [as_json(reading) for reading in explain_all(data)] == expected
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    parts = [data[start:end] for start, end in pairwise(edges)]
    assert [as_json(reading) for reading in explain_all(parts)] == expected


def test_a_long_run_leaves_its_ends() -> None:
    lines = [tqdm("model.safetensors", done, 1000, "10MB/s").encode() for done in range(990)]
    assert superseded(lines) == [0, *[1] * (len(lines) - 2), 0]


def test_a_bar_that_begins_again_is_read_where_it_does() -> None:
    lines = [tqdm("shards", done, 39, "10MB/s").encode() for done in (1, 2, 3, 1, 2, 3)]
    assert superseded(lines) == [0, 1, 0, 0, 4, 0]


def test_downloads_run_side_by_side_and_loads_do_not() -> None:
    """A day of eight files at once is a million frames, none of which follows one of its own bar."""
    one, other = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    both = [tqdm(label, done, 98, "10MB/s").encode() for done in (1, 2, 3) for label in (one, other)]
    assert superseded(both) == [0, 0, 1, 2, 0, 0]
    mixed = [*both[:3], b"a line of something else", *both[3:]]
    assert superseded(mixed) == []
    ranks = [f"(Worker_TP{rank} pid=7) Loading safetensors checkpoint shards" for rank in (0, 1)]
    loads = [tqdm(label, done, 98, "1.0s/it").encode() for done in (1, 2, 3) for label in ranks]
    assert superseded(loads) == []
    streamed = [tqdm(f"Loading with Streamer {n}", done, 98, "10MB/s").encode() for done in (1, 2, 3) for n in (1, 2)]
    assert superseded(streamed) == []


@pytest.mark.parametrize(
    "line",
    [
        tqdm("shards", 39, 39, "1.0s/it"),
        tqdm("[Errno 98] x", 3, 39, "1.0s/it"),
        tqdm("shards", 3, 39, "1.0s/it") + " and more",
        "shards: 3%|#| 3/? [00:01<?, 1.0s/it]",
        rsync(5, 100, False),
        "50% of it",
    ],
)
def test_what_is_read_like_any_other_line(line: str) -> None:
    assert frame_of(line.encode()) is None
