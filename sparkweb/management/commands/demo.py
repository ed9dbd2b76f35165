"""Play the main job: on two pretend Sparks, or (--real) with a real engine over a real OpenSSH server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.diagnosis.refusal import Refused
from scripts.openssh import OpenSshProblem, OpenSshServer
from sparkweb import demo
from sparkweb.management.commands.up import prepare
from sparkweb.supervising import CannotStart, Stack, free_port


class Command(BaseCommand):
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
            default="36",
            help="how many times faster the pretend engine, reboot and docker are (default 36)",
        )
        parser.add_argument("--shards", default="39", help="shards of the pretend model (default 39)")

    def handle(self, *args: Any, **options: Any) -> None:
        for caught in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(caught, _interrupt)
        started = time.monotonic()
        say = demo.Teller(self._write, started)
        stack = Stack(settings.VAR, host=settings.HOST, port=settings.PORT)
        told: dict[str, Any] = {
            "deployment": None,
            "state": "failed",
            "reason": "internal",
            "evidence": "the demo did not begin",
        }
        try:
            say("preparing the database")
            prepare()
            stack.start()
            stack.wait_ready()
            say(f"web, worker, beat and Redis run; state is kept in {settings.VAR}")
            with self._world(options) as play:
                try:
                    told = play(say)
                except demo.DemoFailed as failed:
                    told = {
                        "deployment": None,
                        "state": failed.state,
                        "reason": failed.reason,
                        "evidence": failed.evidence,
                    }
                except Refused as no:
                    told = {
                        "deployment": None,
                        "state": "failed",
                        "reason": no.reason,
                        "evidence": no.evidence or no.detail,
                    }
                self._close(told, options)
        except (CannotStart, demo.DemoFailed, OpenSshProblem) as problem:
            told = {"deployment": None, "state": "failed", "reason": "internal", "evidence": str(problem)}
            self._write(json.dumps(told))
        except KeyboardInterrupt:
            self._write("stopping …")
            return
        finally:
            stack.stop()
        if not _good(told):
            raise CommandError("the story did not come to its end; the JSON line says where it stopped", returncode=1)

    def _close(self, told: dict[str, Any], options: dict[str, Any]) -> None:
        if not options["once"]:
            self._write(f"\nThe dashboard: {settings.ORIGINS[0]}/")
            for role, link in demo.sign_in_links().items():
                self._write(f"  sign in as {role}: {link}")
            self._write("Ctrl-C stops everything.")
        self._write(json.dumps(told))
        if not options["once"] and _good(told):
            signal.pause()

    @contextmanager
    def _world(self, options: dict[str, Any]) -> Iterator[Any]:
        """The machines that the story is played on."""
        if options["real"]:
            engine = _real_engine()
            server = OpenSshServer(settings.VAR / "openssh")
            with server:
                yield lambda say: demo.play_real(
                    engine,
                    address=server.address,
                    port=server.port,
                    user=server.user,
                    fingerprints={key.sha256 for key in server.host_keys()},
                    authorize=server.authorize,
                    say=say,
                )
            return
        lab = demo.LabProcess(
            settings.VAR / "lab", options=["--factor", options["factor"], "--shards", options["shards"]]
        )
        try:
            lab.start()
            yield lambda say: demo.play(lab, say)
        finally:
            lab.stop()

    def _write(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _good(told: dict[str, Any]) -> bool:
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


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
