"""vLLM's command line, argument by argument, and the script that starts a container."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from apps.diagnosis.findings.holders import holders
from apps.facts.values import GpuProcess
from apps.plan import options
from apps.plan.commands import docker
from apps.plan.engines import ranks, vllm
from apps.plan.engines.argument import Argument
from apps.plan.engines.site import Site, gpus_of, sites
from apps.plan.stories import launch
from tests.plan.sheets import GIVEN, OLD_STACK, pair, qwen35, servers


def by_flag(spec: object, **where: object) -> dict[str, Argument]:
    return {argument.flag: argument for argument in vllm.arguments(spec, **where)}  # type: ignore[arg-type]


def test_arguments_say_who_wanted_them() -> None:
    spec = qwen35(
        arguments=("--max_num_seqs", "8", "--port=9999", "--distributed-executor-backend", "mp", "--headless", "-O3")
    )
    found = by_flag(spec)
    assert found["--max-num-seqs"].effective == ("--max_num_seqs", "8") and found["--max-num-seqs"].source == "yours"
    port = found["--port"]
    assert port.effective == ("--port", "30000") and port.yours == ("--port=9999",) and port.reason
    backend = found["--distributed-executor-backend"]
    assert backend.source == "ours" and backend.effective[1] == "ray" and backend.yours[1] == "mp"
    assert found["--headless"].effective == () and found["--headless"].yours == ("--headless",)
    assert found["-O3"].effective == ("-O3",)
    assert found["--enable-auto-tool-choice"].source == "ours"
    words = vllm.serve_words(spec).words
    assert words[:3] == ("vllm", "serve", spec.model_path)
    assert "--headless" not in words and "9999" not in words and words.count("--port") == 1


def test_native_ranks() -> None:
    spec = qwen35(cluster="native", arguments=("--distributed-executor-backend", "ray"))
    head, worker = by_flag(spec, rank=0, master="192.168.200.12"), by_flag(spec, rank=1, master="192.168.200.12")
    assert head["--node-rank"].effective == ("--node-rank", "0") and worker["--node-rank"].effective[1] == "1"
    assert "--headless" not in head and worker["--headless"].source == "ours"
    refused = head["--distributed-executor-backend"]
    assert refused.effective == () and refused.yours and "own executor" in refused.reason


def test_a_negative_number_is_a_value_and_no_option() -> None:
    assert options.group(("--seed", "-1", "--a=b", "-tp", "2")) == (
        ("--seed", ("--seed", "-1")),
        ("--a", ("--a=b",)),
        ("-tp", ("-tp", "2")),
    )
    assert by_flag(qwen35(arguments=("-tp", "8")))["--tensor-parallel-size"].effective[1] == "2"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/models/A", "/models/A"),
        ("/home/a/.cache/huggingface/hub/models--Q--A/snapshots/12ab", "/home/a/.cache/huggingface/hub"),
    ],
)
def test_a_hub_snapshot_needs_its_blobs(path: str, shown: str) -> None:
    assert ranks.mount_of(path) == shown


def place() -> Site:
    found = sites(qwen35(), pair(busy=False))[0]
    assert isinstance(found, Site)
    return found


def test_a_swept_ipc_namespace_is_not_shared() -> None:
    made = pair(busy=False)
    for node, sheet in made.items():
        assert sheet.privileges
        made[node] = replace(sheet, privileges=replace(sheet.privileges, remove_ipc=True, linger=False))
    plan = launch(qwen35(), made, given=GIVEN)
    text = next(step.script for stage in plan.stages for step in stage.steps if "docker run" in step.script)
    assert "--shm-size 16g" in text and "--ipc host" not in text


DOCKER = """#!/bin/sh
printf '%s ' "$@" >> "$RECORD"; echo >> "$RECORD"
case "$1" in
inspect) [ -n "$FOUND" ] || exit 1; printf '%s\\n' "$FOUND" ;;
esac
"""


@pytest.mark.parametrize(
    ("found", "code", "did"),
    [
        ("", 0, ["inspect", "run"]),
        ("7/3/55 running", 0, ["inspect"]),
        ("7/3/55 exited", 0, ["inspect", "rm", "run"]),
        ("7/3/54 running", 0, ["inspect", "rm", "run"]),
        ("7/2/55 running", 0, ["inspect", "rm", "run"]),
        ("77/3/55 running", docker.FOREIGN, ["inspect"]),
        ("// running", docker.FOREIGN, ["inspect"]),
        ("<no value>/<no value>/<no value> exited", docker.FOREIGN, ["inspect"]),
    ],
)
def test_start_observes_decides_acts(tmp_path: Path, found: str, code: int, did: list[str]) -> None:
    """Adopts its own, removes its own that is stale, refuses what is foreign."""
    stand_in = tmp_path / "docker"
    stand_in.write_text(DOCKER)
    stand_in.chmod(0o755)
    made = docker.Container("vllm-qwen35-r0", "image", docker.Labels(7, 3, 0), ("ray", "start"))
    record = tmp_path / "record"
    result = subprocess.run(
        ["/bin/sh", "-s"],
        input=docker.start(made).text,
        text=True,
        capture_output=True,
        check=False,
        env={"PATH": str(tmp_path), "RECORD": str(record), "FOUND": found, "SPARKWEB_RUN": "55"},
    )
    assert result.returncode == code, result.stderr
    lines = record.read_text().splitlines()
    assert [line.split()[0] for line in lines] == did
    if did[-1] == "run":
        assert "--label sparkweb.run=55 image ray start" in lines[-1] and "--rm" not in lines[-1]
    if code:
        assert "does not belong to this deployment" in result.stderr


def test_gpu_processes_without_an_owner_belong_to_the_engine_containers() -> None:
    """Nodes do not always say whose a GPU process is; ending a container's process by its pid would only restart it."""
    sheet = pair()["spark-1a32"]
    assert sheet.gpus
    silent = tuple(replace(one, memory_bytes=None) for one in OLD_STACK)
    processes = (GpuProcess(49, "VLLM::EngineCore", 68608), GpuProcess(52, "VLLM::EngineCore", 15872))
    found = holders(replace(sheet, containers=silent, gpus=replace(sheet.gpus, processes=processes)), 7)
    assert {one.kind for one in found} == {"container"} and all(one.estimated for one in found)
    named = tuple(
        replace(process, container=name) for process, name in zip(processes, ("vllm_node", "reranker"), strict=True)
    )
    found = holders(replace(sheet, containers=silent, gpus=replace(sheet.gpus, processes=named)), 7)
    known = {one.name: one.bytes >> 20 for one in found if not one.estimated}
    assert known == {"vllm_node": 68608, "reranker": 15872}


def test_site_of_a_rank() -> None:
    assert place().container == "vllm-qwen35-r0" and place().gpus == 1 and not place().root


@pytest.mark.parametrize(
    ("tensor", "words", "gpus", "used"),
    [
        (8, (), (4, 4), (4, 4)),
        (4, ("-pp", "2"), (4, 4), (4, 4)),
        (4, ("--pipeline_parallel_size=2",), (4, 4), (4, 4)),
        (2, ("-pp=2",), (4, 4), (2, 2)),  # Ray would pack all four onto the head, were it told of more
        (2, ("-pp", "2", "-dp", "2"), (4, 4), (4, 4)),
        (6, (), (4, 2), (4, 2)),  # unlike nodes bring what they have
        (2, (), (1, 1), (1, 1)),
        (2, ("-pp", "nonsense"), (1, 1), (1, 1)),
    ],
)
def test_ray_is_told_of_as_many_gpus_as_there_are_ranks(
    tensor: int, words: tuple[str, ...], gpus: tuple[int, int], used: tuple[int, int]
) -> None:
    spec = qwen35(tensor_parallel=tensor, arguments=words)
    assert gpus_of(spec, list(servers(*gpus).values())) == used
    plan = launch(spec, servers(*gpus), given=GIVEN)
    shown = [word for stage in plan.stages for step in stage.steps for text in step.commands for word in text.split()]
    assert [word for word in shown if word.startswith("--num-gpus=")] == [f"--num-gpus={count}" for count in used]
    waited = next(step for stage in plan.stages for step in stage.steps if step.gate.get("name") == "ray_nodes")
    assert waited.gate["gpus"] == float(sum(used))
