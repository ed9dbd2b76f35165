"""What was typed into a form -> the values that services take. Says which field is wrong; keeps what was typed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from apps.diagnosis.refusal import Refused
from apps.plan.spec import CLUSTERS, ENGINES, KINDS, RUNTIMES, SHARED, Clear, Spec
from apps.runs.services import clear_from

CALLED = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "command": "a command",
    "docker": "Docker",
    "process": "a plain process",
    "ray": "Ray",
    "native": "the engine's own",
    "single": "one node",
}
SPREAD = ("vllm", "sglang")
KNOWN = (*SPREAD, "llamacpp")  # engines whose options are known


@dataclass(frozen=True)
class SpecField:
    """One field of a Spec in a form. kind: text, whole, number, lines, pairs (NAME=value), secrets, choice, services (JSON)."""

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    choices: tuple[str, ...] = ()
    wide: bool = False
    double: bool = False  # two columns, where there are two
    engines: tuple[str, ...] = ENGINES  # that have a use for it; for others it is hidden and not taken
    runtimes: tuple[str, ...] = RUNTIMES

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The values of a choice and how they are called."""
        return tuple((one, CALLED.get(one, one)) for one in self.choices)

    def matters(self, engine: str, runtime: str) -> bool:
        """An engine or runtime that is not known hides nothing: the check of the spec names it."""
        return (engine not in ENGINES or engine in self.engines) and (
            runtime not in RUNTIMES or runtime in self.runtimes
        )


MAIN = (
    SpecField("engine", "Engine", "choice", choices=ENGINES),
    SpecField("runtime", "Runtime", "choice", "A plain process needs no Docker", choices=RUNTIMES),
    SpecField("cluster", "Over several nodes", "choice", "Ray: vLLM in Docker", choices=CLUSTERS, engines=SPREAD),
    SpecField("model", "Model", hint="Name at the hub; the API answers with it", wide=True),
    SpecField(
        "model_path",
        "Folder on the nodes",
        hint="Absolute, the same on every node; for llama.cpp the GGUF file, of a split one its first part",
        double=True,
    ),
    SpecField("image", "Image", double=True, runtimes=("docker",)),
    SpecField(
        "executable",
        "Program",
        hint="E.g. /opt/sglang/bin/python3, /opt/venv/bin/vllm; empty: by PATH, or the image's own",
        double=True,
        engines=KNOWN,
    ),
    SpecField("container", "Container", hint="Rank N runs as NAME-rN", runtimes=("docker",)),
    SpecField("port", "Port", "whole", "Empty: the next free one"),
    SpecField(
        "tensor_parallel",
        "Tensor parallel",
        "whole",
        "GPUs that share one model; empty: all of the nodes",
        engines=KNOWN,
    ),
    SpecField(
        "gpu_memory_utilization",
        "Share of memory",
        "number",
        "0 to 1, for weights and KV cache; empty: the engine's own",
        engines=SPREAD,
    ),
    SpecField("max_model_len", "Longest context", "whole", "Tokens; empty: the model's own", engines=KNOWN),
)
FURTHER = (
    SpecField("kind", "Serves", "choice", choices=KINDS),
    SpecField("served_model_name", "Served as", hint="Empty: the model's name"),
    SpecField("api_host", "Listens on", hint="0.0.0.0, 127.0.0.1 or an address of the head"),
    SpecField("cluster_port", "Port of the ranks", "whole", "Where they meet; empty: the usual one", engines=SPREAD),
    SpecField("reasoning_parser", "Reasoning parser", engines=KNOWN),
    SpecField("tool_call_parser", "Tool parser", engines=SPREAD),
    SpecField("attention_backend", "Attention backend", engines=SPREAD),
    SpecField("kv_cache_dtype", "KV cache type", engines=KNOWN),
    SpecField("os_floor_gib", "Left to the system", "number", "GiB that stay free"),
    SpecField("smoke_max_tokens", "Tokens of the first completion", "whole"),
    SpecField("arguments", "Further arguments", "lines", "One word a line; of a command, the whole of it", wide=True),
    SpecField("environment", "Environment", "pairs", "NAME=value, one a line", wide=True),
    SpecField(
        "secrets", "Secrets", "secrets", "VARIABLE=name of the secret, one a line; the value is never shown", wide=True
    ),
    SpecField(
        "services",
        "Further services",
        "services",
        "A list in JSON. Each has service (its name), kind, port and whatever else of these fields; they start after this one",
        wide=True,
    ),
)
DEFAULTS = Spec("", "", "", ()).to_json()
FIELDS = {field.name: field for field in (*MAIN, *FURTHER)}


def shown(body: Mapping[str, Any]) -> dict[str, str]:
    """A spec's values as text, for the inputs."""
    made = {}
    for name, field in FIELDS.items():
        value = body.get(name)
        if value is None:
            made[name] = ""
        elif field.kind == "lines":
            made[name] = "\n".join(str(word) for word in value)
        elif field.kind == "pairs":
            made[name] = "\n".join(f"{pair[0]}={pair[1]}" for pair in value)
        elif field.kind == "secrets":
            made[name] = "\n".join(f"{one['variable']}={one['name']}" for one in value)
        elif field.kind == "services":
            made[name] = json.dumps([_said(one, body) for one in value], indent=2, ensure_ascii=False) if value else ""
        else:
            made[name] = str(value)
    return made


def _said(service: Mapping[str, Any], main: Mapping[str, Any]) -> dict[str, Any]:
    """A further service without what it has by default or from the main one."""
    own = {**DEFAULTS, "os_floor_gib": main.get("os_floor_gib", DEFAULTS["os_floor_gib"])}
    nodes = list(main.get("nodes") or [])
    own["nodes"] = nodes[:1] if service.get("cluster") == "single" else nodes
    return {
        name: value
        for name, value in service.items()
        if name not in SHARED and (name not in own or value != own[name] or name in ("kind", "port"))
    }


def beyond(body: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a body that no input shows, such as further services: a form must not lose them."""
    return {name: value for name, value in body.items() if name not in FIELDS}


def typed(post: QueryDict) -> dict[str, str]:
    """What stands in the inputs now, as it was typed."""
    return {name: post.get(name, "") for name in FIELDS}


def spec_body(post: QueryDict) -> dict[str, Any]:
    """The Spec's fields out of a form, without name and nodes; empty ones keep their defaults. Raises Refused."""
    body: dict[str, Any] = {}
    engine, runtime = post.get("engine", ""), post.get("runtime", "")
    for name, field in FIELDS.items():
        if not field.matters(engine, runtime):
            continue
        text = post.get(name, "").replace("\r\n", "\n").strip()
        if text or name in ("model", "model_path"):  # these two have no default
            body[name] = _value(field, text)
    if engine and not FIELDS["cluster"].matters(engine, runtime):
        body["cluster"] = "single"  # what knows no ranks has no field for them either
    return body


def _value(field: SpecField, text: str) -> Any:
    if field.kind == "whole":
        return _number(field, text, int, "a whole number")
    if field.kind == "number":
        return _number(field, text, float, "a number")
    if field.kind == "lines":
        return [line.strip() for line in text.split("\n") if line.strip()]
    if field.kind == "pairs":
        return [list(_pair(field, line)) for line in text.split("\n") if line.strip()]
    if field.kind == "secrets":
        return [
            dict(zip(("variable", "name"), _pair(field, line), strict=True))
            for line in text.split("\n")
            if line.strip()
        ]
    if field.kind == "services":
        return _services(field, text)
    return text


def _services(field: SpecField, text: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise Refused(
            "bad_input",
            f"The further services are no JSON: {str(problem)[:120]}.",
            field=field.name,
            remedy="Correct it there, or leave the field empty.",
        ) from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Refused(
            "bad_input",
            "The further services are no list of objects.",
            field=field.name,
            remedy='Write [{"service": …}].',
        )
    return found


def _number(field: SpecField, text: str, kind: type[int] | type[float], words: str) -> int | float:
    try:
        made = kind(text.replace(",", "").replace("_", "") if kind is int else text)
    except (ValueError, OverflowError):
        raise Refused(
            "bad_input", f"{text[:40]!r} is not {words}.", field=field.name, remedy=f"Use {words}, or leave it empty."
        ) from None
    if made != made or made in (float("inf"), float("-inf")):
        raise Refused("bad_input", f"{text[:40]!r} is not {words}.", field=field.name, remedy=f"Use {words}.")
    return made


def _pair(field: SpecField, line: str) -> tuple[str, str]:
    name, mark, value = line.strip().partition("=")
    if not mark or not name.strip():
        raise Refused(
            "bad_input", f"{line.strip()[:60]!r} has no '='.", field=field.name, remedy="Write NAME=value, one a line."
        )
    return name.strip(), value.strip()


def identity(value: str) -> int:
    """The id in a select; 0, which no row has, for an empty or impossible one."""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 18 else 0


def clearing(query: QueryDict) -> tuple[Clear, ...]:
    """The ticks of a plan page: `clear` and `disable` each hold a JSON list of items. Raises Refused."""
    wanted, disabled = _items(query.getlist("clear")), _items(query.getlist("disable"))
    also = {(item.get("node"), item.get("name")) for item in disabled if item.get("kind") == "unit"}
    made = []
    for item in wanted:
        plain = {key: item.get(key) for key in ("node", "kind", "name")}
        made.append({**plain, "disable": item.get("kind") == "unit" and (item.get("node"), item.get("name")) in also})
    return clear_from(made)


def _items(values: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for value in values[:200]:
        try:
            items = json.loads(value)
        except (ValueError, RecursionError):
            items = None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise Refused("bad_input", "A tick of this form can't be read.", field="clear", remedy="Reload the page.")
        found += items
    return found
