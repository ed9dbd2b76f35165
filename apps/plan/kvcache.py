"""How much memory a model's attention keeps per token and per sequence, from its config.json, component by component.

Each component has its own width under tensor parallelism. Formulas: vLLM's cache layouts; figures checked against the
published configurations in tests/plan/test_fit.py. An architecture that is not understood gives `Unknown`, never a
number that looks sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

CACHE_BYTES = {"": 2.0, "auto": 2.0, "float16": 2.0, "bfloat16": 2.0, "float32": 4.0, "nvfp4": 0.5625}  # fp8… is 1
PACKED_LATENT = 656.0  # bytes of a slot of vLLM's fp8_ds_mla: 512 of fp8, 16 of scales, 64 rotary values of 16 bit
GGML_BYTES = {"f16": 2.0, "bf16": 2.0, "f32": 4.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32}
GGML_BYTES |= {"q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32}


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
    def state_bytes(self) -> float:
        """Bytes that every sequence takes however long it is."""
        return sum(one.sequence_bytes for one in self.components)

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


def is_size(value: Any) -> TypeGuard[int]:
    """A whole number as a config may have it: above 0 and no more than any real model's."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40


def need(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if is_size(value):
            return value
    raise Missing(" or ".join(names))


@dataclass(frozen=True)
class Drafter:
    """What speculative decoding adds. `layers`: heads of the model's own (MTP), each with attention like its full
    layers; `config`: of a model of its own. `tokens`: guessed at a time; a recurrent state is kept once for each."""

    method: str
    tokens: int = 1
    layers: int = 0
    config: Mapping[str, Any] | None = None
    unknown: str = ""  # what is missing to count it


def cache(
    config: Mapping[str, Any] | None,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    kv_dtype: str = "",
    drafter: Drafter | None = None,
) -> Cache | Unknown:
    """The components of one rank, of the stage with the most layers. `kv_dtype` as vLLM names it ("" or auto: 16
    bit)."""
    if not config:
        return Unknown("the model's config.json was not read")
    text = text_config(config)
    tp = max(1, tensor_parallel)
    try:
        parts = _components(text, tp, _width(kv_dtype), kv_dtype)
        drafted = _drafted(text, tp, kv_dtype, drafter) if drafter else ()
    except Missing as gap:
        return Unknown(f"config.json has no {gap}")
    if isinstance(parts, Unknown):
        return parts
    if isinstance(drafted, Unknown):
        return drafted
    staged = [_of_stage(part, pipeline_parallel) for part in parts]
    if drafter and drafter.tokens > 0:
        staged = [replace(one, sequence_bytes=one.sequence_bytes * (1 + drafter.tokens)) for one in staged]
    length = text.get("max_position_embeddings") or text.get("max_sequence_length") or text.get("seq_length")
    length = length or text.get("n_positions") or text.get("n_ctx")
    return Cache((*staged, *drafted), length if is_size(length) else None)


def _drafted(text: Mapping[str, Any], tp: int, kv_dtype: str, drafter: Drafter) -> tuple[Component, ...] | Unknown:
    """The last stage of pipeline parallel holds them whole."""
    if drafter.unknown:
        return Unknown(drafter.unknown)
    if drafter.config:
        found = cache(drafter.config, tensor_parallel=tp, kv_dtype=kv_dtype)
        if isinstance(found, Unknown):
            return Unknown(f"of the drafter, {found.missing}")
        return tuple(replace(one, name=f"drafter, {one.name}") for one in found.components)
    if not drafter.layers:
        return ()
    width = _width(kv_dtype)
    if text.get("kv_lora_rank"):
        return tuple(
            replace(one, name=f"drafter, {one.name}") for one in _latent(text, drafter.layers, width, kv_dtype)
        )
    per_layer = _attention(text, tp, width)
    return (Component("drafter, full attention", drafter.layers, token_bytes=drafter.layers * per_layer),)


def _of_stage(part: Component, stages: int) -> Component:
    """What one of the stages of pipeline parallel holds of it; none holds less than one layer."""
    layers = -(-part.layers // max(1, stages))
    share = layers / part.layers if part.layers else 1.0
    return replace(
        part, layers=layers, token_bytes=part.token_bytes * share, sequence_bytes=part.sequence_bytes * share
    )


def _width(kv_dtype: str) -> float:
    if kv_dtype.startswith(("fp8", "int8")):
        return 1.0
    return CACHE_BYTES.get(kv_dtype) or GGML_BYTES.get(kv_dtype) or 2.0


def _components(text: Mapping[str, Any], tp: int, width: float, kv_dtype: str) -> tuple[Component, ...] | Unknown:
    layers = need(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    kinds = layer_kinds(text, layers)
    if isinstance(kinds, Unknown):
        return kinds
    made: list[Component] = []
    full, sliding = kinds.get("full", 0), kinds.get("sliding", 0)
    if kinds.get("latent"):
        made += _latent(text, kinds["latent"], width, kv_dtype)
    if full:
        made.append(Component("full attention", full, token_bytes=full * _attention(text, tp, width, full=True)))
    if sliding:
        window = need(text, "sliding_window", "attention_window_size")
        made.append(
            Component("sliding window", sliding, token_bytes=sliding * _attention(text, tp, width), window=window)
        )
    if kinds.get("grouped"):
        made.append(_grouped(text, kinds["grouped"], tp, width))
    states = (("linear", "GDN state", _gdn), ("mamba", "Mamba state", _mamba), ("kda", "KDA state", _kda))
    for kind, name, formula in (*states, ("lightning", "lightning state", _lightning)):
        if kinds.get(kind):
            made.append(Component(name, kinds[kind], sequence_bytes=kinds[kind] * formula(text, tp)))
    return tuple(made)


def _attention(text: Mapping[str, Any], tp: int, width: float, *, full: bool = False) -> float:
    """Bytes per token of one layer on one rank: 2 (K and V) x heads x head_dim x width. A rank never holds less than
    one head: where there are more ranks than KV heads they are replicated. Gemma 4 has other heads in full layers."""
    heads = need(text, "num_attention_heads", "n_head", "n_heads")
    kv_heads = heads
    for name in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"):
        if text.get(name) is not None:
            kv_heads = need(text, name)
            break
    if full and is_size(text.get("num_global_key_value_heads")):
        kv_heads = int(text["num_global_key_value_heads"])
    head_dim = text.get("head_dim") or text.get("kv_channels") or text.get("attention_head_dim")
    if full and is_size(text.get("global_head_dim")):
        head_dim = text["global_head_dim"]
    if head_dim is None:
        head_dim = need(text, "hidden_size", "n_embd", "d_model") // heads
    elif not is_size(head_dim):
        raise Missing("head_dim that is a number")
    return 2 * max(1, -(-kv_heads // tp)) * int(head_dim) * width


def _head_dim(text: Mapping[str, Any], heads: int) -> int:
    return need(text, "head_dim") if text.get("head_dim") else need(text, "hidden_size") // heads


def _grouped(text: Mapping[str, Any], layers: int, tp: int, width: float) -> Component:
    """Nemotron of neural architecture search: each block says its own group size, or that it has no attention."""
    heads = need(text, "num_attention_heads")
    head_dim = _head_dim(text, heads)
    sizes = [int(one) for one in _group_sizes(text) if one]
    kept = sum(max(1, -(-(heads // size) // tp)) for size in sizes)
    return Component("full attention", layers, token_bytes=2 * kept * head_dim * width)


def _group_sizes(text: Mapping[str, Any]) -> list[int | None]:
    """Query heads a KV head of each block; None where a block has no attention or replaces it."""
    sizes: list[int | None] = []
    blocks = text.get("block_configs")
    for block in blocks if isinstance(blocks, list) else ():
        attention = block.get("attention", {}) if isinstance(block, Mapping) else {}
        size = attention.get("n_heads_in_group") if isinstance(attention, Mapping) else None
        sizes.append(int(size) if is_size(size) else None)
    return sizes


def _latent(text: Mapping[str, Any], layers: int, width: float, kv_dtype: str) -> list[Component]:
    """MLA keeps one latent for all heads; every rank has all of it. With sparse attention (DeepSeek V3.2, GLM 5) vLLM
    packs fp8 into 656 bytes a slot, and the indexer keeps its key beside it in fp8 with a scale of 32 bit for each 128
    values, whatever the cache's type."""
    index = text.get("index_head_dim")
    packed = kv_dtype == "fp8_ds_mla" or (is_size(index) and kv_dtype.startswith("fp8"))
    slot = PACKED_LATENT if packed else (need(text, "kv_lora_rank") + need(text, "qk_rope_head_dim")) * width
    made = [Component("MLA latent", layers, token_bytes=layers * slot)]
    if is_size(index):
        made.append(Component("indexer keys", layers, token_bytes=layers * (index + -(-index // 128) * 4)))
    return made


def _gdn(text: Mapping[str, Any], tp: int) -> float:
    """Bytes per sequence of one gated delta net layer: convolution state in 16 bit, recurrent state in 32 bit
    (deliberately the larger): (k-1)(2·kh·kd + vh·vd)·2 + vh·kd·vd·4, the heads split over the ranks."""
    kernel = need(text, "linear_conv_kernel_dim")
    key_heads, value_heads = need(text, "linear_num_key_heads"), need(text, "linear_num_value_heads")
    key_dim, value_dim = need(text, "linear_key_head_dim"), need(text, "linear_value_head_dim")
    whole = (kernel - 1) * (
        2 * key_heads * key_dim + value_heads * value_dim
    ) * 2 + value_heads * key_dim * value_dim * 4
    return whole / min(tp, key_heads)


def _mamba(text: Mapping[str, Any], tp: int) -> float:
    """Bytes per sequence of one Mamba-2 layer: (k-1)(h·hd + 2·g·s)·2 + h·hd·s·4."""
    heads, head_dim = need(text, "mamba_num_heads", "mamba_n_heads"), need(text, "mamba_head_dim", "mamba_d_head")
    state, groups = need(text, "ssm_state_size", "mamba_d_state"), need(text, "n_groups", "mamba_n_groups")
    kernel = need(text, "conv_kernel", "mamba_d_conv")
    return ((kernel - 1) * (heads * head_dim + 2 * groups * state) * 2 + heads * head_dim * state * 4) / min(tp, heads)


def _kda(text: Mapping[str, Any], tp: int) -> float:
    """Bytes per sequence of one Kimi delta attention layer: three convolutions of 16 bit and a square state of 32 bit
    a head."""
    linear = text.get("linear_attn_config")
    given = linear if isinstance(linear, Mapping) else {}
    heads, head_dim = need(given, "num_heads"), need(given, "head_dim")
    kernel = need(given, "short_conv_kernel_size")
    return (3 * (kernel - 1) * heads * head_dim * 2 + heads * head_dim * head_dim * 4) / min(tp, heads)


def _lightning(text: Mapping[str, Any], tp: int) -> float:
    """Bytes per sequence of one lightning attention layer: a square state of 32 bit a head."""
    heads = need(text, "num_attention_heads")
    head_dim = _head_dim(text, heads)
    return heads * head_dim * head_dim * 4 / min(tp, heads)


KINDS = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "*": "full",
    "sliding_attention": "sliding",
    "sliding_window": "sliding",
    "local_attention": "sliding",
    "swa": "sliding",
    "chunked_attention": "full",  # Llama 4: counted whole, which is the larger
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
        "ministral3",
        "qwen",
        "qwen3_omni_moe_text",
        "glm",
        "chatglm",
        "glm4v_text",
        "glm4v_moe_text",
        "falcon",
        "internlm",
        "mpt",
        "phi",
        "deepseek",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        "llama4_text",
        "apertus",
    )
)


WINDOWED = ("mistral", "mixtral", "starcoder2", "phi3", "phimoe")  # a window, where they have one, is for all layers
PATTERNS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}  # one full layer in so many


def layer_kinds(text: Mapping[str, Any], layers: int) -> dict[str, int] | Unknown:
    """How many layers keep what: full, latent, sliding, linear, mamba, kda, lightning, grouped, none."""
    kind = str(text.get("model_type", ""))
    if text.get("compress_ratios"):
        return Unknown("attention over compressed tokens (compress_ratios) is not known here")
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(linear.get("kda_layers"), list):
        others = "latent" if text.get("kv_lora_rank") else "full"
        delta = min(layers, len(linear["kda_layers"]))
        return {"kda": delta, others: layers - delta}
    if text.get("kv_lora_rank"):
        return {"latent": layers}
    if text.get("block_configs"):
        kept = sum(1 for size in _group_sizes(text) if size)
        return {"grouped": kept, "none": layers - kept} if kept else Unknown("its block_configs name no attention")
    if isinstance(text.get("attn_type_list"), list):
        full = sum(1 for one in text["attn_type_list"][:layers] if one == 1)
        return {"full": full, "lightning": layers - full}
    listed = text.get("layer_types") or text.get("layers_block_type") or text.get("hybrid_override_pattern")
    interval = text.get("full_attention_interval")
    if isinstance(listed, list | str) and listed:
        return _count(_own(list(listed), text))
    if is_size(interval) and "linear_num_value_heads" in text:
        full = layers // interval
        return {"full": full, "linear": layers - full}
    return _by_model_type(text, kind, layers)


def _by_model_type(text: Mapping[str, Any], kind: str, layers: int) -> dict[str, int] | Unknown:
    """Where the config lists no layers."""
    if kind == "gpt_oss":  # alternating, from a sliding layer on
        return {"sliding": (layers + 1) // 2, "full": layers // 2}
    if kind in PATTERNS:
        pattern = text.get("sliding_window_pattern")
        pattern = pattern if is_size(pattern) else PATTERNS[kind]
        return {"full": layers // pattern, "sliding": layers - layers // pattern}
    if kind in WINDOWED and is_size(text.get("sliding_window")):
        return {"sliding": layers}
    if kind in DENSE or kind in WINDOWED:
        return {"full": layers}
    return Unknown(
        f"the architecture {kind or 'without a model_type'} is not known here and its config names no layer types",
    )


def _own(listed: list[Any], text: Mapping[str, Any]) -> list[Any]:
    """Without the last layers that use the cache of earlier ones (Gemma 3n and 4)."""
    shared = text.get("num_kv_shared_layers")
    return listed[: len(listed) - shared] if is_size(shared) and shared < len(listed) else listed


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
    listed = text.get("layer_types")
    return "linear_num_value_heads" in text or (isinstance(listed, list | str) and "linear_attention" in listed)
