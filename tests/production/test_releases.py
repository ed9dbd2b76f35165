"""Upgrades from what each release left, the first one on (releases/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.production.conftest import Databases, Installation
from tests.production.record_release import RELEASES, look, migration_files, put

RECORDED = sorted(path.name for path in RELEASES.iterdir() if path.is_dir())
# Straight at the database, and through the product.
TOUCH = """
from django.db import connection, transaction
from django.db.utils import DatabaseError
for words in ("UPDATE audit_entry SET reason = 'x' WHERE seq = 1", "DELETE FROM audit_entry WHERE seq = 1",
              "INSERT INTO audit_entry SELECT * FROM audit_entry WHERE seq = 1"):
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(words)
    except DatabaseError as refused:
        print("append-only" in str(refused))
    else:
        print("done:", words)
from apps.audit.actor import Actor
from apps.audit.verifying import verify
from apps.inventory import services as inventory
from apps.people import services as people
from apps.runs.models import Run
root = Actor("person", 4, "root1", "admin")
people.add_person(root, "Newcomer", "viewer")
inventory.make_credential(root, name="another")
Run.objects.create(code="new", story="probe", state="queued")
print(verify()["ok"], verify()["entries"])
"""


def told(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RELEASES / release / "told.json").read_text())
    return found


def as_it_was(databases: Databases, release: str, name: str) -> Installation:
    place = databases.empty(f"{name}-{release}")
    place.settings["SPARKWEB_KEY"] = told(release)["sealing_key"]
    put(gzip.decompress((RELEASES / release / f"{databases.kind}.sql.gz").read_bytes()).decode(), place)
    return place


def test_the_first_release_is_there() -> None:
    assert RECORDED[0] == "0.1.0"


@pytest.mark.parametrize("release", RECORDED)
def test_migrations_of_a_release_are_never_edited(release: str) -> None:
    now = migration_files()
    changed = {name for name, digest in told(release)["migrations"].items() if now.get(name) != digest}
    assert not changed, "write a new migration instead"


@pytest.mark.parametrize("release", RECORDED)
def test_an_upgrade_loses_nothing(databases: Databases, release: str) -> None:
    place = as_it_was(databases, release, "upgraded")
    said = place.manage("serve", "prepare")
    assert "the database is up to date" in said
    found, wanted = look(place), told(release)[databases.kind]
    shipped = set(found.pop("recipes"))
    assert set(wanted.pop("recipes")) <= shipped
    assert found == wanted
    *refused, whole, entries = place.python(TOUCH).split()
    assert refused == ["True"] * 3 and whole == "True" and int(entries) > wanted["audit"][1]


@pytest.mark.parametrize("release", RECORDED)
def test_a_backup_of_a_release_is_restored_and_upgraded(databases: Databases, release: str, tmp_path: Path) -> None:
    old = as_it_was(databases, release, "old")
    old.manage("backup", str(tmp_path / "b.tar"), "--with-keys", str(tmp_path / "keys"))
    new = databases.empty(f"new-{release}")
    new.manage("restore", str(tmp_path / "b.tar"), "--keys", str(tmp_path / "keys"))
    found, wanted = look(new), told(release)[databases.kind]
    for told_by in (found, wanted):
        told_by.pop("recipes")
    assert found.pop("audit")[0] is True and wanted.pop("audit")  # with the entries of backup and restore
    assert found == wanted
