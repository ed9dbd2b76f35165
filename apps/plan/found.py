"""Things that a sheet shows, by name. A name from outside is looked up here before anything is done with it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from apps.facts.sheet import Sheet
from apps.facts.values import Container, Unit
from apps.plan import preflight
from apps.plan.spec import Clear


def is_root(sheet: Sheet | None) -> bool:
    return bool(sheet and sheet.machine and sheet.machine.uid == 0)


def unit_of(sheet: Sheet | None, name: str) -> Unit | None:
    return next((unit for unit in (sheet.units if sheet else None) or () if _bare(unit.name) == _bare(name)), None)


def _bare(name: str) -> str:
    return name.removesuffix(".service")


def container_of(sheet: Sheet | None, name: str) -> Container | None:
    return next((one for one in (sheet.containers if sheet else None) or () if one.name == name), None)


def ports_of(sheet: Sheet | None, kind: str, name: str) -> tuple[int, ...]:
    """TCP ports on which a container, or a unit with the containers that it starts, listens, as far as the sheet tells."""
    if sheet is None:
        return ()
    unit = unit_of(sheet, name) if kind == "unit" else None
    inside = {name} if kind == "container" else set(unit.containers if unit else ())
    boxes = [one for one in sheet.containers or () if one.name in inside]
    pids = {one.pid for one in (*boxes, *((unit,) if unit else ())) if one.pid}
    found = {one.port for one in sheet.listeners or () if one.pid in pids}
    found |= {int(port) for box in boxes for shown in box.ports for port in re.findall(r":(\d+)->", shown)}
    for process in sheet.processes or ():
        if process.container in inside or (kind == "unit" and _bare(process.unit or "") == _bare(name)):
            found.update(process.ports)
    return tuple(sorted(found))


def made_anew(sheet: Sheet | None, name: str) -> bool:
    """Whether a unit makes this container again when it starts, so that removing it loses nothing. A unit that only
    starts an existing one (`docker start`) does not."""
    return any(
        name in unit.containers and "docker start" not in (unit.exec_start or "")
        for unit in (sheet.units if sheet else None) or ()
    )


def is_known(sheet: Sheet | None, item: Clear) -> bool:
    """Whether the sheet shows this very thing. Names that come from outside are never used for anything else."""
    if item.kind == "unit":
        return unit_of(sheet, item.name) is not None
    if item.kind == "container":
        return container_of(sheet, item.name) is not None
    return bool(sheet) and item.name.isdecimal() and bool(sheet and preflight.names_of(sheet, int(item.name)))


def known(sheet: Sheet, consented: Sequence[Clear]) -> list[Clear]:
    """What was consented to on this node and is there, each once."""
    return list(dict.fromkeys(one for one in consented if one.node == sheet.node and is_known(sheet, one)))
