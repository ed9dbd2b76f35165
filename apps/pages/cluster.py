"""Cluster: how the nodes are connected, drawn and as a table, and what is wrong with it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.http import require_GET

from apps.diagnosis.findings import BAD, NOTE, Finding, findings
from apps.diagnosis.findings.fabric import JUMBO
from apps.diagnosis.findings.links import candidates, network_of, twins
from apps.facts.network import ipv4, management
from apps.facts.sheet import Sheet
from apps.facts.values import Hca, Interface
from apps.inventory.models import Node, SheetRow
from apps.pages import charts
from apps.people.access import allow

MOST_NODES = 64
FACTS = ("machine", "memory", "gpus", "docker", "images", "software", "interfaces", "fabric")
ABOUT_THE_CLUSTER = frozenset(
    {
        "twins_in_same_subnet",
        "twin_without_address",
        "no_rdma",
        "unequal_memory",
        "driver_differs",
        "image_differs",
        "versions_differ",
        "clock_skew",
    }
)


@dataclass(frozen=True)
class PortRow:
    """One RDMA port or fabric interface of a node, as the table shows it. None is unknown."""

    node: Node
    hca: str
    interface: str
    link: str
    tone: str
    gbps: float | None
    mtu: int | None
    small: bool  # the MTU is not jumbo
    addresses: tuple[str, ...]
    twin: str
    gid_index: int | None


def newest_sheets(nodes: Sequence[Node]) -> dict[int, Sheet]:
    """By the node's key, without evidence and whatever else the graph does not need; two queries."""
    ids = [node.pk for node in nodes]
    newest = SheetRow.objects.filter(node__in=ids).values("node").annotate(newest=Max("pk")).values("newest")
    names = {node.pk: node.name for node in nodes}
    rows = SheetRow.objects.filter(pk__in=newest).values("node_id", "taken_at", *(f"body__{name}" for name in FACTS))
    return {
        row["node_id"]: Sheet.from_json(
            {
                "node": names[row["node_id"]],
                "taken_at": row["taken_at"].timestamp(),
                **{name: row[f"body__{name}"] for name in FACTS},
            }
        )
        for row in rows
    }


def graph_nodes(nodes: Sequence[Node], sheets: Mapping[int, Sheet]) -> list[charts.GraphNode]:
    places = {node.pk: place for place, node in enumerate(nodes)}
    return [_graph_node(node, sheets.get(node.pk), places) for node in nodes]


def _graph_node(node: Node, sheet: Sheet | None, places: Mapping[int, int]) -> charts.GraphNode:
    gpu = next((gpu.name for gpu in (sheet.gpus.gpus if sheet and sheet.gpus else ()) if gpu.name), "")
    model = (sheet.machine.model if sheet and sheet.machine else None) or ""
    about = (gpu or model).replace("NVIDIA ", "") if sheet else "not probed yet"
    own = management(sheet.interfaces) if sheet and sheet.interfaces else None
    address = ipv4(own) if own else None
    tone = "bad" if node.unreachable_since else "ok" if sheet else "off"
    return charts.GraphNode(
        name=node.name,
        url=node.get_absolute_url(),
        about=f"{about} · unreachable"
        if node.unreachable_since and sheet
        else "unreachable"
        if node.unreachable_since
        else about,
        tone=tone,
        management=address.ip if address else node.address,
        jump=places.get(node.jump_id) if node.jump_id else None,
        plugs=tuple(
            charts.Plug(tuple((hca.name, _state(hca)) for hca in plug)) for plug in (twins(sheet) if sheet else ())
        ),
    )


def _state(hca: Hca) -> str:
    return {True: "up", False: "down", None: "unknown"}[hca.active]


def buses(nodes: Sequence[Node], sheets: Mapping[int, Sheet]) -> list[charts.Bus]:
    """One for each subnet in which any node has a fabric address; those that most nodes share come first."""
    found: dict[ipaddress.IPv4Network, list[charts.Junction]] = {}
    for place, node in enumerate(nodes):
        sheet = sheets.get(node.pk)
        for interface, address in candidates(sheet) if sheet else ():
            network = network_of(address)
            if network is not None:
                found.setdefault(network, []).append(_junction(place, interface, address.ip, sheet))
    ordered = sorted(found.items(), key=lambda pair: (-len({one.node for one in pair[1]}), pair[0]))
    return [charts.Bus(str(network), tuple(junctions)) for network, junctions in ordered]


def stacked(nodes: Sequence[charts.GraphNode], lines: Sequence[charts.Bus]) -> list[dict[str, Any]]:
    """What the graph draws as one block a node, for a narrow window: the way in, and its end in every fabric subnet."""
    return [
        {
            "node": node,
            "jump": nodes[node.jump].name if node.jump is not None else "",
            "ends": [(bus.name, end) for bus in lines for end in bus.junctions if end.node == place],
        }
        for place, node in enumerate(nodes)
    ]


def _junction(place: int, interface: Interface, ip: str, sheet: Sheet | None) -> charts.Junction:
    hca = next((one for one in (sheet.fabric if sheet else None) or () if one.netdev == interface.name), None)
    speed = _gbps(interface, hca)
    words = [
        f"{speed:g} Gb/s" if speed else "speed unknown",
        f"MTU {interface.mtu}" if interface.mtu else "MTU unknown",
    ]
    small = interface.mtu is not None and interface.mtu < JUMBO
    tone = "bad" if interface.up is False or (hca and hca.active is False) else "warn" if small else "ok"
    return charts.Junction(place, interface.name, ip, " · ".join(words), tone)


def _gbps(interface: Interface | None, hca: Hca | None) -> float | None:
    if hca is not None and hca.rate_gbps:
        return hca.rate_gbps
    return interface.speed_mbps / 1000 if interface is not None and interface.speed_mbps else None


def port_rows(nodes: Sequence[Node], sheets: Mapping[int, Sheet]) -> list[PortRow]:
    """Every RDMA port, then fabric interfaces without one."""
    made: list[PortRow] = []
    for node in nodes:
        sheet = sheets.get(node.pk)
        if sheet is None:
            continue
        by_name = {one.name: one for one in sheet.interfaces or ()}
        pairs = {hca.name: [other.name for other in plug if other is not hca] for plug in twins(sheet) for hca in plug}
        behind = set()
        for hca in (hca for plug in twins(sheet) for hca in plug):
            interface = by_name.get(hca.netdev or "")
            behind.add(hca.netdev)
            made.append(_row(node, hca, interface, ", ".join(pairs.get(hca.name, ()))))
        made += [
            _row(node, None, one, "")
            for one in sheet.interfaces or ()
            if one.role == "fabric" and one.name not in behind
        ]
    return made


def _row(node: Node, hca: Hca | None, interface: Interface | None, twin: str) -> PortRow:
    up = hca.active if hca is not None else interface.up if interface is not None else None
    said = " / ".join(filter(None, (hca.state, hca.physical_state))) if hca else ""
    return PortRow(
        node=node,
        hca=hca.name if hca else "",
        interface=interface.name if interface else (hca.netdev if hca else None) or "",
        link=said or {True: "up", False: "down", None: "unknown"}[up],
        tone={True: "ok", False: "off", None: "off"}[up],
        gbps=_gbps(interface, hca) if up else None,
        mtu=interface.mtu if interface else None,
        small=bool(up and interface and interface.mtu is not None and interface.mtu < JUMBO),
        addresses=tuple(
            f"{one.ip}/{one.prefix}" for one in (interface.addresses if interface else ()) if one.family == "inet"
        ),
        twin=twin,
        gid_index=hca.gid_index if hca else None,
    )


def about_the_cluster(sheets: Mapping[int, Sheet]) -> tuple[Finding, ...]:
    """Findings of the fabric, and of what should be alike."""
    every = findings({sheet.node: sheet for sheet in sheets.values()})
    return tuple(one for one in every if one.name.startswith("fabric_") or one.name in ABOUT_THE_CLUSTER)


@allow("view")
@require_GET
def cluster(request: HttpRequest) -> HttpResponse:
    nodes = list(Node.objects.select_related("jump").order_by("pk")[:MOST_NODES])
    sheets = newest_sheets(nodes)
    lines, drawn = buses(nodes, sheets), graph_nodes(nodes, sheets)
    ports = port_rows(nodes, sheets)
    found = about_the_cluster(sheets)
    seen = [sheet.taken_at for sheet in sheets.values()]
    context: dict[str, Any] = {
        "nodes": nodes,
        "graph": charts.cluster_graph(drawn, lines) if nodes else "",
        "stacked": stacked(drawn, lines),
        "ports": ports,
        "twins": any(row.twin for row in ports),
        "findings": [(one, {BAD: "bad", NOTE: "off"}.get(one.severity, "warn")) for one in found],
        "troubles": sum(one.severity != NOTE for one in found),
        "oldest": min(seen) if seen else None,
        "unprobed": [node for node in nodes if node.pk not in sheets],
        "together": [bus for bus in lines if len({one.node for one in bus.junctions}) > 1],
        "more": max(0, Node.objects.count() - MOST_NODES),
    }
    piece = request.headers.get("HX-Request") and request.headers.get("HX-Target") == "cluster-live"
    return render(request, "pages/cluster_live.html" if piece else "pages/cluster.html", context)


urlpatterns = [path("cluster", cluster, name="cluster")]
