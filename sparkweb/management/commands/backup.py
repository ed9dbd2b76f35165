"""Write a backup: database and manifest into one file, the keys, when asked for, into another."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from apps.audit import COMMAND_LINE, record
from apps.audit.management.prepared import PreparedCommand
from sparkweb.backing import BackupFailed, Manifest, backup

STANDARD_OUTPUT = Path("-")


class Command(PreparedCommand):
    needs_newest = False  # one makes a backup before an upgrade
    help = "Back up the database to FILE (- for standard output). The keys are left out, unless --with-keys FILE."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--with-keys", type=Path, metavar="FILE", help="also write the keys, to a file of their own"
        )
        parser.add_argument("--portable", action="store_true", help="fits SQLite and PostgreSQL, of this same version")

    def handle(self, *args: Any, **options: Any) -> None:
        file, keys = options["file"], options["with_keys"]
        try:
            if file == STANDARD_OUTPUT:
                manifest = to_standard_output(portable=options["portable"], keys=keys)
            else:
                manifest = backup(file, portable=options["portable"], keys=keys)
        except BackupFailed as problem:
            raise CommandError(str(problem)) from None
        except OSError as problem:
            raise CommandError(f"{problem.filename or file}: {problem.strerror}") from None
        record(
            COMMAND_LINE,
            "installation:backed_up",
            object_type="installation",
            after={"kind": manifest.kind, "sha256": manifest.sha256, "keys": keys is not None},
        )
        self._tell(manifest, file, keys)

    def _tell(self, manifest: Manifest, file: Path, keys: Path | None) -> None:
        said = asdict(manifest)
        self.stderr.write(
            f"{file}: {said['kind']}, {said['bytes']} bytes, {sum(manifest.rows.values())} rows, "
            f"{manifest.audit_entries} audit entries, head {manifest.audit_head[:12]}"
        )
        if keys:
            self.stderr.write(f"{keys}: the keys. Whoever has both files has every credential: keep them apart.")
        else:
            self.stderr.write(
                "The keys are not in it: keep VAR/keys or your secret files too, else nothing sealed opens again."
            )


def to_standard_output(*, portable: bool, keys: Path | None) -> Manifest:
    if os.isatty(sys.stdout.fileno()):
        raise BackupFailed("standard output is a terminal: redirect it into a file")
    with tempfile.TemporaryDirectory(prefix="backup-", dir=settings.VAR) as folder:
        whole = Path(folder) / "backup.tar"
        manifest = backup(whole, portable=portable, keys=keys)
        with whole.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return manifest
