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
    yield from _missing(sheet)
    yield from _mig(sheet)
    yield from _mixed(sheet)
    yield from _without_memory(sheet)
    yield from _xids(sheet)


def _missing(sheet: Sheet) -> Iterator[Finding]:
    """GPUs on the bus that nvidia-smi does not list. In a container the bus is the host's and proves nothing."""
    gpus = sheet.gpus
    if gpus is None or not gpus.gpus or not gpus.on_bus or gpus.problem or _contained(sheet):
        return
    seen_ids = [_short_bus(gpu.bus_id) for gpu in gpus.gpus if gpu.bus_id]
    lost = [address for address in gpus.on_bus if _short_bus(address) not in seen_ids]
    if lost and len(seen_ids) == len(gpus.gpus):
        yield seen(
            "gpu_missing",
            sheet,
            f"{len(lost)} of {len(gpus.on_bus)} GPUs of {sheet.node} {'does' if len(lost) == 1 else 'do'} not answer",
            evidence=f"on the bus: {', '.join(gpus.on_bus)}; listed: {', '.join(seen_ids)}",
            section="gpu-list",
            lost=lost,
        )


def _short_bus(address: str) -> str:
    """`0000000F:01:00.0` of nvidia-smi and `000f:01:00.0` of the kernel are one place."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"


def _mig(sheet: Sheet) -> Iterator[Finding]:
    for one in sheet.gpus.gpus if sheet.gpus else ():
        if not (one.mig or "").startswith("Enabled") and "pending" not in (one.mig or ""):
            continue
        pending = f" ({one.mig})" if "pending" in (one.mig or "") else ""
        parts = [
            each.profile or f"{each.mem_total_mib} MiB" for each in one.instances if each.profile or each.mem_total_mib
        ]
        many = "instances" if len(one.instances) > 1 else "instance"
        count = f"{len(one.instances)} {many}" if one.instances else "no instance, so nothing can use it"
        yield seen(
            "mig_on",
            sheet,
            f"MIG is on for GPU {one.index} of {sheet.node}{pending}: {count}"
            if not pending
            else f"MIG of GPU {one.index} of {sheet.node} changes at the next reset{pending}",
            evidence=", ".join(parts),
            section="gpu-list" if any(each.profile for each in one.instances) else "gpu",
            index=one.index,
            mig=one.mig,
            instances=len(one.instances),
        )


def _mixed(sheet: Sheet) -> Iterator[Finding]:
    kinds: dict[tuple[str, int | None], list[int]] = {}
    for one in sheet.gpus.gpus if sheet.gpus else ():
        if one.name:
            kinds.setdefault((one.name, one.memory_total_mib), []).append(one.index)
    if len(kinds) > 1:
        told = [
            f"{name}{f' with {size} MiB' if size else ''} ({listed(f'GPU {index}' for index in indexes)})"
            for (name, size), indexes in kinds.items()
        ]
        yield seen(
            "gpus_mixed",
            sheet,
            f"{sheet.node} has {listed(told)}",
            section="gpu-query",
            kinds={name: indexes for (name, _), indexes in kinds.items()},
        )


def _without_memory(sheet: Sheet) -> Iterator[Finding]:
    silent = [
        one for one in (sheet.gpus.gpus if sheet.gpus else ()) if one.memory_total_mib is None and not one.unified
    ]
    if silent:
        yield seen(
            "gpu_memory_unknown",
            sheet,
            f"{listed(f'GPU {one.index}' for one in silent)} of {sheet.node} {'does' if len(silent) == 1 else 'do'} not tell "
            "the size of its memory",
            evidence=listed(one.name or "unknown" for one in silent),
            section="gpu-query",
            indexes=[one.index for one in silent],
        )


# NVIDIA's list of Xid errors: these come from a program's own fault far more often than from the GPU.
_OF_PROGRAMS = {
    13: "a program's kernel failed",
    31: "a program used memory that is not its own",
    43: "a program's channel was reset",
    45: "a program was ended",
}
_OF_GPUS = {
    48: "a memory error that could not be corrected",
    62: "the GPU's own controller halted",
    63: "a row of memory was remapped",
    64: "a row of memory could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the GPU's system processor did not answer",
    120: "the GPU's system processor failed",
    154: "the GPU needs a reset or a reboot",
}


def _xids(sheet: Sheet) -> Iterator[Finding]:
    errors = sheet.gpu_errors or ()
    if not errors:
        return
    serious = [one for one in errors if one.code not in _OF_PROGRAMS]
    words = _OF_PROGRAMS | _OF_GPUS
    told = [f"Xid {one.code}{f' ({words[one.code]})' if one.code in words else ''}" for one in serious or errors]
    yield seen(
        "gpu_errors",
        sheet,
        f"The driver of {sheet.node} reported {listed(dict.fromkeys(told))} since it booted",
        severity="" if serious else NOTE,
        meaning="" if serious else "They point to programs that failed, not to the GPU.",
        evidence=next((one.line for one in serious or errors if one.line), ""),
        section="killed",
        codes={str(one.code): one.count for one in errors},
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


def _contained(sheet: Sheet) -> str:
    """The kind of container that the node is itself, "" when it is none."""
    inside = (sheet.machine.virtualization if sheet.machine else None) or ""
    return inside if inside in ("lxc", "lxc-libvirt", "docker", "podman", "systemd-nspawn", "openvz") else ""


def _surroundings(sheet: Sheet) -> Iterator[Finding]:
    if sheet.internet is False:
        yield seen("no_internet", sheet, f"{sheet.node} has no internet", section="internet")
    inside = _contained(sheet)
    if inside:
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
