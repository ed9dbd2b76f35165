"""Who holds what on a node, as one tree: unit, container or compose project, process; and what nobody can see."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from apps.diagnosis.findings.holders import NOTABLE_BYTES, SYSTEM_BYTES, Holder, discrete, holders, units_by_container
from apps.facts.sheet import Sheet
from apps.facts.values import Container, EngineProcess, GpuProcess, Unit

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


@dataclass(frozen=True)
class Seen:
    """A process with what it belongs to."""

    row: Owned
    container: str | None
    unit: str | None
    user: str | None


def tree(sheet: Sheet) -> tuple[Owned, ...]:
    """Everything that holds notable memory, a GPU, or a port of an engine, the largest first; what is not seen last."""
    inside: dict[str, list[Owned]] = defaultdict(list)  # by container
    of_unit: dict[str, list[Owned]] = defaultdict(list)
    loose: dict[str | None, list[Owned]] = defaultdict(list)  # by user
    ports = _ports(sheet)
    for one in _processes(sheet, ports):
        if one.container is not None:
            inside[one.container].append(one.row)
        elif one.unit:
            of_unit[one.unit].append(one.row)
        else:
            loose[one.user].append(one.row)
    boxes = {box.name: box for box in sheet.containers or () if box.state in ("running", "paused", "restarting")}
    held = {one.name: one for one in holders(sheet, 0) if one.kind == "container"}
    made = {box.name: _container(box, held.get(box.name), ports, inside[box.name]) for box in boxes.values()}
    started: dict[str, list[str]] = defaultdict(list)
    for name, unit in units_by_container(sheet).items():
        if name in boxes:
            started[unit.name].append(name)
    roots = []
    for unit in sheet.units or ():
        below = [*(made[name] for name in started[unit.name]), *of_unit.pop(unit.name, ())]
        if below:
            roots.append(_unit(unit, ports, below))
    for name, rows in of_unit.items():
        roots.append(_summed(Owned("unit", name, started="systemd", returns="its unit file is not seen"), rows))
    placed = {name for names in started.values() for name in names}
    roots += _projects([box for name, box in boxes.items() if name not in placed], made)
    roots += [_user(user, rows) for user, rows in loose.items()]
    kept = [one for one in roots if one.bytes >= NOTABLE_BYTES or one.ports or one.gpus or one.kind == "user"]
    return (*sorted(kept, key=lambda one: (-one.bytes, one.kind, one.name)), *_unseen(sheet, kept))


def _ports(sheet: Sheet) -> Mapping[int, set[int]]:
    """What each process listens on."""
    made: dict[int, set[int]] = defaultdict(set)
    for one in sheet.listeners or ():
        if one.pid is not None:
            made[one.pid].add(one.port)
    return made


def _processes(sheet: Sheet, ports: Mapping[int, set[int]]) -> Iterator[Seen]:
    """Engine processes and whoever is on a GPU, each once."""
    engines = {one.pid: one for one in sheet.processes or ()}
    on_gpu: dict[int, list[GpuProcess]] = defaultdict(list)
    for each in sheet.gpus.processes if sheet.gpus else ():
        on_gpu[each.pid].append(each)
    for pid in dict.fromkeys([*engines, *on_gpu]):
        engine, gpus = engines.get(pid), on_gpu.get(pid, [])
        held = sum(one.mib or 0 for one in gpus) << 20
        name = _called(engine) if engine else next((one.name for one in gpus if one.name), "a process")
        started = f"user {engine.user}" if engine and engine.user else ""
        if engine and engine.run:
            started = f"run {engine.run} of sparkweb"
        row = Owned(
            "process",
            f"{name} {pid}",
            max(held, engine.gpu_bytes or 0 if engine else 0) + (engine.resident_bytes or 0 if engine else 0),
            ports=tuple(sorted({*(engine.ports if engine else ()), *ports.get(pid, ())})),
            gpus=tuple(one.gpu for one in gpus if one.gpu is not None),
            started=started,
        )
        yield Seen(
            row,
            engine.container if engine else next((one.container for one in gpus if one.container), None),
            engine.unit if engine else next((one.unit for one in gpus if one.unit), None),
            engine.user if engine else None,
        )


def _called(engine: EngineProcess) -> str:
    words = (engine.command or "").split()
    program = words[0].rpartition("/")[2] if words else ""
    if program.startswith("python") and len(words) > 1:
        return words[1].rpartition("/")[2] if not words[1].startswith("-") else " ".join(words[1:3])
    return program or engine.starts.engine or "a process"


def _container(box: Container, holder: Holder | None, ports: Mapping[int, set[int]], inside: Sequence[Owned]) -> Owned:
    """Its figure is what Docker and the GPU say together, which its processes may not add up to."""
    published = {int(port) for shown in box.ports for port in re.findall(r":(\d+)->", shown)}
    policy = box.restart_policy or "no"
    ours = box.labels.get("sparkweb.deployment")
    row = Owned(
        "container",
        box.name,
        ports=tuple(sorted({*published, *ports.get(box.pid or 0, ())})),
        started=f"deployment {ours} of sparkweb" if ours else "Docker",
        returns=f"Docker restarts it ({policy})" if policy != "no" else "",
    )
    row = _summed(row, inside)
    if holder is None or not holder.bytes:
        return replace(row, estimated=bool(holder and holder.estimated))
    return replace(row, bytes=holder.bytes, estimated=holder.estimated)


def _unit(unit: Unit, ports: Mapping[int, set[int]], below: Sequence[Owned]) -> Owned:
    returns = []
    if unit.enabled in ("enabled", "static", "enabled-runtime"):
        returns.append(f"systemd at each boot ({unit.enabled})")
    if unit.active in RUNNING and any(one.kind == "container" for one in below):
        returns.append("it starts its containers again while it runs")
    own = tuple(sorted(ports.get(unit.pid or 0, ())))
    row = Owned("unit", unit.name, ports=own, started="systemd", returns="; ".join(returns))
    return _summed(row, [replace(one, started=unit.name) if one.started == "Docker" else one for one in below])


def _projects(boxes: Sequence[Container], made: Mapping[str, Owned]) -> Iterator[Owned]:
    projects: dict[str, list[Owned]] = defaultdict(list)
    for box in boxes:
        if box.compose_project is None:
            yield made[box.name]
        else:
            projects[box.compose_project].append(made[box.name])
    for name, mine in projects.items():
        yield _summed(Owned("project", name, started="docker compose"), mine)


def _user(name: str | None, rows: Sequence[Owned]) -> Owned:
    """Processes that neither a unit nor a container has: a login, tmux, nohup, or a job of ours."""
    row = Owned("user", name or "not seen", started="a login, tmux or nohup", returns="nothing starts it again")
    return _summed(row, rows)


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
