"""How much memory a model's attention keeps per token and per sequence, from its config.json, component by component.

Each component has its own width under tensor parallelism. Formulas: vLLM's cache layouts; figures checked against the
published configurations in tests/plan/test_fit.py. An architecture that is not understood gives `Unknown`, never a
number that looks sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

CACHE_BYTES = {"": 2.0, "auto": 2.0, "float16": 2.0, "bfloat16": 2.0, "float32": 4.0, "nvfp4": 0.5625}  # fp8… is 1


@dataclass(frozen=True)
class Component:
    """`token_bytes` per token and rank, for at most `window` tokens (None: all); `sequence_bytes` per sequence and
    rank."""

    name: str
    layers: int
    token_bytes: float = 0.0
    window: int | None = None
    sequence_bytes: float = 0.0


@dataclass(frozen=True)
class Cache:
    """What one rank keeps. `max_length`: the longest context by the config."""

    components: tuple[Component, ...]
    max_length: int | None = None
    remarks: tuple[str, ...] = ()

    def sequence_bytes(self, tokens: int) -> float:
        """Bytes that one sequence of `tokens` tokens takes on one rank."""
        return sum(
            one.sequence_bytes + one.token_bytes * (tokens if one.window is None else min(tokens, one.window))
            for one in self.components
        )

    @property
    def token_bytes(self) -> float:
        """Bytes per further token, once the windows are full."""
        return sum(one.token_bytes for one in self.components if one.window is None)


@dataclass(frozen=True)
class Unknown:
    """Not understood; `missing` says what."""

    missing: str
    details: tuple[str, ...] = field(default_factory=tuple)


class Missing(Exception):
    """A key that the formula needs is not in the config."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part: newer and multimodal configs nest it."""
    for name in ("text_config", "llm_config", "language_config"):
        nested = config.get(name)
        if isinstance(nested, Mapping):
            return nested
    return config


def _need(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise Missing(" or ".join(names))


def cache(
    config: Mapping[str, Any] | None, *, tensor_parallel: int = 1, pipeline_parallel: int = 1, kv_dtype: str = ""
) -> Cache | Unknown:
    """The components of one rank, of the stage with the most layers. `kv_dtype` as vLLM names it ("" or auto: 16 bit)."""
    if not config:
        return Unknown("the model's config.json was not read")
    text = text_config(config)
    try:
        parts = _components(text, max(1, tensor_parallel), _width(kv_dtype), kv_dtype)
    except Missing as gap:
        return Unknown(f"config.json has no {gap}")
    if isinstance(parts, Unknown):
        return parts
    length = text.get("max_position_embeddings") or text.get("max_sequence_length") or text.get("seq_length")
    return Cache(
        tuple(_of_stage(part, pipeline_parallel) for part in parts), length if isinstance(length, int) else None
    )


def _of_stage(part: Component, stages: int) -> Component:
    """What one of the stages of pipeline parallel holds of it; none holds less than one layer."""
    layers = -(-part.layers // max(1, stages))
    share = layers / part.layers if part.layers else 1.0
    return replace(
        part, layers=layers, token_bytes=part.token_bytes * share, sequence_bytes=part.sequence_bytes * share
    )


def _width(kv_dtype: str) -> float:
    return 1.0 if kv_dtype.startswith(("fp8", "int8")) else CACHE_BYTES.get(kv_dtype, 2.0)


def _components(text: Mapping[str, Any], tp: int, width: float, kv_dtype: str) -> tuple[Component, ...] | Unknown:
    layers = _need(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if text.get("kv_lora_rank"):
        return (_latent(text, layers, width, kv_dtype),)
    kinds = layer_kinds(text, layers)
    if isinstance(kinds, Unknown):
        return kinds
    made: list[Component] = []
    full, sliding = kinds.get("full", 0), kinds.get("sliding", 0)
    if full or sliding:
        per_layer = _attention(text, tp, width)
        if full:
            made.append(Component("full attention", full, token_bytes=full * per_layer))
        if sliding:
            window = _need(text, "sliding_window")
            made.append(Component("sliding window", sliding, token_bytes=sliding * per_layer, window=window))
    if kinds.get("linear"):
        made.append(Component("GDN state", kinds["linear"], sequence_bytes=kinds["linear"] * _gdn(text, tp)))
    if kinds.get("mamba"):
        made.append(Component("Mamba state", kinds["mamba"], sequence_bytes=kinds["mamba"] * _mamba(text, tp)))
    return tuple(made)


def _attention(text: Mapping[str, Any], tp: int, width: float) -> float:
    """Bytes per token of one layer on one rank: 2 (K and V) x heads x head_dim x width. A rank never holds less than
    one head."""
    heads = _need(text, "num_attention_heads", "n_head", "n_heads")
    kv_heads = text.get("num_key_value_heads") or text.get("num_kv_heads") or text.get("n_head_kv") or heads
    head_dim = (
        text.get("head_dim") or text.get("kv_channels") or _need(text, "hidden_size", "n_embd", "d_model") // heads
    )
    return 2 * max(1, -(-int(kv_heads) // tp)) * int(head_dim) * width


def _latent(text: Mapping[str, Any], layers: int, width: float, kv_dtype: str) -> Component:
    """MLA keeps one latent for all heads; every rank has all of it. vLLM's fp8_ds_mla packs a slot in 656 bytes."""
    slot = (
        656.0 if kv_dtype == "fp8_ds_mla" else (_need(text, "kv_lora_rank") + _need(text, "qk_rope_head_dim")) * width
    )
    return Component("MLA latent", layers, token_bytes=layers * slot)


def _gdn(text: Mapping[str, Any], tp: int) -> float:
    """Bytes per sequence of one gated delta net layer: convolution state in 16 bit, recurrent state in 32 bit
    (deliberately the larger): (k-1)(2·kh·kd + vh·vd)·2 + vh·kd·vd·4, the heads split over the ranks."""
    kernel = _need(text, "linear_conv_kernel_dim")
    key_heads, value_heads = _need(text, "linear_num_key_heads"), _need(text, "linear_num_value_heads")
    key_dim, value_dim = _need(text, "linear_key_head_dim"), _need(text, "linear_value_head_dim")
    whole = (kernel - 1) * (
        2 * key_heads * key_dim + value_heads * value_dim
    ) * 2 + value_heads * key_dim * value_dim * 4
    return whole / min(tp, key_heads)


def _mamba(text: Mapping[str, Any], tp: int) -> float:
    """Bytes per sequence of one Mamba-2 layer: (k-1)(h·hd + 2·g·s)·2 + h·hd·s·4."""
    heads, head_dim = _need(text, "mamba_num_heads", "mamba_n_heads"), _need(text, "mamba_head_dim", "mamba_d_head")
    state, groups = _need(text, "ssm_state_size", "mamba_d_state"), _need(text, "n_groups", "mamba_n_groups")
    kernel = _need(text, "conv_kernel", "mamba_d_conv")
    return ((kernel - 1) * (heads * head_dim + 2 * groups * state) * 2 + heads * head_dim * state * 4) / min(tp, heads)


KINDS = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "*": "full",
    "sliding_attention": "sliding",
    "sliding_window": "sliding",
    "local_attention": "sliding",
    "swa": "sliding",
    "linear_attention": "linear",
    "gated_delta_net": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "M": "mamba",
    "mlp": "none",
    "moe": "none",
    "-": "none",
    "E": "none",
}
# Every layer keeps plain K and V in these; others must say their layer types themselves.
DENSE = frozenset(
    (
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "phi3",
        "gemma",
        "glm4",
        "glm4_moe",
        "starcoder2",
        "olmo2",
        "olmoe",
        "granite",
        "granitemoe",
        "internlm2",
        "internlm3",
        "baichuan",
        "yi",
        "cohere",
        "stablelm",
        "gpt2",
        "gpt_neox",
        "opt",
        "bert",
        "xlm-roberta",
        "minimax_m2",
        "ernie4_5",
        "ernie4_5_moe",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "seed_oss",
        "bailing_moe",
        "exaone",
        "nemotron",
        "smollm3",
        "dots1",
        "mimo",
        "arcee",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        "llama4_text",
        "apertus",
    )
)


def layer_kinds(text: Mapping[str, Any], layers: int) -> dict[str, int] | Unknown:
    """How many layers keep what: full, sliding, linear, mamba, none."""
    listed = text.get("layer_types") or text.get("layers_block_type") or text.get("hybrid_override_pattern")
    interval = text.get("full_attention_interval")
    if listed:
        return _count(list(listed))
    if isinstance(interval, int) and interval > 0 and "linear_num_value_heads" in text:
        full = layers // interval
        return {"full": full, "linear": layers - full}
    kind = str(text.get("model_type", ""))
    if kind == "gpt_oss":  # alternating, from a sliding layer on
        return {"sliding": (layers + 1) // 2, "full": layers // 2}
    if kind in ("gemma2", "gemma3_text", "cohere2"):
        pattern = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}[kind]
        pattern = int(text.get("sliding_window_pattern") or pattern)
        return {"full": layers // pattern, "sliding": layers - layers // pattern}
    if kind in DENSE:
        return {"full": layers}
    return Unknown(
        f"the architecture {kind or 'without a model_type'} is not known here and its config names no layer types",
    )


def _count(listed: list[Any]) -> dict[str, int] | Unknown:
    counts: dict[str, int] = {}
    for one in listed:
        kind = KINDS.get(str(one))
        if kind is None:
            return Unknown(f"a layer of type {one!r} is not known here")
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def is_hybrid_gdn(config: Mapping[str, Any] | None) -> bool:
    """Whether some layers are gated delta nets (linear attention) beside full attention."""
    if not config:
        return False
    text = text_config(config)
    return "linear_num_value_heads" in text or "linear_attention" in (text.get("layer_types") or ())
