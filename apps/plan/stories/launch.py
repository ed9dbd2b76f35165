"""Preflight, clear, cluster, serve, verify: from nothing to an API that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apps.diagnosis.findings.holders import discrete, is_ours
from apps.facts.sheet import Sheet
from apps.plan import preflight, steps
from apps.plan.checks.others import without_theirs
from apps.plan.engines import table
from apps.plan.engines.site import Site, container_name, sites
from apps.plan.fit import SLACK_BYTES, claim_bytes, fit
from apps.plan.found import container_of, known
from apps.plan.problems import needed_ports, problems
from apps.plan.spec import Given, Spec, validate
from apps.plan.step import Plan, Problem, Setting, Stage, Step
from apps.plan.stories import ground

DISK_FLOOR_BYTES = 2 << 30  # logs and the engine's compile cache


def launch(spec: Spec, sheets: Mapping[str, Sheet], *, given: Given = Given()) -> Plan:  # noqa: B008  # frozen
    """The plan of a launch. What stands in the way is in `problems`; while any of them is a stop or an unanswered
    consent, the plan must not run. Where a node is unknown or a field is nonsense there is nothing to plan, and
    `stages` is empty."""
    return start("launch", spec, sheets, given)


def start(story: str, spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Plan:
    """A launch or a relaunch; they differ in what is torn down first."""
    places = sites(spec, sheets)
    stages: tuple[Stage, ...] = ()
    settings: tuple[Setting, ...] = ()
    serves = serving_already(spec, sheets, given)
    found = (serves,) if serves else problems(spec, sheets, given)
    given = without_theirs(sheets, given)
    if not serves and not validate(spec) and places and all(isinstance(place, Site) for place in places):
        ready = tuple(place for place in places if isinstance(place, Site))
        stages = _stages(story, spec, sheets, given, ready)
        settings = table.settings(spec, ready)
    return Plan(
        story=story,
        deployment=given.deployment,
        revision=given.revision,
        nodes=spec.nodes,
        stages=stages,
        fit=None if validate(spec) else fit(spec, sheets, given),
        problems=found,
        spec=spec.to_json(),
        settings=settings,
    )


def _stages(
    story: str, spec: Spec, sheets: Mapping[str, Sheet], given: Given, places: Sequence[Site]
) -> tuple[Stage, ...]:
    made = [Stage("Preflight", "preflight", tuple(_preflight(story, spec, sheets[node], given) for node in spec.nodes))]
    cleared = tuple(step for node in spec.nodes for step in _ground(story, spec, node, sheets[node], given))
    if cleared:
        made.append(Stage("Clear", "clearing", cleared))
    return (*made, *table.stages(spec, places, given))


def serving_already(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Problem | None:
    """Why there is nothing to launch: the watch calls it healthy, every rank of this very revision runs and the API's
    port is open. None when something is missing or when nobody can tell."""
    if not given.healthy or spec.runtime != "docker" or not given.deployment:
        return None
    for rank, node in enumerate(spec.nodes):
        found = container_of(sheets.get(node), container_name(spec, rank))
        ours = found and is_ours(found, given.deployment) and found.state == "running"
        if not found or not ours or found.labels.get("sparkweb.revision") != str(given.revision):
            return None
    head = sheets[spec.nodes[0]]
    if not any(listener.port == spec.port for listener in head.listeners or ()):
        return None
    return Problem(
        "already_serving",
        "stop",
        "It serves already",
        spec.nodes[0],
        f"Revision {given.revision} runs on {', '.join(spec.nodes)} and listens on port {spec.port}, so there is nothing to start.",
        "Stop it first to start it anew.",
    )


def _preflight(story: str, spec: Spec, sheet: Sheet, given: Given) -> Step:
    """A fresh look at one node, compared with what this plan takes for true."""
    image = preflight.find_image(sheet, spec.image) if spec.runtime == "docker" else None
    model = preflight.find_model(sheet, spec.model_path) if spec.model_path else None
    mine = known(sheet, given.clear)
    pids = [int(one.name) for one in mine if one.kind == "process"]
    gate: dict[str, Any] = preflight.gate(
        sheet,
        docker=spec.runtime == "docker",
        image=spec.image if spec.runtime == "docker" else "",
        image_id=image.id if image else None,
        model_path=spec.model_path,
        shards=(model.shards_expected or model.shards) if model else None,
        weights_bytes=model.weights_bytes if model else None,
        containers=[container_name(spec, rank) for rank in range(len(spec.nodes))] if spec.runtime == "docker" else [],
        deployment=given.deployment,
        cleared=[one.name for one in mine if one.kind == "container"],
        seen=sorted(one.name for one in sheet.containers or () if one.state == "running"),
        processes=[{"pid": pid, "names": list(preflight.names_of(sheet, pid))} for pid in pids],
        memory_bytes=_memory_to_find(story, spec, sheet, given),
        ports=_ports_to_watch(story, spec, sheet, given),
        disk_bytes=DISK_FLOOR_BYTES,
    )
    return Step(
        key=f"preflight.probe.{sheet.node}",
        node=sheet.node,
        title=f"Look at {sheet.node} again",
        kind="probe",
        gate=gate,
        within_s=60.0,
        why="refuses if the node is not as this plan takes it to be",
    )


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
    if story == "relaunch" and spec.runtime == "process":
        made.append(
            steps.end(
                f"clear.end.{node}",
                node,
                ends=steps.serve_key(node),
                title="End what is left of the engine",
                why="the engine is a detached job of an earlier run",
            )
        )
    leftovers = any(is_ours(one, given.deployment) for one in sheet.containers or ())
    if spec.runtime == "docker" and given.deployment and (story == "relaunch" or leftovers):
        made += ground.tear_down(node, given.deployment)
    consented = list(ground.clearing(node, sheet, given.clear))
    made += consented
    ports = needed_ports(spec, node)
    if made and ports:
        made.append(steps.ports_free(f"clear.ports.{node}", node, ports))
    wanted = claim_bytes(spec, sheet)
    if made and wanted:
        made.append(steps.memory_free(f"clear.memory.{node}", node, wanted - SLACK_BYTES))
    return (*made, *ground.page_cache(node, sheet))
