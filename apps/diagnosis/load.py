"""How far an engine is on its way to serving: phases in order, shards per rank, and one overall figure that never
falls."""

from __future__ import annotations

from dataclasses import dataclass, field

from apps.diagnosis.lines import Bar
from apps.diagnosis.reading import Progress

PHASES = ("starting", "downloading", "loading", "compiling", "profiling", "autotuning", "graphs", "finishing", "ready")
# Where each phase begins on the way from 0 to 1: about the time it takes with a model that fills two Sparks.
BEGINS = dict(zip(PHASES, (0.0, 0.02, 0.05, 0.80, 0.85, 0.88, 0.90, 0.97, 1.0), strict=True))
_ENDS = dict(zip(PHASES, (*tuple(BEGINS.values())[1:], 1.0), strict=True))
_ORDER = {phase: place for place, phase in enumerate(PHASES)}
MAIN_LOAD = 0.92  # part of the loading phase that belongs to the model, where a drafter follows
MOST_RANKS = 1024  # ranks kept; more would only be garbage in the input


@dataclass
class RankLoad:
    phase: str = "starting"
    load: int = 0  # which load of this rank: 0 the model, 1 the drafter …
    done: float = 0
    total: float | None = None
    unit: str = "shards"
    seconds_per_item: float | None = None
    furthest: float = 0.0  # of the loading phase, 0..1
    percent: int | None = None
    counted: bool = True  # False: beyond MOST_RANKS, kept nowhere

    @property
    def standing(self) -> float | None:
        """How far it is, once it moves."""
        return self.furthest if self.total is not None or self.furthest else None


@dataclass
class Load:
    expected_loads: int = 1
    phase: str = "starting"
    overall: float = 0.0
    reached: float = 0.0  # by an earlier start in the same log: what is reported never falls
    ranks: dict[int, RankLoad] = field(default_factory=dict)
    loads: list[dict[str, float]] = field(default_factory=list)  # {"shards": n, "s": seconds} of the slowest rank
    least: float = 0.0  # how far the slowest of the ranks that move is; a thousand are not looked at for every line
    at_least: int = 0  # how many of them are just there

    def rank(self, rank: int | None) -> RankLoad:
        key = rank or 0
        known = self.ranks.get(key)
        if known is None:
            known = RankLoad(counted=len(self.ranks) < MOST_RANKS)
            if known.counted:
                self.ranks[key] = known
        return known

    def bar(self, rank: int | None, bar: Bar, *, unit: str = "shards") -> RankLoad:
        """A frame of a bar that counts what is loaded; how far its rank is then."""
        state = self.rank(rank)
        before = state.standing
        if bar.done < state.done and (state.total is None or state.done >= state.total or bar.total != state.total):
            state.load += 1
        state.phase, state.done, state.total = "loading", bar.done, bar.total
        state.unit, state.seconds_per_item, state.percent = unit, bar.seconds_per_item, bar.percent
        share = bar.done / bar.total if bar.total else bar.percent / 100
        self._reached(state, min(share, 1.0), before)
        self._remember(state)
        return state

    def _reached(self, state: RankLoad, share: float, before: float | None) -> None:
        if self.expected_loads <= 1:
            at = share
        elif state.load == 0:
            at = MAIN_LOAD * share
        else:
            expected = max(self.expected_loads, state.load + 1)
            at = MAIN_LOAD + (1 - MAIN_LOAD) * (state.load - 1 + share) / (expected - 1)
        if at > state.furthest:
            state.furthest = at if at < 1.0 else 1.0
        self._moved(state, before)
        self.enter("loading")

    def _moved(self, state: RankLoad, before: float | None) -> None:
        """Keep `least`; `before`: the standing of this rank until now."""
        now = state.standing
        if now == before or not state.counted:
            return
        if before is not None and before == self.least:
            self.at_least -= 1
        if now is not None and before is None and (self.at_least == 0 or now < self.least):
            self.least, self.at_least = now, 1
        elif now is not None and now == self.least:
            self.at_least += 1
        if self.at_least == 0:
            standings = [at for each in self.ranks.values() if (at := each.standing) is not None]
            self.least = min(standings, default=0.0)
            self.at_least = standings.count(self.least)

    def _remember(self, state: RankLoad) -> None:
        if state.load >= 16:
            return
        while len(self.loads) <= state.load and len(self.loads) < 16:
            self.loads.append({})
        if state.total and state.unit in ("shards", "files"):
            self.loads[state.load]["shards"] = int(state.total)

    def weights_took(self, rank: int | None, seconds: float) -> None:
        state = self.rank(rank)
        while len(self.loads) <= state.load and len(self.loads) < 16:
            self.loads.append({})
        if state.load < 16:
            known = self.loads[state.load]
            known["s"] = max(known.get("s", 0.0), seconds)
        self._reached(state, 1.0, state.standing)

    def loaded(self, rank: int | None) -> None:
        """All weights of this rank are in."""
        state = self.rank(rank)
        before = state.standing
        state.furthest, state.phase = 1.0, "loaded"
        self._moved(state, before)
        self.enter("loading")

    def enter(self, phase: str, share: float = 0.0) -> None:
        """This phase has begun (a phase that lies behind is not entered again); `share` of it, 0..1, is done."""
        if self.overall >= 1.0:
            return  # ready: nothing lies ahead
        if phase != self.phase and _ORDER[phase] > _ORDER[self.phase]:
            self.phase = phase
        if self.overall >= _ENDS[phase]:
            return  # what lies behind moves nothing
        if phase == "loading" and self.ranks:
            share = self.least
        at = BEGINS[phase] + (_ENDS[phase] - BEGINS[phase]) * share
        if at > self.overall:
            self.overall = at if at < 1.0 else 1.0

    def progress(self) -> Progress:
        shown = self._slowest()
        if shown is None or self.phase != "loading":
            # The loads are over: what stays is the count of the model's own shards, not the drafter's.
            main = int(self.loads[0]["shards"]) if self.loads and "shards" in self.loads[0] else None
            return Progress(
                self.phase,
                round(max(self.overall, self.reached), 4),
                main,
                main,
                shown.unit if shown and main is not None else None,
            )
        return Progress(
            self.phase,
            round(max(self.overall, self.reached), 4),
            *_count(shown),
            shown.seconds_per_item,
            self._detail(shown),
        )

    def _slowest(self) -> RankLoad | None:
        counted = [state for state in self.ranks.values() if state.total is not None]
        return min(counted, key=lambda state: state.furthest, default=None)

    def _detail(self, shown: RankLoad | None) -> dict[str, object]:
        detail: dict[str, object] = {}
        if shown is not None and shown.load:
            detail["load"] = shown.load + 1
        if shown is not None and shown.percent is not None:
            detail["percent"] = shown.percent
        return detail

    def by_rank(self) -> dict[int, Progress]:
        made = {}
        for rank, state in sorted(self.ranks.items()):
            phase = state.phase if PHASES.index(self.phase) <= PHASES.index("loading") else self.phase
            overall = (
                BEGINS["loading"] + (BEGINS["compiling"] - BEGINS["loading"]) * state.furthest
                if state.furthest
                else 0.0
            )
            made[rank] = Progress(
                phase,
                round(
                    max(overall, self.overall if self.phase not in ("starting", "downloading", "loading") else 0.0), 4
                ),
                *_count(state),
                state.seconds_per_item,
                self._detail(state),
            )
        return made


def _count(state: RankLoad | None) -> tuple[int | None, int | None, str | None]:
    if state is None or state.total is None:
        return None, None, None
    return int(state.done), int(state.total), state.unit
