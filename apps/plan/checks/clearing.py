"""What is in the way on a node: memory held by others, names and ports taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from apps.facts.sheet import Sheet
from apps.facts.values import Listener, Unit
from apps.plan.checks.ports import needed_ports
from apps.plan.engines.site import container_name
from apps.plan.fit import ENGINE_WORDS, GIB, SLACK_BYTES, Holder, claim_bytes, fit, holders, load_of, room_of
from apps.plan.preflight import NOTABLE_BYTES, is_ours
from apps.plan.spec import Clear, Given, Spec
from apps.plan.step import Problem


def check(spec: Spec, sheets: Sequence[Sheet], given: Given) -> Iterator[Problem]:
    """Memory, names, ports; the verdict on memory last."""
    for sheet in sheets:
        yield from _memory(spec, sheet, sheets, given)
        yield from _name(spec, sheet, given)
        yield from _ports(spec, sheet, given)
    if len(sheets) == len(spec.nodes):
        yield from _fits(spec, {sheet.node: sheet for sheet in sheets}, given)


def in_the_way(spec: Spec, sheet: Sheet, sheets: Sequence[Sheet], given: Given) -> tuple[Holder, ...]:
    """Who must go for the engine to find its memory free: everyone who holds a notable part, once there is too little;
    nobody while there is enough."""
    room = room_of(spec, sheet, Given(deployment=given.deployment))
    if room is None:
        return ()
    load = load_of(spec, sheets)
    wanted = room.claim if room.claim is not None else (load.weights or 0) + load.runtime + (load.fixed_kv or 0)
    if wanted <= room.after:
        return ()
    found = [one for one in holders(sheet, given.deployment) if not one.own]
    notable = [one for one in found if one.bytes >= NOTABLE_BYTES]
    unknown = [one for one in found if one.bytes == 0 and one.kind == "container" and _unit_of(sheet, one.name)]
    return tuple(notable + unknown if notable else ())


def _unit_of(sheet: Sheet, container: str) -> Unit | None:
    return next((unit for unit in sheet.units or () if container in unit.containers), None)


def units_behind(sheet: Sheet, found: Sequence[Holder]) -> tuple[Unit, ...]:
    """Units that start these containers, hold the memory themselves, or are running parts of the same engine stack."""
    containers = {one.name for one in found if one.kind == "container"}
    named = {one.name for one in found if one.kind == "unit"}
    made = []
    for unit in sheet.units or ():
        active = unit.active in ("active", "activating", "reloading")
        starts = bool(containers & set(unit.containers))
        related = (
            not unit.containers
            and unit.vendor is not True
            and bool(ENGINE_WORDS.search(f"{unit.name} {unit.exec_start or ''}"))
        )
        if active and (starts or unit.name in named or related):
            made.append(unit)
    return tuple(made)


def _memory(spec: Spec, sheet: Sheet, sheets: Sequence[Sheet], given: Given) -> Iterator[Problem]:
    found = in_the_way(spec, sheet, sheets, given)
    if not found:
        yield from _tenants(sheet, given)
        return
    units = units_behind(sheet, found)
    items = [Clear(sheet.node, "unit", unit.name) for unit in units]
    items += [Clear(sheet.node, one.kind, one.name) for one in found if one.kind != "unit"]
    size = sum(one.bytes for one in found)
    who = ", ".join(one.name if one.kind != "process" else f"process {one.name}" for one in found)
    frees = ", ".join(f"{one.name} {one.bytes / GIB:.1f} GiB" if one.bytes else f"{one.name} unknown" for one in found)
    restart = (
        f"{len(units)} {'unit restarts' if len(units) == 1 else 'units restart'} them. Stop the "
        f"{'unit' if len(units) == 1 else 'units'} first, then remove the containers. "
        if units
        else ""
    )
    yield settle(
        Problem(
            name="memory_held",
            severity="consent",
            title=f"{size / GIB:.1f} GiB of {sheet.node} is held by {who}",
            node=sheet.node,
            meaning=f"{restart}Put back with Restore.",
            remedy="Allow them to be stopped; disabling the units is asked separately."
            if units
            else "Allow them to be stopped.",
            evidence=frees,
            clear=tuple(asdict(item) for item in items),
        ),
        given,
    )


def settle(problem: Problem, given: Given) -> Problem:
    """The same, as `fine`, when everything it asks for was consented to."""
    asked = {(item["node"], item["kind"], item["name"]) for item in problem.clear}
    consented = {(one.node, one.kind, one.name) for one in given.clear}
    if not asked or not asked <= consented:
        return problem
    return Problem(
        problem.name,
        "fine",
        f"{problem.title}; it will be cleared",
        problem.node,
        problem.meaning,
        "",
        problem.evidence,
        problem.clear,
    )


def _tenants(sheet: Sheet, given: Given) -> Iterator[Problem]:
    """Others that may stay."""
    staying = [one for one in holders(sheet, given.deployment) if not one.own and one.bytes >= NOTABLE_BYTES]
    if staying:
        who = ", ".join(f"{one.name} ({one.bytes / GIB:.1f} GiB)" for one in staying)
        yield Problem("tenants", "fine", f"There is room beside {who} on {sheet.node}", sheet.node)
    else:
        yield Problem("nobody_else", "fine", f"Nobody else holds memory on {sheet.node}", sheet.node)


def _name(spec: Spec, sheet: Sheet, given: Given) -> Iterator[Problem]:
    """A container of another owner under the name that a rank will have."""
    if spec.runtime != "docker" or sheet.node not in spec.nodes:
        return
    name = container_name(spec, spec.nodes.index(sheet.node))
    found = next((one for one in sheet.containers or () if one.name == name), None)
    if found is None or (given.deployment and is_ours(found, given.deployment)):
        yield Problem("name_free", "fine", f"The name {name} is free on {sheet.node}", sheet.node)
        return
    other = found.labels.get("sparkweb.deployment")
    whose = f"deployment {other}" if other else "somebody else"
    yield Problem(
        "foreign_container",
        "stop",
        f"A container called {name} on {sheet.node} belongs to {whose}",
        sheet.node,
        "It is not removed, because this deployment did not start it.",
        "Choose another container name, or rename or remove it by hand.",
        f"{found.image} {found.status or found.state}",
    )


def _ports(spec: Spec, sheet: Sheet, given: Given) -> Iterator[Problem]:
    """A port is settled when its owner is cleared or is our own leftover."""
    for port in needed_ports(spec, sheet.node):
        listener = next((one for one in sheet.listeners or () if one.port == port), None)
        if listener is None:
            yield Problem("port_free", "fine", f"Port {port} is free on {sheet.node}", sheet.node)
        else:
            yield _busy(spec, sheet, given, listener)


def _busy(spec: Spec, sheet: Sheet, given: Given, listener: Listener) -> Problem:
    if (
        any(is_ours(one, given.deployment) and one.state == "running" for one in sheet.containers or ())
        and given.deployment
    ):
        return Problem(
            "port_ours", "fine", f"Port {listener.port} on {sheet.node} is held by this deployment itself", sheet.node
        )
    owner = listener.program or "a process that this user may not see"
    with_pid = f"{owner} (process {listener.pid})" if listener.pid else owner
    items = _owner_items(sheet, listener)
    title = f"Port {listener.port} on {sheet.node} is taken by {with_pid}"
    if items:
        names = ", ".join(item.name for item in items)
        return settle(
            Problem(
                "port_busy",
                "consent",
                title,
                sheet.node,
                f"It goes with {names}.",
                f"Allow {names} to be stopped, or choose another port.",
                f"{listener.address}:{listener.port}",
                tuple(asdict(item) for item in items),
            ),
            given,
        )
    cleared = [one.name for one in given.clear if one.node == sheet.node]
    if cleared and not listener.pid:
        return Problem(
            "port_busy",
            "warn",
            title,
            sheet.node,
            f"It may go with what is cleared ({', '.join(cleared)}); the launch waits for it.",
            "Choose another port if it does not.",
            f"{listener.address}:{listener.port}",
        )
    return Problem(
        "port_busy",
        "stop",
        title,
        sheet.node,
        "The engine could not listen there.",
        "Stop its owner, or choose another port.",
        f"{listener.address}:{listener.port}",
    )


def _owner_items(sheet: Sheet, listener: Listener) -> tuple[Clear, ...]:
    """The unit and the container whose process it is, as far as the sheet can tell."""
    if listener.pid is None:
        return ()
    container = next((one for one in sheet.containers or () if one.pid == listener.pid), None)
    unit = next((one for one in sheet.units or () if one.pid == listener.pid), None)
    if container and unit is None:
        unit = _unit_of(sheet, container.name)
    made = [Clear(sheet.node, "unit", unit.name)] if unit else []
    return (*made, *((Clear(sheet.node, "container", container.name),) if container else ()))


def _fits(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Iterator[Problem]:
    verdict = fit(spec, sheets, given)
    if verdict.verdict == "does_not_fit":
        best = " and ".join(
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:g}"
            for name, value in verdict.largest.items()
        )
        yield Problem(
            "does_not_fit",
            "stop",
            verdict.sentence,
            meaning="The engine would end with out of memory, or freeze the node.",
            remedy=f"The largest setting that fits: {best}."
            if best
            else "Use more nodes, a smaller model or fewer bits.",
        )
    elif verdict.verdict == "unknown":
        yield Problem(
            "fit_unknown",
            "warn",
            verdict.sentence,
            meaning="It may fit or not; the launch will show it.",
            remedy="Set the model path and probe again.",
        )
    else:
        yield Problem("fits", "fine", verdict.sentence)
        yield from _knife_edge(spec, sheets, given)


def _knife_edge(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Iterator[Problem]:
    for node in spec.nodes:
        room, claim = room_of(spec, sheets[node], given), claim_bytes(spec, sheets[node])
        if room and claim and room.after < claim <= room.after + SLACK_BYTES:
            yield Problem(
                "free_below_requested",
                "warn",
                f"{node} will have {room.after / GIB:.2f} GiB free, and the engine wants {claim / GIB:.2f}",
                node,
                "Free memory moves by about a GiB on its own; the engine refuses to start below its share.",
                f"Lower gpu_memory_utilization to {int(room.after / room.total * 100) / 100:g} to be safe.",
            )
