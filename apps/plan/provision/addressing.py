"""Addresses for the fabric: which interfaces carry it, and one for each in a subnet of its own per rail."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence

from apps.diagnosis.findings.links import is_link_local, network_of, twins
from apps.facts.sheet import Sheet
from apps.facts.values import Address, Hca, Interface
from apps.plan.provision.wish import Place

DEFAULTS = ("192.168.100.0/24", "192.168.101.0/24", "192.168.102.0/24", "192.168.103.0/24")
FIRST_HOST = 11


def rails(sheet: Sheet) -> tuple[str, ...]:
    """The interfaces of the plug that is to carry the fabric, a port's first PCIe function before its twin. Of several
    plugs the one with a link counts, then one with an address, then one that is switched off (it may have a cable)."""
    by_name = {one.name: one for one in sheet.interfaces or ()}
    plugs = [plug for plug in twins(sheet) if any(hca.netdev in by_name for hca in plug)]
    if not plugs:
        return tuple(one.name for one in sheet.interfaces or () if one.role == "fabric")
    best = max(plugs, key=lambda plug: (_worth(plug, by_name), -plugs.index(plug)))
    names = [hca.netdev for hca in best if hca.netdev in by_name]
    return tuple(sorted((name for name in names if name), key=lambda name: (name.startswith("enP"), name)))


def _worth(plug: Sequence[Hca], by_name: Mapping[str, Interface]) -> int:
    links = [by_name[hca.netdev] for hca in plug if hca.netdev and hca.netdev in by_name]
    if any(hca.active for hca in plug):
        return 3
    if any(one.addresses for one in links):
        return 2
    return 1 if any((hca.physical_state or "").lower() == "disabled" for hca in plug) else 0


def static_of(interface: Interface | None) -> Address | None:
    """The private IPv4 address that it keeps over a reboot."""
    for address in interface.addresses if interface else ():
        if address.family == "inet" and not is_link_local(address) and ipaddress.ip_address(address.ip).is_private:
            return address
    return None


def suggest(sheets: Mapping[str, Sheet]) -> tuple[Place, ...]:
    """One place per rail and node, what is there already kept: an address stays, a subnet that one node uses on a rail is
    taken for the others too."""
    named = {node: rails(sheet) for node, sheet in sorted(sheets.items())}
    taken = {address.ip for sheet in sheets.values() for one in sheet.interfaces or () for address in one.addresses}
    made: list[Place] = []
    used: set[str] = set()
    hosts = _hosts(sheets, named)
    for rail in range(max((len(names) for names in named.values()), default=0)):
        network = _subnet(sheets, named, rail, used)
        used.add(str(network))
        for node, names in named.items():
            if rail < len(names):
                own = static_of(_interface(sheets[node], names[rail]))
                if own is not None and network_of(own) == network:
                    made.append(Place(node, names[rail], own.ip, own.prefix or 24))
                else:
                    made.append(Place(node, names[rail], _free(network, hosts[node], taken), network.prefixlen))
                taken.add(made[-1].address)
    return tuple(sorted(made, key=lambda one: (one.node, one.interface)))


def _interface(sheet: Sheet, name: str) -> Interface | None:
    return next((one for one in sheet.interfaces or () if one.name == name), None)


def _hosts(sheets: Mapping[str, Sheet], named: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The last byte that a node's addresses are to have: that of one it has, else the next free from FIRST_HOST on."""
    made: dict[str, int] = {}
    for node, names in named.items():
        own = next((found for name in names if (found := static_of(_interface(sheets[node], name)))), None)
        if own is not None:
            made[node] = int(ipaddress.IPv4Address(own.ip)) & 0xFF
    following = (host for host in range(FIRST_HOST, 254) if host not in made.values())
    for node in named:
        if node not in made:
            made[node] = next(following)
    return made


def _subnet(
    sheets: Mapping[str, Sheet], named: Mapping[str, Sequence[str]], rail: int, used: set[str]
) -> ipaddress.IPv4Network:
    for node, names in named.items():
        own = static_of(_interface(sheets[node], names[rail])) if rail < len(names) else None
        network = network_of(own) if own is not None else None
        if network is not None and str(network) not in used and network.prefixlen <= 30:
            return network
    return next(ipaddress.IPv4Network(one) for one in _candidates(sheets, used))


def _candidates(sheets: Mapping[str, Sheet], used: set[str]) -> Iterator[str]:
    """Subnets that nobody uses yet."""
    busy = {
        network
        for sheet in sheets.values()
        for one in sheet.interfaces or ()
        for address in one.addresses
        if address.family == "inet" and (network := network_of(address)) is not None
    }
    for text in (*DEFAULTS, *(f"192.168.{number}.0/24" for number in range(104, 250))):
        if text not in used and not any(ipaddress.IPv4Network(text).overlaps(other) for other in busy):
            yield text


def _free(network: ipaddress.IPv4Network, host: int, taken: set[str]) -> str:
    first = int(network.network_address)
    for number in (host, *range(FIRST_HOST, 254)):
        address = ipaddress.IPv4Address(first + number)
        if address in network and str(address) not in taken and address != network.broadcast_address:
            return str(address)
    return str(next(one for one in network.hosts() if str(one) not in taken))
