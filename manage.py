#!/usr/bin/env python
"""sparkweb's command line. The pure commands run before Django is set up: they need no settings, database or Redis."""

import os
import sys
from importlib import import_module

# name -> module, arguments, what for
PURE = {
    "parse": ("apps.facts.parsing", "FACT [FILE] | --list", "what the parsers make of a command's output"),
    "explain": (
        "apps.diagnosis.explaining",
        "[FILE]",
        "what a log or an output means, as JSON; - or nothing: standard input",
    ),
    "reasons": ("apps.diagnosis.reasons", "[--json]", "the table of everything that can go wrong"),
    "roles": ("apps.people.roles", "[--json]", "which role may do what"),
}
ASKS_FOR_HELP = {"-h", "--help"}


def usage(name: str) -> str:
    """How a pure command is called."""
    _, arguments, what_for = PURE[name]
    return f"usage: manage.py {name} {arguments}\n{what_for}\n"


def pure_command(name: str, arguments: list[str]) -> int | None:
    """Run a command that is a filter over bytes; None when `name` is none of them."""
    if name not in PURE:
        return None
    if ASKS_FOR_HELP & set(arguments):
        sys.stdout.write(usage(name))
        return 0
    status: int = import_module(PURE[name][0]).main(arguments, sys.stdin.buffer, sys.stdout)
    return status


def main(words: list[str]) -> None:
    """`words`: what follows manage.py. Ends the process."""
    name = words[0] if words else "help"
    if name == "help" and words[1:2] and words[1] in PURE:
        sys.stdout.write(usage(words[1]))
        sys.exit()
    status = pure_command(name, words[1:])
    if status is not None:
        sys.stdout.flush()
        sys.exit(status)
    if name in ("up", "demo") and not ASKS_FOR_HELP & set(words):
        from sparkweb import supervising

        supervising.before_settings(name)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sparkweb.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line([sys.argv[0], *words])
    except ImproperlyConfigured as problem:  # settings say what is wrong and what to write instead
        sys.exit(f"sparkweb can't start: {problem}")
    if name in {"help", *ASKS_FOR_HELP} and len(words) < 2:
        filters = "".join(f"    {each} {PURE[each][1]}\n        {PURE[each][2]}\n" for each in PURE)
        sys.stdout.write(f"\n[filters: no settings, no database]\n{filters}")


if __name__ == "__main__":
    main(sys.argv[1:])
