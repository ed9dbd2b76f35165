"""Benchmark `cancel`: somebody cancels a load while no worker lives; how long from a worker's return until the nodes are clean?

The whole stack as `make up` starts it, two pretend Sparks behind real SSH. The supervisor is stopped, so that nobody starts a
worker again, and the worker is killed in the middle of a load. Then the cancel is asked for, and the supervisor goes on.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from bench.measure import CannotMeasure, Figures, load, say, spread
from tests.chaos.site import OVER, Site

TRIES, ALONE_S = 10, 3.0
GIVEN_UP_S = 90.0
REACH_S = 10.0


def measured(quick: bool = False) -> Figures:
    """Raises CannotMeasure when the stack or the load does not come up."""
    tries = 2 if quick else TRIES
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        site = Site(Path(folder), shards=120, load_s=60.0)
        try:
            say("starting the stack and two pretend Sparks")
            site.open()
            began, samples, starts, wrong = load(), [], [], 0
            for number in range(tries):
                run = site.begin("relaunch" if number else "launch")
                loads(site, run)
                start_s, return_s = _cancelled_alone(site, run)
                say(f"{number + 1} of {tries}: {'given up' if return_s is None else f'{return_s:.1f} s'}")
                samples.append(return_s)
                starts.append(start_s)
                wrong += _began_after_the_cancel(site, run)
        except AssertionError as problem:
            raise CannotMeasure(f"the load did not come up: {str(problem)[:500]}") from problem
        finally:
            site.close()
    good = [each for each in samples if each is not None]
    return {
        "failures": len(samples) - len(good) + wrong,
        "steps_begun_after_the_cancel": wrong,
        "reach_s": REACH_S,
        "workers_return_to_cancelled": spread(good) if good else {},
        "workers_start_to_cancelled": spread([each for each in starts if each is not None]) if good else {},
        "load_average": {"before": began, "after": load()},
    }


def loads(site: Site, run: int) -> None:
    """Wait until shards are being loaded. Raises AssertionError."""
    end = time.monotonic() + 240
    while not any(row["done"] for row in site.run(run)["ranks"]):
        row = site.row(run)
        assert row["state"] not in OVER and time.monotonic() < end, row
        time.sleep(0.5)


def _cancelled_alone(site: Site, run: int) -> tuple[float | None, float | None]:
    """Seconds from the start of the worker's process, and from its first sign of life, to the end of the run; None when it did not
    come."""
    supervisor, worker = site.stack.child("supervisor"), site.stack.child("worker")
    assert supervisor is not None and worker is not None, "no worker runs"
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(worker, signal.SIGKILL)
        status, answer = site.ask(f"runs/{run}/cancel", {"reason": "the benchmark"})
        assert status == 202 and answer["cancel_asked_at"], (status, answer)
        time.sleep(ALONE_S)
        assert site.row(run)["state"] not in OVER, "somebody else ended it"
    finally:
        os.kill(supervisor, signal.SIGCONT)
    started, returned = time.monotonic(), None
    while time.monotonic() - started < GIVEN_UP_S:
        if returned is None and _alive(site, besides=worker):
            returned = time.monotonic()
        if site.row(run)["state"] == "cancelled":
            now = time.monotonic()
            return now - started, now - (returned or now)
        time.sleep(0.05)
    return None, None


def _alive(site: Site, *, besides: int) -> bool:
    """Whether a worker that is not the killed one has said that it is alive."""
    ((newest,),) = site.stack.rows("select name from runs_workerbeat order by started_at desc limit 1")
    return not str(newest).endswith(f":{besides}")


def _began_after_the_cancel(site: Site, run: int) -> int:
    ((steps,),) = site.stack.rows(
        "select count(*) from runs_step s join runs_run r on r.id = s.run_id where r.id = ? and s.started_at > r.cancel_asked_at",
        run,
    )
    return int(steps)
