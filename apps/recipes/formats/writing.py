"""What the writers of recipes share: the engine's command line of a body, and what a format has no words for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from apps.plan.options import group
from apps.recipes.formats import bodies, own, placeholders
from apps.recipes.formats.imported import Draft
from apps.recipes.formats.vllm_serve import FIELDS
from apps.recipes.formats.yaml_text import Document, dump, load


class Unwritable(Exception):
    """A format can't say this: why, and the way on."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy


STARTS = {"vllm": ("vllm", "serve"), "sglang": ("sglang", "serve"), "llamacpp": ("llama-server",)}
# The option of each engine that a field becomes: the first that reading knows for it.
OPTIONS = {
    engine: {field: option for option, field in reversed(known.items()) if field != "model"}
    for engine, known in FIELDS.items()
}
# fmt: off
ORDER = [
    "served_model_name", "api_host", "port", "tensor_parallel", "gpu_memory_utilization", "max_model_len",
    "kv_cache_dtype", "attention_backend", "reasoning_parser", "tool_call_parser",
]
# fmt: on


def options(body: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """(field or "", words, the field's value) of each option, without what the nodes' places decide."""
    whole = bodies.normal(body)
    engine = whole["engine"]
    for field in ORDER:
        value, option = whole[field], OPTIONS[engine].get(field)
        if option is None or value in (None, "") or (field == "tensor_parallel" and engine == "llamacpp"):
            continue
        if field == "tool_call_parser" and engine == "vllm":
            yield "", ("--enable-auto-tool-choice",), None
        yield field, (option, str(value)), value
    for _, parts in group(whole["arguments"]):
        yield "", parts, None


def start(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The words before the options: the program and what it serves."""
    whole = bodies.normal(body)
    engine, model = whole["engine"], whole["model_path"] or whole["model"]
    if engine == "vllm":
        return (*STARTS[engine], model)
    if engine == "sglang":
        return (*STARTS[engine], "--model-path", model)
    if whole["model_path"]:
        return (*STARTS[engine], "--model", model)
    named = {"-hf", "--hf-repo", "-m", "--model"} & set(whole["arguments"])
    return STARTS[engine] if named else (*STARTS[engine], "-hf", model)


def command(body: Mapping[str, Any], fields: Mapping[str, str], *, more: tuple[str, ...] = ()) -> str:
    """The command as text with placeholders, one option a line. `fields`: field -> name of its placeholder."""
    lines = [" ".join(_quoted(word) for word in start(body))]
    for field, words, _ in options(body):
        if field in fields:
            lines.append(f"{words[0]} {{{fields[field]}}}")
        else:
            lines.append(" ".join(_quoted(word) for word in words))
    if more:
        lines.append(" ".join(more))
    return " \\\n  ".join(lines) + "\n"


def _quoted(word: str) -> str:
    return placeholders.doubled(shlex.quote(word))


def needs(body: Mapping[str, Any], family: str, engines: tuple[str, ...]) -> dict[str, Any]:
    """The whole body, when a family can start it. Raises Unwritable."""
    whole = bodies.normal(body)
    if whole["engine"] not in engines:
        raise Unwritable(
            f"{family} does not start the engine {whole['engine']}", "Take sparkweb's own YAML, or a compose file."
        )
    if whole["runtime"] != "docker":
        raise Unwritable(f"{family} starts containers, and this runs as a process", "Take sparkweb's own YAML.")
    return whole


def with_carried(
    made: dict[str, Any],
    body: Mapping[str, Any],
    world_size: int,
    read: Callable[[Document, str], Draft],
    put: Callable[[dict[str, Any], dict[str, Any]], None],
) -> str:
    """The text, with our own key where reading it back would otherwise give another body."""
    text = dump(made)
    more = own.carried(body, world_size, read(load(text), text))
    if more:
        put(made, more)
        text = dump(made)
    return text
