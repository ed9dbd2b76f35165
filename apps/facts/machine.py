"""Who the machine is: names, kernel, boot, clock, login."""

from __future__ import annotations

import re
import shlex

from apps.facts.fact import Fact, fact
from apps.facts.quantities import decimal, whole
from apps.facts.sheet import Evidence
from apps.facts.values import Machine, TimeSync

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
    timeout_s = 15  # nothing else says who the machine is: a busy one is given time
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


_YES = {"yes": True, "no": False, "active": True, "inactive": False}
_CHRONY = re.compile(r"^System time\s*:\s*([0-9.]{1,20}) seconds (fast|slow) of NTP time", re.MULTILINE)
_TIMESYNC = re.compile(r"^\s*Offset: ([+-]?)([0-9.]{1,20})(us|ms|s|min)?\s*$", re.MULTILINE)
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def time_sync(text: str) -> TimeSync | None:
    """`timedatectl show` or its table, `chronyc tracking`, `timedatectl timesync-status`, and `service<TAB>NAME<TAB>active` rows."""
    shown = dict(line.strip().split("=", 1) for line in text.splitlines() if re.match(r"\s*[A-Z][A-Za-z]{1,30}=", line))
    table = {
        key.strip(): value.strip()
        for key, colon, value in (line.partition(": ") for line in text.splitlines())
        if colon
    }
    services = [
        row[1]
        for line in text.splitlines()
        if len(row := line.split("\t")) == 3 and row[0] == "service" and row[2] == "active"
    ]
    zone = shown.get("Timezone") or table.get("Time zone", "").partition(" (")[0]
    synchronized = (
        shown.get("NTPSynchronized") or table.get("System clock synchronized") or table.get("NTP synchronized")
    )
    ntp = shown.get("NTP") or table.get("NTP service") or table.get("Network time on")
    found = TimeSync(
        synchronized=_YES.get(synchronized or ""),
        ntp=_YES.get(ntp or "", True if services else None),
        service=services[0] if services else None,
        timezone=zone or None,
        offset_s=_offset(text),
    )
    return None if found == TimeSync() else found


def _offset(text: str) -> float | None:
    """How far this clock is ahead of its time server. timesyncd's offset is what it would have to be moved by."""
    chrony = _CHRONY.search(text)
    if chrony:
        seconds = decimal(chrony.group(1))
        return None if seconds is None else (seconds if chrony.group(2) == "fast" else -seconds)
    timesync = _TIMESYNC.search(text)
    seconds = decimal(timesync.group(2)) if timesync else None
    if timesync is None or seconds is None:
        return None
    moved = seconds * _UNITS_S[timesync.group(3) or "s"]
    return round(moved if timesync.group(1) == "-" else -moved, 9)


@fact
class TimeFact(Fact):
    """Whether something keeps the clock right."""

    name = "time"
    reads = "timedatectl show, chronyc -n tracking, timedatectl timesync-status"
    timeout_s = 10
    script = r"""
timedatectl show -p NTP -p NTPSynchronized -p Timezone 2>/dev/null || timedatectl 2>/dev/null
names='chrony chronyd systemd-timesyncd ntp ntpd ntpsec ptp4l'
states=$(systemctl is-active $names 2>/dev/null)
for name in $names; do
  state=${states%%"
"*}; states=${states#*"
"}
  [ "$state" != active ] || printf 'service\t%s\tactive\n' "$name"
done
chronyc -n tracking 2>/dev/null || timedatectl timesync-status 2>/dev/null
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> TimeSync | None:
        return time_sync(evidence.stdout)
