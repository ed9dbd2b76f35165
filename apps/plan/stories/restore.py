"""Put back what earlier runs cleared or set up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apps.facts.sheet import Sheet
from apps.plan.found import is_root
from apps.plan.provision import offers
from apps.plan.provision.wish import Wish
from apps.plan.step import Plan, Stage, Step
from apps.plan.stories import ground


def restore(undo: Sequence[Mapping[str, Any]], nodes: Sequence[str], sheets: Mapping[str, Sheet] | None = None) -> Plan:
    """`undo`: the undo values of the steps that were begun (see Step.undo; a flat {"node", "unit", …} is taken too). Those of
    clearing steps oldest first: for a thing that was cleared several times the oldest state counts. Those of provision steps,
    with the `code` of their run, newest first: they are undone in that order. `sheets` decide whether sudo is needed."""
    set_up = [one for one in undo if "provision" in one]
    cleared = [one for one in undo if "provision" not in one]
    stages = [
        Stage("Restore", "clearing", tuple(_cleared(cleared, nodes, sheets or {})) if cleared or not set_up else ()),
        Stage("Put back", "restoring", tuple(_set_up(set_up, nodes, sheets or {}))),
        Stage(
            "Look again",
            "verifying",
            tuple(offers.look(node) for node in nodes if set_up and not _locked(set_up, node)),
        ),
    ]
    return Plan("restore", 0, 0, tuple(nodes), tuple(stage for stage in stages if stage.steps))


def _cleared(undo: Sequence[Mapping[str, Any]], nodes: Sequence[str], sheets: Mapping[str, Sheet]) -> list[Step]:
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
        made += ground.put_back(node, list(units.values()), list(containers.values()), root=is_root(sheets.get(node)))
    return made


def _set_up(undo: Sequence[Mapping[str, Any]], nodes: Sequence[str], sheets: Mapping[str, Sheet]) -> list[Step]:
    """Our public key goes last: after it nobody gets in any more."""
    mine = sorted(undo, key=lambda one: (one["provision"] == "key", nodes.index(one["node"])))
    return [offers.back(one, sheets.get(one["node"]), Wish(nodes=tuple(nodes))) for one in mine]


def _locked(undo: Sequence[Mapping[str, Any]], node: str) -> bool:
    return any(one["provision"] == "key" and one["node"] == node for one in undo)
