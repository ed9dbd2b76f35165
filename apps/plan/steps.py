"""How steps are made, so that every story words and keys them alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from apps.plan import proofs
from apps.plan.commands import docker, node, systemd
from apps.plan.spec import Spec
from apps.plan.step import Step
from apps.shell import Command, Secret, Shell, script

READY_SILENCE_S = 900.0  # without any progress of the load
MEETING_S = 900.0  # from the start of the head's engine to the port where the ranks meet: it imports and reads first
PEER_WITHIN_S = 180.0
GIB = 1 << 30


def serve_key(name: str, service: str = "") -> str:
    """The key of the step whose detached job is the engine (or its log) of a service on a node."""
    return f"serve.{service}.engine.{name}" if service else f"serve.engine.{name}"


def note(key: str, name: str, title: str, *, why: str) -> Step:
    return Step(key=key, node=name, title=title, kind="note", why=why)


def job(
    key: str,
    name: str,
    title: str,
    script: Command | Shell,
    *,
    shown: Sequence[str] = (),
    why: str = "",
    secrets: Sequence[Secret] = (),
    undo: Mapping[str, Any] | None = None,
    within_s: float = 120.0,
) -> Step:
    return Step(
        key=key,
        node=name,
        title=title,
        kind="job",
        script=script.text,
        commands=tuple(shown) or (script.text,),
        why=why,
        secrets=tuple(secrets),
        undo=dict(undo or {}),
        within_s=within_s,
    )


def serve(
    name: str,
    script: Shell,
    *,
    shown: Sequence[str],
    secrets: Sequence[Secret],
    rank: int,
    title: str = "Serve",
    follows: str = "vllm",
    container: str = "",
) -> Step:
    return Step(
        key=serve_key(name),
        node=name,
        title=title,
        kind="serve",
        script=script.text,
        commands=tuple(shown),
        secrets=tuple(secrets),
        rank=rank,
        follows=follows,
        container=container,
    )


def follow(key: str, name: str, container: str, *, follows: str, rank: int | None) -> Step:
    return Step(
        key=key,
        node=name,
        title=f"Follow the log of {container}",
        kind="serve",
        script=docker.follow(container).text,
        commands=(docker.logs(container).text,),
        rank=rank,
        follows=follows,
        container=container,
    )


def container_running(key: str, name: str, container: str) -> Step:
    return Step(
        key=key,
        node=name,
        title=f"Wait until {container} runs",
        kind="wait",
        script=docker.state(container).text,
        commands=(docker.state(container).text,),
        gate={"name": "container_running", "container": container},
        every_s=1.0,
        within_s=60.0,
        why="goes on when Docker says running",
    )


def port_listening(key: str, name: str, port: int, container: str) -> Step:
    """The port is only looked for in the node's tables: connecting to it would be taken for a rank."""
    asked = script(docker.state(container), node.listening())
    return Step(
        key=key,
        node=name,
        title=f"Wait until {container} listens on {port}",
        kind="wait",
        script=asked.text,
        commands=(docker.state(container).text, "ss -H -ltn"),
        gate={"name": "port_listening", "port": port, "container": container},
        every_s=2.0,
        within_s=MEETING_S,
        why=f"goes on when something listens on {port}, where the other ranks look for it",
    )


def peer_answers(name: str, peer: str, interface: str, address: str) -> Step:
    asked = node.reaches(interface, address)
    return Step(
        key=f"preflight.peer.{name}.{peer}",
        node=name,
        title=f"Wait until {peer} answers over the fabric",
        kind="wait",
        script=asked.text,
        commands=(asked.text,),
        gate={"name": "peer_answers", "peer": peer, "address": address, "interface": interface},
        every_s=3.0,
        within_s=PEER_WITHIN_S,
        why=f"goes on when {address} is reached through {interface}, at most {PEER_WITHIN_S / 60:g} min after a boot",
    )


def memory_free(key: str, name: str, wanted_bytes: int, *, within_s: float = 120.0) -> Step:
    wanted = f"{wanted_bytes / GIB:.1f} GiB"
    return Step(
        key=key,
        node=name,
        title=f"Wait until {wanted} are free",
        kind="wait",
        script=node.memory().text,
        commands=(node.memory().text,),
        gate={"name": "memory_free", "bytes": wanted_bytes},
        every_s=2.0,
        within_s=within_s,
        why=f"waits until {wanted} are free, at most {within_s / 60:g} min",
    )


def ports_free(key: str, name: str, ports: Sequence[int]) -> Step:
    shown = " and ".join(str(port) for port in ports)
    one = len(ports) == 1
    return Step(
        key=key,
        node=name,
        title=f"Wait until port {shown} is free" if one else f"Wait until ports {shown} are free",
        kind="wait",
        script=node.listening().text,
        commands=("ss -H -ltn",),
        gate={"name": "ports_free", "ports": list(ports)},
        every_s=1.0,
        within_s=60.0,
        why=f"goes on when nothing listens on {shown}",
    )


def containers_gone(
    key: str,
    name: str,
    *,
    deployment: int | None = None,
    service: str = "",
    names: Sequence[str] = (),
    but: Sequence[str] = (),
    running_only: bool = False,
) -> Step:
    """`names`: those that must go, of whatever deployment; `but`: those of this deployment that stay."""
    script = docker.names(running_only=running_only, deployment=deployment, service=service)
    gate: dict[str, Any] = {"name": "containers_gone"}
    if deployment is None:
        gate["containers"] = list(names)
    if but:
        gate["but"] = list(but)
    return Step(
        key=key,
        node=name,
        title="Wait until the containers are gone",
        kind="wait",
        script=script.text,
        commands=(script.text,),
        gate=gate,
        every_s=1.0,
        within_s=120.0,
        why="goes on when Docker no longer lists them",
    )


def units_active(key: str, name: str, units: Sequence[str]) -> Step:
    asked = systemd.are_active(units)
    return Step(
        key=key,
        node=name,
        title=f"Wait until {', '.join(units)} {'is' if len(units) == 1 else 'are'} active",
        kind="wait",
        script=asked.text,
        commands=(asked.text,),
        gate={"name": "units_active", "units": list(units)},
        every_s=2.0,
        within_s=180.0,
        why="goes on when systemd says active of each; fails at once when one has failed",
    )


def end(key: str, name: str, *, ends: str, title: str, why: str) -> Step:
    return Step(key=key, node=name, title=title, kind="end", ends=ends, why=why)


def api_url(spec: Spec) -> str:
    """Where the API is asked from the head itself."""
    anywhere = spec.api_host in ("", "0.0.0.0", "::", "localhost")  # noqa: S104  # compared, not bound
    host = "127.0.0.1" if anywhere else spec.api_host
    return f"http://{f'[{host}]' if ':' in host else host}:{spec.port}"


API_KEYS = ("VLLM_API_KEY", "LLAMA_API_KEY")  # variables in which engines take the key of their API


def _keys(spec: Spec) -> tuple[Secret, ...]:
    """The API's own key, by its name: whoever asks the API has to show it."""
    return tuple(secret for secret in spec.secrets if secret.variable in API_KEYS)


def healthy(spec: Spec, head: str, engine: str) -> Step:
    url = f"{api_url(spec)}/health"
    return Step(
        key=f"serve.healthy.{head}",
        node=head,
        title=f"Wait until {engine} says that it is ready",
        kind="ready",
        url=url,
        model=spec.model_name,
        gate={"name": "health"},
        every_s=2.0,
        within_s=READY_SILENCE_S,
        commands=(f"# GET {url} through SSH",),
        why=f"goes on when {url} answers 200: it says 503 while it loads or warms up, and the list of models is there before",
    )


def ready(spec: Spec, head: str) -> Step:
    url = f"{api_url(spec)}/v1/models"
    return Step(
        key=f"serve.ready.{head}",
        node=head,
        title=f"Wait until the API names {spec.model_name}",
        kind="ready",
        url=url,
        model=spec.model_name,
        secrets=_keys(spec),
        every_s=2.0,
        within_s=READY_SILENCE_S,
        commands=(f"# GET {url} through SSH",),
        why=f"goes on when {url} names {spec.model_name}; stalled after {READY_SILENCE_S / 60:g} min without progress",
    )


def smoke(spec: Spec, head: str) -> Step:
    urls = [f"{api_url(spec)}{path}" for path in proofs.PATHS[spec.kind]]
    url = urls[0]
    return Step(
        key=f"verify.smoke.{head}",
        node=head,
        title=proofs.TITLES[spec.kind],
        kind="smoke",
        url=url,
        gate={} if spec.kind == "chat" else {"kind": spec.kind, "urls": urls[1:]},
        model=spec.model_name,
        secrets=_keys(spec),
        max_tokens=spec.smoke_max_tokens,
        within_s=300.0,
        commands=(f"# POST {' or '.join(urls)} through SSH",),
        why="readiness alone proves nothing: an engine can say 200 and fail at the first request",
    )


def proofs_of(spec: Spec, head: str) -> tuple[Step, ...]:
    """What ends a launch: all that a smoke test asks, but for the names of the models, which were waited for."""
    return tuple(step for step in questions(spec, head) if step.gate.get("ask") != proofs.MODELS)


def questions(spec: Spec, head: str) -> tuple[Step, ...]:
    """What a smoke test asks of one service, a step each."""
    plain = smoke(spec, head)
    base, url = api_url(spec), f"{api_url(spec)}/v1/models"
    models = replace(
        plain,
        key=f"verify.models.{head}",
        title=f"The API names {spec.model_name}",
        url=url,
        gate={"ask": proofs.MODELS},
        within_s=60.0,
        commands=(f"# GET {url} through SSH",),
        why="another process may have taken the port",
    )
    made = [models, plain]
    chat = f"{base}{proofs.PATHS['chat'][0]}"
    if spec.kind == "chat":
        made.append(
            replace(
                plain,
                key=f"verify.streamed.{head}",
                title=proofs.ASKS[proofs.STREAMED],
                gate={"ask": proofs.STREAMED},
                commands=(f"# POST {chat} through SSH, streamed",),
                why="an error may stand in a stream that began with 200; the time to the first token is measured here",
            )
        )
    if spec.kind == "chat" and spec.tool_call_parser:
        made.append(
            replace(
                plain,
                key=f"verify.tools.{head}",
                title=proofs.ASKS[proofs.TOOLS],
                gate={"ask": proofs.TOOLS, "parser": spec.tool_call_parser},
                max_tokens=max(256, spec.smoke_max_tokens),
                commands=(f"# POST {chat} through SSH, with a tool",),
                why=f"the recipe names the tool call parser {spec.tool_call_parser}",
            )
        )
    return tuple(made)
