"""One benchmark as plain values: what was measured on what, with which settings, level by level. Pure.

Times are seconds, rates tokens or requests per second; unknown is None. `from_json` raises ValueError that begins with the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

FORMAT, VERSION = "sparkweb-benchmark", 1
SOURCES = ("measured", "imported", "reference")
MODES = ("closed", "open")


@dataclass(frozen=True)
class Quantiles:
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    mean: float | None = None


@dataclass(frozen=True)
class Subject:
    """What was measured."""

    deployment: str | None = None
    service: str | None = None
    revision: int | None = None
    model: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    image: str | None = None
    hardware: str | None = None
    nodes: tuple[str, ...] = ()
    tensor_parallel: int | None = None
    quantization: str | None = None


@dataclass(frozen=True)
class Settings:
    mode: str = "closed"
    levels: tuple[float, ...] = ()  # concurrencies of a closed loop, requests/s of an open one
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    requests_per_level: int | None = None
    seconds_per_level: float | None = None
    warmup: int | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    prefix_proof: bool | None = None
    endpoint: str | None = None


@dataclass(frozen=True)
class Level:
    concurrency: int | None = None
    rate: float | None = None
    requests: int | None = None
    errors: int | None = None
    error_reasons: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    aggregate_tok_s: float | None = None
    per_request_tok_s: Quantiles = Quantiles()
    ttft_s: Quantiles = Quantiles()
    itl_s: Quantiles = Quantiles()
    e2e_s: Quantiles = Quantiles()


@dataclass(frozen=True)
class Result:
    made: str
    source: str
    tool: str
    where: str = ""
    subject: Subject = Subject()
    settings: Settings = Settings()
    levels: tuple[Level, ...] = ()
    engine_metrics: dict[str, Any] = field(default_factory=lambda: {"before": {}, "after": {}})
    nodes: tuple[dict[str, Any], ...] = ()
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        body["subject"]["nodes"] = list(self.subject.nodes)
        body["settings"]["levels"] = list(self.settings.levels)
        body["levels"] = list(body["levels"])
        body["nodes"] = list(self.nodes)
        return {"format": FORMAT, "version": VERSION, **body}

    @classmethod
    def from_json(cls, body: Any) -> Result:
        """Raises ValueError: `levels[2].ttft_s.p50: …`."""
        known = _object(body, "result")
        if known.get("format") != FORMAT or known.get("version") != VERSION:
            raise ValueError(f"format: {FORMAT} of version {VERSION} was expected")
        names = {"format", "version", *(one.name for one in fields(cls))}
        _only(known, names, "")
        levels = _list(known.get("levels"), "levels")
        return cls(
            made=_text(known, "made", "", needed=True),
            source=_one_of(known, "source", SOURCES),
            tool=_text(known, "tool", "", needed=True),
            where=_text(known, "where", ""),
            subject=_subject(_object(known.get("subject", {}), "subject")),
            settings=_settings(_object(known.get("settings", {}), "settings")),
            levels=tuple(_level(_object(each, f"levels[{place}]"), place) for place, each in enumerate(levels)),
            engine_metrics=dict(_object(known.get("engine_metrics", {}), "engine_metrics")),
            nodes=tuple(
                dict(_object(each, f"nodes[{place}]")) for place, each in enumerate(_list(known.get("nodes"), "nodes"))
            ),
            note=_text(known, "note", ""),
        )


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: an object was expected")
    return value


def _list(value: Any, where: str) -> list[Any] | tuple[Any, ...]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where}: a list was expected")
    return value


def _only(body: Mapping[str, Any], names: set[str], where: str) -> None:
    for name in body:
        if name not in names:
            raise ValueError(f"{where}{str(name)[:60]}: there is no such field")


def _text(body: Mapping[str, Any], name: str, where: str, *, needed: bool = False) -> str:
    value = body.get(name)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or (needed and not value):
        raise ValueError(f"{where}{name}: text was expected")
    return value[:2000]


def _one_of(body: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = body.get(name)
    if value not in choices:
        raise ValueError(f"{name}: one of {', '.join(choices)} was expected")
    return str(value)


def _words(body: Mapping[str, Any], name: str, where: str) -> str | None:
    return _text(body, name, where) or None


def _number(body: Mapping[str, Any], name: str, where: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{where}{name}: a number of 0 or more was expected")
    return float(value)


def _whole(body: Mapping[str, Any], name: str, where: str) -> int | None:
    value = _number(body, name, where)
    if value is not None and value != int(value):
        raise ValueError(f"{where}{name}: a whole number was expected")
    return None if value is None else int(value)


def _yes(body: Mapping[str, Any], name: str, where: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{where}{name}: true or false was expected")
    return value


def _subject(body: Mapping[str, Any]) -> Subject:
    at = "subject."
    _only(body, {one.name for one in fields(Subject)}, at)
    words = ("deployment", "service", "model", "engine", "engine_version", "image", "hardware", "quantization")
    return Subject(
        **{name: _words(body, name, at) for name in words},
        revision=_whole(body, "revision", at),
        tensor_parallel=_whole(body, "tensor_parallel", at),
        nodes=tuple(str(each)[:255] for each in _list(body.get("nodes"), "subject.nodes")),
    )


def _settings(body: Mapping[str, Any]) -> Settings:
    at = "settings."
    _only(body, {one.name for one in fields(Settings)}, at)
    levels = _list(body.get("levels"), "settings.levels")
    if body.get("mode", "closed") not in MODES:
        raise ValueError(f"settings.mode: one of {', '.join(MODES)} was expected")
    return Settings(
        mode=str(body.get("mode", "closed")),
        levels=tuple(
            _number({"x": each}, "x", f"settings.levels[{place}].") or 0.0 for place, each in enumerate(levels)
        ),
        prompt_tokens=_whole(body, "prompt_tokens", at),
        output_tokens=_whole(body, "output_tokens", at),
        requests_per_level=_whole(body, "requests_per_level", at),
        seconds_per_level=_number(body, "seconds_per_level", at),
        warmup=_whole(body, "warmup", at),
        seed=_whole(body, "seed", at),
        ignore_eos=_yes(body, "ignore_eos", at),
        prefix_proof=_yes(body, "prefix_proof", at),
        endpoint=_words(body, "endpoint", at),
    )


def _level(body: Mapping[str, Any], place: int) -> Level:
    at = f"levels[{place}]."
    _only(body, {one.name for one in fields(Level)}, at)
    reasons = _object(body.get("error_reasons") or {}, f"{at}error_reasons")
    return Level(
        concurrency=_whole(body, "concurrency", at),
        rate=_number(body, "rate", at),
        requests=_whole(body, "requests", at),
        errors=_whole(body, "errors", at),
        error_reasons={str(name)[:300]: _whole(reasons, name, f"{at}error_reasons.") or 0 for name in reasons},
        seconds=_number(body, "seconds", at),
        input_tokens=_whole(body, "input_tokens", at),
        output_tokens=_whole(body, "output_tokens", at),
        aggregate_tok_s=_number(body, "aggregate_tok_s", at),
        **{
            name: _quantiles(body.get(name), f"{at}{name}")
            for name in ("per_request_tok_s", "ttft_s", "itl_s", "e2e_s")
        },
    )


def _quantiles(value: Any, where: str) -> Quantiles:
    if value is None:
        return Quantiles()
    body = _object(value, where)
    names = [one.name for one in fields(Quantiles)]
    _only(body, set(names), f"{where}.")
    return Quantiles(**{name: _number(body, name, f"{where}.") for name in names})
