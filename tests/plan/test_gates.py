"""What waiting steps make of the answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from apps.diagnosis.reasons import REASONS
from apps.facts.values import Container, Docker, Listener
from apps.plan import gates
from apps.plan.commands import ray
from apps.plan.gates import judge, judge_sheet
from apps.plan.stories import launch
from tests.plan.sheets import CONSENTED, GIVEN, OLD_STACK, pair, qwen35

MEMINFO = "MemTotal:       125514547 kB\nMemFree:        90000000 kB\nMemAvailable:   104857600 kB\n"


def test_memory_free() -> None:
    enough = judge({"name": "memory_free", "bytes": 100 << 30}, MEMINFO, 0)
    assert enough.done and "100.0 of 100.0 GiB" in enough.message
    short = judge({"name": "memory_free", "bytes": (100 << 30) + 1}, MEMINFO, 0)
    assert not short.done and short.failed is None and short.values["available_bytes"] == 100 << 30
    assert not judge({"name": "memory_free", "bytes": 1}, "", 1).done


def test_containers_gone() -> None:
    gate = {"name": "containers_gone", "containers": ["vllm_node", "reranker"]}
    assert judge(gate, "other\nreranker\n", 0).message == "still there: reranker"
    assert judge(gate, "other\n", 0).done
    assert not judge({"name": "containers_gone"}, "anything\n", 0).done
    assert judge({"name": "containers_gone"}, "\n", 0).done
    assert not judge(gate, "", 1).done, "a Docker that does not answer is no proof"


SS = "LISTEN 0 128 0.0.0.0:22 0.0.0.0:*\nLISTEN 0 128 [::]:30000 [::]:*\nLISTEN 0 5 *:6379 *:*\n"
PROC = """  sl  local_address rem_address   st tx_queue
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000
"""


@pytest.mark.parametrize(
    ("text", "port", "free"),
    [(SS, 30000, False), (SS, 6379, False), (SS, 8000, True), (PROC, 30000, False), (PROC, 8080, True), ("", 1, True)],
)
def test_ports_free(text: str, port: int, free: bool) -> None:
    assert judge({"name": "ports_free", "ports": [port]}, text, 0).done is free


@pytest.mark.parametrize(
    ("text", "code", "done", "failed"),
    [
        ("running 0\n", 0, True, None),
        ("created 0\n", 0, False, None),
        ("exited 137\n", 0, False, "exited"),
        ("", 1, False, None),
    ],
)
def test_container_running(text: str, code: int, done: bool, failed: str | None) -> None:
    judged = judge({"name": "container_running", "container": "c"}, text, code)
    assert (judged.done, judged.failed) == (done, failed)


def status(active: int, used: float, total: float, idle: int = 0) -> str:
    lines = ["======== Autoscaler status: 2026-07-06 00:44:31.102938 ========", "Node status", "-" * 63, "Active:"]
    lines += [f" 1 node_{number:056x}" for number in range(active)] or [" (no active nodes)"]
    if idle:
        lines += ["Idle:", *(f" 1 node_{number:056x}" for number in range(100, 100 + idle))]
    lines += ["Pending:", " (no pending nodes)", "Recent failures:", " (no failures)", "", "Resources", "-" * 63]
    lines += ["Total Usage:", " 0.0/40.0 CPU", f" {used}/{total} GPU", " 0B/203.41GiB memory", ""]
    return "\n".join([*lines, "From request_resources:", " (none)", "Pending Demands:", " (no resource demands)", ""])


def nodes(*addresses: str, dead: str = "") -> str:
    items = [f'{{"address": "{one}", "alive": true, "gpus": 1.0}}' for one in addresses]
    if dead:
        items.append(f'{{"address": "{dead}", "alive": false, "gpus": 0}}')
    return f"{ray.ADDRESSES}\n2026-07-06 INFO worker.py:1 -- Connecting\n[{', '.join(items)}]\n"


HEAD, WORKER = "192.168.200.12", "192.168.200.13"
RAY = {"name": "ray_nodes", "addresses": [HEAD, WORKER], "gpus": 2.0}


@pytest.mark.parametrize(
    ("text", "done", "failed"),
    [
        (status(2, 0.0, 2.0) + nodes(HEAD, WORKER), True, None),
        (status(2, 0.0, 2.0) + nodes(WORKER, HEAD, dead="10.1.230.180"), True, None),
        (status(0, 0.0, 2.0, idle=2) + nodes(HEAD, WORKER), True, None),
        (status(1, 0.0, 1.0) + nodes(HEAD), False, None),
        (status(2, 2.0, 2.0) + nodes(HEAD, WORKER), False, None),
        (status(2, 0.0, 2.0) + nodes(HEAD, "10.1.230.181"), False, "ray_wrong_ip"),
        (status(3, 0.0, 3.0) + nodes(HEAD, WORKER, "192.168.200.14"), False, "ray_wrong_ip"),
        (status(2, 0.0, 2.0) + ray.ADDRESSES, False, None),
        ("", False, None),
    ],
)
def test_ray_nodes(text: str, done: bool, failed: str | None) -> None:
    judged = judge(RAY, text, 0)
    assert (judged.done, judged.failed) == (done, failed), judged.message


def test_ray_addresses_from_resources_where_the_program_gave_none() -> None:
    usage = status(2, 0.0, 2.0).replace(
        " 0B/203.41GiB memory",
        f" 0.0/1.0 node:{HEAD}\n 0.0/1.0 node:__internal_head__\n 0.0/1.0 node:{WORKER}\n 0B/203.41GiB memory",
    )
    assert judge(RAY, f"{usage}{ray.ADDRESSES}\n", 0).done
    wrong = judge(RAY, usage.replace(WORKER, "10.1.230.181") + ray.ADDRESSES, 0)
    assert wrong.failed == "ray_wrong_ip" and "10.1.230.181" in wrong.message


def test_all_gates_have_a_timeout_reason_of_the_table() -> None:
    for name in gates.known():
        assert gates.timeout_reason({"name": name}) in REASONS
    assert gates.timeout_reason({"name": "memory_free"}) == "memory_not_released"
    assert gates.timeout_reason({"name": "?"}) == "internal"
    with pytest.raises(ValueError, match="no gate is called"):
        judge({"name": "?"}, "", 0)
    assert not judge({"name": "memory_free", "bytes": 1}, MEMINFO, None).done


def test_a_question_that_failed_says_why() -> None:
    """Seen on a real node: `docker exec` itself failed for two minutes, and the run said only that Ray did not answer."""
    gate = {"name": "ray_nodes", "addresses": ["10.0.0.1"], "gpus": 1.0}
    refused = "OCI runtime exec failed: exec failed: unable to start container process: error setting rlimit type 8\n"
    for stdout, stderr in ((f"{refused}--- addresses\n", ""), ("--- addresses\n", refused)):
        judged = judge(gate, stdout, 126, stderr)
        assert not judged.done and judged.failed is None
        assert judged.message == f"Ray does not answer yet: {refused.strip()}"
    assert judge(gate, "--- addresses\n", 0).message == "Ray does not answer yet"


def preflight_gate(node: str = "spark-1a32", **spec: object) -> dict[str, object]:
    plan = launch(qwen35(**spec), pair(), given=CONSENTED)
    return next(step.gate for step in plan.stages[0].steps if step.node == node)


def test_preflight_passes_on_the_sheet_that_was_planned_with() -> None:
    judged = judge_sheet(preflight_gate(), pair()["spark-1a32"])
    assert judged.done and "39 of 39 shards" in judged.message
    assert judge_sheet({"name": "sheet"}, pair()["spark-1a32"]).done


SEEN = pair()["spark-1a32"]
assert SEEN.machine and SEEN.images and SEEN.models and SEEN.disks
CHANGED = {
    "rebooted": replace(SEEN, machine=replace(SEEN.machine, boot_id="another")),
    "image_missing": replace(SEEN, images=SEEN.images[1:]),
    "plan_changed": replace(SEEN, images=(replace(SEEN.images[0], id="sha256:new"),)),
    "model_path_missing": replace(SEEN, models=()),
    "docker_denied": replace(SEEN, docker=Docker(True, problem="docker_denied")),
    "docker_missing": replace(SEEN, docker=Docker(False)),
    "docker_down": replace(SEEN, docker=None),  # the probe's question was not answered in time
    "port_busy": replace(SEEN, listeners=(Listener("0.0.0.0", 30000, 1, "nginx"),)),
    "disk_full": replace(SEEN, disks=(replace(SEEN.disks[0], available_bytes=1),)),
    "foreign_container": replace(SEEN, containers=(*OLD_STACK, Container("vllm-qwen35-r0", state="exited"))),
    "other_deployment": replace(
        SEEN, containers=(*OLD_STACK, Container("vllm-qwen35-r0", labels={"sparkweb.deployment": "8"}))
    ),
}


@pytest.mark.parametrize("reason", CHANGED)
def test_preflight_names_what_changed(reason: str) -> None:
    judged = judge_sheet(preflight_gate(), CHANGED[reason])
    assert judged.failed == reason and "spark-1a32" in judged.message
    assert reason in REASONS


@pytest.mark.parametrize(
    "model",
    [{"shards": 38, "complete": False}, {"weights_bytes": 5}, {"shards": 38}],
    ids=["incomplete", "size", "count"],
)
def test_preflight_looks_into_the_model(model: dict[str, object]) -> None:
    assert SEEN.models
    now = replace(SEEN, models=(replace(SEEN.models[0], **model),))  # type: ignore[arg-type]
    assert judge_sheet(preflight_gate(), now).failed == "model_path_missing"


def test_preflight_sees_newcomers_but_not_what_will_be_cleared() -> None:
    newcomer = Container("llama", state="running", memory_bytes=20 << 30)
    judged = judge_sheet(preflight_gate(), replace(SEEN, containers=(*OLD_STACK, newcomer)))
    assert judged.failed == "foreign_container" and "llama" in judged.message
    judged = judge_sheet(
        preflight_gate(), replace(SEEN, containers=(replace(newcomer, labels={"sparkweb.deployment": "8"}),))
    )
    assert judged.failed == "other_deployment" and "llama of deployment 8" in judged.message
    own = replace(newcomer, labels={"sparkweb.deployment": "7"})
    assert judge_sheet(preflight_gate(), replace(SEEN, containers=(*OLD_STACK, own))).done


def test_several_changes_are_all_told() -> None:
    judged = judge_sheet(preflight_gate(), replace(SEEN, models=(), images=()))
    assert [one["reason"] for one in judged.values["changes"]] == ["image_missing", "model_path_missing"]
    assert GIVEN.deployment == 7


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ({"name": "memory_free", "bytes": 5}, f"MemAvailable: {'9' * 5000} kB\n"),
        ({"name": "ports_free", "ports": [1]}, f"LISTEN 0 4096 *:{'9' * 6000} *:*\n"),
        ({"name": "container_running", "container": "c"}, f"exited {'9' * 5000}\n"),
    ],
)
def test_numbers_that_no_int_takes_are_no_answer(gate: dict[str, object], said: str) -> None:
    judged = judge(gate, said, 0)
    assert not judged.done and "can't be read" in judged.message


def test_stages_of_a_pipeline_wait_for_the_gpus_that_ray_was_told_of() -> None:
    """One tensor rank in each of two stages: two GPUs, as many as the nodes bring."""
    spec = replace(qwen35(), tensor_parallel=1, arguments=("--pipeline-parallel-size", "2"))
    plan = launch(spec, pair(), given=GIVEN)
    [gate] = [
        step.gate for stage in plan.stages for step in stage.steps if (step.gate or {}).get("name") == "ray_nodes"
    ]
    brought = [
        text for stage in plan.stages for step in stage.steps for text in step.commands if "--num-gpus=1" in text
    ]
    assert gate["gpus"] == len(set(brought)) == 2
