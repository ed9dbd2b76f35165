"""The SSH servers: one loopback port per node, real host keys, exec, sftp and direct-tcpip, and the faults of a door.

Every connection passes a small relay in front of the SSH server, so that a cut, a silence or a late banner can be played on a
connection whatever its state.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh import SSHKey

from apps.lab import scene
from apps.lab.machine import Machine
from apps.lab.redirect import Stream
from apps.lab.world import Node

NOISE = "Welcome to NVIDIA DGX Spark Version 7.2.3 (GNU/Linux 6.14.0-1015-nvidia aarch64)\nlast login: from 10.1.230.20\n*** maintenance on Friday ***\n"
SHELLS = ("sh", "/bin/sh", "bash", "/bin/bash", "dash", "/usr/bin/bash", "exec")


def load_keys(folder: Path) -> list[SSHKey]:
    """The node's host keys, made at the first start: ed25519 and rsa."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = []
    for kind, name in (("ssh-ed25519", "ed25519"), ("ssh-rsa", "rsa")):
        path = folder / f"ssh_host_{name}_key"
        if not path.exists():
            key = asyncssh.generate_private_key(
                kind, comment="root@spark", **({"key_size": 3072} if kind == "ssh-rsa" else {})
            )
            path.write_bytes(key.export_private_key())
            path.chmod(0o600)
            path.with_suffix(".pub").write_bytes(key.export_public_key())
        keys.append(asyncssh.read_private_key(str(path)))
    return keys


async def first(*waited: asyncio.Future[Any]) -> None:
    """Returns when the first of them is done, whatever came of it."""
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)


class Visitor(asyncssh.SSHServer):
    """One connection: who may come in, and where it may be led on to."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connection = conn
        self.door.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.connection is not None:
            self.door.connections.discard(self.connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def auth_completed(self) -> None:
        """What the user is in now, it is in for as long as the connection lives."""
        groups = self.door.node.groups_of("aurora")
        if self.connection is not None:
            self.connection.set_extra_info(groups=" ".join(f"{number}:{name}" for number, name in groups))

    def password_auth_supported(self) -> bool:
        return bool(self.door.node.ground.login_password)

    def validate_password(self, username: str, password: str) -> bool:
        return username == "aurora" and password == self.door.node.ground.login_password

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: SSHKey) -> bool:
        offered = key.export_public_key().decode().split()[:2]
        lines = list(self.door.node.authorized)
        with contextlib.suppress(OSError):
            lines += (self.door.node.root / "home/aurora/.ssh/authorized_keys").read_text().splitlines()
        return username == "aurora" and any(
            line.split()[-len(offered) - 1 :][:2] == offered or line.split()[:2] == offered for line in lines
        )

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        return self.door.lead_on(self.connection, dest_host, dest_port)


class Door:
    """The SSH port of one node."""

    def __init__(self, node: Node, machine: Machine, port: int = 0) -> None:
        self.node, self.machine, self.port = node, machine, port
        self.keys = load_keys(node.folder / "keys")
        self.other_keys: list[SSHKey] = []
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self.doors: dict[str, Door] = {}
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()

    def fingerprints(self) -> list[dict[str, str]]:
        return [
            {
                "type": key.get_algorithm(),
                "sha256": key.get_fingerprint("sha256"),
                "public": key.export_public_key().decode().strip(),
            }
            for key in self.keys
        ]

    # the port

    async def open(self) -> None:
        if self._listener is not None:
            return
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(("127.0.0.1", self.port))
        except OSError:
            made.bind(("127.0.0.1", 0))
        made.listen(128)
        made.setblocking(False)
        self.port = made.getsockname()[1]
        self._listener = made
        self._accepting = asyncio.create_task(self._accept(made))

    async def shut(self) -> None:
        """Refuse new connections and end those that are there."""
        if self._accepting is not None:
            self._accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting
            self._accepting = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.drop()

    def drop(self) -> None:
        for task in list(self._relays):
            task.cancel()
        for connection in list(self.connections):
            connection.abort()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._flows.wait()
            try:
                peer, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(self._relay(peer))
            self._relays.add(task)
            task.add_done_callback(self._relays.discard)

    async def _relay(self, peer: socket.socket) -> None:
        inner, server = socket.socketpair()
        inner.setblocking(False)
        starting: asyncio.Task[Any] | None = None
        try:
            await self._flows.wait()
            if "slow-banner" in self.node.faults:
                await asyncio.sleep(float(self.node.faults["slow-banner"] or 20))
            starting = asyncio.create_task(self._serve(server))
            ways = [asyncio.create_task(self._pump(peer, inner)), asyncio.create_task(self._pump(inner, peer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            peer.close()
            inner.close()
            if starting is None:
                server.close()

    async def _pump(self, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await loop.sock_recv(source, 1 << 18)
            await self._flows.wait()
            if not data:
                return
            await loop.sock_sendall(target, data)
            await self._flows.wait()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lead a connection of another node's ssh to this port."""
        try:
            theirs, mine = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            return

        async def flow(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 18):
                    target.write(data)
                    await target.drain()

        ways = [asyncio.create_task(flow(reader, mine)), asyncio.create_task(flow(theirs, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        mine.close()
        writer.close()

    async def _serve(self, server: socket.socket) -> None:
        keys = self.keys
        if "host-key-changed" in self.node.faults:
            if not self.other_keys:
                self.other_keys = [asyncssh.generate_private_key("ssh-ed25519")]
            keys = self.other_keys
        with contextlib.suppress(OSError, asyncssh.Error):
            await asyncssh.run_server(
                server,
                server_factory=lambda: Visitor(self),
                server_host_keys=keys,
                process_factory=self._process,
                encoding=None,
                sftp_factory=lambda channel: Files(channel, self),
                allow_scp=False,
                server_version="OpenSSH_9.6p1 Ubuntu-3ubuntu13.14",
                keepalive_interval=0,
                login_timeout=120,
                agent_forwarding=False,
                x11_forwarding=False,
                compression_algs=None,
            )

    # going on to other addresses

    def lead_on(self, connection: asyncssh.SSHServerConnection | None, host: str, port: int) -> Any:
        """What a real sshd does with direct-tcpip, within the story: refuse with the kernel's words, or connect."""
        target = self.node if self.node.owns(host) else self.node.world.find(host)
        if target is None:
            if host in scene.UNROUTABLE or host in scene.UNROUTABLE.values():
                raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "No route to host")
            if host.replace(".", "").isdigit() or ":" in host:
                raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "Network is unreachable")
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "Name or service not known")
        if target is not self.node and not self.node.owns(host) and target.machine is None:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "No route to host")
        if port == 22:
            door = self.doors[target.name]
            if door._listener is None and target is not self.node:
                raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "Connection refused")
            assert connection is not None
            return connection.forward_connection("127.0.0.1", door.port)
        listener = target.listeners.get(port)
        if listener is None or (
            host not in (listener.address, "localhost")
            and listener.address not in ("0.0.0.0", "*")
            and not (listener.address == "127.0.0.1" and host in ("::1", target.name))
        ):
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "Connection refused")
        serve = listener.serve

        async def session(reader: Any, writer: Any) -> None:
            try:
                if serve is None:
                    await reader.read()
                else:
                    await serve(reader, writer)
            except (OSError, asyncssh.Error, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        return session

    # commands

    def environment(self, process: asyncssh.SSHServerProcess[bytes]) -> dict[str, str]:
        peer = process.get_extra_info("peername") or ("10.1.230.20", 50000)
        machine = self.machine
        return {
            "HOME": machine.home,
            "USER": "aurora",
            "LOGNAME": "aurora",
            "SHELL": "/bin/bash",
            "PATH": f"{machine.bin}"
            if machine.mode == "rewrite"
            else "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp" if machine.mode == "mount" else str(self.node.root / "tmp"),
            "MOTD_SHOWN": "pam",
            "LAB_GROUPS": process.get_extra_info("groups", ""),
            "SSH_CONNECTION": f"10.1.230.20 {peer[1] if isinstance(peer, tuple) and len(peer) > 1 else 50000} {self.node.addresses[0]} 22",
        }

    async def _process(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        try:
            await self._run(process)
        except (asyncssh.Error, OSError) as error:
            with contextlib.suppress(Exception):
                process.stderr.write(f"{error}\n".encode())
                process.exit(255)

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        machine, rewriter = self.machine, self.machine.rewriter
        command = process.command
        term = process.get_terminal_type()
        words = (
            ["-bash"]
            if command is None
            else ["bash", "-c", command if rewriter is None else rewriter.into(command.encode()).decode()]
        )
        if "banner" in self.node.faults:
            process.stdout.write(NOISE.encode())
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        environment = self.environment(process)
        if term:
            await self._terminal(
                process, shell, words, {**environment, "TERM": term, "PS1": f"aurora@{self.node.name}:\\w$ "}
            )
            return
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        try:
            _, ended = await machine.spawn([shell], environment, machine.home, theirs, words=words)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        of_script = command is None or any(word in SHELLS for word in command.split()[:2]) or "sh -s" in command
        into = Stream(rewriter, inwards=True) if rewriter is not None and of_script else None
        feeding = asyncio.create_task(self._feed(process, pipes[0][1], into))
        outs = [
            asyncio.create_task(
                self._drain(pipes[1][0], process.stdout, Stream(rewriter, inwards=False) if rewriter else None)
            ),
            asyncio.create_task(
                self._drain(pipes[2][0], process.stderr, Stream(rewriter, inwards=False) if rewriter else None)
            ),
        ]
        closing = asyncio.create_task(process.wait_closed())
        try:
            both = asyncio.gather(*outs)
            await first(both, closing)
            if closing.done():
                return
            await first(ended, closing)
            if not ended.done():
                return
            code = ended.result()
            if code < 0:
                name = signal.Signals(-code).name.removeprefix("SIG")
                process.exit_with_signal(name)
            else:
                process.exit(code)
        finally:
            for task in (feeding, *outs, closing):
                task.cancel()
            await asyncio.gather(feeding, *outs, closing, return_exceptions=True)

    async def _feed(self, process: asyncssh.SSHServerProcess[bytes], descriptor: int, into: Stream | None) -> None:
        loop = asyncio.get_running_loop()
        transport = None
        try:
            transport, protocol = await loop.connect_write_pipe(
                asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", buffering=0)
            )
            writer = asyncio.StreamWriter(transport, protocol, None, loop)
            while True:
                data = await process.stdin.read(65536)
                made = data if into is None else into.feed(data, end=not data)
                if made:
                    writer.write(made)
                    await writer.drain()
                if not data:
                    break
        except (OSError, asyncssh.Error):
            pass
        finally:
            if transport is not None:
                transport.close()

    async def _drain(self, descriptor: int, target: Any, out: Stream | None) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        try:
            while True:
                data = await reader.read(65536)
                made = data if out is None else out.feed(data, end=not data)
                if made:
                    target.write(made)
                    await target.drain()
                if not data:
                    return
        finally:
            transport.close()

    async def _terminal(
        self, process: asyncssh.SSHServerProcess[bytes], shell: str, words: list[str], environment: dict[str, str]
    ) -> None:
        master, slave = os.openpty()
        try:
            pid, ended = await self.machine.spawn(
                [shell], environment, self.machine.home, [slave, slave, slave], words=words, tty=True
            )
        finally:
            os.close(slave)
        copy = os.dup(master)
        feeding = asyncio.create_task(self._feed(process, copy, None))
        reading = asyncio.create_task(self._drain(master, process.stdout, None))
        closing = asyncio.create_task(process.wait_closed())
        try:
            await first(ended, closing)
            if not ended.done():
                self.machine.signal(pid, signal.SIGHUP)
                return
            await asyncio.wait([reading], timeout=0.2)
            process.exit(max(0, ended.result()))
        finally:
            for task in (feeding, reading, closing):
                task.cancel()
            await asyncio.gather(feeding, reading, closing, return_exceptions=True)


class Files(asyncssh.SFTPServer):
    """sftp over the node's own root folder."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], door: Door) -> None:
        super().__init__(channel)
        self.door = door

    def map_path(self, path: bytes) -> bytes:
        words = os.fsdecode(path)
        if not words.startswith("/"):
            words = f"{self.door.machine.home}/{words}"
        return os.fsencode(self.door.machine.inside(os.path.normpath(words)))

    def reverse_map_path(self, path: bytes) -> bytes:
        root = os.fsencode(self.door.node.root)
        if self.door.machine.mode == "mount" and path.startswith(root):
            return path[len(root) :] or b"/"
        return path

    def realpath(self, path: bytes) -> bytes:
        return self.reverse_map_path(os.path.realpath(self.map_path(path)))

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> Any:
        if pflags & asyncssh.FXF_WRITE and "disk-full" in self.door.node.faults:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, pflags, attrs)

    def write(self, file_obj: object, offset: int, data: bytes) -> Any:
        if "disk-full" in self.door.node.faults:
            raise OSError(errno.ENOSPC, "No space left on device")
        rewriter = self.door.machine.rewriter
        if rewriter is not None and offset == 0 and (data.startswith(b"#!") or b"/sh" in data[:64]):
            data = rewriter.into(data)
        return super().write(file_obj, offset, data)

    def symlink(self, oldpath: bytes, newpath: bytes) -> None:
        os.symlink(oldpath, self.map_path(newpath))
