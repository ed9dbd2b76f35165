"""The audit entries inside a backup's part, in their order, read without putting it into a database."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.audit.models import Entry

TABLE = Entry._meta.db_table
_NAMES: dict[str, Any] = {field.attname: field for field in Entry._meta.concrete_fields}
_COLUMNS: dict[str, Any] = {str(field.column): field for field in Entry._meta.concrete_fields}
_COPY = re.compile(rf"COPY (?:\w+\.)?{TABLE} \((?P<columns>[^)]*)\) FROM stdin;\n?")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Unreadable(Exception):
    """The part holds no entries in the form that its kind has."""


def of_sqlite(member: Path) -> Iterator[Entry]:
    """Raises sqlite3.DatabaseError for a file that is none."""
    with contextlib.closing(sqlite3.connect(f"file:{member}?mode=ro", uri=True)) as copy:
        rows = copy.execute(f"SELECT * FROM {TABLE} ORDER BY seq")  # noqa: S608 - our table's name
        columns = [column[0] for column in rows.description]
        for row in rows:
            yield _entry(dict(zip(columns, row, strict=True)), _COLUMNS)


def of_lines(member: Path) -> Iterator[Entry]:
    """From one JSON object a line; they were written in the order of their numbers. Raises OSError, EOFError, ValueError."""
    with gzip.open(member, "rt", encoding="utf-8") as file:
        for line in file:
            body = json.loads(line)
            if body["model"] == Entry._meta.label_lower:
                yield _entry({**body["fields"], "id": body["pk"]}, _NAMES)


def of_copy(script: Path) -> Iterator[Entry]:
    """From SQL as `pg_restore --data-only --table=audit_entry` writes it. Raises Unreadable."""
    with script.open(encoding="utf-8", newline="\n") as file:
        found = next((match for line in file if (match := _COPY.fullmatch(line))), None)
        if found is None:
            raise Unreadable(f"no rows of {TABLE} are in it")
        columns = [name.strip().strip('"') for name in found["columns"].split(",")]
        # COPY promises no order, so all are held at once: an entry is some hundred bytes.
        rows = [_copied(line, columns) for line in iter(lambda: file.readline().rstrip("\n"), "\\.")]
    rows.sort(key=lambda row: int(row["seq"] or 0))
    for row in rows:
        yield _entry(row, _COLUMNS)


def _copied(line: str, columns: Sequence[str]) -> dict[str, str | None]:
    cells = line.split("\t")
    if len(cells) != len(columns):
        raise Unreadable(f"a row of {TABLE} has {len(cells)} cells instead of {len(columns)}")
    return {name: None if cell == "\\N" else _plain(cell) for name, cell in zip(columns, cells, strict=True)}


def _plain(cell: str) -> str:
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), cell)


def _entry(values: Mapping[str, Any], fields: Mapping[str, Any]) -> Entry:
    """An unsaved Entry; columns that this version does not know are left out."""
    known = {fields[name].attname: value for name, value in values.items() if name in fields}
    known["time"] = _moment(str(known["time"]))
    return Entry(**{name: value if name == "time" else _NAMES[name].to_python(value) for name, value in known.items()})


def _moment(text: str) -> datetime.datetime:
    """SQLite's text has no zone and is UTC."""
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


READERS: dict[str, Callable[[Path], Iterator[Entry]]] = {"sqlite": of_sqlite, "pgdump": of_copy, "jsonl": of_lines}
