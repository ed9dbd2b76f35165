"""What is in the way on a node, and the consent that would move it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime

from apps.diagnosis.findings.holders import ENGINE_WORDS, NOTABLE_BYTES, Holder, holders, unit_of, units_behind
from apps.facts.sheet import Sheet
from apps.plan.checks import others
from apps.plan.fit import load_of, room_of
from apps.plan.spec import Clear, Given, Spec
from apps.plan.step import Problem

STARTING_S = 1200.0  # an engine of this size loads for 10 to 15 minutes


def in_the_way(spec: Spec, sheet: Sheet, sheets: Sequence[Sheet], given: Given) -> tuple[Holder, ...]:
    """Who must go for the engine to find its memory free: everyone who holds a notable part, once there is too little;
    nobody while there is enough."""
    room = room_of(spec, sheet, Given(deployment=given.deployment))
    if room is None:
        return ()
    load = load_of(spec, sheets)
    wanted = room.claim if room.claim is not None else (load.weights or 0) + load.runtime + (load.fixed_kv or 0)
    found = [one for one in holders(sheet, given.deployment) if not one.own]
    if wanted <= room.after:
        young = still_starting(sheet)
        return tuple(one for one in found if one.kind == "container" and one.name in young)
    theirs = others.of_holders(sheet, given)
    strangers = [one for one in found if (one.kind, one.name) not in theirs]
    if wanted <= room.after + sum(one.bytes for one in strangers):
        found = strangers  # without them there is room beside the other deployments of ours
    notable = [one for one in found if one.bytes >= NOTABLE_BYTES]
    unknown = [one for one in found if one.bytes == 0 and one.kind == "container" and unit_of(sheet, one.name)]
    return tuple(notable + unknown if notable else ())


def still_starting(sheet: Sheet) -> frozenset[str]:
    """Foreign engine containers that a unit started a short while ago, as after a reboot: what they hold now says little about
    what they will hold when they have loaded. Other deployments of ours are not among them."""
    now = sheet.machine.clock_unix_s if sheet.machine else None
    made = set()
    for one in sheet.containers or ():
        engine = ENGINE_WORDS.search(f"{one.name} {one.image} {one.command}")
        since = _unix(one.started_at)
        if now is None or since is None or not engine or one.state != "running" or "sparkweb.deployment" in one.labels:
            continue
        if 0 <= now - since < STARTING_S and unit_of(sheet, one.name):
            made.add(one.name)
    return frozenset(made)


def _unix(moment: str | None) -> float | None:
    """Docker's RFC 3339 with nanoseconds as unix seconds; None for what is none."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", moment or "")).timestamp()
    except ValueError:
        return None


def items_for(sheet: Sheet, found: Sequence[Holder]) -> tuple[Clear, ...]:
    """What to stop, in order: units before the containers that they start."""
    units = [Clear(sheet.node, "unit", unit.name) for unit in units_behind(sheet, found)]
    return (*units, *(Clear(sheet.node, one.kind, one.name) for one in found if one.kind != "unit"))


def _identity(node: str, kind: str, name: str) -> tuple[str, str, str]:
    return node, kind, name.removesuffix(".service")


def settle(problem: Problem, given: Given) -> Problem:
    """The same, as `fine`, when everything it asks for was consented to."""
    asked = {_identity(item["node"], item["kind"], item["name"]) for item in problem.clear}
    consented = {_identity(one.node, one.kind, one.name) for one in given.clear}
    if not asked or not asked <= consented:
        return problem
    return replace(problem, severity="fine", title=f"{problem.title}; it will be cleared", remedy="")


def consent(
    name: str, title: str, sheet: Sheet, items: Sequence[Clear], given: Given, meaning: str, remedy: str, evidence: str
) -> Problem:
    """A Problem that asks for these items, or the same as fine when they were consented to."""
    asked = tuple(asdict(item) for item in items)
    return settle(Problem(name, "consent", title, sheet.node, meaning, remedy, evidence, asked), given)
