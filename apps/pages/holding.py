"""Who holds what on some nodes, for pages: the tree of their newest sheets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apps.diagnosis.findings.tree import tree
from apps.facts.sheet import Sheet

GIB = 1 << 30


def trees(sheets: Iterable[Sheet]) -> list[dict[str, Any]]:
    """A row a holder: how deep it stands, what it is, GiB that its end frees."""
    return [
        {
            "node": sheet.node,
            "rows": [
                {"depth": min(depth, 3), "one": one, "gib": one.bytes / GIB}
                for root in tree(sheet)
                for depth, one in root.rows()
            ],
        }
        for sheet in sheets
    ]
