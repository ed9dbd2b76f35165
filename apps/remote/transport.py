"""The narrow interface to one node, and the exceptions that any body of it raises."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class RemoteError(Exception):
    """Something between us and the node said no.

    RemoteError
    ├── CannotReach      dns, ssh_refused, not_ssh, ssh_timeout, no_route, jump_unreachable, jump_refused, ssh_busy
    ├── KeyProblem       host_key_unknown, host_key_changed
    ├── AccessDenied     ssh_auth
    ├── ConnectionLost   ssh_timeout: was there, is gone (the command may still run)
    └── BadAnswer        bad_answer: more than anybody asked for, or not in the form of an answer; what a node says is never trusted

    `reason` is a key of diagnosis.reasons; `hop` names the node whose door it was; `evidence` is the raw text seen.
    """

    def __init__(self, reason: str, *, hop: str, evidence: str = "") -> None:
        super().__init__(f"{hop}: {reason}: {evidence}")
        self.reason, self.hop, self.evidence = reason, hop, evidence


class CannotReach(RemoteError):
    pass


class KeyProblem(RemoteError):
    """`offered`: (type, SHA256:… fingerprint) of the key that was shown; empty when unknown."""

    def __init__(self, reason: str, *, hop: str, evidence: str = "", offered: tuple[str, str] | None = None) -> None:
        super().__init__(reason, hop=hop, evidence=evidence)
        self.offered = offered


class AccessDenied(RemoteError):
    pass


class ConnectionLost(RemoteError):
    pass


class BadAnswer(RemoteError):
    pass


@dataclass(frozen=True)
class HostKeyFound:
    hop: str
    type: str  # ssh-ed25519 …
    base64: str
    sha256: str  # SHA256:… as ssh-keygen -lf prints it


@dataclass(frozen=True)
class Endpoint:
    """How to reach a node. `private_key` is an OpenSSH-format private key text; it never leaves memory."""

    name: str
    address: str
    port: int
    user: str
    private_key: str = field(repr=False)
    host_keys: tuple[tuple[str, str], ...] = ()  # (type, base64), the pinned ones; empty: nothing is trusted
    via: Endpoint | None = None
    password: str = field(default="", repr=False)  # the first time, before our key is in; then no key is offered
    login: int = 0  # another number, another connection: what a login gets (groups, limits) has changed since


@dataclass(frozen=True)
class Result:
    stdout: bytes
    stderr: bytes
    exit_code: int | None  # None: the time limit ended the wait
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float = 0.0


class Transport(Protocol):
    """One node. All methods raise RemoteError; none retries by itself; all are safe from several threads."""

    name: str

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Result:
        """Run POSIX shell text with `/bin/sh -s` (it travels on standard input, never in argv; the login shell may
        be fish or csh). `stdin` follows the script. Both outputs are drained together."""
        ...

    def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None: ...

    def open_tunnel(self, host: str, port: int, *, timeout_s: float = 10.0) -> socket.socket:
        """A connected stream to host:port as seen from the node (direct-tcpip), socket-like."""
        ...

    def http(
        self,
        method: str,
        url: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> HttpAnswer:
        """One HTTP/1.1 exchange through a tunnel; `url` is http://HOST:PORT/PATH as the node sees it.
        Raises HttpFailed (reason not_listening, timeout, broken) when no whole answer came."""
        ...

    def close(self) -> None: ...


class HttpFailed(Exception):
    """No whole HTTP answer: `reason` is refused, timeout or broken; `evidence` the text."""

    def __init__(self, reason: str, evidence: str = "") -> None:
        super().__init__(f"{reason}: {evidence}")
        self.reason, self.evidence = reason, evidence


@dataclass(frozen=True)
class JobLook:
    """What one look at a detached job saw. `data` starts at the byte offset that was asked for."""

    id: str
    state: str  # missing, running, exited, lost
    data: bytes = field(default=b"", repr=False)
    size: int = 0  # of the log, now
    exit_code: int | None = None
    reason: str | None = None  # for lost: rebooted, killed
    pid: int | None = None
    boot_id: str | None = None
    # Of the log: log_capped, log_lost (disk full), log_shrunk (now smaller than the offset), log_gone (smaller than at its end).
    note: str | None = None


class Jobs(Protocol):
    """Detached jobs on one node (apps/remote/jobs.py has the real body, written over a Transport)."""

    def start(
        self,
        job_id: str,
        script: str,
        *,
        environment: Mapping[str, str] | None = None,
        max_seconds: int | None = None,
    ) -> JobLook:
        """Idempotent by id: a second start of the same id only looks. `environment` may hold secrets: uploaded 0600."""
        ...

    def look(self, asked: Sequence[tuple[str, int]], *, limit: int = 262144) -> list[JobLook]:
        """Many jobs in one round trip: [(job_id, byte offset)] -> looks in that order, each at most `limit` bytes."""
        ...

    def cancel(self, job_id: str, *, grace_s: float = 10.0) -> JobLook:
        """TERM the whole process tree, after `grace_s` KILL, verify; idempotent; fine for a job that has ended."""
        ...

    def remove(self, job_id: str) -> None: ...
