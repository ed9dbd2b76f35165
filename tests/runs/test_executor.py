"""What an executor does when: nobody waits for a slow node, a cancel begins at once, an end is named by what brought it about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from apps.plan.step import Plan, Stage, Step
from apps.plan.stories import launch
from apps.remote.jobs import JobNotStarted
from apps.remote.nodelock import NodeHeld
from apps.remote.transport import CannotReach, HttpAnswer, HttpFailed, JobLook
from apps.runs import executor, proving
from apps.runs.executor import Executor
from apps.shell import Secret
from tests.plan.sheets import GIVEN, pair, qwen35, sglang
from tests.runs.memory import MemoryDoors, MemoryJournal, MemoryNode, served_on

CANCEL_STARTS_S = 5.0  # the promise, with 64 ranks followed


class Working:
    """An executor at work in a thread, as in a worker."""

    def __init__(self, nodes: int, plan: Plan | None = None, **spec: object) -> None:
        names = list(plan.nodes) if plan else [f"spark-{number}" for number in range(nodes)]
        self.plan = plan or served_on(names, **spec)
        self.journal, self.doors = MemoryJournal(self.plan), MemoryDoors(names)
        self.made = Executor(self.plan, self.journal, self.doors, run_id=1, code="abc", environment_of=lambda _: {})  # type: ignore[arg-type]
        self.over = threading.Event()
        self.stopping = False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while not self.stopping:
            if self.made.work(time.monotonic() + 1.0):
                self.over.set()
                return

    def until(self, check: Callable[[], object], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.02)

    def printed(self, name: str) -> int:
        return self.journal.position(f"serve.{name}")


@contextmanager
def working(nodes: int, plan: Plan | None = None, **spec: object) -> Iterator[Working]:
    made = Working(nodes, plan, **spec)
    try:
        yield made
    finally:
        made.stopping = True
        for node in made.doors.nodes.values():
            node.answers.set()
        made.thread.join(30)
        made.made.close()


@pytest.fixture(autouse=True)
def _no_sheets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "_look_at_all", lambda _: None)
    monkeypatch.setattr(Executor, "_killed_for_memory", lambda _: None)
    monkeypatch.setattr(Executor, "_ask", lambda *_: None)  # the wait for the API


def test_a_node_that_hangs_keeps_no_other_waiting() -> None:
    with working(3) as run:
        run.until(lambda: all(run.printed(name) for name in run.doors.nodes))
        run.doors.nodes["spark-1"].answers.clear()
        before = {name: run.printed(name) for name in run.doors.nodes}
        run.until(lambda: all(run.printed(name) > before[name] + 50 for name in ("spark-0", "spark-2")))
        run.doors.nodes["spark-1"].answers.set()
        run.until(lambda: run.printed("spark-1") > before["spark-1"] + 50)
    for name, text in ((name, run.journal.text[f"serve.{name}"]) for name in run.doors.nodes):
        numbers = [int(line.split()[1]) for line in text.decode().splitlines()]
        assert numbers == list(range(1, len(numbers) + 1)), name  # no look was taken twice, none was passed over


def test_a_cancel_begins_at_once_while_64_ranks_are_followed_and_some_hang() -> None:
    with working(64) as run:
        run.until(lambda: all(run.printed(name) for name in run.doors.nodes), 60)
        hanging = [run.doors.nodes[f"spark-{number}"] for number in (3, 17, 40)]
        for node in hanging:
            node.answers.clear()
        time.sleep(0.5)
        run.journal.cancel()
        asked = time.monotonic()
        others = [node for node in run.doors.nodes.values() if node not in hanging]
        run.until(lambda: all(node.cancelled_at for node in others), 60)
        first = min(min(node.cancelled_at.values()) for node in others)
        assert first - asked < CANCEL_STARTS_S
        assert not run.over.is_set() and not run.journal.ends, "it is not cancelled while nodes are not clean"
        for node in hanging:
            node.answers.set()
        assert run.over.wait(60)
        assert run.journal.ends == [("cancelled", "cancelled", "")]
        assert all(node.cancelled_at for node in run.doors.nodes.values())
        assert all("docker rm -f" in "".join(node.ran) for node in run.doors.nodes.values())


def test_a_node_that_another_installation_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answered, and said no: nothing is hidden there that would explain more."""

    slow = threading.Event()

    def held(_: object, node: str) -> None:
        if node == "spark-0":
            slow.wait(60)
        else:
            raise NodeHeld("foreign_installation", hop=node, evidence="another installation works there")

    monkeypatch.setattr(MemoryDoors, "hold", held)
    with working(2) as run:
        run.until(lambda: "spark-1" in run.made.away)  # it is asked again while the other one takes its time
        slow.set()
        assert run.over.wait(30), (run.journal.steps, run.made.away)
        ((state, reason, evidence),) = run.journal.ends
        assert (state, reason) == ("failed", "foreign_installation") and "another installation" in evidence


def test_a_cancel_does_not_wait_for_ever_for_a_node_that_never_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "GIVE_UP_S", 4.0)
    monkeypatch.setattr(executor, "AWAY_DELAYS_S", (0.2,))
    with working(3) as run:
        run.until(lambda: all(run.printed(name) for name in run.doors.nodes))

        def away(*_: object, **__: object) -> JobLook:
            raise CannotReach("no_route", hop="spark-1", evidence="No route to host")

        run.doors.nodes["spark-1"].look = run.doors.nodes["spark-1"].cancel = away  # type: ignore[method-assign, assignment]
        run.journal.cancel()
        run.until(lambda: all(run.doors.nodes[name].cancelled_at for name in ("spark-0", "spark-2")))
        assert not run.journal.ends, "not before its time"
        assert run.over.wait(30)
        ((state, reason, evidence),) = run.journal.ends
        assert (state, reason) == ("cancelled", "cleanup_incomplete")
        assert "spark-1 could not be cleaned" in evidence and "spark-0" not in evidence


def test_a_cancel_has_nothing_to_clean_where_nothing_was_begun() -> None:
    """It does not wait for a node that is out of reach and that the run never touched."""
    with working(2) as run:
        run.stopping = True
        run.thread.join(10)
        plan, journal = run.plan, MemoryJournal(run.plan)
        made = Executor(plan, journal, run.doors, run_id=1, code="new", environment_of=lambda _: {})  # type: ignore[arg-type]
        run.doors.nodes["spark-1"].answers.clear()
        journal.cancel()
        assert made.work(time.monotonic() + 5)
        assert journal.ends == [("cancelled", "cancelled", "")]
        assert {step["state"] for step in journal.steps.values()} == {"waiting"}, "no step was begun before"
        made.close()


def test_a_cancel_that_comes_with_the_end_is_what_counts() -> None:
    with working(2) as run:
        run.until(lambda: all(run.printed(name) for name in run.doors.nodes))
        for key in run.journal.steps:
            run.journal.finish(key, "succeeded")
        run.journal.cancel()
        assert run.over.wait(30)
        assert [state for state, *_ in run.journal.ends] == ["cancelled"]
        assert all(node.cancelled_at for node in run.doors.nodes.values())


def test_a_reboot_is_why_whatever_the_others_said_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 dies of the loss of rank 1, whose node can't be asked yet: it is waited for, and then it says what happened."""
    monkeypatch.setattr(executor, "AWAY_DELAYS_S", (0.1,))
    with working(2) as run:
        head, second = run.doors.nodes.values()
        run.until(lambda: run.printed("spark-0") and run.printed("spark-1"))
        looks = second.look

        def away(*_: object, **__: object) -> list[object]:
            raise CannotReach("ssh_refused", hop="spark-1", evidence="refused")

        second.look = away  # type: ignore[method-assign]
        run.until(lambda: run.journal.unreachable)
        head.state, head.code = "exited", 1
        run.journal.finish("wait", "failed", reason="exited", evidence="Rank 0 ended with 1")
        time.sleep(1.0)
        assert not run.over.is_set(), "the reason was given before the node was heard"
        second.state, second.reason = "lost", "rebooted"
        second.look = looks  # type: ignore[method-assign]
        assert run.over.wait(30)
        assert run.journal.ends[0][:2] == ("failed", "rebooted") and "spark-1 was rebooted" in run.journal.ends[0][2]


@pytest.mark.parametrize(("policy", "stopped"), [("stop", True), ("report", False)])
def test_what_a_failed_launch_leaves_is_stopped_unless_the_deployment_wants_it_left(policy: str, stopped: bool) -> None:
    with working(2, on_rank_lost=policy) as run:
        run.until(lambda: all(run.printed(name) for name in run.doors.nodes))
        run.journal.finish("wait", "failed", reason="smoke_failed", evidence="no answer")
        assert run.over.wait(30)
        assert run.journal.ends == [("failed", "smoke_failed", "no answer")]
        assert bool(run.doors.nodes["spark-1"].cancelled_at) == stopped


def test_a_node_that_was_reached_and_said_no_is_not_called_unreachable() -> None:
    with working(2) as run:
        run.until(lambda: all(run.printed(name) for name in run.doors.nodes))

        def full(*_: object, **__: object) -> list[object]:
            raise JobNotStarted("disk_full", hop="spark-1", evidence="No space left on device")

        run.doors.nodes["spark-1"].look = full  # type: ignore[method-assign]
        time.sleep(1.5)
        assert run.journal.unreachable == []


def test_a_job_whose_folder_was_deleted_and_that_is_gone_keeps_nobody_waiting() -> None:
    with working(2) as run:
        run.until(lambda: all(run.printed(name) for name in run.doors.nodes))
        gone = run.doors.nodes["spark-1"]
        gone.look = lambda asked, **_: [JobLook(job, "missing") for job, _ in asked]  # type: ignore[method-assign]
        assert run.over.wait(30)
        ((state, reason, evidence),) = run.journal.ends
        assert (state, reason) == ("failed", "rank_lost") and "Rank 1" in evidence and "missing" in evidence
        assert ("serve.spark-1", "log_gone") in run.journal.notes


def test_what_was_printed_before_the_end_is_stored_however_much_it_is() -> None:
    """A log that is longer than one look brings, and still grows."""
    with working(1) as run:
        run.until(lambda: run.printed("spark-0"))
        node, written = run.doors.nodes["spark-0"], bytearray(b"0123456789" * 300)
        at = run.printed("spark-0")

        def look(asked: object, *, limit: int = 0) -> list[JobLook]:
            ((job, offset),) = asked  # type: ignore[misc]
            written.extend(b"more" * 10)
            data = bytes(written[offset - at : offset - at + 100])
            return [JobLook(job, "running", data, at + len(written), pid=7)]

        node.look = look  # type: ignore[method-assign, assignment]
        run.journal.finish("wait", "succeeded")
        assert run.over.wait(30)
        assert run.journal.ends == [("succeeded", None, "")]
        assert run.printed("spark-0") >= at + 3000, "it ended before the end of what was there"


def test_who_takes_a_run_over_at_its_very_end_gives_back_what_the_other_held() -> None:
    """The worker that held the nodes is gone; the next one has nothing to do but to end the run."""
    with working(2) as run:
        run.until(lambda: run.doors.held == {"spark-0", "spark-1"})
        run.stopping = True
        run.thread.join(10)
        for key in run.journal.steps:
            run.journal.finish(key, "succeeded")
        run.journal.ended_streams.update(run.journal.steps)
        heir = Executor(run.plan, run.journal, run.doors, run_id=1, code="abc", environment_of=lambda _: {})  # type: ignore[arg-type]
        assert heir.work(time.monotonic() + 5)
        assert run.journal.ends == [("succeeded", None, "")] and run.doors.held == set()
        heir.close()


def ray_head(asks: str = "ready") -> Plan:
    """What is asked of, and what follows a Ray head of one node, from its own planner: the container's log, whose exit code is the container's own,
    and `vllm serve` by `docker exec`."""
    spec = qwen35(nodes=("spark-1a32",), tensor_parallel=1, gpu_memory_utilization=0.5)
    made = launch(spec, pair(busy=False), given=GIVEN)
    kept = [step for stage in made.stages for step in stage.steps if step.kind in ("serve", asks)]
    kept = [replace(step, every_s=0.05) if step.kind == asks else step for step in kept]
    return replace(made, stages=(Stage("Serve", "loading", tuple(kept)),), spec={**made.spec, "on_rank_lost": "report"})


@pytest.mark.parametrize(
    ("ends", "reason", "words"),
    [
        ({"serve.engine.spark-1a32": 137}, "exited", "Serve ended with 137"),
        (
            {"cluster.ray-head-log.spark-1a32": 1, "serve.engine.spark-1a32": 137},
            "ray_ended",
            "Ray in vllm-qwen35-r0 on spark-1a32 ended with 1",
        ),
        (
            {"cluster.ray-head-log.spark-1a32": 137, "serve.engine.spark-1a32": 137},
            "container_killed",
            "vllm-qwen35-r0 on spark-1a32 was stopped or killed from outside, exit code 137",
        ),
    ],
    ids=["serve alone", "Ray alone", "the container"],
)
@pytest.mark.parametrize("asks", ["ready", "smoke"])
def test_the_three_ends_of_a_ray_head_have_three_names(
    monkeypatch: pytest.MonkeyPatch, asks: str, ends: dict[str, int], reason: str, words: str
) -> None:
    """During the load, and while the first completion is asked for: no answer is not a wrong answer then."""
    codes: dict[str, int] = {}
    ended = threading.Event()

    def ask(*_: object) -> HttpFailed:
        ended.wait(20)
        return HttpFailed("refused", "nothing listens")

    def look(node: MemoryNode, asked: Sequence[tuple[str, int]], *, limit: int = 0) -> list[JobLook]:
        return [
            JobLook(job, "exited" if job in codes else "running", b"", offset, codes.get(job), None, pid=7)
            for job, offset in asked
        ]

    monkeypatch.setattr(MemoryNode, "look", look)
    monkeypatch.setattr(Executor, "_ask", ask)
    with working(0, plan=ray_head(asks)) as made:
        made.until(lambda: all(made.journal.job_id(key) for key in ends))
        codes.update({made.journal.job_id(key): code for key, code in ends.items()})
        ended.set()
        assert made.over.wait(20)
        assert made.journal.ends[0][:2] == ("failed", reason), made.journal.ends
        assert words in made.journal.ends[0][2]


def test_ranks_that_never_find_each_other_are_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's logs stop in the middle of their meeting: that is known before an ordinary load would be called stalled."""
    monkeypatch.setattr(executor, "MEETING_SILENCE_S", 0.5)
    said = b"[2026-08-27 11:00:02 TP0] Init torch distributed begin.\n[2026-08-27 11:00:04 TP0] sglang is using nccl==2.28.3\n"

    def look(node: MemoryNode, asked: Sequence[tuple[str, int]], *, limit: int = 0) -> list[JobLook]:
        return [JobLook(job, "running", said[offset:], len(said), None, None, pid=7) for job, offset in asked]

    monkeypatch.setattr(MemoryNode, "look", look)
    monkeypatch.setattr(Executor, "_ask", lambda *_: HttpFailed("refused", "nothing listens"))
    plan = launch(sglang(), pair(busy=False), given=GIVEN)
    kept = [step for stage in plan.stages for step in stage.steps if step.kind in ("serve", "ready")]
    kept = [replace(step, every_s=0.05) if step.kind == "ready" else step for step in kept]
    stages = (Stage("Serve", "loading", tuple(kept)),)
    with working(0, plan=replace(plan, stages=stages, spec={**plan.spec, "on_rank_lost": "report"})) as made:
        assert made.over.wait(20)
        assert made.journal.ends[0][:2] == ("failed", "nccl_init_hang"), made.journal.ends
        assert "look for each other" in made.journal.ends[0][2]


ASK = Executor._ask  # before the fixture takes it away


def test_the_apis_own_key_is_shown_to_it_and_stands_in_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Mapping[str, str]] = []

    def http(node: MemoryNode, method: str, url: str, *, headers: Mapping[str, str], **_: object) -> HttpAnswer:
        seen.append(headers)
        return HttpAnswer(503, {}, b"")

    def streamed(node: MemoryNode, url: str, *, body: bytes, headers: Mapping[str, str]) -> proving.Streamed:
        seen.append(headers)
        return proving.Streamed(503, b"", None, 0.1)

    monkeypatch.setattr(MemoryNode, "http", http, raising=False)
    monkeypatch.setattr(proving, "streamed", streamed)
    monkeypatch.setattr(Executor, "_ask", ASK)
    spec = qwen35(secrets=(Secret("VLLM_API_KEY", "api"), Secret("HF_TOKEN", "hub")))
    plan = launch(spec, pair(busy=False), given=GIVEN)
    asking = [step for stage in plan.stages for step in stage.steps if step.kind in ("ready", "smoke")]
    assert [step.secrets for step in asking] == [(Secret("VLLM_API_KEY", "api"),)] * 4
    made = Executor(
        plan, MemoryJournal(plan), MemoryDoors(plan.nodes), run_id=1, code="abc",
        environment_of=lambda step: {one.variable: "k3y" for one in step.secrets},
    )  # type: ignore[arg-type]  # fmt: skip
    for step in asking:
        made._ask(step.node, step)
    made.close()
    assert [headers["Authorization"] for headers in seen] == ["Bearer k3y"] * 4
    assert "k3y" not in str(plan.to_json())


def test_health_is_no_list_of_models() -> None:
    """llama.cpp lists its model before it can answer; SGLang says 503 while it warms up."""
    health = Step("h", "n", "t", "ready", url="http://127.0.0.1:1/health", model="m", gate={"name": "health"})
    models = replace(health, url="http://127.0.0.1:1/v1/models", gate={})
    named = HttpAnswer(200, {}, b'{"object":"list","data":[{"id":"m","object":"model"}]}')
    loading = HttpAnswer(503, {}, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
    assert executor._is_ready(health, HttpAnswer(200, {}, b'{"status":"ok"}'))
    assert executor._is_ready(models, named) and not executor._is_ready(models, loading)
    assert not executor._is_ready(health, loading)
    assert not executor._is_ready(replace(models, model="another"), named)
