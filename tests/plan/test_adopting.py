"""What serves on a node and is not ours, read back into a spec."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from apps.facts.sheet import Evidence, Sheet
from apps.facts.values import Container, EngineProcess, Starts, Unit
from apps.plan.adopting import found_on, in_order, services_of, together
from apps.plan.spec import Spec, validate
from apps.plan.stories import adopt, stop
from tests.plan.sheets import GIVEN


def container(name: str, words: list[str], **more: Any) -> tuple[Container, dict[str, Any]]:
    made = Container(name, image=more.pop("image", "vllm-node"), state="running", command=" ".join(words), **more)
    mounts = [{"Source": "/srv/models", "Destination": "/models"}]
    return made, {
        "Name": f"/{name}",
        "Path": words[0],
        "Args": words[1:],
        "Mounts": mounts,
        "State": {"Status": "running"},
    }


def sheet(*made: tuple[Container, dict[str, Any]], **more: Any) -> Sheet:
    evidence = {"container-details": Evidence(json.dumps([inspected for _, inspected in made]), exit_code=0)}
    return Sheet("box", 0.0, containers=tuple(one for one, _ in made), evidence=evidence, **more)


CHAT = ["vllm", "serve", "/models/GLM", "--served-model-name", "GLM", "--port", "8000", "--max-model-len", "8192",
        "--tool-call-parser", "glm47", "--enable-auto-tool-choice", "--hf-overrides", '{"a": "b c"}', "-tp", "1"]  # fmt: skip
EMBED = ["vllm", "serve", "Qwen/Qwen3-Embedding-4B", "--port=8001", "--runner", "pooling"]


def test_a_containers_own_command_becomes_the_spec() -> None:
    found = found_on(sheet(container("vllm_node", CHAT, restart_policy="unless-stopped")))
    body = found[0].body
    assert (found[0].port, found[0].restart_policy, found[0].answers_as) == (8000, "unless-stopped", "GLM")
    assert body["model_path"] == "/srv/models/GLM" and body["model"] == "GLM"
    assert (body["max_model_len"], body["tool_call_parser"], body["tensor_parallel"]) == (8192, "glm47", 1)
    assert body["arguments"] == ["--hf-overrides", '{"a": "b c"}']
    assert not validate(Spec.from_json({**body, "name": "x", "nodes": ["box"]}))


def test_several_become_one_body_chat_first() -> None:
    rerank = [
        "python3",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "BAAI/bge-reranker",
        "--port",
        "7000",
        "--is-embedding",
    ]
    found = found_on(sheet(container("e", EMBED), container("r", rerank), container("vllm_node", CHAT)))
    assert services_of(in_order(found)) == ["", "reranker", "embeddings"]
    body = together(found)
    spec = Spec.from_json({**body, "name": "x", "nodes": ["box"]})
    assert [(one.label, one.engine, one.port) for one in spec.each] == [
        ("chat", "vllm", 8000), ("reranker", "command", 7000), ("embeddings", "vllm", 8001)
    ]  # fmt: skip
    assert not validate(spec) and spec.services[0].arguments[:2] == ("python3", "-m")


def test_the_process_in_a_container_tells_what_the_containers_command_does_not() -> None:
    head = container("ray-head", ["ray", "start", "--head", "--block"])
    command = "vllm serve /models/GLM --served-model-name GLM --port 30000"
    process = EngineProcess(7, Starts("vllm", "/models/GLM", "GLM", 30000), command=command, container="ray-head")
    assert [(one.name, one.port) for one in found_on(sheet(head, processes=(process,)))] == [("ray-head", 30000)]
    assert found_on(sheet(head)) == ()


def test_a_units_own_process() -> None:
    starts = Starts("vllm", "Qwen/Qwen3-8B", None, None)
    process = EngineProcess(
        9, starts, command="/opt/venv/bin/vllm serve Qwen/Qwen3-8B", unit="vllm.service", ports=(8000,)
    )
    found = found_on(Sheet("box", 0.0, processes=(process,)))[0]
    assert (found.kind, found.name, found.port) == ("unit", "vllm.service", 8000)
    assert (found.body["runtime"], found.body["executable"]) == ("process", "/opt/venv/bin/vllm")
    assert found_on(Sheet("box", 0.0, processes=(replace(process, run="7"),))) == ()


def test_secrets_are_left_out_and_said() -> None:
    words = [*CHAT, "--api-key", "***"]
    found = found_on(sheet(container("vllm_node", words)))[0]
    assert "***" not in json.dumps(found.body) and any("--api-key is a secret" in note for note in found.notes)
    assert found.answers_as == "", "an API that wants a key can't be asked"


@pytest.mark.parametrize(
    "one",
    [
        container("db", ["postgres"]),
        container("ours", CHAT, labels={"sparkweb.deployment": "3"}),
        container("client", ["vllm", "bench", "--port", "8000"]),
    ],
)
def test_what_is_nothing_to_adopt(one: tuple[Container, dict[str, Any]]) -> None:
    assert found_on(sheet(one)) == ()


def test_units_that_start_it_or_stand_in_front_are_told_once() -> None:
    units = (
        Unit("vllm-a.service", active="active", containers=("vllm_node",)),
        Unit("vllm-proxy.service", active="active", exec_start="/usr/bin/python3 /opt/vllm/proxy.py", vendor=False),
    )
    found = found_on(sheet(container("vllm_node", CHAT), container("e", EMBED), units=units))
    assert [one.units for one in found] == [("vllm-a.service", "vllm-proxy.service"), ()]


def test_things_of_two_nodes_are_no_deployment() -> None:
    one = found_on(sheet(container("vllm_node", CHAT)))[0]
    with pytest.raises(ValueError, match="one node"):
        together([one, replace(one, node="other")])


def test_the_plan_of_adopting_only_looks_and_of_letting_go_only_ends_that() -> None:
    found = found_on(sheet(container("vllm_node", CHAT), container("e", EMBED)))
    spec = Spec.from_json({**together(found), "name": "x", "nodes": ["box"]})
    things = [
        {"node": "box", "kind": one.kind, "name": one.name, "service": service, "answers": one.answers_as}
        for one, service in zip(in_order(found), services_of(in_order(found)), strict=True)
    ]
    plan = adopt(spec, things, given=replace(GIVEN, adopted=True))
    kinds = [step.kind for stage in plan.stages for step in stage.steps]
    assert kinds == ["probe", "serve", "ready", "serve", "ready"]
    scripts = " ".join(step.script for stage in plan.stages for step in stage.steps)
    assert "docker logs --follow" in scripts and not any(
        word in scripts for word in ("docker stop", "docker rm", "kill")
    )
    let_go = stop(spec, {}, given=replace(GIVEN, adopted=True))
    assert [step.kind for stage in let_go.stages for step in stage.steps] == ["end", "end"]
    assert {step.ends for stage in let_go.stages for step in stage.steps} == {
        "serve.engine.box",
        "serve.embeddings.engine.box",
    }
