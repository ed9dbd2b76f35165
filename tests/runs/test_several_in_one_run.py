"""A launch of several services, and an adoption: a worker killed at any instant, and a service that does not come up."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from apps.plan.step import Plan, Step
from apps.plan.stories import adopt, launch
from apps.remote.transport import HttpAnswer, JobLook, Result
from apps.runs import executor
from apps.runs.executor import Executor
from tests.plan.sheets import GIVEN, pair
from tests.plan.test_together import NODE, three
from tests.runs.memory import MemoryDoors, MemoryJournal, MemoryNode

FOUND = [
    {"node": NODE, "kind": "container", "name": name, "service": service, "answers": True}
    for name, service in (("vllm_node", ""), ("vllm_embeddings", "embeddings"), ("reranker", "reranker"))
]
ANSWERS: dict[str, Any] = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": "Paris."}, "finish_reason": "stop"}]},
    "embeddings": {"data": [{"embedding": [1.0, 0.0]}, {"embedding": [0.0, 1.0]}]},
    "rerank": {"results": [{"index": 0, "relevance_score": 0.1}, {"index": 1, "relevance_score": 0.9}]},
}


class Killed(BaseException):
    """kill -9 of the worker: nothing is written after it."""


class Mortal(MemoryJournal):
    """Its worker is killed as it is about to write for the n-th time, or just after it has written."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.left, self.after, self.written = -1, False, 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("begin", "finish", "progress", "output", "remember", "outcome", "end"):
            return found

        def write(*args: Any, **named: Any) -> Any:
            self.written += 1
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Killed
            answer = found(*args, **named)
            if self.left == 0:
                raise Killed
            return answer

        return write


class Site:
    """One node whose engines run on, answered for service by service; `fails` is a service whose proof goes wrong."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str | None = None) -> None:
        self.fails, self.started, self.proofs = fails, list[str](), list[str]()
        monkeypatch.setattr(executor, "ROUND_S", 0.0005)
        monkeypatch.setattr(executor, "DEAD_LOOKS", 1)
        monkeypatch.setattr(Executor, "_look_at_all", lambda _: None)
        monkeypatch.setattr(Executor, "_killed_for_memory", lambda _: None)
        monkeypatch.setattr(Executor, "_ask", self.asked)
        monkeypatch.setattr(MemoryNode, "look", self.look)
        monkeypatch.setattr(MemoryNode, "start", self.start)

    def asked(self, node: str, step: Step) -> Any:
        if step.kind == "probe":
            return pair(busy=False)[node]
        if step.kind == "wait":
            return Result(b"running 0\n", b"", 0)
        if step.kind == "ready":
            return HttpAnswer(200, {}, json.dumps({"object": "list", "data": [{"id": step.model}]}).encode())
        kind = str(step.gate.get("kind", "chat"))
        self.proofs.append(kind)
        body = {"error": {"message": "broken"}} if step.service == self.fails else ANSWERS[kind]
        return HttpAnswer(500 if step.service == self.fails else 200, {}, json.dumps(body).encode(), seconds=0.1)

    def start(self, job_id: str, script: str, **_: Any) -> JobLook:
        """As on a node: what is there already is looked at, not started again."""
        if job_id in self.started:
            return self.look([(job_id, 0)])[0]
        self.started.append(job_id)
        return JobLook(job_id, "running", pid=7)

    def look(self, asked: Sequence[tuple[str, int]], *, limit: int = 0) -> list[JobLook]:
        """Ordinary jobs have ended well, engines run on."""
        kinds = {f"abc-{number}": step.kind for number, step in enumerate(self.steps)}
        codes = [0 if kinds[job] == "job" else None for job, _ in asked]
        return [
            JobLook(job, "running" if code is None else "exited", b"", offset, code, pid=7)
            for (job, offset), code in zip(asked, codes, strict=True)
        ]

    def works(self, plan: Plan, journal: MemoryJournal) -> None:
        """One worker, until the run's end or its own."""
        self.steps = [step for stage in plan.stages for step in stage.steps]
        made = Executor(plan, journal, MemoryDoors(plan.nodes), run_id=1, code="abc", environment_of=_nothing)  # type: ignore[arg-type]
        try:
            assert made.work(time.monotonic() + 20), journal.steps
        finally:
            made.close()


def _nothing(_: Step) -> Mapping[str, str]:
    return {}


def quick(plan: Plan) -> Plan:
    """What is started and asked, at once; what is done to the node before that has tests of its own."""
    stages = tuple(
        replace(stage, steps=tuple(replace(step, every_s=0.0) for step in stage.steps))
        for stage in plan.stages
        if stage.phase != "clearing" and not (stage.phase == "preflight" and plan.story != "adopt")
    )
    return replace(plan, stages=stages)


PLANS = {
    "launch": lambda: quick(launch(three(), pair(busy=False), given=GIVEN)),
    "adopt": lambda: quick(adopt(three(), FOUND, given=GIVEN)),
}


@pytest.mark.parametrize("story", PLANS)
def test_whenever_the_worker_is_killed_the_next_one_ends_the_run_and_starts_nothing_twice(
    story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(monkeypatch)
    plan = PLANS[story]()
    whole = Mortal(plan)
    site.works(plan, whole)
    assert whole.ends == [("succeeded", None, "")] and whole.written > 20, whole.steps
    jobs = list(site.started)
    assert len(jobs) == len(set(jobs)) == sum(step.kind in ("job", "serve") for step in site.steps)
    for after in (False, True):
        for number in range(1, whole.written + 1):
            site.started.clear()
            journal = Mortal(plan)
            journal.left, journal.after = number, after
            with pytest.raises(Killed):
                site.works(plan, journal)
            if not journal.ends:
                site.works(plan, journal)
            assert journal.ends == [("succeeded", None, "")], (number, after, journal.steps)
            assert site.started == jobs, (number, after)
            assert {one["state"] for one in journal.steps.values()} == {"succeeded"}
            proofs = {"smoke", "smoke:embeddings", "smoke:reranker"} if story == "launch" else set()
            passed = {name for name, one in journal.outcomes.items() if one["verdict"] == "passed"}
            assert {name for name in passed if not name.startswith("asked:")} == proofs


@pytest.mark.parametrize(
    ("policy", "fails", "said", "left"),
    [
        ("stop", "", "chat: ", None),
        ("stop", "embeddings", " chat had come up and was stopped with it.", None),
        ("stop", "reranker", " chat and embeddings had come up and were stopped with it.", None),
        ("report", "embeddings", " chat had come up and is left alone.", [""]),
        ("report", "reranker", " chat and embeddings had come up and are left alone.", ["", "embeddings"]),
    ],
)
def test_a_service_that_does_not_come_up_is_named_and_so_is_what_became_of_the_others(
    policy: str, fails: str, said: str, left: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(monkeypatch, fails)
    plan = PLANS["launch"]()
    plan = replace(plan, spec={**plan.spec, "on_rank_lost": policy})
    journal = MemoryJournal(plan)
    cleaned: list[str] = []
    monkeypatch.setattr(MemoryNode, "cancel", partial(_cancelled, cleaned))
    site.works(plan, journal)
    ((state, reason, evidence),) = journal.ends
    assert (state, reason) == ("failed", "smoke_failed")
    assert evidence.startswith(f"{fails or 'chat'}: ") and said in evidence, evidence
    assert ("had come up" in evidence) == bool(fails)
    assert journal.outcomes.get("left") == left
    assert set(cleaned) == (set(site.started) if policy == "stop" else set())


def _cancelled(cleaned: list[str], job_id: str, **_: Any) -> JobLook:
    cleaned.append(job_id)
    return JobLook(job_id, "exited", exit_code=143)
