"""What runs: Docker itself, containers, units, and which of their ports anybody can reach."""

from __future__ import annotations

import re
from collections.abc import Iterator

from apps.diagnosis.findings.finding import Finding, listed, seen, verb
from apps.diagnosis.findings.holders import ENGINE_WORDS, unit_of
from apps.diagnosis.findings.table import NOTE, TABLE
from apps.facts.sheet import Sheet
from apps.facts.values import Container, EngineProcess, Listener, Unit

LOOPS = 3  # restarts by its policy that are no accident any more
EVERYWHERE = frozenset({"0.0.0.0", "::", "*", "[::]"})  # noqa: S104 - as ss prints them
RAY_DASHBOARD = 8265
SSH = 22
_KEY = re.compile(r"--api-key\b|--api_key\b|VLLM_API_KEY=")
_PUBLISHED = re.compile(r"(?:0\.0\.0\.0|\[?::\]?):(\d{1,5})->")
_PORT_WORD = re.compile(r"--(?:server-)?port[= ](\d{1,5})\b")


def of_node(sheet: Sheet, *, runtime: str | None) -> Iterator[Finding]:
    """`runtime`: what a deployment would use, None when none is asked for."""
    if runtime != "process":
        yield from docker(sheet)
    for container in sheet.containers or ():
        yield from _container(sheet, container)
    for unit in sheet.units or ():
        yield from _failed(sheet, unit)
    yield from exposed(sheet)


def docker(sheet: Sheet) -> Iterator[Finding]:
    about = sheet.docker
    if about is None:
        return
    name = about.problem or (None if about.present else "docker_missing")
    if name is not None:
        name = name if name in TABLE else "docker_down"
        yield seen(
            name,
            sheet,
            f"{TABLE[name].title} on {sheet.node}",
            evidence=about.evidence or "",
            section="docker-info",
        )
    elif about.runtimes and "nvidia" not in about.runtimes and sheet.gpus and sheet.gpus.gpus:
        yield seen(
            "toolkit_missing",
            sheet,
            f"Docker on {sheet.node} knows no nvidia runtime",
            severity=NOTE,
            meaning="Unless it was set up through CDI, Docker can't give the GPU to a container.",
            evidence=f"runtimes: {', '.join(about.runtimes)}",
            section="docker-info",
        )

    if about.cdi_missing:
        yield seen(
            "cdi_stale",
            sheet,
            f"{len(about.cdi_missing)} {verb(len(about.cdi_missing), 'file', 'files')} that CDI names "
            f"{verb(len(about.cdi_missing), 'is', 'are')} not on {sheet.node}",
            evidence=listed(about.cdi_missing),
            section="cdi",
            missing=list(about.cdi_missing),
        )
    if about.snap and about.present:
        yield seen(
            "docker_snap",
            sheet,
            f"Docker on {sheet.node} is the snap",
            evidence=about.root or "",
            section="docker-info",
            root=about.root,
        )


def _container(sheet: Sheet, one: Container) -> Iterator[Finding]:
    about = dict(section="container-details", container=one.name)
    often = (one.restarts or 0) >= LOOPS
    if one.state == "restarting" or (often and one.state == "running"):
        count = f", {one.restarts} times so far" if one.restarts else ""
        code = f", exit code {one.exit_code}" if one.exit_code and one.state == "restarting" else ""
        yield seen(
            "container_restarting",
            sheet,
            f"{one.name} on {sheet.node} restarts again and again{count}{code}",
            remedy=f"Read its last lines (`docker logs --tail 50 {one.name}`), then stop it or mend it.",
            evidence=one.error or one.status or "",
            restarts=one.restarts,
            exit_code=one.exit_code,
            **about,
        )
    if one.health == "unhealthy" and one.state in ("running", None):
        yield seen(
            "container_unhealthy", sheet, f"{one.name} on {sheet.node} is unhealthy", evidence=one.status or "", **about
        )
    if one.oom_killed and one.state != "running":
        yield seen(
            "container_killed",
            sheet,
            f"{one.name} on {sheet.node} was killed for memory",
            evidence=one.status or "",
            **about,
        )


def _failed(sheet: Sheet, unit: Unit) -> Iterator[Finding]:
    """A vendor's unit that has nothing to do with engines is only worth a note."""
    if unit.active != "failed":
        return
    matters = bool(unit.containers) or unit.vendor is False or ENGINE_WORDS.search(f"{unit.name} {unit.exec_start}")
    known = matters or unit.name in ("docker.service", "containerd.service", "nvidia-persistenced.service")
    why = f" ({unit.result})" if unit.result and unit.result != "success" else ""
    yield seen(
        "unit_failed",
        sheet,
        f"{unit.name} on {sheet.node} has failed{why}",
        severity="" if known else NOTE,
        remedy=f"Read `journalctl -u {unit.name} -e`; `sudo systemctl reset-failed {unit.name}` clears the mark.",
        evidence=unit.exec_start or unit.description or "",
        section="unit-details",
        unit=unit.name,
        result=unit.result,
    )


def exposed(sheet: Sheet) -> Iterator[Finding]:
    """Engine ports that listen on all interfaces, with no key in the command that started them."""
    open_ports: dict[int, str] = {}
    for listener in sheet.listeners or ():
        if listener.address not in EVERYWHERE:
            continue
        if listener.port == RAY_DASHBOARD:
            yield seen(
                "ray_dashboard_open",
                sheet,
                f"Ray's dashboard on {sheet.node} listens on all interfaces, port {listener.port}",
                evidence=f"{listener.address}:{listener.port}",
                section="listeners",
                port=listener.port,
            )
            continue
        owner = _engine_behind(sheet, listener)
        if owner:
            open_ports[listener.port] = owner
    if open_ports:
        named = listed(f"port {port} ({owner})" for port, owner in sorted(open_ports.items()))
        yield seen(
            "exposed",
            sheet,
            f"{named[:1].upper()}{named[1:]} of {sheet.node} {verb(len(open_ports), 'answers', 'answer')} on all "
            "interfaces, and no key was seen",
            section="listeners",
            ports=sorted(open_ports),
        )


def _engine_behind(sheet: Sheet, listener: Listener) -> str:
    """The name of the engine that listens there without a key that can be seen; "" when it is none, has one, or is
    nobody's that is known."""
    container = _container_behind(sheet, listener)
    unit = _unit_behind(sheet, listener, container)
    process = None if container or unit else _process_behind(sheet, listener)
    said = (
        container.command if container else None,
        unit.exec_start if unit else None,
        process.command if process else None,
    )
    commands = " ".join(filter(None, said))
    words = " ".join(
        (
            f"{container.name} {container.image}" if container else "",
            unit.name if unit else "",
            listener.program or "",
        )
    )
    if _KEY.search(commands) or not ENGINE_WORDS.search(f"{words} {commands}") or listener.port == SSH:
        return ""
    if listener.program == "ray" or (listener.program or "").startswith(("raylet", "gcs_server", "ray::")):
        return ""
    if process is not None and process.starts.engine == "ray":
        return ""
    told = f"{process.starts.engine or 'engine'} process {process.pid}" if process else listener.program or ""
    return container.name if container else unit.name if unit else told


def _process_behind(sheet: Sheet, listener: Listener) -> EngineProcess | None:
    """The engine's process that listens there; where the owner is hidden from this user, one that was told to take the port."""
    for one in sheet.processes or ():
        told = listener.pid is None and one.container is None and one.starts.port == listener.port
        if one.pid == listener.pid or told:
            return one
    return None


def owner_of(sheet: Sheet, listener: Listener) -> str:
    """Who listens there, by name: a container, a unit, an engine's process, the program; "" when nobody knows."""
    container = _container_behind(sheet, listener)
    if container is not None:
        return f"container {container.name}"
    unit = next((one for one in sheet.units or () if one.pid is not None and one.pid == listener.pid), None)
    process = _process_behind(sheet, listener)
    if process is not None and (process.container or process.unit):
        return f"container {process.container}" if process.container else str(process.unit)
    if unit is not None:
        return unit.name
    pid = f" (pid {listener.pid})" if listener.pid is not None else ""
    program = (process.starts.engine or "an engine") if process else listener.program
    return f"{program}{pid}" if program else ""


def _container_behind(sheet: Sheet, listener: Listener) -> Container | None:
    """By its process; where the owner is hidden from this user, by the port that it publishes or was told to take."""
    running = [one for one in sheet.containers or () if one.state in (None, "running")]
    if listener.pid is not None:
        return next((one for one in running if one.pid == listener.pid), None)
    wanted = str(listener.port)
    return next(
        (
            one
            for one in running
            if wanted in _PORT_WORD.findall(one.command or "")
            or any(wanted in _PUBLISHED.findall(port) for port in one.ports)
        ),
        None,
    )


def _unit_behind(sheet: Sheet, listener: Listener, container: Container | None) -> Unit | None:
    if listener.pid is not None:
        found = next((unit for unit in sheet.units or () if unit.pid == listener.pid), None)
        if found:
            return found
    return unit_of(sheet, container.name) if container else None
