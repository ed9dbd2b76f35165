import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from apps.audit import COMMAND_LINE, Actor, record
from apps.audit.models import GENESIS, Entry
from apps.audit.tags import Tag, checked
from apps.audit.verifying import head_is_sound, verify
from tests.flushing import unprotected_trail

ROOT = Path(__file__).resolve().parents[2]
ANA = Actor("person", 7, "Ana", "operator", "127.0.0.1", "abc123")


def some(count: int = 5) -> list[Entry]:
    return [record(ANA, "node:added", object_type="node", object_id=n, after={"n": n}) for n in range(count)]


def ask_verify(*words: str) -> tuple[int, dict]:
    out, status = StringIO(), 0
    try:
        call_command("verify_audit", *words, stdout=out)
    except SystemExit as end:
        status = end.code
    return status, json.loads(out.getvalue())


@pytest.mark.django_db
class TestRecord:
    def test_an_entry_has_who_what_why_and_the_change(self) -> None:
        entry = record(
            ANA,
            "deployment:relaunched",
            object_type="deployment",
            object_id=3,
            object_name="qwen",
            outcome="requested",
            reason="rebooted",
            before={"state": "lost"},
            after={"state": "launching"},
            run=42,
        )
        found = Entry.objects.get(pk=entry.id)
        assert (found.actor_kind, found.actor_id, found.actor_name, found.actor_role) == (
            "person",
            7,
            "Ana",
            "operator",
        )
        assert (found.address, found.session, found.reason) == ("127.0.0.1", "abc123", "rebooted")
        assert (found.object_type, found.object_id, found.object_name) == ("deployment", "3", "qwen")
        assert (found.outcome, found.run_id) == ("requested", 42)
        assert (found.before, found.after) == ({"state": "lost"}, {"state": "launching"})
        assert found.as_json()["actor"] == {"kind": "person", "id": 7, "name": "Ana", "role": "operator"}

    def test_each_follows_the_one_before(self) -> None:
        entries = some(3)
        assert [entry.seq for entry in entries] == [1, 2, 3]
        assert entries[0].prev_hash == GENESIS
        assert [entry.prev_hash for entry in entries[1:]] == [entry.hash for entry in entries[:-1]]

    def test_it_goes_with_the_act(self) -> None:
        some(2)
        with pytest.raises(RuntimeError), transaction.atomic():
            record(ANA, "node:added")
            raise RuntimeError
        assert Entry.objects.count() == 2
        assert record(ANA, "node:added").id == 3
        assert verify()["ok"]

    @pytest.mark.parametrize("bad", ["launched", "Node:added", "node:", "node:added now", "x:" + "y" * 70])
    def test_an_action_follows_the_grammar(self, bad: str) -> None:
        with pytest.raises(ValueError, match="deployment:relaunched"):
            record(ANA, bad)

    def test_an_unknown_outcome_is_refused(self) -> None:
        with pytest.raises(ValueError, match="perhaps"):
            record(ANA, "node:added", outcome="perhaps")

    def test_a_run_may_be_given_as_a_row(self) -> None:
        assert record(ANA, "node:added", run=some(1)[0]).run_id == 1

    def test_long_and_odd_text_is_stored(self) -> None:
        entry = record(
            ANA, "node:added", object_name="ñ" * 5000, reason="\0\ud83d<script>", after={"x": 1e20, "y": 10**30}
        )
        again = Entry.objects.get(pk=entry.pk)
        assert len(again.object_name) == 256
        assert again.after == {"x": 1e20, "y": 10**30}
        assert verify()["ok"]

    def test_no_secret_is_in_the_table(self) -> None:
        secret = "Zk8-plain-sentinel-value"
        record(
            ANA,
            "credential:added",
            reason="Bearer " + secret,
            before={"password": secret},
            after={"x": {"key": secret}},
        )
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM audit_entry")
            assert secret not in repr(cursor.fetchall())


@pytest.mark.django_db
class TestAppendOnly:
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE audit_entry SET reason = 'x' WHERE seq = 2",
            "UPDATE audit_entry SET reason = reason",
            "DELETE FROM audit_entry WHERE seq = 5",
            "DELETE FROM audit_entry",
            "INSERT OR REPLACE INTO audit_entry SELECT * FROM audit_entry WHERE seq = 2",
            "INSERT INTO audit_entry SELECT * FROM audit_entry WHERE seq = 2 "
            "ON CONFLICT (seq) DO UPDATE SET reason = 'x'",
        ],
    )
    def test_the_database_refuses(self, statement: str) -> None:
        if connection.vendor != "sqlite" and "OR REPLACE" in statement:
            pytest.skip("SQLite's own words")
        some()
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
        assert verify() == {"entries": 5, "ok": True, "head": Entry.objects.get(pk=5).hash}

    def test_truncate_is_refused_too(self) -> None:
        if connection.vendor != "postgresql":
            pytest.skip("SQLite has no TRUNCATE")
        some()
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("TRUNCATE audit_entry")

    def test_the_models_can_not_either(self) -> None:
        entry = some()[2]
        entry.reason = "x"
        for act in (entry.save, entry.delete, Entry.objects.all().delete, lambda: Entry.objects.update(reason="x")):
            with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
                act()

    def test_a_fork_is_refused(self) -> None:
        first = some(3)[0]
        fork = Entry(**{field.attname: getattr(first, field.attname) for field in Entry._meta.concrete_fields})
        fork.id = 4
        fork.hash = fork.computed_hash()
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            fork.save(force_insert=True)


@pytest.mark.django_db
class TestVerify:
    def test_an_empty_trail_is_whole(self) -> None:
        assert ask_verify() == (0, {"entries": 0, "ok": True, "head": GENESIS})

    def test_a_whole_trail(self) -> None:
        head = some(12)[-1].hash
        assert ask_verify() == (0, {"entries": 12, "ok": True, "head": head})
        assert head_is_sound(5) == {"ok": True, "checked": 5, "head": head}
        assert head_is_sound(500)["checked"] == 12

    @pytest.mark.parametrize("column", [field.column for field in Entry._meta.concrete_fields if field.column != "seq"])
    def test_any_edited_column_is_found(self, column: str) -> None:
        some()
        value = 99 if column in ("actor_id", "run_id") else "2001-01-01 00:00:00+00:00" if column == "time" else "x"
        with unprotected_trail(), connection.cursor() as cursor:
            cursor.execute(f"UPDATE audit_entry SET {column} = %s WHERE seq = 3", [value])
        status, result = ask_verify()
        assert status == 1 and not result["ok"]
        assert result["broken"] == (4 if column == "hash" and "follow" in result["why"] else 3)
        assert not head_is_sound(5)["ok"]

    @pytest.mark.parametrize(("gone", "named"), [(1, 2), (3, 4)])
    def test_a_removed_entry_is_found(self, gone: int, named: int) -> None:
        some()
        with unprotected_trail(), connection.cursor() as cursor:
            cursor.execute("DELETE FROM audit_entry WHERE seq = %s", [gone])
        status, result = ask_verify()
        assert (status, result["broken"]) == (1, named)
        assert f"entry {gone} is missing" in result["why"]

    def test_an_entry_rewritten_with_a_fitting_hash_is_found_by_the_next(self) -> None:
        some()
        entry = Entry.objects.get(pk=3)
        entry.reason = "nothing to see"
        entry.hash = entry.computed_hash()
        with unprotected_trail():
            entry.save()
        status, result = ask_verify()
        assert (status, result["broken"]) == (1, 4)

    def test_two_swapped_entries_are_found(self) -> None:
        some()
        with unprotected_trail(), connection.cursor() as cursor:
            for old, new in ((2, 100), (3, 2), (100, 3)):
                cursor.execute("UPDATE audit_entry SET seq = %s WHERE seq = %s", [new, old])
        assert ask_verify()[1]["broken"] == 2

    def test_missing_triggers_are_found(self) -> None:
        some()
        with connection.cursor() as cursor:
            if connection.vendor == "sqlite":
                cursor.execute("DROP TRIGGER audit_entry_delete")
            else:
                cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER audit_entry_change")
        status, result = ask_verify()
        assert status == 1 and result["broken"] is None and "no longer protects" in result["why"]


@pytest.mark.django_db
class TestAnchors:
    """What the chain alone can't prove: that its end is the end, and that it is not another chain."""

    @pytest.fixture
    def noted(self, tmp_path: Path) -> list[str]:
        words = ["--anchors", str(tmp_path / "heads.jsonl")]
        assert ask_verify(*words)[0] == 0
        some(3)
        assert ask_verify("--note", *words)[0] == 0
        some(2)
        assert ask_verify("--note", *words)[0] == 0
        some(1)
        return words

    def test_a_trail_that_only_grew(self, noted: list[str]) -> None:
        assert ask_verify(*noted)[0] == 0
        assert len(Path(noted[1]).read_text().splitlines()) == 2

    def test_a_cut_end(self, noted: list[str]) -> None:
        with unprotected_trail(), connection.cursor() as cursor:
            cursor.execute("DELETE FROM audit_entry WHERE seq > 3")
        assert verify()["ok"]
        status, result = ask_verify(*noted)
        assert (status, result["broken"]) == (1, 5) and "cut off" in result["why"]

    def test_a_chain_rewritten_from_the_start(self, noted: list[str]) -> None:
        with unprotected_trail(), connection.cursor() as cursor:
            cursor.execute("DELETE FROM audit_entry")
        some(6)
        assert verify()["ok"]
        status, result = ask_verify(*noted)
        assert (status, result["broken"]) == (1, 3) and "rewritten" in result["why"]

    @pytest.mark.parametrize("line", ["nonsense", "{}", '{"seq": "x", "hash": 1, "noted": 2}', "[]", "\xff"])
    def test_an_edited_file(self, noted: list[str], line: str) -> None:
        with Path(noted[1]).open("a") as file:
            file.write(line + "\n")
        status, result = ask_verify(*noted)
        assert status == 1 and "line 3" in result["why"]

    def test_a_file_that_can_not_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(CommandError, match="--anchors"):
            call_command("verify_audit", "--anchors", str(tmp_path))


WRITER = """
import threading
import django
django.setup()
from django.db import connections, transaction
from apps.audit import COMMAND_LINE, record
from apps.doorbell import ring
ring.ring = lambda *_: None

def write():
    for n in range(6):
        with transaction.atomic():
            record(COMMAND_LINE, "node:added", after={"n": n})
    connections.close_all()

threads = [threading.Thread(target=write) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_many_writers_make_one_chain(tmp_path: Path) -> None:
    """Three processes of three threads each, on a database in a file as in use."""
    environment = {**os.environ, "VAR": str(tmp_path)}
    environment.setdefault("DJANGO_SETTINGS_MODULE", "sparkweb.settings")

    def python(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    setup = python("-m", "django", "migrate", "audit", "--skip-checks", "-v0")
    assert setup.wait(120) == 0, setup.communicate()
    writers = [python("-c", WRITER) for _ in range(3)]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0], [writer.communicate() for writer in writers]
    check = python("-m", "django", "verify_audit")
    out, problems = check.communicate(timeout=120)
    assert check.returncode == 0, problems
    result = json.loads(out)
    assert (result["entries"], result["ok"]) == (54, True)


def test_every_tag_follows_the_grammar() -> None:
    assert all(checked(tag) == tag for tag in Tag)


def test_actor_of_the_command_line_is_ours() -> None:
    assert COMMAND_LINE.kind == "system"


@pytest.mark.django_db
def test_it_rings_once_the_act_is_committed(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    rung: list[tuple] = []
    monkeypatch.setattr("apps.doorbell.ring.ring", lambda *what: rung.append(what))
    with django_capture_on_commit_callbacks(execute=True):
        entry = record(ANA, "node:added")
        assert rung == []
    assert rung == [("audit", 0, entry.id)]
