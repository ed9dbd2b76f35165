"""The node itself: Docker, GPU, clock, architecture, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from apps.diagnosis.findings import group
from apps.diagnosis.findings import machine as rules
from apps.diagnosis.reasons import REASONS
from apps.facts.sheet import Sheet
from apps.plan.checks.shared import warning
from apps.plan.spec import Spec
from apps.plan.step import Problem

GIB = 1 << 30


def check(spec: Spec, sheet: Sheet) -> Iterator[Problem]:
    """One node's own fitness."""
    if spec.runtime == "docker":
        yield _docker(sheet)
    yield from _gpu(spec, sheet)
    yield from _clock(sheet)
    yield from _disk(sheet)


def _docker(sheet: Sheet) -> Problem:
    docker = sheet.docker
    if docker is None:  # no answer is not the answer no: a busy node needs its time
        return Problem(
            name="docker_down",
            severity="stop",
            title=f"Docker did not answer on {sheet.node}",
            node=sheet.node,
            meaning="The probe waited for `docker version` in vain: the daemon hangs, or the node is too busy.",
            remedy=f"Probe {sheet.node} again; if Docker stays silent, look at `journalctl -u docker` there.",
        )
    reason = docker.problem or (None if docker.present else "docker_missing")
    if reason:
        known = REASONS.get(reason, REASONS["docker_missing"])
        return Problem(reason, "stop", f"{known.title} on {sheet.node}", sheet.node, known.sentence, known.remedy)
    version = docker.server_version if docker else None
    return Problem("docker", "fine", f"Docker {version or ''} answers on {sheet.node}".replace("  ", " "), sheet.node)


def _gpu(spec: Spec, sheet: Sheet) -> Iterator[Problem]:
    gpus = sheet.gpus
    if gpus and gpus.problem and gpus.problem in REASONS:
        known = REASONS[gpus.problem]
        severity = "stop" if spec.runtime == "docker" else "warn"
        yield Problem(
            gpus.problem, severity, f"{known.title} on {sheet.node}", sheet.node, known.sentence, known.remedy
        )
    elif gpus and gpus.gpus:
        names = ", ".join(sorted({gpu.name or "a GPU" for gpu in gpus.gpus}))
        yield Problem(
            "gpu", "fine", f"{sheet.node} has {len(gpus.gpus)} x {names}, driver {gpus.driver or 'unknown'}", sheet.node
        )
    else:
        yield Problem(
            "no_gpu",
            "warn",
            f"No GPU was seen on {sheet.node}",
            sheet.node,
            "Without one the engine runs on the CPU, if its build can.",
            "Probe again, or check nvidia-smi on the node.",
        )


def _clock(sheet: Sheet) -> Iterator[Problem]:
    if rules.skew_of(sheet) is None:
        return
    found = [warning(one, sheet.node) for one in rules.clock(sheet)]
    yield from found or [Problem("clock", "fine", f"The clock of {sheet.node} is right", sheet.node)]


def _disk(sheet: Sheet) -> Iterator[Problem]:
    root = next((disk for disk in sheet.disks or () if disk.mount == "/"), None)
    if root is None or root.available_bytes is None:
        return
    free = f"{root.available_bytes / GIB:.1f} GiB free on / of {sheet.node}"
    if root.available_bytes < rules.FULL_BYTES:
        known = REASONS["disk_full"]
        yield Problem(
            "disk_full", "stop", f"Only {free}", sheet.node, "Logs and compile caches need room.", known.remedy
        )
    else:
        yield Problem("disk", "fine", free, sheet.node)


def compare(spec: Spec, sheets: Sequence[Sheet]) -> Iterator[Problem]:
    """What must be alike on all nodes of a group."""
    if len(sheets) < 2:
        return
    yield from (warning(one) for one in (*group.unequal_memory(sheets), *group.different_drivers(sheets)))
