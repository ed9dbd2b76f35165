"""The facts of one node at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from apps.facts.values import (
    Container, Disk, Docker, Gpus, Hca, Image, Interface, Listener, Machine, Memory, ModelFolder, Privileges, Software, Unit,
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
    evidence: dict[str, Evidence] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` gives an equal Sheet back."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Sheet:
        raise NotImplementedError
