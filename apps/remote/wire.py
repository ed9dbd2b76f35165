"""One SSH connection at protocol level: what we offer, how long we wait, and the words that Paramiko itself throws
away.

Paramiko 5.1 drops three texts that name the cause of a failure: the lines before the banner, the server's words when
it refuses a channel, and the words of a disconnect. `Wire` keeps them, and notes when the peer was last heard.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.packet import Packetizer

# Its error log holds tracebacks; all that matters in it is raised as evidence instead.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

# GCM first: measured 293 MB/s against 220 for CTR. No CBC, no 3DES.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
# No MD5, no SHA-1; encrypt-then-mac first.
DIGESTS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512")

ED25519, RSA = "ssh-ed25519", "ssh-rsa"
ECDSA = ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")
ALL_ALGORITHMS = (ED25519, *ECDSA, *RSA_SIGNATURES)


@dataclass(frozen=True)
class Limits:
    """How long one may be silent, in seconds, and how many commands share a connection."""

    name_s: float = 10.0  # name resolution
    tcp_s: float = 10.0
    banner_s: float = 15.0
    handshake_s: float = 15.0
    auth_s: float = 20.0
    channel_s: float = 15.0
    silence_s: float = 15.0  # of a peer we wait for, before it is asked whether it lives
    probe_s: float = 5.0
    misses: int = 2
    sessions: int = 8  # of sshd's default MaxSessions 10; two are left for probes


class _HeardPacketizer(Packetizer):
    """Notes when a packet last came in (monotonic seconds)."""

    last_heard = 0.0

    def read_message(self) -> Any:
        message = super().read_message()
        self.last_heard = time.monotonic()
        return message


class ChannelRefused(Exception):
    """The server answered a channel request with no. `code` is RFC 4254's (1 prohibited, 2 connect failed), `text`
    its words.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def spoken(error: BaseException) -> str:
    """The system's own words without Python's number: `Connection refused`, not `[Errno 111] Connection refused`."""
    words = error.strerror if isinstance(error, OSError) else None
    return words or str(error)


class ChannelLate(Exception):
    """The server answered neither yes nor no in time."""


def algorithms_for(key_types: Sequence[str]) -> tuple[str, ...]:
    """Host key algorithms that lead to keys of these types: an ssh-rsa key signs with rsa-sha2-*."""
    found: list[str] = []
    for key_type in key_types:
        found.extend(RSA_SIGNATURES if key_type == RSA else (key_type,))
    return tuple(name for name in dict.fromkeys(found) if name in ALL_ALGORITHMS)


def prefer(key_types: Sequence[str]) -> tuple[str, ...]:
    """All algorithms, those of the pinned types first: a host whose RSA key is pinned and that also has an ed25519
    key must not be taken for one whose key changed.
    """
    pinned = algorithms_for(key_types)
    return (*pinned, *(name for name in ALL_ALGORITHMS if name not in pinned))


def end(channel: paramiko.Channel) -> None:
    """Close it; where its connection has ended meanwhile there is nobody left to tell, which Paramiko calls an error."""
    with contextlib.suppress(EOFError, OSError, paramiko.SSHException):
        channel.close()


class Led:
    """A channel of a jump host as the socket of the next one: closing it after the jump host's end is no error."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def close(self) -> None:
        end(self._channel)


class Wire(paramiko.Transport):
    """`paramiko.Transport` with our algorithms and limits, and the server's own words kept."""

    packetizer: Any  # a _HeardPacketizer

    def __init__(self, sock: Any, *, limits: Limits, algorithms: Sequence[str] = ALL_ALGORITHMS) -> None:
        self.greeting: list[str] = []
        self.farewell = ""
        self._refusals: dict[int, tuple[int, str]] = {}
        self._asked = threading.local()
        super().__init__(sock, packetizer_class=_HeardPacketizer)
        offer = self.get_security_options()
        offer.ciphers, offer.digests, offer.key_types = CIPHERS, DIGESTS, tuple(algorithms)
        self.banner_timeout = limits.banner_s
        self.handshake_timeout = limits.handshake_s
        self.auth_timeout = limits.auth_s
        self.channel_timeout = limits.channel_s
        self.packetizer.last_heard = time.monotonic()

    @property
    def last_heard(self) -> float:
        return float(self.packetizer.last_heard)

    def open(self, kind: str, *, destination: tuple[str, int] | None = None, timeout_s: float) -> paramiko.Channel:
        """A new channel. Raises ChannelRefused, ChannelLate, or EOFError when the connection has ended.

        `open_channel` reports failures through one field shared by all threads; the refusal is found by channel number
        instead, so that two threads never read each other's.
        """
        self._asked.number = None
        origin = ("127.0.0.1", 0) if destination else None
        try:
            return self.open_channel(kind, destination, origin, timeout=timeout_s)
        except (paramiko.SSHException, EOFError, OSError) as error:
            refusal = self._refusals.pop(self._asked.number, None)
            if refusal is not None:
                raise ChannelRefused(*refusal) from None
            if not self.is_active():
                raise EOFError(self.why_ended() or spoken(error)) from None
            raise ChannelLate(str(error)) from None

    def why_ended(self) -> str:
        """The server's last words, or what the connection died of; empty when it just ended."""
        error = self.saved_exception
        return self.farewell or (spoken(error) if error is not None else "")

    def _next_channel(self) -> int:
        number = int(super()._next_channel())  # type: ignore[misc]
        self._asked.number = number
        return number

    def _parse_channel_open_failure(self, m: paramiko.Message) -> None:
        number, code, text = m.get_int(), m.get_int(), m.get_text()
        self._refusals[number] = (code, text)
        m.rewind()
        super()._parse_channel_open_failure(m)  # type: ignore[misc]

    def _parse_disconnect(self, m: paramiko.Message) -> None:
        m.get_int()
        self.farewell = m.get_text()
        m.rewind()
        super()._parse_disconnect(m)  # type: ignore[misc]

    def _check_banner(self) -> None:
        read = self.packetizer.readline

        def kept(timeout: float) -> str:
            line = str(read(timeout))
            self.greeting.append(line)
            return line

        self.packetizer.readline = kept
        try:
            super()._check_banner()  # type: ignore[misc]
        finally:
            self.packetizer.readline = read
