"""What of the things that were cleared on a node can be put back, and what has changed there since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.facts.sheet import Sheet
from apps.facts.values import Container
from apps.plan.checks.others import ALIVE, DOES, of_container
from apps.plan.found import container_of, unit_of
from apps.plan.spec import Given
from apps.plan.step import Problem

RUNNING = ("active", "activating", "reloading")
Found = Mapping[str, Any]  # a unit or a container as a clearing step remembered it, see Step.undo


@dataclass(frozen=True)
class Way:
    """What is put back on one node, in order, and what is in the way of the rest. Things are named `unit NAME`, `container NAME`."""

    enable: tuple[Found, ...] = ()
    start: tuple[Found, ...] = ()
    containers: tuple[Found, ...] = ()
    anew: tuple[str, ...] = ()  # removed containers that come with a unit that is started
    stands: tuple[str, ...] = ()  # what is as it was already
    problems: tuple[Problem, ...] = field(default_factory=tuple)


def way_back(node: str, units: Sequence[Found], containers: Sequence[Found], sheet: Sheet | None, given: Given) -> Way:
    """Compare what was remembered with what is there now. What can't come back any more is left out and said; a deployment
    of ours on the node stops the whole. Without a sheet everything is tried."""
    problems: list[Problem] = []
    left_out: set[str] = set()
    for unit in units:
        found = [*_of_unit(node, unit, sheet), *_port(node, str(unit["unit"]), unit, sheet, _unit_runs(sheet, unit))]
        problems += found
        left_out.update(str(unit["unit"]) for _ in found)
    kept = [one for one in containers if not one.get("removed")]
    for one in kept:
        runs = _runs(container_of(sheet, str(one["name"])))
        found = [*_of_container(node, one, sheet), *_port(node, str(one["name"]), one, sheet, runs)]
        problems += found
        left_out.update(str(one["name"]) for _ in found)
    good = [one for one in units if str(one["unit"]) not in left_out]
    enable = tuple(one for one in good if one.get("was_enabled") and not _is_enabled(sheet, one))
    start = tuple(one for one in good if one.get("was_active") and not _unit_runs(sheet, one))
    back = tuple(
        one for one in kept if str(one["name"]) not in left_out and one.get("was_running") and not _stands(sheet, one)
    )
    removed = [one for one in containers if one.get("removed")]
    lost = list(_removed(node, removed, good, sheet))
    problems += [problem for _, problem in lost]
    if start or back or enable:
        problems = [*_ours(node, sheet, given), *problems]
    gone = {name for name, _ in lost}
    coming = [str(one["name"]) for one in removed if str(one["name"]) not in gone]
    moved = {id(one) for one in (*enable, *start, *back)}
    stands = [f"unit {one['unit']}" for one in good if id(one) not in moved]
    stands += [f"container {one['name']}" for one in kept if id(one) not in moved and str(one["name"]) not in left_out]
    stands += [] if start else [f"container {name}" for name in coming]
    anew = [f"container {name}" for name in coming] if start else []
    return Way(enable, start, back, tuple(anew), tuple(stands), tuple(problems))


def _of_unit(node: str, one: Found, sheet: Sheet | None) -> Iterator[Problem]:
    name = str(one["unit"])
    if sheet is None or sheet.units is None or not (one.get("was_active") or one.get("was_enabled")):
        return
    unit = unit_of(sheet, name)
    if unit is None or unit.load == "not-found":
        yield Problem(
            "unit_gone", "warn", f"{name} is no longer on {node}", node,
            "Its unit file was removed since it was stopped, so it is left out.",
            "Install it again by hand, probe the node, and come back.",
        )  # fmt: skip
    elif "masked" in (unit.enabled, unit.load):
        yield Problem(
            "unit_masked", "warn", f"{name} is masked on {node}", node,
            "It was masked when it was stopped, and a masked unit can't be started: it is left out."
            if one.get("was") == "masked"
            else "Somebody masked it since it was stopped, so it is left out.",
            f"If it shall run again: sudo systemctl unmask {name}, probe the node, and come back.",
        )  # fmt: skip


def _of_container(node: str, one: Found, sheet: Sheet | None) -> Iterator[Problem]:
    if sheet is None or sheet.containers is None or not one.get("was_running"):
        return
    name, there = str(one["name"]), container_of(sheet, str(one["name"]))
    if there is None:
        yield Problem(
            "container_gone", "warn", f"The container {name} is no longer on {node}", node,
            "It was stopped and kept, and somebody removed it since. No unit makes it anew, so it can't be put back.",
            "Whoever started it knows the command.",
            str(one.get("image") or ""),
        )  # fmt: skip
    elif not _same(one, there):
        yield Problem(
            "container_name_taken", "warn", f"{name} on {node} is another container now", node,
            "The one that was stopped was replaced since; the new one is left alone.",
            "Remove or rename it by hand if the old one is wanted.",
            f"{there.image or '?'} instead of {one.get('image') or '?'}",
        )  # fmt: skip


def _same(one: Found, there: Container) -> bool:
    if one.get("id") and there.id:
        short = min(len(str(one["id"])), len(there.id))
        return str(one["id"])[:short] == there.id[:short]
    return not (one.get("image") and there.image) or one["image"] == there.image


def _port(node: str, name: str, one: Found, sheet: Sheet | None, runs: bool) -> Iterator[Problem]:
    """A port on which it listened before that somebody else has now."""
    if sheet is None or runs or not (one.get("was_active") or one.get("was_running")):
        return
    taken = {listener.port: listener for listener in sheet.listeners or ()}
    for port in one.get("ports") or ():
        listener = taken.get(int(port))
        if listener is not None:
            owner = listener.program or "a process that this user may not see"
            yield Problem(
                "port_busy", "warn", f"Port {port} of {name} on {node} is taken by {owner}", node,
                f"{name} could not listen there, so it is left out.",
                "Stop its owner, probe the node, and come back.",
                f"{listener.address}:{listener.port}" + (f" process {listener.pid}" if listener.pid else ""),
            )  # fmt: skip
            return


def _removed(
    node: str, removed: Sequence[Found], units: Sequence[Found], sheet: Sheet | None
) -> Iterator[tuple[str, Problem]]:
    """Removed containers come back by the unit that makes them; the others can't."""
    coming = {str(one["unit"]) for one in units if one.get("was_active")}
    for one in removed:
        name = str(one["name"])
        if sheet is None or sheet.units is None or _runs(container_of(sheet, name)):
            continue
        makers = [unit.name for unit in sheet.units if name in unit.containers]
        if not coming.intersection(makers):
            yield name, Problem(
                "container_not_restorable", "warn", f"The container {name} of {node} does not come back", node,
                "It was removed because a unit made it anew at each start, and no such unit is started here"
                + (f" ({', '.join(makers)} is left as it is)." if makers else "."),
                f"Start {' or '.join(makers)} by hand." if makers else "Whoever started it knows the command.",
                str(one.get("image") or ""),
            )  # fmt: skip


def _ours(node: str, sheet: Sheet | None, given: Given) -> Iterator[Problem]:
    """Deployments of ours on the node: what is put back would take their memory and their ports."""
    told = set()
    for other in given.others:
        if other.spec and node in other.spec.nodes and other.state in ALIVE:
            told.add(str(other.id))
            yield _stop(node, other.name, DOES.get(other.state, "may be running"), other.id)
        elif other.spec and node in other.spec.nodes and other.state == "lost":
            yield Problem(
                "other_deployment", "warn", f"{other.name} is lost on {node}", node,
                "Where its relaunch policy is not manual, a robot may start it again and clear what is put back here.",
                "Stop it first if it shall stay away.",
                deployment=other.id,
            )  # fmt: skip
    for one in (sheet.containers if sheet else None) or ():
        label = one.labels.get("sparkweb.deployment")
        if label is not None and label not in told and one.state == "running":
            told.add(label)
            known = of_container(one, node, given)
            whose = known.name if known else f"Deployment {label}, which this sparkweb does not know,"
            yield _stop(node, whose, "runs", known.id if known else None)


def _stop(node: str, who: str, does: str, deployment: int | None) -> Problem:
    return Problem(
        "other_deployment", "stop", f"{who} {does} on {node}", node,
        "What would be put back needs the memory that it holds.",
        "Stop it first, then come back.",
        deployment=deployment,
    )  # fmt: skip


def _is_enabled(sheet: Sheet | None, one: Found) -> bool:
    unit = unit_of(sheet, str(one["unit"]))
    return unit is not None and unit.enabled == "enabled"


def _unit_runs(sheet: Sheet | None, one: Found) -> bool:
    unit = unit_of(sheet, str(one["unit"]))
    return unit is not None and unit.active in RUNNING


def _runs(container: Container | None) -> bool:
    return container is not None and container.state in ("running", "restarting")


def _stands(sheet: Sheet | None, one: Found) -> bool:
    """It runs, with the restart policy that it had."""
    there, policy = container_of(sheet, str(one["name"])), one.get("restart_policy")
    return there is not None and _runs(there) and (policy in (None, "", "no") or there.restart_policy == policy)
