"""Builds and brings up docker-compose.yml for real, walks in over TLS, restarts every service in turn, backs up and restores.

    DOCKER_HOST=unix:///… BASE_IMAGE=sparkweb-base:local python -m tests.production.bring_up [--kill]

BASE_IMAGE is a local one with Python 3.11 and venv, PostgreSQL 15 and Redis (docs/production.md); nothing is pulled. The daemon needs
its userland proxy or iptables for the published port. Everything is removed again at the end. --kill: SIGKILL instead of restart.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.production.conftest import ROOT
from tests.production.visit import Site, check_the_way_in, socket_answer

PATIENCE_S = 300.0


class Compose:
    def __init__(self, folder: Path, port: int) -> None:
        self.origin = f"https://localhost:{port}"
        self.project = f"sparkwebtest{port}"
        self.environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_DOCKER_CLI_BUILD": "0",
            "POSTGRES_IMAGE": "sparkweb-postgres:local",
            "REDIS_IMAGE": "sparkweb-redis:local",
            "SPARKWEB_IMAGE": "sparkweb-test:local",
            "SECRETS_FOLDER": str(folder / "secrets"),
            "TLS_FOLDER": str(folder / "secrets" / "tls"),
            "PORT": str(port),
            "ORIGINS": self.origin,
        }

    def call(self, *words: str, **options: object) -> bytes:
        done = subprocess.run(words, cwd=ROOT, env=self.environment, capture_output=True, **options)  # type: ignore[call-overload]
        if done.returncode:
            sys.exit(
                f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:].decode()}\n{done.stderr[-3000:].decode()}"
            )
        return bytes(done.stdout)

    def compose(self, *words: str, **options: object) -> bytes:
        return self.call("docker-compose", *words, **options)

    def manage(self, *words: str, **options: object) -> bytes:
        return self.compose("run", "--rm", "-T", "manage", *words, **options)

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def link(self, name: str) -> str:
        found = re.search(r"/sign-in/\S+", self.manage("person", "add", name, "--role", "admin").decode())
        assert found
        return found.group(0)


@contextmanager
def brought_up(folder: Path) -> Iterator[Compose]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        compose = Compose(folder, probe.getsockname()[1])
    compose.call("sh", "deploy/secrets.sh", str(folder / "secrets"))
    for name in ("postgres", "redis"):
        base = f"BASE_IMAGE={os.environ['BASE_IMAGE']}"
        images = f"tests/production/images/{name}"
        compose.call(
            "docker", "build", "--network=none", "--build-arg", base, "--tag", f"sparkweb-{name}:local", images
        )
    compose.compose("build", "migrate")
    try:
        compose.compose("up", "--detach")
        yield compose
    finally:
        compose.compose("down", "--volumes", "--remove-orphans")


def wait_until_ready(browser: httpx.Client, *, since: float) -> None:
    last: object = None
    while time.monotonic() - since < PATIENCE_S:
        try:
            last = browser.get("/readyz")
            if last.status_code == 200:
                return
        except httpx.HTTPError as problem:
            last = problem
        time.sleep(0.5)
    sys.exit(f"not ready after {PATIENCE_S:.0f} s: {last}")


def main() -> None:
    kill = "--kill" in sys.argv
    with tempfile.TemporaryDirectory(prefix="sparkweb-compose-") as name, brought_up(Path(name)) as compose:
        started = time.monotonic()
        with Site(compose.origin).browser() as anyone:
            wait_until_ready(anyone, since=started)
        print(f"ready after {time.monotonic() - started:.0f} s")
        certificate = Path(name) / "certificate.pem"
        compose.call(
            "docker", "cp", f"{compose.container('web')}:/var/lib/sparkweb/tls/certificate.pem", str(certificate)
        )
        site = Site(compose.origin, certificate)
        browser = check_the_way_in(site, [compose.link("Ana"), compose.link("Ben")])
        print("sign-in and socket: from our origin yes, from the others no")
        for service in ("postgres", "redis", "worker", "beat", "web"):
            began = time.monotonic()
            if kill:
                compose.call("docker", "kill", compose.container(service))
                compose.call("docker", "start", compose.container(service))
            else:
                compose.compose("restart", service)
            wait_until_ready(browser, since=began)
            assert browser.get("/").status_code == 200 and socket_answer(site, browser, origin=site.origin) == "pong"
            print(
                f"{service} {'killed' if kill else 'restarted'}: all well again after {time.monotonic() - began:.0f} s"
            )
        backup = compose.manage("backup", "-")
        compose.compose("stop", "web", "worker", "beat")
        print(compose.manage("restore", "-", "--replace", input=backup).decode().strip())
        compose.compose("up", "--detach")
        wait_until_ready(browser, since=time.monotonic())
        print(f"restored from {len(backup)} bytes; up again")


if __name__ == "__main__":
    main()
