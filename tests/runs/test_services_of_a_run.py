"""Several services in one run: proofs by kind, phases that are entered again, and what a deployment is when only some came up."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.deployments import services as deployments
from apps.deployments.state import Attempt, compute
from apps.inventory import services as inventory
from apps.plan.step import Plan, Stage, Step
from apps.remote.transport import HttpAnswer
from apps.runs import phases, queries, services, serving, settling
from apps.runs.executor import Executor
from apps.runs.models import Run
from apps.runs.recorder import Recorder
from tests.plan.sheets import pair
from tests.plan.test_together import NODE, served, three
from tests.runs.memory import MemoryDoors, MemoryJournal
from tests.web import seed
from tests.web.seed import EDITOR

HOST = "http://127.0.0.1:8002"


def asked(kind: str, answers: dict[str, tuple[int, Any]]) -> tuple[MemoryJournal, list[str]]:
    """Plays the proof of one service of `kind` against these answers by path; the journal and the paths that were asked."""
    urls = [f"{HOST}{path}" for path in ("/v1/rerank", "/rerank", "/score")]
    step = Step(
        "verify.r.smoke.n", "n", "One real ranking", "smoke", url=urls[0], model="m", every_s=0.0, service="r",
        gate={"kind": kind, "urls": urls[1:]},
    )  # fmt: skip
    plan = Plan(
        "launch", 1, 1, ("n",), (Stage("r: Verify", "verifying", (step,)),), spec={"services": [{"service": "r"}]}
    )
    journal, paths = MemoryJournal(plan), []
    made = Executor(plan, journal, MemoryDoors(["n"]), run_id=1, code="abc", environment_of=lambda _: {})  # type: ignore[arg-type]
    journal.begin(step.key)
    for _ in range(12):
        if journal.state(step.key) != "running":
            break
        path = made._proof_url(step).removeprefix(HOST)
        paths.append(path)
        status, body = answers.get(path, (404, {"detail": "Not Found"}))
        made._judge_smoke(step, HttpAnswer(status=status, headers={}, body=json.dumps(body).encode(), seconds=0.1))
    made.close()
    return journal, paths


def test_a_ranking_is_asked_for_where_it_is_answered() -> None:
    rows = {"data": [{"index": 0, "score": 0.1}, {"index": 1, "score": 0.9}]}
    journal, paths = asked("rerank", {"/score": (200, rows)})
    assert paths == ["/v1/rerank", "/rerank", "/score"] and journal.state("verify.r.smoke.n") == "succeeded"


def test_what_no_path_answers_fails_with_what_to_start_it_with() -> None:
    journal, paths = asked("rerank", {})
    assert paths[:3] == ["/v1/rerank", "/rerank", "/score"] and set(paths[3:]) == {"/score"}
    assert journal.reason_of("verify.r.smoke.n")[0] == "smoke_failed"
    assert "--runner pooling" in journal.reason_of("verify.r.smoke.n")[1]


def test_phases_that_every_service_enters_add_up() -> None:
    times = phases.entered({}, "loading", was=None, now=100.0)
    times = phases.entered(times, "verifying", was="loading", now=130.0)
    times = phases.entered(times, "loading", was="verifying", now=140.0)
    assert phases.seconds(times["loading"], now=150.0) == 40.0 and phases.began(times["loading"]) == 140.0
    times = phases.left(times, "loading", now=160.0)
    assert phases.seconds(times["loading"], now=time.time()) == 50.0 and times["loading"]["started"] == 100.0
    assert phases.seconds({"started": 1.0, "ended": 4.0}, now=99.0) == 3.0  # of a run before there were several


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_relaunch_of_one_service_that_ends_badly_leaves_the_others_serving(state: str) -> None:
    attempt = Attempt("relaunch", state, "loading", "oom_gpu", "CUDA out of memory", kept=("chat", "embeddings"))
    found = compute(attempt, {})
    assert (found.state, found.reason) == ("degraded", "oom_gpu")
    assert found.evidence == "chat and embeddings serve on. CUDA out of memory"
    seen = {"state": "lost", "reason": "rebooted", "evidence": "rebooted"}
    assert compute(attempt, seen).state == "lost", "what the watch saw since then counts"
    assert compute(Attempt("relaunch", state, None, "oom_gpu"), {}).state in ("failed", "stopped")


@pytest.mark.django_db
def test_what_came_up_and_is_left_is_watched_and_the_second_try_starts_the_missing_one_alone() -> None:
    node = seed.node(NODE, "10.1.230.180", sheet=pair(busy=False)[NODE])
    body = {name: value for name, value in three().to_json().items() if name not in ("name", "nodes", "on_rank_lost")}
    deployment = deployments.create(EDITOR, name="glm", body=body, nodes=[NODE], on_rank_lost="report")
    plan = services.preview(EDITOR, deployment)
    run = services.start(EDITOR, deployment, story="launch", digest=plan.digest, reason="a test")
    Run.objects.filter(pk=run.pk).update(
        state="running", lease_token="t", lease_until=timezone.now() + timedelta(hours=1)
    )
    run.refresh_from_db()

    labels = {"sparkweb.deployment": str(deployment.pk), "sparkweb.revision": "1"}
    left = served("reranker")[NODE]
    ours = tuple(replace(one, labels={**one.labels, **labels}) for one in left.containers or ())
    inventory.store_sheet(node, replace(left, containers=ours, taken_at=time.time()))
    recorder = Recorder(run, "t")
    recorder.outcome(left=["", "embeddings"])
    evidence = "reranker: no answer. chat and embeddings had come up and are left alone."
    recorder.end("failed", reason="smoke_failed", evidence=evidence)

    run.refresh_from_db()
    assert (run.state, run.evidence, run in serving.serving()) == ("failed", evidence, False), "nothing printed yet"
    assert {rank.service for rank in deployment.ranks.all()} == {"", "embeddings", "reranker"}
    again = run.second_try
    assert again.plan["kept"] == ["", "embeddings"]
    assert {
        step["service"] for stage in again.plan["stages"] for step in stage["steps"] if step["kind"] == "serve"
    } == {"reranker"}
    settling.finish(again, "failed", reason="smoke_failed", evidence="reranker: no answer.")
    deployment.refresh_from_db()
    assert (deployment.state, deployment.reason) == ("degraded", "smoke_failed")
    assert [row["state"] for row in queries.service_states(deployment)] == ["serving", "serving", "lost"]
