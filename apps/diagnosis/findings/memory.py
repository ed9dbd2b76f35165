"""Memory: who has it, what would bring them back, and who was ended for the lack of it."""

from __future__ import annotations

from collections.abc import Iterator

from apps.diagnosis.findings.finding import GIB, Finding, gib, listed, seen, verb
from apps.diagnosis.findings.holders import (
    NOTABLE_BYTES,
    Holder,
    discrete,
    holders,
    starts_an_engine,
    units_behind,
)
from apps.diagnosis.findings.versions import version
from apps.facts.memory import pressure
from apps.facts.sheet import Sheet

SWAPPED_BYTES = 1 * GIB  # less than that is left over from long ago
AT_BOOT = ("enabled", "enabled-runtime", "generated", "linked")


def of_node(sheet: Sheet) -> Iterator[Finding]:
    ours = {one.name for one in sheet.containers or () if "sparkweb.deployment" in one.labels}
    notable = [one for one in holders(sheet, 0) if one.bytes >= NOTABLE_BYTES]
    foreign = [one for one in notable if not (one.kind == "container" and one.name in ours)]
    if foreign:
        yield _held(sheet, foreign)
    own = [one for one in notable if one.kind == "container" and one.name in ours]
    if own:
        yield _ours(sheet, own)
    yield from _units(sheet, foreign)
    yield from _pressure(sheet)
    yield from _swap(sheet)
    yield from _killed(sheet)
    yield from _cma(sheet)


def _said(sheet: Sheet, one: Holder) -> str:
    """A process with its engine and user, where they are known."""
    if one.kind != "process":
        return one.name
    known = next((each for each in sheet.processes or () if str(each.pid) == one.name), None)
    if known is None or known.starts.engine is None:
        return f"process {one.name}"
    return f"{known.starts.engine} process {one.name}{f' of {known.user}' if known.user else ''}"


def _held(sheet: Sheet, found: list[Holder]) -> Finding:
    """By whom, and what stopping each would free."""
    about = any(one.estimated for one in found)
    total = sum(one.bytes for one in found)
    room = _room(sheet)
    figures = listed(f"{_said(sheet, one)} {'about ' if one.estimated else ''}{gib(one.bytes)}" for one in found)
    return seen(
        "memory_held",
        sheet,
        f"{'About ' if about else ''}{gib(total)}{f' of {gib(room)}' if room else ''} on {sheet.node} "
        f"{'is' if about else 'are'} held by {listed(_said(sheet, one) for one in found)}",
        meaning=f"Stopping frees: {figures}. A launch that needs the memory asks for consent first.",
        evidence=figures,
        section="container-memory",
        total_bytes=total,
        frees_bytes={one.name: one.bytes for one in found},
        estimated=about,
    )


def _room(sheet: Sheet) -> int | None:
    if not discrete(sheet):
        return sheet.memory.total_bytes if sheet.memory else None
    sizes = [gpu.memory_total_mib for gpu in (sheet.gpus.gpus if sheet.gpus else ())]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes) << 20


def _ours(sheet: Sheet, own: list[Holder]) -> Finding:
    total = sum(one.bytes for one in own)
    about = "About " if any(one.estimated for one in own) else ""
    return seen(
        "memory_ours",
        sheet,
        f"{about}{gib(total)} on {sheet.node} are held by sparkweb's own {listed(one.name for one in own)}",
        section="container-memory",
        total_bytes=total,
        frees_bytes={one.name: one.bytes for one in own},
    )


def _units(sheet: Sheet, foreign: list[Holder]) -> Iterator[Finding]:
    """Units that keep what holds the memory, and those that will start an engine at the next boot."""
    behind = {unit.name: unit for unit in units_behind(sheet, foreign)}
    at_boot = [unit for unit in sheet.units or () if unit.enabled in AT_BOOT and starts_an_engine(unit)]
    found = sorted({**behind, **{unit.name: unit for unit in at_boot}}.values(), key=lambda unit: unit.name)
    if not found:
        return
    started = listed(dict.fromkeys(name for unit in found for name in unit.containers))
    boot = [unit.name for unit in found if unit.enabled in AT_BOOT]
    who = (
        verb(len(found), "it does", "they do") + " so"
        if len(boot) == len(found)
        else f"{listed(boot)} {verb(len(boot), 'does', 'do')} so"
    )
    yield seen(
        "units_restart",
        sheet,
        f"{listed(unit.name for unit in found)} on {sheet.node} {verb(len(found), 'starts', 'start')} "
        f"{started or 'an engine'} again",
        meaning="systemd starts what it keeps again when that is stopped alone"
        + (f", and {who} at every boot." if boot else "."),
        evidence="; ".join(
            f"{unit.name} {unit.active or 'unknown'}, {unit.enabled or 'unknown'}: {unit.exec_start or 'unknown'}"
            for unit in found
        ),
        section="unit-details",
        units=[unit.name for unit in found],
        at_boot=boot,
    )


def _pressure(sheet: Sheet) -> Iterator[Finding]:
    memory = sheet.memory
    if memory is None or memory.available_bytes is None or pressure(memory) != "critical":
        return
    yield seen(
        "memory_critical",
        sheet,
        f"Only {gib(memory.available_bytes)} of {gib(memory.total_bytes or 0)} are available on {sheet.node}",
        section="memory",
        available_bytes=memory.available_bytes,
    )


def _swap(sheet: Sheet) -> Iterator[Finding]:
    memory = sheet.memory
    if memory is None or memory.swap_total_bytes is None or memory.swap_free_bytes is None:
        return
    used = memory.swap_total_bytes - memory.swap_free_bytes
    if used >= SWAPPED_BYTES:
        yield seen(
            "swap_in_use",
            sheet,
            f"{gib(used)} of {gib(memory.swap_total_bytes)} of swap are in use on {sheet.node}",
            section="memory",
            swap_used_bytes=used,
        )


def _cma(sheet: Sheet) -> Iterator[Finding]:
    """Reported for a Spark's kernel 7.0 with RDMA; older ones do without."""
    empty = sheet.memory is not None and sheet.memory.cma_total_bytes == 0
    unified = bool(sheet.gpus and any(gpu.unified for gpu in sheet.gpus.gpus))
    kernel = (sheet.machine.kernel if sheet.machine else None) or ""
    if empty and unified and version(kernel) >= (7,) and any(port.active for port in sheet.fabric or ()):
        yield seen(
            "cma_empty",
            sheet,
            f"The kernel of {sheet.node} reserves no contiguous memory (CmaTotal is 0)",
            evidence=f"kernel {kernel}",
            section="memory",
            kernel=kernel,
        )


def _killed(sheet: Sheet) -> Iterator[Finding]:
    kernel = [one for one in sheet.killed or () if one.scope != "oomd"]
    if kernel:
        names = list(dict.fromkeys(one.process or one.unit or "a process" for one in kernel))
        yield seen(
            "killed_for_memory",
            sheet,
            f"The kernel of {sheet.node} ended {listed(names)} for memory since it booted",
            evidence=kernel[-1].line or "",
            section="killed",
            processes=names,
            times=len(kernel),
        )
    oomd = [one for one in sheet.killed or () if one.scope == "oomd"]
    if oomd:
        units = list(dict.fromkeys(one.unit or one.process or "a unit" for one in oomd))
        yield seen(
            "oomd_killed",
            sheet,
            f"systemd-oomd of {sheet.node} ended {listed(units)} since it booted",
            evidence=oomd[-1].line or "",
            section="killed",
            units=units,
            times=len(oomd),
        )
