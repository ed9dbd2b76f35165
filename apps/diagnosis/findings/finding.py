"""What a finding is, and the words that all of them share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.diagnosis.findings.table import RANK, SEVERITIES, TABLE
from apps.facts.sheet import Sheet

GIB = 1 << 30
MOST_NAMED = 6  # names in one sentence; the rest is counted


@dataclass(frozen=True)
class Finding:
    """Something that was seen and that matters for a deployment."""

    name: str  # a key of findings.TABLE
    severity: str  # bad, warn, note
    nodes: tuple[str, ...]
    sentence: str  # what was seen
    meaning: str  # for a deployment
    remedy: str
    evidence: str = ""  # the figures or the line that prove it
    section: str = ""  # the section of the sheet's evidence where the raw output stands
    values: dict[str, Any] = field(default_factory=dict)  # the same as figures, with units in their names

    @property
    def title(self) -> str:
        return TABLE[self.name].title


def seen(
    name: str,
    where: Sheet | Sequence[Sheet],
    sentence: str,
    *,
    severity: str = "",
    meaning: str = "",
    remedy: str = "",
    evidence: str = "",
    section: str = "",
    **values: Any,
) -> Finding:
    """The finding `name` of these nodes; what is not given is the table's. Raises KeyError for an unknown name."""
    known = TABLE[name]
    nodes = (where.node,) if isinstance(where, Sheet) else tuple(sheet.node for sheet in where)
    return Finding(
        name=name,
        severity=severity or known.severity,
        nodes=nodes,
        sentence=sentence,
        meaning=meaning or known.meaning,
        remedy=remedy or known.remedy,
        evidence=evidence,
        section=section,
        values=values,
    )


def worst_first(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity, then as the table has them, then by node."""
    return tuple(sorted(found, key=lambda one: (SEVERITIES.index(one.severity), RANK[one.name], one.nodes)))


def listed(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`; of many the first ones and how many more."""
    every = list(names)
    if len(every) > MOST_NAMED:
        every = [*every[: MOST_NAMED - 1], f"{len(every) - MOST_NAMED + 1} more"]
    return " and ".join([", ".join(every[:-1]), every[-1]] if len(every) > 1 else every)


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def verb(count: int, one: str, many: str) -> str:
    return one if count == 1 else many
