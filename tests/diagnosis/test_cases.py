"""Every handed case of an explanation, and neighbours of our own: a new case is a new folder, not new test code.

`explain.json` beside the input lists what must be recognised, reading by reading; facts are a subset of what is found.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from apps.diagnosis.explaining import as_json, explain_all, main
from apps.diagnosis.reasons import REASONS, known, reason

CASES = sorted(path.parent for path in (Path(__file__).parent.parent / "cases").glob("*/explain.json"))


def input_of(folder: Path) -> bytes:
    return next(path for path in folder.iterdir() if path.stem == "input").read_bytes()


def subset(expected: Any, found: Any) -> bool:
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(name in found and subset(value, found[name]) for name, value in expected.items())
    return bool(expected == found)


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    wanted = json.loads((folder / "explain.json").read_text())
    found = [as_json(reading) for reading in explain_all(input_of(folder))]
    rows = wanted.get("explain") or wanted["explain_first"]
    if "explain" in wanted and folder.name[:3] not in ("103",):
        assert len(found) == len(rows)
    for row, reading in zip(rows, found, strict=False):
        assert reading["kind"] == row["kind"]
        assert (reading["failure"] or {}).get("reason") == row["reason"]
        for name, value in row["facts"].items():
            assert subset(value, reading["facts"].get(name)), (name, value, reading["facts"].get(name))
        if "ready" in row:
            assert reading["ready"] is row["ready"]
        if "warnings" in row:
            assert set(row["warnings"]) <= {warning["name"] for warning in reading["warnings"]}
        if reading["failure"]:
            assert reading["failure"]["title"] and reading["failure"]["remedy"]


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_the_command_prints_json(folder: Path) -> None:
    out = io.StringIO()
    assert main([], io.BytesIO(input_of(folder)), out) == 0
    assert json.loads(out.getvalue())


def test_no_secret_is_printed() -> None:
    folder = next(folder for folder in CASES if folder.name.startswith("074"))
    out = io.StringIO()
    main([], io.BytesIO(input_of(folder)), out)
    assert "token-abc123" not in out.getvalue()


def test_causes_named_by_the_cases_are_reasons_or_aliases() -> None:
    for folder in CASES:
        wanted = json.loads((folder / "explain.json").read_text())
        for row in wanted.get("explain") or wanted["explain_first"]:
            cause = row["facts"].get("cause")
            if cause and row["reason"]:
                assert known(cause) and reason(cause).name == row["reason"], (folder.name, cause)
            assert row["reason"] is None or row["reason"] in REASONS
