"""Every engine and way of starting it on pretend machines, through the API: planned, launched, proven, stopped, clean."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.lab import Lab
from apps.recipes.services import load_shipped
from apps.runs import lines, services
from apps.runs.models import Run
from tests.api.conftest import Program, program_of
from tests.story.conftest import ADMIN, HEAD, SECOND, ended

pytestmark = pytest.mark.django_db(transaction=True)
THIRD = "pro6000"
BOTH = [HEAD, SECOND]
QWEN = {"model": "Qwen/Qwen3.5-122B-A10B-FP8", "model_path": "/models/Qwen3.5-122B-A10B-FP8", "max_model_len": 131072}
GGUF = {
    "model": "Qwen/Qwen3-30B-A3B",
    "model_path": "/models/Qwen3-30B-A3B-GGUF/Qwen3-30B-A3B-Q4_K_M.gguf",
    "engine": "llamacpp",
    "max_model_len": 8192,
}
SGLANG = {"engine": "sglang", "image": "lmsysorg/sglang:spark", "attention_backend": "triton"}
NATIVE = {"image": "hellohal2064/vllm-qwen3.5-gb10", "cluster": "native", "gpu_memory_utilization": 0.8}
RTX = {
    "model": "Qwen/Qwen3.5-122B-A10B",
    "model_path": "/models/Qwen3.5-122B-A10B",
    "engine": "sglang",
    "runtime": "process",
    "executable": "/opt/sglang/bin/python3",
    "attention_backend": "triton",
    "gpu_memory_utilization": 0.85,
    "max_model_len": 131072,
    "arguments": ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"],
}


@dataclass
class Machines:
    lab: Lab
    api: Program
    nodes: dict[str, Node]

    def post(self, path: str, body: Any = None, *, status: int = 200) -> dict[str, Any]:
        answer = self.api.post(path, body)
        assert answer.status == status, (path, answer.status, answer.body)
        return dict(answer.body)

    def probe(self, names: list[str]) -> None:
        for _ in range(5):  # a busy machine may answer too late
            if ended(services.probe(ADMIN, [self.nodes[name] for name in names])).state == "succeeded":
                return

    def run(self, deployment: int, story: str) -> Run:
        """Look at the plan, agree to what it asks for, start exactly that."""
        at = f"deployments/{deployment}"
        seen = self.post(f"{at}/plan", {"story": story})
        clear = [
            {**item, "disable": False}
            for one in seen["problems"]
            if one["severity"] == "consent"
            for item in one["clear"]
        ]
        plan = self.post(f"{at}/plan", {"story": story, "clear": clear}) if clear else seen
        assert not plan["refused"], [one for one in plan["problems"] if one["severity"] in ("stop", "consent")]
        body = {"digest": plan["digest"], "reason": "a test", "clear": clear}
        made = self.post(f"{at}/{story}", body, status=202)
        return ended(Run.objects.get(pk=made["run"]), 150)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.start(
        tmp_path_factory.mktemp("engines"), factor=150.0, shards=5, shard_s=6, third=True, timeout_s=90
    ) as made:
        yield made


@pytest.fixture
def machines(lab: Lab, worker: None, settings: Any, request: pytest.FixtureRequest) -> Iterator[Machines]:
    settings.SLICE_S = 3.0
    load_shipped()
    key = inventory.make_credential(ADMIN, name="lab")
    lab.authorize(key.public_key)
    doors: dict[str, dict[str, Any]] = {
        HEAD: {"address": "127.0.0.1", "port": lab.nodes[HEAD].port},
        SECOND: {"address": "192.168.200.13", "port": 22},
        THIRD: {"address": "127.0.0.1", "port": lab.nodes[THIRD].port},
    }
    wanted: list[str] = request.param
    nodes: dict[str, Node] = {}
    for name in dict.fromkeys([*([HEAD] if SECOND in wanted else []), *wanted]):
        jump = nodes[HEAD] if name == SECOND else None
        node = services.enrol(ADMIN, name=name, user="aurora", credential=key, jump=jump, **doors[name])
        nodes[name] = inventory.confirm_host_key(ADMIN, node, sha256=lab.nodes[name].host_keys[0]["sha256"])
    made = Machines(lab, program_of("admin"), nodes)
    made.probe(list(nodes))
    yield made
    lab.reset()


def text_of(run: Run) -> str:
    return "\n".join(f"{line['node']} {line['step']} {line['text']}" for line in lines.lines(run, limit=5000)["lines"])


def left_of(state: dict[str, Any], names: list[str], ports: set[int]) -> str:
    """What is left on these nodes of anything that we started, by the lab's state; empty when nothing is."""
    left = []
    for name in names:
        node = state["nodes"][name]
        left += [
            f"{name}: container {one}"
            for one, about in node["containers"].items()
            if "sparkweb.deployment" in about["labels"]
        ]
        left += [f"{name}: program {one}" for one in node["programs"]]
        left += [f"{name}: port {port}" for port in ports & set(node["listeners"])]
        left += [
            f"{name}: {key} {held}"
            for key, (held, _) in node["claims"].items()
            if key != "system" and "engine" not in key and held > 0.5 and "." not in key
        ]
        left += [f"{name}: gpu {held}" for held in node["gpus"] if held]
    return "; ".join(left)


@pytest.mark.parametrize(
    ("machines", "nodes", "spec", "said"),
    [
        pytest.param(BOTH, BOTH, {**QWEN, **NATIVE}, ["5/5", "--nnodes"], id="native vLLM"),
        pytest.param(BOTH, BOTH, {**QWEN, **SGLANG, "gpu_memory_utilization": 0.8}, ["Init torch distributed ends", "Dummy health check"], id="SGLang on both Sparks"),
        pytest.param([THIRD], [THIRD], RTX, ["TP3] Load weight end", "fired up"], id="SGLang as a process on the RTX box"),
        pytest.param([SECOND], [SECOND], {**GGUF, "image": "ghcr.io/ggml-org/llama.cpp:server-cuda"}, ["all slots are idle", "/health answers 200"], id="llama.cpp"),
        pytest.param([THIRD], [THIRD], {**GGUF, "runtime": "process", "executable": "/opt/llama.cpp/bin/llama-server"}, ["all slots are idle"], id="llama.cpp as a process"),
        pytest.param([THIRD], [THIRD], {"model": "any", "engine": "command", "runtime": "process", "port": 31000, "arguments": ["/opt/acme/bin/openai-server", "--model", "any", "--port", "31000"]}, ["serving on port 31000"], id="a command"),
    ],
    indirect=["machines"],
)  # fmt: skip
def test_every_engine_serves_and_leaves_its_nodes_clean(
    machines: Machines, nodes: list[str], spec: dict[str, Any], said: list[str]
) -> None:
    made = machines.post("deployments", {"name": "engine", "nodes": nodes, "spec": spec}, status=201)
    spec = made["spec"]
    gpus = {THIRD: 4}.get(nodes[0], len(nodes))
    assert spec["tensor_parallel"] == (1 if spec["engine"] == "command" else gpus), "as many as there are GPUs"
    run = machines.run(made["id"], "launch")
    text = text_of(run)
    assert (run.state, run.reason) == ("succeeded", None), (run.evidence, text)
    assert run.outcome["smoke"]["verdict"] == "passed"
    missing = [one for one in said if one not in text and one not in json.dumps(run.plan)]
    assert not missing, (missing, text)
    found = machines.api.get(f"deployments/{made['id']}").body
    assert found["state"] == "serving"
    if spec["engine"] in ("vllm", "sglang"):
        assert run.facts["kv_tokens"] > 100_000, run.facts
    stop = machines.run(made["id"], "stop")
    assert stop.state == "succeeded", (stop.evidence, text_of(stop))
    ports = {spec["port"], spec["cluster_port"] or 0, 29501, 25000}
    until = time.monotonic() + 20
    while (left := left_of(machines.lab.state(), nodes, ports)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left


HOSTILE = (
    "$(touch /tmp/pwned)",
    "`touch /tmp/pwned`",
    "; touch /tmp/pwned",
    "a' 'b",
    '"',
    "\\",
    "-rf",
    "ü→",
    "*",
    "${IFS}x",
)


@pytest.mark.parametrize("machines", [[THIRD]], indirect=True)
def test_hostile_fields_are_words_on_the_node_or_refused_by_name(machines: Machines) -> None:
    good = {"model": "any", "engine": "command", "runtime": "process", "port": 31000}
    words = ["/opt/acme/bin/openai-server", "--model", "any", "--port", "31000"]
    notes = [f"--note={value}" for value in HOSTILE]
    environment = [[f"NOTE{number}", value] for number, value in enumerate(HOSTILE)]
    made = machines.post(
        "deployments",
        {
            "name": "hostile",
            "nodes": [THIRD],
            "spec": {**good, "arguments": [*words, *notes], "environment": environment},
        },
        status=201,
    )
    run = machines.run(made["id"], "launch")
    assert run.state == "succeeded", (run.evidence, text_of(run))
    printed = text_of(run)
    assert all(f"note {value}" in printed for value in HOSTILE), printed
    assert all(f"NOTE{number}={value}" in printed for number, value in enumerate(HOSTILE)), printed
    scripts = [path.read_text() for path in _jobs(machines.lab).glob("*/script")]
    asked = [line for text in scripts for line in text.splitlines() if "--note" in line]
    assert len(asked) == 1 and shlex.split(asked[0])[-len(HOSTILE) :] == notes
    assert not (machines.lab.root(THIRD) / "tmp/pwned").exists() and not Path("/tmp/pwned").exists()
    before = len(scripts)
    for field, value in (
        ("arguments", [*words, "a\ntouch /tmp/pwned"]),
        ("arguments", [*words, "\u202e"]),
        ("arguments", [*words, "x" * (1 << 20)]),
        ("arguments", ["-rf", "/"]),
        ("environment", [["A", "x\ny"]]),
        ("model", "; rm -rf /"),
        ("port", -1),
    ):
        body = {"name": "refused", "nodes": [THIRD], "spec": {**good, "arguments": words, field: value}}
        answer = machines.api.post("deployments", body)
        assert answer.status in (413, 422), (field, answer.status, answer.body)
        assert answer.status == 413 or field in json.dumps(answer.body), answer.body
    assert len(list(_jobs(machines.lab).glob("*/script"))) == before, "nothing of it was asked of the node"
    stop = machines.run(made["id"], "stop")
    assert stop.state == "succeeded", (stop.evidence, text_of(stop))


def _jobs(lab: Lab) -> Path:
    return lab.root(THIRD) / "home/aurora/.local/state/sparkweb/jobs"
