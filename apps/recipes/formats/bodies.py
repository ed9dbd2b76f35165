"""A version's body: Spec fields without name and nodes, those of further services below `services`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from apps.plan.spec import MOST_NODES, FieldError, Spec, validate

ELSEWHERE = ("name", "nodes", "on_rank_lost")  # of the deployment, not of its recipe
FIELDS = tuple(one.name for one in fields(Spec) if one.name not in ELSEWHERE)
DEFAULTS: dict[str, Any] = {
    one.name: [] if isinstance(one.default, tuple) else one.default
    for one in fields(Spec)
    if one.default is not MISSING
}


def spec_of(body: Mapping[str, Any], world_size: int) -> Spec:
    """The body on nodes that nobody has, to be judged by itself. Raises TypeError/ValueError."""
    nodes = [f"node-{number}" for number in range(max(1, min(world_size, MOST_NODES)))]
    made = _filled(body)
    if not made.get("cluster"):  # a deployment would choose it so
        ray = made.get("engine", "vllm") == "vllm" and made.get("runtime", "docker") == "docker"
        made["cluster"] = "single" if len(nodes) < 2 else "ray" if ray else "native"
    return Spec.from_json({**made, "name": "recipe", "nodes": nodes})


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


def given(body: Mapping[str, Any], also: Collection[str] = ()) -> dict[str, Any]:
    """What a body says, in the order of a Spec's fields: what is empty or not a field of it is left out, so that a deployment may
    fill it in (the next free port, all GPUs of its nodes). `also`: fields that are written in any case."""
    made: dict[str, Any] = {}
    for name in FIELDS:
        value = body.get(name)
        if name == "services" and value:
            made[name] = [given(one) for one in value]
        elif value not in (None, "", [], ()) or name == "model":
            made[name] = "" if value is None else value
        elif name in also:
            made[name] = DEFAULTS.get(name, "")
    return made


def stored(body: Mapping[str, Any]) -> dict[str, Any]:
    """As a version keeps it: what is given, with the two fields that a Spec has no defaults for."""
    return _filled(given(body))
