"""Plans by their printed story: one golden file per story. `UPDATE_GOLDEN=1 pytest tests/plan` writes them anew."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from apps.facts.values import Address, Container, Docker, GpuProcess, Interface, Listener, Privileges, Software
from apps.plan.printing import script, story
from apps.plan.spec import Clear, Given, Spec
from apps.plan.step import Plan
from apps.plan.stories import clear, launch, probe, relaunch, restore, stop
from apps.shell import Secret
from tests.plan import sheets
from tests.plan.sheets import (
    CONSENT,
    CONSENTED,
    GIVEN,
    gguf,
    pair,
    plain,
    qwen35,
    rtx,
    rtx_sglang,
    servers,
    sglang,
    tiny,
)


def cleared() -> dict[str, sheets.Sheet]:
    """The pair after its old stack was stopped and disabled."""
    made = pair(busy=False)
    for node, sheet in pair().items():
        units = tuple(replace(unit, active="inactive", enabled="disabled", pid=None) for unit in sheet.units or ())
        made[node] = replace(made[node], units=units, containers=())
    return made


GOLDEN = Path(__file__).parent / "golden"


def served(revision: int = 3, *, state: str = "running") -> dict[str, sheets.Sheet]:
    """The pair with both ranks of deployment 7 in place and the API's port open."""
    made = pair(busy=False)
    for rank, node in enumerate(("spark-1a32", "spark-5be3")):
        labels = {"sparkweb.deployment": "7", "sparkweb.revision": str(revision), "sparkweb.rank": str(rank)}
        own = Container(f"vllm-qwen35-r{rank}", image=sheets.IMAGE, state=state, labels=labels, memory_bytes=90 << 30)
        made[node] = replace(made[node], containers=(own,))
    head = made["spark-1a32"]
    made["spark-1a32"] = replace(head, listeners=(*(head.listeners or ()), Listener("0.0.0.0", 30000)))
    return made


def undo_of(plan: Plan) -> list[dict[str, object]]:
    return [step.undo for stage in plan.stages for step in stage.steps if step.undo]


def single() -> Spec:
    return qwen35(
        name="one",
        model="Qwen/Qwen3-8B",
        model_path=sheets.SMALL.path,
        max_model_len=None,
        nodes=("spark-5be3",),
        cluster="single",
        tensor_parallel=1,
        container="one",
        gpu_memory_utilization=0.8,
        secrets=(Secret("HF_TOKEN", "hub"),),
        environment=(("VLLM_LOGGING_LEVEL", "DEBUG"),),
        arguments=("--max-num-seqs", "8", "--port", "8000"),
    )


def command() -> Spec:
    return tiny(
        name="any",
        engine="command",
        model="any",
        executable="",
        arguments=("/opt/server/run", "--listen", "31000"),
        environment=(("MODE", "fast one"),),
    )


def command_in_docker() -> Spec:
    return replace(
        command(),
        nodes=("spark-5be3",),
        runtime="docker",
        image="vllm-node",
        model_path=sheets.SMALL.path,
        arguments=("python3", "-m", "some.server", "--port", "31000"),
    )


def rebooted() -> dict[str, sheets.Sheet]:
    made = pair()
    for node, sheet in made.items():
        assert sheet.machine
        made[node] = replace(sheet, machine=replace(sheet.machine, boot_id="second-boot", uptime_s=1440.0))
    return made


DISABLED = replace(CONSENTED, clear=tuple(replace(one, disable=one.kind == "unit") for one in CONSENT))

STORIES: dict[str, Callable[[], Plan]] = {
    "launch-ray-asks-consent": lambda: launch(qwen35(), pair(), given=GIVEN),
    "launch-ray-consented": lambda: launch(qwen35(), pair(), given=CONSENTED),
    "launch-ray-eight-ranks": lambda: launch(qwen35(tensor_parallel=8), servers(4, 4), given=GIVEN),
    "launch-ray-two-stages": lambda: launch(
        qwen35(tensor_parallel=4, arguments=("-pp", "2")), servers(4, 4), given=GIVEN
    ),
    "launch-native": lambda: launch(qwen35(cluster="native"), pair(busy=False), given=GIVEN),
    "launch-single": lambda: launch(single(), pair(busy=False), given=GIVEN),
    "launch-process": lambda: launch(tiny(), {"box": plain()}, given=GIVEN),
    "launch-command": lambda: launch(command(), {"box": plain()}, given=GIVEN),
    "launch-command-docker": lambda: launch(
        command_in_docker(), {"spark-5be3": pair(busy=False)["spark-5be3"]}, given=GIVEN
    ),
    "launch-sglang": lambda: launch(sglang(), pair(busy=False), given=GIVEN),
    "launch-sglang-single": lambda: launch(
        sglang(
            model="Qwen/Qwen3-8B",
            model_path=sheets.SMALL.path,
            nodes=("spark-5be3",),
            tensor_parallel=1,
            attention_backend="",
            max_model_len=32768,
        ),
        pair(busy=False),
        given=GIVEN,
    ),
    "launch-sglang-process": lambda: launch(rtx_sglang(), rtx(), given=GIVEN),
    "launch-llamacpp": lambda: launch(gguf(), pair(busy=False), given=GIVEN),
    "launch-llamacpp-process": lambda: launch(
        gguf(nodes=("pro6000",), runtime="process", executable="/opt/llama.cpp/bin/llama-server"), rtx(), given=GIVEN
    ),
    "launch-serves-already": lambda: launch(qwen35(), served(), given=replace(GIVEN, healthy=True)),
    "relaunch-rebooted": lambda: relaunch(qwen35(), rebooted(), given=DISABLED),
    "relaunch-process": lambda: relaunch(tiny(), {"box": plain()}, given=GIVEN),
    "relaunch-sglang": lambda: relaunch(sglang(), pair(busy=False), given=GIVEN),
    "relaunch-serves-already": lambda: relaunch(qwen35(), served(), given=replace(GIVEN, healthy=True)),
    "stop-ray": lambda: stop(qwen35(), served(), given=GIVEN),
    "stop-sglang": lambda: stop(sglang(), pair(busy=False), given=GIVEN),
    "stop-sglang-process": lambda: stop(rtx_sglang(), rtx(), given=GIVEN),
    "stop-process": lambda: stop(tiny(), {"box": plain()}, given=GIVEN),
    "stop-without-sheets": lambda: stop(qwen35(), {}, given=GIVEN),
    "clear": lambda: clear(("spark-1a32", "spark-5be3"), pair(), given=Given(clear=CONSENT)),
    "restore": lambda: restore(
        undo_of(relaunch(qwen35(), rebooted(), given=DISABLED)), ("spark-1a32", "spark-5be3"), cleared()
    ),
    "restore-nothing": lambda: restore(
        undo_of(relaunch(qwen35(), rebooted(), given=DISABLED)), ("spark-1a32", "spark-5be3"), pair()
    ),
    "probe": lambda: probe(("spark-1a32", "spark-5be3")),
}


def same_as_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{name} changed; UPDATE_GOLDEN=1 if it is meant"


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    same_as_golden(f"{name}.txt", story(STORIES[name]()))


@pytest.mark.parametrize("name", STORIES)
def test_stored_plan_is_the_plan(name: str) -> None:
    plan = STORIES[name]()
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.digest == plan.digest


@pytest.mark.parametrize("name", STORIES)
def test_keys_are_unique_and_scripts_are_posix(name: str) -> None:
    plan = STORIES[name]()
    steps = [step for stage in plan.stages for step in stage.steps]
    assert len({step.key for step in steps}) == len(steps)
    assert {step.node for step in steps} <= set(plan.nodes)
    texts = [step.script for step in steps if step.script] + [script(plan)]
    for text in texts:
        checked = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, f"{checked.stderr}\n{text}"


def test_downloadable_script() -> None:
    same_as_golden("launch-ray-consented.sh", script(STORIES["launch-ray-consented"]()))


def test_digest_ignores_what_was_only_measured() -> None:
    before = launch(qwen35(), pair(), given=CONSENTED)
    moved = pair()
    head = moved["spark-1a32"]
    assert head.memory and head.memory.available_bytes
    moved["spark-1a32"] = replace(
        head,
        taken_at=head.taken_at + 60,
        memory=replace(head.memory, available_bytes=head.memory.available_bytes + 10**8),
    )
    after = launch(qwen35(), moved, given=CONSENTED)
    assert after.fit != before.fit or after.problems != before.problems
    assert after.digest == before.digest
    assert launch(qwen35(port=30001), pair(), given=CONSENTED).digest != before.digest


def test_consent_settles_what_it_covers() -> None:
    asked = launch(qwen35(), pair(), given=GIVEN)
    assert [problem.name for problem in asked.refused] == ["memory_held"]
    settled = launch(qwen35(), pair(), given=CONSENTED)
    assert settled.refused == ()
    kept = next(problem for problem in settled.problems if problem.name == "memory_held")
    assert kept.severity == "fine" and len(kept.clear) == 7
    half = replace(CONSENTED, clear=CONSENT[:4])
    assert [problem.name for problem in launch(qwen35(), pair(), given=half).refused] == ["memory_held"]


def test_watch_may_say_that_it_is_not_healthy() -> None:
    plan = relaunch(qwen35(), served(), given=GIVEN)
    assert [stage.phase for stage in plan.stages][-1] == "verifying"
    assert any(step.key == "clear.own.spark-5be3" for stage in plan.stages for step in stage.steps)


@pytest.mark.parametrize(
    ("sheets_now", "healthy"), [(served(2), True), (served(state="exited"), True), (served(), False)]
)
def test_another_revision_a_dead_rank_or_an_old_sheet_is_not_serving(
    sheets_now: dict[str, sheets.Sheet], healthy: bool
) -> None:
    plan = launch(qwen35(), sheets_now, given=replace(GIVEN, healthy=healthy))
    keys = [step.key for stage in plan.stages for step in stage.steps]
    assert "serve.engine.spark-1a32" in keys
    assert keys.index("clear.own.spark-1a32") < keys.index("cluster.ray-head.spark-1a32")


def test_consents_of_things_that_are_not_there_are_never_words_of_a_command() -> None:
    strange = (
        Clear("spark-1a32", "unit", "--force"),
        Clear("spark-1a32", "container", "; reboot"),
        Clear("spark-1a32", "process", "1"),
        Clear("spark-1a32", "process", "-1"),
    )
    plan = launch(qwen35(), pair(busy=False), given=replace(GIVEN, clear=strange))
    text = "\n".join(step.script for stage in plan.stages for step in stage.steps)
    assert "--force" not in text and "reboot" not in text and "kill" not in text
    assert any(problem.name == "clear_gone" for problem in plan.problems)


def with_head(**changes: object) -> dict[str, sheets.Sheet]:
    made = pair(busy=False)
    made["spark-1a32"] = replace(made["spark-1a32"], **changes)  # type: ignore[arg-type]
    return made


def with_software(*found: Software) -> dict[str, sheets.Sheet]:
    return {node: replace(sheet, software=found) for node, sheet in pair(busy=False).items()}


def without_interfaces(prefix: str) -> dict[str, sheets.Sheet]:
    found = pair(busy=False)["spark-1a32"].interfaces or ()
    return with_head(interfaces=tuple(one for one in found if not one.name.startswith(prefix)))


def link_local() -> dict[str, sheets.Sheet]:
    made = pair(busy=False)
    for number, (node, sheet) in enumerate(made.items()):
        fabric = Interface(
            "enp1s0f0np0", True, 1500, 200000, True, (Address(f"169.254.7.{number + 5}", 16, "inet", True),)
        )
        made[node] = replace(sheet, interfaces=(fabric,))
    return made


def half_up() -> dict[str, sheets.Sheet]:
    found = pair(busy=False)["spark-1a32"].fabric or ()
    return with_head(fabric=tuple(replace(hca, state="DOWN") if hca.name == "roceP2p1s0f0" else hca for hca in found))


HEAD = pair(busy=False)["spark-1a32"]
assert HEAD.machine and HEAD.models and HEAD.images and HEAD.memory and HEAD.gpus
FOREIGN = Container("vllm-qwen35-r0", image="other:1", state="running", status="Up 3 hours", memory_bytes=1 << 28)
REFUSALS: dict[str, tuple[Spec, dict[str, sheets.Sheet]]] = {
    "nothing known of a node": (qwen35(), {"spark-1a32": HEAD}),
    "docker missing": (qwen35(), with_head(docker=Docker(False, problem="docker_missing"))),
    "docker silent": (qwen35(), with_head(docker=None)),
    "docker denied": (qwen35(), with_head(docker=Docker(True, problem="docker_denied"))),
    "image missing": (qwen35(image="nvcr.io/nvidia/vllm:26.10-py3"), pair(busy=False)),
    "image for another machine": (qwen35(), with_head(images=(replace(HEAD.images[0], arch="amd64"),))),
    "image differs": (qwen35(), with_head(images=(replace(HEAD.images[0], id="sha256:" + "c" * 64),))),
    "image too old": (
        qwen35(image="vllm-node"),
        {
            node: replace(sheet, software=(Software("image:vllm-node", {"vllm": "0.14.0rc2.dev262", "ray": "2.49.0"}),))
            for node, sheet in pair(busy=False).items()
        },
    ),
    "model missing": (qwen35(), with_head(models=())),
    "model incomplete": (qwen35(), with_head(models=(replace(HEAD.models[0], shards=38, complete=False),))),
    "too little memory": (qwen35(nodes=("spark-1a32",), cluster="single", tensor_parallel=1), pair(busy=False)),
    "share too high": (qwen35(gpu_memory_utilization=0.95), pair(busy=False)),
    "memory without a name": (
        qwen35(),
        {
            **pair(),
            "spark-1a32": replace(
                sheets.head(), containers=tuple(replace(one, memory_bytes=None) for one in sheets.OLD_STACK)
            ),
        },
    ),
    "a process holds the GPU": (
        qwen35(),
        with_head(
            memory=replace(HEAD.memory, available_bytes=40 << 30),
            gpus=replace(HEAD.gpus, processes=(GpuProcess(777, "/usr/bin/python3", 70_000, "C", 0),)),
        ),
    ),
    "foreign container": (qwen35(), with_head(containers=(FOREIGN,))),
    "port taken by a process": (qwen35(), with_head(listeners=(Listener("127.0.0.1", 30000, 4242, "nginx"),))),
    "port taken by nobody we see": (qwen35(), with_head(listeners=(Listener("*", 6379),))),
    "flashinfer with GDN layers": (qwen35(attention_backend="flashinfer"), pair(busy=False)),
    "tensor parallel and nodes differ": (qwen35(tensor_parallel=4), pair(busy=False)),
    "heads can't be split": (qwen35(tensor_parallel=3), pair(busy=False)),
    "heads can't be split on SGLang": (
        replace(rtx_sglang(), tensor_parallel=3),
        rtx(),
    ),
    "KV heads can't be split": (
        qwen35(),
        {
            node: replace(
                sheet,
                models=(
                    replace(
                        sheet.models[0],
                        config={
                            **sheets.QWEN35,
                            "text_config": {**sheets.QWEN35["text_config"], "num_key_value_heads": 3},
                        },
                    ),
                ),
            )
            for node, sheet in pair(busy=False).items()
            if sheet.models
        },
    ),
    "more ranks than GPUs": (rtx_sglang(tensor_parallel=8), rtx()),
    "more GPUs than there are for llama.cpp": (gguf(tensor_parallel=2), pair(busy=False)),
    "SGLang left to choose its attention with GDN layers": (sglang(attention_backend=""), pair(busy=False)),
    "SGLang with flashinfer and GDN layers": (sglang(attention_backend="flashinfer"), pair(busy=False)),
    "SGLang too old": (
        sglang(),
        with_software(Software(f"image:{sheets.SGLANG_IMAGE}", {"sglang": "0.5.7", "torch": "2.9.1"})),
    ),
    "no Ray in the image": (
        qwen35(),
        with_software(Software(f"image:{sheets.IMAGE}", {"vllm": "0.17.1", "torch": "2.9.1"}, None, sheets.IMAGE_ID)),
    ),
    "no SGLang in the image": (
        sglang(image=sheets.IMAGE),
        with_software(Software(f"image:{sheets.IMAGE}", {"vllm": "0.17.1", "torch": "2.9.1"}, None, sheets.IMAGE_ID)),
    ),
    "no SGLang in the environment": (
        rtx_sglang(),
        {
            "pro6000": replace(
                rtx()["pro6000"], software=(Software("venv:/opt/sglang", {"vllm": "0.17.1", "torch": "2.9.1"}),)
            )
        },
    ),
    "GGUF file missing": (gguf(model_path="/models/Qwen3-30B-A3B-GGUF/Qwen3-30B-A3B-Q8_0.gguf"), pair(busy=False)),
    "GGUF part missing": (
        gguf(model_path="/models/Qwen3-30B-A3B-GGUF/Qwen3-30B-A3B-BF16-00001-of-00002.gguf"),
        pair(busy=False),
    ),
    "fields that SGLang does not know": (
        sglang(kv_cache_dtype="fp8", cluster="ray", executable="/opt/venv/bin/vllm"),
        pair(busy=False),
    ),
    "fields that llama.cpp does not know": (
        gguf(
            model_path="/models/Qwen3-8B",
            nodes=("spark-1a32", "spark-5be3"),
            cluster="ray",
            reasoning_parser="qwen3",
            tool_call_parser="hermes",
            attention_backend="triton",
            gpu_memory_utilization=0.8,
            kv_cache_dtype="fp8",
            arguments=("stray",),
        ),
        pair(busy=False),
    ),
    "a command that leaves its fields": (
        replace(command(), executable="/opt/server/run", nodes=("spark-1a32", "spark-5be3"), cluster="native"),
        pair(busy=False),
    ),
    "the smallest can't hold its part": (
        qwen35(gpu_memory_utilization=None),
        with_head(memory=replace(HEAD.memory, total_bytes=60 << 30, available_bytes=56 << 30)),
    ),
    "one port for two things": (qwen35(cluster_port=30000), pair(busy=False)),
    "no fabric address": (qwen35(), without_interfaces("en")),
    "link-local fabric": (qwen35(), link_local()),
    "one twin down": (qwen35(), half_up()),
    "hardly enough memory": (qwen35(), with_head(memory=replace(HEAD.memory, available_bytes=int(101.6 * (1 << 30))))),
    "clock off": (qwen35(), with_head(machine=replace(HEAD.machine, clock_unix_s=HEAD.taken_at - 4000))),
    "unequal memory": (
        qwen35(),
        with_head(memory=replace(HEAD.memory, total_bytes=64 << 30, available_bytes=60 << 30)),
    ),
    "nonsense": (
        qwen35(name="No Way", port=80, gpu_memory_utilization=1.5, nodes=("spark-1a32",) * 2),
        pair(busy=False),
    ),
    "more stages than GPUs": (
        qwen35(tensor_parallel=4, arguments=("--pipeline_parallel_size=4",)),
        servers(4, 4),
    ),
    "unknown engine": (qwen35(engine="magic"), pair(busy=False)),
    "unknown architecture": (
        qwen35(),
        {
            node: replace(
                sheet, models=(replace(sheet.models[0], config={"model_type": "novel", "num_hidden_layers": 4}),)
            )
            for node, sheet in pair(busy=False).items()
            if sheet.models
        },
    ),
}


def findings(plan: Plan) -> str:
    kept = tuple(problem for problem in plan.problems if problem.severity != "fine")
    return story(replace(plan, stages=(), fit=None, problems=kept)).partition("\n")[2]


def test_refusals() -> None:
    """What each refusal says, in one file to read."""
    texts = [f"# {name}\n{findings(launch(spec, found, given=GIVEN))}" for name, (spec, found) in REFUSALS.items()]
    same_as_golden("refusals.txt", "\n".join(texts))


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_has_a_remedy(name: str) -> None:
    spec, found = REFUSALS[name]
    plan = launch(spec, found, given=GIVEN)
    told = [problem for problem in plan.problems if problem.severity != "fine"]
    assert told, f"{name} is not told"
    assert all(problem.remedy for problem in told)


def test_no_right_to_stop_units() -> None:
    made = pair()
    made["spark-1a32"] = replace(made["spark-1a32"], privileges=Privileges("password", True))
    plan = launch(qwen35(), made, given=CONSENTED)
    assert [problem.name for problem in plan.refused] == ["sudo_denied"]
    notes = [step for stage in plan.stages for step in stage.steps if step.kind == "note"]
    assert notes and "sudo" in notes[0].why


def test_environment_stays_per_node_when_interfaces_differ() -> None:
    made = pair(busy=False)
    second = made["spark-5be3"]
    made["spark-5be3"] = replace(
        second,
        interfaces=tuple(
            replace(one, name="fabric7") if one.name == "enp1s0f0np0" else one for one in second.interfaces or ()
        ),
        fabric=tuple(
            replace(hca, netdev="fabric7") if hca.netdev == "enp1s0f0np0" else hca for hca in second.fabric or ()
        ),
    )
    plan = launch(qwen35(), made, given=GIVEN)
    steps = {step.key: step for stage in plan.stages for step in stage.steps}
    assert "NCCL_SOCKET_IFNAME=fabric7" in steps["cluster.ray-worker.spark-5be3"].script
    assert "NCCL_SOCKET_IFNAME=enp1s0f0np0" in steps["cluster.ray-head.spark-1a32"].script
    assert "NCCL_SOCKET_IFNAME" in steps["serve.kept-per-node.spark-1a32"].script
    assert "ray_non_carry_over_env_vars.json" in steps["serve.kept-per-node.spark-1a32"].script


def test_addresses_that_were_not_read_are_not_called_missing() -> None:
    plan = launch(qwen35(), with_head(interfaces=None), given=GIVEN)
    assert [(problem.name, problem.node) for problem in plan.refused] == [("addresses_unknown", "spark-1a32")]
