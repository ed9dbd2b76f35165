"""`manage.py serve web` as a process of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.production.conftest import ROOT, Installation


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(place: Installation, log: Path) -> Iterator[None]:
    """Until it answers, then as long as the block lasts; it must end by itself when asked."""
    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "web"], cwd=ROOT, env=place.environment, stdout=file, stderr=file
        )
    try:
        _wait_until_it_answers(int(place.settings["PORT"]), server)
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)


def _wait_until_it_answers(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        assert server.poll() is None and time.monotonic() < until
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
