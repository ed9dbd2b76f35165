"""Everything that is looked at before a launch, worst first: stop, consent, warn, fine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from apps.facts.sheet import Sheet
from apps.plan.checks import clearing, fabric, files, machine, settings
from apps.plan.checks.ports import needed_ports
from apps.plan.engines.site import no_sheet
from apps.plan.spec import Given, Spec
from apps.plan.step import Problem

ORDER = {"stop": 0, "consent": 1, "warn": 2, "fine": 3}


def problems(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> tuple[Problem, ...]:
    """All findings for this spec on these nodes. A consent that `given.clear` covers comes back as `fine`, with its
    `clear` items still in it, so that a page can show the box ticked."""
    found = [no_sheet(node) for node in dict.fromkeys(spec.nodes) if node not in sheets]
    known = [sheets[node] for node in dict.fromkeys(spec.nodes) if node in sheets]
    for sheet in known:
        found += machine.check(spec, sheet)
    nonsense = tuple(settings.fields(spec))
    if nonsense:
        return _sorted([*nonsense, *found])
    for one in spec.each:
        found += _told_once(found, one, _of_service(one, [sheet for sheet in known if sheet.node in one.nodes]))
    found += clearing.check(spec, known, given)
    return _sorted(found)


def _of_service(spec: Spec, known: Sequence[Sheet]) -> Iterator[Problem]:
    for sheet in known:
        yield from files.check(spec, sheet)
    if len(known) == len(spec.nodes):
        yield from files.compare(spec, known)
        yield from fabric.check(spec, known)
        yield from machine.compare(spec, known)
    yield from settings.check(spec, known)


def _told_once(found: Sequence[Problem], spec: Spec, more: Iterator[Problem]) -> Iterator[Problem]:
    """What another service of the same image or on the same nodes has not said already. Of a further service its name is said,
    and no change of a field is offered: those are the main one's."""
    for problem in more:
        if problem not in found:
            yield replace(problem, title=f"{spec.label}: {problem.title}", change={}) if spec.service else problem


def _sorted(found: Sequence[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(found, key=lambda problem: ORDER[problem.severity]))


__all__ = ["needed_ports", "problems"]
