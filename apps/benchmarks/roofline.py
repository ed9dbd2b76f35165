"""What a machine's memory allows a model to decode, so that a measured rate can be judged. Pure.

Each decode step reads, on every rank, the weights that its tokens use and what the cache keeps of their sequences; no step is
faster than that divided by the memory's bandwidth. For a batch of B sequences:

    bytes = dense weights + expert weights x (1 - (1 - k/E)^B) + B x (cache per token x context + 2 x recurrent state)
    tokens/s of one request <= bandwidth / bytes;   of all together <= B x bandwidth / bytes

k of E experts are used by each token; those of different tokens are taken as independent, so that is the expected share of the
experts that a batch touches. The formula is the usual roofline argument for memory-bound decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from apps.benchmarks.bandwidth import Bandwidth
from apps.plan import kvcache, weights
from apps.plan.weights import Split

NOT_READ = ("embedding", "vision", "drafter")  # some rows of the first, nothing of the others in a decode step
ONE = Split()
CONTEXT = 1024  # tokens, where no length is known
ASSUMPTIONS = (
    "Only reading memory is counted: no computation, no communication between ranks, no sampling, no pauses. What is measured is "
    "always below.",
    "Bandwidth is the data sheet's; about nine tenths of it can be reached in practice.",
    "Every rank reads its own part at the same time; the heaviest rank decides. Stages of pipeline parallel are passed one after "
    "another.",
    f"The context is the prompt and half of the answer, for every sequence of the batch; {CONTEXT:,} tokens where no length is known.",
    "Each token uses as many experts as config.json says, independent of the others.",
    "One token a step: where a model drafts several (MTP, EAGLE), the rate may be above the bound by what is accepted.",
)


@dataclass(frozen=True)
class Model:
    """What is read. `weights`: bytes of the files, None where only the config says it; `origin` says where it is from."""

    config: Mapping[str, Any] | None
    weights: int | None = None
    tensors: tuple[tuple[str, int, int], ...] = ()
    origin: str = ""
    cache_type: str = ""


@dataclass(frozen=True)
class Step:
    """One decode step of `batch` sequences on the heaviest rank, in bytes."""

    batch: int
    dense: float
    experts: float
    cache: float

    @property
    def bytes(self) -> float:
        return self.dense + self.experts + self.cache


@dataclass(frozen=True)
class Bound:
    """What the memory allows at one level. Shares are of what was measured, 0..1; None: not measured."""

    step: Step
    per_request_tok_s: float
    aggregate_tok_s: float
    measured_aggregate: float | None = None
    measured_per_request: float | None = None

    @property
    def weights_bytes(self) -> float:
        return self.step.dense + self.step.experts

    @property
    def share(self) -> float | None:
        return None if self.measured_aggregate is None else self.measured_aggregate / self.aggregate_tok_s


@dataclass(frozen=True)
class Judged:
    """A result against its machine: `missing` says why there is none."""

    bandwidth: Bandwidth | None = None
    split: Split = ONE
    context: int | None = None
    assumed: bool = False  # nothing was known of the lengths: the context is CONTEXT
    bounds: tuple[Bound, ...] = ()
    origin: str = ""
    missing: str = ""

    @property
    def first(self) -> Bound | None:
        return self.bounds[0] if self.bounds else None


def step(model: Model, split: Split, *, batch: int, context: int) -> Step | str:
    """Bytes of one decode step on the heaviest rank, or what is missing to know them."""
    held = weights.on_rank(split, whole=model.weights, tensors=model.tensors, config=model.config)
    if not held:
        return "how large the parts of the model are is not known: no config.json of it was read and the catalogue does not have it"
    count, used = weights.experts_of(model.config)
    if count and not used:
        return "config.json does not say how many experts a token uses"
    dense = sum(size for name, size in held.items() if name != "experts" and name not in NOT_READ)
    touched = 1 - (1 - used / count) ** batch if count else 1.0
    kept = kvcache.cache(model.config and dict(model.config), tensor_parallel=split.tensor, kv_dtype=model.cache_type)
    if isinstance(kept, kvcache.Unknown):
        return f"what the cache keeps of a token is unknown: {kept.missing}"
    own = ceil(batch / split.data)  # sequences of one replica
    cache = own * (kept.sequence_bytes(context) + kept.state_bytes)  # states are read and written
    return Step(batch, dense, held.get("experts", 0.0) * touched, cache)


def judge(result: Mapping[str, Any], model: Model, split: Split, bandwidth: Bandwidth | None) -> Judged:
    """Every level of a result with a concurrency against what the memory allows."""
    if bandwidth is None:
        hardware = (result.get("subject") or {}).get("hardware")
        return Judged(missing=f"the memory bandwidth of {hardware or 'its machine'} is not in the table")
    levels = [level for level in result.get("levels", ()) if level.get("concurrency")]
    if not levels:
        return Judged(bandwidth, split, missing="it has no level with a known concurrency")
    said = _context(result, levels)
    context, assumed = (CONTEXT, True) if said is None else (said, False)
    bounds: list[Bound] = []
    for level in levels:
        batch = level["concurrency"]
        found = step(model, split, batch=batch, context=context)
        if isinstance(found, str):
            return Judged(bandwidth, split, context, assumed, missing=found)
        rate = bandwidth.gb_s * 1e9 / found.bytes
        per_request = (level.get("per_request_tok_s") or {}).get("p50")
        bounds.append(Bound(found, rate, batch * rate, level.get("aggregate_tok_s"), per_request))
    return Judged(bandwidth, split, context, assumed, tuple(bounds), model.origin)


def _context(result: Mapping[str, Any], levels: Sequence[Mapping[str, Any]]) -> int | None:
    """Tokens of a sequence in the middle of its answer: by the settings, else by what a level counted."""
    settings = result.get("settings") or {}
    prompt, answer = settings.get("prompt_tokens"), settings.get("output_tokens")
    for level in levels:
        served = (level.get("requests") or 0) - (level.get("errors") or 0)
        if served > 0:
            prompt = prompt if prompt is not None else _each(level.get("input_tokens"), served)
            answer = answer if answer is not None else _each(level.get("output_tokens"), served)
    if prompt is None and answer is None:
        return None
    return round((prompt or 0) + (answer or 0) / 2)


def _each(total: Any, served: int) -> float | None:
    return total / served if isinstance(total, int | float) else None
