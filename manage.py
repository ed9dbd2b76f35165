#!/usr/bin/env python
"""sparkweb's command line. The pure commands run before Django is set up: they need no settings, database or Redis."""

import os
import sys
from importlib import import_module


def pure_command(name: str, arguments: list[str]) -> int | None:
    """Run a command that is a filter over bytes; None when `name` is none of them."""
    modules = {
        "parse": "apps.facts.parsing",
        "explain": "apps.diagnosis.explaining",
        "reasons": "apps.diagnosis.reasons",
        "roles": "apps.people.roles",
    }
    if name not in modules:
        return None
    status: int = import_module(modules[name]).main(arguments, sys.stdin.buffer, sys.stdout)
    return status


if __name__ == "__main__":
    if len(sys.argv) > 1:
        status = pure_command(sys.argv[1], sys.argv[2:])
        if status is not None:
            sys.stdout.flush()
            sys.exit(status)
    if sys.argv[1:2] in (["up"], ["demo"]) and not {"-h", "--help"} & set(sys.argv):
        from sparkweb import supervising

        supervising.before_settings(sys.argv[1])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sparkweb.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as problem:  # settings say what is wrong and what to write instead
        sys.exit(f"sparkweb can't start: {problem}")
