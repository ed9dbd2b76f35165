"""A refusal of a service as a page shows it: beside its field, with the way on; what was typed stays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apps.diagnosis.reasons import REASONS
from apps.diagnosis.refusal import Refused

TITLES = {
    "bad_input": "Please correct this",
    "in_use": "Still in use",
    "consent_needed": "An editor must agree",
    "secret_missing": "A secret is missing",
    "node_reserved": "Node in use",
    "approval_needed": "Waits for a decision",
    "recipe_changed": "Changed in between",
}


@dataclass(frozen=True)
class Error:
    title: str
    detail: str
    remedy: str = ""
    field: str = ""
    evidence: str = ""
    status: int = 422
    extra: Mapping[str, Any] | None = None


LONGEST_WORD = 80


def _shortened(text: str) -> str:
    """The sentence with what somebody typed without a blank cut to a length that can be read."""
    return re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: f"{word[0][: LONGEST_WORD - 1]}…", text)


def error_of(refused: Refused) -> Error:
    known = REASONS.get(refused.reason)
    title = TITLES.get(refused.reason) or (known.title if known else refused.reason.replace("_", " ").capitalize())
    return Error(
        title,
        _shortened(refused.detail),
        refused.remedy,
        refused.field,
        refused.evidence,
        refused.status,
        refused.extra,
    )


@dataclass(frozen=True)
class Explained:
    """A reason of the table in words. `ours`: not the node's fault."""

    name: str
    title: str
    sentence: str
    remedy: str
    ours: bool


def explained(name: str | None) -> Explained | None:
    if not name:
        return None
    key = name.partition(":")[0]
    known = REASONS.get(key)
    if known is None:
        return Explained(name, name.replace("_", " ").capitalize(), "", "", False)
    return Explained(key, known.title, known.sentence, known.remedy, known.group == "us")
