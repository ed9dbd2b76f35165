"""The machine: GPU, clock, disks, rights, what could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from apps.diagnosis.findings.finding import GIB, Finding, gib, listed, seen
from apps.diagnosis.findings.holders import starts_an_engine
from apps.diagnosis.findings.table import NOTE, TABLE, WARN
from apps.facts.sheet import Evidence, Sheet

SKEW_S = 30.0
HOT_C = 85  # Blackwell and Ada begin to slow down a few degrees above
FULL_BYTES = 2 * GIB  # on /: logs and compile caches of a launch
LOW_BYTES = 10 * GIB
WATCHED_MOUNTS = ("/", "/home", "/models", "/data", "/var", "/var/lib/docker", "/opt", "/mnt")
NEEDED = {"machine": "machine", "memory": "memory", "gpus": "gpu", "docker": "docker", "interfaces": "addresses"}
GPU_PROBLEMS = {"no_gpu": "no_gpu", "bad_query_field": ""}


def of_node(sheet: Sheet, *, offset_s: float | None) -> Iterator[Finding]:
    """`offset_s`: how far its clock is ahead of ours, None to take it from the sheet."""
    yield from gpu(sheet)
    yield from clock(sheet, offset_s=offset_s)
    yield from disks(sheet)
    yield from _models(sheet)
    yield from _rights(sheet)
    yield from _surroundings(sheet)
    yield from _unread(sheet)


def gpu(sheet: Sheet) -> Iterator[Finding]:
    """No GPU to work with, or one that is not well."""
    gpus = sheet.gpus
    if gpus is None:
        return
    if gpus.problem:
        name = GPU_PROBLEMS.get(gpus.problem, gpus.problem if gpus.problem in TABLE else "gpu_failed")
        if name:
            yield seen(
                name,
                sheet,
                f"{TABLE[name].title} on {sheet.node}",
                evidence=gpus.evidence or "",
                section="gpu",
                driver=gpus.driver,
                library=gpus.library,
                kernel_module=gpus.kernel_module,
            )
    elif not gpus.gpus:
        yield seen("no_gpu", sheet, f"No GPU was seen on {sheet.node}", section="gpu")
    for one in gpus.gpus:
        if one.temp_c is not None and one.temp_c >= HOT_C:
            yield seen(
                "temperature_high",
                sheet,
                f"GPU {one.index} of {sheet.node} is at {one.temp_c} °C",
                section="gpu-query",
                temperature_c=one.temp_c,
            )


def skew_of(sheet: Sheet) -> float | None:
    """Seconds that its clock was ahead of ours when it was asked."""
    clock = sheet.machine.clock_unix_s if sheet.machine else None
    return None if clock is None else clock - sheet.taken_at


def clock(sheet: Sheet, *, offset_s: float | None = None) -> Iterator[Finding]:
    skew = skew_of(sheet) if offset_s is None else offset_s
    if skew is not None and abs(skew) > SKEW_S:
        yield seen(
            "clock_skew",
            sheet,
            f"The clock of {sheet.node} is {_span(abs(skew))} {'ahead' if skew > 0 else 'behind'}",
            section="machine",
            skew_s=round(skew, 1),
        )


def _span(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 10 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def disks(sheet: Sheet) -> Iterator[Finding]:
    """Full: / has no room for logs. Low: a mount that keeps models, images or homes has under 10 GiB left."""
    keeps = {sheet.docker.root} if sheet.docker and sheet.docker.root else set()
    folders = [one.path for one in sheet.models or ()]
    for disk in sheet.disks or ():
        free = disk.available_bytes
        if free is None:
            continue
        held = disk.mount != "/" and any(path.startswith(f"{disk.mount.rstrip('/')}/") for path in (*folders, *keeps))
        if disk.mount == "/" and free < FULL_BYTES:
            yield _disk("disk_full", sheet, disk.mount, free, disk.size_bytes)
        elif free < LOW_BYTES and (disk.mount in WATCHED_MOUNTS or held) and (disk.size_bytes or 0) > LOW_BYTES:
            yield _disk("disk_low", sheet, disk.mount, free, disk.size_bytes)


def _disk(name: str, sheet: Sheet, mount: str, free: int, size: int | None) -> Finding:
    of = f" of {gib(size)}" if size else ""
    return seen(
        name,
        sheet,
        f"Only {gib(free)}{of} are free on {mount} of {sheet.node}",
        section="disk",
        mount=mount,
        available_bytes=free,
    )


def _models(sheet: Sheet) -> Iterator[Finding]:
    for model in sheet.models or ():
        if model.complete is False:
            of = f" of {model.shards_expected}" if model.shards_expected is not None else ""
            have = "" if model.shards is None else f": {model.shards}{of} weight files"
            yield seen(
                "model_incomplete",
                sheet,
                f"{model.name or model.path} on {sheet.node} is incomplete{have}",
                evidence=listed(model.missing),
                section="models",
                path=model.path,
                shards=model.shards,
                shards_expected=model.shards_expected,
            )


def _rights(sheet: Sheet) -> Iterator[Finding]:
    rights, root = sheet.privileges, bool(sheet.machine and sheet.machine.uid == 0)
    if rights is None or root:
        return
    if rights.sudo in ("password", "none"):
        keeps = [unit.name for unit in sheet.units or () if unit.active == "active" and starts_an_engine(unit)]
        yield seen(
            "sudo_password",
            sheet,
            f"sudo on {sheet.node} asks for a password"
            if rights.sudo == "password"
            else f"This user may not use sudo on {sheet.node}",
            severity=WARN if keeps else NOTE,
            meaning=f"{listed(keeps)} can't be stopped, and the page cache can't be dropped from here."
            if keeps
            else "",
            section="privileges",
            sudo=rights.sudo,
        )
    if rights.remove_ipc and rights.linger is False:
        user = (sheet.machine.user if sheet.machine else None) or "USER"
        yield seen(
            "remove_ipc",
            sheet,
            f"RemoveIPC is on and {user} does not linger on {sheet.node}",
            remedy=f"`loginctl enable-linger {user}`, or run the engine as root inside of its container with its own IPC "
            "namespace.",
            section="privileges",
        )


def _surroundings(sheet: Sheet) -> Iterator[Finding]:
    if sheet.internet is False:
        yield seen("no_internet", sheet, f"{sheet.node} has no internet", section="internet")
    inside = sheet.machine.virtualization if sheet.machine else None
    if inside in ("lxc", "lxc-libvirt", "docker", "podman", "systemd-nspawn", "openvz"):
        yield seen(
            "inside_a_container",
            sheet,
            f"{sheet.node} runs inside a {inside} container",
            section="machine",
            virtualization=inside,
        )


def _unread(sheet: Sheet) -> Iterator[Finding]:
    missing = [name for name in NEEDED if getattr(sheet, name) is None]
    if missing:
        why = "; ".join(f"{name}: {_why(sheet.evidence, NEEDED[name])}" for name in missing)
        yield seen(
            "unreadable",
            sheet,
            f"{listed(missing)} of {sheet.node} could not be read",
            evidence=why,
            section=NEEDED[missing[0]],
            sections=missing,
        )


def _why(evidence: Mapping[str, Evidence], section: str) -> str:
    """Why a section gave no value, as far as it says so itself."""
    one = evidence.get(section)
    if one is None:
        return "its output did not arrive whole"
    if one.timed_out:
        return "it did not answer in time"
    said: Any = (one.stderr or one.stdout).strip().splitlines()
    return str(said[0])[:200] if said else f"it printed nothing (exit code {one.exit_code})"
