"""The verdict beneath the fields of a new deployment, and what it says where the fields can't be read."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.test import Client

from apps.deployments.models import Deployment
from tests.plan.test_fit import LLAMA_70B
from tests.web.seed import Seeded

FIELDS = {
    "name": "",
    "nodes": ["spark-1a32", "spark-5be3"],
    "model": "openai/gpt-oss-120b",
    "model_path": "",
    "image": "vllm",
    "port": "30000",
    "tensor_parallel": "2",
    "gpu_memory_utilization": "0.85",
    "max_model_len": "131072",
    "engine": "vllm",
    "runtime": "docker",
    "cluster": "ray",
}


def ask(client: Client, **changes: object) -> str:
    answer = client.post("/deployments/fit", {**FIELDS, **changes}, HTTP_HX_REQUEST="true")
    assert answer.status_code == 200, answer.content[:300]
    return answer.content.decode()


def test_the_form_asks_as_it_is_filled_in(seeded: Seeded, signed_in: Callable[[str], Client]) -> None:
    page = signed_in("editor").get("/deployments/new").content.decode()
    assert 'hx-post="/deployments/fit"' in page and 'name="config"' in page
    said = ask(signed_in("editor"))
    assert "Will it fit?" in said and "spark-5be3" in said and "catalogue of known models" in said
    assert 'class="seg-weights"' in said and "131,072" in said


def test_more_than_there_is_is_drawn_behind_the_end(seeded: Seeded, signed_in: Callable[[str], Client]) -> None:
    said = ask(signed_in("editor"), model="deepseek-ai/DeepSeek-V3")
    assert "too much" in said and "seg-over" in said and "seg-end" in said and "more than there is" in said
    assert "such nodes would hold it" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": []}, "Choose a node"),
        ({"tensor_parallel": "two"}, "is not a whole number"),
        ({"model": ""}, "model"),
        ({"config": "{"}, "It is no JSON at line 1"),
        ({"config": "[]"}, "It is no JSON object"),
        ({"config": "[" * 100_000}, "nested too deeply"),
        ({"config": '{"num_hidden_layers": 3, "a": "' + "x" * (1 << 20) + '"}'}, "larger than 1 MiB"),
        ({"nodes": ["<script>alert(1)</script>"]}, "There is no node called &lt;script&gt;"),
    ],
)
def test_what_can_not_be_read_is_said(
    seeded: Seeded, signed_in: Callable[[str], Client], changes: dict[str, object], words: str
) -> None:
    said = ask(signed_in("editor"), **changes)
    assert words in said and "<script>" not in said, said[:500]


def test_a_config_counts(seeded: Seeded, signed_in: Callable[[str], Client]) -> None:
    whole = {**LLAMA_70B, "vocab_size": 128256, "intermediate_size": 28672, "tie_word_embeddings": False}
    assert "unknown" in ask(signed_in("editor"), model="my/own")
    assert "worked out from the config.json that was given" in ask(
        signed_in("editor"), model="my/own", config=json.dumps(whole)
    )


def test_a_viewer_is_refused(seeded: Seeded, signed_in: Callable[[str], Client]) -> None:
    assert signed_in("viewer").post("/deployments/fit", FIELDS).status_code == 403
    assert signed_in("editor").get("/deployments/fit").status_code == 405


def test_an_engine_without_ranks_is_asked_about_without_ray(seeded: Seeded, signed_in: Callable[[str], Client]) -> None:
    """The form shows no field for ranks then, so none is posted; it must not become Ray."""
    own = {"engine": "command", "runtime": "process", "nodes": ["spark-1a32"], "model": "any", "port": "31000"}
    form = {**own, "name": "by-command", "arguments": "/opt/acme/bin/server\n--port\n31000", "cluster": ""}
    said = ask(signed_in("editor"), **form)
    assert "Will it fit?" in said and "Ray" not in said
    answer = signed_in("editor").post("/deployments/new", form)
    assert answer.status_code == 302, answer.content.decode()
    assert Deployment.objects.get(name="by-command").revision.spec.cluster == "single"
