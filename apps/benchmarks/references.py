"""Reference rows that come with sparkweb: figures of others, each marked as such and with where it is from. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from apps.benchmarks.results import Result

PREFIX = "shipped-"


@dataclass(frozen=True)
class Reference:
    id: str
    name: str
    result: dict[str, Any]  # as Result.to_json gives it


@cache
def shipped() -> tuple[Reference, ...]:
    """All of them, in the order of the files."""
    found = sorted(one.name for one in files(__package__).joinpath("shipped").iterdir() if one.name.endswith(".json"))
    rows = [
        row for name in found for row in json.loads(files(__package__).joinpath("shipped", name).read_text("utf-8"))
    ]
    return tuple(Reference(PREFIX + row["id"], row["name"], Result.from_json(row["result"]).to_json()) for row in rows)
