"""Folders whose tests mostly wait (for a stack, a browser, a pretend load) begin first, so that no slow one is left at the end."""

from __future__ import annotations

import pytest

WAITING = ("stack", "browser", "story", "provision", "production", "runs", "lab", "live")


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(item.config.rootpath).parts[1]
    return WAITING.index(folder) if folder in WAITING else len(WAITING)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
