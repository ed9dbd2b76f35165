"""What a benchmark measured: one row a level of load, whoever measured it (our generator, another's file, a published table).

Times are seconds, rates tokens or requests a second. What was not measured is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Spread:
    """How one figure was distributed over the requests of a level."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Level:
    """One level: `concurrency` requests at any time (closed loop), or `rate` requests a second (open loop).

    aggregate: output tokens a second of all requests together. per_request: output tokens a second of one request while it
    was answered (after its first token). ttft: until the first token, reasoning included. inter_token: between two tokens of
    one request. end_to_end: from sending until the last byte. errors: sentence -> how often.
    """

    concurrency: int | None = None
    rate: float | None = None
    requests: int | None = None
    failed: int = 0
    seconds: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    aggregate: float | None = None
    per_request: Spread = Spread()
    ttft: Spread = Spread()
    inter_token: Spread = Spread()
    end_to_end: Spread = Spread()
    errors: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Of what `as_json` gave; raises TypeError for a key that it never writes."""
        values = dict(stored)
        for name in ("per_request", "ttft", "inter_token", "end_to_end"):
            values[name] = Spread(**(values.get(name) or {}))
        return cls(**values)
