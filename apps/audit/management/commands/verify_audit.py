"""`manage.py verify_audit`: exit 0 when the chain is whole, 1 naming the first broken entry."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from apps.audit import anchors
from apps.audit.management.prepared import PreparedCommand
from apps.audit.verifying import verify


class Command(PreparedCommand):
    needs_newest = False  # the trail's own table is enough
    help = "Check the audit trail's hash chain, and against the heads noted before; prints one JSON object."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--note", action="store_true", help="note the head in the file when all is well")
        parser.add_argument(
            "--anchors", type=Path, default=None, help="the file of noted heads (VAR/audit-anchors.jsonl)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path = options["anchors"] or Path(settings.VAR) / anchors.FILE
        result = verify()
        try:
            if result["ok"] and (found := anchors.contradiction(path)):
                result = {**result, "ok": False, **found}
            if result["ok"] and options["note"]:
                anchors.note(path)
        except OSError as problem:
            raise CommandError(f"--anchors {path}: {problem.strerror}") from None
        self.stdout.write(json.dumps(result))
        if not result["ok"]:
            sys.exit(1)
