"""The fast network between the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from apps.diagnosis.findings import fabric as rules
from apps.diagnosis.findings.finding import Finding
from apps.facts.sheet import Sheet
from apps.plan.checks.shared import warning
from apps.plan.fabric import Fabric, fabric_address
from apps.plan.spec import Spec
from apps.plan.step import Problem


def check(spec: Spec, sheets: Sequence[Sheet]) -> Iterator[Problem]:
    """Nothing for a single node."""
    if len(sheets) < 2:
        return
    unread = [sheet.node for sheet in sheets if sheet.interfaces is None]
    if unread:
        yield from (_unread(node) for node in unread)
        return
    found: list[Fabric] = []
    for sheet in sheets:
        place = fabric_address(sheet, [other for other in sheets if other is not sheet])
        if isinstance(place, Problem):
            yield place
            continue
        found.append(place)
        yield from (warning(one, sheet.node) for one in _quality(sheet, place))
    if len(found) == len(sheets):
        where = " ↔ ".join(place.address for place in found)
        yield Problem(
            "fabric",
            "fine",
            f"Fabric {where}",
            evidence=", ".join(f"{sheet.node} {place.interface}" for sheet, place in zip(sheets, found, strict=True)),
        )


def _unread(node: str) -> Problem:
    return Problem(
        name="addresses_unknown",
        severity="stop",
        title=f"The addresses of {node} could not be read",
        node=node,
        meaning="The last probe got no answer to this in time, so nobody knows yet whether the fabric is up.",
        remedy=f"Probe {node} again; it may have been busy or still starting.",
    )


def _quality(sheet: Sheet, place: Fabric) -> Iterator[Finding]:
    """What is wrong with the place that this deployment takes, and with the cables of the node."""
    yield from rules.link_local(sheet, only=place.interface)
    if not place.hcas:
        yield rules.without_rdma(sheet)
    else:
        yield from rules.small_packets(sheet, only=place.interface)
    yield from rules.rails(sheet, only=place.interface)
    yield from rules.half_up(sheet)
    yield from rules.twins_in_one_subnet(sheet)
