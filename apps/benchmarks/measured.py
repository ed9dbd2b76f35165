"""What the load generator printed, as a result. Pure; any bytes are fine, whatever of them is no line of the generator is passed over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apps.benchmarks.results import FORMAT, VERSION

LEVEL_FIELDS = (
    "concurrency", "rate", "requests", "errors", "error_reasons", "seconds", "input_tokens", "output_tokens", "aggregate_tok_s",
    "per_request_tok_s", "ttft_s", "itl_s", "e2e_s",
)  # fmt: skip
SETTINGS = (
    "mode", "levels", "prompt_tokens", "output_tokens", "requests_per_level", "seconds_per_level", "warmup", "seed", "ignore_eos",
    "prefix_proof", "endpoint",
)  # fmt: skip
MOST_REASONS, LONGEST_REASON = 20, 200


@dataclass
class Measured:
    """As far as it came. `tick`: how the level that runs is doing; None between levels and at the end."""

    settings: dict[str, Any] = field(default_factory=dict)
    levels: list[dict[str, Any]] = field(default_factory=list)
    tick: dict[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=lambda: {"before": {}, "after": {}})
    samples: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ended: bool = False
    partial: bool = False

    def as_json(self, *, made: str, subject: Mapping[str, Any], node: str, note: str = "") -> dict[str, Any]:
        """The result in its format. `made`: when, ISO 8601; `subject`: what was measured."""
        told = [*self.notes, *([note] if note else [])]
        if self.partial:
            told.append("It was stopped: the last level is of the requests that had ended by then.")
        sampled = {
            name: {"mean": round(sum(values) / len(values), 1), "most": max(values), "least": min(values)}
            for name, values in self.samples.items()
            if values
        }
        return {
            "format": FORMAT,
            "version": VERSION,
            "made": made,
            "source": "measured",
            "tool": "sparkweb",
            "where": "",
            "subject": dict(subject),
            "settings": {name: self.settings[name] for name in SETTINGS if name in self.settings},
            "levels": self.levels,
            "engine_metrics": self.metrics,
            "nodes": [{"node": node, **sampled}] if sampled else [],
            "note": " ".join(told)[:2000],
        }


def read(lines: Iterable[str]) -> Measured:
    """From the lines of the step's output, in order."""
    made = Measured()
    for line in lines:
        if not line.startswith('{"event"'):
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            _take(made, str(row.get("event")), row)
    return made


def _take(made: Measured, event: str, row: Mapping[str, Any]) -> None:
    if event == "begin":
        made.settings = {name: value for name, value in row.items() if name != "event"}
    elif event == "level":
        made.tick = None
        made.partial = made.partial or bool(row.get("partial"))
        made.levels.append(_level(row))
    elif event == "tick":
        made.tick = {name: value for name, value in row.items() if name != "event"}
    elif event == "metrics" and row.get("when") in made.metrics and isinstance(row.get("values"), dict):
        made.metrics[row["when"]] = row["values"]
    elif event == "node":
        for name in ("power_w", "temperature_c", "clock_mhz"):
            if isinstance(value := row.get(name), int | float):
                made.samples.setdefault(name, []).append(float(value))
    elif event == "note":
        made.notes.append(str(row.get("text", ""))[:400])
    elif event == "end":
        made.tick, made.ended = None, True
        made.partial = made.partial or bool(row.get("stopped"))


def _level(row: Mapping[str, Any]) -> dict[str, Any]:
    level = {name: row.get(name) for name in LEVEL_FIELDS}
    reasons = row.get("error_reasons")
    reasons = reasons if isinstance(reasons, dict) else {}
    counted = sorted(reasons.items(), key=lambda one: -int(one[1]))[:MOST_REASONS]
    level["error_reasons"] = {str(text)[:LONGEST_REASON]: count for text, count in counted}
    for name in ("per_request_tok_s", "ttft_s", "itl_s", "e2e_s"):
        level[name] = level[name] if isinstance(level[name], dict) else {}
    return level
