"""The fast network between the nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from apps.facts.sheet import Sheet
from apps.plan.fabric import Fabric, candidates, fabric_address, twins
from apps.plan.spec import Spec
from apps.plan.step import Problem

JUMBO = 9000


def check(spec: Spec, sheets: Sequence[Sheet]) -> Iterator[Problem]:
    """Nothing for a single node."""
    if len(sheets) < 2:
        return
    found: list[Fabric] = []
    for sheet in sheets:
        place = fabric_address(sheet, [other for other in sheets if other is not sheet])
        if isinstance(place, Problem):
            yield place
            continue
        found.append(place)
        yield from _quality(sheet, place)
        yield from _twins(sheet, place)
    if len(found) == len(sheets):
        where = " ↔ ".join(place.address for place in found)
        yield Problem(
            "fabric",
            "fine",
            f"Fabric {where}",
            evidence=", ".join(f"{sheet.node} {place.interface}" for sheet, place in zip(sheets, found, strict=True)),
        )


def _quality(sheet: Sheet, place: Fabric) -> Iterator[Problem]:
    if place.link_local:
        yield Problem(
            "fabric_link_local",
            "warn",
            f"The fabric address of {sheet.node} is link-local ({place.address})",
            sheet.node,
            "It may change at every reboot; the deployment then does not find its peers.",
            "Give the interface a static private address, e.g. 192.168.100.x/24.",
        )
    if not place.hcas:
        yield Problem(
            "no_rdma",
            "warn",
            f"No RDMA device is active on {sheet.node}",
            sheet.node,
            "NCCL falls back to TCP sockets, several times slower.",
            "Check the cable and `ibdev2netdev`.",
        )
    interface = next((one for one in sheet.interfaces or () if one.name == place.interface), None)
    if interface and interface.mtu is not None and interface.mtu < JUMBO and place.hcas:
        yield Problem(
            "fabric_mtu",
            "warn",
            f"{place.interface} on {sheet.node} has an MTU of {interface.mtu}",
            sheet.node,
            "Every tuned setup uses 9000.",
            f"Set the MTU of both ends to {JUMBO}.",
        )


def _twins(sheet: Sheet, place: Fabric) -> Iterator[Problem]:
    """One cable lights two devices; when only one of them is up, half the bandwidth is gone. When both are in one
    subnet, traffic leaves by the wrong one."""
    for pair in twins(sheet):
        states = {hca.name: hca.state for hca in pair}
        if len(pair) > 1 and "ACTIVE" in states.values() and set(states.values()) != {"ACTIVE"}:
            down = [name for name, state in states.items() if state != "ACTIVE"]
            yield Problem(
                "fabric_half_up",
                "warn",
                f"{', '.join(down)} on {sheet.node} is down while its twin is up",
                sheet.node,
                "One cable serves both; half of its bandwidth is not used.",
                "Bring the twin's interface up with an address of its own.",
                ", ".join(f"{name} {state}" for name, state in states.items()),
            )
    networks: dict[ipaddress.IPv4Network, list[str]] = {}
    for interface, address in candidates(sheet):
        network = ipaddress.IPv4Network(f"{address.ip}/{address.prefix}", strict=False)
        networks.setdefault(network, []).append(interface.name)
    for network, names in networks.items():
        if len(names) > 1:
            yield Problem(
                "twins_in_same_subnet",
                "warn",
                f"{' and '.join(names)} on {sheet.node} are both in {network}",
                sheet.node,
                "The kernel answers through either, and RDMA connections fail now and then.",
                "Give each interface a subnet of its own.",
            )
