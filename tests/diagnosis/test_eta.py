"""Estimates of a load: within 20 % after the first third, honest without an earlier launch, a slow rank by name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.diagnosis import vllm
from apps.diagnosis.eta import LAST_GOOD_LAUNCH, NONE_YET, THIS_LOAD, estimate, spoken, usual_of

USUAL = {"starting": 20.0, "loading": 700.0, "compiling": 30.0, "profiling": 10.0, "graphs": 25.0, "finishing": 2.0}
LATER = 67.0


def steady(
    shards: int, each_s: float, until_s: float, *, polled_every_s: float = 1.0, begins_s: float = 30.0
) -> list[tuple[float, float, float]]:
    seen, at = [], begins_s
    while at <= until_s:
        seen.append((at, float(min(int((at - begins_s) / each_s), shards)), float(shards)))
        at += polled_every_s
    return seen


@pytest.mark.parametrize("shards", [7, 39, 161])
@pytest.mark.parametrize("each_s", [2.0, 18.0, 40.0])
def test_within_a_fifth_after_the_first_third(shards: int, each_s: float) -> None:
    for share in (0.36, 0.5, 0.75, 0.9):
        now = 30 + shards * each_s * share
        history = {0: steady(shards, each_s, now), 1: steady(shards, each_s, now)}
        true = shards * each_s * (1 - share)
        loaded = estimate(history, now_s=now)
        assert loaded.until == "loaded" and loaded.basis == THIS_LOAD and loaded.slow_rank is None
        assert loaded.seconds == pytest.approx(true, rel=0.2, abs=2.5)
        ready = estimate(history, usual=USUAL, now_s=now)
        assert ready.until == "ready" and ready.seconds == pytest.approx(true + LATER, rel=0.2)


def test_without_an_earlier_launch_it_says_so() -> None:
    nothing = estimate({})
    assert nothing.seconds is None and nothing.basis == NONE_YET and "no earlier launch" in nothing.sentence
    first = estimate({0: [(10, 0, 39)]})
    assert first.seconds is None and first.basis == NONE_YET


def test_before_the_load_the_last_good_launch_speaks() -> None:
    found = estimate({}, usual=USUAL, phase="starting", phase_elapsed_s=5)
    assert found.basis == LAST_GOOD_LAUNCH and found.seconds == pytest.approx(15 + 700 + LATER)
    assert estimate({}, usual=USUAL, phase="graphs", phase_elapsed_s=100).seconds == pytest.approx(2)
    assert estimate({}, phase="graphs").basis == NONE_YET
    assert estimate({}, usual=USUAL, phase="ready").seconds == 0


def test_a_slow_rank_is_named() -> None:
    now = 30 + 39 * 9
    history = {0: steady(39, 18, now), 1: steady(39, 27, now), 2: steady(39, 18, now)}
    found = estimate(history, now_s=now)
    assert found.slow_rank == 1
    assert found.seconds == pytest.approx(30 + 39 * 27 - now, rel=0.2)


def test_a_rank_that_stands_still_is_slow() -> None:
    stuck = steady(39, 18, 200)
    found = estimate({0: steady(39, 18, 500), 1: stuck}, now_s=500)
    assert found.slow_rank == 1


def test_a_drafter_starts_a_new_count() -> None:
    history = [*steady(6, 10, 90), (95.0, 0.0, 2.0), (100.0, 1.0, 2.0)]
    assert estimate({0: history}, now_s=100).seconds == pytest.approx(5)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 200), st.integers(0, 200)), max_size=30), st.floats(0, 1e6))
@settings(max_examples=100, deadline=None)
def test_never_negative_whatever_was_seen(history: list[tuple[float, int, int]], now: float) -> None:
    found = estimate({0: sorted(history), 1: history[:3]}, usual=USUAL, now_s=now)
    assert found.seconds is None or found.seconds >= 0


def test_usual_comes_from_the_log() -> None:
    log = b"""INFO 05-07 02:13:46 [gpu_model_runner.py:1329] Starting to load model /m...
INFO 05-07 02:13:57 [backends.py:430] Dynamo bytecode transform time: 3.58 s
INFO 05-07 02:14:19 [gpu_worker.py:1] Available KV cache memory: 10.0 GiB
INFO 05-07 02:14:40 [gpu_model_runner.py:1686] Graph capturing finished in 21 secs, took 0.53 GiB
INFO 05-07 02:14:41 [core.py:159] init engine (profile, create kv cache, warmup model) took 46.62 seconds
INFO:     Application startup complete.
"""
    usual = usual_of(vllm.read(log))
    assert usual["loading"] == 11 and usual["compiling"] == 22
    assert usual_of(vllm.read(log[:200])) == {}


def test_spoken() -> None:
    assert [spoken(seconds) for seconds in (-1, 40, 720, 3900)] == ["0 s", "40 s", "12 min", "1 h 5 min"]
