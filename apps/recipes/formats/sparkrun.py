"""Recipes of sparkrun, version 2: https://github.com/spark-arena/sparkrun (recipes/*.yaml)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from apps.recipes.formats import command_text, placeholders, vllm_serve, writing
from apps.recipes.formats.command_text import Simple, Word
from apps.recipes.formats.imported import Draft, Unreadable
from apps.recipes.formats.reading import Fields, base_line, take_commands
from apps.recipes.formats.yaml_text import Document

ENGINES = {
    "": "",
    "vllm": "vllm",
    "vllm-ray": "vllm",
    "vllm-distributed": "vllm",
    "eugr-vllm": "vllm",
    "sglang": "sglang",
    "llama-cpp": "llamacpp",
    "llama.cpp": "llamacpp",
}
# Keys that have a place in the body, or are dealt with one by one; all others are kept as they are.
# fmt: off
TAKEN = [
    "recipe_version", "name", "description", "model", "model_revision", "runtime", "container", "defaults", "env",
    "command", "pre_exec", "post_exec", "post_commands", "mods", "builder", "builder_config", "executor",
    "executor_config", "cluster_config", "solo_only", "cluster_only", "mode", "min_nodes", "max_nodes", "sparkweb",
]
# fmt: on
HOOKS = ("pre_exec", "post_exec", "post_commands")
# Of executor_config: what sparkrun itself refuses of a recipe that nobody trusts yet. Being there counts, also when empty.
GUARDED = {
    "privileged": "privileged",
    "cap_add": "capability",
    "security_opt": "security",
    "devices": "device",
    "user": "user",
    "volumes": "volume",
}
SAFE_IPC = ("", "none", "private", "shareable")
# A key of defaults -> the option of each engine, where it is not the key itself with dashes.
OPTIONS = {
    "vllm": {
        "tensor_parallel": "--tensor-parallel-size",
        "pipeline_parallel": "--pipeline-parallel-size",
        "data_parallel": "--data-parallel-size",
    },
    "sglang": {
        "tensor_parallel": "--tp-size",
        "pipeline_parallel": "--pp-size",
        "data_parallel": "--dp-size",
        "gpu_memory_utilization": "--mem-fraction-static",
        "max_model_len": "--context-length",
        "max_num_seqs": "--max-running-requests",
    },
    "llamacpp": {"max_model_len": "--ctx-size", "served_model_name": "--alias"},
}
STARTS = {"vllm": ("vllm", "serve"), "sglang": ("sglang", "serve"), "llamacpp": ("llama-server",)}
MODEL_OPTIONS = {"sglang": "--model-path", "llamacpp": "--model"}


def read(document: Document, text: str) -> Draft:
    """Raises Unreadable."""
    fields = Fields(document)
    draft = Draft("sparkrun", text)
    draft.name, draft.description = fields.text("name"), fields.text("description")
    draft.body = {
        "runtime": "docker",
        "image": fields.text("container"),
        "environment": [],
        "secrets": [],
        "arguments": [],
    }
    draft.lines["image"] = fields.line("container")
    _version(draft, fields)
    engine = _engine(fields)
    _trust(draft, fields)
    for name, value in fields.mapping("env").items():
        line = fields.line(f"env.{name}")
        vllm_serve.take_variable(draft, draft.body, name, fields.as_text(value), path="env", line=line)
    take_commands(draft, draft.body, _commands(draft, fields, engine), path=_where(fields), fields=fields)
    _model(draft, fields)
    _nodes(draft, fields)
    _aside(draft, fields)
    return draft


def _where(fields: Fields) -> str:
    return "command" if fields.text("command") else "defaults"


def _version(draft: Draft, fields: Fields) -> None:
    version = fields.text("recipe_version")
    if version not in ("", "2", "2.0"):
        draft.note(
            "recipe_version",
            f"Version {version[:20]} of this family is not known; it was read as version 2.",
            "Compare what was made of it with the text.",
            line=fields.line("recipe_version"),
        )


def _engine(fields: Fields) -> str:
    """The engine that `runtime` names, "" where it is to be told from the command. Raises Unreadable for one of others."""
    runtime = fields.text("runtime")
    if runtime in ENGINES:
        return ENGINES[runtime]
    if fields.text("command"):
        return ""
    raise Unreadable(
        f"the runtime {runtime[:60]} is none that sparkweb starts",
        "Give the recipe a command, or one of vllm, sglang and llama-cpp.",
        line=fields.line("runtime"),
        field="runtime",
    )


# What needs trust


def _trust(draft: Draft, fields: Fields) -> None:
    for hook in HOOKS:
        for place, one in enumerate(fields.items(hook)):
            path = f"{hook}[{place}]" if isinstance(fields.value[hook], list) else hook
            draft.hold("hook", path, _shown(one), line=fields.line(path))
    for place, mod in enumerate(fields.items("mods")):
        draft.hold("mod", f"mods[{place}]", _shown(mod), line=fields.line(f"mods[{place}]"))
    for key in ("builder", "builder_config"):
        if key in fields.value:
            draft.hold("builder", key, _shown(fields.value[key]), line=fields.line(key))
    if fields.text("executor") not in ("", "docker"):
        draft.hold("executor", "executor", fields.text("executor"), line=fields.line("executor"))
    _executor(draft, fields)
    for key, value in fields.mapping("cluster_config").items():
        path = f"cluster_config.{key}"
        if isinstance(value, str) and value.startswith(("/", "~")):
            draft.hold("path", path, value, line=fields.line(path))
        else:
            draft.keep(path, value)


def _executor(draft: Draft, fields: Fields) -> None:
    for key, value in fields.mapping("executor_config").items():
        path = f"executor_config.{key}"
        text = f"{key}: {_shown(value)}"
        if key in GUARDED:
            draft.hold(GUARDED[key], path, text, line=fields.line(path))
        elif key == "ipc" and fields.as_text(value) not in SAFE_IPC:
            draft.hold("ipc", path, text, line=fields.line(path))
        elif key in ("extra_args", "docker_args", "extra_docker_args", "run_args", "entrypoint"):
            draft.hold("option", path, text, line=fields.line(path))
        else:
            draft.keep(path, value)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# The command


def _commands(draft: Draft, fields: Fields, engine: str) -> list[Simple]:
    defaults, model = fields.mapping("defaults"), fields.text("model")
    command = fields.text("command")
    if not command:
        return [_built(fields, engine or "vllm", defaults, model)]
    first = base_line(fields.document, "command")
    values = {
        **defaults,
        "model": model,
        "model_revision": fields.text("model_revision"),
        "resolved_model_path": model,
    }
    filled, missing = placeholders.filled_again(command, values, line=first)
    for name in missing:
        draft.note(
            "command", f"{{{name[:60]}}} has no value and stays as it is.", "Give it one under defaults.", line=first
        )
    named = {key for key in defaults if f"{{{key}}}" in command}
    for key in defaults:
        if key not in named:
            draft.keep(f"defaults.{key}", defaults[key])
            draft.note("defaults", f"{key} is in no part of the command.", line=fields.line(f"defaults.{key}"))
    return command_text.split(filled, first_line=first)


def _built(fields: Fields, engine: str, defaults: dict[str, Any], model: str) -> Simple:
    """A recipe without command: its defaults are the options."""
    line = fields.line("defaults") or 1
    words = [Word(word, line) for word in STARTS[engine]]
    option = MODEL_OPTIONS.get(engine)
    if model:
        words += [Word(word, fields.line("model")) for word in ((option, model) if option else (model,))]
    for key, value in defaults.items():
        at = fields.line(f"defaults.{key}")
        words += [Word(word, at) for word in _option(engine, key, value)]
    return Simple(tuple(words), line)


def _option(engine: str, key: str, value: Any) -> list[str]:
    flag = OPTIONS[engine].get(key, f"--{key.replace('_', '-')}")
    if value is None or value is False or value == "":
        return []
    if value is True:
        return [flag]
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return [flag, *(str(one) for one in value)]
    return [flag, placeholders.text_of(value)]


# Model and nodes


def _model(draft: Draft, fields: Fields) -> None:
    body, model = draft.body, fields.text("model")
    if model and not body.get("model"):
        body["model"] = vllm_serve.model_of_path(model) if model.startswith(("/", "~")) else model
        draft.lines["model"] = fields.line("model")
    if model.startswith(("/", "~")):
        body["model_path"] = model
        draft.lines["model_path"] = fields.line("model")
    revision = fields.text("model_revision")
    if revision and "--revision" not in body["arguments"] and body.get("engine") in ("vllm", "sglang"):
        body["arguments"] += ["--revision", revision]


def _nodes(draft: Draft, fields: Fields) -> None:
    body = draft.body
    defaults = fields.mapping("defaults")
    stages = defaults.get("pipeline_parallel")
    tensor = body.get("tensor_parallel", 1)
    nodes = int(body.pop("nnodes", 0) or 0)
    if not nodes:
        nodes = tensor if isinstance(tensor, int) else 1
        nodes *= stages if isinstance(stages, int) and not isinstance(stages, bool) and 0 < stages < 1000 else 1
    least, most = fields.whole("min_nodes") or 1, fields.whole("max_nodes") or 64
    if fields.true("solo_only") or fields.text("mode") == "solo":
        most = 1
    elif fields.true("cluster_only") or fields.text("mode") == "cluster":
        least = max(2, least)
    draft.world_size = max(1, min(max(nodes, least), most, 64))
    ray = fields.text("runtime") == "vllm-ray" or body.get("cluster") == "ray"
    ray = ray or fields.as_text(defaults.get("distributed_executor_backend")) == "ray"
    body["cluster"] = "single" if draft.world_size == 1 else "ray" if ray and body["engine"] == "vllm" else "native"


def _aside(draft: Draft, fields: Fields) -> None:
    for key, value in fields.value.items():
        if key not in TAKEN:
            draft.keep(key, value)
    for key in ("mode", "min_nodes", "max_nodes", "solo_only", "cluster_only"):
        if key in fields.value:
            draft.keep(key, fields.value[key])
    if fields.text("runtime") in ("eugr-vllm",):
        draft.keep("runtime", fields.text("runtime"))
    for key in ("include", "overrides"):
        if key in fields.value:
            said = f"{key} was kept, not followed: nothing is fetched here, and no condition is judged."
            draft.note(key, said, "Import the recipe as sparkrun resolves it.", line=fields.line(key))
    if "containers" in fields.value:
        draft.note(
            "containers", "All nodes get the same image; this table was only kept.", line=fields.line("containers")
        )
    if not fields.text("container"):
        draft.note("container", "No image is named: sparkrun has one of its own.", "Choose one under Image.")


DEFAULTS = {
    "port": "port",
    "api_host": "host",
    "tensor_parallel": "tensor_parallel",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_model_len": "max_model_len",
    "served_model_name": "served_model_name",
}
RUNTIMES = {"sglang": "sglang", "llamacpp": "llama-cpp"}


def write(*, name: str, description: str, world_size: int, body: Mapping[str, Any]) -> str:
    """The recipe in this family's words; what it has none for stands under metadata.sparkweb. Raises Unwritable."""
    whole = writing.needs(body, "sparkrun", ("vllm", "sglang", "llamacpp"))
    ray = whole["cluster"] == "ray"
    made: dict[str, Any] = {"recipe_version": "2", "name": name, "description": description}
    made["model"] = whole["model_path"] or whole["model"]
    made["runtime"] = RUNTIMES.get(whole["engine"], "vllm-ray" if ray else "vllm-distributed")
    made |= {"min_nodes": world_size, "max_nodes": world_size, "container": whole["image"]}
    made["defaults"] = {DEFAULTS[field]: value for field, _, value in writing.options(body) if field in DEFAULTS}
    made["env"] = {pair[0]: pair[1] for pair in whole["environment"]}
    more = ("--distributed-executor-backend", "ray") if ray and whole["engine"] == "vllm" else ()
    made["command"] = writing.command(body, DEFAULTS, more=more)
    made = {key: value for key, value in made.items() if value not in ("", {})}
    return writing.with_carried(
        made, body, world_size, read, lambda whole, more: whole.update(metadata={"sparkweb": more})
    )
