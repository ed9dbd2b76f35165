"""File systems by df, in any of its forms and languages."""

from __future__ import annotations

import re
from typing import Any

from apps.facts.fact import Fact, fact
from apps.facts.quantities import GIB, size
from apps.facts.sheet import Evidence
from apps.facts.values import Disk

_ROW = re.compile(
    r"^(?P<source>\S.*?)[ \t]+(?:(?P<type>[a-z][a-z0-9_.]*)[ \t]+)?(?P<size>[0-9][0-9.,]*[KMGTPE]?i?B?|-)[ \t]+(?P<used>[0-9][0-9.,]*[KMGTPE]?i?B?|-)"
    r"[ \t]+(?P<available>-?[0-9][0-9.,]*[KMGTPE]?i?B?|-)[ \t]+(?P<percent>[0-9]{1,3}%|-)[ \t]+(?P<mount>/\S.*|/)$")
_BLOCKS = re.compile(r"\b(\d+)([KMGB]?)-?\s*(?:blocks?|Blöcke|blocs|bloques|blocchi)?\b")
_DU = re.compile(r"^([0-9][0-9.,]*[KMGTPE]?)\t(/.*)$", re.MULTILINE)
_VIRTUAL = ("tmpfs", "devtmpfs", "efivarfs", "udev", "none", "shm", "cgroup", "cgroup2", "proc", "sysfs", "ramfs", "squashfs", "overlay")


def rows(text: str) -> list[dict[str, Any]]:
    """One dict a file system, every kind; sizes in bytes, `percent` as printed.

    A bare number counts blocks of the header (`1B-blocks`, `1024-blocks`, `1K-blocks`; 1024 bytes where the header doesn't say).
    Inode tables (`df -i`) are no sizes and are left out. A device name so long that df broke the line is joined again.
    """
    block, inodes = 1024, False
    found = []
    held = ""
    for line in text.splitlines():
        if len(line) > 8192:
            continue
        if "%" in line and not re.search(r"[0-9]%", line):
            block, inodes, held = _block(line), bool(re.search(r"[Ii]node", line)), ""
            continue
        row = _ROW.match((held + " " + line).strip() if held and line[:1] in " \t" else line)
        held = line if row is None and line.strip() and len(line.split()) == 1 else ""
        if row and not inodes:
            found.append({"source": row["source"], "type": row["type"], "mount": row["mount"], "percent": row["percent"],
                          **{name: _bytes(row[name], block) for name in ("size", "used", "available")}})
    return found


def _block(header: str) -> int:
    found = re.search(r"\b(\d+)([KMGB]?)-?\s?[Bb][Ll]", header) or re.search(r"\b(\d+)([KMG]?)-", header)
    if not found:
        return 1024
    return int(found.group(1)[:9]) * {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": GIB}[found.group(2)]


def _bytes(cell: str, block: int) -> int | None:
    return int(cell) * block if cell.isdigit() else size(cell)


def disks(text: str) -> tuple[Disk, ...]:
    """The file systems that keep data: local disks and network mounts, plus /dev/shm; each mount once."""
    found: dict[str, Disk] = {}
    for row in rows(text):
        kept = row["mount"] in {"/", "/dev/shm"} or not (row["source"].startswith(_VIRTUAL) or (row["type"] or "").startswith(_VIRTUAL))  # noqa: S108 - a mount point
        if kept and not row["mount"].startswith(("/boot", "/snap/", "/sys/", "/proc/", "/run/", "/var/lib/docker/")):
            found.setdefault(row["mount"], Disk(mount=row["mount"], filesystem=row["source"], type=row["type"], size_bytes=row["size"],
                                                used_bytes=row["used"], available_bytes=row["available"]))
    return tuple(found.values())


def describe(text: str) -> dict[str, Any] | None:
    """The names of the cases: the root first, the largest folders of a `du`, network mounts."""
    every = rows(text)
    folders = [{"path": path, "bytes": size(amount)} for amount, path in _DU.findall(text)]
    if not every and not folders:
        return None
    root = next((row for row in every if row["mount"] == "/"), None)
    remote = next((row for row in every if ":/" in row["source"] or (row["type"] or "").startswith(("nfs", "cifs"))), None)
    raw = {line.split()[-1]: line.split() for line in text.splitlines() if "%" in line and len(line.split()) >= 6}
    return {
        "disks": [{"mount": disk.mount, "filesystem": disk.filesystem, "type": disk.type, "size_bytes": disk.size_bytes,
                   "used_bytes": disk.used_bytes, "available_bytes": disk.available_bytes} for disk in disks(text)],
        "disk": _shown(root) if root else None,
        "root_avail_gib": _gib(root["available"]) if root else None,
        "nfs": {"mount": remote["mount"], "source": remote["source"], "avail": raw.get(remote["mount"], [""] * 6)[-3],
                "available_bytes": remote["available"]} if remote else None,
        "folders": sorted(folders, key=lambda each: -(each["bytes"] or 0)),
    }


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    percent = row["percent"].rstrip("%")
    return {"mount": row["mount"], "size_g": _gib(row["size"]), "available_g": _gib(row["available"]),
            "used_pct": int(percent) if percent.isdigit() else None}


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
        found = disks(evidence.stdout)
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
        return disks(evidence.stdout)
