"""Preflight, clear, cluster, serve, verify: from nothing to an API that answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from apps.diagnosis.findings.holders import discrete, is_ours
from apps.facts.sheet import Sheet
from apps.plan import preflight, steps, together
from apps.plan.checks.others import without_theirs
from apps.plan.engines import table
from apps.plan.engines.site import Site, container_name, sites
from apps.plan.fit import SLACK_BYTES, claim_bytes
from apps.plan.fit_together import fit_all
from apps.plan.found import container_of, known
from apps.plan.problems import needed_ports, problems
from apps.plan.spec import Given, Spec, validate
from apps.plan.step import Plan, Problem, Setting, Stage, Step
from apps.plan.stories import ground
from apps.plan.stories.exactly import Pinned, differences, pinned

DISK_FLOOR_BYTES = 2 << 30  # logs and the engine's compile cache
BOOT_WITHIN_S = 300.0  # from the first look: dockerd, the driver and the network of a machine that has just booted
WAITS_EVERY_S = 5.0


def launch(spec: Spec, sheets: Mapping[str, Sheet], *, given: Given = Given()) -> Plan:  # noqa: B008  # frozen
    """The plan of a launch. What stands in the way is in `problems`; while any of them is a stop or an unanswered
    consent, the plan must not run. Where a node is unknown or a field is nonsense there is nothing to plan, and
    `stages` is empty."""
    return start("launch", spec, sheets, given)


def start(story: str, spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Plan:
    """A launch or a relaunch; they differ in what is torn down first."""
    given = replace(given, standing=standing(spec, sheets, given))
    stages: tuple[Stage, ...] = ()
    settings: tuple[Setting, ...] = ()
    serves = serving_already(spec, sheets, given)
    exact = pinned(story, spec, sheets, given)
    found = (serves,) if serves else (*exact.problems, *problems(exact.spec, sheets, given))
    if not serves and story == "relaunch":
        spec, exact, found = _met_elsewhere(spec, exact, found, sheets, given)
    given = without_theirs(sheets, given)
    if not serves and not validate(spec):
        stages = _stages(story, exact, sheets, given)
        settings = _settings(exact.spec, sheets) if stages else ()
    last = given.last_good
    return Plan(
        story=story,
        deployment=given.deployment,
        revision=given.revision,
        nodes=spec.nodes,
        stages=stages,
        fit=None if validate(spec) else fit_all(spec, sheets, given),
        problems=found,
        spec=spec.to_json(),
        kept=tuple(one.service for one in together.kept(spec, given)) if stages else (),
        settings=settings,
        differences=(*exact.differences, *differences(last, spec, settings, sheets, given.revision)) if last else (),
        last_good=last.run if last else None,
    )


def _met_elsewhere(
    spec: Spec, exact: Pinned, found: tuple[Problem, ...], sheets: Mapping[str, Sheet], given: Given
) -> tuple[Spec, Pinned, tuple[Problem, ...]]:
    """A relaunch moves the port where the ranks meet when somebody else has taken it and can't be cleared: no client knows that
    port. The API's own stays, whatever it costs."""
    for problem in found:
        port = problem.change.get("cluster_port")
        if (problem.name, problem.severity, len(problem.change)) == ("port_busy", "stop", 1) and port:
            moved = replace(exact, spec=replace(exact.spec, cluster_port=port))
            return replace(spec, cluster_port=port), moved, (*exact.problems, *problems(moved.spec, sheets, given))
    return spec, exact, found


def _stages(story: str, exact: Pinned, sheets: Mapping[str, Sheet], given: Given) -> tuple[Stage, ...]:
    """Empty where a node is unknown or has no fabric address."""
    spec = exact.spec
    places = {one.service: sites(one, sheets) for one in together.wanted(spec, given)}
    if any(not isinstance(place, Site) for found in places.values() for place in found):
        return ()
    looks = tuple(
        step
        for node in spec.nodes
        for step in (
            _preflight(story, exact, sheets[node], given, _place(places, node)),
            *(_peers(places, node) if story == "relaunch" else ()),
        )
    )
    made = [Stage("Preflight", "preflight", (*_left_alone(spec, given), *looks))]
    cleared = tuple(step for node in spec.nodes for step in _ground(story, spec, node, sheets[node], given))
    if cleared:
        made.append(Stage("Clear", "clearing", cleared))
    for number, one in enumerate(together.wanted(spec, given)):
        ready = tuple(place for place in places[one.service] if isinstance(place, Site))
        before = _room_again(one, sheets) if number else ()
        made += together.as_part(spec, one, (*before, *table.stages(one, ready, given)))
    return tuple(made)


def _settings(spec: Spec, sheets: Mapping[str, Sheet]) -> tuple[Setting, ...]:
    """Of all services; those of further ones behind their names."""
    made: list[Setting] = []
    for one in spec.each:
        ready = tuple(place for place in sites(one, sheets) if isinstance(place, Site))
        found = table.settings(one, ready) if ready else ()
        made += [replace(each, name=f"{one.label}: {each.name}") if one.service else each for each in found]
    return tuple(made)


def _room_again(spec: Spec, sheets: Mapping[str, Sheet]) -> tuple[Stage, ...]:
    """The service before has read its weights through the page cache, which the next one's engine would take for taken."""
    dropped = tuple(step for node in spec.nodes for step in ground.page_cache(node, sheets[node]))
    return (Stage("Clear", "clearing", dropped),) if dropped else ()


def _left_alone(spec: Spec, given: Given) -> Iterator[Step]:
    for one in together.kept(spec, given):
        yield steps.note(
            together.key_of(f"preflight.kept.{one.nodes[0]}", one.service),
            one.nodes[0],
            f"Leave {one.label} as it is",
            why=f"revision {given.revision} of it serves on {', '.join(one.nodes)}",
        )


def standing(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> tuple[str, ...]:
    """Services that need no launch: the watch says that they serve, every rank of this very revision runs and the API's port is
    open. A service is left out when something of it is missing or when nobody can tell; and a deployment that isn't all of it
    healthy must have said so service by service."""
    names = [one.service for one in spec.each] if given.healthy else list(given.serving) if spec.services else []
    return tuple(one.service for one in spec.each if one.service in names and _stands(one, sheets, given))


def _stands(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> bool:
    if spec.runtime != "docker" or not given.deployment:
        return False
    for rank, node in enumerate(spec.nodes):
        found = container_of(sheets.get(node), container_name(spec, rank))
        ours = found and is_ours(found, given.deployment) and found.state == "running"
        if not found or not ours or found.labels.get("sparkweb.revision") != str(given.revision):
            return False
    head = sheets[spec.nodes[0]]
    return any(listener.port == spec.port for listener in head.listeners or ())


def serving_already(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Problem | None:
    """Why there is nothing to launch: every service stands. None when one does not."""
    if together.wanted(spec, given):
        return None
    ports = [str(one.port) for one in spec.each]
    return Problem(
        "already_serving",
        "stop",
        "It serves already",
        spec.nodes[0],
        f"Revision {given.revision} runs on {', '.join(spec.nodes)} and listens on port{'s' if len(ports) > 1 else ''} "
        f"{', '.join(ports)}, so there is nothing to start.",
        "Stop it first to start it anew.",
    )


def _place(places: Mapping[str, Sequence[Site | Problem]], node: str) -> Site | None:
    """Where the first service that is started there stands, if any is; one with a fabric before one without."""
    here = [place for found in places.values() for place in found if isinstance(place, Site) and place.node == node]
    return next((place for place in here if place.fabric), here[0] if here else None)


def _peers(places: Mapping[str, Sequence[Site | Problem]], node: str) -> Iterator[Step]:
    """The head waits for every other node over the fabric, and every other node for the head."""
    for found in places.values():
        ready = [place for place in found if isinstance(place, Site) and place.fabric]
        mine = next((place for place in ready if place.node == node), None)
        if mine is None or len(ready) < 2:
            continue
        others = ready[1:] if mine is ready[0] else ready[:1]
        for other in others:
            if mine.fabric and other.fabric:
                yield steps.peer_answers(node, other.node, mine.fabric.interface, other.fabric.address)
        return


def _waits_for(place: Site | None) -> dict[str, Any]:
    """What may not be there yet after a boot, and is waited for."""
    if place is None:
        return {"waits": True}
    fabric = {"address": place.fabric.address, "interface": place.fabric.interface} if place.fabric else {}
    return {"waits": True, "gpus": place.gpus if place.has_gpu else 0, "fabric": fabric}


def _preflight(story: str, exact: Pinned, sheet: Sheet, given: Given, place: Site | None) -> Step:
    """A fresh look at one node, compared with what this plan takes for true. A relaunch mostly follows a boot: it waits for what
    comes up late."""
    spec, waits = exact.spec, story == "relaunch"
    mine = known(sheet, given.clear)
    pids = [int(one.name) for one in mine if one.kind == "process"]
    here = together.on(spec, sheet.node)
    docker = [one for one in here if one.runtime == "docker"]
    gate: dict[str, Any] = preflight.gate(
        sheet,
        docker=bool(docker),
        **_files(here[0], sheet, exact.said),
        further=[files for one in here[1:] if (files := _files(one, sheet, exact.said))],
        containers=[container_name(one, rank) for one in docker for rank in range(len(one.nodes))],
        deployment=given.deployment,
        cleared=[one.name for one in mine if one.kind == "container"],
        seen=sorted(one.name for one in sheet.containers or () if one.state == "running"),
        processes=[{"pid": pid, "names": list(preflight.names_of(sheet, pid))} for pid in pids],
        memory_bytes=_memory_to_find(story, spec, sheet, given),
        ports=_ports_to_watch(story, spec, sheet, given),
        disk_bytes=DISK_FLOOR_BYTES,
        **(_waits_for(place) if waits else {}),
    )
    return Step(
        key=f"preflight.probe.{sheet.node}",
        node=sheet.node,
        title=f"Look at {sheet.node} again",
        kind="probe",
        gate=gate,
        every_s=WAITS_EVERY_S if waits else 1.0,
        within_s=BOOT_WITHIN_S if waits else 60.0,
        why="refuses if the node is not as this plan takes it to be"
        + (
            f"; waits up to {BOOT_WITHIN_S / 60:g} min for Docker, the GPU and the fabric of a node that has just booted"
            if waits
            else ""
        ),
    )


def _files(spec: Spec, sheet: Sheet, said: Mapping[str, str]) -> dict[str, Any]:
    """The image and the model of one service, as the sheet shows them; empty values left out."""
    image = preflight.find_image(sheet, spec.image) if spec.runtime == "docker" else None
    model = preflight.find_model(sheet, spec.model_path) if spec.model_path else None
    found = {
        "image": spec.image if spec.runtime == "docker" else "",
        "image_id": image.id if image else None,
        "image_said": said.get(spec.image),  # the tag, where exactly the recorded image is taken
        "model_path": spec.model_path,
        "shards": (model.shards_expected or model.shards) if model else None,
        "weights_bytes": model.weights_bytes if model else None,
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _memory_to_find(story: str, spec: Spec, sheet: Sheet, given: Given) -> int | None:
    """Bytes that must be free already now: None where something is cleared first, which has a wait of its own, and for a
    GPU with memory of its own."""
    claimed = claim_bytes(spec, sheet)
    clears = (
        story == "relaunch"
        or known(sheet, given.clear)
        or any(is_ours(one, given.deployment) for one in sheet.containers or ())
    )
    return None if claimed is None or clears or discrete(sheet) else claimed - SLACK_BYTES


def _ports_to_watch(story: str, spec: Spec, sheet: Sheet, given: Given) -> list[int]:
    """Ports that must be free already now: those that nothing held when the plan was made. The others are what is
    cleared."""
    if story == "relaunch" or any(is_ours(one, given.deployment) for one in sheet.containers or ()):
        return []
    busy = {listener.port for listener in sheet.listeners or ()}
    return [port for port in needed_ports(spec, sheet.node) if port not in busy]


def _ground(story: str, spec: Spec, node: str, sheet: Sheet, given: Given) -> tuple[Step, ...]:
    """What is done to one node before anything is started there."""
    made: list[Step] = []
    starts = [one for one in together.wanted(spec, given) if node in one.nodes]
    for one in starts:
        if (story == "relaunch" and one.runtime == "process") or given.found:  # a found one's log is followed by a job
            made.append(
                steps.end(
                    together.key_of(f"clear.end.{node}", one.service),
                    node,
                    ends=steps.serve_key(node, one.service),
                    title="End what is left of the engine",
                    why="the engine is a detached job of an earlier run",
                )
            )
    leftovers = any(is_ours(one, given.deployment) for one in sheet.containers or ())
    docker = any(one.runtime == "docker" for one in starts)
    if docker and given.deployment and (story == "relaunch" or leftovers):
        stays = [
            container_name(one, one.nodes.index(node))
            for one in together.kept(spec, given)
            if one.runtime == "docker" and node in one.nodes
        ]
        made += ground.tear_down(node, given.deployment, kept=stays)
    made += ground.clearing(node, sheet, given.clear)
    ports = tuple(port for one in starts for port in needed_ports(one, node))
    if made and ports:
        made.append(steps.ports_free(f"clear.ports.{node}", node, ports))
    wanted = sum(claim_bytes(one, sheet) or 0 for one in starts)
    if made and wanted:
        made.append(steps.memory_free(f"clear.memory.{node}", node, wanted - SLACK_BYTES))
    return (*made, *ground.page_cache(node, sheet)) if starts else ()
