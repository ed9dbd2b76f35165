"""Every field of every body with values that nobody expects: an answer that is a problem, never a failure of ours."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from apps.runs.models import Run
from tests.api.conftest import CONSENT, Program, Story

pytestmark = pytest.mark.django_db
CLEAR = [dict(CONSENT[0])]
NASTY: list[Any] = [
    None, True, 0, -1, 2**63, 10**40, 1.5, 1e308, "", " ", "\n", "\0", "x" * 100_000, "../..", "$(reboot)", "\u202e", "é" * 300,
    [], [[]], [None], ["x"] * 3000, {}, {"a": {}}, {"": ""}, [{"id": 1}], "1", "9" * 30, "SHA256:", "2026-11-30",
]  # fmt: skip
SPEC: dict[str, Any] = {
    "model": "a/b", "model_path": "/m", "engine": "vllm", "runtime": "docker", "cluster": "ray", "image": "i", "container": "c",
    "executable": "vllm", "served_model_name": "", "port": 30000, "api_host": "0.0.0.0", "tensor_parallel": 2,
    "gpu_memory_utilization": 0.8, "max_model_len": 1000, "reasoning_parser": "", "tool_call_parser": "",
    "attention_backend": "", "kv_cache_dtype": "", "arguments": ["--a"], "environment": [["A", "b"]],
    "secrets": [{"variable": "HF_TOKEN", "name": "hub"}], "os_floor_gib": 8, "smoke_max_tokens": 50,
    "kind": "chat", "services": [{"service": "e", "kind": "embeddings", "model": "a/c", "model_path": "", "port": 30001, "nodes": ["x"]}],
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "credentials": {"name": "k", "private_key": "", "passphrase": ""},
    "nodes": {"name": "n", "address": "127.0.0.1", "port": 22, "user": "u", "credential": "nobody's", "jump": None},
    "nodes/{node}/confirm": {"sha256": "SHA256:x"},
    "nodes/{node}/unlock": {"reason": "r"},
    "nodes/{node}/models": {"repo": "acme/tiny-1b", "revision": "main", "include": ["*.json"], "token": ""},
    "nodes/{node}/repin": {"sha256": "SHA256:x", "reason": "r"},
    "nodes/{node}/adopt": {"name": "found", "things": [{"kind": "container", "name": "vllm_node"}], "reason": "r"},
    "deployments": {
        "name": "d", "recipe": "qwen3.5-122b-a10b-fp8", "nodes": ["spark-1a32", "spark-5be3"], "on_rank_lost": "stop", "reason": "",
        "spec": SPEC,
    },
    "deployments/{deployment}/revisions": {"nodes": ["spark-1a32", "spark-5be3"], "spec": {"port": 30001, "arguments": ["--a"]}, "reason": "r"},
    "deployments/{deployment}/plan": {"story": "launch", "clear": CLEAR},
    "deployments/{deployment}/launch": {"digest": "d", "reason": "r", "clear": CLEAR},
    "recipes": {"name": "r", "description": "d", "nodes": 1, "spec": SPEC | {"cluster": "single"}, "note": "n"},
    "recipes/import": {"text": "vllm serve a/b", "name": "n", "family": "command"},
    "recipes/read": {"text": "vllm serve a/b", "family": ""},
    "recipes/vllm-process/versions": {"name": "n", "description": "d", "nodes": 1, "spec": {"model": "a/b"}, "note": "", "seen": ""},
    "recipes/vllm-process/duplicate": {"name": "n", "version": 1},
    "recipes/vllm-process/decide": {"version": 1, "take": ["q1"], "leave": ["q2"], "reason": "r"},
    "recipes/vllm-process/tested": {"version": 1, "tested_on": "x", "reason": "r"},
    "runs/{run}/cancel": {"reason": "r"},
    "explain": {"text": "t"},
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a body, the deepest last."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ([path] if path else []) + [place for key, one in inner for place in places(one, (*path, key))]


def changed(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made: Any = copy.deepcopy(body)
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", BODIES)
def test_no_value_breaks_it(admin: Program, story: Story, path: str) -> None:
    run = admin.post(f"nodes/{story.head.pk}/probe").body["run"]
    where = path.format(node=story.second.pk, deployment=story.deployment.pk, run=run)
    for place in places(BODIES[path]):
        for value in NASTY:
            answer = admin.post(where, changed(BODIES[path], place, value))
            what = (place, str(value)[:40], answer.status, str(answer.body)[:300])
            assert answer.status < 500 or answer.body["reason"] == "no_worker", what
            if answer.status >= 400:
                assert answer.headers["Content-Type"] == "application/problem+json", what
                assert answer.body["detail"] and answer.body["remedy"], what
            if path.endswith(("plan", "revisions")) and answer.status < 300:
                plan = admin.post(f"deployments/{story.deployment.pk}/plan")
                assert plan.status == 200, (what, plan.body)
    assert Run.objects.filter(story__in=("launch", "relaunch", "stop")).count() == 0


PARAMETERS = (
    "nodes?after={}", "nodes?limit={}", "nodes?name={}", "nodes/{node}?evidence={}", "recipes/{}", "deployments?state={}", "runs?deployment={}",
    "runs/{run}/lines?after={}", "runs/{run}/lines?rank={}", "runs/{run}/lines?step={}", "runs/{run}/search?text={}", "audit?since={}",
    "audit?before={}", "audit?object={}", "audit?actor={}", "audit?run={}",
)  # fmt: skip


@pytest.mark.parametrize("path", PARAMETERS)
def test_no_parameter_breaks_it(admin: Program, story: Story, path: str) -> None:
    run = admin.post(f"nodes/{story.head.pk}/probe").body["run"]
    where = path.replace("{node}", str(story.head.pk)).replace("{run}", str(run))
    for value in (
        "",
        "0",
        "-1",
        "1.5",
        "9" * 19,
        "9" * 5000,
        "%00",
        "%ff",
        "%ed%a0%80",
        "null",
        "person:99",
        "%F0%9F%98%80",
        "'",
        "%25",
        "%0a",
    ):
        answer = admin.get(where.replace("{}", value))
        assert answer.status < 500, (path, value[:30], answer.body)
        if answer.status >= 400:
            assert answer.headers["Content-Type"] == "application/problem+json"
