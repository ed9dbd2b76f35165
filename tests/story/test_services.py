"""Three services on one Spark, through the API: launched, one killed, only that one launched again, all stopped; and adopted as they
are found."""

from __future__ import annotations

import time

import pytest

from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.remote.jobs import NodeJobs
from apps.runs import lines, queries, services
from apps.runs.models import Run
from apps.runs.working import pool
from apps.watch import looking
from tests.api.conftest import program_of
from tests.story.conftest import HEAD, ended
from tests.story.test_engines import Machines

pytestmark = pytest.mark.django_db(transaction=True)
OURS = {"glm-chat-r0", "glm-embeddings-r0", "glm-reranker-r0"}


def containers(cluster) -> dict[str, str | None]:
    assert cluster.probe().state == "succeeded"
    return {one.name: one.state for one in services.sheets_of([HEAD])[HEAD].containers or ()}


def over_http(cluster) -> Machines:
    return Machines(cluster.lab, program_of("admin"), {HEAD: cluster.head})


def on_node(cluster, command: str) -> None:
    result = pool().get(inventory.endpoint(cluster.head)).run(command, timeout_s=30)
    assert result.ok, result.stderr


def seen_as(deployment: Deployment, state: str, *, looks: int = 8) -> Deployment:
    for _ in range(looks):
        looking.look()
        deployment.refresh_from_db()
        if deployment.state == state:
            return deployment
        time.sleep(0.3)
    raise AssertionError((deployment.state, deployment.evidence))


def smoke_on_demand(cluster, machines: Machines, deployment: Deployment) -> None:
    """Everything that it should answer, and what a test says when the API answers in each of the wrong ways. Nothing of the
    deployment changes by it."""
    at = f"deployments/{deployment.pk}"

    def test(**body: object) -> Run:
        return ended(Run.objects.get(pk=machines.post(f"{at}/test", body, status=202)["run"]), 90)

    good = test(reason="does it answer?")
    assert (good.state, good.reason) == ("succeeded", None), good.evidence
    told = machines.api.get(f"{at}/tests").body["tests"]
    assert (told[0]["run"], told[0]["why"], told[1]["story"]) == (good.pk, "does it answer?", "launch")
    answers = {(one["service"], one["ask"]): one for one in told[0]["answers"]}
    assert list(answers) == [
        ("", "models"), ("", ""), ("", "streamed"), ("", "tools"),
        ("embeddings", "models"), ("embeddings", ""), ("reranker", "models"), ("reranker", ""),
    ]  # fmt: skip
    assert {one["verdict"] for one in answers.values()} == {"passed"}
    streamed = answers["", "streamed"]
    assert streamed["values"]["ttft_s"] > 0 and streamed["values"]["usage"]["completion_tokens"] > 3
    assert '"stream": true' in streamed["request"] and streamed["answer"].startswith("data: ")
    assert answers["", "tools"]["said"] == "It called population_of for Paris."
    assert [one["story"] for one in machines.api.get("runs?limit=1").body["runs"]] == ["smoke"]

    for fault, reason, failing in (
        ("wrong-model", "wrong_model", "models"),
        ("warming-up", "warming_up", "models"),
        ("thinks-only", "thinking_used_budget", ""),
        ("garbled", "garbled_answer", ""),
        ("empty", "smoke_failed", ""),
        ("stream-error", "engine_dead", "streamed"),
    ):
        cluster.lab.fault(HEAD, "api", fault)
        bad = test(services=[""])
        assert (bad.state, bad.reason) == ("failed", reason), (fault, bad.evidence)
        rows = {one["ask"]: one for one in machines.api.get(f"{at}/tests").body["tests"][0]["answers"]}
        assert rows[failing]["verdict"] == "failed" and rows[failing]["reason"] == reason
        assert len(rows) == 4, "a question that failed keeps no other from being asked"
    cluster.lab.clear(HEAD)
    deployment.refresh_from_db()
    assert deployment.state == "serving" and deployment.reason is None, "a test says nothing about the state"
    refused = machines.api.post(f"{at}/test", {"services": ["nobody"]})
    assert (refused.status, refused.body["field"]) == (422, "services")


def measured_on_demand(machines: Machines, deployment: Deployment) -> None:
    """A small benchmark, its result to compare; one that is cancelled keeps what it had; two at a time are refused."""
    at = f"deployments/{deployment.pk}"
    asked = {"levels": [1, 2], "prompt_tokens": 20, "output_tokens": 12, "requests_per_level": 4, "reason": "how fast?"}
    run = ended(Run.objects.get(pk=machines.post(f"{at}/benchmark", asked, status=202)["run"]), 90)
    assert (run.state, run.reason) == ("succeeded", None), (run.evidence, lines.lines(run, limit=100)["lines"])
    (kept,) = machines.api.get(f"benchmarks?deployment={deployment.pk}").body["benchmarks"]
    result = kept["result"]
    assert (kept["run"], kept["revision"], result["source"]) == (run.pk, 1, "measured")
    assert [(one["concurrency"], one["requests"], one["errors"]) for one in result["levels"]] == [(1, 4, 0), (2, 4, 0)]
    assert result["levels"][0]["output_tokens"] == 48 and result["levels"][0]["ttft_s"]["p50"] > 0
    assert result["subject"]["nodes"] == [HEAD] and "GB10" in result["subject"]["hardware"]
    assert result["engine_metrics"]["after"]["vllm:generation_tokens_total"] > 0
    assert machines.api.get(f"benchmarks/compare?ids={kept['id']}").body["results"][0]["id"] == str(kept["id"])

    long = {"levels": [2], "prompt_tokens": 20, "output_tokens": 12, "requests_per_level": 10_000}
    running = Run.objects.get(pk=machines.post(f"{at}/benchmark", long, status=202)["run"])
    until = time.monotonic() + 40
    while not any('"tick"' in one["text"] for one in lines.lines(running, limit=100)["lines"]):
        assert time.monotonic() < until, "no tick came"
        time.sleep(0.3)
    second = machines.api.post(f"{at}/benchmark", asked)
    assert (second.status, second.body["reason"]) == (409, "in_use") and second.body["run"] == running.pk
    machines.post(f"runs/{running.pk}/cancel", {"reason": "enough"}, status=202)
    running = ended(running, 60)
    assert running.state == "cancelled"
    kept = machines.api.get(f"benchmarks?deployment={deployment.pk}").body["benchmarks"][0]
    assert (
        kept["run"] == running.pk
        and "stopped" in kept["result"]["note"]
        and kept["result"]["levels"][0]["requests"] > 0
    )
    refused = machines.api.post(f"{at}/benchmark", {"levels": [0]})
    assert (refused.status, refused.body["field"]) == (422, "levels")


def test_three_services_on_one_node(cluster):
    machines = over_http(cluster)
    asked = {"name": "glm", "recipe": "glm-4.7-flash-stack", "nodes": [HEAD]}
    deployment = Deployment.objects.get(pk=machines.post("deployments", asked, status=201)["id"])
    run = machines.run(deployment.pk, "launch")
    assert (run.state, run.reason) == ("succeeded", None), (run.evidence, lines.lines(run, limit=5000)["lines"][-30:])
    assert [row["state"] for row in queries.service_steps(run)] == ["done", "done", "done"]
    proofs = {name: run.outcome[name] for name in ("smoke", "smoke:embeddings", "smoke:reranker")}
    assert {one["verdict"] for one in proofs.values()} == {"passed"} and not proofs["smoke:reranker"]["warning"]
    ranks = {rank.service: (rank.number, rank.container) for rank in deployment.ranks.all()}
    assert ranks == {
        "": (0, "glm-chat-r0"), "embeddings": (1, "glm-embeddings-r0"), "reranker": (2, "glm-reranker-r0")
    }  # fmt: skip
    assert {line["rank"] for line in lines.lines(run, limit=5000, rank=2)["lines"]} == {2}
    seen_as(deployment, "serving")

    smoke_on_demand(cluster, machines, deployment)
    measured_on_demand(machines, deployment)

    on_node(cluster, "docker kill glm-reranker-r0")
    seen_as(deployment, "degraded")
    assert deployment.reason == "rank_lost" and deployment.evidence.startswith(
        "reranker: glm-reranker-r0 on spark-1a32"
    )
    assert deployment.evidence.endswith("chat and embeddings serve on.")
    told = machines.api.get(f"deployments/{deployment.pk}").body
    states = {row["label"]: row["state"] for row in told["services"]}
    assert [row["endpoint"] or row["tunnel"] for row in told["services"]][2] is None
    assert states == {"chat": "serving", "embeddings": "serving", "reranker": "lost"}
    assert not Run.objects.filter(deployment=deployment, story="stop").exists(), "a dead reranker stops nobody else"

    before = containers(cluster)
    again = machines.run(deployment.pk, "relaunch")
    assert again.state == "succeeded", again.evidence
    assert again.plan["kept"] == ["", "embeddings"] and before["glm-chat-r0"] == "running"
    assert {rank.service: rank.run_id for rank in deployment.ranks.all()} == {
        "": run.pk, "embeddings": run.pk, "reranker": again.pk
    }  # fmt: skip
    deployment.refresh_from_db()
    assert deployment.state == "serving" and {row["state"] for row in queries.service_states(deployment)} == {"serving"}

    stopped = machines.run(deployment.pk, "stop")
    assert stopped.state == "succeeded", stopped.evidence
    assert [stage["name"] for stage in stopped.plan["stages"]] == ["Stop reranker", "Stop embeddings", "Stop chat"]
    deployment.refresh_from_db()
    assert deployment.state == "stopped" and not deployment.ranks.exists()
    assert not OURS & set(containers(cluster))


def test_a_stack_that_units_keep_is_adopted_watched_and_taken_over(cluster):
    """The start scene: three containers behind four units become one deployment of three services, and nothing is touched."""
    before = containers(cluster)
    things = [("container", name) for name in ("vllm_node", "vllm_embeddings", "reranker")]
    machines = over_http(cluster)
    offered = machines.api.get(f"nodes/{cluster.head.pk}/serves").body["serves"]
    assert [(one["kind"], one["name"]) for one in offered] == things
    body = {
        "name": "glm-found",
        "things": [{"kind": kind, "name": name} for kind, name in things],
        "reason": "it is here",
    }
    run = ended(Run.objects.get(pk=machines.post(f"nodes/{cluster.head.pk}/adopt", body, status=202)["run"]), 90)
    assert (run.state, run.reason) == ("succeeded", None), (
        run.evidence,
        [(s.key, s.state, s.note) for s in run.steps.all()],
    )
    deployment = Deployment.objects.get(name="glm-found")
    spec = deployment.revision.spec
    assert [(one.label, one.kind, one.port, one.model_name) for one in spec.each] == [
        ("chat", "chat", 8000, "GLM-4.7-Flash"),
        ("embeddings", "embeddings", 8001, "Qwen3-Embedding-4B"),
        ("reranker", "rerank", 8002, "Qwen3-Reranker-4B"),
    ]
    assert spec.gpu_memory_utilization == 0.55 and spec.tool_call_parser == "glm47"
    assert spec.model_path == "/models/GLM-4.7-Flash" and spec.image == "vllm-node"
    units = {unit for one in deployment.found for unit in one["units"]}
    assert units == {f"vllm-{name}.service" for name in ("cluster", "proxy", "embeddings", "reranker")}
    seen_as(deployment, "serving")
    assert deployment.adopted and {row["state"] for row in queries.service_states(deployment)} == {"serving"}
    assert any(line["rank"] == 1 for line in lines.lines(run, limit=5000)["lines"])
    for story in ("launch", "relaunch"):
        with pytest.raises(Refused) as no:
            cluster.start(deployment, story=story)
        assert no.value.reason == "in_use" and "Take it over" in no.value.remedy
    assert containers(cluster) == before, "adopting changes nothing"

    on_node(cluster, "sudo -n systemctl stop vllm-reranker.service")
    seen_as(deployment, "degraded")
    assert deployment.evidence.startswith("reranker: reranker on spark-1a32 gone") and not deployment.runs.filter(
        story="stop"
    )
    on_node(cluster, "sudo -n systemctl start vllm-reranker.service")
    seen_as(deployment, "serving", looks=30)

    assert machines.api.get(f"deployments/{deployment.pk}").body["adopted"]
    machines.post(f"deployments/{deployment.pk}/take-over", {"reason": "ours from now on"})
    deployment.refresh_from_db()
    assert not deployment.adopted and containers(cluster) == before
    stopped = machines.run(deployment.pk, "stop")
    assert stopped.state == "succeeded", stopped.evidence
    deployment.refresh_from_db()
    assert deployment.state == "stopped" and deployment.found == []
    assert "running" not in {containers(cluster).get(name) for _, name in things}
    jobs = [step.job_id for step in run.steps.filter(kind="serve")]
    looks = NodeJobs(pool().get(inventory.endpoint(cluster.head))).look([(job, 0) for job in jobs], limit=0)
    assert len(jobs) == 3 and "running" not in {one.state for one in looks}, "nobody follows those logs any more"
