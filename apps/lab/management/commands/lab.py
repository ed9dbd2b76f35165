"""`manage.py lab`: run the pretend Sparks and steer them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.lab.client import LabError, ask


class Command(BaseCommand):
    help = "Pretend Sparks: serve, state, faults, fault, clear, reset, reboot, authorize, set, stop."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--folder", default="var/lab", help="where the lab keeps its nodes (default var/lab)")
        verbs = parser.add_subparsers(dest="verb", required=True, parser_class=argparse.ArgumentParser)
        serve = verbs.add_parser("serve", help="run in the foreground until Ctrl-C")
        serve.add_argument("--folder", default=argparse.SUPPRESS)
        serve.add_argument(
            "--factor",
            type=float,
            default=35.0,
            help="how much shorter engine, docker and reboot take (default 35: 39 shards in 20 s)",
        )
        serve.add_argument("--shards", type=int, default=39)
        serve.add_argument("--shard-seconds", type=float, default=18.0, help="seconds a shard before scaling")
        serve.add_argument("--rank-order", choices=["01", "10"], default="01")
        serve.add_argument("--redirect", choices=["auto", "mount", "rewrite"], default="auto")
        serve.add_argument("--third", action="store_true", help="with the x86 server of the story, too")
        for verb, words in {
            "state": (),
            "faults": (),
            "reset": (),
            "stop": (),
            "clear": ("node?",),
            "reboot": ("node?",),
            "fault": ("node", "fault", "value?"),
            "authorize": ("keyfile",),
            "set": ("name", "value"),
        }.items():
            made = verbs.add_parser(verb)
            made.add_argument("--folder", default=argparse.SUPPRESS)
            for word in words:
                if word.endswith("?"):
                    made.add_argument(word.rstrip("?"), nargs="?", default="")
                else:
                    made.add_argument(word)

    def handle(self, *args: Any, **options: Any) -> None:
        folder, verb = Path(options["folder"]), options["verb"]
        if verb == "serve":
            from apps.lab.daemon import serve

            sys.exit(
                asyncio.run(
                    serve(
                        folder,
                        factor=options["factor"],
                        shards=options["shards"],
                        redirect=options["redirect"],
                        shard_s=options["shard_seconds"],
                        rank_order=options["rank_order"],
                        third=options["third"],
                    )
                )
            )
        if verb == "faults":
            from apps.lab.world import FAULTS

            for name, text in FAULTS.items():
                self.stdout.write(f"{name:<18} {text}")
            return
        try:
            said = self.steer(folder, verb, options)
        except (LabError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(said, indent=2) if said else "done")

    def steer(self, folder: Path, verb: str, options: dict[str, Any]) -> dict[str, Any]:
        try:
            control = str(json.loads((folder / "lab.json").read_text())["control"])
        except (OSError, ValueError, KeyError) as error:
            raise LabError(
                f"no lab has run in {folder}; start it with: python manage.py lab serve --folder {folder}"
            ) from error
        if verb == "fault":
            return ask(control, "fault", node=options["node"], fault=options["fault"], value=options["value"])
        if verb == "authorize":
            return ask(control, "authorize", node="all", key=Path(options["keyfile"]).read_text())
        if verb == "set":
            return ask(control, "set", **{options["name"]: options["value"]})
        return ask(control, verb, node=options.get("node", ""))
