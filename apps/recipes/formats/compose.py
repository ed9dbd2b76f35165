"""A Compose file: its services that start an engine, the first as the main one. https://docs.docker.com/reference/compose-file/"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from apps.plan.step import Plan
from apps.recipes.formats import bodies, command_text, docker_run, started, vllm_serve, writing
from apps.recipes.formats.command_text import Word
from apps.recipes.formats.docker_run import Mount, port_of
from apps.recipes.formats.imported import MAIN, Draft, Unreadable
from apps.recipes.formats.reading import Fields
from apps.recipes.formats.screening import is_masked
from apps.recipes.formats.started import Container, Inside
from apps.recipes.formats.writing import Unwritable
from apps.recipes.formats.yaml_text import Document, dump

GUARDED = {
    "privileged": "privileged",
    "cap_add": "capability",
    "security_opt": "security",
    "devices": "device",
    "device_cgroup_rules": "device",
    "user": "user",
    "userns_mode": "user",
    "group_add": "user",
    "volumes_from": "volume",
    "tmpfs": "volume",
    "configs": "volume",
    "secrets": "volume",
    "pid": "security",
    "uts": "security",
    "cgroup": "security",
    "cgroup_parent": "security",
    "sysctls": "security",
    "env_file": "path",
    "extends": "path",
    "build": "builder",
    "develop": "builder",
    "post_start": "hook",
    "pre_stop": "hook",
    "provider": "hook",
}
TAKEN = ("image", "command", "entrypoint", "environment", "volumes", "ports", "container_name", "ipc", "x-sparkweb")
# fmt: off
KEPT_PLAIN = [
    "restart", "deploy", "shm_size", "ulimits", "labels", "healthcheck", "depends_on", "networks", "network_mode",
    "gpus", "runtime", "hostname", "logging", "stop_grace_period", "stop_signal", "platform", "pull_policy", "tty",
    "stdin_open", "init", "expose", "profiles", "working_dir", "scale",
]
# fmt: on
_REFERENCE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])([^${}]*))?\}|([A-Za-z_][A-Za-z0-9_]*))")
EMBEDDING, RANKING = re.compile(r"(?i)embed|e5-|bge-(?!rerank)"), re.compile(r"(?i)rerank")


def read(document: Document, text: str) -> Draft:
    """Raises Unreadable."""
    fields = Fields(document)
    draft = Draft("compose", text)
    services = {
        name: Fields(document, one, f"services.{name}")
        for name, one in fields.mapping("services").items()
        if isinstance(one, dict)
    }
    engines = [name for name, one in services.items() if _starts_engine(one)]
    if not engines:
        engines = list(services)[:1]
    if not engines:
        raise Unreadable(
            "the file has no service",
            "Write at least one below services.",
            line=fields.line("services"),
            field="services",
        )
    draft.name = fields.text("name") or engines[0]
    for place, name in enumerate(engines, MAIN):
        _service(draft, services[name], name, place)
    for name, value in fields.mapping("services").items():
        if name not in engines:
            draft.keep(f"services.{name}", value)
            said = f"{name} starts no engine that is known here; it was only kept."
            draft.note(f"services.{name}", said, line=fields.line(f"services.{name}"))
    for key, value in fields.value.items():
        if key not in ("services", "name", "version", "x-sparkweb"):
            draft.keep(key, value)
    return draft


def _starts_engine(service: Fields) -> bool:
    """A command or an image that is an engine's."""
    commands = [one for one in (_words(service, "entrypoint"), _words(service, "command")) if one]
    words = [word for one in commands for word in one]
    if words and not words[0].text.startswith("-"):
        found, _, _ = vllm_serve.find([command_text.Simple(tuple(words), 1)])
        return found is not None or bool(re.search("vllm-openai", service.text("image")))
    return bool(re.search(r"vllm|sglang|llama", service.text("image")))


def _service(draft: Draft, service: Fields, name: str, place: int) -> None:
    body: dict[str, Any] = {"runtime": "docker", "cluster": "single", "environment": [], "secrets": [], "arguments": []}
    if place == MAIN:
        draft.body = body
    else:
        body["service"] = re.sub(r"[^a-z0-9-]", "-", name.lower()).strip("-")[:31] or f"service-{place + 1}"
        draft.body.setdefault("services", []).append(body)
    prefix = "" if place == MAIN else f"services[{place}]."
    body["image"], missing = filled(service.text("image"))
    draft.lines[f"{prefix}image"] = service.line("image")
    for one in missing:
        draft.note(service.at("image"), f"${one} has no value.", "Write it out.", line=service.line("image"))
    if service.text("container_name"):
        body["container"] = service.text("container_name")
    _environment(draft, body, service)
    _aside(draft, service, place)
    command = _words(service, "command") or []
    docker_run.take_command(
        draft,
        body,
        command,
        image=body["image"],
        entry=_words(service, "entrypoint") or (),
        path=service.at("command"),
        line=service.line("command") or service.line(""),
        place=place,
    )
    docker_run.take_mounts(draft, body, list(_mounts(service)), place=place)
    docker_run.take_ports(draft, body, list(_ports(service)), path=service.at("ports"))
    _settle(draft, body, place)


def _settle(draft: Draft, body: dict[str, Any], place: int) -> None:
    if place == MAIN:
        vllm_serve.settle(draft, body)
        return
    body.pop("nnodes", None)
    body["cluster"] = "single"
    named = f"{body['service']} {body.get('model', '')}"
    if RANKING.search(named):
        body["kind"] = "rerank"
    elif EMBEDDING.search(named):
        body["kind"] = "embeddings"


def filled(text: str) -> tuple[str, list[str]]:
    """`$$` is a dollar, `${NAME:-text}` its text; also returns the names that have no value, which stay as they are."""
    missing: list[str] = []

    def put(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        if found[2] in ("-", ":-"):
            return found[3]
        missing.append(found[1] or found[4])
        return found[0]

    return _REFERENCE.sub(put, text), missing


def _words(service: Fields, key: str) -> list[Word] | None:
    """A command as a list of words, or as a text that is split. None where it is not given."""
    value = service.value.get(key)
    if value is None:
        return None
    if isinstance(value, list):
        made = []
        for place, one in enumerate(value):
            if isinstance(one, list | dict) and not is_masked(one):
                raise Unreadable(
                    f"{service.at(key)[:100]} must be a list of words",
                    "Put a word with braces between quotes.",
                    line=service.line(f"{key}[{place}]"),
                    field=key,
                )
            text, missing = filled(service.as_text(one))
            made.append(Word(text, service.line(f"{key}[{place}]"), bool(missing)))
        return made
    text, _ = filled(service.text(key))
    one_line = re.sub(r"\n(?=\S)", " ", re.sub(r"\\[ \t]*\n", " ", text.strip()))
    commands = command_text.split(one_line, first_line=service.line(key))
    if len(commands) > 1:
        return [Word("sh", service.line(key)), Word("-c", service.line(key)), Word(text, service.line(key))]
    return list(commands[0].words) if commands else None


def _environment(draft: Draft, body: dict[str, Any], service: Fields) -> None:
    value = service.value.get("environment")
    pairs: list[tuple[str, str | None, str]] = []
    if isinstance(value, dict):
        pairs = [
            (name, None if one is None else service.as_text(one), f"environment.{name}") for name, one in value.items()
        ]
    else:
        for place, one in enumerate(service.items("environment")):
            name, mark, text = service.as_text(one).partition("=")
            pairs.append((name, text if mark else None, f"environment[{place}]"))
    for name, text_or_none, path in pairs:
        text, missing = filled(text_or_none or "")
        vllm_serve.take_variable(
            draft,
            body,
            name,
            None if text_or_none is None else text,
            path=service.at("environment"),
            line=service.line(path),
            expands=bool(missing),
        )


def _mounts(service: Fields) -> Iterator[Mount]:
    for place, one in enumerate(service.items("volumes")):
        path = f"volumes[{place}]"
        if isinstance(one, dict):
            source, target = service.as_text(one.get("source")), service.as_text(one.get("target"))
            text = ", ".join(f"{key} {value}" for key, value in one.items())
        else:
            text = service.as_text(one)
            source, _, rest = filled(text)[0].partition(":")
            target = rest.partition(":")[0]
        yield Mount(source, target, text, service.line(path), service.at(path))


def _ports(service: Fields) -> Iterator[tuple[str, str, str]]:
    for one in service.items("ports"):
        if isinstance(one, dict):
            inside, outside = service.as_text(one.get("target")), service.as_text(one.get("published"))
            yield service.as_text(one.get("host_ip")), outside or inside, inside
        else:
            yield port_of(filled(service.as_text(one))[0])


def _aside(draft: Draft, service: Fields, place: int) -> None:
    for key, value in service.value.items():
        path, line = service.at(key), service.line(key)
        shown = f"{key}: {value if isinstance(value, str) else _plain(value)}"
        if key in GUARDED:
            draft.hold(GUARDED[key], path, shown, line=line, place=place)
        elif key == "ipc":
            if service.as_text(value) in docker_run.SAFE_IPC:
                draft.keep(path, value)
            else:
                draft.hold("ipc", path, shown, line=line, place=place)
        elif key in KEPT_PLAIN or key.startswith("x-"):
            draft.keep(path, value)
        elif key not in TAKEN:
            draft.hold("option", path, shown, line=line, place=place)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# Writing

_NODE_WORDS = ("--node-rank", "${NODE_RANK:?0 on the head, 1 and more on the others}")
_HEAD_WORDS = {
    "vllm": ("--master-addr", "${HEAD_ADDRESS:?address of the head on the fabric}"),
    "sglang": ("--dist-init-addr", "${HEAD_ADDRESS:?address of the head on the fabric}:29501"),
}


def write(*, name: str, description: str, world_size: int, body: Mapping[str, Any]) -> str:
    """A Compose file: one service for the main one and one for each further. What differs from node to node stands as
    variables, e.g. ${NODE_RANK}. What the file has no words for stands under x-sparkweb. Raises Unwritable."""
    whole = bodies.normal(body)
    services = [whole, *whole["services"]]
    if any(one["runtime"] != "docker" for one in services):
        raise Unwritable("a compose file starts containers, and this runs as a process", "Take the systemd units.")
    made: dict[str, Any] = {"name": _project(name), "services": {}}
    for place, one in enumerate(services):
        key = one["service"] or "engine"
        made["services"][key] = _written(one, world_size if place == 0 else 1)
    return writing.with_carried(made, body, world_size, read, lambda whole, more: whole.update({"x-sparkweb": more}))


def _project(name: str) -> str:
    """What Compose takes for a project's name."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:60] or "recipe"


def _written(body: Mapping[str, Any], nodes: int) -> dict[str, Any]:
    made: dict[str, Any] = {"image": body["image"]}
    if body["container"]:
        made["container_name"] = body["container"]
    made |= {"network_mode": "host", "gpus": "all", "shm_size": "16g", "ulimits": {"memlock": -1}}
    made["entrypoint"] = []
    made["command"] = _command(body, nodes)
    made["environment"] = {name: value.replace("$", "$$") for name, value in body["environment"]}
    for secret in body["secrets"]:
        made["environment"][secret["variable"]] = f"${{{secret['variable']}:?the secret {secret['name']}}}"
    if nodes > 1:
        made["environment"]["VLLM_HOST_IP"] = "${NODE_ADDRESS:?address of this node on the fabric}"
    path = body["model_path"]
    if path:
        made["volumes"] = [f"{path}:{path}:ro".replace("$", "$$")]
    return {key: value for key, value in made.items() if value != {}}


def _command(body: Mapping[str, Any], nodes: int) -> list[str]:
    if body["engine"] == "command":
        return [word.replace("$", "$$") for word in body["arguments"]]
    words = [*writing.start(body), *(word for _, parts, _ in writing.options(body) for word in parts)]
    made = [word.replace("$", "$$") for word in words]
    if nodes == 1 or body["engine"] not in _HEAD_WORDS:
        return made
    if body["cluster"] == "ray":
        return [*made, "--distributed-executor-backend", "ray"]
    return [*made, "--nnodes", str(nodes), *_NODE_WORDS, *_HEAD_WORDS[body["engine"]]]


# A plan's containers

_FLAGS = {
    "--network": "network_mode",
    "--ipc": "ipc",
    "--shm-size": "shm_size",
    "--user": "user",
    "--runtime": "runtime",
}
_LISTS = {"--volume": "volumes", "--device": "devices", "--cap-add": "cap_add", "--security-opt": "security_opt"}


def of_plan(plan: Plan) -> dict[str, str]:
    """Path (NODE/compose.yaml) -> its text, of the containers that a plan starts, with the words it starts them with. Raises
    Unwritable when there are none."""
    found = started.of_plan(plan)
    made: dict[str, dict[str, Any]] = {}
    for one in found:
        if isinstance(one, Container):
            made.setdefault(one.node, {})[one.name] = _of_container(one)
    if not made:
        raise Unwritable("this plan starts no container", "Take the systemd units, or the shell script.")
    name = _project(str(plan.spec.get("name", "")) if plan.spec else "engine")
    after = [
        f"# then, on {one.node}: {shlex.join(('docker', 'exec', one.container, *one.command))}\n"
        for one in found
        if isinstance(one, Inside) and one.container.isprintable()
    ]
    return {
        f"{node}/compose.yaml": "".join(after) + dump({"name": name, "services": services})
        for node, services in made.items()
    }


def _of_container(one: Container) -> dict[str, Any]:
    made: dict[str, Any] = {"image": one.image, "container_name": one.name, "restart": "no"}
    environment: dict[str, str] = {}
    for option in one.options:
        value = option.value.replace("$", "$$")
        if option.name == "--env":
            name, mark, given = value.partition("=")
            environment[name] = given if mark else f"${{{name}:?a secret}}"
        elif option.name == "--gpus":
            made["gpus"] = value
        elif option.name == "--ulimit":
            limit, _, both = value.partition("=")
            soft, _, hard = both.partition(":")
            made.setdefault("ulimits", {})[limit] = {"soft": int(soft), "hard": int(hard or soft)}
        elif option.name in _LISTS:
            made.setdefault(_LISTS[option.name], []).append(value)
        else:
            made[_FLAGS.get(option.name, option.name.lstrip("-").replace("-", "_"))] = value
    made["environment"] = environment
    made["command"] = [word.replace("$", "$$") for word in one.command]
    return {key: value for key, value in made.items() if value != {}}
