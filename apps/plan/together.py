"""Several services of one deployment: how their ranks are numbered, whose a step is, and which of them stand already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from apps.plan import options
from apps.plan.spec import Given, Spec
from apps.plan.step import Stage, Step


def bases(spec: Spec) -> dict[str, int]:
    """Service -> number of its first rank. Ranks are numbered through the whole deployment, so that a number says whose a line
    of a log is; each service takes as many numbers as its engine may name in its own."""
    made, number = {}, 0
    for one in spec.each:
        made[one.service] = number
        number += max(len(one.nodes), options.ranks(one))
    return made


def on(spec: Spec, node: str) -> tuple[Spec, ...]:
    """The services that have a rank on this node, in the order in which they are started."""
    return tuple(one for one in spec.each if node in one.nodes)


def wanted(spec: Spec, given: Given) -> tuple[Spec, ...]:
    """The services that a launch starts: all but those that stand already."""
    return tuple(one for one in spec.each if one.service not in given.standing)


def kept(spec: Spec, given: Given) -> tuple[Spec, ...]:
    return tuple(one for one in spec.each if one.service in given.standing)


def as_part(spec: Spec, one: Spec, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages that start one service by itself, as a part of the whole: keys, ranks and names say whose they are. Those of a
    deployment of one service stay as they are."""
    if not spec.services:
        return tuple(stages)
    base = bases(spec)[one.service]
    return tuple(
        Stage(f"{one.label}: {stage.name}", stage.phase, tuple(_part(one, step, base) for step in stage.steps))
        for stage in stages
    )


def _part(one: Spec, step: Step, base: int) -> Step:
    return replace(
        step,
        key=key_of(step.key, one.service),
        rank=None if step.rank is None else step.rank + base,
        service=one.service,
    )


def key_of(key: str, service: str) -> str:
    """`serve.engine.spark-1` of the service embeddings is `serve.embeddings.engine.spark-1`."""
    first, _, rest = key.partition(".")
    return f"{first}.{service}.{rest}" if service else key


def services_of(plan: Mapping[str, Any]) -> dict[str, str]:
    """Of a plan as JSON: key of a step -> the service whose step it is; the main one's and nobody's are left out."""
    steps = (step for stage in plan.get("stages", ()) for step in stage["steps"])
    return {step["key"]: step["service"] for step in steps if step.get("service")}
