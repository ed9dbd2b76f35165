"""What launches said of their memory against what was predicted, and the correction that follows. Pure: the samples are
handed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

GIB = 1 << 30
BELIEVED = (0.5, 2.0)  # a ratio outside says that something else was measured
MOST = 8  # launches that are looked at, the newest


@dataclass(frozen=True)
class Measured:
    """One launch, bytes and tokens of one rank. `predicted` values are those before any correction. None: not said."""

    model: str
    engine: str
    shape: str  # what must be equal for tokens to be comparable: see `shape_of`
    claim: int | None = None
    predicted_weights: int | None = None
    predicted_cache: int | None = None
    predicted_tokens: int | None = None
    weights: int | None = None
    cache: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Correction:
    """Factors for the next prediction. `error`: the largest deviation of these launches' KV cache from what this
    correction would have predicted for them, as a share; None with one launch, where there is nothing to compare."""

    launches: int = 0
    weights: float = 1.0
    runtime: int | None = None  # bytes for graphs, activations and libraries; None: not measured
    tokens: float = 1.0
    error: float | None = None
    first_error: float | None = None  # how far the newest uncorrected prediction of the KV cache was off, signed

    @property
    def sentence(self) -> str:
        """For a page; empty without a launch."""
        if not self.launches:
            return ""
        count = f"{self.launches} launch{'es' if self.launches > 1 else ''}"
        said = [f"weights {(self.weights - 1) * 100:+.1f} %"]
        if self.runtime is not None:
            said.append(f"{self.runtime / GIB:.1f} GiB for graphs and activations")
        if self.tokens != 1.0:
            said.append(f"tokens {(self.tokens - 1) * 100:+.1f} %")
        off = f"; these agree within {self.error * 100:.1f} %" if self.error is not None else ""
        return f"Corrected by {count} that said what they took: {', '.join(said)}{off}."


def shape_of(*, tensor: int, pipeline: int, cache_type: str, length: int | None) -> str:
    return f"tp{tensor} pp{pipeline} {cache_type or 'auto'} {length or 'own'}"


def correction(samples: Sequence[Measured], *, model: str, engine: str, shape: str) -> Correction:
    """By launches of the same model on the same engine, the newest first; where some have the same shape, by these
    alone, and only these speak of tokens."""
    mine = [one for one in samples if one.model == model and one.engine == engine]
    same = [one for one in mine if one.shape == shape][:MOST]
    chosen = same or mine[:MOST]
    weights = _ratios((one.weights, one.predicted_weights) for one in chosen)
    if not weights:
        return Correction()
    runtimes = [left for one in chosen if (left := _runtime(one)) is not None]
    density = [ratio for one in same if (ratio := _density(one)) is not None]
    made = Correction(
        launches=len(weights),
        weights=median(weights),
        runtime=int(median(runtimes)) if runtimes else None,
        tokens=median(density) if density else 1.0,
    )
    off = [error for one in chosen if (error := _error(one, made)) is not None]
    newest = next((one for one in chosen if one.cache and one.predicted_cache), None)
    return Correction(
        made.launches,
        made.weights,
        made.runtime,
        made.tokens,
        max(off) if len(off) > 1 else None,
        newest.predicted_cache / newest.cache - 1 if newest and newest.cache and newest.predicted_cache else None,
    )


def _ratios(pairs: Iterable[tuple[int | None, int | None]]) -> list[float]:
    found = [said / predicted for said, predicted in pairs if said and predicted]
    return [ratio for ratio in found if BELIEVED[0] <= ratio <= BELIEVED[1]]


def _runtime(one: Measured) -> int | None:
    """What the claim held beside weights and cache."""
    if one.claim is None or one.weights is None or one.cache is None:
        return None
    left = one.claim - one.weights - one.cache
    return left if 0 <= left <= one.claim // 2 else None


def _density(one: Measured) -> float | None:
    """Tokens a byte of cache against those that were predicted."""
    if not (one.tokens and one.cache and one.predicted_tokens and one.predicted_cache):
        return None
    ratio = (one.tokens / one.cache) / (one.predicted_tokens / one.predicted_cache)
    return ratio if BELIEVED[0] <= ratio <= BELIEVED[1] else None


def _error(one: Measured, by: Correction) -> float | None:
    if one.claim is None or not one.cache or one.predicted_weights is None or by.runtime is None:
        return None
    return abs(one.claim - one.predicted_weights * by.weights - by.runtime - one.cache) / one.cache
