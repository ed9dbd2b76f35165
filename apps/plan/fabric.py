"""Which address of a node the others reach it by, fast: the one decision that Ray, NCCL and Gloo all hang on."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from apps.facts.sheet import Sheet
from apps.facts.values import Address, Hca, Interface
from apps.plan.step import Problem


@dataclass(frozen=True)
class Fabric:
    """One node's place in the fabric."""

    address: str
    prefix: int
    interface: str
    hcas: tuple[str, ...]  # ACTIVE RDMA devices, sorted; empty: no RDMA, NCCL goes over TCP
    link_local: bool = False  # unstable after a reboot
    exact_name: bool = True  # no other interface's name begins with this one

    @property
    def nccl_interface(self) -> str:
        """For NCCL_SOCKET_IFNAME, which matches by prefix unless told `=name`."""
        return self.interface if self.exact_name else f"={self.interface}"


def active_hcas(sheet: Sheet) -> tuple[Hca, ...]:
    """RDMA ports with a cable and a partner, by name."""
    return tuple(sorted((hca for hca in sheet.fabric or () if hca.state == "ACTIVE"), key=lambda hca: hca.name))


def _network(address: Address) -> ipaddress.IPv4Network | None:
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
        if address.family == "inet" and _network(address) is not None and ipaddress.ip_address(address.ip).is_private
    ]
    return tuple(
        sorted(
            found,
            key=lambda pair: (_is_link_local(pair[1]), pair[0].name.startswith("enP"), pair[0].name, pair[1].ip),
        )
    )


def _is_link_local(address: Address) -> bool:
    return address.link_local or ipaddress.ip_address(address.ip).is_link_local


def shared_networks(sheets: Sequence[Sheet]) -> tuple[ipaddress.IPv4Network, ...]:
    """Subnets in which every one of the nodes has a fabric address, the best first: static before link-local, then in
    the first node's order. All nodes must take the same one, so the choice is made once for all."""
    if not sheets:
        return ()
    per_node = [{_network(address) for _, address in candidates(sheet)} for sheet in sheets]
    common = set.intersection(*per_node)
    ordered: list[ipaddress.IPv4Network] = []
    for _, address in candidates(sheets[0]):
        network = _network(address)
        if network is not None and network in common and network not in ordered:
            ordered.append(network)
    return tuple(ordered)


def fabric_address(sheet: Sheet, peers: Sequence[Sheet]) -> Fabric | Problem:
    """The node's address in the first subnet that all nodes share (see `shared_networks`), with its interface and the
    active RDMA devices; a Problem `fabric_down` that says what was looked for when there is none. `peers`: all other
    nodes, any order."""
    everyone = sorted((sheet, *peers), key=lambda one: one.node)
    networks = shared_networks(everyone)
    if not networks:
        return _no_fabric(sheet, peers)
    interface, address = next(pair for pair in candidates(sheet) if _network(pair[1]) == networks[0])
    others = (one.name for one in sheet.interfaces or () if one.name != interface.name)
    return Fabric(
        address=address.ip,
        prefix=address.prefix or 32,
        interface=interface.name,
        hcas=tuple(hca.name for hca in active_hcas(sheet)),
        link_local=_is_link_local(address),
        exact_name=not any(name.startswith(interface.name) for name in others),
    )


def _no_fabric(sheet: Sheet, peers: Sequence[Sheet]) -> Problem:
    mine = [f"{address.ip}/{address.prefix} on {interface.name}" for interface, address in candidates(sheet)]
    active = [hca.name for hca in active_hcas(sheet)]
    if not active and not mine:
        seen = "no RoCE port of this node is active"
    elif not mine:
        seen = f"{', '.join(active)} active, but no private IPv4 address on their interfaces"
    else:
        seen = f"has {', '.join(mine)}, which no subnet shares with {', '.join(peer.node for peer in peers)}"
    return Problem(
        name="fabric_down",
        severity="stop",
        title=f"{sheet.node} has no fabric address that the other nodes share",
        node=sheet.node,
        meaning="Ray and NCCL would fall back to the management network or wait for ever.",
        remedy="Plug the RoCE cable and give both ends static addresses in one private subnet, e.g. 192.168.100.x/24.",
        evidence=seen,
    )


_PORT = re.compile(r"f(\d+)(?:np\d+)?$")


def twins(sheet: Sheet) -> tuple[tuple[Hca, ...], ...]:
    """RDMA devices by the physical port that they belong to: on a Spark each port is two PCIe functions, whose names
    end in the same function number (rocep1s0f0 and roceP2p1s0f0). Devices with other names (mlx5_0) stand alone."""
    groups: dict[str, list[Hca]] = {}
    for hca in sheet.fabric or ():
        found = _PORT.search(hca.name) if hca.name.lower().startswith("roce") else None
        groups.setdefault(f"f{found.group(1)}" if found else hca.name, []).append(hca)
    return tuple(tuple(sorted(group, key=lambda hca: hca.name)) for _, group in sorted(groups.items()))
