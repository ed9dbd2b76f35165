"""Put back what earlier runs cleared or set up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from apps.facts.sheet import Sheet
from apps.plan import steps
from apps.plan.checks.restoring import Way, way_back
from apps.plan.commands import docker, systemd
from apps.plan.found import is_root
from apps.plan.provision import offers
from apps.plan.provision.wish import Wish
from apps.plan.spec import Given
from apps.plan.step import Plan, Stage, Step
from apps.shell import Command, Shell, script


def restore(
    undo: Sequence[Mapping[str, Any]],
    nodes: Sequence[str],
    sheets: Mapping[str, Sheet] | None = None,
    *,
    given: Given = Given(),  # noqa: B008  # frozen
) -> Plan:
    """`undo`: the undo values of the steps that were begun (see Step.undo; a flat {"node", "unit", …} is taken too). Those of
    clearing steps oldest first: for a thing that was cleared several times the oldest state counts. Those of provision steps,
    with the `code` of their run, newest first: they are undone in that order. `sheets` decide whether sudo is needed, what
    stands already and what has changed since; `given.others` who is on the nodes now."""
    set_up = [one for one in undo if "provision" in one]
    cleared = [one for one in undo if "provision" not in one]
    ways = {node: _way(cleared, node, (sheets or {}).get(node), given) for node in nodes}
    put = [step for node, way in ways.items() for step in _put_back(node, way, is_root((sheets or {}).get(node)))]
    proofs = [step for node, way in ways.items() for step in _proofs(node, way)]
    stages = [
        Stage("Restore", "clearing", tuple(put) if cleared or not set_up else ()),
        Stage("Prove", "verifying", tuple(proofs)),
        Stage("Put back", "restoring", tuple(_set_up(set_up, nodes, sheets or {}))),
        Stage(
            "Look again",
            "verifying",
            tuple(offers.look(node) for node in nodes if set_up and not _locked(set_up, node)),
        ),
    ]
    problems = tuple(problem for way in ways.values() for problem in way.problems)
    return Plan("restore", 0, 0, tuple(nodes), tuple(stage for stage in stages if stage.steps), problems=problems)


def _way(undo: Sequence[Mapping[str, Any]], node: str, sheet: Sheet | None, given: Given) -> Way:
    units: dict[str, Mapping[str, Any]] = {}
    containers: dict[str, Mapping[str, Any]] = {}
    for one in (one for one in undo if one.get("node") == node):
        for unit in (*one.get("units", ()), *((one,) if "unit" in one else ())):
            units.setdefault(str(unit["unit"]), unit)
        for container in one.get("containers", ()):
            containers.setdefault(str(container["name"]), container)
    return way_back(node, list(units.values()), list(containers.values()), sheet, given)


def _put_back(name: str, way: Way, root: bool) -> Iterator[Step]:
    """Units are enabled, kept containers started, units started: each makes its containers anew."""
    enable, start = ([str(one["unit"]) for one in which] for which in (way.enable, way.start))
    if enable:
        yield _step(
            f"restore.enable.{name}", name, f"Enable {', '.join(enable)}", systemd.enable(enable, root=root),
            why="they were enabled before", puts=[f"unit {one}" for one in enable],
        )  # fmt: skip
    for one in way.containers:
        commands: list[Command | Shell] = list(docker.bring_back(str(one["name"]), one.get("restart_policy")))
        yield _step(
            f"restore.container-{one['name']}.{name}", name, f"Start {one['name']}", script(*commands),
            shown=[command.text for command in commands], why="it was stopped and kept", puts=[f"container {one['name']}"],
        )  # fmt: skip
    if start:
        yield _step(
            f"restore.start.{name}", name, f"Start {', '.join(start)}", systemd.start(start, root=root),
            why="they ran before; each makes its containers anew", puts=[*(f"unit {one}" for one in start), *way.anew], within_s=300.0,
        )  # fmt: skip
    if (enable or way.containers or start) and way.stands:
        note = steps.note(
            f"restore.stands.{name}", name, f"Leave {', '.join(way.stands)}", why="as it was before already"
        )
        yield replace(note, gate={"puts_back": list(way.stands)})
    elif not (enable or way.containers or start):
        yield steps.note(
            f"restore.nothing.{name}", name, "Nothing to put back",
            why="what is missing here can't be put back" if way.problems else "nothing that ran here before is stopped",
        )  # fmt: skip


def _step(key: str, name: str, title: str, command: Command | Shell, *, puts: Sequence[str], **more: Any) -> Step:
    """`puts_back` in its gate: the things that are as they were once it has succeeded."""
    return replace(steps.job(key, name, title, command, **more), gate={"puts_back": list(puts)})


def _proofs(name: str, way: Way) -> Iterator[Step]:
    """That a command returned proves nothing: a unit may fail a second later."""
    units = [str(one["unit"]) for one in way.start if one.get("state", "active") in ("active", None)]
    if units:
        yield steps.units_active(f"restore.active.{name}", name, units)
    for one in way.containers:
        yield steps.container_running(f"restore.running-{one['name']}.{name}", name, str(one["name"]))


def _set_up(undo: Sequence[Mapping[str, Any]], nodes: Sequence[str], sheets: Mapping[str, Sheet]) -> list[Step]:
    """Our public key goes last: after it nobody gets in any more."""
    mine = sorted(undo, key=lambda one: (one["provision"] == "key", nodes.index(one["node"])))
    return [offers.back(one, sheets.get(one["node"]), Wish(nodes=tuple(nodes))) for one in mine]


def _locked(undo: Sequence[Mapping[str, Any]], node: str) -> bool:
    return any(one["provision"] == "key" and one["node"] == node for one in undo)
