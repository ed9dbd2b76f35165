"""Installations of their own in scratch folders, driven by the commands that people type."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = (  # noqa: SIM905 - easier to read
    "HOST PORT ORIGINS PROXIES TLS_CERTIFICATE TLS_KEY TLS_SELF_SIGNED ALLOW_PLAIN_HTTP SECRET_KEY SPARKWEB_KEY DATABASE_URL "
    "DATABASE_PASSWORD REDIS_URL REDIS_PASSWORD WATCH_PERIOD_S LEASE_S REAP_PERIOD_S VAR "
    "FOLLOW_PERIOD_S LOG_HEAD_MIB LOG_TAIL_MIB LOG_NODE_MIB LOG_KEPT_DAYS"
).split()
SERVER = os.environ.get("DATABASE_URL", "")  # a PostgreSQL on which this user may make databases


@dataclass
class Installation:
    """`manage(...)` runs a command in it; settings are environment variables."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if k not in OURS and k.removesuffix("_FILE") not in OURS}
        return {**clean, "VAR": str(self.folder), **self.settings}

    def manage(self, *words: str, fails: bool = False) -> str:
        """What the command wrote. It must succeed, or, with `fails`, say what is wrong without a traceback."""
        done = self._done(*words, fails=fails)
        return done.stdout + done.stderr

    def _done(self, *words: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=150,
        )
        said = done.stdout + done.stderr
        assert bool(done.returncode) == fails, said
        assert "Traceback" not in said, said
        return done

    def printed(self, *words: str) -> str:
        """What the command answers, without what it says aside."""
        return self._done(*words).stdout.strip()

    def python(self, code: str) -> str:
        return self.printed("shell", "-v", "0", "-c", code)


class Databases:
    """Makes installations on one kind of database; the PostgreSQL ones are dropped at the end."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.made: list[str] = []

    def empty(self, name: str, template: str = "template1") -> Installation:
        found = Installation(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder)))  # a test may be tried again
        if self.kind == "postgresql":
            database = f"backup_{uuid.uuid4().hex[:12]}"
            _on_server(f"CREATE DATABASE {database} TEMPLATE {template}")
            self.made.append(database)
            found.settings["DATABASE_URL"] = urlsplit(SERVER)._replace(path=f"/{database}").geturl()
        return found

    def like(self, old: Installation, name: str) -> Installation:
        """A copy with the same keys."""
        url = old.settings.get("DATABASE_URL", "")
        found = self.empty(name, urlsplit(url).path.strip("/") or "template1")
        shutil.copytree(old.folder, found.folder, dirs_exist_ok=True)
        return found

    def drop(self) -> None:
        for database in self.made:
            _on_server(f"DROP DATABASE {database} WITH (FORCE)")


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def databases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    if request.param == "postgresql" and not SERVER:
        pytest.skip("DATABASE_URL names no PostgreSQL; scripts/postgres.sh starts one")
    found = Databases(request.param, tmp_path_factory.mktemp("installations"))
    yield found
    found.drop()


def _on_server(statement: str) -> None:
    import psycopg

    with psycopg.connect(urlsplit(SERVER)._replace(path="/postgres").geturl(), autocommit=True) as server:
        server.execute(statement)  # type: ignore[call-overload]
