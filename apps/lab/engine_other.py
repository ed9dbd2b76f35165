"""What pretend servers other than vLLM have in common: a program that takes memory and a port, prints, answers and dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apps.lab import runtime
from apps.lab.call import Call
from apps.lab.world import Container, Listener, Node, Process

GIB = 1 << 30


class Dies(Exception):
    """The server ends: its last words, and its exit code."""

    def __init__(self, *lines: str, code: int = 1) -> None:
        super().__init__(lines[-1] if lines else "")
        self.lines, self.code = lines, code


class BadOptions(Exception):
    """argparse's or llama.cpp's words."""


@dataclass
class Program:
    """One running server. In a container its files are what is mounted there; as a plain process they are the node's."""

    node: Node
    call: Call
    container: Container | None
    model: str
    options: dict[str, Any]
    name: str = "server"
    ready: bool = False  # answers completions
    hung: bool = False
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    death: Dies | None = None
    created: float = field(default_factory=time.time)
    config: dict[str, Any] = field(default_factory=dict)
    active: int = 0
    counters: dict[str, float] = field(default_factory=lambda: {"prompt": 0.0, "generated": 0.0, "requests": 0.0})
    max_len: int = 32768
    kv_tokens: int = 0
    port: int = 0
    processes: list[Process] = field(default_factory=list)
    claims: set[str] = field(default_factory=set)
    gpus: list[int] = field(default_factory=lambda: [0])
    program_process: Process | None = None

    @property
    def world(self) -> Any:
        return self.node.world

    @property
    def served(self) -> list[str]:
        return [self.model]

    @property
    def ranks(self) -> list[Any]:
        return [self]

    async def api(self, text: str) -> None:
        """A line of the HTTP server's."""
        await self.call.err(text + "\n")

    async def pause(self, seconds: float) -> None:
        await self.world.pause(seconds)

    async def phase(self, name: str) -> None:
        """Play the faults that are set on this phase."""
        wanted = self.node.faults.get("engine-dies")
        if wanted is not None and (wanted or "loading") == name:
            raise Dies(*self.last_words_in(name))
        wanted = self.node.faults.get("engine-hangs")
        if wanted is not None and (wanted or "loading") == name:
            self.hung = True
            while self.node.faults.get("engine-hangs") is not None:
                await asyncio.sleep(0.1)
            self.hung = False

    def last_words_in(self, phase: str) -> tuple[str, ...]:
        return ("Segmentation fault (core dumped)",)

    # files and memory

    def file(self, path: str) -> Path:
        """Where a path of the program's lies on this machine."""
        machine = self.node.machine
        assert machine is not None
        if self.container is None:
            return machine.inside(path)
        for source, target, _ in self.container.mounts:
            if path == target or path.startswith(target.rstrip("/") + "/"):
                return machine.inside(source.rstrip("/") + path[len(target.rstrip("/")) :])
        return machine.inside("/nonexistent" + path)

    def environment(self, name: str) -> str:
        own = self.container.environment.get(name, "") if self.container is not None else ""
        return own or self.call.environment.get(name, "")

    @property
    def free_gib(self) -> float:
        """What its GPUs have left, each."""
        if self.node.discrete:
            return min(self.node.gpu_gib - self.node.gpu_held(number) for number in self.gpus)
        return self.node.engine_free_gib

    @property
    def total_gib(self) -> float:
        return self.node.gpu_gib if self.node.discrete else self.node.total_gib

    def take(self, gib: float) -> None:
        """Hold so much on each of its GPUs."""
        key = f"{self.name} {id(self)}"
        self.claims.add(key)
        if self.node.discrete:
            for number in self.gpus:
                self.node.gpu_claims[(key, number)] = gib
            self.node.claim(key, 3.0)
        else:
            self.node.claim(key, gib)
        if self.program_process is not None:
            self.program_process.gpu_mib, self.program_process.gpus = int(gib * 1024), tuple(self.gpus)

    async def puppet(self, title: str) -> Process:
        process = await runtime.puppet(self.node, title, container=self.container.name if self.container else "")
        if self.container is None:
            process.user = "aurora"
        self.processes.append(process)
        return process

    def read_config(self, folder: Path) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.config = json.loads((folder / "config.json").read_text())

    # port

    def listen(self, port: int, serve: Callable[[Any, Any], Awaitable[None]], address: str = "0.0.0.0") -> None:
        pid = self.program_process.pid if self.program_process is not None else self.call.pid
        made = Listener(address, port, self.name, pid, serve)
        made.container = self.container.id if self.container is not None else ""
        self.node.listeners[port] = made
        self.port = port

    # the end

    def die(self, death: Dies) -> None:
        if self.death is None:
            self.death = death
        self.dead.set()

    async def stop(self) -> None:
        """Give back memory, ports and processes."""
        self.ready = False
        self.dead.set()
        for port, listener in list(self.node.listeners.items()):
            if self.program_process is not None and listener.pid == self.program_process.pid:
                del self.node.listeners[port]
        for key in self.claims:
            self.node.release(key)
            for found in [one for one in self.node.gpu_claims if one[0] == key]:
                del self.node.gpu_claims[found]
        for process in self.processes:
            if self.node.processes.get(process.pid) is process:
                runtime.end_process(self.node, process)
        self.processes.clear()
        self.node.busy = any(one.active for one in self.node.programs)


async def live(program: Program, title: str, work: Callable[[], Awaitable[None]]) -> int:
    """Run a server from its start to its end: its exit code. A plain process ends with the caller's own."""
    node = program.node
    program.program_process = await program.puppet(title)
    program.program_process.on_death = lambda: program.die(Dies("Killed", code=137))
    if program.container is not None:
        program.container.engines.append(program)
    node.programs.append(program)
    tasks = [asyncio.ensure_future(work()), asyncio.ensure_future(program.dead.wait())]
    if program.call.reader is not None and program.container is None:
        tasks.append(asyncio.ensure_future(program.call.hung_up()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
        if program.death is not None:
            raise program.death
        return 0
    except Dies as death:
        with contextlib.suppress(Exception):
            for line in death.lines:
                await program.call.err(line + "\n")
        return death.code
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if program in node.programs:
            node.programs.remove(program)
        await program.stop()
        if program.container is not None and program in program.container.engines:
            program.container.engines.remove(program)


def parsed(
    words: list[str], valued: set[str], flags: set[str], aliases: dict[str, str], *, underscores: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Options by their long names, and what is none. Raises BadOptions for a value that is missing."""
    options: dict[str, Any] = {}
    unknown: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if underscores and name.startswith("--"):
            name = name.replace("_", "-")
        name = aliases.get(name, name)
        if name in flags:
            options[name] = True
        elif name in valued:
            if not equals:
                if not rest:
                    raise BadOptions(f"argument {name}: expected one argument")
                value = rest.pop(0)
            options[name] = value
        else:
            unknown.append(word)
            if word.startswith("-") and rest and not rest[0].startswith("-"):
                unknown.append(rest.pop(0))
    return options, unknown
