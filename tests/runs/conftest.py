"""A node behind a real sshd, and a worker that lives in the test: slices are worked off in a thread, as Celery would."""

from __future__ import annotations

import threading
import time
from importlib import import_module

import pytest

from apps.audit.actor import Actor
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.runs import heartbeat, services, tasks, working
from apps.runs.models import Run
from tests.openssh import free_port, openssh

__all__ = ["openssh"]
ADMIN = Actor("person", 1, "ada", "admin")
OPERATOR = Actor("person", 2, "otto", "operator")


class Worker:
    """Works off what is waiting until it is stopped; `kill` leaves leases behind as kill -9 would."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.beat = heartbeat.start()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        from django.db import connection

        while not self.stopping.is_set():
            for run_id in list(
                Run.objects.filter(state__in=("queued", "reserving", "running")).values_list("pk", flat=True)
            ):
                working.slice_of(run_id)
            time.sleep(0.05)
        connection.close()

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(60)
        self.beat.set()
        time.sleep(0.1)


@pytest.fixture
def worker(transactional_db, settings, monkeypatch):
    settings.SLICE_S = 1.0
    settings.LEASE_S = 6.0
    import_module(settings.TASKS_OF)  # whose task it is, from here on
    monkeypatch.setattr(tasks.advance, "apply_async", lambda *_, **__: None)
    made = Worker()
    for _ in range(100):
        if services.worker_status().alive:
            break
        time.sleep(0.05)
    yield made
    made.stop()
    working.pool().close()
    working._pool = None


def ended(run: Run, seconds: float = 60.0) -> Run:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run = Run.objects.get(pk=run.pk)
        if run.ended:
            return run
        time.sleep(0.1)
    steps = [(s.key, s.state, s.note) for s in run.steps.all()]
    raise AssertionError(f"run {run.pk} is still {run.state} in {run.phase}: {steps}")


def add_node(server, *, jump: Node | None = None) -> Node:
    """A node for a server of the openssh fixture, host key confirmed, with the key that the server accepts."""
    key = inventory.make_credential(ADMIN, name=f"key for {server.name}", private_key=server.private_key)
    node = services.enrol(
        ADMIN,
        name=server.name,
        address="127.0.0.1",
        port=server.port,
        user=server.endpoint().user,
        credential=key,
        jump=jump,
    )
    return inventory.confirm_host_key(ADMIN, node, sha256=node.host_keys.first().sha256)


__all__ += ["ADMIN", "OPERATOR", "add_node", "ended", "free_port", "worker"]
