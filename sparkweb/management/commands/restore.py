"""Put a backup in place of this installation's database."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.audit import COMMAND_LINE, record
from sparkweb.backing import BackupFailed, restore


class Command(BaseCommand):
    help = (
        "Restore FILE (- for standard input): checks it, replaces the database, migrates it forward, "
        "verifies the audit chain. Stop everything else first."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--replace", action="store_true", help="also when this installation is not empty")
        parser.add_argument("--keys", type=Path, metavar="FILE", help="the keys that backup --with-keys wrote")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["file"] == Path("-"):
                done = from_standard_input(replace=options["replace"], keys=options["keys"])
            else:
                done = restore(options["file"], replace=options["replace"], keys=options["keys"])
        except BackupFailed as problem:
            raise CommandError(str(problem)) from None
        except OSError as problem:
            raise CommandError(f"{problem.filename or options['file']}: {problem.strerror}") from None
        record(
            COMMAND_LINE,
            "installation:restored",
            object_type="installation",
            after={"entries": done["entries"], "head": done["head"], "migrated": done["migrated"]},
        )
        self.stdout.write(
            f"restored: {done['entries']} audit entries, the chain is whole, head {done['head'][:12]}; "
            f"{done['migrated']} migrations applied{'; keys put into VAR/keys' if done['keys'] else ''}"
        )


def from_standard_input(*, replace: bool, keys: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="restore-", dir=settings.VAR) as folder:
        whole = Path(folder) / "backup.tar"
        with whole.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return restore(whole, replace=replace, keys=keys)
