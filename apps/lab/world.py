"""The state of the pretend nodes: memory by owner, containers, units, processes, ports, clock, faults."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.lab.scene import GIB, IMAGES, Card, ImageSeed, NodeSeed, UnitSeed

if TYPE_CHECKING:
    from apps.lab.machine import Machine

FAULTS = {
    "cut": "close the node's SSH connections now and refuse new ones for VALUE seconds (default 5)",
    "freeze": "silent for VALUE seconds: nothing accepted, nothing sent (default 10)",
    "slow-banner": "the SSH banner comes VALUE seconds late (default 20)",
    "host-key-changed": "new connections are shown other host keys",
    "disk-full": "no space left on the node's disk",
    "engine-dies": "the engine dies in phase VALUE (starting, nccl, loading, compiling, graphs, ready)",
    "engine-hangs": "the engine says no more from phase VALUE on",
    "oom": "the kernel kills the engine's worker during loading",
    "ray-no-join": "the node's Ray worker can't reach the head",
    "wrong-interface": "Ray advertises the management address",
    "unit-revives": "a stopped unit of the old stack is started again by somebody (VALUE: the unit)",
    "clock-off": "the node's clock is VALUE seconds ahead",
    "banner": "the login shell prints noise before any output",
    "duplicates": "the log prints every bar twice",
    "strands": "a change of the node's network cuts it off until it is undone",
    "api": "the engine's API answers as VALUE says: warming-up (503), wrong-model, thinks-only, empty, garbled, stream-error",
    "hub": "https://huggingface.co is answered by the server at VALUE on this machine's loopback",
    "slow-rank": "the node's rank loads VALUE times slower (default 2)",
}


@dataclass
class Claim:
    """Memory that somebody holds, in GiB; `target` is where it is going."""

    target: float
    held: float = 0.0


@dataclass
class Process:
    """A process that the stand-ins show; `pid` is a real, sleeping process of the node."""

    pid: int
    title: str
    container: str = ""
    unit: str = ""
    user: str = "root"
    gpu_mib: int = 0
    gpus: tuple[int, ...] = (0,)  # on each of which it holds `gpu_mib`
    started: float = field(default_factory=time.time)
    on_death: Callable[[], None] | None = None


class Log:
    """Output of a container, as docker keeps it: whole writes with time and stream."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, str, bytes]] = []
        self.news = asyncio.Event()
        self.closed = False

    def write(self, data: bytes, stream: str = "stdout") -> None:
        self.entries.append((time.time(), stream, data))
        self.wake()

    def wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


@dataclass
class Container:
    name: str
    image: ImageSeed
    argv: list[str]
    environment: dict[str, str]
    labels: dict[str, str]
    entrypoint: list[str] = field(default_factory=list)
    restart_policy: str = "no"
    network: str = "bridge"
    ipc: str = "private"
    shm_bytes: int = 64 << 20
    privileged: bool = False
    mounts: list[tuple[str, str, bool]] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    ports: list[tuple[int, int]] = field(default_factory=list)
    remove: bool = False
    image_ref: str = ""
    id: str = field(default_factory=lambda: hashlib.sha256(uuid.uuid4().bytes).hexdigest())
    created: float = field(default_factory=time.time)
    started: float | None = None
    finished: float | None = None
    state: str = "created"
    exit_code: int = 0
    oom_killed: bool = False
    restarts: int = 0
    pid: int = 0
    log: Log = field(default_factory=Log)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    engines: list[Any] = field(default_factory=list)  # Engine of vLLM, Program of others
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ray: RayNode | None = None
    user_stopped: bool = False

    @property
    def running(self) -> bool:
        return self.state == "running"


@dataclass
class Unit:
    name: str
    description: str
    exec_start: str = ""
    enabled: str = "enabled"
    active: str = "active"
    sub: str = "running"
    seed: UnitSeed | None = None
    since: float = field(default_factory=time.time)
    pid: int = 0
    restarts: int = 0
    task: asyncio.Task[None] | None = None
    fragment: str = ""
    result: str = "success"


@dataclass
class RayNode:
    """One node of a Ray cluster. The head's own `cluster` lists all that joined."""

    id: str
    address: str
    node: Node
    container: Container
    head: bool = False
    cluster: list[RayNode] = field(default_factory=list)
    gpus_used: float = 0.0
    placement: float = 0.0
    processes: list[Process] = field(default_factory=list)  # raylet, and gcs_server on the head
    broken: str = ""  # which of them ended unexpectedly, and how


@dataclass
class Listener:
    address: str
    port: int
    program: str
    pid: int
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None
    container: str = ""  # its id, where one listens


@dataclass
class Ground:
    """How a node is set up. `sudo_password` empty: sudo asks nothing."""

    sudo_password: str = ""
    login_password: str = ""
    ntp: bool = True
    owner: str = ""  # of the fabric's interfaces: netplan, networkd, networkmanager; empty: nobody
    connections: dict[str, dict[str, str]] = field(default_factory=dict)  # of NetworkManager, by name


class Node:
    """One pretend Spark."""

    def __init__(self, world: World, seed: NodeSeed, folder: Path) -> None:
        self.world, self.seed, self.name, self.folder = world, seed, seed.name, folder
        self.machine: Machine | None = None
        self.random = random.Random(seed.name)
        self.authorized: list[str] = []
        self.cards: list[Card] = list(seed.cards)
        self.kept_cards: list[Card] = list(seed.cards)  # what a boot brings back
        self.ground = Ground()
        self.faults: dict[str, str] = {}
        self.booted = time.time() - seed.uptime_s
        self.boot_id = str(uuid.uuid4())
        self.begin()

    def begin(self) -> None:
        """Everything that a boot forgets."""
        self.containers: dict[str, Container] = getattr(self, "containers", {})
        self.units: dict[str, Unit] = getattr(self, "units", {})
        self.images: list[ImageSeed] = getattr(self, "images", list(IMAGES))
        self.claims: dict[str, Claim] = {"system": Claim(self.seed.base_gib, self.seed.base_gib)}
        self.cache_gib = self.seed.cache_gib
        self.processes: dict[int, Process] = {}
        self.programs: list[Any] = []  # servers other than vLLM, in containers or not
        self.gpu_claims: dict[tuple[str, int], float] = {}  # GiB by holder and GPU, where GPUs have memory of their own
        self.listeners: dict[int, Listener] = {}
        self.doors: dict[int, asyncio.Server] = getattr(self, "doors", {})  # see tools.network.doors_of
        self.kernel_lines: list[tuple[float, str]] = []
        self.journal: list[tuple[float, str, str]] = []
        self.util = 0
        self.busy = False
        self.cards = list(self.kept_cards)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(card.address for card in self.cards if card.address and card.up)

    @property
    def management(self) -> str:
        return next((card.address for card in self.cards if not card.hca and card.address), "")

    @property
    def fabric(self) -> str:
        return next((card.address for card in self.cards if card.hca and card.address), "")

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def groups_of(self, user: str) -> list[tuple[int, str]]:
        """(number, name), as /etc/group has them now."""
        rows = (line.split(":") for line in (self.root / "etc/group").read_text().splitlines())
        return [(int(number), name) for name, _, number, members in rows if user in members.split(",")]

    def now(self) -> float:
        """The node's clock, unix seconds."""
        return time.time() + float(self.faults.get("clock-off") or 0)

    @property
    def uptime(self) -> float:
        return time.time() - self.booted

    @property
    def total_gib(self) -> float:
        return self.seed.total_kb / (1 << 20)

    @property
    def discrete(self) -> bool:
        """Whether its GPUs have memory of their own."""
        return self.seed.gpu_mib > 0

    @property
    def gpu_gib(self) -> float:
        return self.seed.gpu_mib / 1024

    @property
    def gpu_numbers(self) -> list[int]:
        return list(range(self.seed.gpus))

    def gpu_held(self, number: int) -> float:
        """GiB that are taken of one GPU."""
        return sum(gib for (_, one), gib in self.gpu_claims.items() if one == number)

    @property
    def used_gib(self) -> float:
        return sum(claim.held for claim in self.claims.values())

    @property
    def free_gib(self) -> float:
        """MemFree: what nobody holds, page cache counted as held."""
        return max(0.35, self.total_gib - self.used_gib - self.cache_gib)

    @property
    def engine_free_gib(self) -> float:
        """What CUDA calls free on unified memory: page cache counts as held, but for the little that is left after a drop."""
        if not self.world.memory_strict:
            return self.available_gib
        return max(0.3, self.total_gib - self.used_gib - max(0.0, self.cache_gib - 1.5))

    @property
    def available_gib(self) -> float:
        return max(0.3, min(self.total_gib - self.used_gib, self.free_gib + self.cache_gib))

    def claim(self, key: str, gib: float, *, at_once: bool = False) -> None:
        held = self.claims.setdefault(key, Claim(gib))
        held.target = gib
        if at_once:
            held.held = gib

    def release(self, key: str) -> None:
        if key in self.claims:
            self.claims[key].target = 0.0

    def tick(self, seconds: float) -> None:
        """Let the memory move towards what is held, a little delayed as on the real machine."""
        share = min(1.0, seconds / max(0.25, 4.0 / self.world.factor))
        for key, claim in list(self.claims.items()):
            claim.held += (claim.target - claim.held) * share
            if claim.target == 0 and claim.held < 0.05:
                del self.claims[key]
        room = self.total_gib - self.used_gib
        if self.cache_gib > room - 1.2:
            self.cache_gib = max(0.6, room - 1.2)
        self.util = int(94 + self.random.random() * 3) if self.busy else 0

    def read_files(self, gib: float) -> None:
        """Reading files fills the page cache as far as there is room."""
        self.cache_gib = min(self.cache_gib + gib, max(0.6, self.total_gib - self.used_gib - 1.5))

    def say(self, unit: str, text: str) -> None:
        self.journal.append((self.now(), unit, text))
        del self.journal[:-5000]

    def kernel(self, text: str) -> None:
        self.kernel_lines.append((self.uptime, text))
        del self.kernel_lines[:-2000]

    def container(self, name: str) -> Container | None:
        """By name, id or a unique beginning of the id."""
        if name in self.containers:
            return self.containers[name]
        found = [c for c in self.containers.values() if len(name) >= 3 and c.id.startswith(name)]
        return found[0] if len(found) == 1 else None

    def image(self, ref: str) -> ImageSeed | None:
        plain = ref.removeprefix("docker.io/").removeprefix("sha256:")
        for image in self.images:
            if plain in (image.repository, f"{image.repository}:{image.tag}") or (
                len(plain) >= 12 and image.id.startswith(plain)
            ):
                return image
            if plain.partition("@")[2] == image.digest:
                return image
        return None

    def owns(self, host: str) -> bool:
        return host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", self.name, *self.addresses, "172.17.0.1")


class World:
    """Both nodes, the clock's factor, and the options that stay when the scene is reset."""

    def __init__(
        self, folder: Path, *, factor: float, shards: int, shard_s: float = 18.0, rank_order: str = "01", seed: int = 7
    ) -> None:
        self.folder, self.factor, self.shards, self.shard_s, self.rank_order = (
            folder,
            factor,
            shards,
            shard_s,
            rank_order,
        )
        self.random = random.Random(seed)
        self.nodes: dict[str, Node] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.memory_strict = True

    async def pause(self, seconds: float) -> None:
        """Wait `seconds` of the pretend world."""
        await asyncio.sleep(seconds / self.factor)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def reboot(self, node: Node) -> None:
        """The daemon's world knows how."""
        raise NotImplementedError

    async def network_changed(self, node: Node) -> None:
        """A card of the node is another one now; the daemon's world knows what that means for its door."""
        raise NotImplementedError

    def find(self, host: str) -> Node | None:
        """The node that has this story address."""
        for node in self.nodes.values():
            if host == node.name or host in node.addresses:
                return node
        return None


async def stop_task(task: asyncio.Task[Any] | None) -> None:
    if task is None or task is asyncio.current_task():
        return
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


__all__ = [
    "FAULTS",
    "GIB",
    "Claim",
    "Container",
    "Listener",
    "Log",
    "Node",
    "Process",
    "RayNode",
    "Unit",
    "World",
    "stop_task",
]
