"""The main job on pretend Sparks, and what goes wrong with it. Real SSH, real jump host, the product's own services."""

from __future__ import annotations

import hashlib
import time

import pytest

from apps.audit.models import Entry
from apps.deployments.models import FitSample
from apps.diagnosis.masking import mask
from apps.diagnosis.reasons import REASONS
from apps.diagnosis.refusal import Refused
from apps.runs import lines, queries, restoring, services
from apps.runs.models import Chunk, Run
from tests.story.conftest import ADMIN, HEAD, OPERATOR, SECOND, ended

pytestmark = pytest.mark.django_db(transaction=True)


def text_of(run: Run) -> str:
    return "\n".join(f"{line['node']} {line['step']} {line['text']}" for line in lines.lines(run, limit=5000)["lines"])


def watched(run: Run, seconds: float = 120.0) -> tuple[Run, list[float], list[tuple[float, object]]]:
    """The run at its end, the overall progress as it grew, and the estimates with the moment each was made."""
    until, grown, estimates = time.monotonic() + seconds, [], []
    while time.monotonic() < until:
        run = Run.objects.get(pk=run.pk)
        if run.phase == "loading" and not run.ended:
            grown.append(queries.overall(run))
            estimates.append((time.time(), queries.eta(run), queries.rank_progress(run)))
        if run.ended:
            return run, grown, estimates
        time.sleep(0.2)
    raise AssertionError(text_of(run))


def test_the_story_with_a_cut_during_the_load(cluster):
    """The head's SSH, which is also the way to the second node, is cut for 5 s: no byte is lost or doubled."""
    deployment = cluster.deployment()
    cluster.lab.set(shard_s=60)
    run = cluster.start(deployment)
    until = time.monotonic() + 60
    while (
        not any(row["done"] for row in queries.rank_progress(Run.objects.get(pk=run.pk))) and time.monotonic() < until
    ):
        time.sleep(0.1)
    cluster.lab.fault(HEAD, "cut", 5)
    run = ended(run, 120)
    assert (run.state, run.reason) == ("succeeded", None), (run.evidence, text_of(run))
    text = text_of(run)
    assert "no sight of" in text and "answers again" in text
    assert "0.0/2.0 GPU: 192.168.200.12, 192.168.200.13" in text
    for step in run.steps.filter(job_id__gt=""):
        raw = cluster.job_file(step.node.name, step.job_id).read_bytes()
        stored = b"".join(
            bytes(c.data) for c in Chunk.objects.filter(stream__step=step, stream__name="output").order_by("offset")
        )
        kept = sum(c.length for c in Chunk.objects.filter(stream__step=step, stream__name="output"))
        assert hashlib.sha256(stored).hexdigest() == hashlib.sha256(mask(raw[:kept])).hexdigest(), step.key
        assert len(raw) - kept < 400, (step.key, len(raw), kept)  # what a serving engine printed after the run ended
    deployment.refresh_from_db()
    assert deployment.state == "serving" and run.outcome["smoke"]["verdict"] == "passed"
    second = lines.lines(run, limit=5000, rank=1)["lines"]
    assert any("7/7" in line["text"] for line in second) and {line["rank"] for line in second} == {1}
    assert run.facts["transport"] and run.facts["kv_tokens"]
    learned = FitSample.objects.get(run_id=run.pk)
    assert learned.weights_bytes and learned.predicted_weights_bytes and learned.tokens == run.facts["kv_tokens"]
    assert learned.weights_bytes / learned.predicted_weights_bytes == pytest.approx(1.012, abs=0.02)
    again = services.preview(ADMIN, deployment, story="relaunch").fit
    assert again and any("Corrected by 1 launch" in one for one in again.remarks), again


@pytest.mark.parametrize(("shards", "shard_s", "order"), [(7, 120, "01"), (39, 18, "10"), (161, 5, "01")])
def test_progress_follows_the_log_and_never_falls(cluster, shards, shard_s, order):
    cluster.lab.set(shards=shards, shard_s=shard_s, rank_order=order)
    cluster.probe()
    run, grown, estimates = watched(cluster.start(cluster.deployment()))
    assert run.state == "succeeded", (run.evidence, text_of(run))
    assert grown == sorted(grown) and len(set(grown)) >= min(shards, 8)
    assert {row["total"] for row in queries.rank_progress(run)} == {shards}
    assert estimates[0][1].basis == "none yet"
    loaded_at = _loaded_at(run, shards)
    judged = [
        (moment, estimate.seconds)
        for moment, estimate, ranks in estimates
        if moment < loaded_at - 1
        and estimate.seconds is not None
        and min(row["done"] or 0 for row in ranks) > shards / 3
    ]
    assert judged, "no estimate after the first third"
    whole = loaded_at - run.phases["loading"]["started"]
    # On a busy machine the pretend load itself is not steady and our looks come late: nine in ten must be within 20 %.
    errors = sorted(abs(moment + seconds - loaded_at) for moment, seconds in judged)
    assert errors[int(0.9 * (len(errors) - 1))] < max(0.2 * whole, 1.5), (errors, whole)


def _loaded_at(run: Run, shards: int) -> float:
    history = [
        points for step in run.steps.filter(kind="serve") for points in (step.progress.get("history") or {}).values()
    ]
    return max(next(point[0] for point in points if point[1] == shards) for points in history)


def test_a_slow_rank_is_named(cluster):
    cluster.lab.set(shards=39, shard_s=18)
    cluster.lab.fault(SECOND, "slow-rank", 2)
    cluster.probe()
    run, _, estimates = watched(cluster.start(cluster.deployment()))
    assert run.state == "succeeded", (run.evidence, text_of(run))
    assert 1 in {estimate.slow_rank for _, estimate, _ in estimates}
    assert 0 not in {estimate.slow_rank for _, estimate, _ in estimates}


@pytest.mark.parametrize(("what", "reason"), [("image", "image_missing"), ("model", "model_path_missing")])
def test_preflight_refuses_by_name_what_was_removed_since_the_plan(cluster, what, reason):
    deployment = cluster.deployment()
    plan_of = services.preview(ADMIN, deployment)
    assert not [p for p in plan_of.problems if p.severity == "stop"], plan_of.problems
    if what == "image":
        cluster.lab.remove_image(SECOND, "hellohal2064/vllm-qwen3.5-gb10")
    else:
        folder = cluster.lab.root(SECOND) / "models" / "Qwen3.5-122B-A10B-FP8"
        folder.rename(folder.with_name("gone"))
    run = ended(cluster.start(deployment))
    assert (run.state, run.reason) == ("failed", reason), (run.evidence, text_of(run))
    assert SECOND in run.evidence
    cluster.probe()
    with pytest.raises(Refused) as no:
        cluster.start(deployment)
    assert no.value.reason == reason


@pytest.mark.parametrize(
    ("node", "fault", "value", "reasons"),
    [
        (HEAD, "engine-dies", "loading", {"exited", "oom_gpu", "rank_lost"}),
        (HEAD, "oom", "", {"oom_host"}),
        (SECOND, "ray-no-join", "", {"ray_join_timeout"}),
        (SECOND, "disk-full", "", {"disk_full"}),
    ],
)
def test_faults_are_named(cluster, monkeypatch, node, fault, value, reasons):
    deployment = cluster.deployment()
    cluster.lab.fault(node, fault, value)
    run = ended(cluster.start(deployment), 200)
    assert run.state == "failed" and run.reason in reasons, (run.reason, run.evidence, text_of(run))
    if fault == "oom":  # the kernel's own words, beside what the engine's end was called
        assert ("oom_host", HEAD) in {(one["name"], one["node"]) for one in run.outcome["kernel"]}, run.outcome
        assert len(run.outcome["memory"][HEAD]) > 1
    deployment.refresh_from_db()
    second = Run.objects.filter(second_try_of=run).first()
    assert (second is not None) == (REASONS[run.reason].retries == 1), run.outcome
    if second is None:
        assert (deployment.state, deployment.reason) == ("failed", run.reason)
    else:
        services.cancel(ADMIN, second)
        ended(second)


def test_an_operator_may_clear_again_only_what_an_editor_agreed_to(cluster):
    deployment = cluster.deployment()
    with pytest.raises(Refused) as no:
        cluster.start(deployment, actor=OPERATOR)
    assert no.value.reason == "consent_needed" and no.value.field == "clear"
    run = ended(cluster.start(deployment))
    assert run.state == "succeeded", (run.evidence, text_of(run))
    cluster.lab.reboot()
    _wait_for_old_stack(cluster)
    again = ended(cluster.start(deployment, story="relaunch", actor=OPERATOR), 120)
    assert again.state == "succeeded", (again.evidence, text_of(again))
    _restore_previous_services(cluster, deployment)


def _restore_previous_services(cluster, deployment) -> None:
    """Two runs have cleared the stack by now. It is refused while ours serves; then it brings all of it back, once."""
    nodes = [HEAD, SECOND]
    with pytest.raises(Refused) as no:
        restoring.start(ADMIN, nodes, digest=restoring.preview(nodes).digest, reason="back")
    assert (no.value.reason, no.value.extra["deployment"]) == ("other_deployment", deployment.pk)
    stopped = ended(cluster.start(deployment, story="stop"))
    assert stopped.state == "succeeded", (stopped.evidence, text_of(stopped))
    plan = restoring.preview(nodes)
    back = restoring.start(ADMIN, nodes, digest=plan.digest, reason="back to GLM", deployment=deployment)
    back = ended(back, 120)
    assert back.state == "succeeded", (back.evidence, text_of(back))
    assert Entry.objects.filter(action="deployment:restored", object_id=str(deployment.pk), outcome="done").exists()
    _wait_for_old_stack(cluster)
    sheet = services.sheets_of([HEAD])[HEAD]
    old = [one for one in sheet.units or () if one.name.startswith("vllm-")]
    assert len(old) == 4 and {(one.active, one.enabled) for one in old} == {("active", "enabled")}
    with pytest.raises(Refused) as nothing:
        restoring.preview(nodes)
    assert nothing.value.reason == "nothing_recorded"


def _wait_for_old_stack(cluster) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(1)
        run = cluster.probe()
        sheet = services.sheets_of([HEAD]).get(HEAD)
        running = {c.name for c in (sheet.containers or ()) if c.state == "running"} if sheet else set()
        free = sheet.memory.available_bytes if sheet and sheet.memory else None
        loaded = free is not None and free < 40 << 30  # else the plan is made while they still take their memory
        if run.state == "succeeded" and loaded and {"vllm_node", "vllm_embeddings", "reranker"} <= running:
            return
    raise AssertionError("the old stack did not come back")
