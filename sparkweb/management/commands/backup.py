"""Write a backup: database and manifest into one file, the keys, when asked for, into another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sparkweb.backing import BackupFailed, backup


class Command(BaseCommand):
    help = "Back up the database to FILE. The keys that open its credentials are left out, unless --with-keys FILE."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--with-keys", type=Path, metavar="FILE", help="also write the keys, to a file of their own (0600)"
        )
        parser.add_argument(
            "--portable", action="store_true", help="one that fits SQLite and PostgreSQL of this same version"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            manifest = backup(options["file"], portable=options["portable"], keys=options["with_keys"])
        except BackupFailed as problem:
            raise CommandError(str(problem)) from None
        except OSError as problem:
            raise CommandError(f"{problem.filename or options['file']}: {problem.strerror}") from None
        self.stdout.write(
            f"{options['file']}: {manifest.kind}, {manifest.bytes} bytes, {sum(manifest.rows.values())} rows, "
            f"{manifest.audit_entries} audit entries, head {manifest.audit_head[:12]}"
        )
        if options["with_keys"]:
            self.stdout.write(
                f"{options['with_keys']}: the keys. Whoever has both files has every credential: keep them apart."
            )
        else:
            self.stdout.write(
                "The keys are not in it: keep VAR/keys or your secret files as well, or nothing sealed opens again."
            )
