"""How long until a load is done. Pure: the caller brings the times.

The estimate comes from this load's own pace, and from the last good launch for the phases that follow. Where there was
none, it
says so instead of guessing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from apps.diagnosis.load import PHASES
from apps.diagnosis.reading import Reading

THIS_LOAD, LAST_GOOD_LAUNCH, NONE_YET = "this load", "last good launch", "none yet"
LEAST_SHARE = 0.03  # of a load; before that a first estimate is wild (a streamer's began with 167 hours)
CLEARLY_SLOWER = 1.3  # times the pace of the other ranks

History = Sequence[tuple[float, float, float]]  # (seconds since the start, shards done, shards in all), in order


@dataclass(frozen=True)
class Estimate:
    """`seconds` until `until`: "ready" where the later phases are known from an earlier launch, else "loaded"."""

    seconds: float | None
    basis: str  # "this load", "last good launch", "none yet"
    slow_rank: int | None = None
    until: str = "ready"
    sentence: str = ""


@dataclass(frozen=True)
class _Pace:
    done: float
    total: float
    seconds_per_shard: float | None
    remaining_s: float | None


def estimate(
    observations: Mapping[int, History],
    *,
    usual: Mapping[str, float] | None = None,
    now_s: float | None = None,
    phase: str = "loading",
    phase_elapsed_s: float = 0.0,
) -> Estimate:
    """Seconds until the engine is ready.

    observations: per rank, what was seen of its shards. usual: seconds of each phase of the last good launch (as
    `usual_of` takes
    them from its Reading). now_s: seconds since the start, now; by default the last observation's. phase: where the
    load stands;
    phase_elapsed_s: seconds spent in that phase so far, used where shards tell nothing.
    """
    if phase == "loaded":  # what one rank says of itself, while the others may still load
        phase = "loading"
    paces = {
        rank: pace
        for rank, history in observations.items()
        if (pace := _pace(history, _now(observations, now_s))) is not None
    }
    slow = _slow_rank(paces)
    later = _later(usual, phase)
    if phase == "ready":
        return Estimate(0.0, THIS_LOAD, slow, sentence="Ready.")
    loading = [pace.remaining_s for pace in paces.values()]
    known = [seconds for seconds in loading if seconds is not None]
    if phase == "loading" and known and len(known) == len(loading):
        return _from_this_load(max(known), later, slow)
    if usual:
        rest = max(usual.get(phase, 0.0) - phase_elapsed_s, 0.0) + (later or 0.0)
        return Estimate(
            rest, LAST_GOOD_LAUNCH, slow, sentence=f"About {spoken(rest)} until ready, by the last good launch."
        )
    return Estimate(None, NONE_YET, slow, sentence="No estimate yet: there was no earlier launch to compare with.")


def _from_this_load(loading_s: float, later_s: float | None, slow: int | None) -> Estimate:
    if later_s is None:
        sentence = (
            f"About {spoken(loading_s)} until the weights are loaded; no earlier launch says how long the rest takes."
        )
        return Estimate(loading_s, THIS_LOAD, slow, "loaded", sentence)
    rest = loading_s + later_s
    return Estimate(
        rest,
        THIS_LOAD,
        slow,
        "ready",
        f"About {spoken(rest)} until ready: this load's pace, then as in the last good launch.",
    )


def usual_of(reading: Reading) -> dict[str, float]:
    """Seconds of each phase of a finished launch, from the time stamps in its log; empty when it has none or is not
    ready."""
    spent = reading.facts.get("phase_s")
    return dict(spent) if reading.ready and isinstance(spent, dict) else {}


def spoken(seconds: float) -> str:
    """A duration in words: "40 s", "12 min", "1 h 5 min"."""
    whole = max(round(seconds), 0)
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _now(observations: Mapping[int, History], now_s: float | None) -> float:
    return (
        now_s
        if now_s is not None
        else max((history[-1][0] for history in observations.values() if history), default=0.0)
    )


def _later(usual: Mapping[str, float] | None, phase: str) -> float | None:
    """Seconds of all phases after this one, by the last good launch."""
    if not usual or phase not in PHASES:
        return None
    return sum(usual.get(name, 0.0) for name in PHASES[PHASES.index(phase) + 1 :])


def _latest_load(history: History) -> list[tuple[float, float, float]]:
    """The observations of the load in progress (a drafter's bar begins again at 0), the first of each count only."""
    kept: list[tuple[float, float, float]] = []
    for at, done, total in history:
        if kept and (done < kept[-1][1] or total != kept[-1][2]):
            kept = []
        if not kept or done > kept[-1][1]:
            kept.append((at, done, total))
    return kept


def _pace(history: History, now_s: float) -> _Pace | None:
    steps = _latest_load(history)
    if not steps or steps[-1][2] <= 0:
        return None
    at, done, total = steps[-1]
    if done >= total:
        return _Pace(done, total, _between(steps[0], steps[-1]), 0.0)
    if len(steps) < 2 or done / total < LEAST_SHARE:
        return _Pace(done, total, None, None)
    whole = _between(steps[0], steps[-1])
    recent = _between(steps[-1 - max(len(steps) // 3, 1)], steps[-1])
    each = ((whole or 0.0) + (recent or 0.0)) / 2
    waited = max(now_s - at, 0.0)
    # Within the shard in progress the time counts down; when that shard is late, the rest still takes its time.
    remaining = max((total - done) * each - waited, (total - done - 1) * each)
    if waited > 2 * each:
        each = max(each, (now_s - steps[0][0]) / (done - steps[0][1] + 1))
        remaining = (total - done) * each
    return _Pace(done, total, each, remaining)


def _between(first: tuple[float, float, float], last: tuple[float, float, float]) -> float | None:
    return (last[0] - first[0]) / (last[1] - first[1]) if last[1] > first[1] else None


def _slow_rank(paces: Mapping[int, _Pace]) -> int | None:
    """The rank that is clearly slower than the others, if there is one."""
    known = {rank: pace.seconds_per_shard for rank, pace in paces.items() if pace.seconds_per_shard is not None}
    if len(known) < 2:
        return None
    slowest = max(known, key=lambda rank: known[rank])
    others = median(seconds for rank, seconds in known.items() if rank != slowest)
    return slowest if known[slowest] > CLEARLY_SLOWER * others and known[slowest] > 0 else None
