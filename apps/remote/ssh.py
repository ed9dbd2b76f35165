"""The real transport: one SSH connection with pinned host keys, many commands and tunnels at once, and a watch on the
peer.

Nothing is read from this machine: no known_hosts, no agent, no key files. Nothing is retried here.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import select
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from secrets import token_hex
from typing import Any, cast

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from apps.remote import hops, tunnel
from apps.remote.transport import (
    AccessDenied,
    BadAnswer,
    CannotReach,
    ConnectionLost,
    Endpoint,
    HttpAnswer,
    HttpFailed,
    KeyProblem,
    RemoteError,
    Result,
)
from apps.remote.wire import ChannelLate, ChannelRefused, Limits, Wire, end, prefer, spoken

PIECE = 65536  # bytes a read; measured 120 MB/s against 79 with 4 KiB
SHELL = "/bin/sh -s"
LARGEST_OUTPUT = 32 * 1024 * 1024  # bytes of both outputs of one command; a node must not fill our memory
_KEY_CLASSES = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)

Observer = Callable[[str], None]


def connect(
    endpoint: Endpoint,
    *,
    parent: ParamikoTransport | None = None,
    limits: Limits | None = None,
    step: Observer | None = None,
) -> ParamikoTransport:
    """A verified, authenticated connection to the endpoint, through its `via` chain.

    With `parent`, that connection is used for the last jump and stays its owner's; without, the chain is opened here
    and closed with the result, inner first. `step` is told the name of each step as it begins: jump or dns, then tcp,
    host_key, auth. Raises RemoteError, and ValueError for a chain that is too deep.
    """
    limits = limits or Limits()
    step = step or (lambda name: None)
    owned: ParamikoTransport | None = None
    if endpoint.via is not None and parent is None:
        hops.chain(endpoint)  # refuses a ring
        step("jump")
        try:
            parent = owned = connect(endpoint.via, limits=limits)
        except RemoteError as error:
            raise hops.jump_failure(error) from error
    try:
        wire = handshake(
            endpoint, parent, limits=limits, algorithms=prefer([kind for kind, _ in endpoint.host_keys]), step=step
        )
        try:
            verify(endpoint, wire.get_remote_server_key())
            step("auth")
            authenticate(endpoint, wire, limits=limits)
        except BaseException:
            wire.close()
            raise
        return ParamikoTransport(endpoint, wire, parent=parent, owns_parent=owned is not None, limits=limits)
    except BaseException:
        if owned is not None:
            owned.close()
        raise


def handshake(
    endpoint: Endpoint,
    parent: ParamikoTransport | None,
    *,
    limits: Limits,
    algorithms: Sequence[str],
    step: Observer,
) -> Wire:
    """A connection with keys exchanged but nobody trusted yet: the caller looks at `get_remote_server_key()`.

    Raises CannotReach, and IncompatiblePeer when no algorithm is common.
    """
    if parent is None:
        step("dns")
        addresses = hops.resolve(endpoint, limits=limits)
        step("tcp")
        sock: Any = hops.dial(endpoint, addresses, limits=limits)
    else:
        step("tcp")
        sock = hops.through(parent, endpoint, limits=limits)
    step("host_key")
    wire = Wire(sock, limits=limits, algorithms=algorithms)
    try:
        wire.start_client(timeout=limits.banner_s + limits.handshake_s)
        if not wire.initial_kex_done:
            raise EOFError("no end of the key exchange")
    except IncompatiblePeer:
        wire.close()
        raise
    except (paramiko.SSHException, EOFError, OSError) as error:
        wire.close()
        raise _unfinished(endpoint, wire, spoken(error)) from error
    except BaseException:
        wire.close()
        raise
    wire.set_keepalive(30)  # for routers that forget silent connections; a dead peer is found by the watch
    return wire


def verify(endpoint: Endpoint, key: paramiko.PKey) -> None:
    """Raises KeyProblem unless exactly this key is pinned. A type that was never pinned is unknown, not changed."""
    offered = (key.get_name(), fingerprint(key.get_base64()))
    same_type = [text for kind, text in endpoint.host_keys if kind == offered[0]]
    if any(_blob(text) == key.asbytes() for text in same_type):
        return
    seen = f"{offered[0]} {offered[1]}"
    if same_type:
        pinned = ", ".join(fingerprint(text) for text in same_type)
        raise KeyProblem(
            "host_key_changed", hop=endpoint.name, offered=offered, evidence=f"offered {seen}, pinned {pinned}"
        )
    kinds = ", ".join(kind for kind, _ in endpoint.host_keys) or "none"
    evidence = f"offered {seen}; types pinned: {kinds}"
    raise KeyProblem("host_key_unknown", hop=endpoint.name, offered=offered, evidence=evidence)


def authenticate(endpoint: Endpoint, wire: Wire, *, limits: Limits) -> None:
    """Prove who we are with the endpoint's private key, or with its password where it has one. Raises AccessDenied, or
    ConnectionLost when the peer went away.
    """
    key = None if endpoint.password else load_key(endpoint)
    try:
        if key is None:
            missing = wire.auth_password(endpoint.user, endpoint.password)
        else:
            missing = wire.auth_publickey(endpoint.user, key)
    except paramiko.SSHException as error:
        if str(error) == "Authentication timeout.":
            evidence = f"no answer to the authentication within {limits.auth_s:g} s"
            raise ConnectionLost("ssh_timeout", hop=endpoint.name, evidence=evidence) from error
        if not wire.is_active() and not wire.farewell:
            evidence = "the connection ended during authentication"
            raise ConnectionLost("ssh_timeout", hop=endpoint.name, evidence=evidence) from error
        said = "the password was not accepted" if key is None else wire.farewell or str(error)
        raise AccessDenied("ssh_auth", hop=endpoint.name, evidence=f"user {endpoint.user}: {said}") from error
    except (EOFError, OSError) as error:
        raise ConnectionLost(
            "ssh_timeout", hop=endpoint.name, evidence=f"during authentication: {spoken(error)}"
        ) from error
    if missing:
        given = "password" if key is None else "key"
        evidence = f"user {endpoint.user}: the {given} was accepted, but the server also asks for {', '.join(missing)}"
        raise AccessDenied("ssh_auth", hop=endpoint.name, evidence=evidence)


def load_key(endpoint: Endpoint) -> paramiko.PKey:
    """The private key as an object. Raises AccessDenied when the text is no usable key; the text is never repeated."""
    for kind in _KEY_CLASSES:
        try:
            return kind.from_private_key(io.StringIO(endpoint.private_key))
        except paramiko.PasswordRequiredException:
            raise AccessDenied(
                "ssh_auth", hop=endpoint.name, evidence="the private key is locked with a passphrase"
            ) from None
        except (paramiko.SSHException, ValueError, TypeError, IndexError):
            continue
    raise AccessDenied("ssh_auth", hop=endpoint.name, evidence="the private key is not an ed25519, ECDSA or RSA key")


def fingerprint(text: str) -> str:
    """`SHA256:…` of a public key in base64, as `ssh-keygen -lf` prints it (unpadded base64 of the SHA-256 of the
    blob).
    """
    digest = hashlib.sha256(_blob(text)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _blob(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=False)
    except ValueError:
        return b""


def _unfinished(endpoint: Endpoint, wire: Wire, error: str) -> CannotReach:
    """Why no key exchange came about, told by how far it got."""
    greeting = " / ".join(line for line in wire.greeting if line)[:300]
    if wire.remote_version:
        evidence = (
            f"{wire.remote_version}: the key exchange did not finish: {wire.farewell or error or 'connection closed'}"
        )
        return CannotReach("ssh_busy", hop=endpoint.name, evidence=evidence)
    busy = not greeting or "maxstartups" in greeting.lower() or "not allowed at this time" in greeting.lower()
    if busy:
        return CannotReach("ssh_busy", hop=endpoint.name, evidence=greeting or error or "closed before the SSH banner")
    evidence = f"port {endpoint.port} answers, but not as an SSH server: {greeting}"
    return CannotReach("not_ssh", hop=endpoint.name, evidence=evidence)


class NotWritten(RemoteError):
    """The node was reached but could not write a file: `disk_full`, or `exited` with what the node said."""


class ParamikoTransport:
    """`transport.Transport` over one SSH connection. Made by `connect`, safe from several threads, never across a
    fork.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        wire: Wire,
        *,
        parent: ParamikoTransport | None,
        owns_parent: bool,
        limits: Limits,
    ) -> None:
        self.name = endpoint.name
        self.endpoint, self.parent, self.limits = endpoint, parent, limits
        self.last_used = time.monotonic()
        self._wire, self._owns_parent, self._process = wire, owns_parent, os.getpid()
        self._sessions = threading.BoundedSemaphore(limits.sessions)
        self._state = threading.Condition()
        self._operations, self._waiting_since = 0, time.monotonic()
        self._closed, self._lost = False, ""
        threading.Thread(target=self._watch, name=f"watch {self.name}", daemon=True).start()

    # -- what others call ----------------------------------------------------------------------------------------------

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Result:
        """Run POSIX shell text; see `transport.Transport.run`.

        A marker is printed before the script's first word and both outputs are cut there, so whatever the login
        shell's profile prints is not in the result. The script is read whole before its first word runs: a connection
        that breaks while it is sent runs nothing. `exit_code` is 255 when the shell was killed by a signal. On
        `timeout_s` the wait ends (`exit_code` None), not the command. Commands beyond `limits.sessions` wait in line.
        Raises AccessDenied when the account may log in but can't run a shell, BadAnswer when it prints more than
        LARGEST_OUTPUT bytes, ConnectionLost, CannotReach(ssh_busy).
        """
        started = time.monotonic()
        deadline = started + timeout_s
        marker = token_hex(16)
        with self._operation(), self._session(deadline) as channel:
            talk = _Talk(channel, written_out(script, stdin, marker))
            try:
                channel.exec_command(SHELL)
                finished = talk.until(deadline)
            except TooMuch:
                evidence = f"the command printed more than {LARGEST_OUTPUT} bytes; the rest was not read"
                raise BadAnswer("bad_answer", hop=self.name, evidence=evidence) from None
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise self._gone(spoken(error)) from error
            if finished and channel.exit_status == -1 and not self.probe():
                raise self._gone("the connection ended while the command ran")
            return self._judged(talk, marker, finished, time.monotonic() - started)

    def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write a file as a whole or not at all (through a new name and a rename). `~/` is the home directory.

        Raises NotWritten with the node's words when the node could not write it, and the rest of RemoteError.
        """
        result = self.run(_write_script(path, mode), stdin=data, timeout_s=60.0 + len(data) / 1_000_000)
        if not result.ok:
            said = result.stderr.decode(errors="replace").strip() or f"exit code {result.exit_code}"
            reason = "disk_full" if "No space left" in said or "Disk quota" in said else "exited"
            raise NotWritten(reason, hop=self.name, evidence=f"could not write {path}: {said}")

    def open_tunnel(self, host: str, port: int, *, timeout_s: float = 10.0) -> socket.socket:
        """A stream to host:port as the node sees it; close it when done. It is socket-like, not selectable for
        writing.

        Raises CannotReach with ssh_refused, no_route, ssh_timeout or dns about host:port, jump_refused when the node
        forbids forwarding, and ConnectionLost.
        """
        where = f"{host} port {port} on {self.name}"
        try:
            channel = self.open_direct(host, port, timeout_s=timeout_s)
            return cast(socket.socket, _Tunnel(channel, self._operation()))
        except ChannelRefused as refusal:
            reason = hops.refusal_reason(refusal)
            raise CannotReach(reason, hop=self.name, evidence=f"{where}: {refusal.text}") from None
        except ChannelLate:
            raise CannotReach(
                "ssh_timeout", hop=self.name, evidence=f"{where}: no answer within {timeout_s:g} s"
            ) from None

    def http(
        self,
        method: str,
        url: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> HttpAnswer:
        """One exchange through a tunnel; see `tunnel.exchange`. Raises HttpFailed, or RemoteError when SSH itself
        failed.
        """
        with self._operation():
            try:
                return tunnel.exchange(self, method, url, body=body, headers=headers, timeout_s=timeout_s)
            except HttpFailed as error:
                if not self.alive:
                    raise self._gone(error.evidence) from error
                raise

    def close(self) -> None:
        """End the connection, and the jump hosts' that were opened for it. What runs detached on the node goes on."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._wire.close()
        if self._owns_parent and self.parent is not None:
            self.parent.close()

    def __enter__(self) -> ParamikoTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what the pool and the hops call -------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """False once the end is known; True is a hope, `probe` asks."""
        return not self._closed and self._wire.is_active() and self._process == os.getpid()

    @property
    def busy(self) -> bool:
        return self._operations > 0

    @property
    def silent_s(self) -> float:
        """Seconds since the peer was last heard."""
        return time.monotonic() - self._wire.last_heard

    def probe(self) -> bool:
        """Ask the peer for a sign of life, `limits.probe_s` long. Any packet counts, a refusal too."""
        if not self.alive:
            return False
        heard, answered = self._wire.last_heard, threading.Event()
        # A thread of its own: with a frozen peer even sending can block for ever.
        threading.Thread(target=self._knock, args=(answered,), name=f"probe {self.name}", daemon=True).start()
        deadline = time.monotonic() + self.limits.probe_s
        while time.monotonic() < deadline and self._wire.is_active():
            if answered.wait(0.05) or self._wire.last_heard != heard:
                break
        return self._wire.is_active() and (answered.is_set() or self._wire.last_heard != heard)

    def open_direct(self, host: str, port: int, *, timeout_s: float) -> paramiko.Channel:
        """A direct-tcpip channel. Raises ChannelRefused, ChannelLate, ConnectionLost."""
        with self._operation():
            try:
                return self._wire.open("direct-tcpip", destination=(host, port), timeout_s=timeout_s)
            except EOFError as error:
                raise self._gone(spoken(error)) from error
            except ChannelLate:
                if not self.probe():
                    self._drop(f"no sign of life for {self.limits.probe_s:g} s")
                    raise self._gone("") from None
                raise

    def abandon(self) -> None:
        """In a forked child: let go of the parent process's connection without a word on it."""
        self._closed = True
        self._wire.atfork()

    # -- inside --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _operation(self) -> Iterator[None]:
        """While this is open the watch minds the peer. Raises ConnectionLost when the connection has ended already."""
        if not self.alive:
            raise self._gone("")
        with self._state:
            if self._operations == 0:
                self._waiting_since = time.monotonic()
            self._operations += 1
            self._state.notify_all()
        try:
            yield
        finally:
            with self._state:
                self._operations -= 1
            self.last_used = time.monotonic()

    @contextmanager
    def _session(self, deadline: float) -> Iterator[paramiko.Channel]:
        if not self._sessions.acquire(timeout=max(0.0, deadline - time.monotonic())):
            evidence = f"{self.limits.sessions} commands were running on this connection until the time limit"
            raise CannotReach("ssh_busy", hop=self.name, evidence=evidence)
        try:
            channel = self._open_session(deadline)
            try:
                yield channel
            finally:
                end(channel)
        finally:
            self._sessions.release()

    def _open_session(self, deadline: float) -> paramiko.Channel:
        """A server with a smaller MaxSessions refuses; while others of ours run, that means: wait for them."""
        while True:
            try:
                return self._wire.open("session", timeout_s=self.limits.channel_s)
            except EOFError as error:
                raise self._gone(spoken(error)) from error
            except ChannelLate as error:
                if not self.probe():
                    self._drop("no answer to a new session, and no sign of life")
                    raise self._gone("") from error
                raise CannotReach("ssh_busy", hop=self.name, evidence=str(error)) from error
            except ChannelRefused as refusal:
                if self._operations <= 1 or time.monotonic() + 0.2 > deadline:
                    raise CannotReach("ssh_busy", hop=self.name, evidence=f"new session: {refusal.text}") from refusal
                time.sleep(0.2)

    def _judged(self, talk: _Talk, marker: str, finished: bool, seconds: float) -> Result:
        stdout, began = _after(bytes(talk.stdout), marker)
        stderr, _ = _after(bytes(talk.stderr), marker)
        status = talk.channel.exit_status
        if not finished:
            return Result(stdout if began else b"", stderr if began else b"", None, seconds)
        if not began:
            said = (stdout + stderr)[:2000].decode(errors="replace").strip() or f"exit code {status} and no word"
            evidence = f"user {self.endpoint.user} is let in but gets no {SHELL}: {said}"
            raise AccessDenied("ssh_auth", hop=self.name, evidence=evidence)
        return Result(stdout, stderr, 255 if status == -1 else status, seconds)

    def _gone(self, evidence: str) -> ConnectionLost:
        if self._process != os.getpid():
            evidence = "a connection of another process was used after a fork"
        said = self._lost or self._wire.why_ended() or evidence or "the connection was closed"
        return ConnectionLost("ssh_timeout", hop=self.name, evidence=said)

    def _drop(self, evidence: str) -> None:
        self._lost = self._lost or evidence
        self._wire.close()

    def _knock(self, answered: threading.Event) -> None:
        try:
            self._wire.open("session", timeout_s=self.limits.probe_s).close()
        except ChannelRefused:
            pass
        except Exception:  # every failure to ask is the same: no answer
            return
        answered.set()

    def _watch(self) -> None:
        """While something waits for the peer and the peer is silent, ask it; after `misses` misses drop the
        connection.
        """
        while self.alive:
            with self._state:
                if self._operations == 0:
                    self._state.wait(5.0)
                    continue
                silent = time.monotonic() - max(self._wire.last_heard, self._waiting_since)
                if silent < self.limits.silence_s:
                    self._state.wait(min(5.0, self.limits.silence_s - silent + 0.01))
                    continue
            if any(self.probe() for _ in range(self.limits.misses)) or not self.alive:
                continue
            waited = self.limits.silence_s + self.limits.misses * self.limits.probe_s
            if self.parent is not None and self.parent.alive and not self.parent.probe():
                self.parent._drop(f"no sign of life for {self.limits.probe_s:g} s")
                self._drop(f"the jump host {self.parent.name} is silent")
            self._drop(f"silent for {waited:g} s, {self.limits.misses} probes unanswered")


class _Tunnel:
    """A channel that counts as an operation until it is closed, so that the peer is watched while bytes are
    awaited.
    """

    def __init__(self, channel: paramiko.Channel, operation: AbstractContextManager[None]) -> None:
        self._channel, self._held = channel, ExitStack()
        self._held.callback(end, channel)
        self._held.enter_context(operation)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> _Tunnel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TooMuch(Exception):
    """The outputs of one command are larger than LARGEST_OUTPUT."""


class _Talk:
    """Sends the input and drains both outputs of one channel together, so that neither side can fill up and wait."""

    def __init__(self, channel: paramiko.Channel, payload: bytes) -> None:
        self.channel = channel
        self.stdout, self.stderr = bytearray(), bytearray()
        self._left: memoryview | None = memoryview(payload)

    def until(self, deadline: float) -> bool:
        """True when the command ended and its output was read; False when the deadline came first. Raises TooMuch."""
        ready = select.poll()
        ready.register(self.channel.fileno(), select.POLLIN)
        self.channel.settimeout(0.0)
        status_since = 0.0
        while True:
            moved = self._send() | self._receive()
            now = time.monotonic()
            if now >= deadline:
                return False
            if moved:
                status_since = 0.0
                continue
            if self.channel.closed or (self.channel.eof_received and self.channel.exit_status_ready()):
                if not self._receive():
                    return True
                continue
            if self.channel.exit_status_ready():
                # Something it left in the background may hold the output open for ever: a second of silence is the end.
                status_since = status_since or now
                if now - status_since > 1.0:
                    return True
            if self.channel.eof_received:
                self.channel.status_event.wait(0.05)
            else:
                ready.poll(20 if self._left is not None else 200)

    def _send(self) -> bool:
        if self._left is None or not self.channel.send_ready():
            return False
        try:
            sent = self.channel.send(bytes(self._left[:32768])) if self._left else 0
            self._left = self._left[sent:]
            if not self._left:
                self.channel.shutdown_write()
                self._left = None
        except TimeoutError:
            return False
        except OSError:  # the command ended without reading all of its input
            self._left = None
        return True

    def _receive(self) -> bool:
        moved = False
        if self.channel.recv_ready():
            self.stdout += self.channel.recv(PIECE)
            moved = True
        if self.channel.recv_stderr_ready():
            self.stderr += self.channel.recv_stderr(PIECE)
            moved = True
        if len(self.stdout) + len(self.stderr) > LARGEST_OUTPUT:
            raise TooMuch
        return moved


def written_out(script: str, stdin: bytes, marker: str) -> bytes:
    """What is sent to `/bin/sh -s`: the marker on both outputs, the script as one function, its input.

    The input travels as base64 in a here-document: dash reads its own input in blocks, so bytes that merely followed
    the script would be taken for more script. All is closed by a brace at the very end, so half of it is a syntax
    error.
    """
    text = f"printf %s {marker}; printf %s {marker} >&2\nsparkweb_script() {{\n:\n{script}\n}}\n"
    if stdin:
        data = base64.encodebytes(stdin).decode()
        text += f"{{ base64 -d <<'{marker}' | sparkweb_script\n{data}{marker}\n}}\n"
    else:
        text += "sparkweb_script </dev/null\n"
    return text.encode()


def _after(output: bytes, marker: str) -> tuple[bytes, bool]:
    _, found, rest = output.partition(marker.encode())
    return (rest, True) if found else (output, False)


def _write_script(path: str, mode: int) -> str:
    if "\0" in path or not path:
        raise ValueError("a file's path must not be empty or hold a NUL byte")
    target = '"$HOME"/' + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)
    return "\n".join(
        (
            "umask 077",
            f"target={target}",
            "case $target in /*) ;; *) target=./$target ;; esac",
            f"new=$target.{token_hex(6)}.new",
            f'{{ cat > "$new" && chmod {mode:04o} "$new" && mv -f "$new" "$target"; }} || {{ rm -f "$new"; exit 1; }}',
        )
    )
