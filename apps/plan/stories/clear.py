"""Stop, with consent, what holds some nodes; nothing is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from apps.diagnosis.findings.holders import holders
from apps.facts.sheet import Sheet
from apps.plan import steps
from apps.plan.checks.others import without_theirs
from apps.plan.fit import GIB
from apps.plan.found import ports_of
from apps.plan.spec import Given
from apps.plan.step import Plan, Stage, Step
from apps.plan.stories import ground

EPHEMERAL = 32768  # from here on the kernel gives ports to whoever asks for any
BACK = 0.8  # the rest may be taken by others meanwhile


def clear(nodes: Sequence[str], sheets: Mapping[str, Sheet], *, given: Given) -> Plan:
    """Exactly what `given.clear` names on these nodes, but nothing of another deployment; a node without anything to clear says so."""
    given = without_theirs(sheets, given)
    made: list[Step] = []
    for node in nodes:
        found = list(ground.clearing(node, sheets.get(node), given.clear))
        if found:
            made += [
                *found,
                *_ports(node, sheets.get(node), given),
                *_memory(node, sheets.get(node), given),
                *ground.page_cache(node, sheets.get(node)),
            ]
        else:
            made.append(
                steps.note(
                    f"clear.nothing.{node}", node, "Nothing to clear", why="nothing on this node was consented to"
                )
            )
    return Plan("clear", given.deployment, given.revision, tuple(nodes), (Stage("Clear", "clearing", tuple(made)),))


def _ports(node: str, sheet: Sheet | None, given: Given) -> Iterator[Step]:
    """Nothing listens any more where the cleared things did."""
    mine = [one for one in given.clear if one.node == node and one.kind in ("unit", "container")]
    ports = sorted({port for one in mine for port in ports_of(sheet, one.kind, one.name) if port < EPHEMERAL})
    if ports:
        yield steps.ports_free(f"clear.ports.{node}", node, ports)


def _memory(node: str, sheet: Sheet | None, given: Given) -> Iterator[Step]:
    """Most of what the cleared things held must be free; in whole GiB, so that the plan stays the same for a while."""
    names = {one.name for one in given.clear if one.node == node}
    held = sum(one.bytes for one in holders(sheet, 0) if one.name in names) if sheet else 0
    wanted = int(held * BACK) // GIB * GIB
    if wanted:
        yield steps.memory_free(f"clear.memory.{node}", node, wanted)
