"""Engines that somebody started past containers and system units, and what lies ready to start more of them."""

from __future__ import annotations

from collections.abc import Iterator

from apps.diagnosis.findings.finding import Finding, gib, listed, seen, verb
from apps.diagnosis.findings.holders import ENGINE_WORDS, NOTABLE_BYTES
from apps.diagnosis.findings.memory import AT_BOOT
from apps.diagnosis.findings.table import NOTE
from apps.facts.sheet import Sheet
from apps.facts.values import EngineProcess, Launcher, Starts, Unit


def of_node(sheet: Sheet) -> Iterator[Finding]:
    yield from plain_processes(sheet)
    yield from user_units(sheet)
    yield from boot_jobs(sheet)
    yield from launchers(sheet)


def plain_processes(sheet: Sheet) -> Iterator[Finding]:
    """Processes that neither a container nor a unit keeps, by engine and user."""
    loose = [one for one in sheet.processes or () if not one.kept]
    groups: dict[tuple[str, str], list[EngineProcess]] = {}
    for one in loose:
        groups.setdefault((one.starts.engine or "an engine", one.user or "an unknown user"), []).append(one)
    for (engine, user), group in groups.items():
        pids = {one.pid for one in group}
        roots = [one for one in group if one.parent not in pids]
        ports = sorted(_ports(group))
        size = sum(max(one.gpu_bytes or 0, one.resident_bytes or 0) for one in group)
        on_gpu = sum(one.gpu_bytes or 0 for one in group)
        where = next((place for one in roots if (place := one.venv or one.folder) and place != "/"), "")
        yield seen(
            "engine_process",
            sheet,
            f"{engine} runs on {sheet.node} as a plain process of {user} "
            f"({listed(f'pid {one.pid}' for one in roots)}"
            f"{f', port {listed(map(str, ports))}' if ports else ''}{f', {gib(size)}' if size >= NOTABLE_BYTES else ''}"
            f"{f', from {where}' if where else ''})",
            severity="" if on_gpu or ports or size >= NOTABLE_BYTES else NOTE,
            remedy=f"Ask {user}. `kill {' '.join(str(one.pid) for one in roots[:6])}` ends it (as {user} or root).",
            evidence="; ".join(f"{one.pid} {one.command or ''}"[:400] for one in roots[:6]),
            section="processes",
            engine=engine,
            user=user,
            pids=[one.pid for one in group],
            ports=ports,
            gpu_bytes=on_gpu,
            models=sorted({one.starts.model for one in group if one.starts.model}),
        )


def _ports(group: list[EngineProcess]) -> set[int]:
    """On which they listen; where the owner of a port is hidden from this login, those that they were told to take."""
    return {port for one in group for port in one.ports} or {one.starts.port for one in group if one.starts.port}


def user_units(sheet: Sheet) -> Iterator[Finding]:
    """Engines that the login's own systemd keeps: `systemctl` of the system neither shows nor stops them."""
    found = [unit for unit in sheet.user_units or () if _starts_an_engine(unit) and _comes_back(unit)]
    if not found:
        return
    lingers = sheet.privileges.linger if sheet.privileges else None
    boot = [unit.name for unit in found if unit.enabled in AT_BOOT]
    when = {True: "at every boot (its user lingers)", False: "when its user logs in", None: "at boot or login"}[lingers]
    user = (sheet.machine.user if sheet.machine else None) or "the user"
    started = listed(dict.fromkeys(name for unit in found for name in unit.containers))
    yield seen(
        "user_units_restart",
        sheet,
        f"{listed(unit.name for unit in found)} of {user} on {sheet.node} {verb(len(found), 'starts', 'start')} "
        f"{started or 'an engine'} again",
        meaning="They are units of the user's own systemd: a launch does not stop them, and they bring back what it stops"
        + (f"; {listed(boot)} {verb(len(boot), 'starts', 'start')} {when}." if boot else "."),
        remedy=f"As {user}: `systemctl --user stop {found[0].name}`, and `disable` to keep it from coming back.",
        evidence="; ".join(
            f"{unit.name} {unit.active or 'unknown'}, {unit.enabled or 'unknown'}: {unit.exec_start or 'unknown'}"
            for unit in found
        ),
        section="user-units",
        units=[unit.name for unit in found],
        at_boot=boot,
        lingers=lingers,
    )


def _starts_an_engine(unit: Unit) -> bool:
    return bool(ENGINE_WORDS.search(" ".join((unit.name, unit.exec_start or "", *unit.containers))))


def _comes_back(unit: Unit) -> bool:
    return unit.active in ("active", "activating", "reloading") or unit.enabled in AT_BOOT


def boot_jobs(sheet: Sheet) -> Iterator[Finding]:
    """Engines that cron or rc.local starts at every boot."""
    found = [
        one
        for one in sheet.boot_jobs or ()
        if any(starts.engine for starts in one.starts) or ENGINE_WORDS.search(one.command)
    ]
    if found:
        yield seen(
            "boot_jobs_start",
            sheet,
            f"{listed(dict.fromkeys(one.where for one in found))} on {sheet.node} {verb(len(found), 'starts', 'start')} "
            f"{listed(dict.fromkeys(words_of(starts) for one in found for starts in one.starts)) or 'an engine'} at every boot",
            evidence="; ".join(f"{one.where}{f' ({one.user})' if one.user else ''}: {one.command}" for one in found)[
                :4000
            ],
            section="boot-jobs",
            jobs=[one.command for one in found],
        )


def launchers(sheet: Sheet) -> Iterator[Finding]:
    """Scripts, compose files and checkouts that somebody has used, or will use, to start engines here."""
    scripts, checkouts = sheet.launchers or (), sheet.checkouts or ()
    kept = {
        name for unit in (*(sheet.units or ()), *(sheet.user_units or ())) for name in (unit.exec_start or "").split()
    }
    loose = [one for one in scripts if one.path not in kept]
    names = [one.path.rpartition("/")[2] for one in checkouts]
    if not loose and not checkouts:
        return
    places = [*names, *(one.path for one in loose if one.checkout is None)]
    yield seen(
        "launchers_found",
        sheet,
        f"{listed(places or [one.path for one in loose])} on {sheet.node} can start engines without sparkweb",
        evidence="; ".join(
            [
                *(
                    f"{one.path}: {one.remote or 'no remote'} {(one.commit or 'unknown')[:12]}"
                    f"{f', {one.changed} files changed' if one.changed else ''}"
                    for one in checkouts
                ),
                *map(said, loose),
            ]
        )[:4000],
        section="launchers",
        scripts=[one.path for one in loose],
        checkouts={one.path: one.commit for one in checkouts},
    )


def said(one: Launcher) -> str:
    """`PATH starts vllm: model a/b, image c, port 8000`."""
    return f"{one.path} starts " + ", then ".join(map(words_of, one.starts))


def words_of(starts: Starts) -> str:
    """What is started, as far as it is known."""
    parts = (
        ("model", starts.model),
        ("served as", starts.served_name),
        ("image", starts.image),
        ("container", starts.container),
        ("port", starts.port),
        ("tensor parallel", starts.tensor_parallel),
    )
    known = ", ".join(f"{name} {value}" for name, value in parts if value is not None)
    return f"{starts.engine or 'a container'}{f': {known}' if known else ''}"
