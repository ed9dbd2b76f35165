"""A cancel that was accepted is the end, also of a look at a door, which has no steps."""

from __future__ import annotations

import pytest
from django.utils import timezone

from apps.remote import hostkeys
from apps.remote.transport import RemoteError
from apps.runs import working
from apps.runs.models import Run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run() -> Run:
    asked = {"name": "spark-1", "address": "127.0.0.1", "port": 1, "user": "x", "credential": 1, "jump": None}
    return Run.objects.create(code="scan", story="scan", actor_kind="system", actor_name="x", parameters=asked)


def cancel(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(cancel_asked_at=timezone.now())


def test_before_a_worker_came(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostkeys, "scan", lambda _: pytest.fail("nobody wants to know any more"))
    cancel(run)
    assert working.slice_of(run.pk) == "done"
    run.refresh_from_db()
    assert (run.state, run.reason) == ("cancelled", "cancelled")


@pytest.mark.parametrize("answers", [True, False])
def test_while_a_worker_looks(run: Run, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    monkeypatch.setattr(working.inventory, "private_key", lambda _: "")
    monkeypatch.setattr(working.Credential.objects, "get", lambda **_: None)

    def scan(_: object) -> list[object]:
        cancel(run)
        if not answers:
            raise RemoteError("ssh_refused", hop="spark-1", evidence="no")
        return []

    monkeypatch.setattr(hostkeys, "scan", scan)
    assert working.slice_of(run.pk) == "done"
    run.refresh_from_db()
    assert (run.state, run.reason, run.evidence) == ("cancelled", "cancelled", "")
