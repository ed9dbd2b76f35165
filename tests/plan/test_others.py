"""Another deployment of ours on the node is called by its name and is stopped by its own Stop: never cleared, never a
stranger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from apps.facts.sheet import Sheet
from apps.facts.values import Container, EngineProcess, GpuProcess, Gpus, Listener, Starts
from apps.plan.spec import Clear, Given, Other, Spec
from apps.plan.step import Plan, Problem
from apps.plan.stories import clear, launch
from tests.plan.sheets import GIB, MODEL_PATH, OLD_STACK, OLD_UNITS, pair, qwen35, spark

HEAD = "spark-1a32"
SERVING = Other(1, "qwen3.5-122b", "serving", qwen35())
RANK = Container(
    "vllm-qwen35-r0",
    state="running",
    labels={"sparkweb.deployment": "1"},
    memory_bytes=int(99.7 * GIB),
    command="ray start --head --block --port=6379",
    network="host",
)
HIDDEN = (Listener("*", 30000), Listener("*", 6379))  # root's: no process is shown to this user
WANTED = qwen35(name="second", container="other", port=30001)


def on_head(*containers: Container, used_gib: float = 105.0, listeners: tuple[Listener, ...] = HIDDEN) -> Sheet:
    return spark(HEAD, 12, used_gib=used_gib, management="10.1.230.180", held=(*containers,), listeners=listeners)


def planned(spec: Spec, sheet: Sheet, *others: Other, cleared: tuple[Clear, ...] = ()) -> Plan:
    sheets: Mapping[str, Sheet] = {**pair(busy=False), HEAD: sheet}
    return launch(spec, sheets, given=Given(deployment=2, revision=1, clear=cleared, others=others))


def on(plan: Plan, node: str = HEAD) -> list[Problem]:
    return [one for one in plan.problems if one.severity in ("stop", "consent") and one.node == node]


def test_who_serves_here_is_named_with_all_that_it_holds_and_offered_for_nothing() -> None:
    (found,) = on(planned(WANTED, on_head(RANK), SERVING))
    assert (found.name, found.severity, found.deployment) == ("other_deployment", "stop", 1)
    assert found.title == "qwen3.5-122b is serving on spark-1a32"
    assert found.meaning == "It has 99.7 GiB of memory and port 6379. Nothing of it is stopped from here."
    assert found.remedy == "Stop qwen3.5-122b first, or choose other nodes."
    assert found.clear == ()
    fit = planned(WANTED, on_head(RANK), SERVING).fit
    assert fit is not None and "GiB on spark-1a32 is free: stop qwen3.5-122b." in fit.sentence


def test_the_bar_draws_it_by_its_name_and_strangers_as_such() -> None:
    stranger = Container("grafana", state="running", memory_bytes=2 * GIB)
    fit = planned(WANTED, on_head(RANK, stranger), SERVING).fit
    assert fit is not None
    bar = next(one for one in fit.bars if one.node == HEAD)
    assert bar.deployments == (("qwen3.5-122b", int(99.7 * GIB)),)
    segments = dict(bar.segments)
    assert (segments["deployments"], segments["others"]) == (int(99.7 * GIB), 2 * GIB)
    assert [name for name, size in bar.parts if size >= 2 * GIB and name not in ("os", "weights", "graphs", "kv")] == [
        "deployment qwen3.5-122b",
        "others",
    ]
    made = planned(WANTED, on_head(RANK), SERVING)
    assert Plan.from_json(made.to_json()) == made
    older = made.to_json()
    for one in older["fit"]["bars"]:
        del one["deployments"]  # of a plan that was stored before
    assert Plan.from_json(older).fit.bars[0].deployments == ()  # type: ignore[union-attr]


def test_the_same_container_name_and_port_are_its_too() -> None:
    (found,) = on(planned(qwen35(name="second"), on_head(RANK), SERVING))
    assert "port 30000, port 6379 and the container name vllm-qwen35-r0" in found.meaning


def test_where_there_is_room_only_port_and_name_must_be_others() -> None:
    spec = qwen35(name="second", gpu_memory_utilization=0.1, nodes=(HEAD,), tensor_parallel=1, cluster="single")
    small = replace(RANK, memory_bytes=20 * GIB)
    (found,) = [one for one in on(planned(spec, on_head(small, used_gib=26), SERVING)) if one.deployment]
    assert found.remedy == (
        "Stop qwen3.5-122b first, or choose another port and another container name: port 30001 is free."
    )
    assert found.change == {"port": 30001}
    beside = replace(spec, port=30001, container="other")
    plan = planned(beside, on_head(small, used_gib=26), SERVING)
    assert not [one for one in plan.problems if one.deployment]
    assert "beside qwen3.5-122b (vllm-qwen35-r0, 20.0 GiB)" in " ".join(one.title for one in plan.problems)


def test_strangers_are_asked_for_beside_it_and_alone_where_that_is_enough() -> None:
    sheet = replace(on_head(RANK, OLD_STACK[1], used_gib=115), units=(OLD_UNITS[2],))
    ours, theirs = on(planned(WANTED, sheet, SERVING))
    assert ours.deployment == 1
    assert (theirs.name, [item["name"] for item in theirs.clear]) == (
        "memory_held",
        ["vllm-embeddings.service", "vllm_embeddings"],
    )
    big, little = replace(OLD_STACK[0], memory_bytes=95 * GIB), replace(RANK, memory_bytes=5 * GIB)
    sheet = on_head(big, little, used_gib=106, listeners=())
    assert [one.name for one in on(planned(replace(WANTED, cluster_port=6380), sheet, SERVING))] == ["memory_held"]


def test_a_consent_for_its_container_is_refused_and_becomes_no_step() -> None:
    consent = (Clear(HEAD, "container", "vllm-qwen35-r0"),)
    plan = planned(WANTED, on_head(RANK), SERVING, cleared=consent)
    assert any("container vllm-qwen35-r0, which is not cleared" in one.meaning for one in plan.refused)
    commands = "\n".join(step.script for stage in plan.stages for step in stage.steps)
    assert plan.stages and "vllm-qwen35-r0" not in commands
    given = Given(clear=consent, others=(SERVING,))
    assert [step.kind for step in clear([HEAD], {HEAD: on_head(RANK)}, given=given).stages[0].steps] == ["note"]


def test_a_plain_process_is_known_by_its_port_and_by_who_started_it() -> None:
    """The engine's core holds the memory; its parent was told the port."""
    spec = qwen35(runtime="process", cluster="native", nodes=(HEAD,), tensor_parallel=1, image="")
    server = EngineProcess(700, Starts("vllm", MODEL_PATH, port=30000), parent=1)
    core = EngineProcess(701, Starts("vllm"), parent=700)
    gpus = Gpus("580", "13.0", on_head().gpus.gpus, (GpuProcess(701, "VLLM::EngineCore", 99 * 1024),))  # type: ignore[union-attr]
    sheet = replace(on_head(listeners=(Listener("0.0.0.0", 30000, 700, "vllm"),)), processes=(server, core), gpus=gpus)
    (found,) = on(planned(replace(WANTED, port=30000), sheet, replace(SERVING, spec=spec)))
    assert found.deployment == 1 and found.meaning.startswith("It has 99.0 GiB of memory and port 30000.")
    (stranger, port) = on(planned(replace(WANTED, port=30000), sheet, replace(SERVING, spec=spec, state="stopped")))
    assert [item["name"] for item in (*stranger.clear, *port.clear)] == ["701", "700"]


def test_a_rank_that_serves_no_port_is_known_by_its_model() -> None:
    spec = qwen35(runtime="process", cluster="native", nodes=("spark-5be3", HEAD))
    worker = EngineProcess(700, Starts("vllm", MODEL_PATH), parent=1)
    gpus = Gpus("580", "13.0", on_head().gpus.gpus, (GpuProcess(700, "python", 99 * 1024),))  # type: ignore[union-attr]
    sheet = replace(on_head(listeners=()), processes=(worker,), gpus=gpus)
    (found,) = on(planned(WANTED, sheet, replace(SERVING, spec=spec)))
    assert found.deployment == 1


def test_a_hidden_port_is_its_where_only_its_containers_use_the_host_network() -> None:
    spec = replace(WANTED, port=12345)
    sheet = on_head(RANK, listeners=(Listener("*", 12345),))
    (found,) = on(planned(spec, sheet, SERVING))
    assert "port 12345" in found.meaning
    sheet = on_head(RANK, Container("web", state="running", network="host"), listeners=(Listener("*", 12345),))
    assert [one.name for one in on(planned(spec, sheet, SERVING))] == ["other_deployment", "port_busy"]


@pytest.mark.parametrize(
    ("state", "title", "remedy"),
    [
        ("launching", "is being launched", "Stop qwen3.5-122b first"),
        ("stopping", "is being stopped", "Wait until it is stopped"),
        ("failed", "has something left", "Stop qwen3.5-122b first"),
        ("stopped", "has something left", "Probe spark-1a32 again"),
    ],
)
def test_the_state_says_what_to_do(state: str, title: str, remedy: str) -> None:
    (found,) = on(planned(WANTED, on_head(RANK), replace(SERVING, state=state)))
    assert title in found.title and found.remedy.startswith(remedy)


def test_a_label_that_nobody_here_has_is_another_installations() -> None:
    found = on(planned(qwen35(name="second"), on_head(RANK)))
    named = {one.name: one for one in found}
    assert "deployment 1, which this sparkweb does not know" in named["foreign_container"].title
    assert named["memory_held"].severity == "consent"


def test_only_what_a_unit_makes_anew_is_removed() -> None:
    """A container with a label and without a unit is stopped and kept."""
    plan = planned(WANTED, on_head(RANK), cleared=(Clear(HEAD, "container", "vllm-qwen35-r0"),))
    steps = {step.key: step.why for stage in plan.stages for step in stage.steps}
    assert f"clear.stop-containers.{HEAD}" in steps and f"clear.containers.{HEAD}" not in steps


ADOPTED = Other(
    3,
    "glm",
    "serving",
    found=(
        Clear(HEAD, "unit", "vllm-cluster.service"),
        Clear(HEAD, "container", "vllm_node"),
        Clear(HEAD, "container", "vllm_embeddings"),
        Clear(HEAD, "container", "reranker"),
    ),
)


def test_what_was_adopted_is_named_and_never_cleared_although_it_carries_no_label() -> None:
    sheet = pair(busy=True)[HEAD]
    agreed = tuple(Clear(HEAD, "container", one.name) for one in OLD_STACK)
    plan = planned(qwen35(), sheet, ADOPTED, cleared=(*agreed, Clear(HEAD, "unit", "vllm-cluster.service")))
    found = [one for one in on(plan) if one.name == "other_deployment"]
    assert [(one.severity, one.deployment) for one in found] == [("stop", 3)]
    assert found[0].title == "glm is serving on spark-1a32" and found[0].remedy.startswith("Stop glm first")
    assert not [one for one in on(plan) if one.severity == "consent" and one.clear]
    ran = "\n".join(
        step.script for stage in plan.stages for step in stage.steps if step.kind == "job" and "clear" in step.key
    )
    assert "vllm_node" not in ran and "reranker" not in ran and "vllm-cluster" not in ran


@pytest.mark.parametrize("state", ["stopped", "lost", "failed"])
def test_what_was_adopted_and_is_over_is_a_stranger_again(state: str) -> None:
    plan = planned(qwen35(), pair(busy=True)[HEAD], replace(ADOPTED, state=state))
    assert [one.severity for one in on(plan) if one.name == "memory_held"] == ["consent"]
