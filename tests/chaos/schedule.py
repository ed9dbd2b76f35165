"""A schedule as plain data: what is started, what goes wrong at which moment, and what must come of it.

Plain values and no objects of a library, because one play takes half a minute on a whole stack: a schedule is made from a seed,
printed, kept, played again by hand and made smaller one act at a time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

HEAD, SECOND = "spark-1a32", "spark-5be3"
NODES = (HEAD, SECOND)
STORIES = ("launch", "relaunch", "stop")
PHASES = {
    "launch": ("queued", "preflight", "clearing", "cluster", "loading", "verifying"),
    "relaunch": ("queued", "preflight", "clearing", "cluster", "loading", "verifying"),
    "stop": ("queued", "stopping"),
}
KILLED = ("worker", "worker", "worker", "beat", "web", "redis")
LONGEST_AWAY_S = 6.0  # of a cut or a freeze: shorter than what any step gives up after


@dataclass(frozen=True)
class Act:
    """`do` happens `after` seconds after the run was first seen in phase `when` or a later one.

    do        kill (what: a process of the stack), end (the worker is told to end and does so in order), stall (the worker is stopped for `value` seconds while another one works),
              cut and freeze (what: a node, value: seconds), reboot (what: a node), flush (Redis forgets everything),
              resend (value: so many copies of the wake-up), cancel (what: who asks), cancel-twice (both at once)
    """

    when: str
    after: float
    do: str
    what: str = ""
    value: float = 0.0

    def __str__(self) -> str:
        words = [self.do, self.what, f"{self.value:g}" if self.value else ""]
        return f"{self.when}+{self.after:g}s {' '.join(word for word in words if word)}"


@dataclass(frozen=True)
class Schedule:
    """`rivals`: two people start at the same moment. `doubled`: the request to start is sent twice with one key."""

    seed: str
    story: str
    acts: tuple[Act, ...]
    rivals: bool = False
    doubled: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Schedule:
        return cls(**{**body, "acts": tuple(Act(**act) for act in body["acts"])})

    def __str__(self) -> str:
        more = [word for word, on in (("rivals", self.rivals), ("doubled", self.doubled)) if on]
        return f"{self.seed}: {' '.join([self.story, *more])}: " + ("; ".join(map(str, self.acts)) or "nothing happens")

    @property
    def faults(self) -> int:
        return len(self.acts) + self.rivals + self.doubled


def made(seed: int, number: int) -> Schedule:
    """The schedule of this number for this seed; the same on every machine."""
    chance = random.Random(f"{seed}/{number}")
    story = chance.choices(STORIES, (4, 3, 2))[0]
    acts = [_act(chance, story) for _ in range(chance.randint(1, 5))]
    acts = list(_possible(acts))
    return Schedule(
        f"{seed}/{number}", story, tuple(acts), rivals=chance.random() < 0.3, doubled=chance.random() < 0.25
    )


def _act(chance: random.Random, story: str) -> Act:
    when, after = chance.choice(PHASES[story]), round(chance.uniform(0, 3), 1)
    do = chance.choices(
        ("kill", "cut", "freeze", "reboot", "flush", "resend", "cancel", "cancel-twice", "stall", "end"),
        (9, 4, 3, 2, 3, 2, 1.5, 0.7, 1, 3),
    )[0]
    if do == "kill":
        return Act(when, after, do, chance.choice(KILLED))
    if do == "end":
        return Act(when, after, do, "worker")
    if do in ("cut", "freeze"):
        return Act(when, after, do, chance.choice(NODES), round(chance.uniform(0.5, LONGEST_AWAY_S), 1))
    if do == "reboot":
        # Only where it has one right end: while the engine loads, a reboot fails the launch by name.
        if story == "stop":
            return Act(when, after, "kill", "worker")
        return Act("loading", round(chance.uniform(0.5, 2.5), 1), do, chance.choice(NODES))
    if do == "resend":
        return Act(when, after, do, value=float(chance.randint(2, 20)))
    if do == "cancel":
        return Act(when, after, do, chance.choice(("ada", "bea")))
    return Act(when, after, do)


def _possible(acts: list[Act]) -> Iterator[Act]:
    """A node reboots once, and is not cut or frozen while it does; a stall is enough."""
    rebooted = {act.what for act in acts if act.do == "reboot"}
    seen: set[tuple[str, str]] = set()
    for act in acts:
        once = (act.do, act.what)
        if act.do in ("reboot", "stall") and once in seen:
            continue
        if act.do in ("cut", "freeze") and act.what in rebooted:
            continue
        seen.add(once)
        yield act


def smaller(schedule: Schedule) -> Iterator[Schedule]:
    """All schedules that are one thing simpler, the greatest step first."""
    acts = schedule.acts
    if len(acts) > 2:
        half = len(acts) // 2
        yield replace(schedule, acts=acts[:half])
        yield replace(schedule, acts=acts[half:])
    for place in range(len(acts)):
        yield replace(schedule, acts=acts[:place] + acts[place + 1 :])
    if schedule.rivals:
        yield replace(schedule, rivals=False)
    if schedule.doubled:
        yield replace(schedule, doubled=False)


def shrunk(schedule: Schedule, fails: Any, *, tries: int) -> Schedule:
    """The smallest schedule found that still fails; `fails(schedule)` plays one. At most `tries` are played."""
    for _ in range(tries):
        for simpler in smaller(schedule):
            tries -= 1
            if tries < 0:
                return schedule
            if fails(simpler):
                schedule = simpler
                break
        else:
            return schedule
    return schedule


def printed(schedule: Schedule) -> str:
    """One line that `--replay` takes."""
    return json.dumps(schedule.to_json(), separators=(",", ":"))
