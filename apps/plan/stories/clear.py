"""Stop, with consent, what holds some nodes; nothing is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apps.facts.sheet import Sheet
from apps.plan import steps
from apps.plan.spec import Given
from apps.plan.step import Plan, Stage, Step
from apps.plan.stories import ground


def clear(nodes: Sequence[str], sheets: Mapping[str, Sheet], *, given: Given) -> Plan:
    """Exactly what `given.clear` names on these nodes; a node without anything to clear says so."""
    made: list[Step] = []
    for node in nodes:
        found = list(ground.clearing(node, sheets.get(node), given.clear))
        if found:
            made += [*found, *ground.page_cache(node, sheets.get(node))]
        else:
            made.append(
                steps.note(
                    f"clear.nothing.{node}", node, "Nothing to clear", why="nothing on this node was consented to"
                )
            )
    return Plan("clear", given.deployment, given.revision, tuple(nodes), (Stage("Clear", "clearing", tuple(made)),))
