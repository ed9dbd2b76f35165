"""Which TCP ports a deployment needs on a node, and who has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from apps.diagnosis.findings.holders import is_ours, unit_of
from apps.facts.sheet import Sheet
from apps.facts.values import Container, Listener
from apps.plan.checks import others, way
from apps.plan.engines.site import cluster_port
from apps.plan.spec import Clear, Given, Other, Spec
from apps.plan.step import Problem

HIGHEST = 65535


def needed_ports(spec: Spec, node: str) -> tuple[int, ...]:
    """On the head: the API's port and the one where the ranks meet. On other nodes none that is fixed, but for SGLang, which
    answers health checks on every node. Ray's dashboard (8265) is not started. Of several services all that are on the node."""
    if spec.services:
        return tuple(dict.fromkeys(port for one in spec.each for port in needed_ports(one, node)))
    if not spec.nodes or node not in spec.nodes:
        return ()
    if node != spec.nodes[0]:
        return (spec.port,) if spec.engine == "sglang" else ()
    meeting = cluster_port(spec)
    return (spec.port,) if meeting is None else (spec.port, meeting)


def next_free(spec: Spec, sheet: Sheet | None, given: Given, port: int, *, own: bool = True) -> int | None:
    """The next port above that nobody listens on, that no other deployment is meant to have on this node, running or not,
    and (`own`) that this one does not need itself; None when there is none."""
    node = sheet.node if sheet else spec.nodes[0]
    taken = {listener.port for listener in (sheet.listeners if sheet else None) or ()}
    taken |= {one for other in given.others if other.spec for one in needed_ports(other.spec, node)}
    taken |= set(needed_ports(spec, node)) if own else set()
    return next((one for one in range(port + 1, HIGHEST + 1) if one not in taken), None)


def of_others(spec: Spec, sheet: Sheet, given: Given) -> dict[int, Other]:
    """The needed ports that other deployments of ours hold on this node."""
    needed: dict[int, tuple[Other, ...]] = {}
    for other in given.others:
        for port in needed_ports(other.spec, sheet.node) if other.spec else ():
            needed[port] = (*needed.get(port, ()), other)
    found: dict[int, Other] = {}
    for port in needed_ports(spec, sheet.node):
        listener = _listener(sheet, port)
        if listener is not None and not _own(sheet, given):
            holder = others.of_listener(sheet, listener, needed, _owner(sheet, listener), given)
            found |= {port: holder} if holder else {}
        elif listener is None:  # it may not listen yet: what is being launched, or loads
            meant = next((other for other in needed.get(port, ()) if other.state in others.ALIVE), None)
            found |= {port: meant} if meant else {}
    return found


def instead(spec: Spec, sheet: Sheet, given: Given, ports: Sequence[int]) -> dict[str, int]:
    """For each of these ports that are taken: the field of the spec and the next free one."""
    found = {}
    for port in ports:
        free = next_free(spec, sheet, given, port)
        if free is not None:
            found["port" if port == spec.port else "cluster_port"] = free
    return found


def _listener(sheet: Sheet, port: int) -> Listener | None:
    return next((one for one in sheet.listeners or () if one.port == port), None)


def _own(sheet: Sheet, given: Given) -> bool:
    """Whether this deployment itself runs here."""
    return given.deployment > 0 and any(
        is_ours(one, given.deployment) and one.state == "running" for one in sheet.containers or ()
    )


def check(
    spec: Spec, sheet: Sheet, cleared: Sequence[Clear], theirs: Mapping[int, Other], given: Given
) -> Iterator[Problem]:
    """`cleared`: what is in the way on this node anyhow; a port whose owner can't be seen most likely belongs to it.
    `theirs`: the ports of other deployments of ours, which are told elsewhere."""
    for port in needed_ports(spec, sheet.node):
        listener = _listener(sheet, port)
        if port in theirs:
            continue
        if listener is None:
            yield Problem("port_free", "fine", f"Port {port} is free on {sheet.node}", sheet.node)
        elif _own(sheet, given):
            title = f"Port {port} on {sheet.node} is held by this deployment itself"
            yield Problem("port_ours", "fine", title, sheet.node)
        else:
            yield _busy(spec, sheet, listener, cleared, given)


def _busy(spec: Spec, sheet: Sheet, listener: Listener, cleared: Sequence[Clear], given: Given) -> Problem:
    owner = listener.program or "a process that this user may not see"
    title = f"Port {listener.port} on {sheet.node} is taken by {owner}"
    if listener.pid:
        title += f" (process {listener.pid})"
    evidence = f"{listener.address}:{listener.port}"
    change = instead(spec, sheet, given, [listener.port])
    another = others.free_words(change)
    items = _owner(sheet, listener) or (() if listener.pid else tuple(cleared))
    if not items:
        return Problem(
            "port_busy",
            "stop",
            title,
            sheet.node,
            "The engine could not listen there.",
            f"Stop its owner, or choose another port{another}.",
            evidence,
            change=change,
        )
    names = ", ".join(item.name for item in items)
    return way.consent(
        "port_busy",
        title,
        sheet,
        items,
        given,
        meaning=f"It {'goes' if listener.pid else 'most likely goes'} with {names}; the launch waits until it is free.",
        remedy=f"Allow that to be stopped, or choose another port{another}.",
        evidence=evidence,
    )


def _owner(sheet: Sheet, listener: Listener) -> tuple[Clear, ...]:
    """The unit and the container whose process it is, as far as the sheet can tell; else the process itself."""
    if listener.pid is None:
        container, unit = _told_to_listen(sheet, listener.port), None
        if container is None:
            return ()
    else:
        container = next((one for one in sheet.containers or () if one.pid == listener.pid), None)
        unit = next((one for one in sheet.units or () if one.pid == listener.pid), None)
    if container and unit is None:
        unit = unit_of(sheet, container.name)
    made = [Clear(sheet.node, "unit", unit.name)] if unit else []
    made += [Clear(sheet.node, "container", container.name)] if container else []
    return tuple(made) or (Clear(sheet.node, "process", str(listener.pid)),)


def _told_to_listen(sheet: Sheet, port: int) -> Container | None:
    """The one running container that publishes the port or has it in its command: who listens for root is not shown to
    other users. None when there is none, or more than one."""
    word, published = re.compile(rf"(?<![\w.]){port}(?![\w.])"), f":{port}->"
    found = [
        one
        for one in sheet.containers or ()
        if one.state == "running" and (any(published in shown for shown in one.ports) or word.search(one.command or ""))
    ]
    return found[0] if len(found) == 1 else None
