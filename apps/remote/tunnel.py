"""HTTP/1.1 to a server that only the node can see: http.client over a direct-tcpip stream, whole answers or a
stream of bytes.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from apps.remote.transport import CannotReach, HttpAnswer, HttpFailed
from apps.remote.wire import spoken

Given = TypeVar("Given")
LARGEST_BODY = 4 * 1024 * 1024  # bytes of one whole answer; as objects its JSON may take twenty times that


class Tunnels(Protocol):
    """The part of a Transport that is needed here."""

    def open_tunnel(self, host: str, port: int, *, timeout_s: float = 10.0) -> socket.socket: ...


def exchange(
    transport: Tunnels,
    method: str,
    url: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> HttpAnswer:
    """One exchange; `timeout_s` bounds all of it. Raises HttpFailed(refused, timeout, broken), and RemoteError from
    SSH.

    Raises ValueError when `url` is not http://HOST:PORT/PATH.
    """
    started = time.monotonic()
    with _Exchange(transport, method, url, body, headers, timeout_s) as talk:
        data = talk.read(LARGEST_BODY + 1)
        if len(data) > LARGEST_BODY:
            raise HttpFailed("broken", f"{url}: the answer is larger than {LARGEST_BODY} bytes")
        return HttpAnswer(talk.status, talk.headers, data, time.monotonic() - started)


@dataclass(frozen=True)
class HttpStream:
    """An answer whose body is read as it comes. Iterate it once; leave the `with` to close the tunnel.

    Iterating raises HttpFailed: timeout after `idle_s` without a byte, broken when the body ended too soon.
    """

    status: int
    headers: Mapping[str, str]
    _talk: _Exchange

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._talk.read1():
            yield piece

    def __enter__(self) -> HttpStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._talk.close()


def stream(
    transport: Tunnels,
    method: str,
    url: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    idle_s: float = 300.0,
) -> HttpStream:
    """Send a request and return once the headers are there (within `timeout_s`); the body's bytes come by iterating.

    Works for content-length, chunked and close-delimited bodies. Raises as `exchange`.
    """
    talk = _Exchange(transport, method, url, body, headers, timeout_s)
    talk.reader.idle_s = idle_s
    return HttpStream(talk.status, talk.headers, talk)


class _Reader(io.RawIOBase):
    """A raw byte stream over a socket-like channel, with a deadline and, once `idle_s` is set, a limit on silence
    instead.
    """

    def __init__(self, channel: Any, deadline: float) -> None:
        self._channel, self._deadline = channel, deadline
        self.idle_s: float | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._channel.settimeout(self.patience())
        data = self._channel.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def patience(self) -> float:
        """Seconds that the next read may take. Raises TimeoutError when none are left."""
        if self.idle_s is not None:
            return self.idle_s
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time limit of the exchange")
        return left


class _Socket:
    """What http.client wants of a socket. It closes its socket while the body is still to be read, so closing is
    ours.
    """

    def __init__(self, channel: Any, reader: _Reader) -> None:
        self._channel, self._reader = channel, reader

    def sendall(self, data: Any) -> None:
        self._channel.settimeout(self._reader.patience())
        self._channel.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader, 65536)

    def close(self) -> None:
        pass


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, sock: _Socket) -> None:
        super().__init__(host, port)
        self.sock = sock  # never connected by http.client itself

    def connect(self) -> None:
        raise ConnectionError("the connection was closed")


class _Exchange:
    """One request sent and the head of its answer read; the body is there to read."""

    def __init__(
        self,
        transport: Tunnels,
        method: str,
        url: str,
        body: bytes,
        headers: Mapping[str, str] | None,
        timeout_s: float,
    ) -> None:
        host, port, path = _parts(url)
        self._url = url
        deadline = time.monotonic() + timeout_s
        self._channel = _opened(transport, host, port, url, timeout_s)
        try:
            self.reader = _Reader(self._channel, deadline)
            self._response = self._guard(lambda: self._asked(method, host, port, path, body, headers))
        except BaseException:
            self._channel.close()
            raise
        self.status = self._response.status
        self.headers: dict[str, str] = {name.lower(): value for name, value in self._response.getheaders()}

    def _asked(
        self,
        method: str,
        host: str,
        port: int,
        path: str,
        body: bytes,
        headers: Mapping[str, str] | None,
    ) -> http.client.HTTPResponse:
        connection = _Connection(host, port, _Socket(self._channel, self.reader))
        connection.request(method, path, body=body or None, headers={"Connection": "close", **(headers or {})})
        return connection.getresponse()

    def read(self, limit: int) -> bytes:
        return self._guard(lambda: self._whole(limit))

    def _whole(self, limit: int) -> bytes:
        """`read(n)` of http.client tells nothing of a body that ended too soon; this does."""
        expected = self._response.length  # None: chunked (which checks itself) or until the end of the stream
        data = self._response.read(limit)
        if expected is not None and len(data) < min(limit, expected):
            raise http.client.IncompleteRead(data, expected - len(data))
        return data

    def read1(self) -> bytes:
        """Whatever is there, at least a byte; empty at the end."""
        left = self._response.length
        data = self._guard(lambda: self._response.read1(65536))
        if not data and left:
            raise HttpFailed("broken", f"{self._url}: the body ended {left} bytes too soon")
        return data

    def _guard(self, act: Callable[[], Given]) -> Given:
        try:
            return act()
        except TimeoutError as error:
            raise HttpFailed("timeout", f"{self._url}: {spoken(error) or 'no answer in time'}") from error
        except (http.client.HTTPException, OSError, EOFError, ValueError) as error:
            raise HttpFailed("broken", f"{self._url}: {type(error).__name__} {spoken(error)}".strip()) from error

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(transport: Tunnels, host: str, port: int, url: str, timeout_s: float) -> socket.socket:
    try:
        return transport.open_tunnel(host, port, timeout_s=timeout_s)
    except CannotReach as error:
        if error.reason in ("ssh_refused", "no_route", "dns"):
            raise HttpFailed("refused", f"{url}: {error.evidence}") from error
        if error.reason == "ssh_timeout":
            raise HttpFailed("timeout", f"{url}: {error.evidence}") from error
        raise


def _parts(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if not port or parts.scheme != "http" or not parts.hostname or parts.username is not None:
        raise ValueError(f"{url!r} is not http://HOST:PORT/PATH")
    path = parts.path or "/"
    return parts.hostname, port, f"{path}?{parts.query}" if parts.query else path
