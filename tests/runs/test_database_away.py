"""A database that is restarted under a worker ends no run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import InterfaceError, OperationalError, connection

from apps.runs import services, working
from apps.runs.models import Run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run() -> Run:
    return Run.objects.create(code="away", story="probe", state="running", actor_kind="system", actor_name="x")


def stays(run: Run) -> None:
    """Not ended, held by nobody, and found by the reaper."""
    run.refresh_from_db()
    assert (run.state, run.reason, run.lease_token) == ("running", None, "")
    assert run.pk in services.stuck(older_than=timedelta(seconds=0))


@pytest.mark.parametrize(
    "failure", [OperationalError("database is locked"), InterfaceError("the connection is closed")]
)
def test_a_run_waits_for_the_database(run: Run, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def fails(*_: object) -> bool:
        raise failure

    monkeypatch.setattr(working, "_execute", fails)
    assert working.slice_of(run.pk) == "later"
    stays(run)
    monkeypatch.setattr(working, "_execute", lambda *_: True)
    assert working.slice_of(run.pk) == "done"


def test_a_connection_that_the_server_ended_is_replaced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no connections to end")

    def ended(*_: object) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return False

    monkeypatch.setattr(working, "_execute", ended)
    assert working.slice_of(run.pk) == "later"
    stays(run)
