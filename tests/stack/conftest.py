"""`manage.py up` and `demo` as a person starts them: processes of their own, on a VAR and a port of their own.

With DATABASE_URL set (scripts/postgres.sh) each VAR has a database of its own on that server instead of a SQLite file.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

BASE = Path(__file__).resolve().parent.parent.parent
PYTHON = sys.executable
DROPPED = (
    "SPARKWEB",
    "REDIS",
    "DATABASE",
    "DJANGO",
    "PYTEST",
    "TLS",
    "MAKE",
    "MFLAGS",
    "VAR",
    "PORT",
    "HOST",
    "ORIGINS",
)
SERVER = os.environ.get("DATABASE_URL", "")  # a PostgreSQL on which this user may make databases


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(ask: Callable[[], Any], seconds: float, what: object = "", *, pause: float = 0.05) -> Any:
    """What `ask` says once it says something. The test fails after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = ask()
        if answer:
            return answer
        time.sleep(pause)
    raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what or ask}")


def database_of(var: Path) -> str:
    """The address of the database that belongs to a VAR, made when it is asked for first; empty for SQLite."""
    if not SERVER:
        return ""
    name = f"stack_{hashlib.sha256(os.fsencode(var.absolute())).hexdigest()[:16]}"
    with psycopg.connect(SERVER, autocommit=True) as server:
        if server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
            server.execute(f"CREATE DATABASE {name}")
    return urlsplit(SERVER)._replace(path=f"/{name}").geturl()


def forget_database(url: str) -> None:
    if url:
        with psycopg.connect(SERVER, autocommit=True) as server:
            server.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path.strip('/')} WITH (FORCE)")


class Started:
    """One command, everything that it started, and its state. Nothing outlives `end`."""

    def __init__(self, var: Path, *words: str, port: int, before: tuple[str, ...] = (), **more: str) -> None:
        self.var, self.port, self.mark = var, port, f"STACK_TEST={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED)}
        more = {"DATABASE_URL": database_of(var), **more}
        self.environment = {**kept, "VAR": str(var), "PORT": str(port), name: value, **more}
        folder = var.parent / f"said-{value[:8]}"
        folder.mkdir(parents=True)
        self.out_file, self.err_file = folder / "out", folder / "err"
        with self.out_file.open("wb") as out, self.err_file.open("wb") as err:
            self.process = subprocess.Popen(
                [*before, *(words if before[-1:] == ("make",) else (PYTHON, "manage.py", *words))],
                cwd=BASE,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self.out_file.read_text()

    @property
    def err(self) -> str:
        return self.err_file.read_text()

    def said(self) -> str:
        logs = [f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in self.var.glob("log/*.log")]
        return "\n".join([self.out[-3000:], self.err[-3000:], *logs])

    def waits_for(self, text: str, seconds: float = 90.0) -> None:
        def there() -> bool:
            assert text in self.out or self.process.poll() is None, self.said()
            return text in self.out

        until(there, seconds, self.said)

    # processes

    def everything(self) -> dict[int, str]:
        """pid -> command line of every process that carries the mark, or that the pretend Sparks of this VAR run."""
        marks = (self.mark.encode(), f"LAB_NODE={self.var.resolve()}/".encode())
        found = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                    if any(word.startswith(marks) for word in words):
                        found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    pass
        return found

    def tree(self) -> dict[int, str]:
        """pid -> command line of all descendants of the command."""
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    pass
        found, edge = {}, {self.process.pid}
        while edge := {pid for pid, parent in parents.items() if parent in edge}:
            for pid in edge:
                try:
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    pass
        return found

    def child(self, name: str) -> int | None:
        """The pid that the supervisor has for web, worker, beat, redis or supervisor."""
        sign = {
            "web": "uvicorn",
            "worker": "app worker",
            "beat": "app beat",
            "redis": "redis.conf",
            "supervisor": "supervisord",
        }[name]
        found = [pid for pid, line in self.everything().items() if sign in line]
        return found[0] if found else None

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self.everything():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def all_gone(self, seconds: float = 3.0) -> None:
        until(lambda: not self.everything(), seconds, lambda: f"left over: {self.everything()}")

    # the site

    def ask(self, path: str, body: Any = None, *, token: str = "", timeout: float = 45.0) -> tuple[int, Any, Any]:
        """status, body (JSON when it is), headers; redirects are not followed."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})},
        )
        try:
            with urllib.request.build_opener(Stays).open(request, timeout=timeout) as answer:
                status, data, headers = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as answer:
            status, data, headers = answer.code, answer.read(), answer.headers
        is_json = "json" in headers.get("Content-Type", "")
        return status, json.loads(data) if is_json else data.decode(), headers

    def ready(self) -> bool:
        try:
            return self.ask("/readyz", timeout=5)[0] == 200
        except OSError:
            return False

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        if self.environment["DATABASE_URL"]:
            with psycopg.connect(self.environment["DATABASE_URL"]) as server:
                return server.execute(query.replace("?", "%s"), values).fetchall()
        database = sqlite3.connect(
            f"file:{self.var}/sparkweb.sqlite3?mode=ro".replace("%", "%25"), uri=True, timeout=20
        )
        try:
            return database.execute(query, values).fetchall()
        finally:
            database.close()

    def manage(self, *words: str) -> str:
        done = subprocess.run(
            [PYTHON, "manage.py", *words], cwd=BASE, env=self.environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


class Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """start("up", var=…): ended with all that it started when the test is over, whatever happened."""
    made: list[Started] = []

    def begin(*words: str, var: Path | None = None, port: int = 0, **more: Any) -> Started:
        made.append(Started(var or tmp_path / "var", *words, port=port or free_port(), **more))
        return made[-1]

    yield begin
    for one in made:
        one.end()
    for url in {one.environment["DATABASE_URL"] for one in made}:
        forget_database(url)
