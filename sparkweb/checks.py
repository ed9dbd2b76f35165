"""What a broken installation says of itself: the part, what is wrong with it, and the way on.

`manage.py up` and `manage.py serve` refuse to start with the errors of `problems()`; `manage.py check --database default`
shows those that need nothing but the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError, connection, transaction
from django.db.migrations.executor import MigrationExecutor

from apps.inventory import sealing
from apps.inventory.models import Credential, Secret
from apps.inventory.services import KEY_CONTEXT, SECRET_CONTEXT


def problems(*, with_redis: bool = True) -> list[CheckMessage]:
    """Everything that keeps this installation from working, the deepest cause first; empty when it can start."""
    database = database_writable()
    if database:
        return database + (redis_answers() if with_redis else [])
    found = migrations_applied() + key_opens_what_is_stored()
    return found + (redis_answers() if with_redis else [])


def database_writable() -> list[CheckMessage]:
    """A row can be written (and is taken back)."""
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("CREATE TABLE sparkweb_write_test (number integer)")
                cursor.execute("INSERT INTO sparkweb_write_test VALUES (1)")
            transaction.set_rollback(True)
    except (DatabaseError, OSError) as problem:
        return [
            Error(f"The database can't be written: {_first_line(problem)}", hint=_database_hint(), id="sparkweb.E001")
        ]
    return []


def _database_hint() -> str:
    if connection.vendor == "sqlite":
        return (
            f"Its file is {settings.DATABASES['default']['NAME']}: file and folder must be writable by this user, "
            "the disk not full, and no other program may hold it locked."
        )
    place = connection.settings_dict
    return (
        f"DATABASE_URL names {place['USER']}@{place['HOST']}:{place['PORT'] or 5432}/{place['NAME']}: is the server there, "
        "is the password right (DATABASE_PASSWORD_FILE), and does this user own the database?"
    )


def migrations_applied() -> list[CheckMessage]:
    """The tables are those of this version: neither older nor newer."""
    executor = MigrationExecutor(connection)
    missing = [f"{m.app_label}.{m.name}" for m, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())]
    if missing:
        return [
            Error(
                f"The database lacks {len(missing)} migrations of this version ({missing[0]} is the first).",
                hint=f"Run: {settings.COMMAND} serve prepare",
                id="sparkweb.E002",
            )
        ]
    known = set(executor.loader.disk_migrations or ())
    ours = {app for app, _ in known}
    newer = sorted(
        f"{app}.{name}" for app, name in executor.loader.applied_migrations if app in ours and (app, name) not in known
    )
    if newer:
        return [
            Error(
                f"The database was made by a newer version of sparkweb: it has {newer[0]}, which this one does not know.",
                hint="Run the version that it had last, or restore a backup from before the upgrade.",
                id="sparkweb.E003",
            )
        ]
    return []


def key_opens_what_is_stored() -> list[CheckMessage]:
    """The sealing key is the one that the stored credentials were sealed with. They are the canary."""
    tables = connection.introspection.table_names()
    sealed = [
        (f"credential {row.name}", row.sealed_private_key, KEY_CONTEXT)
        for row in (Credential.objects.order_by("pk") if Credential._meta.db_table in tables else ())
    ] + [
        (f"secret {row.name}", row.sealed_value, SECRET_CONTEXT)
        for row in (Secret.objects.order_by("pk") if Secret._meta.db_table in tables else ())
    ]
    closed = [name for name, value, context in sealed if not _opens(value, context)]
    if not closed:
        return []
    return [
        Error(
            f"The sealing key does not open {len(closed)} of {len(sealed)} stored keys and secrets ({closed[0]}).",
            hint="Put the key of this installation back: SPARKWEB_KEY_FILE, or VAR/keys/sealing_key from your backup. "
            "Without it what is sealed is lost; nothing is started, so that nothing new is sealed with another key.",
            id="sparkweb.E004",
        )
    ]


def _opens(value: str, context: str) -> bool:
    try:
        sealing.unseal(value, context=context)
    except sealing.SealBroken:
        return False
    return True


def redis_answers() -> list[CheckMessage]:
    import redis  # here: most commands ask nothing of it

    try:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=3, socket_connect_timeout=3)
        client.ping()
        client.close()
    except redis.AuthenticationError as problem:
        return [
            Error(
                f"Redis refuses us: {_first_line(problem)}",
                hint="REDIS_PASSWORD_FILE must hold Redis' password.",
                id="sparkweb.E006",
            )
        ]
    except (redis.RedisError, OSError, ValueError) as problem:
        return [
            Error(
                f"Redis does not answer: {_first_line(problem)}",
                hint=f"REDIS_URL names it (redis://host:6379/0); without REDIS_URL, `{settings.COMMAND} up` starts one.",
                id="sparkweb.E005",
            )
        ]
    return []


def _first_line(problem: Exception) -> str:
    """Without addresses that hold passwords: drivers name the host only."""
    return str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__


def words(found: Sequence[CheckMessage]) -> str:
    """For a person at a terminal."""
    return "\n".join(f"{message.msg}\n    {message.hint}" for message in found)


@register(Tags.database)
def installation(app_configs: Any, databases: Any = None, **options: Any) -> list[CheckMessage]:
    """The part for `check --database default` and `migrate`; missing migrations are no fault there."""
    if not databases:
        return []
    return database_writable() or key_opens_what_is_stored()
