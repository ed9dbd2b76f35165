"""What other deployments of ours have on a node: containers by their label, processes of detached jobs, ports. It is
never cleared from here: whoever wants the node stops that deployment by its own Stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from apps.diagnosis.findings.holders import NOTABLE_BYTES, Holder
from apps.facts.sheet import Sheet
from apps.facts.values import Container, EngineProcess, Listener
from apps.plan import together
from apps.plan.engines.site import container_name
from apps.plan.found import container_of, unit_of
from apps.plan.spec import Clear, Given, Other, Spec
from apps.plan.step import Problem

GIB = 1 << 30
ALIVE = ("serving", "degraded", "launching", "stopping", "unreachable")  # states in which a job may run
DOES = {
    "serving": "is serving",
    "degraded": "is serving",
    "launching": "is being launched",
    "stopping": "is being stopped",
}


def of_container(container: Container, node: str, given: Given) -> Other | None:
    """By its label, or by its name where it was found and adopted. None for our own, for strangers, and for labels of another
    installation."""
    label = container.labels.get("sparkweb.deployment")
    if label is None:
        return _found(given).get((node, "container", container.name))
    if label == str(given.deployment):
        return None
    return next((one for one in given.others if str(one.id) == label), None)


def _found(given: Given) -> dict[tuple[str, str, str], Other]:
    """(node, kind, name) of what runs as an adopted deployment, with the units that keep it."""
    alive = [one for one in given.others if one.state in ALIVE]
    return {(item.node, item.kind, item.name): other for other in alive for item in other.found}


def of_holders(sheet: Sheet, given: Given) -> dict[tuple[str, str], Other]:
    """(kind, name), as holders and clear items have it, of what is another deployment's on this node."""
    found: dict[tuple[str, str], Other] = {}
    for container in sheet.containers or ():
        other = of_container(container, sheet.node, given)
        if other is not None:
            found["container", container.name] = other
    for (node, kind, name), other in _found(given).items():
        if kind == "unit" and node == sheet.node and unit_of(sheet, name):
            found[kind, name] = other
    for pid, other in _of_jobs(sheet, given).items():
        found["process", str(pid)] = other
    return found


def _of_jobs(sheet: Sheet, given: Given) -> dict[int, Other]:
    """Processes of engines that run as detached jobs, by pid: one that was told the deployment's port or model and that
    no container or unit owns, and whatever it started."""
    jobs = [
        (other, spec)
        for other in given.others
        for spec in (other.spec.each if other.spec else ())
        if spec.runtime == "process" and sheet.node in spec.nodes and other.state in ALIVE
    ]
    loose = [one for one in sheet.processes or () if not one.kept]
    found = {one.pid: other for one in loose for other, spec in jobs if _told(one, sheet, spec)}
    while more := {one.pid: found[one.parent] for one in loose if one.parent in found and one.pid not in found}:
        found |= more
    return found


def _told(process: EngineProcess, sheet: Sheet, spec: Spec) -> bool:
    """On the head the port tells; other ranks serve none, so there the model does."""
    starts = process.starts
    if sheet.node == spec.nodes[0] and starts.port is not None:
        return starts.port == spec.port
    return starts.model is not None and starts.model in (spec.model_path, spec.model)


def of_listener(
    sheet: Sheet, listener: Listener, needed: Mapping[int, tuple[Other, ...]], owner: Sequence[Clear], given: Given
) -> Other | None:
    """Whose port it is: by its process or the container that was told to listen there (`owner`), else by what the
    deployments that are here need (`needed`). Where the owner is hidden and only they use the host's network, theirs."""
    theirs = of_holders(sheet, given)
    for item in owner:
        if (item.kind, item.name) in theirs:
            return theirs[item.kind, item.name]
    if any(item.kind != "process" for item in owner):
        return None
    here = tuple(dict.fromkeys(theirs.values()))
    wanting = [one for one in needed.get(listener.port, ()) if one in here]
    if wanting or listener.pid is not None:
        return wanting[0] if wanting else None
    hosted = [one for one in sheet.containers or () if one.state in (None, "running") and one.network in (None, "host")]
    whose = {of_container(one, sheet.node, given) for one in hosted}
    return next(iter(whose)) if len(whose) == 1 else None


def check(
    spec: Spec,
    sheet: Sheet,
    found: Sequence[Holder],
    ports: Mapping[int, Other],
    given: Given,
    free: Callable[[Sequence[int]], Mapping[str, int]] = lambda ports: {},
) -> Iterator[Problem]:
    """One stop for each deployment of ours that has what this one needs on the node. `found`: what is in the way for its
    memory; `ports`: those of ours that others have; `free`: fields and ports to take instead of these."""
    theirs = of_holders(sheet, given)
    held = [(theirs[one.kind, one.name], one) for one in found if (one.kind, one.name) in theirs]
    named = {one.service: _same_name(one, sheet, given) for one in together.on(spec, sheet.node)}
    wanted = [one for one in given.clear if one.node == sheet.node and (one.kind, one.name) in theirs]
    asked = [theirs[one.kind, one.name] for one in wanted]
    for other in dict.fromkeys(
        (*(one for one, _ in held), *ports.values(), *(one for one in named.values() if one), *asked)
    ):
        said = [*_memory([one for whose, one in held if whose is other])]
        said += [f"port {port}" for port, whose in ports.items() if whose is other]
        said += [
            f"the container name {container_name(one, one.nodes.index(sheet.node))}"
            for one in together.on(spec, sheet.node)
            if named[one.service] is other
        ]
        said += [
            f"{one.kind} {one.name}, which is not cleared" for one in wanted if theirs[one.kind, one.name] is other
        ]
        instead = dict(free([port for port, whose in ports.items() if whose is other]))
        yield _stop(other, sheet, said, [one for whose, one in held if whose is other], instead)


def _memory(found: Sequence[Holder]) -> Iterator[str]:
    size = sum(one.bytes for one in found)
    if size >= NOTABLE_BYTES:
        yield f"{'about ' if any(one.estimated for one in found) else ''}{size / GIB:.1f} GiB of memory"


def _same_name(spec: Spec, sheet: Sheet, given: Given) -> Other | None:
    """The deployment that has a container under the name that a rank will have."""
    if spec.runtime != "docker" or sheet.node not in spec.nodes:
        return None
    found = container_of(sheet, container_name(spec, spec.nodes.index(sheet.node)))
    return of_container(found, sheet.node, given) if found else None


def _stop(other: Other, sheet: Sheet, said: Sequence[str], held: Sequence[Holder], free: Mapping[str, int]) -> Problem:
    does = DOES.get(other.state, "has something left")
    first = f"Stop {other.name} first"
    if other.state == "stopping":
        first = "Wait until it is stopped"
    elif other.state in ("draft", "stopped"):
        first = f"Probe {sheet.node} again; if it is still there, stop {other.name} once more"
    return Problem(
        name="other_deployment",
        severity="stop",
        title=f"{other.name} {does} on {sheet.node}",
        node=sheet.node,
        meaning=f"It has {_listed(said)}. Nothing of it is stopped from here." if said else "",
        remedy=f"{first}, or choose {_instead(said, held)}{free_words(free) if not held else ''}.",
        evidence=", ".join(f"{one.name} {one.bytes / GIB:.1f} GiB" for one in held if one.bytes),
        deployment=other.id,
        change={} if held else dict(free),
    )


def free_words(free: Mapping[str, int]) -> str:
    """`: port 30001 is free`, with the field where it is not the API's own port; empty for nothing."""
    said = [f"port {port} is free" if name == "port" else f"{port} is free as {name}" for name, port in free.items()]
    return f": {' and '.join(said)}" if said else ""


def _instead(said: Sequence[str], held: Sequence[Holder]) -> str:
    """Memory can't be had elsewhere on the node; a port or a name can."""
    if held or not said:
        return "other nodes"
    kinds = [
        "port" if one.startswith("port ") else "container name" for one in said if one.startswith(("port", "the "))
    ]
    return f"another {' and another '.join(dict.fromkeys(kinds))}" if kinds else "other nodes"


def _listed(said: Sequence[str]) -> str:
    return f"{', '.join(said[:-1])} and {said[-1]}" if len(said) > 1 else "".join(said)


def without_theirs(sheets: Mapping[str, Sheet], given: Given) -> Given:
    """The same without consents to clear what is another deployment's: no step may come of them."""
    theirs = {node: of_holders(sheet, given) for node, sheet in sheets.items()}
    kept = tuple(one for one in given.clear if (one.kind, one.name) not in theirs.get(one.node, {}))
    return given if kept == given.clear else replace(given, clear=kept)
