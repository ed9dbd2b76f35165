"""What others ask of deployments: who else is on some nodes, and where the API of one can be reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from apps.deployments.models import Deployment
from apps.facts.network import ipv4, management
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan.spec import Clear, Other, Spec
from apps.shell import Command

ANSWERS = (Deployment.State.SERVING, Deployment.State.DEGRADED)
EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - the engine's setting, not ours
SSH_PORT = 22


@dataclass(frozen=True)
class Reached:
    """Where clients find the API. `tunnel`: the line that brings it to `url` on one's own machine, where it can be
    reached on its node only; `why` says the reason."""

    url: str
    node: str
    tunnel: str = ""
    why: str = ""


def endpoint(deployment: Deployment, service: str = "") -> Reached | None:
    """Of the main service, or of another. None while nothing serves, or where the head is no node any more. Of the revision that
    runs, not a newer one."""
    if deployment.state not in ANSWERS:
        return None
    ranks = list(deployment.ranks.all())
    whole: dict[str, Any] = ranks[0].revision.body if ranks else deployment.revision.body
    parts = {part.get("service", ""): part for part in (whole, *whole.get("services", ()))}
    body: dict[str, Any] = parts.get(service, whole)
    nodes, port = body.get("nodes") or [], int(body.get("port") or 0)
    head = Node.objects.filter(name=nodes[0]).select_related("jump").first() if nodes else None
    if head is None:
        return None
    asked = str(body.get("api_host") or "")
    why = _only_there(head, asked)
    address = "" if why else _address(head) if asked in EVERYWHERE else asked
    if not why and not address:
        why = f"no address of {head.name} is known that is not of its fabric"
    if why:
        return Reached(f"http://127.0.0.1:{port}/v1", head.name, _tunnel(head, asked, port), why)
    return Reached(f"http://{_bracketed(address)}:{port}/v1", head.name)


def _only_there(head: Node, asked: str) -> str:
    """Why nobody but the node itself reaches it; empty when others do."""
    if _is_loopback(asked):
        return f"the engine listens on {asked} alone"
    if head.jump is not None:
        return f"{head.name} is reached through {head.jump.name}"
    if _is_loopback(head.address):
        return f"{head.name} is reached through a forwarded port of the machine that runs sparkweb"
    found = inventory.part_of_sheet(head, "interfaces").interfaces or ()
    fabric = {one.ip for interface in found if interface.role == "fabric" for one in interface.addresses}
    if asked in fabric:
        return f"the engine listens on {asked}, a fabric address"
    own = {one.ip for interface in found for one in interface.addresses}
    if own and _is_literal(head.address) and str(ipaddress.ip_address(head.address)) not in own:
        return f"{head.address} forwards SSH and is no address of {head.name}"
    return ""


def _address(head: Node) -> str:
    """The node's management address by its facts; without any its SSH address, unless that is of the fabric."""
    found = inventory.part_of_sheet(head, "interfaces").interfaces or ()
    managed = [one for one in found if one.role == "management"]
    if any(head.address == one.ip for interface in managed for one in interface.addresses):
        return head.address
    chosen = management(managed)
    address = ipv4(chosen) if chosen else None
    if address is not None and not _is_loopback(address.ip):
        return address.ip
    fabric = {one.ip for interface in found if interface.role == "fabric" for one in interface.addresses}
    return "" if head.address in fabric else head.address


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    name = host.rstrip(".").lower()
    return name in ("localhost", "localhost.localdomain") or (
        _is_literal(host) and ipaddress.ip_address(host).is_loopback
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _tunnel(head: Node, asked: str, port: int) -> str:
    """`ssh -N -L …` that brings the API to the same port of one's own machine, through all jump hosts."""
    inside = "127.0.0.1" if asked in EVERYWHERE else asked
    words = ["ssh", "-N", "-L", f"{port}:{_bracketed(inside)}:{port}"]
    hops = [f"{hop.user}@{_bracketed(hop.address)}:{hop.port}" for hop in _jumps(head)][::-1]
    words += ["-J", ",".join(hops)] if hops else []
    words += ["-p", str(head.port)] if head.port != SSH_PORT else []
    return Command.of(*words, f"{head.user}@{head.address}").text


def _jumps(node: Node) -> Iterator[Node]:
    """The hops before a node, the nearest to it first; each once, whatever the rows say."""
    seen = {node.pk}
    while node.jump is not None and node.jump.pk not in seen:
        node = node.jump
        seen.add(node.pk)
        yield node


def others(deployment: Deployment | None, nodes: Sequence[str]) -> tuple[Other, ...]:
    """All other deployments (all there are, where there is none yet), by id: archived ones too, as their containers carry the
    label still. With the spec of what runs on any of these nodes, else of the newest revision that names one of them."""
    rows = Deployment.objects.exclude(pk=deployment.pk) if deployment else Deployment.objects.all()
    rows = rows.prefetch_related("ranks__node", "ranks__revision", "revisions").order_by("pk")
    return tuple(
        Other(row.pk, row.name, row.state, _spec_on(row, frozenset(nodes)), found=clearing_of(row)) for row in rows
    )


def clearing_of(deployment: Deployment, *, disable: bool = False) -> tuple[Clear, ...]:
    """What must go for the things that were found to go: their units first."""
    made: list[Clear] = []
    for one in deployment.found:
        made += [Clear(one["node"], "unit", unit, disable) for unit in one.get("units", ())]
    made += [Clear(one["node"], "container", one["name"]) for one in deployment.found if one["kind"] == "container"]
    return tuple(dict.fromkeys(made))


def _spec_on(deployment: Deployment, nodes: frozenset[str]) -> Spec | None:
    running = [rank.revision for rank in deployment.ranks.all() if rank.node.name in nodes]
    newest = max(deployment.revisions.all(), key=lambda one: one.number, default=None)
    revision = running[0] if running else newest if newest and nodes & set(newest.body.get("nodes", ())) else None
    return revision.spec if revision else None
