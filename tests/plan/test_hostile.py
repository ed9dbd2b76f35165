"""Values that try to become shell grammar or options: they stay words, or are refused by name."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.plan.commands import docker
from apps.plan.engines import ranks, vllm
from apps.plan.engines.site import Site, sites
from apps.plan.printing import script, story
from apps.plan.spec import Clear, Given, Spec, validate
from apps.plan.stories import clear, launch, restore, stop
from apps.shell import Secret
from tests.plan.sheets import GIVEN, pair, qwen35, tiny

HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "&& touch pwned",
    "| touch pwned",
    "> pwned",
    "a\ntouch pwned\n",
    "a\rb",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "\\",
    "$SPARKWEB_RUN",
    "${IFS}",
    "*",
    "~root",
    "#",
    "--help",
    "-v",
    "",
    " ",
    "\t",
    "!!",
    "\x1b[31m",
    "ü\u202e",
    "a" * 5000,
    "%s%n",
    "{a,b}",
    "esac",
    ";;",
    "*) touch pwned ;;",
)
TEXT_FIELDS = (
    "model",
    "model_path",
    "image",
    "container",
    "served_model_name",
    "api_host",
    "reasoning_parser",
    "tool_call_parser",
    "attention_backend",
    "kv_cache_dtype",
)
ECHO = """#!/bin/sh
case "$1" in inspect) exit 1 ;; esac
printf '%s\\0' "$0" "$@" >> "$RECORD"
printf '\\n--- end of call ---\\n\\0' >> "$RECORD"
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose bin has nothing but stand-ins that write down their words."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "bin").mkdir()
    for name in ("docker", "env", "touch"):
        path = folder / "bin" / name
        path.write_text(ECHO)
        path.chmod(0o755)
    return folder


def played(text: str, stage: Path) -> list[list[str]]:
    """The words of every program that the script really calls, in order."""
    record = stage / f"record-{os.getpid()}"
    record.unlink(missing_ok=True)
    result = subprocess.run(
        ["/bin/sh", "-s"],
        input=text.encode(),
        cwd=stage,
        capture_output=True,
        check=False,
        env={"PATH": str(stage / "bin"), "RECORD": str(record), "SPARKWEB_RUN": "RUN-1"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == b""
    assert not (stage / "pwned").exists()
    calls: list[list[str]] = [[]]
    for word in record.read_bytes().decode().split("\0")[:-1]:
        if word == "\n--- end of call ---\n":  # a field may be a line end by itself
            calls.append([])
        else:
            calls[-1].append(word)
    return [[Path(call[0]).name, *call[1:]] for call in calls if call]


def places(spec: Spec) -> tuple[Site, ...]:
    found = sites(spec, pair(busy=False))
    assert all(isinstance(one, Site) for one in found)
    return tuple(one for one in found if isinstance(one, Site))


def expected_run(spec: Spec, place: Site, command: tuple[str, ...]) -> list[str]:
    """The words of `docker run`, put together without any shell."""
    words = ["docker", "run", "-d", "--name", place.container, "--gpus", "all", "--network", "host", "--ipc", "host"]
    words += ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1:-1", *docker.LOGGED]
    if spec.model_path:
        words += ["-v", f"{ranks.mount_of(spec.model_path)}:{ranks.mount_of(spec.model_path)}:ro"]
    else:
        words += ["-v", "/home/aurora/.cache/huggingface:/root/.cache/huggingface"]
    for name, value in vllm.environment(spec, place):
        words += ["-e", f"{name}={value}"]
    for secret in spec.secrets:
        words += ["-e", secret.variable]
    for label in ("deployment=7", "revision=3", f"rank={place.rank}", "run=RUN-1"):
        words += ["--label", f"sparkweb.{label}"]
    return [*words, spec.image, *command]


def check_scripts(spec: Spec, stage: Path) -> None:
    """Start and serve of the native mode: every field of the spec is in one of the two."""
    head = places(spec)[0]
    master = head.fabric.address if head.fabric else ""
    command = vllm.serve_words(spec, rank=0, master=master).words
    made = docker.start(vllm.container(spec, head, GIVEN, vllm.serve_words(spec, rank=0, master=master)))
    assert played(made.text, stage) == [expected_run(spec, head, command)]
    shown = made.text.splitlines()
    assert shown[0] == "set -eu"


@pytest.mark.parametrize("name", TEXT_FIELDS)
def test_a_field_is_a_word(name: str, stage: Path) -> None:
    for value in HOSTILE:
        check_scripts(qwen35(cluster="native", **{name: value}), stage)


def test_arguments_environment_and_secrets_are_words(stage: Path) -> None:
    spec = qwen35(
        cluster="native",
        arguments=("--speculative-config", '{"method": "$(touch pwned)"}', *(f"--x={value}" for value in HOSTILE)),
        environment=tuple((f"V{number}", value) for number, value in enumerate(HOSTILE)),
        secrets=(Secret("HF_TOKEN", "hub; touch pwned"),),
    )
    check_scripts(spec, stage)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40),
    name=st.sampled_from(TEXT_FIELDS),
)
def test_any_text_is_a_word(value: str, name: str, stage: Path) -> None:
    check_scripts(qwen35(cluster="native", **{name: value}), stage)


def test_serving_by_ray_and_as_a_process(stage: Path) -> None:
    for value in HOSTILE:
        spec = qwen35(served_model_name=value, container=value, model_path=value)
        steps = {step.key: step for made in vllm.stages(spec, places(spec), GIVEN) for step in made.steps}
        words = ["docker", "exec", places(spec)[0].container, *vllm.serve_words(spec).words]
        assert played(steps["serve.engine.spark-1a32"].script, stage) == [words]
        assert shlex.split(steps["serve.engine.spark-1a32"].script)[1:] == words
        alone = tiny(served_model_name=value, environment=(("A", value),))
        place = replace(places(qwen35())[0], node="box", fabric=None)
        step = next(step for made in vllm.stages(alone, (place,), GIVEN) for step in made.steps if step.kind == "serve")
        pairs = [f"{key}={text}" for key, text in vllm.environment(alone, place)]
        expected = [
            "env",
            f"PATH=/opt/venv/bin:{stage / 'bin'}",
            *pairs,
            *vllm.serve_words(alone, program="/opt/venv/bin/vllm").words,
        ]
        assert played(step.script, stage) == [expected]


def refused_fields(spec: Spec) -> set[str]:
    errors = validate(spec)
    assert all(error.message and error.remedy for error in errors)
    assert all(line.isprintable() for error in errors for line in (error.message, error.remedy))
    return {error.field for error in errors}


@pytest.mark.parametrize("name", [*TEXT_FIELDS, "name"])
def test_nonsense_in_a_field_is_refused_by_its_name(name: str) -> None:
    allowed_empty = {
        "model_path",
        "container",
        "served_model_name",
        "reasoning_parser",
        "tool_call_parser",
        "attention_backend",
        "kv_cache_dtype",
    }
    for value in HOSTILE:
        found = refused_fields(qwen35(**{name: value}))
        if value == "" and name in allowed_empty:
            assert name not in found
        elif name != "name" or value != "esac":
            harmless = value in ("esac",) or (value == "a" * 5000 and name in ("model", "model_path"))
            assert name in found or harmless, (name, value)


def nonsense() -> Iterator[tuple[str, Spec]]:
    good = qwen35()
    yield "nodes", replace(good, nodes=())
    yield "nodes", replace(good, nodes=("spark-1a32", "spark-1a32"))
    yield "nodes", replace(good, nodes=("-rf",))
    yield "nodes", replace(good, nodes=("a b",))
    for port in (0, 80, 70000, -1, True, 1.5, "30000"):
        yield "port", replace(good, port=port)  # type: ignore[arg-type]
    for size in (0, -2, True, 2.0):
        yield "tensor_parallel", replace(good, tensor_parallel=size)  # type: ignore[arg-type]
    for share in (0, 1, 1.5, -0.1, float("nan"), float("inf"), True, "0.8"):
        yield "gpu_memory_utilization", replace(good, gpu_memory_utilization=share)  # type: ignore[arg-type]
    yield "max_model_len", replace(good, max_model_len=0)
    yield "os_floor_gib", replace(good, os_floor_gib=-1.0)
    yield "smoke_max_tokens", replace(good, smoke_max_tokens=0)
    yield "engine", replace(good, engine="magic")
    yield "runtime", replace(good, runtime="chroot")
    yield "cluster", replace(good, cluster="slurm")
    yield "cluster", replace(good, cluster="single")
    yield "cluster", replace(good, runtime="process")
    yield "on_rank_lost", replace(good, on_rank_lost="pray")
    yield "model_path", replace(good, model_path="models/relative")
    yield "model_path", replace(good, model_path="/models/../etc")
    yield "model_path", replace(good, model_path="/models/a:b")
    yield "executable", replace(tiny(), executable="-c")
    yield "arguments", replace(good, arguments=("stray",))
    yield "arguments", replace(good, arguments=("--a", "b\nc"))
    yield "arguments", replace(good, engine="command", nodes=("spark-1a32",), arguments=("-x",))
    yield "arguments", replace(good, engine="command", nodes=("spark-1a32",), arguments=())
    yield "environment", replace(good, environment=(("A B", "x"),))
    yield "environment", replace(good, environment=(("SPARKWEB_RUN", "x"),))
    yield "environment", replace(good, environment=(("A", "x\ny"),))
    yield "environment", replace(good, environment=(("TOKEN", "x"),), secrets=(Secret("TOKEN", "hub"),))
    yield "secrets", replace(good, secrets=(Secret("A=B", "hub"),))


@pytest.mark.parametrize(("name", "spec"), nonsense())
def test_validate_refuses(name: str, spec: Spec) -> None:
    assert name in refused_fields(spec)


def test_validate_accepts_what_the_systems_need() -> None:
    for spec in (
        qwen35(),
        tiny(),
        qwen35(arguments=("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}', "-O3")),
        qwen35(api_host="::", image="nvcr.io/nvidia/vllm:26.10-py3@sha256:" + "a" * 64, kv_cache_dtype="fp8_e5m2"),
        qwen35(engine="command", nodes=("spark-1a32",), cluster="single", arguments=("/opt/run", "--port", "30000")),
    ):
        assert validate(spec) == []


@pytest.mark.parametrize("value", ["a\0b", "\0", "x" * 100, "-x", "\n"])
@pytest.mark.parametrize("name", [*TEXT_FIELDS, "name", "executable", "engine", "cluster", "runtime"])
def test_no_value_makes_a_story_raise(name: str, value: str) -> None:
    spec = qwen35(**{name: value})
    plan = launch(spec, pair(), given=GIVEN)
    if validate(spec):
        assert plan.stages == () and any(problem.name == "bad_args" for problem in plan.problems)
    assert story(plan) and script(plan)
    assert stop(spec, pair(), given=GIVEN).stages


def test_titles_can_not_leave_their_comment(stage: Path) -> None:
    """The downloadable script puts names into comments."""
    spec = qwen35(served_model_name="x", model_path="/models/x")
    plan = launch(spec, pair(busy=False), given=GIVEN)
    bad = "title\ntouch pwned\n"
    stages = tuple(
        replace(one, name=bad, steps=tuple(replace(step, title=bad, why=bad, commands=(bad,)) for step in one.steps))
        for one in plan.stages
    )
    text = script(replace(plan, story=bad, stages=stages))
    result = subprocess.run(
        ["/bin/sh", "-s", "none"],
        input=text.encode(),
        cwd=stage,
        capture_output=True,
        check=False,
        env={"PATH": str(stage / "bin"), "RECORD": "/dev/null"},
    )
    assert result.returncode == 2 and b"usage" in result.stderr
    assert not [line for line in text.splitlines() if line.startswith("touch")]


def test_clearing_and_restoring_names_are_words(stage: Path) -> None:
    undo = [{"node": "n", "units": [{"unit": value, "was_enabled": True, "was_active": True} for value in HOSTILE]}]
    plan = restore(undo, ["n"])
    for step in plan.stages[0].steps:
        assert set(shlex.split(step.script)[4:]) == set(HOSTILE)
    items = tuple(Clear("spark-1a32", kind, value) for kind in ("unit", "container", "process") for value in HOSTILE)
    cleared = clear(("spark-1a32",), pair(), given=Given(clear=items))
    assert [step.kind for step in cleared.stages[0].steps] == ["note"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arguments", ("--api-key", "anything")),
        ("arguments", ("--api-key=anything",)),
        ("arguments", ("--hf-token", "hf_" + "a" * 34)),
        ("arguments", ("--x", "hf_" + "a" * 34)),
        ("environment", (("HF_TOKEN", "anything"),)),
        ("environment", (("VLLM_API_KEY", "anything"),)),
        ("environment", (("AWS_SECRET_ACCESS_KEY", "anything"),)),
        ("environment", (("db_password", "anything"),)),
        ("environment", (("NOTE", "hf_" + "a" * 34),)),
    ],
)
def test_a_secret_in_the_open_is_refused_and_not_repeated(field: str, value: tuple[object, ...]) -> None:
    errors = [error for error in validate(replace(tiny(), **{field: value})) if error.field == field]
    assert errors and "Secrets" in errors[0].remedy
    assert not any("anything" in error.message or "hf_aaa" in error.message for error in errors)


def test_ordinary_words_are_no_secrets() -> None:
    words = ("--max-num-batched-tokens", "8192", "--return-tokens-as-token-ids", "--ssl-keyfile", "/etc/tls/key.pem")
    pairs = (
        ("TOKENIZERS_PARALLELISM", "false"),
        ("HF_HUB_OFFLINE", "1"),
        ("HF_TOKEN_PATH", "/run/token"),
        ("HF_TOKEN", ""),
    )
    assert validate(replace(tiny(), arguments=words, environment=pairs)) == []


@pytest.mark.parametrize("text", ["a\u202eb", "a\u200bb", "a\x1b[31m", "a\u2028b", "a\ud800"])
@pytest.mark.parametrize("field", ["arguments", "environment", "model_path", "executable"])
def test_nothing_that_reads_otherwise_than_it_runs(field: str, text: str) -> None:
    values = {"arguments": ("--x", text), "environment": (("A", text),)}
    value = values.get(field, f"/{text}")
    spec = replace(
        tiny(), **{field: value}, **({"runtime": "process", "cluster": "single"} if field == "executable" else {})
    )
    assert field in [error.field for error in validate(spec)]
