"""The product as a person starts it (`manage.py up`), beside two pretend Sparks (`manage.py lab serve`); all of it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent.parent
DROPPED = ("SPARKWEB", "REDIS", "DATABASE", "DJANGO", "PYTEST", "TLS", "VAR", "PORT", "HOST", "ORIGINS", "ALLOW_")
SAID = TypeVar("SAID")


def until(ask: Callable[[], SAID], within_s: float, what: Callable[[], str] | str) -> SAID:
    """What `ask` says once it says something. Raises AssertionError after `within_s`."""
    end = time.monotonic() + within_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.1)


class RealStack:
    """Supervisor, Redis, web, worker and beat on a VAR and a port of their own, and the pretend Sparks. `end` ends them all."""

    def __init__(self, folder: Path, *, port: int, settings: dict[str, str], lab: list[str]) -> None:
        self.var, self.lab_folder, self.port = folder / "var", folder / "var" / "lab", port
        self.url = f"http://127.0.0.1:{port}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
        self.environment = {**kept, "VAR": str(self.var), "PORT": str(port), **settings}
        self.said = folder / "up.out"
        self.started: list[subprocess.Popen[bytes]] = []
        self.lab_folder.mkdir(parents=True, mode=0o700)
        self._start(self.said, "up")
        self._start(folder / "lab.out", "lab", "--folder", str(self.lab_folder), "serve", *lab)

    def _start(self, log: Path, *words: str) -> None:
        with log.open("wb") as file:
            self.started.append(
                subprocess.Popen(
                    [sys.executable, "manage.py", *words],
                    cwd=ROOT,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            )

    def code(self) -> str:
        """The one-time code of the first run, as printed at the start."""

        def printed() -> str:
            assert all(process.poll() is None for process in self.started), self.logs()
            found = re.search(r"one-time code: (\S+)", self.said.read_text())
            return found.group(1) if found else ""

        return until(printed, 120, self.logs)

    def sparks(self) -> dict[str, Any]:
        """name -> port, host_keys, addresses of the pretend Sparks, once they answer."""
        file = self.lab_folder / "lab.json"

        def written() -> dict[str, Any]:
            try:
                return dict(json.loads(file.read_text())["nodes"])
            except (OSError, ValueError):
                return {}

        return until(written, 60, self.logs)

    def lab(self, *words: str) -> str:
        return self.manage("lab", "--folder", str(self.lab_folder), *words)

    def manage(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def child(self, word: str) -> int:
        """The process id of the supervisor's child whose command line has this word."""
        supervisor = (self.var / "run" / "supervisord.pid").read_text().strip()
        for place in Path("/proc").iterdir():
            if not place.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError):
                parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
                if parent == supervisor and word.encode() in (place / "cmdline").read_bytes().split(b"\0"):
                    return int(place.name)
        raise AssertionError(f"the supervisor {supervisor} has no child with {word!r}")

    @contextlib.contextmanager
    def stopped(self, word: str) -> Iterator[None]:
        """That child does nothing meanwhile, and goes on afterwards."""
        process = self.child(word)

        def still() -> bool:
            """Stopped in the middle of writing it would hold the database for everybody, which a dead one does not."""
            os.kill(process, signal.SIGSTOP)
            if self._database_is_free():
                return True
            os.kill(process, signal.SIGCONT)
            return False

        try:
            until(still, 30, f"{word} is always writing")
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def _database_is_free(self) -> bool:
        with contextlib.closing(sqlite3.connect(self.var / "sparkweb.sqlite3", timeout=0.5)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            database.rollback()
            return True

    def logs(self) -> str:
        files = [*self.var.parent.glob("*.out"), *self.var.glob("log/*.log")]
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def tracebacks(self) -> list[str]:
        """The ends of all logs of the product that hold a traceback."""
        found = {file.name: file.read_text(errors="replace") for file in (self.said, *self.var.glob("log/*.log"))}
        return [
            f"{name}: {text[max(0, text.index('Traceback') - 500) :][:4000]}"
            for name, text in found.items()
            if "Traceback" in text
        ]

    def end(self) -> None:
        """Asked first, then killed; the supervisor ends its children itself."""
        for process in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in reversed(self.started):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        self._end_left()

    def _end_left(self) -> None:
        """What outlived its parent, known by the folder of this test in its environment."""
        mark = f"VAR={self.var}".encode()
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and int(place.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (place / "environ").read_bytes().split(b"\0"):
                        os.kill(int(place.name), signal.SIGKILL)
