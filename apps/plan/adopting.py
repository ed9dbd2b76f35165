"""What serves a model on a node and is not ours, read back into a spec: from docker inspect, the unit and the process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from apps.diagnosis.findings.holders import unit_of, units_behind
from apps.diagnosis.masking import mask_text
from apps.diagnosis.open_secrets import given_away
from apps.facts.commands import asked_for
from apps.facts.docker import objects, part
from apps.facts.processes import words_of
from apps.facts.sheet import Sheet
from apps.facts.values import Container, Starts
from apps.plan.options import canonical, group

SERVERS = ("vllm", "sglang", "llama.cpp", "tgi", "trt-llm", "ollama", "infinity", "lmdeploy")  # by facts.commands
HIDDEN = "***"  # what a probe writes for a secret
# Options of vLLM that are fields of a spec, with what their values are.
FIELDS: dict[str, tuple[str, type[str] | type[int] | type[float]]] = {
    "--served-model-name": ("served_model_name", str),
    "--host": ("api_host", str),
    "--port": ("port", int),
    "--tensor-parallel-size": ("tensor_parallel", int),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--max-model-len": ("max_model_len", int),
    "--reasoning-parser": ("reasoning_parser", str),
    "--tool-call-parser": ("tool_call_parser", str),
    "--attention-backend": ("attention_backend", str),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
}
IMPLIED = ("--enable-auto-tool-choice",)  # a tool parser brings it


@dataclass(frozen=True)
class Found:
    """A container or a unit that serves a model. `body`: fields of a spec, without name and nodes. `units`: those that start it,
    or stand in front of it. `answers_as`: the name that its API gives, empty where that can't be known from here. `notes`: what of
    it the spec does not say."""

    node: str
    kind: Literal["container", "unit"]
    name: str
    body: dict[str, Any]
    port: int
    restart_policy: str = ""
    units: tuple[str, ...] = ()
    answers_as: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)


def found_on(sheet: Sheet) -> tuple[Found, ...]:
    """Everything on this node that serves a model and carries no label of ours, by its port."""
    made = [*_containers(sheet), *_units(sheet)]
    return tuple(sorted(made, key=lambda one: (one.port, one.name)))


def _containers(sheet: Sheet) -> Iterator[Found]:
    inspected = _inspected(sheet)
    for one in sheet.containers or ():
        if one.state != "running" or "sparkweb.deployment" in one.labels:
            continue
        words, starts = _command(sheet, one, inspected.get(one.name, {}))
        if starts is None or not starts.port:
            continue
        unit = unit_of(sheet, one.name)
        body, notes = _body(words, starts, _mounts(inspected.get(one.name, {})))
        body |= {"runtime": "docker", "image": one.image or "", "container": one.name}
        yield Found(
            sheet.node,
            "container",
            one.name,
            body,
            starts.port,
            one.restart_policy or "",
            tuple(dict.fromkeys([*([unit.name] if unit else []), *_in_front(sheet, one, starts.port)])),
            "" if notes else _answers_as(body, starts),
            (*notes, "The variables of its environment stay on the node and are not in the spec."),
        )


def _in_front(sheet: Sheet, container: Container, port: int) -> Iterator[str]:
    """Running units of the same stack that start no container themselves, such as a proxy; told of the lowest port alone, so that
    each stands once."""
    first = min(
        (
            starts.port
            for one in sheet.containers or ()
            if one.state == "running" and (starts := _command(sheet, one, {})[1]) and starts.port
        ),
        default=port,
    )
    if port == first:
        yield from (unit.name for unit in units_behind(sheet, ()) if not unit.containers)


def _units(sheet: Sheet) -> Iterator[Found]:
    """Units whose own process serves, without a container."""
    for process in sheet.processes or ():
        if process.unit is None or process.container is not None or process.run is not None:
            continue
        starts = process.starts
        port = starts.port or next(iter(process.ports), None)
        if starts.engine not in SERVERS or not port:
            continue
        words = words_of(process.command or "")
        body, notes = _body(words, starts, ())
        body |= {"runtime": "process", "executable": words[0] if words else "", "port": port}
        yield Found(
            sheet.node,
            "unit",
            process.unit,
            body,
            port,
            "",
            (process.unit,),
            "" if notes else _answers_as(body, starts),
            tuple(notes),
        )


def _inspected(sheet: Sheet) -> dict[str, dict[str, Any]]:
    """docker inspect by container name, as the probe kept it."""
    evidence = sheet.evidence.get("container-details")
    if evidence is None:
        return {}
    return {str(each.get("Name", "")).lstrip("/"): each for each in objects(evidence.stdout)}


def _command(sheet: Sheet, container: Container, inspected: Mapping[str, Any]) -> tuple[list[str], Starts | None]:
    """The words that started its server: the container's own, else those of a process in it (`ray start` and then a `docker exec`)."""
    arguments = inspected.get("Args")
    words = [str(inspected.get("Path") or ""), *map(str, arguments)] if isinstance(arguments, list) else []
    words = _unwrapped([word for word in words if word] or words_of(container.command or ""))
    starts = asked_for(words)
    if starts.engine in SERVERS and (starts.port or starts.model):
        return words, starts if starts.port else _listening(sheet, container, starts)
    for process in sheet.processes or ():
        if process.container == container.name and process.starts.engine in SERVERS and process.starts.model:
            own = words_of(process.command or "")
            return own, process.starts if process.starts.port else _listening(sheet, container, process.starts)
    return words, None


def _unwrapped(words: Sequence[str]) -> list[str]:
    """`bash -c "vllm serve …"` and the like: the command inside."""
    if len(words) > 2 and words[0].rsplit("/", 1)[-1] in ("sh", "bash") and words[1] in ("-c", "-lc"):
        return words_of(words[2].removeprefix("exec "))
    return list(words)


def _listening(sheet: Sheet, container: Container, starts: Starts) -> Starts:
    """With the port on which a process of the container listens; vLLM's own is 8000."""
    inside = [port for one in sheet.processes or () if one.container == container.name for port in one.ports]
    port = min(inside, default=8000 if starts.engine == "vllm" else None)
    return Starts(starts.engine, starts.model, starts.served_name, port, starts.tensor_parallel)


def _mounts(inspected: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(folder on the node, folder inside)."""
    mounts = inspected.get("Mounts")
    return tuple(
        (str(part(one, "Source") or ""), str(part(one, "Destination") or ""))
        for one in (mounts if isinstance(mounts, list) else [])
    )


def _body(words: Sequence[str], starts: Starts, mounts: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], list[str]]:
    """Fields of a spec from the server's command line. What is no vLLM is kept as a command, word by word."""
    model = starts.model or ""
    path = _on_node(model, mounts) if model.startswith("/") else ""
    named = (starts.served_name or model).rstrip("/").rsplit("/", 1)[-1] if path else model or starts.served_name or ""
    body: dict[str, Any] = {
        "model": named if re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", named) else "found",
        "model_path": path,
        "cluster": "single",
        "kind": kind_of(words, starts),
        "port": starts.port or 8000,
    }
    notes: list[str] = []
    if starts.engine != "vllm":
        body |= {"engine": "command", "arguments": _open_words(words, notes)}
        if starts.served_name:
            body["served_model_name"] = starts.served_name
        return body, notes
    body["engine"] = "vllm"
    rest: list[str] = []
    for flag, parts in group(_options(words)):
        option = canonical(flag)
        known = FIELDS.get(option)
        value = parts[0].partition("=")[2] or (parts[1] if len(parts) > 1 else "")
        if option in ("--model", "--model-tag") or option in IMPLIED:
            continue
        if known is None or not _as(known[1], value):
            rest += parts
        else:
            body[known[0]] = known[1](value)
    return body | {"arguments": _open_words(rest, notes)}, notes


def _options(words: Sequence[str]) -> list[str]:
    """The words after the model of `vllm serve MODEL`, or after the module of `python -m vllm…api_server`."""
    listed = list(words)
    if "serve" in listed:
        rest = listed[listed.index("serve") + 1 :]
        return rest[1:] if rest and not rest[0].startswith("-") else rest
    module = next((at for at, word in enumerate(listed) if word.startswith("vllm.")), None)
    return listed[module + 1 :] if module is not None else [word for word in listed[1:]]


def _as(kind: type[str] | type[int] | type[float], value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return bool(value) and HIDDEN not in value


def _open_words(words: Sequence[str], notes: list[str]) -> list[str]:
    """Without what a probe or our own eyes hid: an option whose value is a secret is left out, and said."""
    kept: list[str] = []
    for flag, parts in group(list(words)):
        text = " ".join(parts)
        if HIDDEN in text or mask_text(text) != text or given_away(parts):
            notes.append(
                f"The value of {flag} is a secret and was not read; add it under Secrets before a launch of ours."
            )
        else:
            kept += parts
    return kept


def _on_node(path: str, mounts: Sequence[tuple[str, str]]) -> str:
    """Where a folder inside the container lies on the node."""
    for outside, inside in sorted(mounts, key=lambda pair: -len(pair[1])):
        if inside and (path == inside or path.startswith(inside.rstrip("/") + "/")):
            return outside.rstrip("/") + path[len(inside.rstrip("/")) :]
    return path


def kind_of(words: Sequence[str], starts: Starts) -> str:
    """chat, embeddings or rerank: a pooling server is told by its options, and which of the two by its model's name."""
    text = " ".join(words).lower()
    name = f"{starts.model or ''} {starts.served_name or ''}".lower()
    pooling = re.search(
        r"--runner[ =]pooling|--task[ =](embed|embedding|score|reward|classify)|--is-embedding|--embeddings?\b|--rerank",
        text,
    )
    if "rerank" in name or "--rerank" in text or re.search(r"--task[ =]score", text):
        return "rerank"
    return "embeddings" if pooling or "embed" in name else "chat"


def _answers_as(body: Mapping[str, Any], starts: Starts) -> str:
    """Empty where its command line does not say it. Nobody asks where a key stands there: nobody gave it to us."""
    return starts.served_name or ("" if body["model_path"] or starts.engine != "vllm" else str(body["model"]))


def together(found: Sequence[Found]) -> dict[str, Any]:
    """One body of several services: chat first, then by port. Raises ValueError for none, or for things of several nodes."""
    if not found or len({one.node for one in found}) > 1:
        raise ValueError("choose what serves on one node")
    ordered = in_order(found)
    names = services_of(ordered)
    main, *others = ({**one.body, "service": names[place]} for place, one in enumerate(ordered))
    return {**main, "services": others}


def in_order(found: Sequence[Found]) -> list[Found]:
    return sorted(found, key=lambda one: (one.body["kind"] != "chat", one.port))


def services_of(ordered: Sequence[Found]) -> list[str]:
    """A name for each: none for the first, then what it is for, else what it is called."""
    names: list[str] = []
    for place, one in enumerate(ordered):
        wanted = {"rerank": "reranker", "embeddings": "embeddings"}.get(one.body["kind"], "chat")
        main = ordered[0].body["kind"]
        bare = re.sub(r"[^a-z0-9]+", "-", one.name.lower()).strip("-")[:24] or "service"
        free = wanted not in names and wanted != main
        names.append("" if not place else wanted if free else bare if bare not in names else f"{bare}-{place}")
    return names
