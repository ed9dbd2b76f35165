"""Results side by side: labels, tables, series for plots, and whether one is worse than the best known good. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SLOWER = 0.10  # share of tokens/s that is lost, from which it is a regression
LATER = 0.25  # share by which the first token comes later, from which it is one
LATER_S = 0.1  # … and at least so many seconds
SAME_LENGTH = 0.2  # lengths of prompts and answers that differ by more are another test
THRESHOLD = (
    f"A result is a regression where, at a concurrency that both have, its aggregate tokens/s are more than {SLOWER:.0%} below the best "
    f"known good, or its first token comes more than {LATER:.0%} and {LATER_S:g} s later (medians). The best known good is, of those "
    f"that a person marked as good for the same model, engine and hardware and for lengths within {SAME_LENGTH:.0%}, the one with the "
    "most tokens/s at the largest concurrency that both have."
)
FIGURES = {
    "aggregate": ("Aggregate", "tokens/s"),
    "per_request": ("Per request", "tokens/s, median"),
    "ttft": ("Time to first token", "s, median"),
}


@dataclass(frozen=True)
class Row:
    """A result that can be chosen. `id`: the number of a stored one, or the name of one that comes with sparkweb."""

    id: str
    name: str
    result: Mapping[str, Any]
    good: bool = False

    @property
    def source(self) -> str:
        return str(self.result.get("source", ""))

    @property
    def subject(self) -> Mapping[str, Any]:
        return self.result.get("subject") or {}

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.result.get("settings") or {}

    @property
    def levels(self) -> Sequence[Mapping[str, Any]]:
        return self.result.get("levels") or ()

    @property
    def engine(self) -> str:
        return " ".join(filter(None, (self.subject.get("engine"), self.subject.get("engine_version"))))

    @property
    def about(self) -> str:
        """What tells it apart, short: revision, engine, hardware."""
        revision = self.subject.get("revision")
        parts = (
            f"revision {revision}" if revision is not None else "",
            self.engine,
            self.subject.get("hardware") or "",
        )
        return " · ".join(filter(None, parts))

    @property
    def lengths(self) -> str:
        prompt, answer = self.settings.get("prompt_tokens"), self.settings.get("output_tokens")
        if prompt is None and answer is None:
            return "unknown"
        return f"{'unknown' if prompt is None else prompt} → {'unknown' if answer is None else answer}"


def value(level: Mapping[str, Any], figure: str) -> float | None:
    """One of FIGURES of a level; None where it is unknown."""
    if figure == "aggregate":
        found = level.get("aggregate_tok_s")
    else:
        quantiles = level.get({"per_request": "per_request_tok_s", "ttft": "ttft_s"}[figure]) or {}
        found = quantiles.get("p50") if quantiles.get("p50") is not None else quantiles.get("mean")
    return float(found) if isinstance(found, int | float) else None


def points(row: Row, figure: str) -> list[tuple[float, float]]:
    """(concurrency, value) of the levels that have both, in order."""
    found = [
        (float(level["concurrency"]), at)
        for level in row.levels
        if level.get("concurrency") and (at := value(level, figure)) is not None
    ]
    return sorted(found)


def concurrencies(rows: Sequence[Row]) -> list[int]:
    return sorted({int(level["concurrency"]) for row in rows for level in row.levels if level.get("concurrency")})


def table(rows: Sequence[Row], figure: str) -> list[tuple[Row, list[float | None], list[float]]]:
    """(row, its values at `concurrencies(rows)`, values without a concurrency)."""
    columns = concurrencies(rows)
    made = []
    for row in rows:
        at = dict(points(row, figure))
        loose = [
            found
            for level in row.levels
            if not level.get("concurrency") and (found := value(level, figure)) is not None
        ]
        made.append((row, [at.get(float(column)) for column in columns], loose))
    return made


SAME = (
    "model",
    "engine",
    "engine_version",
    "image",
    "hardware",
    "tensor_parallel",
    "quantization",
    "deployment",
    "revision",
)


def differences(rows: Sequence[Row]) -> list[tuple[str, list[Any]]]:
    """The fields of what was measured, and how, that are not the same in all rows."""
    made: list[tuple[str, list[Any]]] = []
    for part, names in (
        ("subject", SAME),
        ("settings", ("mode", "prompt_tokens", "output_tokens", "endpoint", "ignore_eos")),
    ):
        for name in names:
            values = [(row.result.get(part) or {}).get(name) for row in rows]
            if len({str(each) for each in values}) > 1:
                made.append((name, values))
    return made


# Against the best known good


@dataclass(frozen=True)
class Worse:
    """At one concurrency one figure is worse than in the best known good. `share`: by how much, 0..1 and more."""

    concurrency: int
    figure: str  # aggregate, ttft
    now: float
    good: float
    share: float

    @property
    def sentence(self) -> str:
        if self.figure == "aggregate":
            return f"{self.now:.4g} instead of {self.good:.4g} tokens/s at {self.concurrency} ({self.share:.0%} fewer)"
        return f"the first token after {self.now:.3g} instead of {self.good:.3g} s at {self.concurrency} ({self.share:.0%} later)"


@dataclass(frozen=True)
class Verdict:
    """`against`: the best known good; None where there is none to compare with."""

    against: Row | None
    worse: tuple[Worse, ...] = ()

    @property
    def regression(self) -> bool:
        return bool(self.worse)


def comparable(one: Row, other: Row) -> bool:
    """Whether two results are of the same test on the same kind of machine. What is unknown in either is not compared, but for the
    model, without which nothing is."""

    def same(name: str) -> bool:
        a, b = one.subject.get(name), other.subject.get(name)
        return a is None or b is None or a == b

    def near(name: str) -> bool:
        a, b = one.settings.get(name), other.settings.get(name)
        return a is None or b is None or abs(a - b) <= SAME_LENGTH * max(a, b)

    return (
        bool(one.subject.get("model"))
        and one.subject.get("model") == other.subject.get("model")
        and all(same(name) for name in ("engine", "hardware", "service"))
        and one.settings.get("mode") == other.settings.get("mode")
        and near("prompt_tokens")
        and near("output_tokens")
    )


def judge(row: Row, good: Sequence[Row]) -> Verdict:
    """A result against the best known good of `good`."""
    mine = dict(points(row, "aggregate"))
    best: tuple[float, float, Row] | None = None
    for other in good:
        shared = [at for at in dict(points(other, "aggregate")) if at in mine]
        if other.id == row.id or not shared or not comparable(row, other):
            continue
        most = (max(shared), dict(points(other, "aggregate"))[max(shared)], other)
        best = most if best is None or most[:2] > best[:2] else best
    if best is None:
        return Verdict(None)
    return Verdict(best[2], tuple(_worse(row, best[2])))


def _worse(row: Row, good: Row) -> Iterator[Worse]:
    for figure in ("aggregate", "ttft"):
        now, then = dict(points(row, figure)), dict(points(good, figure))
        for at in sorted(set(now) & set(then)):
            if figure == "aggregate":
                share = 1 - now[at] / then[at] if then[at] else 0.0
                bad = share > SLOWER
            else:
                share = now[at] / then[at] - 1 if then[at] else 0.0
                bad = share > LATER and now[at] - then[at] > LATER_S
            if bad:
                yield Worse(int(at), figure, now[at], then[at], share)
