"""How a node is set up: who owns its interfaces, what keeps its clock, and what is there of that which a provision run makes."""

from __future__ import annotations

import json

from apps.facts.fact import Fact, fact
from apps.facts.machine import rows
from apps.facts.sheet import Evidence
from apps.facts.values import Folder, Setup

UNMANAGED = {"unmanaged", "unavailable", "unknown", ""}
NETWORKD_OWNS = {"configured", "configuring", "pending", "failed", "degraded"}


def owners(found: dict[str, list[str]]) -> dict[str, str]:
    """Interface -> netplan, networkmanager or networkd: netplan before the two that it writes for. Absent: nobody's."""
    made: dict[str, str] = {}
    for line in found.get("networkd", []):
        words = line.split()
        if len(words) >= 5 and words[4] in NETWORKD_OWNS:
            made[words[1]] = "networkd"
    for line in found.get("networkmanager", []):
        name, _, rest = line.partition(":")
        state = rest.partition(":")[0].split(" ")[0]
        if state not in UNMANAGED:
            made[name] = "networkmanager"
    for name in _netplan(found):
        made[name] = "netplan"
    return made


def connections(found: dict[str, list[str]]) -> dict[str, str]:
    """Interface -> the NetworkManager connection that is active on it."""
    made = {}
    for line in found.get("networkmanager", []):
        name, _, rest = line.replace("\\:", "\0").partition(":")
        connection = rest.partition(":")[2].replace("\0", ":")
        if connection and connection != "--":
            made[name] = connection
    return made


def _netplan(found: dict[str, list[str]]) -> list[str]:
    """Interfaces that `netplan status --format json` calls its own: those with an id of its files."""
    try:
        body = json.loads("".join(found.get("netplan", [])) or "{}")
    except (ValueError, RecursionError):
        return []
    links = body.items() if isinstance(body, dict) else []
    return [name for name, link in links if isinstance(link, dict) and link.get("id")]


def _folder(line: str) -> Folder | None:
    words = line.split("|")
    if len(words) != 5 or not words[2].isdecimal():
        return None
    return Folder(words[4], owner=words[0], group=words[1], mode=words[2], writable=words[3] == "1")


@fact
class SetupFact(Fact):
    """Owners of interfaces, time synchronisation, our files, folders for models."""

    name = "setup"
    reads = (
        "nmcli; networkctl; netplan status; timedatectl; getent; our own files and folders, as `key<TAB>value` lines"
    )
    timeout_s = 20  # netplan is a program in Python
    script = r"""
row() { printf '%s\t%s\n' "$1" "$2"; }
nmcli -t -f DEVICE,STATE,CONNECTION device 2>/dev/null | sed 's/^/networkmanager	/'
networkctl --no-legend --no-pager list 2>/dev/null | sed 's/^/networkd	/'
netplan status --format json 2>/dev/null | sed 's/^/netplan	/'
row ntp "$(timedatectl show -p NTP --value 2>/dev/null)"
row synchronised "$(timedatectl show -p NTPSynchronized --value 2>/dev/null)"
row docker "$(getent group docker 2>/dev/null)"
row linger "$(loginctl show-user "$(id -un)" -p Linger --value 2>/dev/null)"
[ -e "/var/lib/systemd/linger/$(id -un)" ] && row lingers yes
for file in /etc/security/limits.d/60-sparkweb.conf /etc/systemd/system/sparkweb-gpu-clock.service /var/lib/sparkweb/marks/*; do
  [ -r "$file" ] && [ -f "$file" ] && row file "$(sha256sum <"$file" | cut -d' ' -f1) $file"
done
for folder in /models "$HOME/.cache/huggingface"; do
  [ -d "$folder" ] || continue
  may=0; [ -w "$folder" ] && may=1
  row folder "$(stat -c '%U|%G|%a' "$folder")|$may|$folder"
done
[ -f "$HOME/.ssh/sparkweb_nodes" ] && row node_key "$(cat "$HOME/.ssh/sparkweb_nodes.pub" 2>/dev/null)"
for unit in earlyoom.service sparkweb-gpu-clock.service; do row "unit $unit" "$(systemctl is-active "$unit" 2>/dev/null)"; done
for tool in visudo netplan nmcli networkctl iperf3 python3 nvidia-ctk earlyoom apt-get ssh-keygen; do
  command -v "$tool" >/dev/null 2>&1 && row tool "$tool"
done
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> Setup | None:
        found = rows(evidence.stdout)
        if not found:
            return None

        def one(key: str) -> str:
            return next((value for value in found.get(key, []) if value), "")

        members = one("docker").split(":")
        files = [line.split(" ", 1) for line in found.get("file", []) if " " in line]
        return Setup(
            owners=owners(found),
            connections=connections(found),
            ntp={"yes": True, "no": False}.get(one("ntp")),
            synchronised={"yes": True, "no": False}.get(one("synchronised")),
            docker_members=tuple(filter(None, members[3].split(","))) if len(members) > 3 else None,
            lingers=one("lingers") == "yes" or one("linger") == "yes",
            files={path: digest for digest, path in files},
            folders=tuple(made for line in found.get("folder", []) if (made := _folder(line))),
            node_key=one("node_key") or None,
            units={key.split(" ", 1)[1]: value[0] for key, value in found.items() if key.startswith("unit ")},
            tools=tuple(found.get("tool", [])),
        )
