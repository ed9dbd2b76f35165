"""Serve for real: the whole stack under a supervisor, state in VAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from apps.people import services as people
from apps.people.models import User
from apps.recipes.services import load_shipped
from sparkweb import checks, env
from sparkweb.holding import CannotStart, interruptible
from sparkweb.supervising import Stack


def prepare() -> None:
    """The database is there and up to date; the shipped recipes are in it."""
    call_command("migrate", verbosity=0, interactive=False)
    load_shipped()


def prepare_sound(*, with_redis: bool) -> None:
    """Like `prepare`, for an installation that is sound before and after. Raises CommandError with what is wrong."""
    refuse_broken(checks.database_writable() or checks.key_opens_what_is_stored())
    prepare()
    refuse_broken(checks.problems(with_redis=with_redis))


def refuse_broken(found: Sequence[CheckMessage]) -> None:
    """Raises CommandError with what is wrong and the way on."""
    if found:
        raise CommandError(f"not started.\n{checks.words(found)}")


class Command(BaseCommand):
    requires_system_checks = []  # they are of the code, and import every page and the API: `make check` runs them
    help = "Start web, worker, beat and (unless REDIS_URL is set) Redis, and keep them running until Ctrl-C."

    def handle(self, *args: Any, **options: Any) -> None:
        prepare_sound(with_redis=bool(env.text("REDIS_URL")))
        settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)  # WhiteNoise warns where it is missing
        stack = Stack(settings.VAR, host=settings.HOST, port=settings.PORT)
        interruptible()
        try:
            stack.start()
            stack.wait_ready()
            self.stdout.write(f"sparkweb serves at {settings.ORIGINS[0]}   (state: {settings.VAR}, Ctrl-C stops it)")
            if not User.objects.exists():
                self.stdout.write(
                    f"First run: open {settings.ORIGINS[0]}/first-run. Setup code, a one-time code: {people.setup_code()}"
                )
            self.stdout.flush()
            assert stack.process is not None
            stack.process.wait()
            raise CommandError(f"the supervisor ended:\n{stack.log_tail('supervisor')}")
        except CannotStart as problem:
            raise CommandError(str(problem)) from None
        except KeyboardInterrupt:
            self.stdout.write("stopping …")
        finally:
            stack.stop()
