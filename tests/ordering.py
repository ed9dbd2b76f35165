"""Which test runs when there are several test processes (pytest -p, with xdist's `--dist worksteal`).

Stories on pretend machines, browsers and whole stacks mostly wait; the other tests compute. Each process begins with an equal
share of the list from top to bottom, so the slow modules are put to the heads of some shares: they run beside tests that
compute, and what is left at the end is short."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePath

import pytest

# Folders or modules of tests that take many seconds each, the longest first.
SLOW = (
    "stack",
    "browser",
    "story",
    "provision",
    "production",
    "live/test_log_faults.py",
    "runs/test_process_run.py",
    "lab",
    "runs/test_doors.py",
    "watch/test_cycle.py",
)


def rank(path: PurePath) -> int:
    """How early a module of tests belongs among the slow ones; len(SLOW) for one that is not slow."""
    parts = path.parts
    for number, name in enumerate(SLOW):
        wanted = PurePath(name).parts
        if any(parts[at : at + len(wanted)] == wanted for at in range(len(parts))):
            return number
    return len(SLOW)


def shares(slow: list[list[int]], quick: list[int], processes: int) -> list[int]:
    """The order of all: as many equal shares as processes, slow modules at the heads of three in five of them."""
    heads = max(1, processes * 3 // 5)
    dealt: list[list[int]] = [[] for _ in range(processes)]
    for number, module in enumerate(slow):
        dealt[number % heads].extend(module)
    size = -(-(sum(map(len, slow)) + len(quick)) // processes)
    left = iter(quick)
    for share in dealt:
        while len(share) < size and (one := next(left, None)) is not None:
            share.append(one)
    return [one for share in dealt for one in share]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    modules: dict[PurePath, list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        modules[PurePath(item.path)].append(number)
    slow = sorted((path for path in modules if rank(path) < len(SLOW)), key=lambda path: (rank(path), str(path)))
    taken = {number for path in slow for number in modules[path]}
    quick = [number for number in range(len(items)) if number not in taken]
    items[:] = [items[n] for n in shares([modules[path] for path in slow], quick, worker["workercount"])]
