"""A lease is measured by the database's clock: a worker whose own is wrong takes nothing from another and loses nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from apps.runs import services, working
from apps.runs.models import Run

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
