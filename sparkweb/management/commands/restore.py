"""Put a backup in place of this installation's database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sparkweb.backing import BackupFailed, restore


class Command(BaseCommand):
    help = "Restore FILE: checks it, replaces the database, migrates it forward, verifies the audit chain. Stop web and workers first."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--replace", action="store_true", help="also when this installation is not empty")
        parser.add_argument("--keys", type=Path, metavar="FILE", help="the keys that backup --with-keys wrote")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            done = restore(options["file"], replace=options["replace"], keys=options["keys"])
        except BackupFailed as problem:
            raise CommandError(str(problem)) from None
        except OSError as problem:
            raise CommandError(f"{problem.filename or options['file']}: {problem.strerror}") from None
        self.stdout.write(
            f"restored: {done['entries']} audit entries, the chain is whole, head {done['head'][:12]}; "
            f"{done['migrated']} migrations applied{'; keys put into VAR/keys' if done['keys'] else ''}"
        )
