"""Builds and brings up docker-compose.yml for real, walks in over TLS, restarts every service in turn, backs up and restores.

    DOCKER_HOST=unix:///… BASE_IMAGE=sparkweb-base:local python -m tests.production.bring_up [--kill]

BASE_IMAGE is a local one with Python 3.11 and venv, PostgreSQL and Redis (docs/production.md); nothing is pulled. The daemon needs
its userland proxy or iptables for the published port. Everything is removed again at the end. --kill: SIGKILL instead of restart.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path

from tests.production.compose import Compose, restarted, wait_until_ready
from tests.production.serving import free_port
from tests.production.visit import Site, check_the_way_in, socket_answer


def link(compose: Compose, name: str) -> str:
    found = re.search(r"/sign-in/\S+", compose.manage("person", "add", name, "--role", "admin").decode())
    assert found
    return found.group(0)


def play(compose: Compose, *, kill: bool) -> None:
    started = time.monotonic()
    with Site(compose.origin).browser() as anyone:
        wait_until_ready(anyone, since=started)
    print(f"ready after {time.monotonic() - started:.0f} s")
    site = Site(compose.origin, compose.certificate())
    browser = check_the_way_in(site, [link(compose, "Ana"), link(compose, "Ben")])
    print("sign-in and socket: from our origin yes, from the others no")
    for service in ("postgres", "redis", "worker", "beat", "web"):
        began = time.monotonic()
        restarted(compose, service, kill=kill)
        wait_until_ready(browser, since=began)
        assert browser.get("/").status_code == 200 and socket_answer(site, browser, origin=site.origin) == "pong"
        print(f"{service} {'killed' if kill else 'restarted'}: all well again after {time.monotonic() - began:.0f} s")
    backup = compose.manage("backup", "-")
    compose.compose("stop", "web", "worker", "beat")
    print(compose.manage("restore", "-", "--replace", input=backup).decode().strip())
    compose.compose("up", "--detach")
    wait_until_ready(browser, since=time.monotonic())
    print(f"restored from {len(backup)} bytes; up again")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sparkweb-compose-") as name:
        compose = Compose(Path(name), free_port())
        try:
            with compose.up():
                play(compose, kill="--kill" in sys.argv)
        except RuntimeError as problem:
            sys.exit(str(problem))


if __name__ == "__main__":
    main()
