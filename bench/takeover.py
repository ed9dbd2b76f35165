"""Benchmark `takeover`: the worker is killed with -9 in the middle of a load; how long until the next line is stored?

The whole stack as `make up` starts it, two pretend Sparks behind real SSH, and a load that prints a bar on each rank twice a
second, so that what is measured is ours: the supervisor starts a worker again, it finds the run, takes the lease, connects and
reads on from the byte where the dead one stopped.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.measure import CannotMeasure, Figures, load, say, spread
from tests.chaos.site import OVER, Site

TRIES, PAUSE_S = 12, 3.0
GIVEN_UP_S = 90.0
BAR_S = 0.5  # between two shards of a rank
REACH_S = 20.0


def measured(quick: bool = False) -> Figures:
    """Raises CannotMeasure when the stack or the load does not come up."""
    tries = 2 if quick else TRIES
    shards = int(tries * (GIVEN_UP_S + PAUSE_S) / BAR_S)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        site = Site(Path(folder), shards=shards, load_s=shards * BAR_S)
        try:
            say("starting the stack and two pretend Sparks")
            site.open()
            run = site.begin("relaunch")
            _loads(site, run)
            began, samples = load(), []
            for number in range(tries):
                taken = _killed(site, run)
                say(f"{number + 1} of {tries}: {'given up' if taken is None else f'{taken:.1f} s'}")
                samples.append(taken)
                time.sleep(PAUSE_S)
            site.need(f"runs/{run}/cancel", {"reason": "the benchmark is over"})
            site.ended(run, GIVEN_UP_S)
        except AssertionError as problem:
            raise CannotMeasure(f"the load did not come up: {str(problem)[:500]}") from problem
        finally:
            site.close()
    good = [each for each in samples if each is not None]
    told = spread(good) if good else {}
    return {
        "failures": len(samples) - len(good),
        "reach_s": REACH_S,
        "kill_to_next_stored_line": told,
        "load_average": {"before": began, "after": load()},
    }


def _newest(site: Site, run: int) -> int:
    """The number of the newest stored chunk of the engine's log, of either rank."""
    ((seq,),) = site.stack.rows(
        "select coalesce(max(c.seq), 0) from runs_chunk c join runs_stream t on t.id = c.stream_id "
        "join runs_step s on s.id = t.step_id where c.run_id = ? and s.kind = 'serve' and t.name = 'output'",
        run,
    )
    return int(seq)


def _loads(site: Site, run: int) -> None:
    """Wait until shards are being loaded."""
    end = time.monotonic() + 240
    while not any(row["done"] for row in site.run(run)["ranks"]):
        row = site.row(run)
        assert row["state"] not in OVER and time.monotonic() < end, row
        time.sleep(0.5)


def _killed(site: Site, run: int) -> float | None:
    """Seconds from the kill to the next stored line; None when none came."""
    before = site.stack.child("worker")
    assert before is not None, "no worker runs"
    site.kill("worker")
    killed, newest = time.monotonic(), _newest(site, run)
    while time.monotonic() - killed < GIVEN_UP_S:
        if _newest(site, run) > newest:
            return time.monotonic() - killed
        time.sleep(0.05)
    return None
