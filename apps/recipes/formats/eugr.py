"""Recipes of eugr's spark-vllm-docker, version 1: https://github.com/eugr/spark-vllm-docker (recipes/*.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.recipes.formats import command_text, placeholders, vllm_serve, writing
from apps.recipes.formats.imported import Draft, Unreadable
from apps.recipes.formats.reading import Fields, base_line, take_commands
from apps.recipes.formats.yaml_text import Document

# fmt: off
KEYS = [
    "recipe_version", "name", "description", "model", "container", "build_args", "mods", "defaults", "env",
    "command", "cluster_only", "solo_only", "sparkweb",
]
# fmt: on
IMAGES = {"vllm-node": "eugr/spark-vllm:latest"}  # local tags of the family -> what is published


def read(document: Document, text: str) -> Draft:
    """Raises Unreadable."""
    fields = Fields(document)
    draft = Draft("eugr", text)
    draft.name, draft.description = fields.text("name"), fields.text("description")
    draft.body = {"engine": "vllm", "runtime": "docker", "environment": [], "secrets": [], "arguments": []}
    _version(fields)
    _image(draft, fields)
    _aside(draft, fields)
    for name, value in fields.mapping("env").items():
        line = fields.line(f"env.{name}")
        vllm_serve.take_variable(draft, draft.body, name, fields.as_text(value), path="env", line=line)
    command, defaults = fields.text("command"), fields.mapping("defaults")
    first = base_line(document, "command")
    filled = placeholders.filled_once(command, defaults, line=first)
    take_commands(draft, draft.body, command_text.split(filled, first_line=first), path="command", fields=fields)
    _unused(draft, fields, command, defaults)
    _nodes(draft, fields)
    _model(draft, fields)
    return draft


def _version(fields: Fields) -> None:
    version = fields.text("recipe_version")
    if version not in ("", "1", "1.0"):
        raise Unreadable(
            f"recipe_version is {version[:20]!r}; version 1 of this family is read",
            "Write recipe_version: '1', if it is one.",
            line=fields.line("recipe_version"),
            field="recipe_version",
        )


def _image(draft: Draft, fields: Fields) -> None:
    image = fields.text("container")
    draft.body["image"] = IMAGES.get(image, image)
    draft.lines["image"] = line = fields.line("container")
    if image in IMAGES:
        draft.keep("container", image)
        draft.note("container", f"{image} is a local tag; {IMAGES[image]} is what is published of it.", line=line)
    elif "/" not in image and image:
        said = f"{image[:80]} is a tag that was built on its author's node."
        draft.note("container", said, "Build it on every node, or name an image that can be pulled.", line=line)


def _aside(draft: Draft, fields: Fields) -> None:
    for place, mod in enumerate(fields.items("mods")):
        path = f"mods[{place}]"
        draft.hold("mod", path, fields.as_text(mod), line=fields.line(path))
    if fields.items("build_args"):
        words = " ".join(fields.as_text(one) for one in fields.items("build_args"))
        draft.hold("builder", "build_args", words, line=fields.line("build_args"))
    for key in fields.value:
        if key not in KEYS:
            draft.keep(key, fields.value[key])


def _unused(draft: Draft, fields: Fields, command: str, defaults: dict[str, Any]) -> None:
    for key, value in defaults.items():
        if f"{{{key}}}" not in command:
            draft.keep(f"defaults.{key}", value)
            draft.note("defaults", f"{key} is in no part of the command.", line=fields.line(f"defaults.{key}"))


def _nodes(draft: Draft, fields: Fields) -> None:
    """A recipe of this family runs on as many nodes as tensor x pipeline parallel says, with Ray where the command names it."""
    body = draft.body
    nodes = int(body.pop("nnodes", 0) or 0) or _ranks(body)
    if fields.true("solo_only"):
        nodes = 1
        if body.get("tensor_parallel", 1) != 1:
            said = f"On one node tensor parallel is 1, not {body['tensor_parallel']}."
            draft.note("solo_only", said, line=fields.line("solo_only"))
            body["tensor_parallel"] = 1
    elif fields.true("cluster_only"):
        nodes = max(2, nodes)
    draft.world_size = min(max(1, nodes), 64)
    for key in ("solo_only", "cluster_only"):
        if key in fields.value:
            draft.keep(key, fields.value[key])
    _cluster(body, draft.world_size)


def _ranks(body: dict[str, Any]) -> int:
    tensor = body.get("tensor_parallel", 1)
    words = body["arguments"]
    stages = next(
        (
            vllm_serve.amount(words[at + 1])
            for at, word in enumerate(words[:-1])
            if word in ("-pp", "--pipeline-parallel-size")
        ),
        1,
    )
    return (tensor if isinstance(tensor, int) else 1) * (stages or 1)


def _cluster(body: dict[str, Any], nodes: int) -> None:
    body["cluster"] = "single" if nodes == 1 else "ray" if body.get("cluster") == "ray" else "native"


def _model(draft: Draft, fields: Fields) -> None:
    model = fields.text("model")
    if model and not draft.body.get("model"):
        draft.body["model"] = model
        draft.lines["model"] = fields.line("model")
    elif model and model != draft.body.get("model"):
        draft.keep("model", model)
        said = f"The command serves {draft.body['model'][:80]}; model says {model[:80]}."
        draft.note("model", said, line=fields.line("model"))


DEFAULTS = {
    "port": "port",
    "api_host": "host",
    "tensor_parallel": "tensor_parallel",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_model_len": "max_model_len",
}


def write(*, name: str, description: str, world_size: int, body: Mapping[str, Any]) -> str:
    """The recipe in this family's words; what it has none for stands under the key `sparkweb`, which its tools pass over.
    Raises Unwritable."""
    whole = writing.needs(body, "eugr's tool", ("vllm",))
    made: dict[str, Any] = {"recipe_version": "1", "name": name, "description": description, "model": whole["model"]}
    made["container"] = whole["image"]
    made |= {"solo_only": True} if world_size == 1 else {"cluster_only": True}
    made["defaults"] = {DEFAULTS[field]: value for field, _, value in writing.options(body) if field in DEFAULTS}
    made["env"] = {pair[0]: pair[1] for pair in whole["environment"]}
    more = ("--distributed-executor-backend", "ray") if whole["cluster"] == "ray" else ()
    made["command"] = writing.command(body, DEFAULTS, more=more)
    made = {key: value for key, value in made.items() if value not in ("", {})}
    return writing.with_carried(made, body, world_size, read, lambda whole, more: whole.update(sparkweb=more))
