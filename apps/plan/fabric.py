"""Which address of a node the others reach it by, fast: the one decision that Ray, NCCL and Gloo all hang on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from apps.diagnosis.findings.links import (
    active_hcas,
    candidates,
    is_link_local,
    network_of,
    plug_of,
    shared_networks,
)
from apps.facts.sheet import Sheet
from apps.facts.values import Hca
from apps.plan.step import Problem


@dataclass(frozen=True)
class Fabric:
    """One node's place in the fabric."""

    address: str
    prefix: int
    interface: str
    hcas: tuple[str, ...]  # ACTIVE RDMA devices of the cables to the others, sorted; empty: NCCL goes over TCP
    link_local: bool = False  # unstable after a reboot
    exact_name: bool = True  # no other interface's name begins with this one
    gid_index: int | None = None  # RoCE v2 over IPv4, where the node's tables say the same for all these devices

    @property
    def nccl_interface(self) -> str:
        """For NCCL_SOCKET_IFNAME, which matches by prefix unless told `=name`."""
        return self.interface if self.exact_name else f"={self.interface}"


def fabric_address(sheet: Sheet, peers: Sequence[Sheet]) -> Fabric | Problem:
    """The node's address in the first subnet that all nodes share (see `shared_networks`), with its interface and the
    active RDMA devices; a Problem `fabric_down` that says what was looked for when there is none. `peers`: all other
    nodes, any order."""
    everyone = sorted((sheet, *peers), key=lambda one: one.node)
    networks = shared_networks(everyone)
    if not networks:
        return _no_fabric(sheet, peers)
    interface, address = next(pair for pair in candidates(sheet) if network_of(pair[1]) == networks[0])
    others = (one.name for one in sheet.interfaces or () if one.name != interface.name)
    hcas = _cabled(sheet, interface.name, networks)
    indexes = {hca.gid_index for hca in hcas}
    return Fabric(
        address=address.ip,
        prefix=address.prefix or 32,
        interface=interface.name,
        hcas=tuple(hca.name for hca in hcas),
        gid_index=next(iter(indexes)) if len(indexes) == 1 else None,
        link_local=is_link_local(address),
        exact_name=not any(name.startswith(interface.name) for name in others),
    )


def _cabled(sheet: Sheet, interface: str, networks: Sequence[IPv4Network]) -> tuple[Hca, ...]:
    """The active RDMA devices that lead to the other nodes: those of the port whose interface was chosen (on a Spark a port is
    two devices), and of every port in another subnet that all of them share. All active ones where the node does not say
    which interface is whose."""
    active = active_hcas(sheet)
    chosen = next((hca for hca in active if hca.netdev == interface), None)
    if chosen is None:
        return active
    shared = {one.name for one, address in candidates(sheet) if network_of(address) in networks}
    plug = plug_of(chosen.name)
    return tuple(hca for hca in active if hca is chosen or plug_of(hca.name) == plug or hca.netdev in shared)


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
