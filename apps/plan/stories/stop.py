"""Stop a deployment on all of its nodes: gracefully, then by force, then wait until the memory is back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from apps.diagnosis.findings.holders import NOTABLE_BYTES, holders
from apps.facts.sheet import Sheet
from apps.plan import steps
from apps.plan.fit import claim_bytes
from apps.plan.problems import needed_ports
from apps.plan.spec import Given, Spec
from apps.plan.step import Plan, Stage, Step
from apps.plan.stories import ground

BACK = 0.5  # of what the engine claimed: others may use the rest, and this must not wait for them


def stop(spec: Spec, sheets: Mapping[str, Sheet], *, given: Given) -> Plan:
    """Needs no sheet: what is ours is found on the node by its label. Containers go before the engine's job is ended,
    so that the log's last byte is still written."""
    made = tuple(step for node in spec.nodes for step in _node(spec, node, sheets.get(node), given))
    return Plan(
        "stop", given.deployment, given.revision, spec.nodes, (Stage("Stop", "stopping", made),), spec=spec.to_json()
    )


def _node(spec: Spec, node: str, sheet: Sheet | None, given: Given) -> list[Step]:
    made: list[Step] = []
    if spec.runtime == "docker":
        made += [_renamed(step) for step in ground.tear_down(node, given.deployment)]
    if spec.runtime == "process" or spec.cluster == "native" or node == spec.nodes[0]:
        made.append(
            steps.end(
                f"stop.end.{node}",
                node,
                ends=steps.serve_key(node),
                title="End the engine's job",
                why="the job that served or followed the engine; gone already is fine",
            )
        )
    ports = needed_ports(spec, node)
    if ports:
        made.append(steps.ports_free(f"stop.ports.{node}", node, ports))
    made.append(_memory(spec, node, sheet, given))
    return made


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
