"""Main memory: /proc/meminfo, `free` in any unit and language, and who was killed for it."""

from __future__ import annotations

import re
from typing import Any

from apps.facts.fact import Fact, fact
from apps.facts.quantities import GIB, gib, size
from apps.facts.sheet import Evidence
from apps.facts.values import Killed, Memory, MemoryOwner

_MEMINFO = re.compile(r"^(\w+(?:\(\w+\))?):[ \t]+(\d{1,18})(?:[ \t]+(kB))?[ \t]*$", re.MULTILINE)
_FREE_ROW = re.compile(
    r"^([^\s:：][^:：\n]{1,40}?)[ \t]?[:：]((?:[ \t]+[0-9][0-9.,]*[KMGTPE]?i?B?){2,7})[ \t]*$", re.MULTILINE
)
_OOM_TASK = re.compile(r"oom-kill:constraint=(\w+),(.{0,600}?)task=([^,\n]{1,64}),pid=(\d{1,10})")
_OOM_KILLED = re.compile(
    r"(Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (\d{1,10}) \(([^)\n]{1,64})\)(.{0,300})"
)
_OOMD = re.compile(r"systemd-oomd(?:\[\d+\])?: Killed (\S{1,400}) due to ")
_ANON = re.compile(r"anon-rss:(\d{1,15})kB")
_CONTAINER = re.compile(r"(?:docker-|/docker/|libpod-)([0-9a-f]{12,64})")


def from_meminfo(text: str) -> Memory | None:
    """proc_meminfo(5): `kB` there means KiB. Lines without a unit are counts of pages, not sizes."""
    found = {name: int(number) * (1024 if unit else 1) for name, number, unit in _MEMINFO.findall(text)}
    if "MemTotal" not in found:
        return None
    cached = found.get("Cached")
    huge = None
    if "HugePages_Total" in found and "Hugepagesize" in found:
        huge = found["HugePages_Total"] * found["Hugepagesize"]
    return Memory(
        total_bytes=found["MemTotal"],
        free_bytes=found.get("MemFree"),
        available_bytes=found.get("MemAvailable"),
        cached_bytes=cached,
        swap_total_bytes=found.get("SwapTotal"),
        swap_free_bytes=found.get("SwapFree"),
        cma_total_bytes=found.get("CmaTotal"),
        cma_free_bytes=found.get("CmaFree"),
        buffers_bytes=found.get("Buffers"),
        anonymous_bytes=found.get("AnonPages"),
        shared_bytes=found.get("Shmem"),
        slab_bytes=found.get("Slab"),
        page_tables_bytes=found.get("PageTables"),
        huge_pages_bytes=huge,
    )


def from_free(text: str) -> Memory | None:
    """`free` with -b, -k, -m, -g or -h, in any language: rows by position, not by word.

    The first row of at least six numbers (total used free shared cache available, procps 3.3.10 and later; -w has
    buffers and cache apart) is memory, a following row of three is swap. Before 3.3.10 (a row `-/+ buffers/cache`)
    what is free without the caches counts as available. Without -h the unit isn't printed: the one is taken that gives a machine of 512 MiB
    to 8 TiB, smallest unit first.
    """
    rows = [(label, cells.split()) for label, cells in _FREE_ROW.findall(text)]
    wide = [cells for _, cells in rows if len(cells) >= 6]
    if not wide:
        return None
    old = any(label.startswith("-/+") for label, _ in rows)
    swap = _swap([(label, cells) for label, cells in rows if len(cells) == 3])
    scale = _scale(wide[0][0])

    def amount(cell: str) -> int | None:
        return int(cell) * scale if cell.isdecimal() and scale else size(cell)

    total, _, free, shared, *caches = (amount(cell) for cell in wide[0])
    if old:
        # "-/+ buffers/cache: USED FREE": what could be free without the cache, the best that was known.
        adjusted = next(cells for label, cells in rows if label.startswith("-/+"))
        available = amount(adjusted[1]) if len(adjusted) == 2 else None
    else:
        available = caches.pop()
    cache = None if None in caches else sum(each or 0 for each in caches)
    swap_total, swap_free = (amount(swap[0]), amount(swap[2])) if swap else (None, None)
    return Memory(
        total_bytes=total,
        free_bytes=free,
        available_bytes=available,
        cached_bytes=cache,
        shared_bytes=shared,
        swap_total_bytes=swap_total,
        swap_free_bytes=swap_free,
    )


def _swap(narrow: list[tuple[str, list[str]]]) -> list[str] | None:
    """Of the rows with three numbers: -l puts low and high memory before the swap, -t and -v a total and limits after it."""
    if not narrow:
        return None
    named = [cells for label, cells in narrow if label.lower().startswith("swap")]
    return named[0] if named else narrow[2 if len(narrow) > 2 else 0][1]


def _scale(total: str) -> int | None:
    """Bytes per unit of a bare number, None when the cell carries its own unit."""
    if not total.isdecimal():
        return None
    for scale in (1, 1024, 1024**2):
        if 512 * 1024**2 <= int(total) * scale <= 8 * 1024**4:
            return scale
    return GIB


def pressure(memory: Memory) -> str | None:
    """ok, low (under 15 % or swap half used) or critical (under 4 GiB or 4 %)."""
    total, available = memory.total_bytes, memory.available_bytes
    if not total or available is None:
        return None
    if available < min(4 * GIB, total // 8) or available < total * 0.04:
        return "critical"
    swap_total, swap_free = memory.swap_total_bytes, memory.swap_free_bytes
    half_swapped = bool(swap_total) and swap_free is not None and swap_free * 2 < (swap_total or 0)
    return "low" if available < total * 0.15 or half_swapped else "ok"


def killed(text: str) -> tuple[Killed, ...]:
    """The kernel's OOM kills and those of systemd-oomd, one each, in order of appearance."""
    found: dict[tuple[str, str], Killed] = {}
    for line in text.splitlines():
        event = _kernel_kill(line) or _oomd_kill(line)
        if event is None:
            continue
        key = (str(event.pid), event.unit or event.process or "")
        before = found.get(key)
        found[key] = event if before is None else _merged(before, event)
    return tuple(found.values())


def _kernel_kill(line: str) -> Killed | None:
    task = _OOM_TASK.search(line)
    if task:
        constraint, middle, name, pid = task.groups()
        container = _CONTAINER.search(middle)
        scope = "global" if "global_oom" in middle or constraint == "CONSTRAINT_NONE" else "cgroup"
        return Killed(
            scope=scope,
            process=name,
            pid=int(pid),
            container=container.group(1) if container else None,
            line=line.strip()[:400],
        )
    ended = _OOM_KILLED.search(line)
    if not ended:
        return None
    kind, pid, name, rest = ended.groups()
    anon = _ANON.search(rest)
    return Killed(
        scope="global" if kind.startswith("Out") else "cgroup",
        process=name,
        pid=int(pid),
        anon_bytes=int(anon.group(1)) * 1024 if anon else None,
        line=line.strip()[:400],
    )


def _oomd_kill(line: str) -> Killed | None:
    found = _OOMD.search(line)
    return Killed(scope="oomd", unit=found.group(1).rsplit("/", 1)[-1], line=line.strip()[:400]) if found else None


def _merged(first: Killed, second: Killed) -> Killed:
    return Killed(
        scope=first.scope,
        process=first.process or second.process,
        pid=first.pid,
        unit=first.unit,
        container=first.container or second.container,
        anon_bytes=first.anon_bytes or second.anon_bytes,
        line=first.line,
    )


def describe(memory: Memory) -> dict[str, Any]:
    """The value with the names that people and the cases use: GiB with two digits."""
    unattributed = memory.unattributed_bytes
    unified = None
    if unattributed is not None and memory.total_bytes and not memory.huge_pages_bytes:
        # Only a GPU that lives in main memory hides this much from the kernel's own categories.
        unified = True if unattributed > max(8 * GIB, memory.total_bytes // 10) else None
    swap_used = None
    if memory.swap_total_bytes is not None and memory.swap_free_bytes is not None:
        swap_used = memory.swap_total_bytes - memory.swap_free_bytes
    total, available = gib(memory.total_bytes), gib(memory.available_bytes)
    return {
        "total_gib": total,
        "available_gib": available,
        "used_gib": gib(memory.used_bytes),
        "free_gib": gib(memory.free_bytes),
        "mem_total_gib": total,
        "mem_available_gib": available,
        "available_mib": None if memory.available_bytes is None else memory.available_bytes // 1024**2,
        "cached_gib": gib(memory.cached_bytes),
        "swap_total_gib": gib(memory.swap_total_bytes),
        "swap_used_gib": gib(swap_used),
        "cma_total_gib": gib(memory.cma_total_bytes),
        "unattributed_gib": gib(unattributed),
        "unified": unified,
        "state": pressure(memory),
    }


@fact
class MemoryFact(Fact):
    """The machine's memory, in bytes."""

    name = "memory"
    reads = "cat /proc/meminfo (or free, free -h, free -m)"
    timeout_s = 5
    script = "cat /proc/meminfo"

    @classmethod
    def parse(cls, evidence: Evidence) -> Memory | None:
        return from_meminfo(evidence.stdout) or from_free(evidence.stdout)


MOST_OWNERS = 64
_OWNER = re.compile(r"^(\S{1,400})/memory\.(current|swap\.current|usage_in_bytes):(\d{1,18})[ \t]*$", re.MULTILINE)


def owners(text: str) -> tuple[MemoryOwner, ...]:
    """`GROUP/memory.current:BYTES` rows, the largest first: what the kernel counts for each service, user and container.

    Page cache is in it, memory of a GPU is not, on unified memory neither.
    """
    found: dict[str, dict[str, int]] = {}
    for path, kind, number in _OWNER.findall(text):
        found.setdefault(path.rsplit("/", 1)[-1], {})["swap" if kind == "swap.current" else "memory"] = int(number)
    rows = (MemoryOwner(name, sizes.get("memory"), sizes.get("swap")) for name, sizes in found.items())
    return tuple(sorted(rows, key=lambda each: (-(each.bytes or 0), each.name)))[:MOST_OWNERS]


@fact
class OwnersFact(Fact):
    """Memory by cgroup: services, users, machines and containers."""

    name = "memory-owners"
    reads = "grep -H '' of memory.current and memory.swap.current under system.slice, user.slice, machine.slice, docker"
    timeout_s = 5
    script = r"""
cd /sys/fs/cgroup 2>/dev/null || exit 0
[ ! -d memory/system.slice ] || cd memory
grep -sH '' system.slice/*/memory.current user.slice/*/memory.current machine.slice/*/memory.current docker/*/memory.current \
  system.slice/*/memory.swap.current user.slice/*/memory.swap.current docker/*/memory.swap.current \
  system.slice/*/memory.usage_in_bytes user.slice/*/memory.usage_in_bytes docker/*/memory.usage_in_bytes
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[MemoryOwner, ...] | None:
        found = owners(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None


@fact
class KilledFact(Fact):
    """Who was killed for memory since boot, as far as this login may read it. The kernel's log is long: it is read once,
    and the driver's errors (`gpu-errors`) are taken from it too."""

    name = "killed"
    reads = "dmesg -T; journalctl -t systemd-oomd"
    timeout_s = 10
    script = r"""
log=$(dmesg -T 2>/dev/null) || log=$(journalctl -k -b -q --no-pager 2>/dev/null | grep -v '^-- ')
[ -n "$log" ] || echo unreadable
printf '%s\n' "$log" | grep -E 'oom-kill:|Out of memory: |out of memory: ' | tail -n 40
printf '%s\n' "$log" | grep 'NVRM: Xid' | tail -n 200
journalctl -t systemd-oomd -b -q --no-pager 2>/dev/null | tail -n 20
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Killed, ...] | None:
        """None where nobody was seen and the kernel's log could not be read."""
        found = killed(evidence.stdout)
        return None if not found and evidence.stdout.startswith("unreadable\n") else found
