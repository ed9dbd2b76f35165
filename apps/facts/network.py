# ruff: noqa: E501 (texts of real tools stay on one line)
"""Addresses, links, routes and listeners, and which interface plays which part."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from apps.facts.docker import objects
from apps.facts.fact import Fact, fact
from apps.facts.quantities import decimal, whole
from apps.facts.sheet import Evidence
from apps.facts.values import Address, Hca, Interface, Listener, RailPing

_VIRTUAL = re.compile(
    r"^(?:lo|docker\d*|br-|veth|virbr|tailscale|wg|tun|tap|cni|flannel|cali|vxlan|kube|dummy|zt|lxc|lxdbr|ifb|sit|ip6tnl|nodelocaldns|podman)"
)
_WIRELESS = re.compile(r"^(?:wl|wlan|wlp|ath)")
# Ports of a Spark's ConnectX-7: enp1s0f0np0, enP2p1s0f1np1. Only a hint, used where sysfs said nothing.
_SPARK_PORT = re.compile(r"^en[pP]\d+(?:p\d+)?s\d+f\d+(?:np\d+)?$")


def from_ip_json(text: str) -> tuple[Interface, ...]:
    """`ip -j addr`; some iproute2 versions print `{}` for links that they filtered."""
    found = []
    for each in objects(text):
        name = each.get("ifname")
        if not isinstance(name, str) or not name:
            continue
        flags = each.get("flags")
        state = str(each.get("operstate") or "").upper()
        mtu, mac = each.get("mtu"), each.get("address")
        infos = each.get("addr_info")
        addresses = [
            _address(info.get("local"), info.get("prefixlen"), info.get("family"))
            for info in (infos if isinstance(infos, list) else [])
            if isinstance(info, dict)
        ]
        found.append(
            Interface(
                name=name.split("@")[0],
                up=_is_up(flags if isinstance(flags, list) else [], state),
                mtu=mtu if isinstance(mtu, int) and not isinstance(mtu, bool) else None,
                addresses=tuple(address for address in addresses if address),
                mac=mac if isinstance(mac, str) else None,
                wireless=bool(_WIRELESS.match(name)),
            )
        )
    return tuple(found)


def _is_up(flags: list[Any], state: str) -> bool | None:
    if state in {"UP", "DOWN", "LOWERLAYERDOWN", "DORMANT", "NOTPRESENT"}:
        return state == "UP"
    return ("UP" in flags and "NO-CARRIER" not in flags) if flags else None


def _address(ip: Any, prefix: Any, family: Any) -> Address | None:
    try:
        known = ipaddress.ip_address(ip if isinstance(ip, str) else "")
    except ValueError:
        return None
    return Address(
        ip=str(ip),
        prefix=prefix if isinstance(prefix, int) and not isinstance(prefix, bool) else None,
        family=family if family in {"inet", "inet6"} else ("inet6" if known.version == 6 else "inet"),
        link_local=known.is_link_local,
    )


_ONELINE = re.compile(r"^\d+:\s+([^\s:@]+)(?:@\S+?)?:?\s+(inet6?)\s+([0-9A-Fa-f.:]+)(?:/(\d{1,3}))?", re.MULTILINE)
_LINK = re.compile(r"^\d+:\s+([^\s:@]+)(?:@[^\s:]+)?:\s+<([^>]*)>\s+mtu\s+(\d{1,6})(.*)$")
_BRIEF = re.compile(
    r"^([\w.:-]{1,32})(?:@\S+)?[ \t]+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|NOTPRESENT)(?:[ \t]+(\S.*?))?[ \t]*$",
    re.MULTILINE,
)
_MAC = re.compile(r"^\s+link/\w+ ((?:[0-9a-f]{2}:){5}[0-9a-f]{2})\b")
_INET = re.compile(r"^\s+(inet6?)\s+([0-9A-Fa-f.:]+)(?:/(\d{1,3}))?")


def from_ip_text(text: str) -> tuple[Interface, ...]:
    """`ip addr` and `ip -o addr`."""
    found: dict[str, Interface] = {}
    for name, family, ip, prefix in _ONELINE.findall(text):
        before = found.get(name, Interface(name=name, wireless=bool(_WIRELESS.match(name))))
        found[name] = _with(before, family, ip, prefix)
    current = None
    for line in text.splitlines():
        link, inet = _LINK.match(line), _INET.match(line)
        hardware = _MAC.match(line) if current else None
        if hardware and current:
            found[current] = replace(found[current], mac=hardware.group(1))
        elif link:
            current, flags, mtu, rest = link.groups()
            state = re.search(r"\bstate\s+(\w+)", rest)
            before = found.get(current, Interface(name=current, wireless=bool(_WIRELESS.match(current))))
            found[current] = replace(before, up=_is_up(flags.split(","), state.group(1) if state else ""), mtu=int(mtu))
        elif inet and current:
            found[current] = _with(found[current], *inet.groups())
    return tuple(found.values())


def _with(interface: Interface, family: str, ip: str, prefix: str | None) -> Interface:
    address = _address(ip, int(prefix) if prefix else None, family)
    if address is None or address in interface.addresses:
        return interface
    return replace(interface, addresses=(*interface.addresses, address))


def from_ip_brief(text: str) -> tuple[Interface, ...]:
    """`ip -br addr`: name, state and addresses on one line; there is no MTU in it."""
    found = []
    for name, state, rest in _BRIEF.findall(text):
        interface = Interface(name=name, up=_is_up([], state), wireless=bool(_WIRELESS.match(name)))
        for cell in rest.split():
            ip, _, prefix = cell.partition("/")
            interface = _with(interface, "inet6" if ":" in ip else "inet", ip, prefix if prefix.isdecimal() else None)
        found.append(interface)
    return tuple(found)


def addresses(text: str) -> tuple[Interface, ...]:
    return from_ip_json(text) or from_ip_text(text) or from_ip_brief(text)


_CONNECTED = re.compile(r"^(?P<subnet>[\d.]{7,15}/\d{1,2}) dev (?P<dev>\S+) .{0,80}?\bscope link\b", re.MULTILINE)


def subnet_of_two(routes: str) -> str | None:
    """A subnet that a routing table reaches through two fabric ports at once: twins with addresses of one subnet."""
    seen: dict[str, str] = {}
    for row in _CONNECTED.finditer(_plain_routes(routes)):
        wired = not _VIRTUAL.match(row["dev"]) and not _WIRELESS.match(row["dev"])
        if wired and seen.setdefault(row["subnet"], row["dev"]) != row["dev"]:
            return row["subnet"]
    return None


def _plain_routes(text: str) -> str:
    """`ip -j route` as the lines that `ip route` prints; other text as it is."""
    if '"dst"' not in text:
        return text
    lines = []
    for each in objects(text):
        if isinstance(each.get("dst"), str) and isinstance(each.get("dev"), str):
            more = "".join(
                f" {name} {each[name]}" for name in ("scope", "metric") if isinstance(each.get(name), str | int)
            )
            lines.append(f"{each['dst']} dev {each['dev']} proto {each.get('protocol', '')}{more}")
    return "\n".join(lines)


def from_links(text: str) -> dict[str, dict[str, str]]:
    """`NAME<TAB>key=value<TAB>…` rows of /sys/class/net."""
    found = {}
    for line in text.splitlines():
        name, *cells = line.split("\t")
        if cells and all("=" in cell for cell in cells):
            found[name] = dict(cell.split("=", 1) for cell in cells)
    return found


def default_interfaces(text: str) -> tuple[str, ...]:
    """Interfaces of the default routes of `ip route`, the lowest metric first."""
    found = []
    for line in _plain_routes(text).splitlines():
        device, metric = re.search(r"\bdev (\S+)", line), re.search(r"\bmetric (\d{1,9})", line)
        if line.startswith("default") and device:
            found.append((int(metric.group(1)) if metric else 0, device.group(1)))
    return tuple(dict.fromkeys(name for _, name in sorted(found, key=lambda each: each[0])))


def joined(
    known: tuple[Interface, ...], links: dict[str, dict[str, str]], hcas: Iterable[Hca], routes: str
) -> tuple[Interface, ...]:
    """Interfaces with speed, physical or not, and their part: fabric, management or ignore."""
    by_name = {interface.name: interface for interface in known}
    for name in links:
        by_name.setdefault(name, Interface(name=name, wireless=bool(_WIRELESS.match(name))))
    defaults = default_interfaces(routes)
    rdma = {hca.netdev: hca.name for hca in hcas if hca.netdev}
    found = []
    for name, interface in by_name.items():
        link = links.get(name, {})
        speed, state = whole(link.get("speed")), link.get("operstate", "")
        interface = replace(
            interface,
            speed_mbps=speed if speed and 0 < speed < 10_000_000 else None,
            physical=link["device"] == "1" if "device" in link else None,
            mtu=interface.mtu if interface.mtu is not None else whole(link.get("mtu")),
            mac=interface.mac or link.get("address") or None,
            up=interface.up if interface.up is not None else ({"up": True, "down": False}.get(state)),
            default_route=(name in defaults) if routes.strip() else None,
            hca=rdma.get(name),
        )
        found.append(replace(interface, role=_role(interface, bool(rdma))))
    return tuple(found)


def _role(interface: Interface, rdma_known: bool) -> str:
    """Fabric belongs to an RDMA device and has no default route; where no RDMA device is known, a Spark's port names are taken.
    Virtual and address-less links are ignored."""
    if interface.physical is False or _VIRTUAL.match(interface.name):
        return "ignore"
    fabric = interface.hca is not None or (not rdma_known and bool(_SPARK_PORT.match(interface.name)))
    if fabric and not interface.default_route:
        return "fabric"
    if not interface.addresses:
        return "ignore"
    return "management"


def management(interfaces: Iterable[Interface]) -> Interface | None:
    """The interface to reach the node by: default route first, wired before wireless, never link-local."""
    usable = [each for each in interfaces if each.role == "management" and ipv4(each) and not ipv4(each).link_local]  # type: ignore[union-attr]
    return min(usable, key=lambda each: (not each.default_route, bool(each.wireless), each.up is False), default=None)


def ipv4(interface: Interface) -> Address | None:
    """Its IPv4 address, a stable one before a link-local one."""
    return min(
        (each for each in interface.addresses if each.family == "inet"), key=lambda each: each.link_local, default=None
    )


def shared_subnet(interfaces: Iterable[Interface]) -> str | None:
    """A subnet that two fabric interfaces of one node share, e.g. "10.0.1.0/24": Linux then answers on the wrong one."""
    seen: dict[str, str] = {}
    for interface in interfaces:
        for address in interface.addresses:
            if (
                address.family != "inet"
                or address.prefix is None
                or interface.role != "fabric"
                or not 0 <= address.prefix <= 32
            ):
                continue
            subnet = str(ipaddress.ip_network(f"{address.ip}/{address.prefix}", strict=False))
            if seen.setdefault(subnet, interface.name) != interface.name:
                return subnet
    return None


_TCP = re.compile(r"^(?:LISTEN\s+)?\d+\s+\d+\s+(\S+):(\d{1,5})\s+\S+(?:\s+(.*))?$")
_NETSTAT = re.compile(r"^tcp6?\s+\d+\s+\d+\s+(\S+):(\d{1,5})\s+\S+\s+LISTEN\s*(?:(\d+)/(\S+))?")
_LSOF = re.compile(r"^(\S+)\s+(\d{1,10})\s+\S+\s+\d+\w*\s+IPv[46]\s.*TCP (\S+):(\d{1,5}) \(LISTEN\)\s*$")
_USER = re.compile(r'\("([^"]{1,64})",pid=(\d{1,10})')


def listeners(text: str) -> tuple[Listener, ...]:
    """`ss -H -ltnp` (with or without header) or `netstat -ltnp`. The owner is known to root, or for one's own processes."""
    found = []
    for line in text.splitlines():
        row, old, open_file = _TCP.match(line.strip()), _NETSTAT.match(line.strip()), _LSOF.match(line.strip())
        if row:
            user = _USER.search(row.group(3) or "")
            found.append((row.group(1), row.group(2), user.group(2) if user else None, user.group(1) if user else None))
        elif old:
            found.append((old.group(1), old.group(2), old.group(3), old.group(4)))
        elif open_file:
            program, pid, address, port = open_file.groups()
            found.append((address, port, pid, program))
    return tuple(
        Listener(
            address=address.strip("[]").split("%")[0], port=int(port), pid=int(pid) if pid else None, program=program
        )
        for address, port, pid, program in found
        if int(port) < 65536
    )


_SPEED = re.compile(r"^[ \t]*Speed:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_DETECTED = re.compile(r"^[ \t]*Link detected:[ \t]*(yes|no)\b", re.MULTILINE)
_ETHTOOL = re.compile(r"^Settings for (\S+?):[ \t]*$", re.MULTILINE)
_MODE = re.compile(r"\b(\d{4,7})base[A-Z]")


def ethtool(text: str) -> dict[str, Any] | None:
    """`ethtool IF`: mbps, link, degraded (a port that can do more, or a Spark's fabric port under 100 Gbit/s)."""
    speed, detected, name = _SPEED.search(text), _DETECTED.search(text), _ETHTOOL.search(text)
    if not (speed or detected):
        return None
    mbps = whole(speed.group(1)) if speed else None
    best = max((int(each) for each in _MODE.findall(text)), default=0)
    if not best and name and _SPARK_PORT.match(name.group(1)):
        best = 100_000
    return {
        "if": name.group(1) if name else None,
        "mbps": mbps,
        "link": detected.group(1) == "yes" if detected else None,
        "degraded": bool(mbps is not None and mbps < best),
    }


def describe(interfaces: tuple[Interface, ...]) -> dict[str, Any]:
    """The names of the cases, from interfaces that have their parts."""
    fabric = [each for each in interfaces if each.role == "fabric" and (each.addresses or each.up)]
    chosen, subnet = management(interfaces), shared_subnet(interfaces)
    addressed = [address for each in fabric if (address := ipv4(each))]
    warn = []
    if addressed and all(address.link_local for address in addressed):
        warn.append("link_local_only")
    if subnet:
        warn.append("same_subnet_twins")
    if any(each.mtu is not None and each.mtu < 9000 for each in fabric):
        warn.append("mtu_not_jumbo")
    found = chosen and ipv4(chosen)
    return {
        "mgmt": {"if": chosen.name, "ip": found.ip} if chosen and found else None,
        "mgmt_candidates": [each.name for each in interfaces if each.role == "management"],
        "fabric": [_shown(each) for each in fabric],
        "ignore": [each.name for each in interfaces if each.role == "ignore" and each.name != "lo"],
        "interfaces": [_shown(each) for each in interfaces],
        "warn": warn,
        "problem": "twins_same_subnet" if subnet else None,
        "subnet": subnet,
    }


def _shown(each: Interface) -> dict[str, Any]:
    address = ipv4(each)
    return {
        "if": each.name,
        "ip": address.ip if address else None,
        "prefix": address.prefix if address else None,
        "mtu": each.mtu,
        "up": each.up,
        "link_local": address.link_local if address else None,
        "speed_mbps": each.speed_mbps,
        "role": each.role,
        "mac": each.mac,
    }


@fact
class AddressesFact(Fact):
    """Interfaces and their addresses."""

    name = "addresses"
    reads = "ip -j addr (or ip -o addr, ip addr)"
    timeout_s = 10
    script = "ip -j addr 2>/dev/null || { ip -o link; ip -o addr; } 2>/dev/null || ip addr"

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Interface, ...] | None:
        return addresses(evidence.stdout) or None


@fact
class LinksFact(Fact):
    """What the kernel says about each link: a device behind it, speed, MTU."""

    name = "links"
    reads = "/sys/class/net/* as `NAME<TAB>key=value<TAB>…`"
    timeout_s = 10
    script = r"""
for path in /sys/class/net/*; do
  name=${path##*/}; [ -e "$path/mtu" ] || continue
  speed=; mtu=; operstate=; address=; device=0
  [ -e "$path/device" ] && device=1
  { read -r speed <"$path/speed"; } 2>/dev/null
  { read -r mtu <"$path/mtu"; } 2>/dev/null
  { read -r operstate <"$path/operstate"; } 2>/dev/null
  { read -r address <"$path/address"; } 2>/dev/null
  printf '%s\tdevice=%s\tspeed=%s\tmtu=%s\toperstate=%s\taddress=%s\n' "$name" "$device" "$speed" "$mtu" "$operstate" "$address"
done
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> dict[str, dict[str, str]]:
        return from_links(evidence.stdout)


@fact
class RoutesFact(Fact):
    """The routing table."""

    name = "routes"
    reads = "ip route"
    timeout_s = 10
    script = "ip route; ip -6 route show default 2>/dev/null; :"

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[str, ...] | None:
        """Interfaces with a default route; an empty table is (), no table None."""
        if not evidence.stdout.strip() and (evidence.stderr.strip() or evidence.exit_code != 0):
            return None
        return default_interfaces(evidence.stdout)


@fact
class InternetFact(Fact):
    """Whether the model hub answers. It is asked only when the caller allows it (`extra={"hub": "https://…"}`)."""

    name = "internet"
    reads = "curl -sS -o /dev/null -w '%{http_code}' HUB"
    timeout_s = 12
    script = r"""
[ -n "$SPARKWEB_HUB" ] || { echo not asked; exit 0; }
if command -v curl >/dev/null 2>&1; then curl -sS -o /dev/null -m 10 --connect-timeout 5 -w '%{http_code}\n' "$SPARKWEB_HUB"
else wget -q -T 8 -t 1 -O /dev/null "$SPARKWEB_HUB" && echo 200; fi
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> bool | None:
        said = evidence.stdout.strip()
        if said == "not asked":
            return None
        if re.fullmatch(r"[1-5]\d\d", said):
            return True
        return False if evidence.exit_code not in {0, 127, None} else None


@fact
class ListenersFact(Fact):
    """TCP ports that listen, with their owner where it may be seen."""

    name = "listeners"
    reads = "ss -H -ltnp (or netstat -ltnp)"
    timeout_s = 10
    script = "ss -H -ltnp 2>/dev/null || netstat -ltnp"

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Listener, ...] | None:
        found = listeners(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None


_LOSS = re.compile(r"(\d{1,6}) packets transmitted, (\d{1,6}) (?:packets )?received")
_TOO_LONG = re.compile(
    r"[Mm]essage too long(?:,? mtu[:=] ?(\d{1,6}))?|Frag(?:mentation)? needed(?: and DF set)? \(mtu = (\d{1,6})\)"
)
_RTT = re.compile(r"= [0-9.]+/([0-9.]{1,12})/")
_NO_PING = re.compile(r"invalid option|unrecognized option|not found|Operation not permitted", re.IGNORECASE)
_NO_INTERFACE = re.compile(r"unknown iface|No such device|invalid source|SO_BINDTODEVICE", re.IGNORECASE)
_UNREACHABLE = re.compile(r"Destination (?:Host|Net) Unreachable|Network is unreachable|No route to host")
_SENT = re.compile(r"^PING .*? \d+\((\d{1,6})\) bytes", re.MULTILINE)


def rails(text: str) -> tuple[RailPing, ...]:
    """`@rail INTERFACE PEER` with the output of `ping -M do -s 8972`, then `@small` with that of a small one where no answer came.

    `too_long`: a full frame does not fit while a small one arrives, whoever says so (this end, a router, or nobody).
    """
    found = []
    for part in re.split(r"^@rail ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        words = head.split()
        if len(words) == 2:
            found.append(_rail(words[0], words[1], *body.partition("@small\n")[::2]))
    if not found and _LOSS.search(text):
        found.append(_rail("", (re.search(r"^PING (\S+)", text, re.MULTILINE) or ["", ""])[1], text, ""))
    return tuple(found)


def _rail(interface: str, peer: str, full: str, small: str) -> RailPing:
    sent, rtt, long = _SENT.search(full), _RTT.search(full), _TOO_LONG.search(full)
    if _answered(full):
        result = "ok"
    elif long or _answered(small):
        result = "too_long"
    else:
        shapes = (
            (_NO_INTERFACE, "no_interface"),
            (_UNREACHABLE, "unreachable"),
            (_NO_PING, "no_ping"),
            (_LOSS, "no_answer"),
        )
        result = next((name for shape, name in shapes if shape.search(full)), "")
    mtu = next((int(number) for number in (long.groups() if long else ()) if number), None)
    lines = [
        line.strip() for line in full.splitlines() if line.strip() and not line.startswith(("PING ", "---", "rtt "))
    ]
    return RailPing(
        interface=interface,
        peer=peer,
        frame_bytes=int(sent.group(1)) if sent else None,
        result=result or None,
        mtu_bytes=mtu,
        rtt_ms=decimal(rtt.group(1)) if rtt and result == "ok" else None,
        evidence=(lines[-1] if result == "ok" else lines[0])[:300] if lines else None,
    )


def _answered(text: str) -> bool:
    found = _LOSS.search(text)
    return found is not None and int(found.group(2)) > 0


@fact
class RailsFact(Fact):
    """Whether full frames reach the peers on each rail. Asked only where the caller knows them (`extra={"peers": "INTERFACE IP, one a line"}`)."""

    name = "rails"
    reads = "ping -n -c 2 -M do -s 8972 -I INTERFACE PEER, as `@rail INTERFACE PEER` parts"
    timeout_s = 10
    script = r"""
[ -n "$SPARKWEB_PEERS" ] || { echo not asked; exit 0; }
work=$(mktemp -d) || exit 1
printf '%s\n' "$SPARKWEB_PEERS" | head -n 64 | {
  n=0
  while read -r interface peer; do
    [ -n "$peer" ] || continue
    n=$((n + 1))
    {
      printf '@rail %s %s\n' "$interface" "$peer"
      ping -n -c 2 -i 0.3 -W 1 -M do -s 8972 -I "$interface" "$peer" 2>&1 || { echo @small; ping -n -c 1 -W 1 -I "$interface" "$peer" 2>&1; }
    } >"$work/$n" </dev/null &
  done
  wait
}
cat "$work"/* 2>/dev/null; rm -rf "$work"
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[RailPing, ...] | None:
        return rails(evidence.stdout) or None
