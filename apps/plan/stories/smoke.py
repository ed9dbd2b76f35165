"""Prove a deployment that runs: each service is asked everything that people will ask of it. Nothing on a node is changed."""

from __future__ import annotations

from apps.plan import steps, together
from apps.plan.spec import Given, Spec
from apps.plan.step import Plan, Stage


def smoke(spec: Spec, *, given: Given) -> Plan:
    """`spec`: what runs. `given.only`: these services; None: all of them. A question that fails keeps no other from being asked."""
    wanted = [one for one in spec.each if given.only is None or one.service in given.only]
    stages = [
        stage
        for one in wanted
        for stage in together.as_part(spec, one, (Stage("Test", "verifying", steps.questions(one, one.nodes[0])),))
    ]
    asked = tuple(step for stage in stages for step in stage.steps)
    heads = tuple(dict.fromkeys(step.node for step in asked))
    stage = (Stage("Test", "verifying", asked),) if asked else ()
    return Plan("smoke", given.deployment, given.revision, heads, stage, spec=spec.to_json())
