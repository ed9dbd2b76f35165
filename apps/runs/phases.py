"""The phases of a run with their times: each may be entered several times, once a service. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Times = Mapping[
    str, Any
]  # started, of the first time; entered, of the last; spent before that; ended, unless it is in it now


def entered(phases: Mapping[str, Times], phase: str, *, was: str | None, now: float) -> dict[str, Times]:
    """`now`: unix seconds."""
    made = left(phases, was, now=now)
    before = made.get(phase)
    if before is None:
        made[phase] = {"started": now}
    elif "ended" in before:
        made[phase] = {"started": before["started"], "entered": now, "spent": seconds(before, now=now)}
    return made


def left(phases: Mapping[str, Times], phase: str | None, *, now: float) -> dict[str, Times]:
    """The phase that the run is in ends; nothing happens where it had ended."""
    made = dict(phases)
    if phase in made and "ended" not in made[phase]:
        made[phase] = {**made[phase], "ended": now}
    return made


def began(times: Times) -> float:
    """When it was entered last, in unix seconds."""
    return float(times.get("entered", times["started"]))


def seconds(times: Times, *, now: float) -> float:
    """Spent in it so far, all times together."""
    return float(times.get("spent", 0.0)) + float(times.get("ended", now)) - began(times)
