"""Recipes as people have them, read: a file in cases/FAMILY beside what must come of it. A new one is a new file.

UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/recipes/test_cases.py
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from apps.recipes.formats import bodies
from apps.recipes.formats.imported import KINDS, Unreadable, taken
from apps.recipes.formats.recognise import read

CASES = Path(__file__).parent / "cases"
FILES = sorted(path for path in CASES.rglob("*.*") if path.suffix in (".yaml", ".txt"))
FAMILY = {"docker-run": "docker run"}
SECRETS = ("hf_ThisIsNo", "sk-not-a", "hf_Another", "abcde", "hunter2", "topsecret", "hf_Third", "letmein")


def told(text: str) -> dict[str, Any]:
    """Everything that reading a text gives, as JSON."""
    try:
        found = read(text)
    except Unreadable as problem:
        return {"line": problem.line, "message": problem.message, "remedy": problem.remedy, "field": problem.field}
    held = [{key: value for key, value in asdict(one).items() if value not in ({}, -1)} for one in found.held]
    notes = [f"{one.line} {one.path}: {one.message} {one.remedy}".strip() for one in found.notes]
    everything = taken(found.body, found.held)
    judged = all(one.get("engine") in ("vllm", "command") for one in (everything, *everything.get("services", ())))
    return {
        "family": found.family,
        "name": found.name,
        "description": found.description,
        "nodes": found.world_size,
        "body": found.body,
        "held": held,
        "notes": notes,
        "extra": found.extra,
        # what other engines know and refuse is told by their own tests
        "wrong": [f"{one.field}: {one.message}" for one in bodies.errors(everything, found.world_size) if judged],
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_comes_of_it(path: Path) -> None:
    got = json.dumps(told(path.read_text()), indent=1, ensure_ascii=False) + "\n"
    golden = path.with_suffix(".json")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(got)
    assert got == golden.read_text()
    assert json.loads(got).get("family", FAMILY.get(path.parent.name, path.parent.name)) == FAMILY.get(
        path.parent.name, path.parent.name
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_secret_is_kept(path: Path) -> None:
    text = path.read_text()
    try:
        found = read(text)
    except Unreadable:
        return
    kept = json.dumps(asdict(found))
    assert not [secret for secret in SECRETS if secret in kept]
    assert {one.kind for one in found.held} <= set(KINDS)
    again = read(found.source)  # what is kept of the text is read to the same
    assert again.body == found.body and [one.path for one in again.held] == [one.path for one in found.held]


def test_there_are_enough_of_them() -> None:
    count = {folder.name: len([path for path in FILES if path.parent == folder]) for folder in CASES.iterdir()}
    assert count["eugr"] >= 10 and count["sparkrun"] >= 10
