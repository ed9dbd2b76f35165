"""Texts that mean harm: refused in words or read as plain words. Never an exception of ours, never a shell."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.plan.spec import validate
from apps.recipes.formats import bodies
from apps.recipes.formats.imported import Unreadable, taken
from apps.recipes.formats.recognise import FAMILIES, read
from tests.recipes.test_cases import FILES

CALM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
NASTY = [
    "$(reboot)", "`reboot`", "; reboot", "| sh", "&& reboot", "|| reboot", "> /etc/passwd", "\n reboot", "\r", "--privileged", "-v /:/x",
    "--trust-remote-code", "--trust_remote_code=true", "--trust-rem", "{port.__class__.__mro__}", "{0}", "{{", "}}", "%s%n", "\u202e", "\u2028",
    "é" * 50, "\ud800", "\0", "\x1b[31m", "../../etc/shadow", "~root/.ssh", "*", "&a *a", "!!python/object/apply:os.system [id]", "<<: *x",
    "- " * 40, "[" * 60, "'", '"', "\\", "#", "hf_ABCDEFGHIJKLMNOP", "", " ", "\t", "0x" + "f" * 99, "9" * 5000, "1e999", ".nan", "=", "A=", "-",
    "--", "---", "...", ": :", "yes", "null", "a" * 70_000, "${A:-$(id)}", "$$", "${", "$((1))", "<(id)", "[masked]",
]  # fmt: skip


def harmless(text: str, family: str = "") -> None:
    """It is read or refused; what is read can be stored, holds no code that would run unasked, and only what validate allows
    gets into a plan."""
    try:
        found = read(text, family=family)
    except Unreadable as problem:
        assert problem.message and problem.remedy
        return
    json.dumps(asdict(found)).encode("utf-8")
    assert bodies.stored(found.body)
    everything = taken(found.body, found.held)
    for body in (found.body, everything):
        bodies.errors(body, found.world_size)
    for service in (found.body, *found.body.get("services", ())):
        words = [str(word) for word in service.get("arguments", ())]
        assert not any(word.replace("_", "-").startswith("--trust-remote-code") for word in words)
        assert not service.get("model_path")
        plain = ("vllm", "sglang", "llama-server", "python", "python3")
        assert service.get("runtime") != "process" or service.get("executable", "vllm") in plain
        assert service.get("engine") != "command" or not words
        assert not {name for name, _ in service.get("environment", ())} & {"LD_PRELOAD", "PYTHONPATH", "VLLM_PLUGINS"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_something_nasty_at_every_word(path: Any) -> None:
    """Each nasty text once in the place of some word of each case."""
    text = path.read_text()
    words = text.split()
    for number, nasty in enumerate(NASTY):
        word = words[(number * 7 + 3) % len(words)]
        harmless(text.replace(word, nasty, 1))


@pytest.mark.parametrize("nasty", NASTY, ids=lambda text: repr(text[:20]))
def test_nothing_but_something_nasty(nasty: str) -> None:
    for family in ("", *FAMILIES):
        harmless(nasty, family)
        harmless(f"vllm serve {nasty}", family)
        harmless(
            f"model: a\nruntime: vllm\ncontainer: c\ndefaults: {{x: 1}}\ncommand: vllm serve {nasty}\n{nasty}: {nasty}\n",
            family,
        )


@CALM
@given(st.text(max_size=200), st.sampled_from(["", *FAMILIES]))
def test_any_text(text: str, family: str) -> None:
    harmless(text, family)


PIECES = st.sampled_from(
    [
        *(one for one in NASTY if len(one) < 100),
        "services:",
        "a:",
        "command:",
        "image: x",
        "vllm serve",
        "docker run",
        "\n",
        "\n  ",
        " ",
        "-e",
        "A=b",
        "--port",
        "8000",
    ]
)


@CALM
@given(st.lists(PIECES, max_size=14).map("".join))
def test_pieces_of_recipes_in_any_order(text: str) -> None:
    harmless(text)


VALUES: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 99999), st.sampled_from(NASTY[:40]), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        "recipe_version",
        "name",
        "description",
        "model",
        "container",
        "build_args",
        "mods",
        "defaults",
        "env",
        "command",
        "cluster_only",
        "solo_only",
        "runtime",
        "mode",
        "min_nodes",
        "max_nodes",
        "containers",
        "pre_exec",
        "executor",
        "executor_config",
        "cluster_config",
        "metadata",
        "sparkweb",
        "spec",
        "nodes",
        "services",
        "image",
        "x-sparkweb",
        "include",
        "model_revision",
    ]
)


@CALM
@given(st.dictionaries(KEYS, VALUES, max_size=8), st.sampled_from(["", "sparkweb", "eugr", "sparkrun", "compose"]))
def test_any_shape_of_values(value: dict[str, Any], family: str) -> None:
    harmless(json.dumps(value), family)
    service = {"image": "vllm/vllm-openai", **value}
    harmless(json.dumps({"services": {"a": service, "b": value}}), "compose")
    carried = {"nodes": 2, "spec": value}
    harmless(
        json.dumps({"recipe_version": "2", "model": "a/b", "runtime": "vllm", "metadata": {"sparkweb": carried}}),
        "sparkrun",
    )
    harmless(
        json.dumps({"recipe_version": "1", "container": "c", "command": "vllm serve a/b", "sparkweb": carried}), "eugr"
    )


def test_what_is_carried_for_us_is_judged_like_everything_else() -> None:
    """Our own key in a stranger's file is no way around a decision."""
    spec = {
        "arguments": ["--max-num-seqs", "8", "--trust-remote-code", "--worker-cls=evil.Worker", "--hf-overrides", '{"x_module_path": "evil"}'],
        "environment": {"LD_PRELOAD": "/tmp/x.so", "A": "b"},
        "model_path": "/etc",
        "executable": "/tmp/evil",
        "runtime": "process",
        "services": [{"model": "a/b", "service": "s", "engine": "command", "image": "i", "arguments": ["sh", "-c", "reboot"]}],
    }  # fmt: skip
    found = read(
        json.dumps(
            {
                "recipe_version": "2",
                "model": "a/b",
                "runtime": "vllm",
                "container": "c",
                "metadata": {"sparkweb": {"spec": spec}},
            }
        )
    )
    assert found.body["arguments"] == ["--max-num-seqs", "8"] and found.body["environment"] == [["A", "b"]]
    assert "model_path" not in found.body and "executable" not in found.body
    assert not found.body["services"][0].get("arguments")
    assert {one.kind for one in found.held} == {"trust", "environment", "path", "program", "command"}


def test_a_megabyte_of_each_kind() -> None:
    for text in (
        "vllm serve a/b " + "x" * 1_000_000,
        "vllm serve a/b " + "--a b " * 160_000,
        "vllm serve '" + "\n" * 1_000_000 + "'",
        "docker run " + "-e A=b " * 9_000 + "img vllm serve a/b",
        "recipe_version: '1'\ncontainer: c\ncommand: |\n" + "  vllm serve a/b \\\n" * 50_000,
        "services: {" + ", ".join(f"s{n}: {{image: vllm}}" for n in range(6_000)) + "}",
        "recipe_version: '1'\ncontainer: c\ndefaults: {x: '" + "y" * 500_000 + "'}\ncommand: vllm serve {x}{x}{x}{x}\n",
        "\u202e" * 300_000,
    ):
        harmless(text)


def test_what_is_taken_is_still_checked_for_a_deployment() -> None:
    found = read("docker run -v /a:/models img vllm serve /models/../etc --port 8000")
    spec = bodies.spec_of(taken(found.body, found.held), 1)
    assert {error.field for error in validate(spec)} == {"model_path"}
