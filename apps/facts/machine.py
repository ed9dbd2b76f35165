"""Who the machine is: names, kernel, boot, clock, login."""

from __future__ import annotations

import re
import shlex

from apps.facts.fact import Fact, fact
from apps.facts.quantities import decimal, whole
from apps.facts.sheet import Evidence
from apps.facts.values import Machine

_BOOT_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def rows(text: str) -> dict[str, list[str]]:
    """`key<TAB>value` lines, in order; lines of another shape are noise."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, tab, value = line.partition("\t")
        if tab:
            found.setdefault(key, []).append(value.strip())
    return found


def os_release(lines: list[str]) -> dict[str, str]:
    """`NAME=value` lines of /etc/os-release (os-release(5)): values may be quoted as in a shell."""
    found = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals:
            continue
        try:
            words = shlex.split(value)
        except ValueError:
            words = [value.strip("\"'")]
        found[name.strip()] = " ".join(words)
    return found


@fact
class MachineFact(Fact):
    """Names, kernel, boot id, uptime, clock and login."""

    name = "machine"
    reads = "uname, hostname, /etc/os-release, /proc/uptime, boot_id, date, id as `key<TAB>value` lines"
    timeout_s = 8
    script = r"""
row() { printf '%s\t%s\n' "$1" "$2"; }
row clock "$(date +%s.%N 2>/dev/null)"
row hostname "$(hostname 2>/dev/null || uname -n)"
row arch "$(uname -m)"
row kernel "$(uname -r)"
row boot_id "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
row uptime "$(cat /proc/uptime 2>/dev/null)"
row user "$(id -un 2>/dev/null)"
row uid "$(id -u 2>/dev/null)"
row groups "$(id -Gn 2>/dev/null)"
row home "$HOME"
row locale "$SPARKWEB_LOCALE"
row cpus "$(nproc 2>/dev/null)"
row shell "$(getent passwd "$(id -un)" 2>/dev/null | cut -d: -f7)"
row virtualization "$(systemd-detect-virt 2>/dev/null)"
row product "$(cat /sys/class/dmi/id/product_name 2>/dev/null || tr -d '\000' 2>/dev/null </proc/device-tree/model)"
sed 's/^/os	/' /etc/os-release 2>/dev/null
sed 's/^/dgx	/' /etc/dgx-release 2>/dev/null
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> Machine | None:
        found = rows(evidence.stdout)
        if not found:
            return None

        def one(key: str) -> str | None:
            return next((value for value in found.get(key, []) if value), None)

        release = os_release(found.get("os", []))
        dgx = os_release(found.get("dgx", []))
        boot = _BOOT_ID.search(one("boot_id") or "")
        return Machine(
            hostname=one("hostname"),
            model=_product(one("product")) or dgx.get("DGX_PRETTY_NAME") or dgx.get("DGX_NAME"),
            arch=one("arch"),
            os=release.get("PRETTY_NAME") or release.get("NAME"),
            kernel=one("kernel"),
            uptime_s=decimal((one("uptime") or "").split(" ")[0]),
            boot_id=boot.group() if boot else None,
            clock_unix_s=decimal(one("clock")),
            virtualization=one("virtualization"),
            user=one("user"),
            uid=whole(one("uid")),
            home=one("home"),
            shell=one("shell"),
            locale=one("locale"),
            groups=tuple((one("groups") or "").split()),
            cpus=whole(one("cpus")),
        )


def _product(name: str | None) -> str | None:
    """Placeholders that board makers leave in the DMI table are no name."""
    if name is None or name.lower().replace("_", " ") in {
        "to be filled by o.e.m.",
        "system product name",
        "default string",
        "nvidia",
    }:
        return None
    return name.replace("_", " ") if name.startswith("NVIDIA_") else name
