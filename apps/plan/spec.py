"""What is wanted: one service of one model over some nodes. Immutable; a Revision stores it as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from apps.shell import Secret


@dataclass(frozen=True)
class Spec:
    name: str  # the deployment's name, e.g. qwen3.5-122b; [a-z0-9.-]
    model: str  # hub id, e.g. Qwen/Qwen3.5-122B-A10B-FP8
    model_path: str  # absolute path on every node, or "" to let the engine resolve `model`
    nodes: tuple[str, ...]  # names in rank order; the first is the head
    engine: str = "vllm"  # vllm, command (later: sglang, llamacpp)
    runtime: str = "docker"  # docker, process
    cluster: str = "ray"  # ray, native, single
    image: str = ""  # docker
    container: str = ""  # base name; rank N runs as {container}-rN
    executable: str = "vllm"  # process: path of the program, e.g. /opt/venv/bin/vllm
    served_model_name: str = ""  # "" = model
    port: int = 30000
    api_host: str = "0.0.0.0"
    tensor_parallel: int = 1
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    attention_backend: str = ""
    kv_cache_dtype: str = ""
    arguments: tuple[str, ...] = ()  # further words for the engine
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[Secret, ...] = ()
    os_floor_gib: float = 8.0
    on_rank_lost: str = "stop"  # stop, report
    smoke_max_tokens: int = 50

    @property
    def model_name(self) -> str:
        """The name the API must answer with."""
        return self.served_model_name or self.model

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Spec:
        """Raises TypeError/ValueError for unknown or missing keys."""
        made = dict(body)
        made["nodes"] = tuple(made.get("nodes", ()))
        made["arguments"] = tuple(made.get("arguments", ()))
        made["environment"] = tuple((str(k), str(v)) for k, v in made.get("environment", ()))
        made["secrets"] = tuple(s if isinstance(s, Secret) else Secret(**s) for s in made.get("secrets", ()))
        return cls(**made)


@dataclass(frozen=True)
class Clear:
    """Consent to stop one thing that is in the way. `disable` is asked separately from stopping."""

    node: str
    kind: str  # unit, container, process
    name: str  # unit name, container name, pid as text
    disable: bool = False


@dataclass(frozen=True)
class Given:
    """What a planner is told besides spec and sheets."""

    deployment: int = 0
    revision: int = 0
    clear: tuple[Clear, ...] = field(default_factory=tuple)
    only_on: tuple[str, ...] = ()  # reserved: node names
