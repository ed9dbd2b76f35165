"""One call of a stand-in: what it was called with, and how it answers."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from apps.lab.machine import Machine, frame, pack, unpack
from apps.lab.world import Container, Node


class Gone(Exception):
    """The caller hung up."""


@dataclass
class Call:
    machine: Machine
    argv: list[str]
    cwd: str
    environment: dict[str, str]
    pid: int
    reader: asyncio.StreamReader | None
    writer: asyncio.StreamWriter | None
    taken: list[tuple[bytes, bytes]] = field(default_factory=list)  # when nobody is connected: what was written
    sink: Callable[[str, bytes], Awaitable[None]] | None = None

    @property
    def node(self) -> Node:
        return self.machine.node

    @property
    def name(self) -> str:
        return self.argv[0]

    @property
    def arguments(self) -> list[str]:
        return self.argv[1:]

    @property
    def root(self) -> bool:
        return self.environment.get("LAB_ROOT") == "1" or self.container is not None

    @property
    def container(self) -> Container | None:
        mark = self.environment.get("LAB_CONTAINER", "")
        return next((c for c in self.node.containers.values() if c.id == mark), None) if mark else None

    async def _put(self, kind: bytes, payload: bytes) -> None:
        if self.sink is not None:
            await self.sink("stdout" if kind == b"O" else "stderr", payload)
            return
        if self.writer is None:
            self.taken.append((kind, payload))
            return
        self.writer.write(frame(kind, payload))
        try:
            await self.writer.drain()
        except OSError as error:
            raise Gone from error

    async def out(self, text: str | bytes) -> None:
        if text:
            await self._put(b"O", text.encode() if isinstance(text, str) else text)

    async def err(self, text: str | bytes) -> None:
        if text:
            await self._put(b"E", text.encode() if isinstance(text, str) else text)

    async def fail(self, text: str, code: int = 1) -> int:
        await self.err(text if text.endswith("\n") else text + "\n")
        return code

    async def stdin(self) -> bytes:
        """All of the caller's standard input."""
        if self.writer is None or self.reader is None:
            return b""
        self.writer.write(frame(b"I", b""))
        data = b""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">I", await self.reader.readexactly(4))
                if not size:
                    break
                data += await self.reader.readexactly(size)
        return data

    async def become(self, path: str, argv: list[str], environment: dict[str, str]) -> int:
        """Let the caller's own process run another program in its place."""
        assert self.writer is not None
        words = [str(len(argv) + 1).encode(), path.encode(), *(word.encode(errors="surrogateescape") for word in argv)]
        words += [f"{name}={value}".encode(errors="surrogateescape") for name, value in environment.items()]
        self.writer.write(frame(b"X", pack(words)))
        with contextlib.suppress(OSError):
            await self.writer.drain()
        return -1

    async def hung_up(self) -> None:
        """Returns when the caller's process has gone."""
        if self.reader is None:
            await asyncio.Event().wait()
        else:
            with contextlib.suppress(OSError):
                while await self.reader.read(4096):
                    pass


Tool = Callable[[Call], Awaitable[int]]
TOOLS: dict[str, Tool] = {}
CONTAINER_TOOLS: dict[str, Tool] = {}
HIDDEN: set[str] = set()  # stand-ins of programs that lie outside of PATH


def tool(*names: str, inside: bool = False, outside: bool = True, hidden: bool = False) -> Callable[[Tool], Tool]:
    """Register a stand-in: on the host, in containers, or both. `hidden`: only by the file that `Machine.install` makes."""
    HIDDEN.update(names if hidden else ())

    def keep(function: Tool) -> Tool:
        for name in names:
            if outside:
                TOOLS[name] = function
            if inside:
                CONTAINER_TOOLS[name] = function
        return function

    return keep


async def answer(machine: Machine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one knock at the node's door."""
    try:
        (size,) = struct.unpack(">I", await reader.readexactly(4))
        items = unpack(await reader.readexactly(size))
        pid, cwd, count = int(items[0]), items[1].decode(errors="surrogateescape"), int(items[2])
        argv = [item.decode(errors="surrogateescape") for item in items[3 : 3 + count]]
        environment = dict(
            item.decode(errors="surrogateescape").split("=", 1) for item in items[3 + count :] if b"=" in item
        )
        if machine.rewriter is not None:
            argv = [
                machine.rewriter.out(word.encode(errors="surrogateescape")).decode(errors="surrogateescape")
                for word in argv
            ]
        call = Call(machine, argv, cwd, environment, pid, reader, writer)
        known = CONTAINER_TOOLS if call.container is not None else TOOLS
        function = known.get(argv[0]) or TOOLS.get(argv[0])
        if function is None:
            code = await call.fail(f"{argv[0]}: command not found", 127)
        else:
            code = await function(call)
        if code >= 0:
            writer.write(frame(b"Q", struct.pack(">I", code)))
            await writer.drain()
    except (Gone, OSError, asyncio.IncompleteReadError):
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            writer.write(frame(b"E", f"stand-in failed: {error!r}\n".encode()) + frame(b"Q", struct.pack(">I", 70)))
            await writer.drain()
    finally:
        with contextlib.suppress(OSError):
            writer.close()
