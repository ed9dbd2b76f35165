"""A transport that answers from a list and remembers what it was asked. For tests of the rooms above."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from apps.remote.transport import HttpAnswer, HttpFailed, RemoteError, Result

Answer = Result | RemoteError | Callable[[str, bytes], Result]
Kind = TypeVar("Kind")
HttpReply = HttpAnswer | HttpFailed | RemoteError | Callable[[str, str, bytes], HttpAnswer]


@dataclass(frozen=True)
class Asked:
    """One call. kind: run, write, http, tunnel. `text` is the script, the path, or METHOD URL."""

    kind: str
    text: str
    data: bytes = b""
    mode: int | None = None


class Recorded:
    """Answers by the first pattern (regular expression, searched anywhere in the script) that matches.

    `recorded.on(r"docker ps", Result(b"…", b"", 0))`. An exception as answer is raised. A list of answers is used up
    in order and its last one stays. A script that nothing matches raises AssertionError, which shows the script.
    """

    def __init__(self, name: str = "recorded") -> None:
        self.name = name
        self.asked: list[Asked] = []
        self.files: dict[str, bytes] = {}
        self.closed = False
        self._answers: list[tuple[re.Pattern[str], list[Answer]]] = []
        self._replies: list[tuple[re.Pattern[str], list[HttpReply]]] = []

    def on(self, pattern: str, *answers: Answer) -> Recorded:
        """Answer scripts that match; earlier patterns win."""
        self._answers.append((re.compile(pattern, re.DOTALL), list(answers)))
        return self

    def on_http(self, pattern: str, *replies: HttpReply) -> Recorded:
        """Answer HTTP exchanges whose "METHOD URL" matches."""
        self._replies.append((re.compile(pattern), list(replies)))
        return self

    @property
    def scripts(self) -> list[str]:
        return [asked.text for asked in self.asked if asked.kind == "run"]

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Result:
        self.asked.append(Asked("run", script, stdin))
        answer = _next(self._answers, script, self.name)
        if isinstance(answer, RemoteError):
            raise answer
        return answer if isinstance(answer, Result) else answer(script, stdin)

    def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        self.asked.append(Asked("write", path, data, mode))
        self.files[path] = data

    def open_tunnel(self, host: str, port: int, *, timeout_s: float = 10.0) -> socket.socket:
        """One end of a socket pair; the other end is kept in `tunnels`."""
        self.asked.append(Asked("tunnel", f"{host}:{port}"))
        ours, theirs = socket.socketpair()
        self.tunnels = [*getattr(self, "tunnels", []), ours]
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
        self.asked.append(Asked("http", f"{method} {url}", body))
        reply = _next(self._replies, f"{method} {url}", self.name)
        if isinstance(reply, (HttpFailed, RemoteError)):
            raise reply
        return reply if isinstance(reply, HttpAnswer) else reply(method, url, body)

    def close(self) -> None:
        self.closed = True


def _next(table: Sequence[tuple[re.Pattern[str], list[Kind]]], text: str, name: str) -> Kind:
    for pattern, answers in table:
        if pattern.search(text):
            return answers.pop(0) if len(answers) > 1 else answers[0]
    raise AssertionError(f"{name} has no recorded answer for:\n{text}")
