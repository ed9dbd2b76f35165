"""RDMA ports: sysfs first, ibstat, ibdev2netdev and rdma where they are installed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from apps.facts.docker import objects, text_of
from apps.facts.fact import Fact, fact
from apps.facts.quantities import decimal
from apps.facts.sheet import Evidence
from apps.facts.values import Hca

_IBDEV = re.compile(r"^(\S+) port (\d{1,3}) ==> (\S+) \((\w+)\)\s*$", re.MULTILINE)
_IBDEV_WIDE = re.compile(
    r"^\S+ (\S+) \(.{0,200}?\) .{0,200}? port (\d{1,3}) \((\w+)\s*\) ==> (\S+) \((\w+)\)\s*$", re.MULTILINE
)
_RDMA = re.compile(r"^(?:\d+: |\d+/\d+: )?(?:link )?([\w.-]{1,64})/(\d{1,3}):? (state .*)$", re.MULTILINE)
_GID_ROW = re.compile(
    r"^(?P<dev>\S+)\s+(?P<port>\d{1,3})\s+(?P<index>\d{1,4})\s+(?P<gid>[0-9a-f:]{39})(?:\s+(?P<ip>[\d.]{7,15}))?\s+v(?P<version>[12])"
    r"(?:\s+(?P<netdev>\S+))?\s*$",
    re.MULTILINE,
)
_PHYSICAL = {"LINK_UP": "LinkUp", "DISABLED": "Disabled", "POLLING": "Polling"}
_CA = re.compile(r"^CA '([^']{1,64})'\s*$")
_SYSFS = re.compile(
    r"^(\S+)[ \t]+(\d): ([A-Z_]+)[ \t]+(\d): (\w+)[ \t]+([0-9.]{1,12}) Gb/sec(?: \([^)\n]*\))?(?:[ \t]+(\w+))?[ \t]*$",
    re.MULTILINE,
)
_MAPPED = re.compile(r"^(?:0000:){5}ffff:", re.IGNORECASE)


def from_ibdev2netdev(text: str) -> tuple[Hca, ...]:
    """`rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)`, in any order."""
    states = {"up": "ACTIVE", "down": "DOWN"}
    short = tuple(
        Hca(name=name, port=int(port), netdev=netdev, state=states.get(state.lower()))
        for name, port, netdev, state in _IBDEV.findall(text)
    )
    wide = tuple(  # -v
        Hca(name=name, port=int(port), netdev=netdev, state=states.get(up.lower(), state))
        for name, port, state, netdev, up in _IBDEV_WIDE.findall(text)
    )
    return short + wide


def from_show_gids(text: str) -> tuple[Hca, ...]:
    """`show_gids`: of each port the index of the RoCE v2 GID that maps an IPv4 address, a stable one first."""
    rows: dict[tuple[str, int], list[re.Match[str]]] = {}
    for row in _GID_ROW.finditer(text):
        rows.setdefault((row["dev"], int(row["port"])), []).append(row)
    found = []
    for (name, port), entries in rows.items():
        gids = ";".join(f"{row['index']}/{row['gid']}" for row in entries if row["version"] == "2")
        netdev = next((row["netdev"] for row in entries if row["netdev"]), None)
        found.append(Hca(name=name, port=port, netdev=netdev, gid_index=_gid(gids)))
    return tuple(found)


def from_ibv_devinfo(text: str) -> tuple[Hca, ...]:
    """`ibv_devinfo`: state and link layer of each port."""
    found: list[Hca] = []
    name: str | None = None
    for line in text.splitlines():
        key, colon, value = line.strip().partition(":")
        value = value.strip()
        if key == "hca_id" and colon:
            name = value
        elif name and key == "port" and value.isdecimal():
            found.append(Hca(name=name, port=int(value[:3])))
        elif found and key == "state" and value.startswith("PORT_"):
            found[-1] = replace(found[-1], state=value.removeprefix("PORT_").split(" ")[0])
        elif found and key == "link_layer":
            found[-1] = replace(found[-1], link_layer=value)
    return tuple(found)


def from_rdma(text: str) -> tuple[Hca, ...]:
    """`rdma link show` of iproute2: `link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens5f0np0`."""
    found = [
        Hca(
            name=each["ifname"],
            port=each["port"] if isinstance(each.get("port"), int) else 1,
            state=text_of(each.get("state")),
            netdev=text_of(each.get("netdev")),
            physical_state=_PHYSICAL.get(each["physical_state"], each["physical_state"]),
        )
        for each in (objects(text) if '"physical_state"' in text else ())  # -j
        if isinstance(each.get("ifname"), str) and isinstance(each.get("physical_state"), str)
    ]
    for name, port, rest in _RDMA.findall(text):
        words = rest.split()
        cells = dict(zip(words[::2], words[1::2], strict=False))
        physical = cells.get("physical_state")
        found.append(
            Hca(
                name=name,
                port=int(port),
                state=cells.get("state"),
                netdev=cells.get("netdev"),
                physical_state=_PHYSICAL.get(physical or "", physical),
            )
        )
    return tuple(found)


def from_ibstat(text: str) -> tuple[Hca, ...]:
    """`ibstat`. The rate of a port that is down is a placeholder, not a speed."""
    found: list[Hca] = []
    name: str | None = None
    for line in text.splitlines():
        ca = _CA.match(line)
        if ca:
            name = ca.group(1)
            continue
        key, colon, value = line.strip().partition(":")
        value = value.strip()
        port = re.match(r"Port (\d{1,3})$", key)
        if name and port and colon:
            found.append(Hca(name=name, port=int(port.group(1))))
        elif found and colon and found[-1].name == name:
            found[-1] = _with(found[-1], key, value)
    return tuple(_speedless(each) for each in found)


def _with(hca: Hca, key: str, value: str) -> Hca:
    if key == "State":
        return replace(
            hca, state={"Active": "ACTIVE", "Initializing": "INIT", "Initialized": "INIT"}.get(value, value.upper())
        )
    if key == "Physical state":
        return replace(hca, physical_state=value)
    if key == "Rate":
        return replace(hca, rate_gbps=decimal(value))
    return replace(hca, link_layer=value) if key == "Link layer" else hca


def _speedless(hca: Hca) -> Hca:
    return hca if hca.active is not False else replace(hca, rate_gbps=None)


def from_sysfs(text: str) -> tuple[Hca, ...]:
    """`@port HCA PORT<TAB>key=value<TAB>…` rows of the probe, or `HCA 4: ACTIVE 5: LinkUp 100 Gb/sec (4X EDR) Ethernet` lines."""
    found = [
        Hca(name=name, state=state, physical_state=physical, rate_gbps=float(rate), link_layer=layer or None)
        for name, _, state, _, physical, rate, layer in _SYSFS.findall(text)
        if rate.count(".") <= 1 and rate.strip(".")
    ]
    for line in text.splitlines():
        if not line.startswith("@port "):
            continue
        head, *cells = line.split("\t")
        words = head.split(" ")
        if len(words) != 3 or not words[2].isdecimal():
            continue
        row = dict(cell.split("=", 1) for cell in cells if "=" in cell)
        found.append(
            Hca(
                name=words[1],
                port=int(words[2][:3]),
                state=_after_colon(row.get("state")),
                physical_state=_after_colon(row.get("phys_state")),
                rate_gbps=decimal(row.get("rate")),
                netdev=row.get("netdev") or None,
                link_layer=row.get("link_layer") or None,
                gid_index=_gid(row.get("gids", "")),
            )
        )
    return tuple(_speedless(each) for each in found)


def _after_colon(value: str | None) -> str | None:
    """`4: ACTIVE` -> ACTIVE."""
    return (value or "").partition(":")[2].strip() or None


def _gid(text: str) -> int | None:
    """Index of the RoCE v2 GID that maps an IPv4 address, a stable one before a link-local one (169.254)."""
    best: tuple[int, int] | None = None
    for entry in text.split(";"):
        index, _, gid = entry.partition("/")
        if index.isdecimal() and _MAPPED.match(gid.strip()):
            rank = (1 if gid.strip()[30:].lower().startswith("a9fe") else 0, int(index[:4]))
            best = rank if best is None or rank < best else best
    return best[1] if best else None


def hcas(text: str) -> tuple[Hca, ...]:
    """Whatever of the formats stands in the text, joined."""
    tools = (from_ibstat, from_ibdev2netdev, from_rdma, from_ibv_devinfo, from_show_gids)
    return joined(from_sysfs(text), (each for read in tools for each in read(text)))


def joined(first: Iterable[Hca], bonus: Iterable[Hca]) -> tuple[Hca, ...]:
    """Ports by (name, port); gaps of the first are filled by the bonus."""
    found: dict[tuple[str, int], Hca] = {}
    for each in (*first, *bonus):
        before = found.get((each.name, each.port))
        if before is None:
            found[each.name, each.port] = each
            continue
        gaps = {
            name: getattr(each, name)
            for name in ("state", "physical_state", "rate_gbps", "netdev", "link_layer", "gid_index")
            if getattr(before, name) is None
        }
        found[each.name, each.port] = _speedless(replace(before, **gaps))
    return tuple(found.values())


def describe(ports: tuple[Hca, ...]) -> dict[str, Any]:
    """The names of the cases."""
    rows = [
        {
            "dev": each.name,
            "ca": each.name,
            "name": each.name,
            "port": each.port,
            "active": each.active,
            "state": each.state,
            "physical_state": each.physical_state,
            "gbps": whole_if(each.rate_gbps),
            "rate": whole_if(each.rate_gbps),
            "netdev": each.netdev,
            "link": each.link_layer,
            "gid_index": each.gid_index,
        }
        for each in ports
    ]
    active = [each for each in ports if each.active]
    return {
        "hcas": rows,
        "up": [each.name for each in active],
        "netdev": [each.netdev for each in active if each.netdev],
        "active": len(active),
    }


def whole_if(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


@fact
class FabricFact(Fact):
    """RDMA ports from sysfs; a node without any gives an empty list."""

    name = "fabric"
    reads = (
        "/sys/class/infiniband/*/ports/*/{state,phys_state,rate,link_layer,gids} (or ibstat, ibdev2netdev, rdma link)"
    )
    timeout_s = 6
    script = r"""
first() { line=; { read -r line <"$1"; } 2>/dev/null; printf '%s' "$line"; }
for device in /sys/class/infiniband/*; do
  [ -d "$device/ports" ] || continue
  for port in "$device"/ports/*; do
    [ -d "$port" ] || continue
    netdev=$(first "$port/gid_attrs/ndevs/0")
    [ -n "$netdev" ] || for path in "$device"/device/net/*; do [ -e "$path" ] && netdev=${path##*/} && break; done
    gids= ; n=0
    while [ "$n" -lt 16 ]; do
      case $(first "$port/gid_attrs/types/$n") in 'RoCE v2') gids="$gids$n/$(first "$port/gids/$n");" ;; esac
      n=$((n + 1))
    done
    printf '@port %s %s\tstate=%s\tphys_state=%s\trate=%s\tlink_layer=%s\tnetdev=%s\tgids=%s\n' "${device##*/}" "${port##*/}" \
      "$(first "$port/state")" "$(first "$port/phys_state")" "$(first "$port/rate")" "$(first "$port/link_layer")" "$netdev" "$gids"
  done
done
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Hca, ...] | None:
        found = hcas(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None


@fact
class FabricToolsFact(Fact):
    """The same by the tools, where there are any."""

    name = "fabric-tools"
    reads = "ibdev2netdev, rdma link show or ibstat"
    timeout_s = 8
    script = "ibdev2netdev 2>/dev/null || rdma link show 2>/dev/null || ibstat 2>/dev/null; :"

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Hca, ...]:
        return hcas(evidence.stdout)
