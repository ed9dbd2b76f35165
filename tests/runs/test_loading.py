"""While an engine loads: the memory that is left, the kernel's log, a rank that is dead. Over nodes that are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from apps.plan.step import Bar, Fit, Plan, Stage, Step
from apps.remote.transport import JobLook, Result
from apps.runs import sampling
from apps.runs.executor import Executor
from tests.plan.sheets import pair
from tests.runs.memory import MemoryNode, served_on
from tests.runs.test_executor import working

GIB = 1 << 30
XID = "[88.1] NVRM: Xid (PCI:0000:01:00): 79, pid=1020, GPU has fallen off the bus."


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "EVERY_S", 0.05)
    monkeypatch.setattr(Executor, "_look_at_all", lambda _: None)
    monkeypatch.setattr(Executor, "_killed_for_memory", lambda _: None)
    monkeypatch.setattr(Executor, "_ask", lambda *_: None)  # the wait for the API


def loading(nodes: int, *, floor: float = 8.0, gpu: int | None = None, **spec: object) -> Plan:
    names = [f"spark-{number}" for number in range(nodes)]
    plan = served_on(names, os_floor_gib=floor, **spec)
    return replace(plan, fit=Fit("fits", "", tuple(Bar(name, 119 * GIB, (), gpu=gpu) for name in names)))


@pytest.mark.parametrize("policy", ["stop", "report"])
def test_a_load_is_stopped_before_its_node_freezes_with_the_curve_as_evidence(policy: str) -> None:
    with working(0, plan=loading(2, on_rank_lost=policy)) as run:
        second = run.doors.nodes["spark-1"]
        run.until(lambda: len(run.made.curves.get("spark-1", ())) > 2)
        second.available = int(1.5 * GIB)
        assert run.over.wait(30)
        ((state, reason, evidence),) = run.journal.ends
        assert (state, reason) == ("failed", "os_floor_reached")
        assert evidence.startswith("spark-1: 1.5 GiB left while the engine loads, below 2.0 GiB")
        assert all(node.cancelled_at for node in run.doors.nodes.values()), "whatever takes the memory must go"
        sizes = [point[1] for point in run.journal.curves["spark-1"]]
        assert sizes[0] == 40 * GIB and sizes[-1] == int(1.5 * GIB)


@pytest.mark.parametrize(("floor", "gpu"), [(0.0, None), (8.0, 0)])
def test_no_load_is_stopped_where_there_is_no_floor(floor: float, gpu: int | None) -> None:
    """A person took it away, or the GPU has memory of its own."""
    with working(0, plan=loading(1, floor=floor, gpu=gpu)) as run:
        run.doors.nodes["spark-0"].available = 1 << 20
        run.until(lambda: len(run.journal.curves.get("spark-0", ())) > 3)
        assert not run.over.is_set() and run.journal.steps["wait"]["state"] == "running"


def test_what_the_kernel_logs_during_the_load_is_a_finding_with_its_line() -> None:
    with working(0, plan=loading(1)) as run:
        run.until(lambda: run.made.curves.get("spark-0"))
        run.doors.nodes["spark-0"].kernel.append(XID)
        run.until(lambda: run.journal.kernel)
        assert [(one["node"], one["name"], one["title"], one["line"]) for one in run.journal.kernel] == [
            ("spark-0", "gpu_error", "The GPU's driver logged Xid 79", XID)
        ], "and nothing that stood there before"
        assert ("serve.spark-0", f"the kernel of spark-0: {XID}") in run.journal.notes


def test_a_wait_ends_after_three_looks_once_a_rank_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the wait for the API: one for a cluster that a dead rank will never join would last its whole time."""
    monkeypatch.setattr(Executor, "_ask", lambda *_: Result(b"", b"", 0))
    plan = served_on(["spark-0", "spark-1"])
    wait = Step("join", "spark-0", "Wait", "wait", script="true", gate={"name": "ports_free", "ports": [1]}, every_s=0.05, within_s=600.0)  # fmt: skip
    taken = Result(b"LISTEN 0 1 0.0.0.0:1 0.0.0.0:*\n", b"", 0)
    monkeypatch.setattr(Executor, "_ask", lambda *_: taken)
    plan = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], steps=(wait,))))

    def look(node: MemoryNode, asked: Sequence[tuple[str, int]], *, limit: int = 0) -> list[JobLook]:
        said = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        dead = node.state == "exited"
        return [JobLook(job, node.state, said[at:] if dead else b"", len(said) if dead else at, node.code, pid=7) for job, at in asked]  # fmt: skip

    monkeypatch.setattr(MemoryNode, "look", look)
    with working(0, plan=plan) as run:
        run.until(lambda: run.journal.state("join") == "running")
        second = run.doors.nodes["spark-1"]
        second.state, second.code = "exited", 1
        assert run.over.wait(30)
        ((state, reason, evidence),) = run.journal.ends
        assert (state, reason) == ("failed", "rank_lost") and "Rank 1 ended with 1" in evidence
        assert "CUDA out of memory" in evidence


def test_curves_are_thinned_and_keep_what_is_lowest() -> None:
    points = [[float(second), 100 - (second == 333)] for second in range(1000)]
    curve: dict[str, list[sampling.Point]] = {}
    for point in points:
        curve = sampling.grown(curve, {"n": [point]})
    assert len(curve["n"]) <= sampling.MOST_POINTS and min(point[1] for point in curve["n"]) == 99
    assert [point[0] for point in curve["n"][-10:]] == [float(second) for second in range(990, 1000)]
    many = sampling.grown({}, {f"n{number}": points for number in range(64)})
    assert sum(len(one) for one in many.values()) < 64 * 1000


def test_the_end_of_a_curve_in_words() -> None:
    curve = [[float(second), (100 - second) * GIB] for second in range(0, 91, 10)]
    assert (
        sampling.in_words(curve)
        == "100.0 GiB 90 s before, 70.0 GiB 60 s before, 40.0 GiB 30 s before, 20.0 GiB 10 s before"
    )


def test_memory_that_does_not_come_back_names_who_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "_ask", lambda *_: Result(b"MemAvailable: 1048576 kB\n", b"", 0))
    gate = {"name": "memory_free", "bytes": 90 * GIB}
    wait = Step("free", "spark-1a32", "Wait", "wait", script="m", gate=gate, every_s=0.05, within_s=-1.0)
    plan = replace(served_on(["spark-1a32"]), stages=(Stage("Clear", "clearing", (wait,)),))
    monkeypatch.setattr(Executor, "_sheet", lambda *_: pair()["spark-1a32"])
    with working(0, plan=plan) as run:
        assert run.over.wait(30)
        ((state, reason, evidence),) = run.journal.ends
        assert (state, reason) == ("failed", "memory_not_released") and evidence.startswith("1.0 of 90.0 GiB are free")
        assert "vllm_node" in evidence and "vllm-cluster.service" in evidence and "GiB" in evidence.partition(";")[2]
        assert run.journal.curves["spark-1a32"][0][1] == GIB
