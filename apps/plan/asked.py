"""What a spec asks of memory, read out of its fields and, where these are empty, out of its further arguments: each
engine has its own words for the share, the longest sequence, the cache's type and the drafter."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apps.plan import options
from apps.plan.spec import Spec
from apps.plan.weights import Split

DEFAULT_UTILIZATION = 0.9  # vLLM's own when nothing is said
DEFAULT_STATIC = 0.88  # SGLang chooses by itself, by the GPU and the batch; this is about what it chooses
DEFAULT_SEQUENCES = {"vllm": 256, "sglang": 48, "llamacpp": 1}  # what runs at a time when nothing is said
SEQUENCES_UNKNOWN = 256  # of another server
LENGTHS = {
    "vllm": ("--max-model-len",),
    "sglang": ("--context-length", "--max-total-tokens"),
    "llamacpp": ("-c", "--ctx-size"),
}
SEQUENCES = {
    "vllm": ("--max-num-seqs",),
    "sglang": ("--max-running-requests", "--cuda-graph-max-bs"),
    "llamacpp": ("-np", "--parallel"),
}
CACHE_TYPES = {"vllm": ("--kv-cache-dtype",), "sglang": ("--kv-cache-dtype",), "llamacpp": ("-ctk", "--cache-type-k")}
_LENGTH = re.compile(r"(\d{1,9})(?:\.(\d{1,6}))?([kKmMgG]?)")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
NO_CACHE = ("ngram", "suffix", "medusa", "mlp_speculator")  # drafters that keep no KV cache


@dataclass(frozen=True)
class Speculation:
    """`model`: the drafter's own folder or name; empty where the model drafts by its own heads or by none."""

    method: str
    model: str
    tokens: int


def share_of(spec: Spec) -> float | None:
    """The share of the whole memory that vLLM claims. None for other engines, and where bytes of cache are said."""
    if spec.engine != "vllm" or "--kv-cache-memory-bytes" in options.values(spec):
        return None
    return _share(spec, "--gpu-memory-utilization", DEFAULT_UTILIZATION)


def static_of(spec: Spec) -> float | None:
    """The share of what is free at the start that SGLang takes for weights and cache; graphs and activations come on
    top."""
    return _share(spec, "--mem-fraction-static", DEFAULT_STATIC) if spec.engine == "sglang" else None


def _share(spec: Spec, flag: str, default: float) -> float:
    if spec.gpu_memory_utilization is not None:
        return spec.gpu_memory_utilization
    try:
        said = float(options.values(spec).get(flag, ""))
    except ValueError:
        return default
    return said if 0 < said < 1 else default


def length_of(spec: Spec) -> int | None:
    """Tokens of the longest sequence as the spec says it. llama.cpp shares its context among its slots."""
    said = spec.max_model_len or _first(spec, LENGTHS)
    if said and spec.engine == "llamacpp":
        return max(1, said // sequences_of(spec))
    return said


def fits_itself(spec: Spec) -> bool:
    """Whether vLLM was told to take the longest sequence that has room."""
    return options.values(spec).get("--max-model-len", "") in ("auto", "-1")


def sequences_of(spec: Spec) -> int:
    """How many run at a time at most."""
    return _first(spec, SEQUENCES) or DEFAULT_SEQUENCES.get(spec.engine, SEQUENCES_UNKNOWN)


def cache_type(spec: Spec) -> str:
    values = options.values(spec)
    return spec.kv_cache_dtype or next(
        (values[flag] for flag in CACHE_TYPES.get(spec.engine, ()) if flag in values), ""
    )


def split_of(spec: Spec) -> Split:
    values = options.values(spec)
    spread = any(flag in values for flag in ("--enable-expert-parallel", "--enable-ep-moe", "--ep-size", "--ep"))
    if spec.engine == "llamacpp":  # layers, not tensors, are spread over several GPUs
        return Split(1, max(1, spec.tensor_parallel))
    return Split(
        max(1, spec.tensor_parallel),
        options.pipeline_parallel(spec),
        options.whole(spec, "--data-parallel-size") or options.whole(spec, "--dp-size") or 1,
        spread,
    )


def speculation_of(spec: Spec) -> Speculation | None:
    values = options.values(spec)
    if spec.engine == "sglang" and values.get("--speculative-algorithm"):
        drafted = options.whole(spec, "--speculative-num-draft-tokens") or 1
        model = values.get("--speculative-draft-model-path", "")
        return Speculation(values["--speculative-algorithm"].lower(), model, drafted)
    if spec.engine != "vllm" or "--speculative-config" not in values:
        return None
    try:
        said: Any = json.loads(values["--speculative-config"])
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, Mapping):
        return Speculation("unreadable", "", 1)
    count, named = said.get("num_speculative_tokens"), said.get("model")
    drafted = count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 1000 else 1
    method = str(said.get("method") or ("draft_model" if named else ""))
    return Speculation(method.lower(), named if isinstance(named, str) else "", drafted)


def _first(spec: Spec, flags: Mapping[str, tuple[str, ...]]) -> int | None:
    values = options.values(spec)
    found = (tokens(values[flag]) for flag in flags.get(spec.engine, ()) if flag in values)
    return next((one for one in found if one), None)


def tokens(text: str) -> int | None:
    """A number of tokens as vLLM takes it: 131072, 128k (thousands), 128K (1,024s); None for anything else."""
    match = _LENGTH.fullmatch(text.strip())
    if match is None or (match[2] and not match[3]):
        return None
    return int(float(f"{match[1]}.{match[2] or 0}") * _SCALE[match[3]]) or None
