"""What every reader of output gives: a frozen Reading, the same for any chunking of the same bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Milestone:
    """Something that happened by the output: "weights_loaded" with values={"s": 702.1}. Names: docs/explanations.md."""

    name: str
    line_number: int  # 1-based, in the stream; \r segments count as lines
    rank: int | None = None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Where a load or a transfer stands. `overall` never falls."""

    phase: str  # starting, loading, compiling, profiling, graphs, ready | copying, fetching …
    overall: float  # 0..1
    done: int | None = None  # shards of the load in progress (or bytes of a transfer)
    total: int | None = None
    unit: str | None = None  # shards, bytes, files
    seconds_per_item: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    reason: str  # a key of diagnosis.reasons.REASONS
    title: str
    evidence: str  # the first line that proves it, masked
    line_number: int | None = None
    rank: int | None = None
    remedy: str = ""
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    kind: str  # vllm, sglang, llamacpp, ray, nccl, rsync, hf, docker-pull, ssh, api, unknown …
    milestones: tuple[Milestone, ...] = ()
    progress: Progress | None = None
    ranks: dict[int, Progress] = field(default_factory=dict)  # per rank, where the output tells them apart
    ready: bool = False
    failure: Failure | None = None
    warnings: tuple[dict[str, Any], ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)  # kv_tokens, kv_gib, model_gib, transport, version …


class Reader(Protocol):
    """Feed bytes as they come; read at any time. `close` says that no more will come."""

    def feed(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def reading(self) -> Reading: ...
