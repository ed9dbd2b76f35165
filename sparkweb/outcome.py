"""The one JSON object that a demo prints last."""

from __future__ import annotations

from typing import Any


def unfinished(evidence: str) -> dict[str, Any]:
    """The object of a story that has not come to its end, and why. What did happen replaces the nulls; success has no evidence."""
    return {
        "deployment": None,
        "state": "failed",
        "reason": "internal",
        "run": None,
        "seconds": None,
        "lines": None,
        "smoke": None,
        "relaunch": None,
        "url": None,
        "evidence": evidence,
    }
