"""Who holds what on a node, as one tree: unit, container or compose project, process; and what nobody can see."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from apps.diagnosis.findings.holders import NOTABLE_BYTES, SYSTEM_BYTES, discrete, holders, unit_of
from apps.facts.sheet import Sheet
from apps.facts.values import Container, EngineProcess, Unit

GIB = 1 << 30
RUNNING = ("active", "activating", "reloading")


@dataclass(frozen=True)
class Owned:
    """One row; `below` are held by it. `bytes` is what ending it with all below frees, 0 where nothing says. `started`: by whom;
    `returns`: what brings it back when it is ended."""

    kind: str  # unit, project, container, user, process, unseen
    name: str
    bytes: int = 0
    estimated: bool = False
    ports: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    started: str = ""
    returns: str = ""
    below: tuple[Owned, ...] = ()

    def rows(self, depth: int = 0) -> Iterator[tuple[int, Owned]]:
        yield depth, self
        for one in self.below:
            yield from one.rows(depth + 1)


def tree(sheet: Sheet) -> tuple[Owned, ...]:
    """Everything that holds notable memory, a GPU, or a port of an engine, the largest first; what is not seen last."""
    processes = _processes(sheet)
    boxes = [one for one in sheet.containers or () if one.state in ("running", "paused", "restarting")]
    made = {box.name: _container(sheet, box, [p for p, c, _ in processes if c == box.name]) for box in boxes}
    roots: list[Owned] = []
    placed: set[str] = set()
    for unit in sheet.units or ():
        mine = [box.name for box in boxes if unit_of(sheet, box.name) is unit]
        own = [p for p, c, u in processes if c is None and u == unit.name]
        if mine or own:
            placed.update(mine)
            roots.append(_unit(sheet, unit, [*(made[name] for name in mine), *own]))
    known = {unit.name for unit in sheet.units or ()}
    for name in dict.fromkeys(u for _, c, u in processes if c is None and u and u not in known):
        own = [p for p, c, u in processes if c is None and u == name]
        roots.append(_summed(Owned("unit", name, started="systemd", returns="its unit file is not seen"), own))
    roots += _projects([box for box in boxes if box.name not in placed], made)
    roots += _users(
        sheet, [(p, pid) for (p, c, u), pid in zip(processes, _pids(sheet), strict=True) if not c and not u]
    )
    kept = [one for one in roots if one.bytes >= NOTABLE_BYTES or one.ports or one.gpus or one.kind == "user"]
    return (*sorted(kept, key=lambda one: (-one.bytes, one.kind, one.name)), *_unseen(sheet, kept))


def _pids(sheet: Sheet) -> list[int]:
    listed = [one.pid for one in sheet.processes or ()]
    return list(dict.fromkeys([*listed, *(one.pid for one in (sheet.gpus.processes if sheet.gpus else ()))]))


def _processes(sheet: Sheet) -> list[tuple[Owned, str | None, str | None]]:
    """Each with its container and its unit; engine processes and whoever is on a GPU."""
    engines = {one.pid: one for one in sheet.processes or ()}
    gpus: dict[int, list[int]] = {}
    made = []
    for gpu in sheet.gpus.processes if sheet.gpus else ():
        if gpu.gpu is not None:
            gpus.setdefault(gpu.pid, []).append(gpu.gpu)
    for pid in _pids(sheet):
        engine = engines.get(pid)
        on_gpu = [one for one in (sheet.gpus.processes if sheet.gpus else ()) if one.pid == pid]
        held = sum(one.mib or 0 for one in on_gpu) << 20
        size = max(held, engine.gpu_bytes or 0 if engine else 0) + (engine.resident_bytes or 0 if engine else 0)
        name = _called(engine) if engine else next((one.name for one in on_gpu if one.name), "a process")
        ports = set(engine.ports if engine else ()) | {one.port for one in sheet.listeners or () if one.pid == pid}
        container = engine.container if engine else next((one.container for one in on_gpu if one.container), None)
        unit = engine.unit if engine else next((one.unit for one in on_gpu if one.unit), None)
        started = f"user {engine.user}" if engine and engine.user else ""
        if engine and engine.run:
            started = f"run {engine.run} of sparkweb"
        row = Owned("process", f"{name} {pid}", size, False, tuple(sorted(ports)), tuple(gpus.get(pid, ())), started)
        made.append((row, container, unit))
    return made


def _called(engine: EngineProcess) -> str:
    words = (engine.command or "").split()
    program = words[0].rpartition("/")[2] if words else ""
    if program.startswith("python") and len(words) > 1:
        return words[1].rpartition("/")[2] if not words[1].startswith("-") else " ".join(words[1:3])
    return program or engine.starts.engine or "a process"


def _container(sheet: Sheet, box: Container, inside: Sequence[Owned]) -> Owned:
    """Its figure is what Docker and the GPU say together, which its processes may not add up to."""
    holder = next((one for one in holders(sheet, 0) if (one.kind, one.name) == ("container", box.name)), None)
    published = {int(port) for shown in box.ports for port in re.findall(r":(\d+)->", shown)}
    listening = {one.port for one in sheet.listeners or () if box.pid is not None and one.pid == box.pid}
    policy = box.restart_policy or "no"
    ours = box.labels.get("sparkweb.deployment")
    row = Owned(
        "container",
        box.name,
        ports=tuple(sorted(published | listening)),
        started=f"deployment {ours} of sparkweb" if ours else "Docker",
        returns=f"Docker restarts it ({policy})" if policy != "no" else "",
    )
    row = _summed(row, inside)
    size = max(holder.bytes if holder else 0, 0 if holder and holder.bytes else row.bytes)
    return replace(row, bytes=size, estimated=bool(holder and holder.estimated))


def _unit(sheet: Sheet, unit: Unit, below: Sequence[Owned]) -> Owned:
    returns = []
    if unit.enabled in ("enabled", "static", "enabled-runtime"):
        returns.append(f"systemd at each boot ({unit.enabled})")
    if unit.active in RUNNING and any(one.kind == "container" for one in below):
        returns.append("it starts its containers again while it runs")
    own = [one.port for one in sheet.listeners or () if unit.pid is not None and one.pid == unit.pid]
    row = Owned("unit", unit.name, ports=tuple(sorted(own)), started="systemd", returns="; ".join(returns))
    return _summed(row, [replace(one, started=unit.name) if one.started == "Docker" else one for one in below])


def _projects(boxes: Sequence[Container], made: dict[str, Owned]) -> Iterator[Owned]:
    for name in dict.fromkeys(box.compose_project for box in boxes):
        mine = [made[box.name] for box in boxes if box.compose_project == name]
        if name is None:
            yield from mine
        else:
            yield _summed(Owned("project", name, started="docker compose"), mine)


def _users(sheet: Sheet, loose: Sequence[tuple[Owned, int]]) -> Iterator[Owned]:
    """Processes that neither a unit nor a container has: a login, tmux, nohup, or a job of ours."""
    owners = {one.pid: one.user for one in sheet.processes or ()}
    for user in dict.fromkeys(owners.get(pid) for _, pid in loose):
        mine = [one for one, pid in loose if owners.get(pid) == user]
        row = Owned("user", user or "not seen", started="a login, tmux or nohup", returns="nothing starts it again")
        yield _summed(row, mine)


def _summed(row: Owned, below: Sequence[Owned]) -> Owned:
    return replace(
        row,
        bytes=sum(one.bytes for one in below),
        estimated=any(one.estimated for one in below),
        ports=tuple(sorted({*row.ports, *(port for one in below for port in one.ports)})),
        gpus=tuple(sorted({*row.gpus, *(gpu for one in below for gpu in one.gpus)})),
        below=tuple(sorted(below, key=lambda one: (-one.bytes, one.name))),
    )


def _unseen(sheet: Sheet, roots: Sequence[Owned]) -> Iterator[Owned]:
    """Ports without an owner, and memory that nobody above accounts for: other users' processes, rootless containers."""
    told = {port for one in roots for port in one.ports}
    ports = sorted(
        {one.port for one in sheet.listeners or () if one.pid is None and one.port not in told and one.port > 1023}
    )
    memory = sheet.memory
    rest = 0
    if memory is not None and memory.used_bytes is not None and not discrete(sheet):
        rest = max(0, memory.used_bytes - SYSTEM_BYTES - sum(one.bytes for one in roots))
    if ports or rest >= 4 * NOTABLE_BYTES:
        yield Owned(
            "unseen", "others", rest if rest >= 4 * NOTABLE_BYTES else 0, True, tuple(ports),
            started="another user, or a container that this login may not see",
        )  # fmt: skip
