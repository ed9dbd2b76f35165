"""Results of others, as ours: JSON of llama-benchy, of `vllm bench serve --save-result` (also several in one file, one a line) and of
another sparkweb. Pure. Whatever is wrong is a Refused that names the field.

Formats: llama-benchy's README and its JSON of version 0.4; vLLM's benchmarks/serve.py."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from apps.benchmarks.results import Result
from apps.diagnosis.refusal import Refused

LARGEST = 2 << 20  # characters
MOST_RESULTS = 50
MOST_LEVELS = 100
READ = "llama-benchy (--format json), vllm bench serve (--save-result) and sparkweb's own export are read."


def read(text: str) -> list[dict[str, Any]]:
    """Every result in a text, each as `Result.to_json` gives it, `source` imported. Raises Refused (field `text` or a path in it)."""
    if len(text) > LARGEST:
        raise _bad("text", f"It has more than {LARGEST >> 20} MiB.", "Save it without per-request details.")
    documents = _documents(text)
    rows: list[tuple[str, dict[str, Any]]] = []
    for path, body in documents:
        if not isinstance(body, dict):
            raise _bad(path or "text", "An object was expected.", READ)
        rows += _of(path, body)
    made = [*(row for kind, row in rows if kind != "vllm"), *_joined([row for kind, row in rows if kind == "vllm"])]
    if not made:
        raise _bad("text", "There is no result in it.", READ)
    if len(made) > MOST_RESULTS:
        raise _bad("text", f"There are {len(made)} results in it.", f"Import at most {MOST_RESULTS} at a time.")
    return [_checked(row, place) for place, row in enumerate(made)]


def _bad(field: str, detail: str, remedy: str = "") -> Refused:
    return Refused("bad_input", detail, field=field, remedy=remedy or READ)


def _documents(text: str) -> list[tuple[str, Any]]:
    """(path, value) of every JSON value: one, a list of them, or one a line."""
    if not text.strip():
        raise _bad("text", "It is empty.", "Paste the JSON or choose the file.")
    try:
        body = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as problem:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise _bad("text", f"It is no JSON: {_said(problem)}.") from None
        return [(f"line {place}", _line(place, line)) for place, line in enumerate(lines, 1)]
    if isinstance(body, list):
        return [(f"[{place}]", each) for place, each in enumerate(body)]
    return [("", body)]


def _line(place: int, line: str) -> Any:
    try:
        return json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as problem:
        raise _bad(f"line {place}", f"It is no JSON: {_said(problem)}.") from None


def _said(problem: Exception) -> str:
    return str(problem)[:120] if isinstance(problem, ValueError) else "it is nested too deeply"


def _no_number(word: str) -> None:
    """NaN and Infinity, which Python writes and JSON does not have: unknown."""


def _of(path: str, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if body.get("format") == "sparkweb-benchmarks":
        listed = body.get("results")
        if not isinstance(listed, list):
            raise _bad(_at(path, "results"), "A list was expected.")
        for place, each in enumerate(listed):
            if not isinstance(each, dict):
                raise _bad(_at(path, f"results[{place}]"), "An object was expected.")
            inner = each.get("result")
            yield "ours", inner if isinstance(inner, dict) else each
    elif body.get("format") == "sparkweb-benchmark":
        yield "ours", body
    elif isinstance(body.get("benchmarks"), list) and "latency_mode" in body:
        yield from (("benchy", row) for row in _benchy(path, body))
    elif "output_throughput" in body or "request_throughput" in body:
        yield "vllm", _vllm(path, body)
    else:
        raise _bad(path or "text", "It is none of the formats that are known.", READ)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _checked(row: dict[str, Any], place: int) -> dict[str, Any]:
    """As `Result` takes it. What was measured elsewhere is imported here; a reference stays one."""
    row = {**row, "source": "reference" if row.get("source") == "reference" else "imported"}
    try:
        made = Result.from_json(row)
    except (TypeError, ValueError, KeyError) as problem:
        words = str(problem)[:300]
        field = words.split(":")[0].split(" ")[0].strip("'\"`") if words else ""
        raise _bad(f"results[{place}].{field}" if field else f"results[{place}]", words or "It is no result.") from None
    if len(made.levels) > MOST_LEVELS:
        raise _bad(
            f"results[{place}].levels", f"There are {len(made.levels)} levels.", f"At most {MOST_LEVELS} are kept."
        )
    return made.to_json()


# Values


def _number(body: Mapping[str, Any], name: str, path: str, *, needed: bool = False) -> float | None:
    """A number of 0 or more, or None. Raises Refused with its name."""
    value = body.get(name)
    if value is None and not needed:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        said = "is missing" if value is None else f"is {str(value)[:40]!r}, not a number of 0 or more"
        raise _bad(_at(path, name), f"{name} {said}.")
    return float(value)


def _whole(body: Mapping[str, Any], name: str, path: str, *, needed: bool = False) -> int | None:
    value = _number(body, name, path, needed=needed)
    if value is not None and value != int(value):
        raise _bad(_at(path, name), f"{name} is {value}, not a whole number.")
    return None if value is None else int(value)


def _text(body: Mapping[str, Any], name: str, path: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise _bad(_at(path, name), f"{name} is no text.")
    return value[:300] if value else None


def _quantiles(**known: float | None) -> dict[str, float | None]:
    return {name: known.get(name) for name in ("p50", "p90", "p99", "mean")}


UNKNOWN = _quantiles()


def _result(tool: str, made: str, model: str | None, **parts: Any) -> dict[str, Any]:
    subject = dict.fromkeys(
        (
            "deployment",
            "service",
            "revision",
            "engine",
            "engine_version",
            "image",
            "hardware",
            "tensor_parallel",
            "quantization",
        )
    )
    return {
        "format": "sparkweb-benchmark",
        "version": 1,
        "made": made,
        "source": "imported",
        "tool": tool,
        "where": "",
        "subject": {**subject, "model": model, "nodes": [], **parts.get("subject", {})},
        "settings": {
            "mode": "closed",
            "levels": [level["concurrency"] for level in parts["levels"] if level["concurrency"]],
            "prompt_tokens": None,
            "output_tokens": None,
            "requests_per_level": None,
            "seconds_per_level": None,
            "warmup": None,
            "seed": None,
            "ignore_eos": None,
            "prefix_proof": None,
            "endpoint": None,
            **parts.get("settings", {}),
        },
        "levels": parts["levels"],
        "engine_metrics": {"before": {}, "after": {}},
        "nodes": [],
        "note": parts.get("note", ""),
    }


def _level(concurrency: int | None, **known: Any) -> dict[str, Any]:
    names = ("rate", "requests", "errors", "seconds", "input_tokens", "output_tokens", "aggregate_tok_s")
    figures = {name: known.get(name) for name in ("per_request_tok_s", "ttft_s", "itl_s", "e2e_s")}
    return {
        "concurrency": concurrency,
        **{name: known.get(name) for name in names},
        "error_reasons": {},
        **{name: value or dict(UNKNOWN) for name, value in figures.items()},
    }


# llama-benchy: one entry a test, each metric {"mean", "std", "values"} or null; throughputs in tokens/s, times in ms.


def _benchy(path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One result for each length of prompt, answer and context; its levels are the concurrencies. Rows that only fill the
    context are no decoding and are left out."""
    tests: dict[tuple[int | None, int | None, int], list[dict[str, Any]]] = {}
    for place, each in enumerate(body["benchmarks"]):
        where = _at(path, f"benchmarks[{place}]")
        if not isinstance(each, dict):
            raise _bad(where, "An object was expected.")
        if each.get("is_context_prefill_phase"):
            continue
        shape = (_whole(each, "prompt_size", where), _whole(each, "response_size", where))
        tests.setdefault((*shape, _whole(each, "context_size", where) or 0), []).append(_benchy_level(each, where))
    model, version = _text(body, "model", path), _text(body, "version", path)
    if not model:
        raise _bad(_at(path, "model"), "model is missing.")
    latency = {"latency_mode": body.get("latency_mode"), "latency_ms": body.get("latency_ms")}
    for (prompt, answer, depth), levels in tests.items():
        about = f" behind {depth} tokens of context" if depth else ""
        yield _result(
            "llama-benchy",
            _moment(body.get("timestamp"), _at(path, "timestamp")),
            model,
            levels=sorted(levels, key=lambda level: level["concurrency"] or 0),
            settings={
                "prompt_tokens": None if prompt is None else prompt + depth,
                "output_tokens": answer,
                "endpoint": "chat",
                "prefix_proof": None
                if body.get("prefix_caching_enabled") is None
                else not body["prefix_caching_enabled"],
            },
            note=f"llama-benchy {version or ''}: prompts of {prompt} tokens{about}; aggregate is decoding alone, without the prompts' "
            f"time; latency {latency['latency_mode']} of {latency['latency_ms']} ms.",
        )


def _benchy_level(each: Mapping[str, Any], where: str) -> dict[str, Any]:
    first = _metric(each, "e2e_ttft", where, scale=0.001)
    speed = _metric(each, "tg_req_throughput", where)
    total = _metric(each, "tg_throughput", where)
    if total["mean"] is None:
        total, single = speed, _whole(each, "concurrency", where) == 1
        if not single or total["mean"] is None:
            raise _bad(f"{where}.tg_throughput", "tg_throughput is missing: nothing was decoded in this test.")
    return _level(
        _whole(each, "concurrency", where, needed=True),
        aggregate_tok_s=total["mean"],
        per_request_tok_s=speed,
        ttft_s=first,
    )


def _metric(each: Mapping[str, Any], name: str, where: str, *, scale: float = 1.0) -> dict[str, float | None]:
    """Mean as it says it, the others from the values where there are any."""
    metric = each.get(name)
    if metric is None:
        return dict(UNKNOWN)
    if not isinstance(metric, dict):
        raise _bad(f"{where}.{name}", f"{name} is no object with a mean.")
    mean = _number(metric, "mean", f"{where}.{name}")
    listed = metric.get("values")
    values = sorted(
        float(one) * scale
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
    )
    points = {f"p{at}": _nearest(values, at) for at in (50, 90, 99)}
    if not values and mean is not None:
        points["p50"] = mean * scale
    return _quantiles(**points, mean=None if mean is None else mean * scale)


def _nearest(values: Sequence[float], at: int) -> float | None:
    return values[max(0, math.ceil(len(values) * at / 100) - 1)] if values else None


# vllm bench serve: one object a level; times in ms.


def _vllm(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One level. `max_concurrency` null means that the rate alone decides."""
    seconds = _number(body, "duration", path, needed=True)
    done, failed = _whole(body, "completed", path, needed=True), _whole(body, "failed", path) or 0
    asked = body.get("request_rate")
    rate = None if asked in (None, "inf") else _number(body, "request_rate", path)
    total_in, total_out = _whole(body, "total_input_tokens", path), _whole(body, "total_output_tokens", path)
    per_token = _times(body, "tpot", path)
    speed = None if not per_token["p50"] else 1 / per_token["p50"]
    level = _level(
        _whole(body, "max_concurrency", path),
        rate=rate,
        requests=(done or 0) + failed,
        errors=failed,
        seconds=seconds,
        input_tokens=total_in,
        output_tokens=total_out,
        aggregate_tok_s=_number(body, "output_throughput", path, needed=True),
        per_request_tok_s=_quantiles(p50=speed),
        ttft_s=_times(body, "ttft", path),
        itl_s=_times(body, "itl", path),
        e2e_s=_times(body, "e2el", path),
    )
    if level["concurrency"] is None and rate is None:
        level["concurrency"] = done  # all at once
    model = _text(body, "model_id", path)
    if not model:
        raise _bad(_at(path, "model_id"), "model_id is missing.")
    return _result(
        "vllm bench serve",
        _moment(body.get("date"), _at(path, "date")),
        model,
        levels=[level],
        settings={
            "mode": "open" if rate is not None else "closed",
            "prompt_tokens": _mean(total_in, done),
            "output_tokens": _mean(total_out, done),
            "requests_per_level": (done or 0) + failed,
            "endpoint": "chat"
            if "chat" in str(body.get("backend") or body.get("endpoint_type") or "")
            else "completions",
        },
        note="vllm bench serve: tokens/s of a request is 1 / median time per output token, without the first."
        + (f" Label {_text(body, 'label', path)}." if body.get("label") else ""),
    )


def _mean(total: int | None, count: int | None) -> int | None:
    return round(total / count) if total is not None and count else None


def _times(body: Mapping[str, Any], name: str, path: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for ours, theirs in (("p50", "median"), ("p90", "p90"), ("p99", "p99"), ("mean", "mean")):
        value = _number(body, f"{theirs}_{name}_ms", path)
        found[ours] = None if value is None else value / 1000
    if found["p50"] is None:
        value = _number(body, f"p50_{name}_ms", path)
        found["p50"] = None if value is None else value / 1000
    return _quantiles(**found)


def _joined(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Files of one sweep are one result: same model, endpoint, mode and about the same lengths; a concurrency that comes again begins
    another result."""
    open_: list[dict[str, Any]] = []
    for row in rows:
        (level,) = row["levels"]
        key = (level["concurrency"], level["rate"])
        for one in open_:
            if _alike(one, row) and key not in {(each["concurrency"], each["rate"]) for each in one["levels"]}:
                one["levels"].append(level)
                break
        else:
            open_.append(row)
    for one in open_:
        one["levels"].sort(key=lambda level: (level["concurrency"] or 0, level["rate"] or 0.0))
        one["settings"]["levels"] = [level["concurrency"] for level in one["levels"] if level["concurrency"]]
        yield one


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    def near(name: str) -> bool:
        a, b = one["settings"][name], other["settings"][name]
        return a == b or (a is not None and b is not None and abs(a - b) <= 0.1 * max(a, b))

    same = all(one["settings"][name] == other["settings"][name] for name in ("mode", "endpoint"))
    return (
        same
        and one["subject"]["model"] == other["subject"]["model"]
        and near("prompt_tokens")
        and near("output_tokens")
    )


def _moment(value: Any, field: str) -> str:
    """ISO 8601 in UTC from what the tools write: `20260828-101500` (taken as UTC), ISO 8601, unix seconds."""
    if isinstance(value, str) and value:
        for form in ("%Y%m%d-%H%M%S", "%Y-%m-%d %H:%M:%S%z", "%Y-%m-%d %H:%M:%S"):
            try:
                return _utc(datetime.strptime(value.removesuffix(" UTC"), form))
            except ValueError:
                pass
        try:
            return _utc(datetime.fromisoformat(value))
        except ValueError:
            pass
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e11:
        return _utc(datetime.fromtimestamp(value, UTC))
    raise _bad(field, f"{str(value)[:40]!r} is no time." if value not in (None, "") else "The time is missing.")


def _utc(at: datetime) -> str:
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
