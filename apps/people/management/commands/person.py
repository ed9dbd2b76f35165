"""`manage.py person add|list|role|link|deactivate|reactivate`: people from the command line."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from apps.audit.actor import COMMAND_LINE
from apps.audit.management.prepared import PreparedCommand
from apps.people import services
from apps.people.models import User, name_key, tidy_name
from apps.people.roles import ROLES


class Command(PreparedCommand):
    help = "Add people, list them, change their role, print a sign-in link, deactivate or reactivate them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        add = acts.add_parser("add", help="add a person and print their one-time sign-in link")
        add.add_argument("name")
        add.add_argument("--role", required=True, choices=list(ROLES))
        listing = acts.add_parser("list", help="list everybody")
        listing.add_argument("--json", action="store_true")
        role = acts.add_parser("role", help="give a person another role")
        role.add_argument("name")
        role.add_argument("role", choices=list(ROLES))
        link = acts.add_parser("link", help="print a new one-time sign-in link; the one before stops working")
        link.add_argument("name")
        for word in ("deactivate", "reactivate"):
            acts.add_parser(word, help=f"{word} a person").add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['act']}")(options)
        except services.Refused as refusal:
            raise CommandError(str(refusal)) from None

    def _person(self, name: str) -> int:
        found = User.objects.filter(name_key=name_key(tidy_name(name))).first()
        if found is None:
            raise CommandError(f"There is no person {name!r}. See: {settings.COMMAND} person list")
        return found.pk

    def _print_link(self, link: services.NewLink) -> None:
        self.stdout.write(f"{settings.ORIGINS[0]}{link.path}")

    def _add(self, options: dict[str, Any]) -> None:
        self._print_link(services.add_person(COMMAND_LINE, options["name"], options["role"])[1])

    def _link(self, options: dict[str, Any]) -> None:
        self._print_link(services.new_sign_in_link(COMMAND_LINE, self._person(options["name"])))

    def _role(self, options: dict[str, Any]) -> None:
        person = services.change_role(COMMAND_LINE, self._person(options["name"]), options["role"])
        self.stdout.write(f"{person.name} is {person.role} now.")

    def _deactivate(self, options: dict[str, Any]) -> None:
        person = services.deactivate(COMMAND_LINE, self._person(options["name"]))
        self.stdout.write(f"{person.name} is deactivated.")

    def _reactivate(self, options: dict[str, Any]) -> None:
        person = services.reactivate(COMMAND_LINE, self._person(options["name"]))
        self.stdout.write(f"{person.name} is active again.")

    def _list(self, options: dict[str, Any]) -> None:
        for person in User.objects.all():
            if options["json"]:
                row = {"id": person.pk, "name": person.name, "role": person.role, "active": person.active}
                self.stdout.write(json.dumps(row))
            else:
                self.stdout.write(f"{person.role:9} {'active' if person.active else 'deactivated':12} {person.name}")
