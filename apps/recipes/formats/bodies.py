"""A version's body: Spec fields without name and nodes, those of further services below `services`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from apps.plan.spec import FieldError, Spec, validate

ELSEWHERE = ("name", "nodes", "on_rank_lost")  # of the deployment, not of its recipe
FIELDS = tuple(one.name for one in fields(Spec) if one.name not in ELSEWHERE)
DEFAULTS: dict[str, Any] = {
    one.name: [] if isinstance(one.default, tuple) else one.default
    for one in fields(Spec)
    if one.default is not MISSING
}
MOST_NODES = 64


def spec_of(body: Mapping[str, Any], world_size: int) -> Spec:
    """The body on nodes that nobody has, to be judged by itself. Raises TypeError/ValueError."""
    nodes = [f"node-{number}" for number in range(max(1, min(world_size, MOST_NODES)))]
    return Spec.from_json({**_filled(body), "name": "recipe", "nodes": nodes})


def _filled(body: Mapping[str, Any]) -> dict[str, Any]:
    """With the two fields that a Spec has no defaults for."""
    made = {"model": "", "model_path": "", **body}
    if made.get("services"):
        made["services"] = [_filled(one) for one in made["services"]]
    return made


def errors(body: Mapping[str, Any], world_size: int) -> list[FieldError]:
    """What is wrong with a body, in the words of a deployment's own checks."""
    try:
        found = validate(spec_of(body, world_size))
    except (TypeError, ValueError, AttributeError, KeyError) as problem:
        return [FieldError("spec", f"it can't be read: {problem}", "Use the fields that docs/recipes.md lists.")]
    return [one for one in found if one.field.rpartition(".")[2] not in ELSEWHERE or one.field == "nodes"]


def normal(body: Mapping[str, Any]) -> dict[str, Any]:
    """Every field with its value, so that two bodies which mean the same are equal. Raises TypeError/ValueError."""
    return _bare(Spec.from_json({**_filled(body), "name": "recipe", "nodes": []}).to_json())


def _bare(body: dict[str, Any]) -> dict[str, Any]:
    made = {name: value for name, value in body.items() if name not in ELSEWHERE}
    made["services"] = [_bare(one) for one in body.get("services", ())]
    return made


def compact(body: Mapping[str, Any], also: Collection[str] = ()) -> dict[str, Any]:
    """Only what differs from a Spec's defaults, in the order of its fields; the model always, and the fields of `also`."""
    made: dict[str, Any] = {}
    for name in FIELDS:
        if name not in body and name not in also:
            continue
        value = body.get(name, DEFAULTS.get(name, ""))
        if name == "services":
            value = [compact(one) for one in value]
        if value != DEFAULTS.get(name, "") or name == "model" or name in also:
            made[name] = value
    return made


def stored(body: Mapping[str, Any]) -> dict[str, Any]:
    """As a version keeps it: every field with its value, so that it stays the same when a Spec's defaults change. What can't be
    read is kept as it stands."""
    try:
        return normal(body)
    except (TypeError, ValueError, AttributeError, KeyError):
        return _filled(body)
