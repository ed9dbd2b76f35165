"""Will it fit, asked without a deployment: by whom, with what, what is refused, and what launches teach."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from apps.deployments import learning
from apps.deployments.models import FitSample
from apps.runs import services, settling
from apps.runs.fitting import LARGEST_CONFIG
from apps.runs.models import Run
from tests.api.conftest import CONSENT, EDITOR, Program, Story
from tests.api.test_problems import is_problem
from tests.api.test_runs import digest_of, path_of
from tests.plan.test_fit import LLAMA_70B

GIB = 1 << 30
SPEC = {"model": "openai/gpt-oss-120b", "tensor_parallel": 2, "image": "vllm", "cluster": "ray"}
SPEC |= {"gpu_memory_utilization": 0.85, "max_model_len": 131072}
BODY: dict[str, Any] = {"nodes": ["spark-1a32", "spark-5be3"], "spec": SPEC}


def test_a_known_model_is_answered_out_of_the_catalogue(program: Callable[..., Program], story: Story) -> None:
    answer = program("operator").post("fit", BODY)
    assert answer.status == 200, answer.body
    fit = answer.body
    assert fit["verdict"] == "fits_after_clearing" and fit["length"] == 131072 and fit["sequences"] > 10
    assert any("catalogue" in one for one in fit["remarks"])
    first = fit["bars"][0]
    assert first["over_bytes"] == sum(first["segments"].values()) - first["total_bytes"] > 0, "others hold it still"
    assert first["segments"]["weights"] == pytest.approx(65_248_815_744 / 2, rel=0.02) and first["gpu"] is None


def test_a_viewer_may_not_ask(program: Callable[..., Program], story: Story) -> None:
    assert program("viewer").post("fit", BODY).status == 403
    assert program("").post("fit", BODY).status == 401


def test_a_config_that_is_given_counts(program: Callable[..., Program], story: Story) -> None:
    ask = program("operator")
    mine = {**BODY, "spec": {**SPEC, "model": "my/own"}}
    silent = ask.post("fit", mine).body
    assert silent["verdict"] == "unknown" and "no config.json was given" in silent["sentence"]
    whole = {**LLAMA_70B, "vocab_size": 128256, "intermediate_size": 28672, "tie_word_embeddings": False}
    given = ask.post("fit", {**mine, "config": whole}).body
    assert given["bars"][0]["segments"]["weights"] == pytest.approx(141_107_412_992 / 2, rel=0.01)
    sized = ask.post("fit", {**mine, "config": whole, "weights_bytes": 40 * GIB}).body
    assert sized["bars"][0]["segments"]["weights"] == pytest.approx(20 * GIB, rel=0.01)
    plan = ask.post(f"deployments/{story.deployment.pk}/plan", {"config": whole})
    assert plan.status == 200, "files on the nodes beat it, but it is taken"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"config": {"model_type": "llama"}}, "config"),
        ({"config": {"num_hidden_layers": 10**12}}, "config"),
        ({"config": {"num_hidden_layers": 2, "x": "y" * (LARGEST_CONFIG + 1)}}, "config"),
        ({"weights_bytes": -1}, "weights_bytes"),
        ({"weights_bytes": 1 << 60}, "weights_bytes"),
        ({"deployment": 4711}, "deployment"),
        ({"recipe": "none such"}, "recipe"),
        ({"nodes": ["nobody"]}, "nodes"),
        ({"nodes": []}, "nodes"),
        ({"spec": {**SPEC, "tensor_parallel": 0}}, "spec.tensor_parallel"),
        ({"spec": {**SPEC, "engine": "abacus"}}, "spec.engine"),
    ],
)
def test_what_is_wrong_is_named(
    program: Callable[..., Program], story: Story, more: dict[str, Any], field: str
) -> None:
    answer = program("operator").post("fit", {**BODY, **more})
    is_problem(answer, 422)
    assert answer.body["field"] == field and answer.body["remedy"], answer.body


def test_a_revision_is_asked_about_with_what_it_changes(program: Callable[..., Program], story: Story) -> None:
    asked = {"deployment": story.deployment.pk, "nodes": ["spark-1a32", "spark-5be3"], "spec": {"max_model_len": 65536}}
    assert program("operator").post("fit", asked).body["length"] == 65536


def launched(program: Program, story: Story) -> Run:
    body = {"digest": digest_of(program, story, clear=CONSENT), "reason": "a test", "clear": CONSENT}
    return Run.objects.get(pk=program.post(path_of(story, "launch"), body).body["run"])


def test_a_launch_is_remembered_and_corrects_the_next(program: Callable[..., Program], story: Story) -> None:
    ask = program("editor")
    run = launched(ask, story)
    before = run.plan["fit"]
    weights = before["predicted"]["weights"] * 1.02 / GIB
    cache = before["predicted"]["claim"] / GIB - weights - 5.4
    Run.objects.filter(pk=run.pk).update(facts={"model_gib": weights, "kv_gib": cache, "kv_tokens": 3_000_000})
    with transaction.atomic():
        settling.finish(Run.objects.get(pk=run.pk), "succeeded")
    sample = FitSample.objects.get()
    assert (sample.run_id, sample.model, sample.engine) == (run.pk, "Qwen/Qwen3.5-122B-A10B-FP8", "vllm")
    assert sample.deployment == story.deployment and sample.nodes == ["spark-1a32", "spark-5be3"]
    after = services.preview(EDITOR, story.deployment, story="launch").fit
    assert after and after.bars[0].segments[1][1] == pytest.approx(weights * GIB, rel=1e-6)
    assert dict(after.bars[0].segments)["graphs"] == pytest.approx(5.4 * GIB, rel=1e-6)
    assert any("Corrected by 1 launch" in one for one in after.remarks)
    assert json.dumps(before["predicted"]["weights"]) == json.dumps(sample.predicted_weights_bytes)


def test_a_run_that_said_nothing_teaches_nothing(program: Callable[..., Program], story: Story) -> None:
    run = launched(program("editor"), story)
    with transaction.atomic():
        settling.finish(run, "failed", reason="bad_args")
    plan, said = run.plan, {"model_gib": 60.0, "kv_gib": 40.0}
    assert learning.remember(run.pk, story.deployment, {**plan, "fit": None}, said) is None
    assert learning.remember(run.pk, story.deployment, plan, {"model_gib": "much"}) is None
    several = {**plan, "spec": {**plan["spec"], "services": [{}]}}
    assert learning.remember(run.pk, story.deployment, several, said) is None, "whose figures these are is not known"
    assert not FitSample.objects.exists()


def test_only_the_newest_are_kept(program: Callable[..., Program], story: Story) -> None:
    plan = launched(program("editor"), story).plan
    for run in range(1000, 1000 + learning.KEPT + 3):
        learning.remember(run, story.deployment, plan, {"model_gib": 56.0, "kv_gib": 40.0})
        learning.remember(run, story.deployment, plan, {"model_gib": 56.5, "kv_gib": 40.0})
    assert FitSample.objects.count() == learning.KEPT
    assert FitSample.objects.first().run_id == 1000 + learning.KEPT + 2  # type: ignore[union-attr]
    assert len(learning.measured(story.deployment.revision.spec)) == 32
