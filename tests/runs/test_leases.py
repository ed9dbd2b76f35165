"""A lease is measured by the database's clock: a worker whose own is wrong takes nothing from another and loses nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from apps.runs import heartbeat, services, working
from apps.runs.models import Run, WorkerBeat

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run() -> Run:
    return Run.objects.create(code="lease", story="probe", actor_kind="system", actor_name="x")


@pytest.mark.parametrize("ahead_s", [-3600, 0, 3600])
def test_a_worker_with_another_clock(run: Run, monkeypatch: pytest.MonkeyPatch, ahead_s: int) -> None:
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + timedelta(seconds=ahead_s))
    token = working.claim(run.pk)
    assert token and working.claim(run.pk) is None
    assert services.stuck(older_than=timedelta(0)) == []
    Run.objects.filter(pk=run.pk).update(lease_until=Now() - timedelta(seconds=1))
    assert services.stuck(older_than=timedelta(hours=9)) == [run.pk]
    assert working.claim(run.pk) not in (None, token)


def test_a_lease_lasts_as_long_as_the_settings_say(run: Run, settings) -> None:
    settings.LEASE_S = 30
    before = timezone.now()
    working.claim(run.pk)
    run.refresh_from_db()
    assert timedelta(seconds=25) < run.lease_until - before < timedelta(seconds=60)
    assert run.lease_serial == 1


def test_a_young_run_has_a_message_on_its_way(run: Run) -> None:
    assert services.stuck(older_than=timedelta(seconds=60)) == []
    Run.objects.filter(pk=run.pk).update(created_at=timezone.now() - timedelta(seconds=61))
    assert services.stuck(older_than=timedelta(seconds=60)) == [run.pk]
    Run.objects.filter(pk=run.pk).update(state="failed")
    assert services.stuck(older_than=timedelta(seconds=60)) == []


def test_a_clock_that_was_set_back_leaves_no_run_to_a_dead_worker(run: Run) -> None:
    """The lease was taken at two o'clock; its worker died; it is one o'clock now."""
    token = working.claim(run.pk)
    an_hour_back = {"lease_until": Now() + timedelta(hours=1), "created_at": timezone.now() + timedelta(hours=1)}
    Run.objects.filter(pk=run.pk).update(**an_hour_back)
    assert services.stuck(older_than=timedelta(seconds=2)) == [run.pk]
    assert working.claim(run.pk) not in (None, token)
    assert services.stuck(older_than=timedelta(seconds=2)) == [], "a lease of a time that can be is somebody's"


def test_a_run_of_a_time_to_come_is_found_without_its_message(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(created_at=timezone.now() + timedelta(hours=1))
    assert services.stuck(older_than=timedelta(seconds=2)) == [run.pk]


@pytest.mark.parametrize(("age_s", "alive"), [(3, True), (11, False), (-3, True), (-3600, False)])
def test_a_sign_of_life_of_a_time_to_come_is_none(run: Run, age_s: int, alive: bool) -> None:
    WorkerBeat.objects.create(name="a:1", at=Now() - timedelta(seconds=age_s), started_at=timezone.now())
    found = services.worker_status()
    assert found.alive is alive
    if age_s == -3600:
        assert found.age_s is None
    WorkerBeat.objects.create(name="a:2", at=Now(), started_at=timezone.now())
    assert services.worker_status().alive, "one that lives is seen whatever stands beside it"


def test_signs_of_life_that_tell_nothing_are_thrown_away(run: Run) -> None:
    for number, age_s in enumerate((-7200, 7200, 5)):
        WorkerBeat.objects.create(name=f"a:{number}", at=Now() - timedelta(seconds=age_s), started_at=timezone.now())
    heartbeat.beat("b:1", timezone.now())
    assert sorted(WorkerBeat.objects.values_list("name", flat=True)) == ["a:2", "b:1"]
