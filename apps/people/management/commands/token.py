"""`manage.py token NAME --role ROLE`: prints one API token, and nothing else, on standard output."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from apps.audit.actor import COMMAND_LINE
from apps.audit.management.prepared import PreparedCommand
from apps.people import services
from apps.people.roles import ROLES


class Command(PreparedCommand):
    help = "Make an API token and print it. It is shown this once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what the token is for")
        parser.add_argument("--role", required=True, choices=list(ROLES))
        parser.add_argument(
            "--days", type=int, default=0, help="how long it works; 0, the default: until it is revoked"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 <= options["days"] <= 36500:
            raise CommandError("--days: a number from 0 to 36500")
        life = timedelta(days=options["days"]) if options["days"] else None
        try:
            token = services.make_token(COMMAND_LINE, options["name"], options["role"], life=life)
        except services.Refused as refusal:
            raise CommandError(str(refusal)) from None
        self.stdout.write(token.value)
