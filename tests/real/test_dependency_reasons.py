"""Every dependency that is asked for directly has its reason in docs/dependencies.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

BASE = Path(__file__).resolve().parents[2]


def asked_for(name: str) -> list[str]:
    lines = (BASE / name).read_text().splitlines()
    return [match[0] for line in lines if (match := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line))]


@pytest.mark.parametrize("source", ["requirements.in", "requirements-dev.in"])
def test_every_direct_dependency_has_its_reason(source: str) -> None:
    document = (BASE / "docs" / "dependencies.md").read_text()
    first_cells = {
        word
        for line in document.splitlines()
        if line.startswith("| ")
        for word in re.split(r"[ ,\[]+", line.split("|")[1])
    }
    assert asked_for(source)
    assert [name for name in asked_for(source) if name not in first_cells] == []
