"""The database file holds sessions: nobody else on this machine reads it, also where an older version made it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sparkweb import env


@pytest.mark.parametrize("before", [None, 0o644, 0o666, 0o600])
def test_the_database_and_its_helpers_are_ours_alone(tmp_path: Path, before: int | None) -> None:
    path = tmp_path / "sparkweb.sqlite3"
    if before is not None:
        path.touch()
        path.chmod(before)
        path.with_name("sparkweb.sqlite3-wal").touch(mode=0o644)
    assert env.kept_private(path) == path
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE t (a)")
    database.commit()
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {
        name: "0o600" for name in ("sparkweb.sqlite3", "sparkweb.sqlite3-wal", "sparkweb.sqlite3-shm")
    }
    database.close()


def test_a_place_that_cannot_be_written_is_for_the_database_to_name(tmp_path: Path) -> None:
    assert not env.kept_private(tmp_path / "nowhere" / "x").exists()
