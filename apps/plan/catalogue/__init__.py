"""Known models as data: what is taken where neither a node's files nor a given config.json say more. One file a model:
the essentials of its config.json, the bytes of its weight files where they are surely known, where both come from, and
what stays unknown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Known:
    """`models`: names at the hub that have exactly this shape. `weights_bytes` None: not surely known."""

    models: tuple[str, ...]
    config: dict[str, Any]
    weights_bytes: int | None
    source: str
    unknown: tuple[str, ...] = ()


@cache
def everything() -> tuple[Known, ...]:
    """All of the catalogue, in the order of its files' names."""
    found = sorted(
        (one for one in files(__package__).iterdir() if one.name.endswith(".json")), key=lambda one: one.name
    )
    return tuple(_known(json.loads(one.read_text(encoding="utf-8"))) for one in found)


def _known(body: dict[str, Any]) -> Known:
    return Known(
        tuple(body["models"]), body["config"], body["weights_bytes"], body["source"], tuple(body.get("unknown", ()))
    )


@cache
def _by_name() -> dict[str, Known]:
    return {name.lower(): known for known in everything() for name in known.models}


def find(model: str, path: str = "") -> Known | None:
    """By the name at the hub, else by the last part of a folder that is called like the model."""
    named = _by_name().get(model.strip().lower())
    if named is not None or not path:
        return named
    folder = path.rstrip("/").rpartition("/")[2].lower()
    return next((known for name, known in _by_name().items() if name.rpartition("/")[2] == folder), None)
