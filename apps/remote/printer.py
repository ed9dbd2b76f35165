"""A transport that only collects what it is told, for previews and golden files. Every script succeeds and says
nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from apps.remote.transport import HttpAnswer, Result


class Printer:
    """`scripts`, `files` and `requests` hold what a real node would have been asked, in order."""

    def __init__(self, name: str = "printer") -> None:
        self.name = name
        self.scripts: list[str] = []
        self.files: list[tuple[str, bytes, int]] = []
        self.requests: list[tuple[str, str, bytes]] = []

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Result:
        self.scripts.append(script)
        return Result(b"", b"", 0)

    def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        self.files.append((path, data, mode))

    def open_tunnel(self, host: str, port: int, *, timeout_s: float = 10.0) -> socket.socket:
        """A socket at whose other end nobody is: reads give the end at once."""
        ours, theirs = socket.socketpair()
        ours.close()
        return theirs

    def http(
        self,
        method: str,
        url: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> HttpAnswer:
        self.requests.append((method, url, body))
        return HttpAnswer(200, {}, b"")

    def close(self) -> None:
        pass

    def __str__(self) -> str:
        return "\n".join(f"# {self.name}\n{script}" for script in self.scripts)
