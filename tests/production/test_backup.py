"""Backup and restore as they are typed, on SQLite and on PostgreSQL."""

from __future__ import annotations

import hashlib
import io
import json
import re
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkweb import backing
from tests.production.conftest import Databases, Installation

ODD = "a\ttab, a \\ backslash,\r\na line\v, \\N and\n\\.\nü 😀"  # a dump has to escape it
FILL = f"""
from apps.audit import record
from apps.audit.actor import Actor
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.people import services as people
root = Actor("system", None, "test", "admin")
people.add_person(root, "Ana", "admin")
key = inventory.make_credential(root, name="field")
head = Node.objects.create(name="spark-1", address="192.0.2.9", user="u", credential=key)
Node.objects.create(name="spark-2", address="192.0.2.10", user="u", credential=key, jump=head)
record(root, "test:odd", reason={ODD!r})
"""
LOOK = """
import hashlib
from apps.audit.models import Entry
from apps.audit.verifying import verify
from apps.inventory import sealing
from apps.inventory.models import Credential, Node
from apps.inventory.services import KEY_CONTEXT
from apps.people.models import User
key = Credential.objects.get(name="field")
private = sealing.unseal(key.sealed_private_key, context=KEY_CONTEXT)
print(list(Node.objects.order_by("name").values_list("name", "jump__name")), list(User.objects.values_list("name", flat=True)),
      hashlib.sha256(private.encode()).hexdigest(), verify()["ok"])
"""

# What somebody who owns the database can do: the protection is taken off, one entry is changed, and it is put back.
EDIT = """
from importlib import import_module
from types import SimpleNamespace
from django.db import connection, transaction
protection = import_module("apps.audit.migrations.0002_append_only")
with transaction.atomic(), connection.cursor() as cursor:
    protection.backwards(None, SimpleNamespace(connection=connection))
    cursor.execute("UPDATE audit_entry SET reason = 'another' WHERE seq = 2")
    protection.forwards(None, SimpleNamespace(connection=connection))
"""


@dataclass(frozen=True)
class Old:
    """An installation with people, nodes and a sealed key, what LOOK says of it, and its backup with keys."""

    place: Installation
    look: str
    file: Path
    keys: Path


@pytest.fixture(scope="session")
def old(databases: Databases) -> Old:
    place = databases.empty("old")
    place.manage("serve", "prepare")
    look = place.python(FILL + LOOK)
    file, keys = databases.folder / "b.tar", databases.folder / "b.keys"
    assert "keep them apart" in place.manage("backup", str(file), "--with-keys", str(keys))
    return Old(place, look, file, keys)


def manifest_of(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as tar:
        file = tar.extractfile("manifest.json")
        assert file is not None
        return json.load(file)


def test_the_keys_are_apart(old: Old) -> None:
    for path in (old.file, old.keys):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = json.loads(old.keys.read_text())["sealing_key"]
    assert secret.encode() not in old.file.read_bytes()
    manifest = manifest_of(old.file)
    assert manifest["rows"]["inventory_node"] == 2 and "django_session" not in manifest["rows"]
    assert manifest["audit_entries"] > 0 and "people.0001_initial" in manifest["migrations"]
    assert "exists already" in old.place.manage("backup", str(old.file), fails=True)


def test_a_whole_installation_moves_with_its_keys(databases: Databases, old: Old) -> None:
    new = databases.empty("moved")
    said = new.manage("restore", str(old.file), "--keys", str(old.keys))
    assert "the chain is whole" in said and "keys put into" in said
    look = new.python(LOOK + "from apps.audit.models import Entry; print(Entry.objects.last().action)")
    assert look == f"{old.look}\ninstallation:restored"
    new.python(FILL.replace("Ana", "Ben").replace("field", "other").replace("spark-", "more-"))  # ids go on
    assert "--replace" in new.manage("restore", str(old.file), fails=True)
    new.manage("restore", str(old.file), "--replace")
    assert new.python(LOOK) == old.look


def test_another_key_is_refused(databases: Databases, old: Old, tmp_path: Path) -> None:
    other = databases.empty("other")
    assert "sealed with another key" in other.manage("restore", str(old.file), fails=True)
    (tmp_path / "wrong.keys").write_text(json.dumps({"secret_key": "a", "sealing_key": "another"}))
    said = other.manage("restore", str(old.file), "--keys", str(tmp_path / "wrong.keys"), fails=True)
    assert "another installation's key" in said
    other.settings["SPARKWEB_KEY"] = "x" * 40
    assert "comes from the environment" in other.manage("restore", str(old.file), "--keys", str(old.keys), fails=True)
    other.settings["SPARKWEB_KEY"] = json.loads(old.keys.read_text())["sealing_key"]
    other.manage("restore", str(old.file))
    assert other.python(LOOK) == old.look


def test_damage_is_found_before_anything_changes(databases: Databases, old: Old, tmp_path: Path) -> None:
    whole, cut = old.file.read_bytes(), tmp_path / "cut.tar"
    for size in (0, 100, 600, len(whole) // 2, len(whole) * 2 // 3):
        cut.write_bytes(whole[:size])
        with pytest.raises(backing.BackupFailed, match=r"no whole backup|damaged"), backing.opened(cut):
            pass
    said = old.place.manage("restore", str(cut), "--replace", fails=True)
    assert "no whole backup" in said or "damaged" in said
    assert old.place.python(LOOK) == old.look


def changed(file: Path, target: Path, **values: Any) -> Path:
    """A backup with other words in its manifest."""
    with tarfile.open(file) as before, tarfile.open(target, "w") as after:
        for info in before:
            content = before.extractfile(info)
            assert content is not None
            data = content.read()
            if info.name == "manifest.json":
                data = json.dumps({**json.loads(data), **values}).encode()
                info.size = len(data)
            after.addfile(info, io.BytesIO(data))
    return target


def test_manifests_are_not_trusted(old: Old, tmp_path: Path) -> None:
    migrations = [*manifest_of(old.file)["migrations"], "runs.0999_future"]
    for values, words in (
        ({"sha256": hashlib.sha256(b"").hexdigest()}, "damaged"),
        ({"format": 99}, "restore it with that version"),
        ({"member": "../../etc/passwd"}, "format"),
        ({"kind": "sqlite3"}, "format"),
        ({"surprise": 1}, "can't be read"),
    ):
        with (
            pytest.raises(backing.BackupFailed, match=words),
            backing.opened(changed(old.file, tmp_path / "c.tar", **values)),
        ):
            pass
    with (
        backing.opened(changed(old.file, tmp_path / "c.tar", migrations=migrations)) as (manifest, _),
        pytest.raises(backing.BackupFailed, match=r"runs\.0999_future"),
    ):
        backing.refuse_newer(manifest)


def test_another_trail_than_promised_is_said(databases: Databases, old: Old, tmp_path: Path) -> None:
    new = databases.like(old.place, "trail")
    other = changed(old.file, tmp_path / "c.tar", audit_head="f" * 64)
    said = new.manage("restore", str(other), "--replace", fails=True)
    assert "ends elsewhere" in said and "nothing was changed" in said
    assert new.python(LOOK) == old.look


@pytest.mark.parametrize("portable", [False, True])
def test_an_edited_trail_is_found_before_anything_is_replaced(
    databases: Databases, old: Old, tmp_path: Path, portable: bool
) -> None:
    edited = databases.like(old.place, f"edited-{portable}")
    edited.python(EDIT)
    edited.manage("backup", str(tmp_path / "b.tar"), *(["--portable"] if portable else []))
    other = databases.like(old.place, f"kept-{portable}")
    said = other.manage("restore", str(tmp_path / "b.tar"), "--replace", fails=True)
    assert "entry 2 was edited" in said and "nothing was changed" in said
    assert other.python(LOOK) == old.look


def test_an_older_schema_is_migrated_forward(databases: Databases, old: Old, tmp_path: Path) -> None:
    older = databases.like(old.place, "older")
    older.manage("migrate", "audit", "0001", "-v", "0")
    older.manage("backup", str(tmp_path / "b.tar"))
    assert "audit.0002_append_only" not in manifest_of(tmp_path / "b.tar")["migrations"]
    said = older.manage("restore", str(tmp_path / "b.tar"), "--replace")
    assert re.search(r"; [1-9]\d* migrations applied", said), said
    assert older.python(LOOK) == old.look


def test_a_portable_backup_fits_the_other_database(databases: Databases, old: Old, tmp_path: Path) -> None:
    file = tmp_path / "b.tar"
    old.place.manage("backup", str(file), "--portable")
    new = Installation(tmp_path / "sqlite")
    new.folder.mkdir()
    new.manage("restore", str(file), "--keys", str(old.keys))
    assert new.python(LOOK) == old.look
    new.manage("backup", str(tmp_path / "c.tar"), "--portable")
    back = databases.like(old.place, "back")
    back.manage("restore", str(tmp_path / "c.tar"), "--replace")
    assert back.python(LOOK) == old.look


def test_a_wrong_sealing_key_keeps_everything_from_starting(old: Old) -> None:
    wrong = Installation(old.place.folder, {**old.place.settings, "SPARKWEB_KEY": "the key of somebody else"})
    for words in (["serve", "prepare"], ["serve", "web"], ["check", "--database", "default"], ["up"]):
        assert "does not open 1 of 1 stored keys" in wrong.manage(*words, fails=True)


def test_missing_tables_and_wrong_places_are_named(databases: Databases, tmp_path: Path) -> None:
    place = databases.empty("bare")
    assert "lacks" in place.manage("serve", "worker", fails=True)
    place.settings["VAR"] = "/proc/sparkweb"
    assert "VAR=/proc/sparkweb can't be made" in place.manage("check", fails=True)
