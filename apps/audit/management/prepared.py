"""Commands on the database: they say which one they use, and refuse one that was never prepared."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor


def which() -> str:
    """The database in words: the SQLite file in VAR, or server and name (never the password)."""
    about = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"{about['NAME']} (VAR={settings.VAR})"
    return f"{about['NAME']} on {about['HOST'] or 'this machine'} (DATABASE_URL)"


class PreparedCommand(BaseCommand):
    """A command that needs the tables. What it works on goes to standard error, so that standard output stays the answer."""

    requires_system_checks = []  # they are of the code, and import every page and the API: `make check` runs them
    needs_newest = True  # the tables must be those of this version

    def execute(self, *args: Any, **options: Any) -> str | None:
        self._refuse_unprepared()
        OutputWrapper(options.get("stderr") or sys.stderr).write(f"database: {which()}")  # not in the red of errors
        return super().execute(*args, **options)

    def _refuse_unprepared(self) -> None:
        try:
            executor = MigrationExecutor(connection)
            missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        except DatabaseError as problem:
            raise CommandError(f"{which()} can't be read: {problem}") from None
        if not executor.loader.applied_migrations:
            raise CommandError(
                f"{which()} holds nothing of sparkweb yet. Start sparkweb on it first (`make up`), or name the folder of "
                f"the one that you mean: VAR=/some/folder {settings.COMMAND} …"
            )
        if missing and self.needs_newest:
            raise CommandError(
                f"{which()} is of an older version. Start the newer sparkweb on it first, or: {settings.COMMAND} serve prepare"
            )
