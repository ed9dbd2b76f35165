"""Findings as the preflight says them: the rule and its words are written once."""

from __future__ import annotations

from apps.diagnosis.findings.finding import Finding
from apps.plan.step import Problem


def warning(one: Finding, node: str = "", severity: str = "warn") -> Problem:
    """`node`: empty where it is about all of them together."""
    return Problem(one.name, severity, one.sentence, node, one.meaning, one.remedy, one.evidence)
