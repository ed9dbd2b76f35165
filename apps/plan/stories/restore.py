"""Put back what earlier runs cleared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apps.facts.sheet import Sheet
from apps.plan.found import is_root
from apps.plan.step import Plan, Stage, Step
from apps.plan.stories import ground


def restore(undo: Sequence[Mapping[str, Any]], nodes: Sequence[str], sheets: Mapping[str, Sheet] | None = None) -> Plan:
    """`undo`: the undo values of the clearing steps that succeeded, oldest first (see Step.undo; a flat {"node",
    "unit", …} is taken too). For a thing that was cleared several times the oldest state counts. The phase is called
    `clearing`: it is the same ground. `sheets` only decide whether sudo is needed."""
    made: list[Step] = []
    for node in nodes:
        mine = [one for one in undo if one.get("node") == node]
        units: dict[str, dict[str, Any]] = {}
        containers: dict[str, dict[str, Any]] = {}
        for one in mine:
            for unit in (*one.get("units", ()), *((one,) if "unit" in one else ())):
                units.setdefault(str(unit["unit"]), dict(unit))
            for container in one.get("containers", ()):
                containers.setdefault(str(container["name"]), dict(container))
        root = is_root((sheets or {}).get(node))
        made += ground.put_back(node, list(units.values()), list(containers.values()), root=root)
    return Plan("restore", 0, 0, tuple(nodes), (Stage("Restore", "clearing", tuple(made)),) if made else ())
