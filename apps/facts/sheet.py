"""The facts of one node at one moment."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from apps.facts.values import (
    BootJob,
    Checkout,
    Container,
    ContainerEvent,
    Disk,
    Docker,
    EngineApi,
    EngineProcess,
    GpuError,
    Gpus,
    Hca,
    Image,
    Interface,
    Killed,
    Launcher,
    Listener,
    Machine,
    Memory,
    MemoryOwner,
    ModelFolder,
    Privileges,
    RailPing,
    Setup,
    Software,
    SshServer,
    TimeSync,
    Unit,
)


@dataclass(frozen=True)
class Evidence:
    """What a section of the probe printed, as seen."""

    stdout: str
    stderr: str = ""
    exit_code: int | None = None  # None: never ended
    timed_out: bool = False
    seconds: float | None = None


@dataclass(frozen=True)
class Sheet:
    """Facts by name; a field is None when its section could not be read (the evidence says why)."""

    node: str  # the node's name in the inventory
    taken_at: float  # unix seconds, by our clock
    machine: Machine | None = None
    memory: Memory | None = None
    gpus: Gpus | None = None
    disks: tuple[Disk, ...] | None = None
    docker: Docker | None = None
    containers: tuple[Container, ...] | None = None
    images: tuple[Image, ...] | None = None
    units: tuple[Unit, ...] | None = None
    interfaces: tuple[Interface, ...] | None = None
    fabric: tuple[Hca, ...] | None = None
    listeners: tuple[Listener, ...] | None = None
    models: tuple[ModelFolder, ...] | None = None
    software: tuple[Software, ...] | None = None
    privileges: Privileges | None = None
    internet: bool | None = None
    setup: Setup | None = None
    killed: tuple[Killed, ...] | None = None  # for memory, since boot
    processes: tuple[EngineProcess, ...] | None = None  # of inference stacks
    launchers: tuple[Launcher, ...] | None = None
    checkouts: tuple[Checkout, ...] | None = None
    user_units: tuple[Unit, ...] | None = None  # of the login's own systemd: `systemctl --user`
    ssh_server: SshServer | None = None
    time_sync: TimeSync | None = None
    owners: tuple[MemoryOwner, ...] | None = None  # the largest first
    gpu_errors: tuple[GpuError, ...] | None = None
    rails: tuple[RailPing, ...] | None = None  # asked only where the peers are known
    boot_jobs: tuple[BootJob, ...] | None = None  # of cron and rc.local
    apis: tuple[EngineApi, ...] | None = None  # asked by the watch alone
    events: tuple[ContainerEvent, ...] | None = None  # likewise
    evidence: dict[str, Evidence] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` gives an equal Sheet back.

        NUL and lone surrogates, which databases and UTF-8 refuse, become U+FFFD.
        """
        body = plain(self)
        assert isinstance(body, dict)
        return body

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Sheet:
        """The Sheet of `to_json`'s value, also after a trip through JSON text.

        Keys that this version doesn't know are left out, those it lacks take their default. Raises TypeError or
        ValueError for a body that is no sheet.
        """
        sheet = _built(cls, body)
        assert isinstance(sheet, Sheet)
        return sheet


def plain(value: Any) -> Any:
    """Dataclasses and tuples as objects and lists, all text in them `storable`."""
    if isinstance(value, str):
        return storable(value)
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {storable(str(key)): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def storable(text: str) -> str:
    """The text without what databases and UTF-8 refuse: NUL and lone surrogates (JSON of a node may hold them)."""
    if "\0" not in text and text.isascii():
        return text
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _built(kind: Any, value: Any) -> Any:
    """The value as `kind` says: dataclasses from dicts, tuples from lists, a number as float where a float is meant."""
    if kind is Any or value is None:
        return value
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _built(next(part for part in parts if part is not type(None)), value)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"a list was expected, not {type(value).__name__}")
        each = [parts[0]] * len(value) if len(parts) == 2 and parts[1] is Ellipsis else list(parts)
        return tuple(_built(part, item) for part, item in zip(each, value, strict=True))
    if origin is dict:
        if not isinstance(value, dict):
            raise TypeError(f"an object was expected, not {type(value).__name__}")
        return {key: _built(parts[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise TypeError(f"an object was expected, not {type(value).__name__}")
        hints = _hints(typing.cast(type, kind))
        return typing.cast(Any, kind)(
            **{name: _built(hints[name], item) for name, item in value.items() if name in hints}
        )
    return float(value) if kind is float and isinstance(value, int) else value
