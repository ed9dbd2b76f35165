"""What all benchmarks share: the machine they ran on, and how samples are told."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

Figures = dict[str, Any]  # what becomes JSON; every name of a figure ends with its unit

_PACKAGES = ("paramiko", "cryptography", "asyncssh")


class CannotMeasure(Exception):
    """Something that the benchmark needs is missing; the text says what and what to do."""


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout holds results only."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def machine() -> Figures:
    """Cores that we may use, processor, memory, load averages now, date, versions. Nothing that names the machine."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _line_of("/proc/cpuinfo", "model name") or platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "load_average": load(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "kernel": platform.release(),
            "openssh": _openssh(),
            **{name: metadata.version(name) for name in _PACKAGES},
        },
    }


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(each, 2) for each in os.getloadavg()]


def seconds(samples: Sequence[float]) -> Figures:
    """The median with all samples, in seconds."""
    return {"p50_s": round(statistics.median(samples), 3), "samples_s": [round(each, 3) for each in samples]}


def spread(samples: Sequence[float]) -> Figures:
    """Median, 95th percentile (nearest rank) and largest, with all samples, in seconds."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    return {
        **seconds(samples),
        "p95_s": round(ordered[min(last, -(-95 * len(ordered) // 100) - 1)], 3),
        "max_s": round(ordered[last], 3),
    }


def cpu_of(pid: int) -> float:
    """Seconds of processor time, user and system, of a process; 0.0 when it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _line_of(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _openssh() -> str:
    if shutil.which("ssh") is None:
        return "none"
    return subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr.strip()
