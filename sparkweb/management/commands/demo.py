"""Play the main job: on two pretend Sparks, or (--real) with a real engine over a real OpenSSH server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import traceback
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.diagnosis.refusal import Refused
from scripts.openssh import OpenSshProblem, OpenSshServer
from sparkweb import demo, env, outcome
from sparkweb.holding import CannotStart, interruptible
from sparkweb.management.commands.up import prepare_sound
from sparkweb.supervising import Stack, free_port

FACTOR = 72.0


class Command(BaseCommand):
    requires_system_checks = []  # they are of the code, and import every page and the API: `make check` runs them
    help = "Start the whole stack on embedded defaults and play the main job on it. The last line on stdout is one JSON object."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="end after the story instead of going on serving the dashboard"
        )
        parser.add_argument(
            "--real", action="store_true", help="a real vLLM on CPU as a plain process, over a real OpenSSH server"
        )
        parser.add_argument(
            "--factor",
            type=_factor,
            default=FACTOR,
            help=f"how many times faster the pretend engine, reboot and docker are (default {FACTOR:g})",
        )
        parser.add_argument("--shards", type=_shards, default=39, help="shards of the pretend model (default 39)")

    def handle(self, *args: Any, **options: Any) -> None:
        interruptible()
        started = time.monotonic()
        say, told = demo.Teller(self._write, started), outcome.unfinished("the demo was interrupted")
        stack = Stack(settings.VAR, host=settings.HOST, port=settings.PORT)
        try:
            say(f"preparing the database in {settings.VAR}")
            prepare_sound(with_redis=bool(env.text("REDIS_URL")))
            say("starting web, worker, beat and Redis, and the machines to play on; a slow machine takes half a minute")
            stack.start()
            with self._world(options) as play:  # the machines start while the stack does
                stack.wait_ready()
                say(f"web, worker, beat and Redis run; state is kept in {settings.VAR}")
                play(say, told)
                told["seconds"] = round(
                    time.monotonic() - started, 1
                )  # from the command to here, whatever it was spent on
                self._close(told, options)
        except KeyboardInterrupt:
            self.stderr.write("stopping …")
        except Exception as problem:
            told.update(_failure(problem))
        finally:
            stack.stop()
        if not _good(told):
            self._write(json.dumps({**told, "seconds": round(time.monotonic() - started, 1)}))
            raise CommandError("the story did not come to its end; the JSON line says where it stopped", returncode=1)

    def _close(self, told: dict[str, Any], options: dict[str, Any]) -> None:
        """The story has been played: say so, and go on serving unless it was for once. Raises DemoFailed if it wasn't."""
        if not _good(told):
            raise demo.DemoFailed("failed", "internal", "the story ended without its proof")
        told.pop("evidence")
        if not options["once"]:
            self._write(f"\nThe dashboard: {settings.ORIGINS[0]}/")
            for role, link in demo.sign_in_links().items():
                self._write(f"  sign in as {role}: {link}")
            names = ", ".join(name for name, _ in demo.PEOPLE)
            self._write(
                f"Each link works once, and nobody has a password yet. A new one, for {names}: "
                f"VAR={settings.VAR} PORT={settings.PORT} {settings.COMMAND} person link NAME"
            )
            self._write("Ctrl-C stops everything.")
        self._write(json.dumps(told))
        if not options["once"]:
            signal.pause()

    @contextmanager
    def _world(self, options: dict[str, Any]) -> Iterator[Any]:
        """The machines that the story is played on."""
        if options["real"]:
            engine = _real_engine()
            server = OpenSshServer(settings.VAR / "openssh")
            with server:
                yield lambda say, told: demo.play_real(
                    engine,
                    address=server.address,
                    port=server.port,
                    user=server.user,
                    fingerprints={key.sha256 for key in server.host_keys()},
                    authorize=server.authorize,
                    say=say,
                    told=told,
                )
            return
        lab = demo.LabProcess(
            settings.VAR / "lab", options=["--factor", str(options["factor"]), "--shards", str(options["shards"])]
        )
        try:
            lab.start()
            yield lambda say, told: demo.play(lab, say, told)
        finally:
            lab.stop()

    def _write(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _good(told: dict[str, Any]) -> bool:
    """Did all of the story happen?"""
    again = told.get("relaunch") or told.get("stopped") or {}
    return told.get("smoke") == "passed" and again.get("state") in ("serving", "stopped")


def _real_engine() -> dict[str, Any]:
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(settings.BASE_DIR / "scripts" / "real_engine.py"), "--describe"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise demo.DemoFailed(
            "failed", "internal", done.stderr.strip() or "the real engine is not prepared: make engine"
        )
    return {**json.loads(done.stdout), "port": free_port()}


def _failure(problem: Exception) -> dict[str, Any]:
    """What the JSON object says of a story that was broken off. A traceback goes into a file, not to the person."""
    if isinstance(problem, demo.DemoFailed):
        return problem.told
    if isinstance(problem, Refused):
        return {"state": "failed", "reason": problem.reason, "evidence": problem.evidence or problem.detail}
    evidence = str(problem)
    if not isinstance(problem, CannotStart | OpenSshProblem | CommandError):
        log = settings.VAR / "log" / "demo.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write("".join(traceback.format_exception(problem)))
        evidence = f"{type(problem).__name__}: {problem} (more in {log})"
    return {"state": "failed", "reason": "internal", "evidence": evidence}


def _factor(value: str) -> float:
    number = float(value)
    if not 1 <= number <= 1000:
        raise ArgumentTypeError(f"{value}: a number from 1 (true to life) to 1000")
    return number


def _shards(value: str) -> int:
    number = int(value)
    if not 1 <= number <= 999:
        raise ArgumentTypeError(f"{value}: a whole number from 1 to 999")
    return number
