"""Plays one schedule: start the story, let things go wrong at their moments, wait for the end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.schedule import PHASES, Act, Schedule
from tests.chaos.site import OVER, PEOPLE, Site

ENDS_WITHIN_S = 240.0
BUSY_S = 30.0


@dataclass
class Played:
    """What happened: the run, when each act was done (monotonic seconds), who was refused, whether a cancel was accepted."""

    schedule: Schedule
    run: int
    code: str = ""
    done: list[tuple[Act, float, str]] = field(default_factory=list)  # act, moment, the run's state just before
    refused: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    started: list[int] = field(default_factory=list)  # ids that starting requests were answered with
    cancel_accepted_at: float | None = None
    rebooted_at: float | None = None
    ended: bool = False
    seconds: float = 0.0

    @property
    def fired(self) -> int:
        """Things that went wrong while the run was not over."""
        acts = sum(state not in OVER for _, _, state in self.done)
        return acts + self.schedule.rivals + self.schedule.doubled


def prepare(site: Site, story: str) -> None:
    """From whatever the last schedule left to where this story can begin."""
    serving = site.need(f"deployments/{site.deployment}")["state"] == "serving"
    if story != "stop" and serving:
        _need(site, site.begin("stop"))
    elif story == "stop" and not serving:
        _need(site, site.begin("relaunch"))
    site.probe()


def _need(site: Site, run: int) -> None:
    assert site.ended(run, ENDS_WITHIN_S), site.row(run)
    assert site.row(run)["state"] == "succeeded", site.row(run)


def play(site: Site, schedule: Schedule) -> Played:
    prepare(site, schedule.story)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        if any(act.do == "stall" for act in schedule.acts):
            stack.enter_context(site.second_worker())
        played = _started(site, schedule)
        _Acts(site, played).all()
        played.ended = site.ended(played.run, ENDS_WITHIN_S)
    played.seconds = time.monotonic() - began
    return played


def _started(site: Site, schedule: Schedule) -> Played:
    """The story is started by one person or by two at once, each request sent once or twice with its key."""
    people = PEOPLE if schedule.rivals else PEOPLE[:1]
    for _ in range(10):
        body = site.planned(schedule.story)
        keys = {who: uuid.uuid4().hex for who in people}
        asked = [who for who in people for _ in range(2 if schedule.doubled else 1)]

        def post(who: str, body: Any = body, keys: dict[str, str] = keys) -> tuple[int, Any]:
            return site.ask(f"deployments/{site.deployment}/{schedule.story}", body, who=who, key=keys[who])

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(post, asked))
        started = [int(answer["run"]) for status, answer in answers if status == 202]
        if started:
            refused = [(status, answer) for status, answer in answers if status != 202]
            return Played(schedule, started[0], started=started, refused=refused)
        time.sleep(1)
        site.probe()  # the nodes changed between looking and asking
    raise AssertionError(answers)


class _Acts:
    """Each act at its moment, in threads of their own where it takes time."""

    def __init__(self, site: Site, played: Played) -> None:
        self.site, self.played = site, played
        self.waiting = list(played.schedule.acts)
        self.seen_at: dict[str, float] = {}
        self.later: list[threading.Thread] = []

    def all(self) -> None:
        order = PHASES[self.played.schedule.story]
        end = time.monotonic() + ENDS_WITHIN_S
        while time.monotonic() < end:
            row = self.site.row(self.played.run)
            reached = order.index(row["phase"]) if row["phase"] in order else 0
            for phase in order[: reached + 1]:
                self.seen_at.setdefault(phase, time.monotonic())
            if row["state"] in OVER or not self.waiting:
                break
            due = [act for act in self.waiting if self._due(act)]
            for act in due:
                self.waiting.remove(act)
                self.played.done.append((act, time.monotonic(), row["state"]))
                self._do(act)
            time.sleep(0.05)
        for thread in self.later:
            thread.join(BUSY_S * 2)

    def _due(self, act: Act) -> bool:
        seen = self.seen_at.get(act.when)
        return seen is not None and time.monotonic() >= seen + act.after

    def _do(self, act: Act) -> None:
        site, run = self.site, self.played.run
        if act.do == "kill":
            site.kill(act.what)
        elif act.do == "end":
            site.kill(act.what, signal.SIGTERM)
        elif act.do in ("cut", "freeze"):
            site.nodes.fault(act.what, act.do, act.value)
        elif act.do == "reboot":
            if site.row(run)["state"] not in OVER:
                site.nodes.reboot(act.what)
                self.played.rebooted_at = self.played.rebooted_at or time.monotonic()
        elif act.do == "flush":
            site.flush()
        elif act.do == "resend":
            self._beside(lambda: site.resend(run, int(act.value)))
        elif act.do == "cancel":
            self._beside(lambda: self._cancel(act.what))
        elif act.do == "cancel-twice":
            for who in PEOPLE:
                self._beside(lambda who=who: self._cancel(who))
        elif act.do == "stall":
            self._beside(self._stall)

    def _beside(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.later.append(thread)

    def _cancel(self, who: str) -> None:
        status, _ = self.site.ask(f"runs/{self.played.run}/cancel", {"reason": "chaos"}, who=who)
        if status == 202 and self.played.cancel_accepted_at is None:
            self.played.cancel_accepted_at = time.monotonic()

    def _stall(self) -> None:
        process = self.site.stop_worker()
        time.sleep(16.0)  # longer than a lease
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
