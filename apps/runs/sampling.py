"""What is asked of a node while an engine loads on it: the memory that is left, and what the kernel has logged. No Django."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apps.plan.step import Plan
from apps.remote.transport import Result

EVERY_S = 5.0
NEAR = 4  # times the line below which a load is stopped; nearer than that it is sampled at every look
SHARE = 4  # of the system's floor: the rest of the floor is what the system itself has taken already
GIB = 1 << 30
MOST_POINTS = 240  # of one node's curve
ALL_POINTS = 6000  # of the curves of one run
MOST_LINES = 40  # of the kernel's, kept with a run
WITHIN_S = 10.0

QUESTION = r"""grep -E '^MemAvailable:' /proc/meminfo
{ dmesg 2>/dev/null || journalctl -k -b -q --no-pager 2>/dev/null; } \
| grep -E 'NVRM: |AER: |PCIe Bus Error|oom-kill:|Out of memory: ' | tail -n 20
:"""

Point = Sequence[float]  # [unix seconds, bytes that are available]
Curves = Mapping[str, Sequence[Point]]


@dataclass(frozen=True)
class Sample:
    """`available`: bytes, None where the node did not say."""

    available: int | None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelFinding:
    name: str  # gpu_error, pcie_error, oom_host
    title: str


_KINDS = (
    (re.compile(r"NVRM: Xid \(.{1,60}?\): (?P<code>\d+)"), "gpu_error", "The GPU's driver logged Xid {code}"),
    (re.compile(r"oom-kill:|Out of memory: "), "oom_host", "The kernel ended a process for memory"),
    (re.compile(r"AER: |PCIe Bus Error"), "pcie_error", "The kernel logged an error of the PCIe bus"),
    (re.compile(r"NVRM: "), "gpu_error", "The GPU's driver logged an error"),
)


def finding(line: str) -> KernelFinding:
    for pattern, name, title in _KINDS:
        found = pattern.search(line)
        if found:
            return KernelFinding(name, title.format(**found.groupdict()))
    return KernelFinding("kernel", "The kernel logged an error")


def read(result: Result) -> Sample | None:
    """The answer to QUESTION; None when there was none in time."""
    if result.exit_code is None:
        return None
    text = result.stdout.decode("utf-8", "replace")
    found = re.match(r"MemAvailable:\s+(\d{1,15}) kB", text)
    lines = text.splitlines()[1:] if found else text.splitlines()
    return Sample(int(found[1]) * 1024 if found else None, tuple(line.strip()[:500] for line in lines if line.strip()))


def floors(plan: Plan) -> dict[str, int]:
    """Bytes by node below which a load is stopped: a part of the floor that the fit keeps for the system, because what the system
    uses already is in that floor. Only where engine and system share the memory: elsewhere the kernel's own killer is enough."""
    floor = float(plan.spec.get("os_floor_gib", 0.0) or 0.0)
    shared = {bar.node for bar in plan.fit.bars if bar.gpu is None} if plan.fit else set()
    return {node: int(floor * GIB / SHARE) for node in shared} if floor > 0 else {}


def grown(known: Curves, new: Curves) -> dict[str, list[Point]]:
    """Curves with further points, thinned where they become too long: of two neighbours the lower one stays."""
    made = {node: list(points) for node, points in known.items()}
    for node, points in new.items():
        made.setdefault(node, []).extend(points)
    most = max(30, min(MOST_POINTS, ALL_POINTS // max(1, len(made))))
    return {node: _thinned(points) if len(points) > most else points for node, points in made.items()}


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Half of them, but for the last ones, which say how fast it goes."""
    old, young = points[:-10], points[-10:]
    pairs = [old[place : place + 2] for place in range(0, len(old), 2)]
    return [min(pair, key=lambda point: point[1]) for pair in pairs] + list(young)


def in_words(points: Sequence[Point]) -> str:
    """The end of a curve: `14.2 GiB 60 s before, 3.0 GiB 10 s before`."""
    if not points:
        return ""
    last = points[-1][0]
    said = []
    for before in (120, 60, 30, 10):
        near = [point for point in points[:-1] if abs(last - point[0] - before) <= before / 3]
        if near:
            nearest = min(near, key=lambda point: abs(last - point[0] - before))
            said.append(f"{nearest[1] / GIB:.1f} GiB {last - nearest[0]:.0f} s before")
    return ", ".join(dict.fromkeys(said))
