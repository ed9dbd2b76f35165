"""The command line says what there is, which database it works on, and refuses one that nobody prepared."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from apps.audit.management.prepared import PreparedCommand, which
from apps.people.models import ApiToken

ROOT = Path(__file__).resolve().parent.parent.parent


def manage(*words: str, var: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "DATABASE_URL_FILE")}
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env={**kept, "VAR": str(var)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_names_the_filters_too(tmp_path: Path) -> None:
    text = manage("--help", var=tmp_path).stdout
    for name in ("parse", "explain", "reasons", "roles", "token", "demo"):
        assert f"    {name}" in text, name


@pytest.mark.parametrize("name", ["parse", "explain", "reasons", "roles"])
def test_filters_say_how_they_are_called(name: str, tmp_path: Path) -> None:
    said = manage(name, "--help", var=tmp_path)
    assert (said.returncode, said.stderr) == (0, "") and said.stdout.startswith(f"usage: manage.py {name} ")


def test_an_unprepared_database_is_refused_in_words(tmp_path: Path) -> None:
    said = manage("token", "laptop", "--role", "viewer", var=tmp_path)
    assert said.returncode == 1 and said.stdout == "" and "Traceback" not in said.stderr
    assert f"VAR={tmp_path}" in said.stderr and "holds nothing of sparkweb yet" in said.stderr


def test_an_older_database_is_refused_except_for_a_backup(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.audit.management.prepared.MigrationExecutor.migration_plan", lambda *_: [("one", False)])
    with pytest.raises(CommandError, match="older version"):
        PreparedCommand()._refuse_unprepared()
    older = PreparedCommand()
    older.needs_newest = False
    older._refuse_unprepared()


def test_a_token_is_all_of_standard_output(db: None) -> None:
    out, aside = StringIO(), StringIO()
    call_command("token", "laptop", "--role", "viewer", stdout=out, stderr=aside)
    assert out.getvalue().strip().startswith(ApiToken.objects.get(name="laptop").prefix)
    assert aside.getvalue() == f"database: {which()}\n"
