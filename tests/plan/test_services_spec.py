"""Several services in one spec: how they are read, and what is nonsense between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apps.plan.spec import Spec, validate

BODY: dict[str, Any] = {
    "name": "glm",
    "nodes": ["spark-1", "spark-2"],
    "model": "zai-org/GLM-4.7-Flash",
    "model_path": "/models/glm",
    "image": "vllm-node",
    "cluster": "single",
    "port": 8000,
    "on_rank_lost": "report",
    "services": [
        {
            "service": "embeddings",
            "kind": "embeddings",
            "model": "Qwen/Qwen3-Embedding-0.6B",
            "model_path": "",
            "image": "vllm-node",
            "cluster": "single",
            "port": 8001,
        },
        {
            "service": "reranker",
            "kind": "rerank",
            "model": "Qwen/Qwen3-Reranker-0.6B",
            "model_path": "",
            "image": "vllm-node",
            "cluster": "single",
            "port": 8002,
            "nodes": ["spark-2"],
        },
    ],
}


def of(**changes: Any) -> Spec:
    return Spec.from_json({**BODY, "nodes": ["spark-1"], "services": [{**BODY["services"][0], **changes}]})


def test_a_further_service_takes_name_policy_and_nodes_from_the_main_one() -> None:
    spec = Spec.from_json(BODY)
    main, embeddings, reranker = spec.each
    assert main.services == () and (main.label, embeddings.label, reranker.label) == ("chat", "embeddings", "reranker")
    assert embeddings.nodes == ("spark-1",) and reranker.nodes == ("spark-2",)
    assert {one.name for one in spec.each} == {"glm"} and {one.on_rank_lost for one in spec.each} == {"report"}
    assert Spec.from_json(spec.to_json()) == spec


def test_a_cluster_of_nodes_runs_on_all_of_them() -> None:
    spec = Spec.from_json({**BODY, "cluster": "native", "services": [{**BODY["services"][0], "cluster": "native"}]})
    assert spec.services[0].nodes == ("spark-1", "spark-2")
    assert [(one.field, one.message) for one in validate(spec)] == [
        ("services[0].cluster", "two services can't both meet over native on one head")
    ]


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"port": 8000}, "services[0].port", "8000 is another service's on this node"),
        ({"container": "sparkweb-glm"}, "services[0].container", "sparkweb-glm is another service's"),
        ({"service": ""}, "services[0].service", "'' is no service's name"),
        ({"service": "a b"}, "services[0].service", "'a b' is no service's name"),
        ({"service": "chat"}, "services[0].service", "'chat' is named twice"),
        ({"kind": "images"}, "services[0].kind", "'images' is not known"),
        ({"nodes": ["spark-9"]}, "services[0].nodes", "'spark-9' is no node of this deployment"),
        ({"port": 80}, "services[0].port", "'80' is out of range"),
    ],
)
def test_nonsense_names_the_service_and_the_field(changes: dict[str, Any], field: str, message: str) -> None:
    assert (field, message) in [(one.field, one.message) for one in validate(of(**changes))]


def test_no_service_within_a_service() -> None:
    spec = of()
    inner = replace(spec.services[0], services=spec.services)
    assert "services[0].services" in [one.field for one in validate(replace(spec, services=(inner,)))]


def test_the_main_service_has_no_name_of_its_own() -> None:
    assert [one.field for one in validate(replace(of(), service="chat"))] == ["service"]


@pytest.mark.parametrize("services", ["chat", [1], [{"unknown": 1}]])
def test_what_is_no_list_of_services_is_said(services: Any) -> None:
    with pytest.raises(TypeError):
        Spec.from_json({**BODY, "services": services})


def test_what_is_missing_or_unknown_is_said_in_words() -> None:
    body = {"name": "a", "model": "m", "nodes": ["n"], "services": [{"service": "embeddings", "model": "e"}]}
    assert Spec.from_json(body).services[0].model_path == "", "what is left out has its usual value"
    with pytest.raises(TypeError, match=r"^model is missing$"):
        Spec.from_json({"name": "a", "nodes": ["n"]})
    with pytest.raises(TypeError, match=r"^there is no field shards$"):
        Spec.from_json({**body, "shards": 3})
