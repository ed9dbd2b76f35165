"""SGLang, llama.cpp and commands: their words, what the form of a deployment leaves open, and whose each setting is."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from apps.facts.values import Address, Hca, Interface, Listener
from apps.plan import options
from apps.plan.allocating import filled
from apps.plan.checks.ports import needed_ports, next_free
from apps.plan.engines import llamacpp, ranks, sglang, vllm
from apps.plan.engines.site import Site, cluster_port, sites
from apps.plan.engines.table import ENGINES
from apps.plan.fabric import Fabric, fabric_address
from apps.plan.gates import judge
from apps.plan.preflight import find_model
from apps.plan.spec import ENGINES as NAMES
from apps.plan.spec import Given, Other, Spec, validate
from apps.plan.step import Plan, Setting, Step
from apps.plan.stories import launch
from apps.shell import Secret
from tests.plan import sheets
from tests.plan.sheets import GIVEN, pair, plain, qwen35, rtx, rtx_sglang, tiny
from tests.plan.test_hostile import HOSTILE


def steps_of(plan: Plan) -> dict[str, Step]:
    return {step.key: step for stage in plan.stages for step in stage.steps}


def any_command(**changes: object) -> Spec:
    made = tiny(name="any", engine="command", model="any", executable="", arguments=("/opt/server/run", "--x"))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_every_engine_has_its_file_and_its_name() -> None:
    assert tuple(ENGINES) == NAMES
    folder = Path(vllm.__file__).parent
    assert {f"{name}.py" for name in NAMES} <= {path.name for path in folder.iterdir()}


# Words


def test_the_program_of_sglang_is_its_environments_python_or_its_own() -> None:
    place = sites(rtx_sglang(), rtx())[0]
    assert isinstance(place, Site)
    assert sglang.command(rtx_sglang(), place, "").words[:3] == (
        "/opt/sglang/bin/python3",
        "-m",
        "sglang.launch_server",
    )
    own = rtx_sglang(executable="/opt/sglang/bin/sglang")
    assert sglang.command(own, place, "").words[:2] == ("/opt/sglang/bin/sglang", "serve")
    assert sglang.command(rtx_sglang(executable=""), place, "").words[0] == "python3"


def test_each_node_of_sglang_says_its_own_address() -> None:
    """Without it the ranks wait for ever, after NCCL is done: SGLang's own guess is the address towards the internet."""
    plan = launch(sheets.sglang(), pair(busy=False), given=GIVEN)
    rows = {one.nodes: one.effective for one in plan.settings if one.name == "SGLANG_HOST_IP"}
    assert rows == {("spark-1a32",): "192.168.200.12", ("spark-5be3",): "192.168.200.13"}


def test_a_further_argument_beats_a_default_of_ours_but_no_field() -> None:
    spec = sheets.gguf(arguments=("-ngl", "20", "--no-jinja", "--port", "9", "--ctx_size=5"))
    found = {one.flag: one for one in llamacpp.arguments(spec)}
    assert found["--n-gpu-layers"].effective == ("-ngl", "20") and found["--n-gpu-layers"].source == "yours"
    assert found["--jinja"].effective == ("--no-jinja",)
    assert found["--port"].effective == ("--port", "8080") and found["--port"].yours == ("--port", "9")
    assert found["--ctx-size"].effective == ("--ctx-size", "65536") and found["--ctx-size"].yours == ("--ctx_size=5",)


def test_the_images_own_server_is_given_options_alone() -> None:
    steps = steps_of(launch(sheets.gguf(), pair(busy=False), given=GIVEN))
    run = steps["cluster.rank0.spark-5be3"].commands[0]
    assert f"{sheets.LLAMACPP_IMAGE} --model /models" in run and "--entrypoint" not in run
    named = launch(sheets.gguf(executable="/app/llama-server"), pair(busy=False), given=GIVEN)
    run = steps_of(named)["cluster.rank0.spark-5be3"].commands[0]
    assert "--entrypoint /app/llama-server" in run and f"{sheets.LLAMACPP_IMAGE} --model" in run


def test_an_image_whose_entry_point_is_an_engine_is_told_the_program() -> None:
    """vllm/vllm-openai begins with `vllm serve`: a command after it would be that one's arguments."""
    found = pair(busy=False)
    for node, sheet in found.items():
        images = tuple(
            replace(image, entrypoint=("vllm", "serve")) if (image.ref or "").startswith(sheets.IMAGE) else image
            for image in sheet.images or ()
        )
        found[node] = replace(sheet, images=images)
    single = qwen35(nodes=("spark-5be3",), cluster="single", tensor_parallel=1, gpu_memory_utilization=0.5)
    run = steps_of(launch(single, found, given=GIVEN))["cluster.rank0.spark-5be3"].commands[0]
    assert "--entrypoint vllm" in run and f"{sheets.IMAGE} serve /models" in run
    ray = steps_of(launch(qwen35(), found, given=GIVEN))["cluster.ray-head.spark-1a32"].commands[0]
    assert "--entrypoint ray" in ray and f"{sheets.IMAGE} start --head --block" in ray
    shell = {
        node: replace(
            sheet, images=tuple(replace(one, entrypoint=("/opt/nvidia/nvidia_entrypoint.sh",)) for one in sheet.images)
        )
        for node, sheet in found.items()
        if sheet.images
    }
    assert "--entrypoint" not in steps_of(launch(qwen35(), shell, given=GIVEN))["cluster.ray-head.spark-1a32"].script


def test_llama_cpp_sees_as_many_gpus_as_it_is_given() -> None:
    spec = sheets.gguf(nodes=("pro6000",), runtime="process", executable="/opt/llama.cpp/bin/llama-server")
    asked = {one.name: one for one in launch(spec, rtx(), given=GIVEN).settings}
    assert asked["CUDA_VISIBLE_DEVICES"].effective == "0" and "of the 4 GPUs" in asked["CUDA_VISIBLE_DEVICES"].reason
    every = {one.name for one in launch(replace(spec, tensor_parallel=4), rtx(), given=GIVEN).settings}
    assert "CUDA_VISIBLE_DEVICES" not in every


@pytest.mark.parametrize(
    ("engine", "words", "wanted"),
    [
        ("sglang", ("--tp", "9", "--pp", "2"), 4),
        ("sglang", ("--pipeline-parallel-size=2", "--dp-size", "2"), 8),
        ("sglang", ("--dp-size", "2", "--enable-dp-attention"), 2),
        ("vllm", ("-pp", "2"), 4),
        ("llamacpp", ("-c", "8"), 2),
    ],
)
def test_each_engines_own_names_are_read(engine: str, words: tuple[str, ...], wanted: int) -> None:
    assert options.ranks(qwen35(engine=engine, cluster="native", arguments=words)) == wanted


# Whose each setting is


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (qwen35(), pair(busy=False)),
        (qwen35(cluster="native"), pair(busy=False)),
        (sheets.sglang(), pair(busy=False)),
        (rtx_sglang(), rtx()),
        (sheets.gguf(), pair(busy=False)),
        (any_command(), {"box": plain()}),
    ],
    ids=["ray", "native", "sglang", "sglang process", "llamacpp", "command"],
)
def test_every_setting_of_ours_has_its_reason_and_stands_in_the_commands(
    spec: Spec, found: dict[str, sheets.Sheet]
) -> None:
    spec = replace(spec, secrets=(Secret("HF_TOKEN", "hub"),), environment=(("HF_HUB_OFFLINE", "0"), ("A", "b")))
    plan = launch(spec, found, given=GIVEN)
    assert plan.settings
    assert all(one.reason for one in plan.settings if one.source == "ours")
    told = " ".join(step.script for stage in plan.stages for step in stage.steps)
    for one in plan.settings:
        if one.name == "HF_TOKEN":
            assert one.effective == "the secret “hub”"
        elif one.effective:
            words = one.effective if one.kind == "argument" else f"{one.name}={one.effective}"
            assert all(shlex.quote(word) in told for word in shlex.split(words)), one
    own = next(one for one in plan.settings if one.name == "HF_HUB_OFFLINE")
    assert (own.source, own.effective) == ("yours", "0")
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again.settings == plan.settings
    older = plan.to_json()
    del older["settings"]
    assert Plan.from_json(older).settings == ()


def test_what_differs_between_the_ranks_stands_once_for_each() -> None:
    plan = launch(
        qwen35(cluster="native", arguments=("--headless", "--max-num-seqs", "8")), pair(busy=False), given=GIVEN
    )
    found: dict[str, list[Setting]] = {}
    for one in plan.settings:
        found.setdefault(one.name, []).append(one)
    assert [(one.effective, one.nodes) for one in found["--node-rank"]] == [
        ("--node-rank 0", ("spark-1a32",)),
        ("--node-rank 1", ("spark-5be3",)),
    ]
    assert found["--max-num-seqs"][0].nodes == () and found["--max-num-seqs"][0].source == "yours"
    dropped = next(one for one in found["--headless"] if not one.effective)
    assert dropped.yours == "--headless" and dropped.reason


# Ports and ranks from what there is


def serving(spec: Spec, name: str = "other", state: str = "serving") -> Other:
    return Other(1, name, state, spec)


def test_ports_come_from_the_other_deployments() -> None:
    found = pair(busy=False)
    body = {"model": "a/b", "model_path": "", "image": "x"}
    first = filled(body, name="new", nodes=["spark-1a32", "spark-5be3"], sheets=found, others=())
    assert (first["port"], first.get("cluster_port"), first["cluster"], first["tensor_parallel"]) == (
        30000,
        None,
        "ray",
        2,
    )
    others = (serving(qwen35()), serving(qwen35(port=30001, cluster_port=6380), "third", "stopped"))
    second = filled(body, name="new", nodes=["spark-1a32", "spark-5be3"], sheets=found, others=others)
    assert (second["port"], second["cluster_port"]) == (30002, 6381), "also of those that are stopped now"
    alone = filled({**body, "engine": "sglang"}, name="new", nodes=["spark-5be3"], sheets=found, others=others)
    assert (alone["port"], alone["cluster"], alone["tensor_parallel"]) == (30000, "single", 1)
    assert (
        filled({**body, "engine": "command"}, name="n", nodes=["spark-5be3"], sheets=found, others=()).get(
            "tensor_parallel"
        )
        is None
    )
    four = filled(body, name="new", nodes=["pro6000"], sheets=rtx(), others=())
    assert four["tensor_parallel"] == 4
    chosen = filled(
        {**body, "port": 31000, "tensor_parallel": 1, "cluster": "native"},
        name="n",
        nodes=["spark-1a32"],
        sheets=found,
        others=others,
    )
    assert (chosen["port"], chosen["tensor_parallel"], chosen["cluster"]) == (31000, 1, "native")
    assert filled({"nonsense": 1}, name="n", nodes=[], sheets={}, others=()) == {
        "nonsense": 1,
        "cluster": "single",
        "tensor_parallel": 1,
    }


def test_a_taken_port_names_its_holder_and_the_next_free_one() -> None:
    found = pair(busy=False)
    busy = replace(found["spark-1a32"], listeners=(Listener("0.0.0.0", 30000, 77, "nginx"), Listener("0.0.0.0", 30001)))
    plan = launch(qwen35(), {**found, "spark-1a32": busy}, given=GIVEN)
    told = next(one for one in plan.problems if one.name == "port_busy")
    assert "taken by nginx" in told.title and "port 30002 is free" in told.remedy
    given = replace(GIVEN, others=(serving(qwen35(port=31000), state="launching"),))
    told = next(one for one in launch(qwen35(), found, given=given).problems if one.name == "other_deployment")
    assert told.deployment == 1 and "port 6379" in told.meaning and told.change == {"cluster_port": 6380}
    assert "6380 is free as cluster_port" in told.remedy
    stopped = replace(GIVEN, others=(serving(qwen35(port=31000), state="stopped"),))
    assert not [one for one in launch(qwen35(), found, given=stopped).problems if one.name == "other_deployment"]
    assert next_free(qwen35(), found["spark-1a32"], Given(), 65535) is None


def test_which_ports_a_node_needs() -> None:
    both = ("spark-1a32", "spark-5be3")
    assert [needed_ports(qwen35(), node) for node in both] == [(30000, 6379), ()]
    assert [needed_ports(qwen35(cluster="native", cluster_port=29999), node) for node in both] == [(30000, 29999), ()]
    assert [needed_ports(sheets.sglang(), node) for node in both] == [(30000, 25000), (30000,)], (
        "each answers health checks"
    )
    assert needed_ports(rtx_sglang(), "pro6000") == (30000,) and needed_ports(rtx_sglang(), "elsewhere") == ()
    assert cluster_port(sheets.gguf()) is None and cluster_port(any_command()) is None


def test_the_port_where_ranks_meet_is_looked_for_and_not_touched() -> None:
    gate = {"name": "port_listening", "port": 25000, "container": "c"}
    listing = "LISTEN 0 128 192.168.200.12:25000 0.0.0.0:*\n"
    assert judge(gate, f"running 0\n{listing}", 0).done
    assert not judge(gate, "running 0\n", 0).done and judge(gate, "running 0\n", 0).failed is None
    assert judge(gate, f"exited 1\n{listing}", 0).failed == "exited"
    assert judge(gate, "", None).failed is None


# The cable


def test_only_the_devices_that_lead_to_the_others() -> None:
    """Another active port, whose subnet the others don't share, is no way to them; one that they share is."""
    found = pair(busy=False)
    head, second = found["spark-1a32"], found["spark-5be3"]
    alone = replace(
        head,
        interfaces=(
            *(head.interfaces or ()),
            Interface("enp9s0", True, 9000, 200000, True, (Address("10.77.0.1", 24),)),
        ),
        fabric=(*(head.fabric or ()), Hca("mlx5_9", 1, "ACTIVE", netdev="enp9s0", gid_index=5)),
    )
    place = fabric_address(alone, [second])
    assert isinstance(place, Fabric)
    assert place.hcas == ("roceP2p1s0f0", "rocep1s0f0") and place.gid_index == 3
    shared = replace(
        second,
        interfaces=(
            *(second.interfaces or ()),
            Interface("enp9s0", True, 9000, 200000, True, (Address("10.77.0.2", 24),)),
        ),
        fabric=(*(second.fabric or ()), Hca("mlx5_9", 1, "ACTIVE", netdev="enp9s0", gid_index=5)),
    )
    place = fabric_address(alone, [shared])
    assert isinstance(place, Fabric)
    assert "mlx5_9" in place.hcas and place.gid_index is None, "the tables differ: NCCL chooses"


def test_a_gid_index_is_never_guessed() -> None:
    found = {
        node: replace(sheet, fabric=tuple(replace(hca, gid_index=None) for hca in sheet.fabric or ()))
        for node, sheet in pair(busy=False).items()
    }
    plan = launch(sheets.sglang(), found, given=GIVEN)
    assert "NCCL_IB_HCA" in {one.name for one in plan.settings}
    assert "NCCL_IB_GID_INDEX" not in {one.name for one in plan.settings}


# GGUF files


def test_a_gguf_file_is_a_model_of_its_own() -> None:
    sheet, folder = pair()["spark-5be3"], "/models/Qwen3-30B-A3B-GGUF"
    one = find_model(sheet, sheets.GGUF_PATH)
    assert one and (one.weights_bytes, one.complete) == (18_600_000_000, True)
    split = find_model(sheet, f"{folder}/Qwen3-30B-A3B-Q5_K_M-00001-of-00002.gguf")
    assert split and (split.weights_bytes, split.shards, split.complete) == (21_700_000_000, 2, True)
    half = find_model(sheet, f"{folder}/Qwen3-30B-A3B-BF16-00001-of-00002.gguf")
    assert half and half.complete is False and half.missing == ("Qwen3-30B-A3B-BF16-00002-of-00002.gguf",)
    assert find_model(sheet, f"{folder}/none.gguf") is None and find_model(sheet, "/elsewhere/x.gguf") is None


# Hostile words

TEXTS = ("model", "model_path", "image", "container", "executable", "served_model_name", "api_host", "kv_cache_dtype")
OF_SGLANG = (*TEXTS, "reasoning_parser", "tool_call_parser", "attention_backend")


def hostile() -> Iterator[tuple[str, list[Spec], dict[str, sheets.Sheet]]]:
    """By field: one spec for each hostile value in it."""
    bases = (
        (sheets.sglang(), pair(busy=False), OF_SGLANG),
        (rtx_sglang(), rtx(), OF_SGLANG),
        (sheets.gguf(), pair(busy=False), TEXTS),
        (sheets.gguf(nodes=("pro6000",), runtime="process", executable="/opt/l/bin/llama-server"), rtx(), TEXTS),
    )
    for base, found, names in bases:
        for name in names:
            yield name, [replace(base, **{name: value}) for value in HOSTILE], found


def words_of(*texts: str) -> list[list[str]]:
    """The words that a real /bin/sh makes of each of these command lines."""
    asked = "".join(f"printf '%s\\0' {text.removeprefix('exec ')}\nprintf '\\001\\0'\n" for text in texts)
    made = subprocess.run(
        ["/bin/sh", "-s"],
        input=asked.encode(),
        capture_output=True,
        check=True,
        env={"PATH": "/p", "SPARKWEB_RUN": "R"},
    )
    assert not made.stderr
    return [part.split("\0")[:-1] for part in made.stdout.decode().split("\1\0")[:-1]]


def printed(spec: Spec, found: dict[str, sheets.Sheet]) -> tuple[str, list[str]]:
    """The command line of the first rank, and the words that must come of it, at its end."""
    engine, places = ENGINES[spec.engine], [place for place in sites(spec, found) if isinstance(place, Site)]
    command = engine.command(spec, places[0], ranks.master_of(places))
    values = [(one.name, one.value) for one in engine.variables(spec, places[0])]
    if spec.runtime == "process":
        return ranks.process(spec, values, command).text, [f"{key}={text}" for key, text in values] + list(
            command.words
        )
    made = ranks.container(engine, spec, places[0], GIVEN, command)
    return made.run().text, [made.image, *made.command]


def test_the_printed_commands_of_every_engine_are_the_words_that_were_asked_for() -> None:
    """Each field with each hostile value: the shell finds the same words again."""
    tried = 0
    for name, specs, found in hostile():
        pairs = [printed(spec, found) for spec in specs]
        for (_, expected), words in zip(pairs, words_of(*(text for text, _ in pairs)), strict=True):
            assert words[-len(expected) :] == expected, (name, expected)
            tried += 1
    assert tried > 900


def test_what_is_refused_by_its_field_becomes_no_step() -> None:
    for name, specs, found in hostile():
        wrong = [spec for spec in specs if name in {error.field for error in validate(spec)}]
        assert len(wrong) > 20, name
        plan = launch(wrong[0], found, given=GIVEN)
        assert plan.stages == () and any(f"{name}: " in one.title for one in plan.refused)


def test_arguments_environment_and_a_megabyte_stay_words() -> None:
    many = tuple(f"--x={value}" for value in HOSTILE)
    pairs = tuple((f"V{number}", value) for number, value in enumerate(HOSTILE))
    for spec, found in (
        (sheets.sglang(arguments=many, environment=pairs), pair(busy=False)),
        (sheets.gguf(arguments=many, environment=pairs), pair(busy=False)),
        (any_command(arguments=("/opt/run", *many), environment=pairs), {"box": plain()}),
    ):
        engine = ENGINES[spec.engine]
        place = sites(spec, found)[0]
        assert isinstance(place, Site)
        values = [(one.name, one.value) for one in engine.variables(spec, place)]
        command = engine.command(spec, place, "10.0.0.1")
        script = ranks.process(replace(spec, runtime="process"), values, command).text
        (words,) = words_of(script)
        assert words[-len(many) :] == list(many)
        assert all(f"{key}={text}" in words for key, text in pairs)
    big = "x'" * (1 << 19)
    spec = any_command(arguments=("/opt/run", big))
    script = ranks.process(spec, (), ENGINES["command"].command(spec, place, "")).text
    assert words_of(script)[0][-1] == big
