import csv
import io
import json
from datetime import UTC, datetime, timedelta

import pytest
import time_machine

from apps.audit import Actor, record
from apps.audit.exporting import COLUMNS, comma_separated, jsonl
from apps.audit.models import Entry
from apps.audit.queries import actions_seen, entries, matching, oldest_first

ANA = Actor("person", 7, "Ana", "operator", "127.0.0.1")
BO = Actor("person", 70, "Bo", "admin")
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture
def trail(db: None) -> list[Entry]:
    made = []
    for n, (actor, action, kind, identity, name, outcome, run) in enumerate(
        [
            (ANA, "deployment:launched", "deployment", 1, "qwen", "requested", 5),
            (ANA, "deployment:launched", "deployment", 1, "qwen", "done", 5),
            (BO, "node:added", "node", 1, "spark-1a32", "done", None),
            (BO, "node:added", "node", 11, "=cmd|' /C calc'!A0", "failed", None),
            (ANA, "deployment:stopped", "deployment", 2, "glm", "denied", None),
        ]
    ):
        with time_machine.travel(NOON + timedelta(hours=n), tick=False):
            made.append(
                record(actor, action, object_type=kind, object_id=identity, object_name=name, outcome=outcome, run=run)
            )
    return made


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [5, 4, 3, 2, 1]),
        ({"actor": "an"}, [5, 2, 1]),
        ({"actor": "person:7"}, [5, 2, 1]),
        ({"actor": "person:70"}, [4, 3]),
        ({"actor": "person:x"}, []),
        ({"action": "node:added"}, [4, 3]),
        ({"action": "deployment:"}, [5, 2, 1]),
        ({"object": "node:1"}, [3]),
        ({"object": "node"}, [4, 3]),
        ({"object": "qwe"}, [2, 1]),
        ({"outcome": "denied"}, [5]),
        ({"run": 5}, [2, 1]),
        ({"since": NOON + timedelta(hours=3)}, [5, 4]),
        ({"until": NOON + timedelta(hours=1)}, [1]),
        ({"actor": "Ana", "action": "deployment:launched", "outcome": "done"}, [2]),
        ({"older_than": 3}, [2, 1]),
        ({"limit": 2}, [5, 4]),
        ({"limit": 0}, [5]),
        ({"object": "'; DROP TABLE audit_entry; --"}, []),
    ],
)
def test_filters(trail: list[Entry], filters: dict, expected: list[int]) -> None:
    assert [entry.id for entry in entries(**filters)] == expected


def test_actions_seen(trail: list[Entry]) -> None:
    assert actions_seen() == ["deployment:launched", "deployment:stopped", "node:added"]


def test_lines_of_json_can_be_checked_by_others(trail: list[Entry]) -> None:
    lines = [json.loads(line) for line in jsonl(oldest_first(matching()))]
    assert [line["id"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["prev_hash"] for line in lines[1:]] == [line["hash"] for line in lines[:-1]]


def test_csv_is_no_program(trail: list[Entry]) -> None:
    rows = list(csv.DictReader(io.StringIO("".join(comma_separated(oldest_first(matching()))))))
    assert list(rows[0]) == list(COLUMNS)
    assert rows[3]["object_name"] == "'=cmd|' /C calc'!A0"
    assert rows[0]["time"] == "2026-11-30T12:00:00+00:00"
