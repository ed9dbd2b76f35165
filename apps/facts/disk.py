# ruff: noqa: E501 (texts of real tools stay on one line)
"""File systems by df, in any of its forms and languages."""

from __future__ import annotations

import re
from typing import Any

from apps.facts.fact import Fact, fact
from apps.facts.quantities import GIB, size
from apps.facts.sheet import Evidence
from apps.facts.values import Disk

_CELL = re.compile(r"(?:-?[0-9][0-9.,]{0,20}[KMGTPE]?i?B?|-)\Z")
_PERCENT = re.compile(r"(?:[0-9]{1,3}%|-)\Z")
# `1024-blocks`, `1B-blocks`, `1K-Blöcke`, `blocs de 1024`, `bloques de 1K`
_HEADER = re.compile(r"(?<![\w/.-])(\d{1,9})([KMGB]?)-[Bb]l\w+|[Bb]lo\w+ d[eai] (\d{1,9})([KMGB]?)")
_DU = re.compile(r"^([0-9][0-9.,]*[KMGTPE]?)\t(/.*)$", re.MULTILINE)
_VIRTUAL = (
    "tmpfs",
    "devtmpfs",
    "efivarfs",
    "udev",
    "none",
    "shm",
    "cgroup",
    "cgroup2",
    "proc",
    "sysfs",
    "ramfs",
    "squashfs",
    "overlay",
)


def rows(text: str) -> list[dict[str, Any]]:
    """One dict a file system, every kind; sizes in bytes, `percent` as printed.

    A bare number counts blocks of the header (`1B-blocks`, `1024-blocks`, `1K-blocks`; 1024 bytes where the header doesn't say).
    Rows of an inode table (`df -i`) say so: their numbers are no sizes. A device name so long that df broke the line is joined again.
    """
    block, inodes = 1024, False
    found = []
    held = ""
    for line in text.splitlines():
        if len(line) > 4096:
            continue
        if _HEADER.search(line) or ("%" in line and not re.search(r"[0-9]%", line)):
            block, inodes, held = _block(line), bool(re.search(r"[Ii]node", line)), ""
            continue
        row = _row(f"{held} {line}" if held and line[:1] in " \t" else line, block)
        held = line.strip() if row is None and len(line.split()) == 1 else ""
        if row:
            found.append(row | {"inodes": inodes})
    return found


def _row(line: str, block: int) -> dict[str, Any] | None:
    """`SOURCE [TYPE] SIZE USED AVAILABLE PERCENT MOUNT`; source and mount may hold blanks."""
    cells = line.split()
    for at in range(4, len(cells) - 1):
        if _PERCENT.match(cells[at]) and cells[at + 1].startswith("/") and all(map(_CELL.match, cells[at - 3 : at])):
            before = cells[: at - 3]
            kind = before.pop() if len(before) > 1 and re.fullmatch(r"[a-z][a-z0-9_.]*", before[-1]) else None
            size_cell, used, available = cells[at - 3 : at]
            return {
                "source": " ".join(before),
                "type": kind,
                "mount": line.split(None, at + 1)[-1].rstrip(),
                "percent": cells[at],
                "size": _bytes(size_cell, block),
                "used": _bytes(used, block),
                "available": _bytes(available, block),
                "shown": available,
            }
    return None


def _block(header: str) -> int:
    found = _HEADER.search(header)
    if not found:
        return 1024
    number, unit = found.group(1) or found.group(3), found.group(2) or found.group(4) or ""
    return int(number) * {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": GIB}[unit]


def _bytes(cell: str, block: int) -> int | None:
    return int(cell) * block if cell.isdecimal() and len(cell) < 19 else size(cell)


def disks(found_rows: list[dict[str, Any]]) -> tuple[Disk, ...]:
    """The file systems that keep data: local disks and network mounts, plus /dev/shm; each mount once."""
    found: dict[str, Disk] = {}
    for row in found_rows:
        if row["inodes"]:
            continue
        kept = row["mount"] in {"/", "/dev/shm"} or not (  # noqa: S108 - a mount point
            row["source"].startswith(_VIRTUAL) or (row["type"] or "").startswith(_VIRTUAL)
        )
        if kept and not row["mount"].startswith(("/boot", "/snap/", "/sys/", "/proc/", "/run/", "/var/lib/docker/")):
            found.setdefault(
                row["mount"],
                Disk(
                    mount=row["mount"],
                    filesystem=row["source"],
                    type=row["type"],
                    size_bytes=row["size"],
                    used_bytes=row["used"],
                    available_bytes=row["available"],
                ),
            )
    return tuple(found.values())


def _folders(found: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """`du`: bare numbers count KiB, and bytes with -b. What disks hand out comes in blocks of 4 KiB, sizes in bytes don't."""
    bare = [int(amount) for amount, _ in found if amount.isdecimal() and len(amount) < 19]
    block = 1024 if any(bare) and all(each % 4 == 0 and each < 2**36 for each in bare) else 1
    return [
        {"path": path, "bytes": int(amount) * block if amount.isdecimal() and len(amount) < 19 else size(amount)}
        for amount, path in found
    ]


def describe(text: str) -> dict[str, Any] | None:
    """The names of the cases: the root first, the largest folders of a `du`, network mounts."""
    all_rows = rows(text)
    every = [row for row in all_rows if not row["inodes"]]
    folders = _folders(_DU.findall(text))
    if not all_rows and not folders:
        return None
    inodes = {
        row["mount"]: int(row["percent"].rstrip("%")) for row in all_rows if row["inodes"] and row["percent"] != "-"
    }
    root = next((row for row in every if row["mount"] == "/"), None)
    remote = next(
        (row for row in every if ":/" in row["source"] or (row["type"] or "").startswith(("nfs", "cifs"))), None
    )
    return {
        "disks": [
            {
                "mount": disk.mount,
                "filesystem": disk.filesystem,
                "type": disk.type,
                "size_bytes": disk.size_bytes,
                "used_bytes": disk.used_bytes,
                "available_bytes": disk.available_bytes,
            }
            for disk in disks(every)
        ],
        "disk": _shown(root) if root else None,
        "root_avail_gib": _gib(root["available"]) if root else None,
        "nfs": {
            "mount": remote["mount"],
            "source": remote["source"],
            "avail": remote["shown"],
            "available_bytes": remote["available"],
        }
        if remote
        else None,
        "inodes_used_pct": inodes or None,
        "folders": sorted(folders, key=lambda each: -(each["bytes"] or 0)),
    }


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    percent = row["percent"].rstrip("%")
    return {
        "mount": row["mount"],
        "size_g": _gib(row["size"]),
        "available_g": _gib(row["available"]),
        "used_pct": int(percent) if percent.isdecimal() else None,
    }


def _gib(count: int | None) -> float | int | None:
    if count is None:
        return None
    value = round(count / GIB, 2)
    return int(value) if value == int(value) else value


@fact
class DiskFact(Fact):
    """Local file systems; a dead network mount can't hold them up."""

    name = "disk"
    reads = "df -P -T -B1 -l (or df, df -h, df -i, du -sh)"
    timeout_s = 8
    script = "df -P -T -B1 -l 2>/dev/null || df -P -k"

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Disk, ...] | None:
        found = disks(rows(evidence.stdout))
        return found or None


@fact
class NetworkDiskFact(Fact):
    """Network mounts, apart, because df hangs on a dead one."""

    name = "disk-network"
    reads = "df -P -T -B1 -t nfs -t nfs4 -t cifs -t lustre"
    timeout_s = 5
    script = """
kinds=$(awk '$3 ~ /^(nfs|nfs4|cifs|smb3|lustre|ceph|beegfs|gpfs|fuse.sshfs|9p|virtiofs)$/ {print "-t " $3}' /proc/mounts 2>/dev/null | sort -u)
[ -z "$kinds" ] || df -P -T -B1 $kinds
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Disk, ...] | None:
        if evidence.timed_out:
            return None
        return disks(rows(evidence.stdout))
