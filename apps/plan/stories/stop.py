"""Stop a deployment on all of its nodes: gracefully, then by force, then wait until the memory is back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from apps.diagnosis.findings.holders import NOTABLE_BYTES, holders
from apps.facts.sheet import Sheet
from apps.plan import steps, together
from apps.plan.engines.site import container_name
from apps.plan.fit import claim_bytes
from apps.plan.problems import needed_ports
from apps.plan.spec import Given, Spec
from apps.plan.step import Plan, Stage, Step
from apps.plan.stories import ground

BACK = 0.5  # of what the engine claimed: others may use the rest, and this must not wait for them


def stop(spec: Spec, sheets: Mapping[str, Sheet], *, given: Given) -> Plan:
    """Needs no sheet: what is ours is found on the node by its label. Containers go before the engine's job is ended,
    so that the log's last byte is still written. Several services are stopped one after the other, the last started first;
    `given.only`: these alone."""
    if given.adopted:
        return _let_go(spec, given)
    cleared = tuple(
        step
        for node in spec.nodes
        for step in ground.clearing(node, sheets.get(node), [one for one in given.found if one.node == node])
    )
    before = (Stage("Clear", "clearing", cleared),) if cleared else ()
    stages = before + tuple(
        Stage(
            f"Stop {one.label}" if spec.services else "Stop",
            "stopping",
            tuple(step for node in one.nodes for step in _node(spec, one, node, sheets.get(node), given)),
        )
        for one in reversed(spec.each)
        if given.only is None or one.service in given.only
    )
    kept = () if given.only is None else tuple(one.service for one in spec.each if one.service not in given.only)
    return Plan("stop", given.deployment, given.revision, spec.nodes, stages, spec=spec.to_json(), kept=kept)


def _let_go(spec: Spec, given: Given) -> Plan:
    """Of what was adopted only the following of its logs ends; it runs on."""
    ends = tuple(
        replace(
            steps.end(
                together.key_of(f"stop.end.{node}", one.service),
                node,
                ends=steps.serve_key(node, one.service),
                title=f"Follow the log of {one.label} no longer" if spec.services else "Follow its log no longer",
                why="what was found runs on as it is",
            ),
            service=one.service,
        )
        for one in spec.each
        for node in one.nodes[:1]
    )
    stages = (Stage("Let go", "stopping", ends),)
    return Plan("stop", given.deployment, given.revision, spec.nodes, stages, spec=spec.to_json())


def _node(spec: Spec, one: Spec, node: str, sheet: Sheet | None, given: Given) -> list[Step]:
    """Of several services the main one goes last, with whatever else of this deployment is there."""
    made: list[Step] = []
    service = one.service
    if one.runtime == "docker":
        others = [
            container_name(other, other.nodes.index(node))
            for other in spec.services
            if not service and given.only is not None and other.runtime == "docker" and node in other.nodes
        ]
        made += [_renamed(step) for step in ground.tear_down(node, given.deployment, service=service, kept=others)]
    if one.runtime == "process" or one.cluster == "native" or node == one.nodes[0]:
        made.append(
            steps.end(
                f"stop.end.{node}",
                node,
                ends=steps.serve_key(node, service),
                title="End the engine's job",
                why="the job that served or followed the engine; gone already is fine",
            )
        )
    ports = needed_ports(one, node)
    if ports:
        made.append(steps.ports_free(f"stop.ports.{node}", node, ports))
    made.append(_memory(one, node, sheet, given))
    return [replace(step, key=together.key_of(step.key, service), service=service) for step in made]


def _memory(spec: Spec, node: str, sheet: Sheet | None, given: Given) -> Step:
    """Half of the claim must be free again; others on the node may use the rest."""
    key = f"stop.memory.{node}"
    wanted = int((claim_bytes(spec, sheet) or 0) * BACK) if sheet else 0
    others = (
        [one.name for one in holders(sheet, given.deployment) if not one.own and one.bytes >= NOTABLE_BYTES]
        if sheet
        else []
    )
    if others:
        return steps.note(key, node, "Memory", why=f"not waited for: {', '.join(others)} also hold memory here")
    if not wanted:
        return steps.note(key, node, "Memory", why="not waited for: how much the engine took is unknown")
    return steps.memory_free(key, node, wanted)


def _renamed(step: Step) -> Step:
    """The tearing down of a relaunch, as a stop calls it."""
    title = "Stop and remove this deployment's containers" if step.kind == "job" else step.title
    why = "gracefully within 30 s, then by force" if step.kind == "job" else step.why
    return replace(step, key=step.key.replace("clear.own", "stop.containers", 1), title=title, why=why)
