"""docker-compose.yml as it is typed: images built from a local base, brought up, asked, removed with all it kept."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.production.conftest import ROOT

PATIENCE_S = 300.0
IMAGES = Path(__file__).resolve().parent / "images"


class Compose:
    """One project on the daemon of DOCKER_HOST. `settings` are variables of .env, `files` compose files besides ours."""

    def __init__(self, folder: Path, port: int, *, files: tuple[Path, ...] = (), **settings: str) -> None:
        self.origin = f"https://localhost:{port}"
        self.files = [word for file in (ROOT / "docker-compose.yml", *files) for word in ("--file", str(file))]
        self.folder = folder
        self.environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": f"sparkwebtest{port}",
            "COMPOSE_HTTP_TIMEOUT": "300",
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_DOCKER_CLI_BUILD": "0",
            "POSTGRES_IMAGE": "sparkweb-postgres:local",
            "REDIS_IMAGE": "sparkweb-redis:local",
            "SPARKWEB_IMAGE": "sparkweb-test:local",
            "SECRETS_FOLDER": str(folder / "secrets"),
            "TLS_FOLDER": str(folder / "secrets" / "tls"),
            "PORT": str(port),
            "ORIGINS": self.origin,
            **settings,
        }

    def call(self, *words: str, **options: Any) -> bytes:
        """What it printed. Raises RuntimeError with the end of all it said."""
        done = subprocess.run(words, cwd=ROOT, env=self.environment, capture_output=True, check=False, **options)
        if done.returncode:
            said = (done.stdout[-3000:] + done.stderr[-3000:]).decode(errors="replace")
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{said}")
        return bytes(done.stdout)

    def compose(self, *words: str, **options: Any) -> bytes:
        return self.call("docker-compose", "--project-directory", str(ROOT), *self.files, *words, **options)

    def manage(self, *words: str, **options: Any) -> bytes:
        return self.compose("run", "--rm", "-T", "manage", *words, **options)

    def container(self, service: str) -> str:
        """Its id: names differ between Compose 1 and 2."""
        return self.compose("ps", "--quiet", service).decode().strip()

    def certificate(self) -> Path:
        """The one that `web` made for itself."""
        path = self.folder / "certificate.pem"
        self.call("docker", "cp", f"{self.container('web')}:/var/lib/sparkweb/tls/certificate.pem", str(path))
        return path

    @contextmanager
    def up(self) -> Iterator[None]:
        """Built and started; at the end removed with its volumes."""
        self.call("sh", "deploy/secrets.sh", str(self.folder / "secrets"))
        base = f"BASE_IMAGE={self.environment['BASE_IMAGE']}"
        for name in ("postgres", "redis"):
            words = ("docker", "build", "--network=none", "--build-arg", base, "--tag", f"sparkweb-{name}:local")
            self.call(*words, str(IMAGES / name))
        self.compose("build", "migrate")
        try:
            self.compose("up", "--detach")
            yield
        finally:
            self.compose("down", "--volumes", "--remove-orphans")


def wait_until_ready(browser: httpx.Client, *, since: float) -> None:
    """Raises RuntimeError with what /readyz said last."""
    last: object = None
    while time.monotonic() - since < PATIENCE_S:
        try:
            answer = browser.get("/readyz")
            if answer.status_code == 200:
                return
            last = answer.text
        except httpx.HTTPError as problem:
            last = problem
        time.sleep(0.5)
    raise RuntimeError(f"not ready after {PATIENCE_S:.0f} s: {last}")


def restarted(compose: Compose, service: str, *, kill: bool = False) -> None:
    if kill:
        compose.call("docker", "kill", compose.container(service))
        compose.call("docker", "start", compose.container(service))
    else:
        compose.compose("restart", service)
