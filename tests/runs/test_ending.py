"""A worker that ends in order leaves its runs as whole as one that is killed: the next one goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.inventory.models import Credential, Node
from apps.plan import stories
from apps.remote.transport import RemoteError
from apps.runs import ending, tasks, working
from apps.runs.executor import Executor
from apps.runs.models import Run

pytestmark = pytest.mark.django_db(transaction=True)
SPARK = "spark-1"


@pytest.fixture(autouse=True)
def _nobody_has_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_asked", threading.Event())


@pytest.fixture
def run() -> Run:
    credential = Credential.objects.create(name="a", public_key="a", sealed_private_key="a")
    Node.objects.create(name=SPARK, address="127.0.0.1", port=1, user="x", credential=credential)
    plan = stories.unlock(SPARK, script="true").to_json()
    return Run.objects.create(
        code="abc", story="provision", actor_kind="system", actor_name="x", plan=plan, state="running"
    )


def breaking(failure: Exception, *, first: Callable[[], object] = lambda: None) -> Callable[..., bool]:
    def work(*_: object, **__: object) -> bool:
        first()
        raise failure

    return work


def test_who_is_asked_to_end_begins_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "work", breaking(AssertionError("nobody works")))
    ending.ask()
    assert working.slice_of(run.pk) == "later"
    run.refresh_from_db()
    assert (run.state, run.lease_token, run.lease_serial) == ("running", "", 0)


def test_a_slice_is_left_at_its_next_round() -> None:
    rounds: list[int] = []

    class Rounds(Executor):
        def __init__(self) -> None:
            self.journal = type("Nobody", (), {"cancel_asked": lambda _: False})()

        def _advance_stage(self) -> bool:
            return False

        def _round(self) -> bool:
            rounds.append(1)
            return True

    assert Rounds().work(time.monotonic() + 60, leave=lambda: len(rounds) == 3) is False
    assert len(rounds) == 3


def test_what_fails_because_the_process_ends_is_no_fault_of_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shut = RuntimeError("cannot schedule new futures after shutdown")
    monkeypatch.setattr(Executor, "work", breaking(shut, first=ending.ask))
    assert working.slice_of(run.pk) == "later"
    run.refresh_from_db()
    assert (run.state, run.lease_token, run.lease_until) == ("running", "", None), "the next worker may have it at once"


def test_a_bug_ends_the_run_and_gives_its_nodes_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[str] = []

    def let_go(_: object, node: str) -> None:
        given_back.append(node)
        raise RemoteError("ssh_refused", hop=node, evidence="it is away as well")

    monkeypatch.setattr(working.NodeDoors, "let_go", let_go)
    monkeypatch.setattr(Executor, "work", breaking(RuntimeError("cannot schedule new futures after shutdown")))
    assert working.slice_of(run.pk) == "done"
    run.refresh_from_db()
    assert (run.state, run.reason) == ("failed", "internal") and given_back == [SPARK]


def test_an_interpreter_that_winds_down_is_noticed() -> None:
    """Nobody asked: the main thread just ended, as after an error that Celery can't go on after."""
    program = (
        "import sys, threading, time; from concurrent.futures import ThreadPoolExecutor\n"
        "from apps.runs import ending\n"
        "def work():\n"
        "    print(ending.has_begun(), flush=True)\n"
        "    go.set()\n"
        "    while not ending.has_begun(): time.sleep(0.01)\n"
        "    print(ending.has_begun(), ending.asked(), flush=True)\n"
        "go, pool = threading.Event(), ThreadPoolExecutor(1)\n"
        "pool.submit(work); go.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.split("\n")[:2] == ["False", "True False"], (done.stdout, done.stderr)


@pytest.mark.parametrize("run_id", ["abc", None, -1, 0, 2**80, [1], {}, 1.5, True, "1; drop table"])
def test_a_message_that_names_no_run_is_passed_over(run_id: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "slice_of", lambda _: pytest.fail("there is no such run"))
    tasks.advance(run_id)
    tasks.advance(run_id, 2, 3, nope=1)
    tasks.advance()


def test_a_message_of_another_version_wakes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(working, "slice_of", lambda run_id: woken.append(run_id) or "done")
    tasks.advance(7, "more", of="it")
    assert woken == [7]
