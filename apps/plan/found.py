"""Things that a sheet shows, by name. A name from outside is looked up here before anything is done with it."""

from __future__ import annotations

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
