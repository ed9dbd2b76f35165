"""Paths through which a node would look like this machine, and how a script's mention of them is led elsewhere.

Where a mount namespace is allowed the files are bound over the real ones and nothing is rewritten. Elsewhere the literals
are replaced, in what goes to a shell and back in what it prints, by short links of exactly the same length, so that no
byte offset, size or `head -c` in a script moves.
"""

from __future__ import annotations

import os
import re
import secrets
import string
from pathlib import Path

FILES = {
    "/proc/meminfo": "meminfo",
    "/proc/uptime": "uptime",
    "/proc/stat": "stat",
    "/proc/loadavg": "loadavg",
    "/proc/version": "version",
    "/proc/cpuinfo": "cpuinfo",
    "/proc/sys/kernel/random/boot_id": "boot_id",
    "/proc/sys/kernel/osrelease": "osrelease",
}
FOLDERS = (
    "/sys/class/infiniband",
    "/sys/class/net",
    "/sys/class/dmi/id",
    "/sys/devices/virtual/dmi/id",
    "/etc/os-release",
    "/etc/systemd/system",
    "/etc/machine-id",
    "/etc/hostname",
    "/models",
    "/home/aurora",
    "/etc/passwd",
    "/etc/group",
    "/sys/fs/cgroup",
    "/etc/sudoers.d",
    "/etc/netplan",
    "/etc/systemd/network",
    "/etc/security/limits.d",
    "/etc/docker",
    "/etc/default/earlyoom",
    "/var/lib/sparkweb",
    "/opt/sglang",
    "/opt/llama.cpp",
    "/opt/acme",
)
BEFORE, AFTER = rb"(?<![A-Za-z0-9_./}-])", rb"(?![A-Za-z0-9_.-])"


class Rewriter:
    """Same-length replacements both ways, for one node."""

    def __init__(self, root: Path, files: Path) -> None:
        self.links: list[str] = []
        self.there: dict[bytes, bytes] = {}
        for literal, name in FILES.items():
            self._link(literal, files / name)
        for literal in FOLDERS:
            self._link(literal, root / literal.lstrip("/"))
        self.back = {value: key for key, value in self.there.items()}
        self._in = re.compile(
            BEFORE + b"(" + b"|".join(re.escape(k) for k in sorted(self.there, key=len, reverse=True)) + b")" + AFTER
        )
        self._out = re.compile(b"|".join(re.escape(k) for k in self.back))
        self._longest = max(len(key) for key in self.there)

    def _link(self, literal: str, target: Path) -> None:
        free = len(literal) - len("/tmp/")
        for _ in range(5000):
            path = "/tmp/" + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(free))
            try:
                os.symlink(target, path)
            except FileExistsError:
                continue
            self.links.append(path)
            self.there[literal.encode()] = path.encode()
            return
        raise RuntimeError(f"no free name of the length of {literal} under /tmp")

    def close(self) -> None:
        for path in self.links:
            if os.path.islink(path):
                os.unlink(path)

    def into(self, data: bytes) -> bytes:
        return self._in.sub(lambda found: self.there[found.group(1)], data)

    def out(self, data: bytes) -> bytes:
        return self._out.sub(lambda found: self.back[found.group(0)], data)

    def held(self, data: bytes, keys: dict[bytes, bytes]) -> int:
        """How many last bytes may be the beginning of a literal, and must wait for what follows."""
        for size in range(min(self._longest, len(data)), 0, -1):
            tail = data[-size:]
            if any(key.startswith(tail) for key in keys):
                return size
        return 0


class Stream:
    """Rewrites one direction of a stream whatever way it is cut into pieces."""

    def __init__(self, rewriter: Rewriter, *, inwards: bool) -> None:
        self._rewriter, self._inwards, self._rest, self._last = rewriter, inwards, b"", b""

    def feed(self, data: bytes, *, end: bool = False) -> bytes:
        whole = self._rest + data
        keys = self._rewriter.there if self._inwards else self._rewriter.back
        keep = 0 if end else self._rewriter.held(whole, keys)
        done, self._rest = whole[: len(whole) - keep], whole[len(whole) - keep :]
        if not self._inwards:
            return self._rewriter.out(done)
        made = self._rewriter.into(self._last + done)[len(self._last) :]
        self._last = (self._last + done)[-1:]
        return made
