"""A journal in memory and doors to nodes that are none: for what an executor does when, not for what a node says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apps.facts.sheet import Sheet
from apps.plan.step import Plan, Stage, Step
from apps.remote.transport import JobLook, Result
from apps.runs import sampling
from apps.runs.executor import CancelAsked


class MemoryJournal:
    """Keeps everything; `cancel()` asks for the end."""

    def __init__(self, plan: Plan) -> None:
        self.steps = {step.key: {"state": "waiting", "job": ""} for stage in plan.stages for step in stage.steps}
        self.offsets: dict[str, int] = {}
        self.text: dict[str, bytes] = {}
        self.kept: dict[tuple[str, str], int] = {}
        self.notes: list[tuple[str, str]] = []
        self.unreachable: list[tuple[str, str]] = []
        self.ends: list[tuple[str, str | None, str]] = []
        self.ended_streams: set[str] = set()
        self.asked_at: float | None = None
        self.outcomes: dict[str, Any] = {}
        self.curves: dict[str, list[sampling.Point]] = {}
        self.kernel: list[Mapping[str, Any]] = []

    def cancel(self) -> None:
        self.asked_at = time.monotonic()

    def state(self, key: str) -> str:
        return self.steps[key]["state"]

    def started_at(self, key: str) -> float:
        return time.time()

    def job_id(self, key: str) -> str:
        return self.steps[key]["job"]

    def begin(self, key: str, *, job_id: str = "") -> None:
        self.steps[key] = {"state": "running", "job": job_id}

    def finish(self, key: str, state: str, *, reason: str | None = None, evidence: str = "", note: str = "") -> None:
        self.steps[key] |= {"state": state, "reason": reason, "evidence": evidence}

    def progress(self, key: str, progress: Mapping[str, Any], facts: Mapping[str, Any]) -> None: ...

    def phase(self, phase: str) -> None: ...

    def position(self, key: str) -> int:
        return self.offsets.get(key, 0)

    def drained(self, key: str) -> bool:
        return key in self.ended_streams

    def stored(self, key: str) -> Iterator[bytes]:
        yield self.text.get(key, b"")

    def output(self, key: str, *, offset: int, data: bytes, ended: bool) -> list[bytes]:
        assert offset == self.position(key)
        self.offsets[key] = offset + len(data)
        self.text[key] = self.text.get(key, b"") + data
        if ended:
            self.ended_streams.add(key)
        return [data] if data else []

    def befell(self, key: str, what: str) -> bool:
        self.notes.append((key, what))
        return True

    def note(self, key: str, text: str) -> None:
        self.notes.append((key, text))

    def tail(self, key: str, *, limit: int = 20) -> list[str]:
        return self.text.get(key, b"").decode().splitlines()[-limit:]

    def sheet(self, node: str, sheet: Sheet) -> None: ...

    def reached(self, node: str) -> None: ...

    def not_reached(self, node: str, *, reason: str, evidence: str, hop: str) -> None:
        self.unreachable.append((node, reason))

    def outcome(self, **values: Any) -> None:
        self.outcomes |= values

    def sampled(self, points: sampling.Curves, kernel: Sequence[Mapping[str, Any]]) -> None:
        self.curves = sampling.grown(self.curves, points)
        self.kernel += kernel

    def cancel_asked(self) -> bool:
        return self.asked_at is not None

    def earlier_job(self, step: Step) -> str:
        return ""

    def recall(self, key: str, name: str, default: int) -> int:
        return self.kept.get((key, name), default)

    def remember(self, key: str, name: str, value: int) -> None:
        self.kept[key, name] = value

    def reason_of(self, key: str) -> tuple[str, str]:
        return self.steps[key].get("reason") or "internal", self.steps[key].get("evidence", "")

    def end(self, state: str, *, reason: str | None = None, evidence: str = "") -> None:
        if self.asked_at is not None and state != "cancelled":
            raise CancelAsked("run 1")
        self.ends.append((state, reason, evidence))


class MemoryNode:
    """A node whose jobs print a line a look. While `hangs` is set, no answer comes from it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers = threading.Event()
        self.answers.set()
        self.jobs: dict[str, str] = {}
        self.cancelled_at: dict[str, float] = {}
        self.looks = 0
        self.state, self.reason, self.code = "running", None, None
        self.ran: list[str] = []
        self.available, self.kernel = 40 << 30, ["[1.0] NVRM: Xid (PCI:0000:01:00): 13, from an earlier day"]

    def start(self, job_id: str, script: str, **_: Any) -> JobLook:
        self.answers.wait(60)
        self.jobs.setdefault(job_id, script)
        return JobLook(job_id, "running", pid=7)

    def look(self, asked: Sequence[tuple[str, int]], *, limit: int = 0) -> list[JobLook]:
        self.answers.wait(60)
        self.looks += 1
        data = f"line {self.looks}\n".encode() if self.state == "running" else b""
        return [
            JobLook(job, self.state, data, offset + len(data), self.code, self.reason, pid=7) for job, offset in asked
        ]

    def cancel(self, job_id: str, *, grace_s: float = 10.0) -> JobLook:
        self.cancelled_at.setdefault(job_id, time.monotonic())
        self.answers.wait(60)
        if self.state == "running":
            self.state, self.code = "exited", 143
        return JobLook(job_id, self.state, exit_code=self.code)

    def run(self, script: str, **_: Any) -> Result:
        self.answers.wait(60)
        self.ran.append(script)
        if script == sampling.QUESTION:
            said = f"MemAvailable: {self.available >> 10} kB\n" + "".join(f"{line}\n" for line in self.kernel)
            return Result(said.encode(), b"", 0)
        return Result(b"", b"", 0)


class MemoryDoors:
    def __init__(self, names: Sequence[str]) -> None:
        self.nodes = {name: MemoryNode(name) for name in names}
        self.held: set[str] = set()

    def jobs(self, node: str) -> MemoryNode:
        return self.nodes[node]

    def transport(self, node: str) -> MemoryNode:
        return self.nodes[node]

    def renew(self, node: str) -> None: ...

    def hold(self, node: str) -> None:
        self.held.add(node)

    def let_go(self, node: str) -> None:
        self.held.discard(node)


def served_on(nodes: Sequence[str], *, story: str = "launch", **spec: Any) -> Plan:
    """A rank on each node, and then a wait that nothing ends."""
    serve = tuple(
        Step(f"serve.{node}", node, f"Rank {rank}", "serve", script="serve", rank=rank)
        for rank, node in enumerate(nodes)
    )
    wait = Step("wait", nodes[0], "Wait", "ready", url="http://127.0.0.1:1/v1/models", within_s=600.0, every_s=600.0)
    return Plan(
        story=story,
        deployment=1,
        revision=1,
        nodes=tuple(nodes),
        stages=(Stage("Serve", "loading", serve), Stage("Verify", "loading", (wait,))),
        spec={"runtime": "docker", **spec},
    )
