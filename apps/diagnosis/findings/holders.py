"""Who holds a node's memory, and what would bring it back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from apps.facts.sheet import Sheet
from apps.facts.values import Container, GpuProcess, Unit

SYSTEM_BYTES = 6 << 30  # what an idle Spark's own system takes
NOTABLE_BYTES = 512 << 20  # less is nobody's business
ENGINE_WORDS = re.compile(r"vllm|sglang|llama|ollama|\bray\b|triton|text-generation|trtllm", re.IGNORECASE)


def discrete(sheet: Sheet) -> bool:
    """Whether its GPUs have memory of their own."""
    return bool(sheet.gpus and sheet.gpus.gpus and not any(gpu.unified for gpu in sheet.gpus.gpus))


def is_ours(container: Container, deployment: int) -> bool:
    return container.labels.get("sparkweb.deployment") == str(deployment)


@dataclass(frozen=True)
class Holder:
    """Something on a node that holds memory. `own`: a leftover of this deployment, which goes without asking."""

    kind: str  # container, process, unit (a unit's process that is no container's)
    name: str
    bytes: int
    own: bool = False
    estimated: bool = False  # a share of the memory that nobody names (GB10 does not always say whose it is)


def holders(sheet: Sheet, deployment: int) -> tuple[Holder, ...]:
    """Running containers and GPU processes outside of containers that hold memory, the largest first.

    Where the node does not say whose a GPU process is, or names none at all, containers that look like engines and
    have no figure of their own are taken to share what nobody else accounts for (`estimated`)."""
    containers, processes = [*_containers(sheet, deployment)], [*_processes(sheet)]
    looks_like_engine = {
        one.name
        for one in sheet.containers or ()
        if is_ours(one, deployment) or ENGINE_WORDS.search(f"{one.name} {one.image} {one.command}")
    }
    silent = [one for one in containers if one.bytes == 0 and one.name in looks_like_engine]
    if silent:
        loose = [one for one in processes if one.kind == "process"]
        processes = [one for one in processes if one.kind != "process"]
        share = max(sum(one.bytes for one in loose), _unexplained(sheet, [*containers, *processes])) // len(silent)
        containers = [replace(one, bytes=share, estimated=share > 0) if one in silent else one for one in containers]
    return tuple(sorted([*containers, *processes], key=lambda holder: (-holder.bytes, holder.kind, holder.name)))


def _unexplained(sheet: Sheet, found: Sequence[Holder]) -> int:
    """Memory in use that neither these holders nor an idle system account for; 0 where the GPU has its own memory."""
    if discrete(sheet) or sheet.memory is None or sheet.memory.used_bytes is None:
        return 0
    return max(0, sheet.memory.used_bytes - sum(one.bytes for one in found) - SYSTEM_BYTES)


def _containers(sheet: Sheet, deployment: int) -> Iterator[Holder]:
    by_container: dict[str, int] = {}
    for process in sheet.gpus.processes if sheet.gpus else ():
        if process.container:
            by_container[process.container] = by_container.get(process.container, 0) + ((process.mib or 0) << 20)
    for container in sheet.containers or ():
        if container.state in ("running", "paused", "restarting"):
            size = max(container.memory_bytes or 0, by_container.get(container.name, 0))
            yield Holder("container", container.name, size, deployment > 0 and is_ours(container, deployment))


def _processes(sheet: Sheet) -> Iterator[Holder]:
    """GPU processes that no known container has: by their unit, or alone."""
    names = {one.name for one in sheet.containers or ()}
    by_unit: dict[str, int] = {}
    for process in sheet.gpus.processes if sheet.gpus else ():
        size = (process.mib or 0) << 20
        if process.container in names:
            continue
        if process.unit:
            by_unit[process.unit] = by_unit.get(process.unit, 0) + size
        elif size:
            yield Holder("process", str(process.pid), size)
    yield from (Holder("unit", unit, size) for unit, size in by_unit.items())


def units_by_container(sheet: Sheet) -> Mapping[str, Unit]:
    """The unit that starts each container: by what it runs, else because its main process is the container's; the first of
    several."""
    pids: dict[int, list[str]] = {}
    for one in sheet.containers or ():
        if one.pid is not None:
            pids.setdefault(one.pid, []).append(one.name)
    found: dict[str, Unit] = {}
    for unit in sheet.units or ():
        for name in (*unit.containers, *(pids.get(unit.pid, ()) if unit.pid is not None else ())):
            found.setdefault(name, unit)
    return found


def unit_of(sheet: Sheet, container: str) -> Unit | None:
    """The unit that starts one container."""
    return units_by_container(sheet).get(container)


def units_behind(sheet: Sheet, found: Sequence[Holder]) -> tuple[Unit, ...]:
    """Units that start these containers, hold the memory themselves, or are running parts of the same engine stack."""
    containers = {one.name for one in found if one.kind == "container"}
    named = {one.name for one in found if one.kind == "unit"}
    made, starters = [], {unit.name for name, unit in units_by_container(sheet).items() if name in containers}
    for unit in sheet.units or ():
        active = unit.active in ("active", "activating", "reloading")
        starts = unit.name in starters
        related = (
            not unit.containers
            and unit.vendor is not True
            and bool(ENGINE_WORDS.search(f"{unit.name} {unit.exec_start or ''}"))
        )
        if active and (starts or unit.name in named or related):
            made.append(unit)
    return tuple(made)


def starts_an_engine(unit: Unit) -> bool:
    """By its name, its command and the containers that it starts; what the system's vendor brought is none."""
    text = " ".join((unit.name, unit.exec_start or "", *unit.containers))
    return unit.vendor is not True and bool(ENGINE_WORDS.search(text))


def survivors(sheet: Sheet, most: int = 6) -> tuple[str, ...]:
    """Who still holds memory, in words, the largest first: `python3 (process 4711, container vllm_node) 61.2 GiB`."""
    found: dict[str, tuple[int, str]] = {}
    units = units_by_container(sheet)
    on_gpu: dict[int, list[GpuProcess]] = {}
    for gpu in sheet.gpus.processes if sheet.gpus else ():
        on_gpu.setdefault(gpu.pid, []).append(gpu)
    engines = {one.pid: one for one in sheet.processes or ()}
    for pid in dict.fromkeys([*engines, *on_gpu]):
        engine, gpus = engines.get(pid), on_gpu.get(pid, [])
        size = max(
            (engine.resident_bytes or 0) + (engine.gpu_bytes or 0) if engine else 0,
            sum(one.mib or 0 for one in gpus) << 20,
        )
        words = (engine.command or "").split() or [engine.starts.engine or "process"] if engine else []
        name = (words[0] if words else gpus[0].name or "process").rpartition("/")[2]
        container = next((one.container for one in (engine, *gpus) if one and one.container), None)
        unit = next((one.unit for one in (engine, *gpus) if one and one.unit), None)
        found[str(pid)] = size, _in_words(units, name, pid, container, unit)
    inside = {one.container for one in sheet.processes or ()}
    inside |= {one.container for one in (sheet.gpus.processes if sheet.gpus else ())}
    for holder in holders(sheet, 0):
        if holder.kind == "container" and holder.name not in inside:
            starter = units.get(holder.name)
            found[holder.name] = (
                holder.bytes,
                f"container {holder.name}" + (f" (unit {starter.name})" if starter else ""),
            )
    rows = sorted((one for one in found.values() if one[0] >= NOTABLE_BYTES), reverse=True)
    return tuple(f"{words} {size / (1 << 30):.1f} GiB" for size, words in rows[:most])


def _in_words(units: Mapping[str, Unit], name: str, pid: int, container: str | None, unit: str | None) -> str:
    starter = units.get(container) if container else None
    owner = unit or (starter.name if starter else None)
    about = [f"process {pid}", f"container {container}" if container else "", f"unit {owner}" if owner else ""]
    return f"{name} ({', '.join(filter(None, about))})"
