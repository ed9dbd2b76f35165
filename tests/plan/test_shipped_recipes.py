"""The recipes that come with sparkweb say nothing that a deployment would be refused for by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import apps.recipes
from apps.plan.spec import ENGINES, Spec, validate

SHIPPED = sorted((Path(apps.recipes.__file__).parent / "shipped").glob("*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_a_valid_spec(path: Path) -> None:
    whole: dict[str, Any] = json.loads(path.read_text())
    assert set(whole) == {"name", "description", "world_size", "tested_on", "spec"}
    nodes = [f"spark-{number}" for number in range(whole["world_size"])]
    spec = Spec.from_json({**whole["spec"], "name": "a", "nodes": nodes})
    unknown = {one.engine for one in spec.each} - set(ENGINES)
    if unknown:
        pytest.skip(f"this build does not know {', '.join(unknown)}")
    assert [(error.field, error.message) for error in validate(spec)] == []


def test_every_system_is_there() -> None:
    kinds = set()
    for path in SHIPPED:
        spec = json.loads(path.read_text())["spec"]
        kinds.add((spec["engine"], spec["runtime"], spec["cluster"], len(spec.get("services", ()))))
    assert {
        ("vllm", "docker", "ray", 0), ("vllm", "docker", "native", 0), ("sglang", "docker", "native", 0),
        ("vllm", "docker", "single", 2), ("sglang", "process", "single", 0), ("command", "process", "single", 0),
    } <= kinds  # fmt: skip
