"""One part of the stack in the foreground, for containers and service managers: prepare, web, worker or beat."""

from __future__ import annotations

import os
import socket
import time
import urllib.error
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection
from django.utils import timezone

from apps.people import services as people
from apps.people.models import User
from apps.runs.models import WorkerBeat
from sparkweb import checks, supervising, tls
from sparkweb.management.commands.up import prepare

PATIENCE_S = 60.0  # a database or Redis that starts at the same time as we do
SILENT_S = 20.0
BEAT_SILENT_S = 60.0
TRANSIENT = {"sparkweb.E001", "sparkweb.E005"}


class Command(BaseCommand):
    help = (
        "prepare: migrate, load recipes, print the first-run code, end. web, worker, beat: run that part until SIGTERM."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("part", choices=("prepare", "web", "worker", "beat"))
        parser.add_argument(
            "--healthy", action="store_true", help="only say whether this machine's PART is alive (0 or 1)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        part = options["part"]
        if options["healthy"]:
            healthy(part)
        elif part == "prepare":
            self._prepare()
        else:
            self._run(part)

    def _prepare(self) -> None:
        refuse_unless_sound(migrated=False, with_redis=False)
        prepare()
        refuse_unless_sound(migrated=True, with_redis=False)
        self.stdout.write("the database is up to date, the shipped recipes are in it")
        if not User.objects.exists():
            self.stdout.write(
                f"First run: open {settings.ORIGINS[0]}/first-run. Setup code, a one-time code: {people.setup_code()}"
            )

    def _run(self, part: str) -> None:
        refuse_unless_sound(migrated=True, with_redis=True)
        for folder in (settings.VAR / "run", settings.STATIC_ROOT):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            program = next(
                found
                for found in supervising.programs(settings.VAR, host=settings.HOST, port=settings.PORT)
                if found.name == part
            )
        except supervising.CannotStart as problem:
            raise CommandError(str(problem)) from None
        if part == "web":
            self._say_where()
        connection.close()
        self.stdout.flush()
        os.execv(program.words[0], program.words)  # noqa: S606 - our own interpreter: it takes our place and our signals

    def _say_where(self) -> None:
        files = supervising.tls_files(settings.VAR)
        self.stdout.write(f"sparkweb serves {' and '.join(settings.ORIGINS)} on {settings.HOST}:{settings.PORT}")
        if files is None:
            self.stdout.write("without TLS")
        else:
            self.stdout.write(f"certificate {files.certificate}, SHA-256 {tls.fingerprint(files.certificate)}")


def refuse_unless_sound(*, migrated: bool, with_redis: bool) -> None:
    """Waits a while for database and Redis. Raises CommandError with everything that is wrong."""
    until = time.monotonic() + PATIENCE_S
    while True:
        if migrated:
            found = checks.problems(with_redis=with_redis)
        else:
            found = checks.database_writable() or checks.key_opens_what_is_stored()
        if not found:
            return
        if any(message.id not in TRANSIENT for message in found) or time.monotonic() > until:
            raise CommandError(f"not started.\n{checks.words(found)}")
        connection.close()
        time.sleep(1.0)


def healthy(part: str) -> None:
    """Raises CommandError when the part of this machine does not live."""
    if part == "web":
        _web_answers()
    elif part == "worker":
        _worker_beats()
    elif part == "beat":
        _beat_sends(settings.VAR / "run" / "beat")


def _web_answers() -> None:
    try:
        supervising.ask_own("/healthz", host=settings.HOST, port=settings.PORT, timeout=15)
    except (urllib.error.URLError, OSError, ValueError) as problem:
        raise CommandError(f"the server does not answer: {problem}") from None


def _worker_beats() -> None:
    since = timezone.now() - timedelta(seconds=SILENT_S)
    try:
        alive = WorkerBeat.objects.filter(name__startswith=f"{socket.gethostname()}:", at__gte=since).exists()
    except DatabaseError as problem:
        raise CommandError(f"the database does not answer: {problem}") from None
    if not alive:
        raise CommandError(f"no worker of {socket.gethostname()} was heard within {SILENT_S:.0f} s")


def _beat_sends(note: Path) -> None:
    allowed = max(BEAT_SILENT_S, 5 * settings.REAP_PERIOD_S)
    if not note.exists() or time.time() - note.stat().st_mtime > allowed:
        raise CommandError(f"beat has sent nothing for {allowed:.0f} s")
