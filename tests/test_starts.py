"""What a start does not import: each command, and each process of the stack, pays for it every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from apps.diagnosis.explaining import BOOK

ROOT = Path(__file__).resolve().parents[1]
LOADED = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
BEAT = "from sparkweb.celery import app; app.Beat().init_loader()"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import django; django.setup()", {"celery", "redis", "psycopg", "paramiko", "ninja", "pydantic"}),
        (BEAT, {"paramiko", "ninja", "pydantic"}),
    ],
    ids=["a command", "beat"],
)
def test_what_a_start_does_not_need_is_not_imported(tmp_path: Path, code: str, absent: set[str]) -> None:
    environment = {"VAR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "sparkweb.settings", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LOADED}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert not absent & set(done.stdout.split())


def test_each_rule_knows_how_it_is_searched_once_its_word_is_met() -> None:
    for table in (BOOK.rules, BOOK.signs):
        assert all(search.needles for found in table.values() for _, search in found)
