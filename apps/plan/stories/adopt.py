"""Watch what was found: look, follow its log, see that its API names its model. Nothing of it is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from apps.plan import steps, together
from apps.plan.commands import docker, systemd
from apps.plan.spec import Given, Spec
from apps.plan.step import Plan, Stage, Step

ANSWERS_WITHIN_S = 60.0


def adopt(spec: Spec, found: Sequence[Mapping[str, Any]], *, given: Given) -> Plan:
    """`found`: Deployment.found, one entry a service: node, kind, name, service, answers."""
    by_service = {str(one["service"]): one for one in found}
    head = spec.nodes[0]
    look = Step(
        key=f"preflight.probe.{head}",
        node=head,
        title=f"Look at {head} again",
        kind="probe",
        gate={"name": "sheet"},
        within_s=60.0,
        why="changes nothing",
    )
    stages = [Stage("Look", "preflight", (look,))]
    for one in spec.each:
        thing = by_service[one.service]
        follow = Stage("Follow", "cluster", (_follow(one, thing),))
        ready = Stage("Serve", "loading", (_ready(one, thing),))
        stages += together.as_part(spec, one, (follow, ready))
    return Plan("adopt", given.deployment, given.revision, spec.nodes, tuple(stages), spec=spec.to_json())


def _follow(spec: Spec, thing: Mapping[str, Any]) -> Step:
    name, node = str(thing["name"]), str(thing["node"])
    shell, shown = (
        (docker.follow_found(name), docker.logs(name).text)
        if thing["kind"] == "container"
        else (systemd.follow(name), systemd.journal(name).text)
    )
    return steps.serve(node, shell, shown=(shown,), secrets=(), rank=0, title=f"Follow the log of {name}", follows="")


def _ready(spec: Spec, thing: Mapping[str, Any]) -> Step:
    """Its API is asked where it is known by which name it answers and no key is wanted."""
    if not thing.get("answers"):
        return steps.note(
            f"serve.ready.{thing['node']}",
            str(thing["node"]),
            "Its API",
            why="not asked: it wants a key, or its name is not known",
        )
    step = steps.ready(spec, str(thing["node"]))
    gate = {"locked": "fine"}  # a key may stand in its environment, which nobody reads
    return replace(
        step, gate=gate, within_s=ANSWERS_WITHIN_S, why=f"proof that it is there: {step.url} names {step.model}"
    )
