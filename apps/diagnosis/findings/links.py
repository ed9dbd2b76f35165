"""Which interfaces are the fast network between nodes, and which RDMA devices share one cable."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from apps.facts.sheet import Sheet
from apps.facts.values import Address, Hca, Interface


def active_hcas(sheet: Sheet) -> tuple[Hca, ...]:
    """RDMA ports with a cable and a partner, by name."""
    return tuple(sorted((hca for hca in sheet.fabric or () if hca.state == "ACTIVE"), key=lambda hca: hca.name))


def network_of(address: Address) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(f"{address.ip}/{address.prefix}", strict=False)
    except ValueError:
        return None


def _may_carry(interface: Interface, sheet: Sheet) -> bool:
    """A fabric interface is one that an active RDMA port owns, or that a person has called so; never the management
    one."""
    if interface.role in ("management", "ignore") or interface.up is False:
        return False
    if interface.role == "fabric":
        return True
    return interface.physical is not False and any(hca.netdev == interface.name for hca in active_hcas(sheet))


def candidates(sheet: Sheet) -> tuple[tuple[Interface, Address], ...]:
    """Private IPv4 addresses on fabric interfaces; static ones before link-local ones, a port's first PCIe function
    (enp…) before its twin in another PCI domain (enP2p…), then by name."""
    found = [
        (interface, address)
        for interface in sheet.interfaces or ()
        if _may_carry(interface, sheet)
        for address in interface.addresses
        if address.family == "inet" and network_of(address) is not None and ipaddress.ip_address(address.ip).is_private
    ]
    return tuple(
        sorted(
            found,
            key=lambda pair: (is_link_local(pair[1]), pair[0].name.startswith("enP"), pair[0].name, pair[1].ip),
        )
    )


def is_link_local(address: Address) -> bool:
    return address.link_local or ipaddress.ip_address(address.ip).is_link_local


def shared_networks(sheets: Sequence[Sheet]) -> tuple[ipaddress.IPv4Network, ...]:
    """Subnets in which every one of the nodes has a fabric address, the best first: static before link-local, then in
    the first node's order. All nodes must take the same one, so the choice is made once for all."""
    if not sheets:
        return ()
    per_node = [{network_of(address) for _, address in candidates(sheet)} for sheet in sheets]
    common = set.intersection(*per_node)
    ordered: list[ipaddress.IPv4Network] = []
    for _, address in candidates(sheets[0]):
        network = network_of(address)
        if network is not None and network in common and network not in ordered:
            ordered.append(network)
    return tuple(ordered)


_PORT = re.compile(r"f(\d+)(?:np\d+)?$")


def plug_of(device: str) -> str:
    """The physical port that an RDMA device belongs to: on a Spark each port is two PCIe functions, whose names end in
    the same function number (rocep1s0f0 and roceP2p1s0f0). Devices with other names (mlx5_0) stand alone."""
    found = _PORT.search(device) if device.lower().startswith("roce") else None
    return f"f{found.group(1)}" if found else device


def twins(sheet: Sheet) -> tuple[tuple[Hca, ...], ...]:
    """RDMA devices by the physical port that they belong to."""
    groups: dict[str, list[Hca]] = {}
    for hca in sheet.fabric or ():
        groups.setdefault(plug_of(hca.name), []).append(hca)
    return tuple(tuple(sorted(group, key=lambda hca: hca.name)) for _, group in sorted(groups.items()))


def rails_to(sheet: Sheet, others: Sequence[Sheet]) -> tuple[tuple[str, str], ...]:
    """(interface of this node, address of another) for every subnet that both have on the fabric: what the `rails` fact
    asks for as `peers`."""
    found = []
    for interface, mine in candidates(sheet):
        for other in others:
            if other.node == sheet.node:
                continue
            found += [
                (interface.name, theirs.ip)
                for _, theirs in candidates(other)
                if network_of(theirs) == network_of(mine) and not is_link_local(theirs)
            ]
    return tuple(dict.fromkeys(found))
