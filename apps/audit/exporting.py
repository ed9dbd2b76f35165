"""The trail as a file: CSV for spreadsheets, JSON lines for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator

from apps.audit.models import Entry

COLUMNS = [
    *("seq", "time", "actor_kind", "actor_id", "actor_name", "actor_role", "address", "session", "request_id"),
    *("action", "object_type", "object_id", "object_name", "outcome", "reason", "before", "after", "run_id"),
    *("prev_hash", "hash"),
]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def jsonl(entries: Iterable[Entry]) -> Iterator[str]:
    """One JSON object a line."""
    for entry in entries:
        yield json.dumps(entry.as_json(), ensure_ascii=False, sort_keys=True) + "\n"


def _cell(value: object) -> str:
    """Text that no spreadsheet takes for a formula."""
    text = "" if value is None else str(value)
    return "'" + text if text.startswith(_FORMULA) else text


def comma_separated(entries: Iterable[Entry]) -> Iterator[str]:
    """A header and one row for each entry, as in RFC 4180."""
    yield _row(COLUMNS)
    for entry in entries:
        values = {
            **{name: getattr(entry, name) for name in COLUMNS if name not in ("time", "before", "after")},
            "time": entry.time.isoformat(),
            "before": entry.before_json,
            "after": entry.after_json,
        }
        yield _row([_cell(values[name]) for name in COLUMNS])


def _row(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()
