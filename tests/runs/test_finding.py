"""A worker finds its work itself: no message, no beat and no Redis is needed for a run to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from apps.runs import finding, working
from apps.runs.finding import Finder
from apps.runs.models import Run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def finder(settings, monkeypatch) -> Iterator[Finder]:
    settings.REAP_PERIOD_S = 0.2
    monkeypatch.setattr(finding, "LEFT_S", 0.0)
    made = Finder()
    yield made
    made.stop()


def run(code: str, **fields: object) -> Run:
    return Run.objects.create(code=code, story="probe", actor_kind="system", actor_name="x", **fields)


def until(check: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_what_nobody_works_on_is_taken_up_as_the_worker_starts(finder: Finder, monkeypatch) -> None:
    now = timezone.now()
    left, dead = run("left"), run("dead", state="running", lease_until=now - timedelta(seconds=1), lease_token="x")
    held = run("held", state="running", lease_until=now + timedelta(seconds=60), lease_token="y")
    over = run("over", state="failed")
    worked: list[int] = []

    def slice_of(run_id: int) -> str:
        worked.append(run_id)
        if worked.count(run_id) < 3:
            return "again"
        Run.objects.filter(pk=run_id).update(state="succeeded")
        return "done"

    monkeypatch.setattr(working, "slice_of", slice_of)
    finder.start()
    until(lambda: worked.count(left.pk) == 3 and worked.count(dead.pk) == 3)
    time.sleep(0.5)
    assert {left.pk, dead.pk} == set(worked) and len(worked) == 6
    assert held.pk not in worked and over.pk not in worked


def test_a_run_that_is_waited_for_is_looked_at_again_and_never_twice_at_once(finder: Finder, monkeypatch) -> None:
    waiting = run("line")
    at_once, most, looks = 0, 0, 0

    def slice_of(run_id: int) -> str:
        nonlocal at_once, most, looks
        at_once += 1
        most, looks = max(most, at_once), looks + 1
        time.sleep(0.5)  # longer than the finder's period
        at_once -= 1
        return "later"

    monkeypatch.setattr(working, "slice_of", slice_of)
    finder.start()
    until(lambda: looks >= 3)
    assert most == 1 and Run.objects.get(pk=waiting.pk).state == "queued"


def test_a_bug_in_a_slice_stops_nobody_else(finder: Finder, monkeypatch) -> None:
    bad, good = run("bad"), run("good")
    worked: list[int] = []

    def slice_of(run_id: int) -> str:
        worked.append(run_id)
        if run_id == bad.pk:
            raise RuntimeError("a bug")
        return "later"

    monkeypatch.setattr(working, "slice_of", slice_of)
    finder.start()
    until(lambda: worked.count(good.pk) >= 3 and worked.count(bad.pk) >= 2)
