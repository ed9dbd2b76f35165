"""`python -m tests.chaos`: play random schedules on the whole stack and two pretend Sparks. The last line is one JSON object.

Exit code 0 only when nothing was lost, doubled, left behind or ended otherwise than it must. A schedule that fails is played again
and made smaller; its seed and the smallest that still fails are printed, ready for --replay.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.judging import Verdict, judge
from tests.chaos.playing import play
from tests.chaos.schedule import Schedule, made, printed, shrunk
from tests.chaos.site import Site

COUNTED = ("lost_bytes", "duplicated_bytes", "orphans", "wrong_states")


class Stage:
    """Plays schedules one after the other on one site; a site on which one failed is not used again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number, self.site = folder, 0, None
        self.fired = 0

    def verdict(self, schedule: Schedule) -> Verdict:
        began = time.monotonic()
        try:
            if self.site is None:
                self.number += 1
                place = self.folder / f"site-{self.number}"
                place.mkdir()
                self.site = Site(place)
                self.site.open()
            played = play(self.site, schedule)
            self.fired += played.fired
            verdict = judge(self.site, played)
            end = f"run {played.run}: {self.site.row(played.run)['state']} in {played.seconds:.0f} s"
        except Exception as problem:
            verdict, end = Verdict(), "broken off"
            verdict.wrong(f"{type(problem).__name__}: {problem}"[:2000])
            say(traceback.format_exc()[-3000:])
        say(f"{'ok ' if verdict.good else 'BAD'} {time.monotonic() - began:5.0f} s  {schedule}  -> {end}")
        if not verdict.good:
            for words in verdict.words:
                say(f"      {words}")
            self.close()
        return verdict

    def close(self) -> None:
        if self.site is not None:
            self.site.close()
        self.site = None


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _asked(arguments)
    began, total = time.monotonic(), Verdict()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    schedules = [made(asked.seed, number) for number in range(asked.n)]
    if asked.replay:
        schedules = [Schedule.from_json(json.loads(asked.replay))] * asked.times
    say(f"{len(schedules)} schedules of seed {asked.seed}; the stack and the pretend Sparks are in {folder}")
    stage, played = Stage(folder), 0
    try:
        for schedule in schedules:
            verdict = stage.verdict(schedule)
            played += 1
            for name in COUNTED:
                setattr(total, name, getattr(total, name) + getattr(verdict, name))
            if not verdict.good:
                _explain(stage, schedule, tries=asked.shrink)
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        stage.close()
    good = total.good and played == len(schedules)
    if good and not asked.keep:
        shutil.rmtree(folder, ignore_errors=True)
    counted = {name: getattr(total, name) for name in COUNTED}
    figures = {"schedules": played, "faults": stage.fired, **counted, "seconds": round(time.monotonic() - began, 1)}
    say(json.dumps(figures))
    return 0 if good else 1


def _explain(stage: Stage, schedule: Schedule, *, tries: int) -> None:
    fired = stage.fired
    small = shrunk(schedule, lambda simpler: not stage.verdict(simpler).good, tries=tries)
    stage.fired = fired
    seed, _, number = schedule.seed.partition("/")
    say(
        f"FAILED: schedule {number} of SEED={seed}. The smallest that still fails ({small.faults} of {schedule.faults}):"
    )
    say(f"  python -m tests.chaos --replay '{printed(small)}'")


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("-n", type=int, default=40, help="how many schedules (default 40)")
    parser.add_argument(
        "--seed", type=int, default=None, help="the same seed makes the same schedules (default: a new one)"
    )
    parser.add_argument("--replay", default="", help="play this one schedule, as a failure printed it")
    parser.add_argument("--times", type=int, default=1, help="how often to replay it")
    parser.add_argument("--shrink", type=int, default=8, help="at most so many plays to make a failing one smaller (8)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with database and logs")
    asked = parser.parse_args(arguments)
    if asked.seed is None:
        asked.seed = secrets.randbelow(1_000_000)
    return asked


def _end(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
