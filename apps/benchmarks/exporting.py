"""Results as files: CSV with a line a level, and JSON that another sparkweb imports. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from apps.benchmarks.compared import Row

SUBJECT = (
    "deployment",
    "service",
    "revision",
    "model",
    "engine",
    "engine_version",
    "image",
    "hardware",
    "tensor_parallel",
    "quantization",
)
SETTINGS = ("mode", "prompt_tokens", "output_tokens", "requests_per_level", "seconds_per_level", "endpoint")
LEVEL = ("concurrency", "rate", "requests", "errors", "seconds", "input_tokens", "output_tokens", "aggregate_tok_s")
QUANTILES = ("per_request_tok_s", "ttft_s", "itl_s", "e2e_s")
POINTS = ("p50", "p90", "p99", "mean")
COLUMNS = (
    "id",
    "name",
    "source",
    "tool",
    "where",
    "made",
    "good",
    *SUBJECT,
    *SETTINGS,
    *(f"level_{name}" if name in SETTINGS else name for name in LEVEL),
    *(f"{name}_{point}" for name in QUANTILES for point in POINTS),
    "note",
)


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "format": "sparkweb-benchmarks",
        "version": 1,
        "results": [{"id": row.id, "name": row.name, "good": row.good, "result": row.result} for row in rows],
    }


def as_csv(rows: Sequence[Row]) -> str:
    """One line a level, with a heading. Text that a spreadsheet would take for a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for row in rows:
        for level in row.levels or ({},):
            writer.writerow([_cell(each) for each in _line(row, level)])
    return out.getvalue()


def _line(row: Row, level: Any) -> list[Any]:
    result = row.result
    return [
        row.id,
        row.name,
        row.source,
        result.get("tool"),
        result.get("where"),
        result.get("made"),
        "yes" if row.good else "",
        *(row.subject.get(name) for name in SUBJECT),
        *(row.settings.get(name) for name in SETTINGS),
        *(level.get(name) for name in LEVEL),
        *((level.get(name) or {}).get(point) for name in QUANTILES for point in POINTS),
        result.get("note"),
    ]


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value
