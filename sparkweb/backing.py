"""Backups: one tar with a manifest and the database, the keys apart. Restoring checks everything before it changes anything.

The database's part is, by `kind`:
  sqlite  a copy made by SQLite's online backup
  pgdump  what pg_dump wrote (custom format)
  jsonl   one JSON object a line, in the order of their tables: for every database, and from one kind to the other
Sessions are left out: after a restore everybody signs in again. So are passwords that were given for one run.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import hashlib
import hmac
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from django.apps import apps
from django.conf import settings
from django.core import serializers
from django.core.management import call_command
from django.core.management.color import no_style
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, connection, models, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from apps.audit import anchors
from apps.audit.models import GENESIS, Entry
from apps.audit.verifying import verify, verify_chain
from sparkweb import backing_trail

FORMAT = 1
KINDS = ("sqlite", "pgdump", "jsonl")
FORGOTTEN = ("runs_passing", "django_session")  # tables whose rows no copy holds
_LEFT_OUT = ("sessions", "contenttypes", "auth")  # migrate fills the last two; nothing of ours points to them
_PIECE = 1 << 20


class BackupFailed(Exception):
    """The text says what is wrong, with which file, and the way on. Nothing was changed unless it says so."""


@dataclass(frozen=True)
class Manifest:
    """What the backup holds. `key_check` tells the installation's sealing key without giving it away."""

    format: int
    sparkweb: str
    made_at: str  # ISO 8601, UTC
    kind: str
    member: str
    sha256: str  # of the member
    bytes: int
    migrations: tuple[str, ...]  # app.name, those of our apps and Django's
    rows: dict[str, int]  # table -> rows
    audit_entries: int
    audit_head: str
    key_check: str


def key_check(key: str) -> str:
    """The same for the same sealing key; the key can't be computed from it (it has 384 random bits)."""
    return hmac.new(key.encode(), b"sparkweb backup key check v1", hashlib.sha256).hexdigest()


def product_version() -> str:
    try:
        return version("sparkweb")
    except PackageNotFoundError:  # run from its folder, which is the usual way
        import tomllib

        with contextlib.suppress(OSError, ValueError, KeyError):
            return str(tomllib.loads((settings.BASE_DIR / "pyproject.toml").read_text())["project"]["version"])
        return "unknown"


# Making one


def backup(target: Path, *, portable: bool = False, keys: Path | None = None) -> Manifest:
    """Write a backup to `target` (0600), the keys to `keys`. Neither file may exist. Raises BackupFailed."""
    for path in (target, keys):
        if path is not None and path.exists():
            raise BackupFailed(f"{path} exists already: choose another name, backups are not overwritten")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=target.parent) as name:
        folder = Path(name)
        kind = _kind(portable=portable)
        member = folder / f"database.{kind}"
        with _unchanging() as snapshot:
            MAKERS[kind](member, snapshot)
            manifest = _manifest(kind, member)
        if kind == "sqlite":
            manifest = _manifest_of_copy(member, manifest)
        whole = folder / "whole.tar"
        _pack(whole, member, manifest)
        if keys is not None:
            _write_private(keys, json.dumps(_keys(), indent=1) + "\n")
        os.link(whole, target)  # fails, rather than overwrite, when the name was taken meanwhile
    return manifest


def _kind(*, portable: bool) -> str:
    if portable:
        return "jsonl"
    if connection.vendor == "sqlite":
        return "sqlite"
    return "pgdump" if _pg_tools() else "jsonl"


def _pg_tools() -> bool:
    """pg_dump and pg_restore are here and not older than the server: an older pg_dump refuses."""
    program = shutil.which("pg_dump")
    if program is None or shutil.which("psql") is None or shutil.which("pg_restore") is None:
        return False
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603 - found by us
    digits = [part.split(".")[0] for part in said.split() if part[:1].isdigit()]
    connection.ensure_connection()
    return bool(digits) and int(digits[0]) >= connection.pg_version // 10000  # type: ignore[attr-defined]


@contextlib.contextmanager
def _unchanging() -> Iterator[str]:
    """Counts and copy see the same moment. On PostgreSQL the yielded snapshot lets pg_dump see it too."""
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        yield ""
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT pg_export_snapshot()")
        yield str(cursor.fetchone()[0])


def _copy_sqlite(member: Path, snapshot: str) -> None:
    connection.ensure_connection()
    copy = sqlite3.connect(member)
    try:
        connection.connection.backup(copy, pages=-1)
        copy.execute("PRAGMA journal_mode=DELETE")
        there = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in there & set(FORGOTTEN):  # a database of an earlier release lacks some
            copy.execute(f"DELETE FROM {table}")  # noqa: S608 - a constant
        copy.commit()
        copy.execute("VACUUM")  # what was deleted is gone from the file too
    finally:
        copy.close()


def _dump_postgresql(member: Path, snapshot: str) -> None:
    _pg(
        "pg_dump",
        "--format=custom",
        "--no-owner",
        "--no-privileges",
        *(f"--exclude-table-data={table}" for table in FORGOTTEN),
        *([f"--snapshot={snapshot}"] if snapshot else []),
        f"--file={member}",
    )


class ExactMoments(DjangoJSONEncoder):
    """Django's own cuts microseconds off, and an audit entry's hash covers them."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if isinstance(o, datetime.datetime) else super().default(o)


def _dump_lines(member: Path, snapshot: str) -> None:
    with gzip.open(member, "wt", encoding="utf-8", compresslevel=5) as file:
        for model in portable_models():
            rows = model._default_manager.order_by("pk").iterator(chunk_size=200)
            serializers.serialize("jsonl", rows, stream=file, cls=ExactMoments)


MAKERS = {"sqlite": _copy_sqlite, "pgdump": _dump_postgresql, "jsonl": _dump_lines}


def portable_models() -> list[type[models.Model]]:
    """Those with rows of ours, each after what it points to."""
    ours = [app for app in apps.get_app_configs() if app.label not in _LEFT_OUT]
    ordered = serializers.sort_dependencies([(app, None) for app in ours], allow_cycles=True)
    kept = [model for model in ordered if model._meta.db_table not in FORGOTTEN]
    waiting = [model for model in kept if model._meta.managed and not model._meta.proxy]
    done: list[type[models.Model]] = []
    while waiting:
        ready = [m for m in waiting if _points_to(m) <= set(done) | {m}] or waiting[:1]
        done += ready
        waiting = [m for m in waiting if m not in ready]
    return done


def _points_to(model: type[models.Model]) -> set[Any]:
    return {field.related_model for field in model._meta.concrete_fields if field.is_relation and field.related_model}


def _manifest(kind: str, member: Path) -> Manifest:
    head = Entry.objects.order_by("-id").first()
    return Manifest(
        format=FORMAT,
        sparkweb=product_version(),
        made_at=timezone.now().isoformat(timespec="seconds"),
        kind=kind,
        member=member.name,
        sha256=_sha256(member),
        bytes=member.stat().st_size,
        migrations=tuple(sorted(f"{app}.{name}" for app, name in MigrationRecorder(connection).applied_migrations())),
        rows={table: count for table, count in _row_counts().items() if table not in FORGOTTEN},
        audit_entries=Entry.objects.count(),
        audit_head=head.hash if head else GENESIS,
        key_check=key_check(settings.SPARKWEB_KEY),
    )


def _manifest_of_copy(member: Path, manifest: Manifest) -> Manifest:
    """SQLite's copy is of one moment, the counts may be of a later one: they are taken from the copy."""
    with contextlib.closing(sqlite3.connect(member)) as copy:
        rows = {table: copy.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0] for table in manifest.rows}  # noqa: S608 - names of our tables
        last = copy.execute("SELECT hash FROM audit_entry ORDER BY seq DESC LIMIT 1").fetchone()
    return Manifest(
        **{
            **asdict(manifest),
            "migrations": manifest.migrations,
            "rows": rows,
            "audit_entries": rows.get("audit_entry", 0),
            "audit_head": last[0] if last else GENESIS,
        }
    )


def _row_counts() -> dict[str, int]:
    counts = {}
    with connection.cursor() as cursor:
        for table in sorted(connection.introspection.table_names(cursor)):
            cursor.execute(f"SELECT COUNT(*) FROM {connection.ops.quote_name(table)}")  # noqa: S608 - quoted
            counts[table] = int(cursor.fetchone()[0])
    return counts


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pack(whole: Path, member: Path, manifest: Manifest) -> None:
    text = member.parent / "manifest.json"
    text.write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    with os.fdopen(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in (text, member):  # the manifest first: it can be read without the rest
                tar.add(path, arcname=path.name, filter=_plain)
        file.flush()
        os.fsync(file.fileno())


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o600
    return info


def _keys() -> dict[str, str]:
    return {"secret_key": settings.SECRET_KEY, "sealing_key": settings.SPARKWEB_KEY}


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


# Reading one


@contextlib.contextmanager
def opened(source: Path) -> Iterator[tuple[Manifest, Path]]:
    """The manifest and the database's part, unpacked and compared with its SHA-256. Raises BackupFailed."""
    with tempfile.TemporaryDirectory(prefix="restore-", dir=settings.VAR) as name:
        try:
            with tarfile.open(source, mode="r:") as tar:
                manifest = read_manifest(_member(tar, "manifest.json").read())
                member = Path(name) / manifest.member
                with _member(tar, manifest.member) as packed, member.open("wb") as file:
                    shutil.copyfileobj(packed, file, _PIECE)
        except OSError as problem:
            raise BackupFailed(f"{source} can't be read: {problem}") from None
        except tarfile.TarError as problem:
            raise BackupFailed(f"{source} is no whole backup ({problem}): take another copy of it") from None
        if member.stat().st_size != manifest.bytes or _sha256(member) != manifest.sha256:
            raise BackupFailed(
                f"{source} is damaged: the database in it has {member.stat().st_size} of {manifest.bytes} bytes "
                "or another SHA-256 than the manifest says. Take another copy of it."
            )
        yield manifest, member


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise BackupFailed(f"{tar.name!s} is no whole backup: {name} is missing in it. Take another copy of it.")
    return file


def read_manifest(text: bytes) -> Manifest:
    """Raises BackupFailed for anything that this version does not understand."""
    try:
        body = json.loads(text)
        found = Manifest(**{**body, "migrations": tuple(body["migrations"])})
        good = found.kind in KINDS and found.member == f"database.{found.kind}" and isinstance(found.bytes, int)
    except (ValueError, TypeError, KeyError) as problem:
        raise BackupFailed(
            f"the backup's manifest can't be read ({problem}): it is damaged or no backup of sparkweb"
        ) from None
    if found.format != FORMAT or not good:
        raise BackupFailed(
            f"the backup has format {found.format} and kind {found.kind!r}; this version reads format {FORMAT}. "
            f"It was made by sparkweb {found.sparkweb}: restore it with that version."
        )
    return found


# Restoring


def restore(source: Path, *, replace: bool = False, keys: Path | None = None) -> dict[str, Any]:
    """Put a backup in place of this installation's database and migrate it forward.

    Returns the audit chain's verdict with `migrated`, the number of migrations that were applied. Raises BackupFailed;
    the database is as before unless the text says otherwise.
    """
    with opened(source) as (manifest, member):
        refuse_newer(manifest)
        new_keys = _agree_on_key(manifest, keys)
        _refuse_other_database(manifest)
        if not replace and not is_empty():
            raise BackupFailed(
                "this installation has people, nodes or audit entries already. Stop it, make a backup of it, "
                "and say --replace to put the backup in its place."
            )
        _refuse_broken_trail(manifest, member)
        RESTORERS[manifest.kind](manifest, member)
    connection.close()
    if new_keys:
        _put_keys(new_keys)
    before = len(MigrationRecorder(connection).applied_migrations())
    call_command("migrate", verbosity=0, interactive=False, skip_checks=True)
    migrated = len(MigrationRecorder(connection).applied_migrations()) - before
    return {**_verified(manifest), "migrated": 0 if manifest.kind == "jsonl" else migrated, "keys": bool(new_keys)}


def refuse_newer(manifest: Manifest) -> None:
    from django.db.migrations.loader import MigrationLoader

    known = {f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations or ()}
    newer = sorted(set(manifest.migrations) - known)
    if newer:
        raise BackupFailed(
            f"the backup was made by sparkweb {manifest.sparkweb} with {newer[0]}, which this version does not know: "
            "restore it with that version or a newer one"
        )
    if manifest.kind == "jsonl":
        missing = sorted(known - set(manifest.migrations))
        if missing:
            raise BackupFailed(
                f"this portable backup is of another schema (it lacks {missing[0]}): restore it with sparkweb "
                f"{manifest.sparkweb}, upgrade, and make a new one. Only backups of the database's own kind migrate forward."
            )


def _agree_on_key(manifest: Manifest, keys: Path | None) -> dict[str, str]:
    """The keys to put into VAR; empty when this installation has the right one already."""
    if hmac.compare_digest(manifest.key_check, key_check(settings.SPARKWEB_KEY)):
        return {}
    if keys is None:
        raise BackupFailed(
            "the backup's credentials were sealed with another key than this installation's. Give the file that "
            "`backup --with-keys` wrote (--keys FILE), or put the old key into SPARKWEB_KEY_FILE or VAR/keys/sealing_key."
        )
    found = read_keys(keys)
    if not hmac.compare_digest(manifest.key_check, key_check(found["sealing_key"])):
        raise BackupFailed(f"{keys} holds another installation's key: it does not open this backup's credentials")
    for variable in ("SPARKWEB_KEY", "SECRET_KEY"):
        if os.environ.get(variable) or os.environ.get(f"{variable}_FILE"):
            raise BackupFailed(
                f"{variable} comes from the environment, so it is not mine to change: put the value from {keys} there"
            )
    return found


def read_keys(path: Path) -> dict[str, str]:
    """Raises BackupFailed."""
    try:
        body = json.loads(path.read_text())
        return {name: str(body[name]) for name in ("secret_key", "sealing_key")}
    except OSError as problem:
        raise BackupFailed(f"{path} can't be read: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise BackupFailed(f"{path} is no file of keys as `backup --with-keys` writes it") from None


def _put_keys(keys: dict[str, str]) -> None:
    folder = settings.VAR / "keys"
    for name, value in keys.items():
        new = folder / f"{name}.new"
        new.unlink(missing_ok=True)
        _write_private(new, value)
        new.replace(folder / name)


def _refuse_other_database(manifest: Manifest) -> None:
    wanted = {"sqlite": "sqlite", "pgdump": "postgresql"}.get(manifest.kind, connection.vendor)
    if wanted != connection.vendor:
        raise BackupFailed(
            f"the backup is of {wanted} and this installation uses {connection.vendor}: "
            "make it with `backup --portable`, which fits both"
        )
    if manifest.kind == "pgdump" and not _pg_tools():
        raise BackupFailed(
            "pg_restore and psql are missing or older than the server: apt-get install postgresql-client"
        )


def is_empty() -> bool:
    """Nothing of anybody's is in it: no person, node, deployment, run or audit entry. Shipped recipes do not count."""
    try:
        tables = set(connection.introspection.table_names())
    except DatabaseError as problem:
        raise BackupFailed(f"the database can't be read: {problem}") from None
    ours = [("audit", "Entry"), ("people", "User"), ("inventory", "Node"), ("inventory", "Credential"), ("runs", "Run")]
    found = [apps.get_model(label, name) for label, name in ours]
    return not any(model._meta.db_table in tables and model._default_manager.exists() for model in found)


def _refuse_broken_trail(manifest: Manifest, member: Path) -> None:
    """The audit chain in the backup is whole and ends where the manifest says; else nothing is replaced."""
    part = member
    if manifest.kind == "pgdump":
        part = member.with_suffix(".audit.sql")
        words = ("--data-only", f"--table={backing_trail.TABLE}", f"--file={part}", str(member))
        _pg("pg_restore", *words, database=False)
    try:
        verdict = verify_chain(backing_trail.READERS[manifest.kind](part))
    except (
        backing_trail.Unreadable,
        sqlite3.DatabaseError,
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
    ) as problem:
        raise BackupFailed(f"the audit trail in the backup can't be read ({problem}); nothing was changed") from None
    if not verdict["ok"]:
        raise BackupFailed(
            f"the audit chain in the backup is broken: {verdict['why']}; nothing was changed. Take another backup."
        )
    if (verdict["entries"], verdict["head"]) != (manifest.audit_entries, manifest.audit_head):
        raise BackupFailed(
            f"the audit trail in the backup ends elsewhere than its manifest says: {verdict['entries']} entries "
            f"instead of {manifest.audit_entries}; nothing was changed"
        )


def _restore_sqlite(manifest: Manifest, member: Path) -> None:
    """The old file is kept beside until the new one is in place; SQLite's own files of it go with it."""
    with contextlib.closing(sqlite3.connect(member)) as copy:
        verdict = copy.execute("PRAGMA integrity_check").fetchone()[0]
        counts = {table: copy.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0] for table in manifest.rows}  # noqa: S608 - names are the manifest's, and quoted
    if verdict != "ok" or counts != manifest.rows:
        raise BackupFailed(f"the database in the backup is not sound: {verdict}; nothing was changed")
    connection.ensure_connection()
    with contextlib.closing(sqlite3.connect(member)) as copy:
        copy.backup(connection.connection, pages=-1)  # takes SQLite's locks: who reads it sees the old or the new one
    connection.close()


def _restore_postgresql(manifest: Manifest, member: Path) -> None:
    """All in one transaction: the old tables go and the new ones come, or nothing happens."""
    script = member.with_suffix(".sql")
    _pg("pg_restore", "--no-owner", "--no-privileges", f"--file={script}", str(member), database=False)
    connection.close()
    start = "DROP SCHEMA public CASCADE;\nCREATE SCHEMA public;\n"
    head = member.with_suffix(".head.sql")
    head.write_text(start)
    _pg(
        "psql",
        "--no-psqlrc",
        "--quiet",
        "--single-transaction",
        "--set=ON_ERROR_STOP=1",
        "--output=/dev/null",
        f"--file={head}",
        f"--file={script}",
    )


def _restore_lines(manifest: Manifest, member: Path) -> None:
    """Into the tables of this version, emptied first; all in one transaction."""
    call_command("migrate", verbosity=0, interactive=False, skip_checks=True)
    try:
        with transaction.atomic():
            _empty_tables()
            with gzip.open(member, "rt", encoding="utf-8") as file:
                for row in serializers.deserialize("jsonl", file, handle_forward_references=True):
                    row.save()
            _reset_sequences()
            counts = _row_counts()
            wrong = [t for m in portable_models() if counts[t := m._meta.db_table] != manifest.rows.get(t)]
            if wrong:
                raise BackupFailed(
                    f"{wrong[0]} has {counts[wrong[0]]} rows and should have {manifest.rows.get(wrong[0])}"
                )
    except (DatabaseError, serializers.base.DeserializationError, ValueError, EOFError) as problem:
        raise BackupFailed(f"the rows can't be put into the database ({problem}); nothing was changed") from None


def _empty_tables() -> None:
    """The trail refuses to be emptied, so its protection is taken off and put back in the same transaction."""
    from importlib import import_module
    from types import SimpleNamespace

    protection = import_module("apps.audit.migrations.0002_append_only")
    editor = SimpleNamespace(connection=connection)
    protection.backwards(None, editor)
    with connection.cursor() as cursor:
        for table in [*FORGOTTEN, *(model._meta.db_table for model in reversed(portable_models()))]:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")  # noqa: S608 - quoted
    protection.forwards(None, editor)


def _reset_sequences() -> None:
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), portable_models()):
            cursor.execute(statement)


RESTORERS = {"sqlite": _restore_sqlite, "pgdump": _restore_postgresql, "jsonl": _restore_lines}


def _verified(manifest: Manifest) -> dict[str, Any]:
    verdict = verify()
    if not verdict["ok"]:
        raise BackupFailed(
            f"restored, but the audit chain is broken: {verdict['why']}. Do not rely on this backup's trail."
        )
    if (verdict["entries"], verdict["head"]) != (manifest.audit_entries, manifest.audit_head):
        raise BackupFailed(
            f"restored, but the audit trail ends elsewhere than the manifest says: {verdict['entries']} entries "
            f"instead of {manifest.audit_entries}"
        )
    anchors.set_aside(settings.VAR / anchors.FILE)
    return verdict


def _pg(program: str, *words: str, database: bool = True) -> None:
    """One of PostgreSQL's own programs on our database; the password goes through its environment, never its arguments."""
    place = connection.settings_dict
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    given = {"PGHOST": place["HOST"], "PGPORT": place["PORT"], "PGUSER": place["USER"], "PGPASSWORD": place["PASSWORD"]}
    given |= {f"PG{name.upper()}": value for name, value in place["OPTIONS"].items() if name.startswith("ssl")}
    environment |= {name: str(value) for name, value in given.items() if value}
    done = subprocess.run(  # noqa: S603 - our own words
        [shutil.which(program) or program, *([f"--dbname={place['NAME']}"] if database else []), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise BackupFailed(f"{program} failed ({done.returncode}): {done.stderr.strip()[-600:]}")
