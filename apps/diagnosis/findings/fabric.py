"""The fast network: cables, twins, addresses, packet sizes, speeds."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

from apps.diagnosis.findings.finding import Finding, listed, seen, verb
from apps.diagnosis.findings.links import active_hcas, candidates, is_link_local, shared_networks, twins
from apps.diagnosis.findings.table import BAD, WARN
from apps.facts.sheet import Sheet
from apps.facts.values import Hca, Interface

JUMBO = 9000  # bytes
SPARK_GBPS = 100.0  # a Spark's port that comes up with less has the wrong cable or a bad one


def of_node(sheet: Sheet) -> Iterator[Finding]:
    """Of one node alone."""
    yield from down(sheet)
    yield from half_up(sheet)
    yield from unused(sheet)
    yield from twins_in_one_subnet(sheet)
    yield from unaddressed_twin(sheet)
    yield from small_packets(sheet)
    yield from link_local(sheet)
    yield from slow(sheet)
    yield from tools_absent(sheet)
    yield from rails(sheet)


def between(sheets: Sequence[Sheet], *, wanted: bool) -> Iterator[Finding]:
    """Of nodes together. `wanted`: a deployment is to span them."""
    known = [sheet for sheet in sheets if sheet.interfaces is not None and (active_hcas(sheet) or candidates(sheet))]
    if len(known) < 2:
        return
    if not shared_networks(known):
        have = {sheet.node: [f"{address.ip}/{address.prefix}" for _, address in candidates(sheet)] for sheet in known}
        yield seen(
            "fabric_not_shared",
            known,
            f"{listed(have)} share no fabric subnet",
            severity=BAD if wanted else WARN,
            evidence="; ".join(f"{node} {', '.join(mine) or 'no fabric address'}" for node, mine in have.items()),
            section="addresses",
            addresses=have,
        )
        return
    yield from _unequal_packets(known)
    yield from _unequal_speeds(known)


def down(sheet: Sheet) -> Iterator[Finding]:
    """Ports are there, none has a link; and a Spark without any port."""
    if sheet.fabric == () and _is_spark(sheet):
        yield without_rdma(sheet)
    states = {hca.name: hca.state for hca in sheet.fabric or ()}
    if not states or None in states.values() or active_hcas(sheet):
        return
    yield seen(
        "fabric_down",
        sheet,
        f"No fabric port of {sheet.node} has a link",
        severity=WARN,
        evidence=", ".join(_port(hca) for hca in sheet.fabric or ()),
        section="fabric",
        ports=states,
    )


def without_rdma(sheet: Sheet) -> Finding:
    """No RDMA device is active."""
    return seen("no_rdma", sheet, f"No RDMA device is active on {sheet.node}", section="fabric")


def half_up(sheet: Sheet) -> Iterator[Finding]:
    """One cable lights two devices; when only one of them is up, half the bandwidth is gone."""
    for pair in twins(sheet):
        down = [hca.name for hca in pair if hca.active is False]
        if down and len(down) < len(pair) and any(hca.active for hca in pair):
            yield seen(
                "fabric_half_up",
                sheet,
                f"{', '.join(down)} on {sheet.node} is down while its twin is up",
                evidence=", ".join(f"{hca.name} {hca.state}" for hca in pair),
                section="fabric",
                down=down,
            )


def unused(sheet: Sheet) -> Iterator[Finding]:
    """Plugs without a link beside one that has one."""
    if not active_hcas(sheet):
        return
    for plug in twins(sheet):
        if all(hca.active is False for hca in plug):
            yield seen(
                "fabric_port_unused",
                sheet,
                f"{listed(hca.name for hca in plug)} on {sheet.node} {verb(len(plug), 'has', 'have')} no link",
                evidence=", ".join(_port(hca) for hca in plug),
                section="fabric",
                ports=[hca.name for hca in plug],
            )


def twins_in_one_subnet(sheet: Sheet) -> Iterator[Finding]:
    """With both in one subnet, traffic leaves by the wrong one."""
    networks: dict[ipaddress.IPv4Network, list[str]] = {}
    for interface, address in candidates(sheet):
        names = networks.setdefault(ipaddress.IPv4Network(f"{address.ip}/{address.prefix}", strict=False), [])
        if interface.name not in names:
            names.append(interface.name)
    for network, names in networks.items():
        if len(names) > 1:
            yield seen(
                "twins_in_same_subnet",
                sheet,
                f"{' and '.join(names)} on {sheet.node} are both in {network}",
                section="addresses",
                subnet=str(network),
                interfaces=names,
            )


def unaddressed_twin(sheet: Sheet) -> Iterator[Finding]:
    """Both twins have a link, one of them has no IPv4 address."""
    by_name = {one.name: one for one in sheet.interfaces or ()}
    for pair in twins(sheet):
        known = [(hca, by_name[hca.netdev]) for hca in pair if hca.active and hca.netdev in by_name]
        bare = [interface.name for _, interface in known if not _has_ipv4(interface)]
        if bare and len(bare) < len(known):
            yield seen(
                "twin_without_address",
                sheet,
                f"{listed(bare)} on {sheet.node} {verb(len(bare), 'has', 'have')} a link and no IPv4 address",
                evidence=", ".join(
                    f"{interface.name} {', '.join(one.ip for one in interface.addresses) or 'none'}"
                    for _, interface in known
                ),
                section="addresses",
                interfaces=bare,
            )


def small_packets(sheet: Sheet, *, only: str | None = None) -> Iterator[Finding]:
    """`only`: look at this interface alone, whether an RDMA device is behind it or not."""
    for interface in _linked(sheet, only):
        if interface.mtu is not None and interface.mtu < JUMBO:
            yield seen(
                "fabric_mtu",
                sheet,
                f"{interface.name} on {sheet.node} has an MTU of {interface.mtu}",
                section="addresses",
                interface=interface.name,
                mtu_bytes=interface.mtu,
            )


def link_local(sheet: Sheet, *, only: str | None = None) -> Iterator[Finding]:
    """The address by which others would reach it is one that it gave itself."""
    mine = [pair for pair in candidates(sheet) if only in (None, pair[0].name)]
    if mine and is_link_local(mine[0][1]):  # static ones stand first
        address = mine[0][1].ip
        yield seen(
            "fabric_link_local",
            sheet,
            f"The fabric address of {sheet.node} is link-local ({address})",
            section="addresses",
            address=address,
        )


def slow(sheet: Sheet) -> Iterator[Finding]:
    """Only where it is known what the port can do: on a Spark."""
    for hca in active_hcas(sheet):
        if hca.rate_gbps is not None and hca.rate_gbps < SPARK_GBPS and hca.name.lower().startswith("roce"):
            yield seen(
                "fabric_slow",
                sheet,
                f"{hca.name} on {sheet.node} has a link of {hca.rate_gbps:g} Gb/s",
                evidence=_port(hca),
                section="fabric",
                gbps=hca.rate_gbps,
            )


def tools_absent(sheet: Sheet) -> Iterator[Finding]:
    """The kernel shows RDMA ports, and no tool printed anything about them."""
    said = sheet.evidence.get("fabric-tools")
    if sheet.fabric and said is not None and not said.timed_out and said.exit_code is not None and not said.stdout:
        yield seen(
            "ib_tools_absent",
            sheet,
            f"{sheet.node} has neither ibdev2netdev nor rdma nor ibstat",
            section="fabric-tools",
        )


def rails(sheet: Sheet, *, only: str | None = None) -> Iterator[Finding]:
    """What a full frame that must not be broken up met on each rail, or on that of this interface alone."""
    for one in sheet.rails or ():
        if only not in (None, one.interface):
            continue
        way = f"from {one.interface} of {sheet.node} to {one.peer}"
        about: dict[str, Any] = {"interface": one.interface, "peer": one.peer, "frame_bytes": one.frame_bytes}
        if one.result == "too_long":
            yield seen(
                "fabric_blocked",
                sheet,
                f"Frames of {one.frame_bytes or JUMBO} bytes do not get through {way}"
                f"{f', the limit is {one.mtu_bytes}' if one.mtu_bytes else ''}",
                evidence=one.evidence or "",
                section="rails",
                mtu_bytes=one.mtu_bytes,
                **about,
            )
        elif one.result in ("no_answer", "unreachable"):
            yield seen(
                "fabric_silent", sheet, f"No answer {way}", evidence=one.evidence or "", section="rails", **about
            )


def _unequal_packets(sheets: Sequence[Sheet]) -> Iterator[Finding]:
    """Ends of one subnet with different MTUs."""
    for network in shared_networks(sheets):
        sizes: dict[str, int] = {}
        for sheet in sheets:
            for interface, address in candidates(sheet):
                inside = ipaddress.IPv4Network(f"{address.ip}/{address.prefix}", strict=False) == network
                if inside and interface.mtu is not None:
                    sizes[sheet.node] = interface.mtu
        if len(set(sizes.values())) > 1:
            yield seen(
                "fabric_mtu_unequal",
                sheets,
                f"In {network} the MTU is "
                + listed(f"{size} on {node}" for node, size in sorted(sizes.items(), key=lambda each: each[1])),
                section="addresses",
                subnet=str(network),
                mtu_bytes=sizes,
            )


def _unequal_speeds(sheets: Sequence[Sheet]) -> Iterator[Finding]:
    best = {
        sheet.node: max(rates)
        for sheet in sheets
        if (rates := [hca.rate_gbps for hca in active_hcas(sheet) if hca.rate_gbps])
    }
    if len(set(best.values())) > 1:
        yield seen(
            "fabric_speed_unequal",
            sheets,
            "The fabric has "
            + listed(f"{rate:g} Gb/s on {node}" for node, rate in sorted(best.items(), key=lambda each: each[1])),
            section="fabric",
            gbps=best,
        )


def _linked(sheet: Sheet, only: str | None) -> Iterator[Interface]:
    """Fabric interfaces with a link and an address."""
    if only is not None:
        yield from (one for one in sheet.interfaces or () if one.name == only)
        return
    behind = {hca.netdev for hca in active_hcas(sheet)}
    seen_names: set[str] = set()
    for interface, _ in candidates(sheet):
        if interface.name in behind and interface.name not in seen_names:
            seen_names.add(interface.name)
            yield interface


def _has_ipv4(interface: Interface) -> bool:
    return any(one.family == "inet" for one in interface.addresses)


def _is_spark(sheet: Sheet) -> bool:
    return any("GB10" in (gpu.name or "") for gpu in (sheet.gpus.gpus if sheet.gpus else ()))


def _port(hca: Hca) -> str:
    return f"{hca.name} {' / '.join(filter(None, (hca.state, hca.physical_state))) or 'unknown'}"
