"""How many bytes of a model's weights one rank holds: by what the files hold, and by how an engine splits each family
of tensors. Nothing here is taken from a parameter count where the files are known.

Source of the rules: vLLM's layers. Linear layers, experts and embeddings are split over tensor parallel; norms, the
router, MLA's down projections and a sparse indexer are held by every rank whole; KV projections are replicated where
there are more ranks than KV heads; pipeline parallel splits layers, with the embeddings on the first and last stage;
experts are split over tensor x data parallel, everything else is held once a replica."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.plan.kvcache import Missing, Unknown, is_size, layer_kinds, need, text_config

LAYERED = ("attention", "key_value", "latent", "indexer", "router", "norm", "mlp", "experts", "recurrent")
WHOLE = ("latent", "indexer", "router", "norm")  # on every rank of tensor parallel
FAMILIES = (*LAYERED, "embedding", "head", "vision", "drafter", "other")

# Names of tensors as published checkpoints have them; the first that is found decides.
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("drafter", re.compile(r"^mtp\.|\.mtp\.|nextn|eagle|\.(?:eh_proj|enorm|hnorm|shared_head)\.")),
    ("vision", re.compile(r"visual|vision|image|audio|mm_projector|multi_modal")),
    ("embedding", re.compile(r"embed_tokens|word_embeddings|tok_embeddings|\bwte\b|embeddings?\.weight$")),
    ("head", re.compile(r"lm_head|output_layer|^output\.weight")),
    ("indexer", re.compile(r"indexer")),
    ("latent", re.compile(r"q_a_proj|kv_a_proj|fused_qkv_a|_a_layernorm")),
    ("norm", re.compile(r"norm|A_log|dt_bias|\.D$|sinks|\.bias$")),
    ("router", re.compile(r"\.gate\.|router|e_score_correction|shared_expert_gate|\.wg\.")),
    ("experts", re.compile(r"(?<!shared_)experts?\.")),
    ("key_value", re.compile(r"\b(?:k_proj|v_proj|wk|wv)\b")),
    ("recurrent", re.compile(r"linear_attn|mamba|mixer\.(?:in_proj|out_proj|conv1d)|in_proj|conv1d")),
    ("attention", re.compile(r"attn|attention|q_proj|o_proj|qkv")),
    ("mlp", re.compile(r"mlp|feed_forward|ffn|up_proj|down_proj|gate_proj|shared_expert")),
)
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MXFP4_BYTES, NVFP4_BYTES = 4.25 / 8, 4.5 / 8  # a scale of 8 bit for each 32 and each 16 values


@dataclass(frozen=True)
class Split:
    """How an engine spreads a model. `experts`: over how many ranks they are spread one by one (expert parallel); 0:
    each is split like any other layer."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True)
class Share:
    """The heaviest rank. `about` says what the figure rests on; `estimated`: no file was weighed."""

    bytes: int
    whole: int
    about: str
    estimated: bool = False
    even: bool = False  # nothing is known of their shapes


def share(
    split: Split,
    *,
    whole: int | None,
    tensors: Sequence[tuple[str, int, int]] = (),
    config: Mapping[str, Any] | None = None,
    drafting: bool = False,
) -> Share | None:
    """Bytes of the heaviest rank; None where neither files nor config say how large the model is.

    `whole`: bytes of the weight files; `tensors`: (name, count, bytes) out of their headers, numbers of layers and
    experts taken out of the names. Heads for multi token prediction are left out where the tensors name them and
    nobody drafts (`drafting`): an engine does not load them then."""
    found = families(config)
    sized = {} if isinstance(found, Unknown) else sizes(found, config)
    if whole is None:
        if not sized:
            return None
        whole = math.ceil(sum(sized.values()))
        return Share(_rank(sized, split, config), whole, "estimated by config.json", estimated=True)
    if tensors:
        named = _by_name(tensors, whole)
        if not drafting:
            named["drafter"] = 0.0
        return Share(_rank(named, split, config), whole, "by the files' tensors")
    if sized:
        return Share(_rank(_fitted(sized, whole), split, config), whole, "by the files' size and config.json")
    even = math.ceil(whole / (split.tensor * split.pipeline))
    return Share(even, whole, "by the files' size, split evenly", even=True)


def on_rank(
    split: Split,
    *,
    whole: int | None,
    tensors: Sequence[tuple[str, int, int]] = (),
    config: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Bytes of each family that one rank of tensor parallel holds, over all stages of pipeline parallel: what a token meets on
    its way. {} where neither tensors nor config tell the families apart."""
    found = families(config)
    sized = {} if isinstance(found, Unknown) else sizes(found, config)
    if tensors and whole is not None:
        named = _by_name(tensors, whole)
    elif sized:
        named = _fitted(sized, whole) if whole is not None else sized
    else:
        return {}
    text = text_config(config or {})
    return {
        name: size * (_part(name, split, text) if name in LAYERED else 1 / split.tensor) for name, size in named.items()
    }


def experts_of(config: Mapping[str, Any] | None) -> tuple[int, int]:
    """(experts a layer, those that one token uses); (0, 0) for a dense model, (n, 0) where the config does not say how many."""
    text = text_config(config or {})
    names = (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_topk",
        "moe_top_k",
        "top_k_experts",
    )
    return _experts(text), next((text[name] for name in names if is_size(text.get(name))), 0)


def gguf_parts(name: str) -> tuple[str, ...]:
    """A GGUF and all of its parts: `x-00001-of-00003.gguf` is three files."""
    found = _PART.fullmatch(name)
    if found is None or not 0 < int(found[3]) < 1000:
        return (name,)
    return tuple(f"{found[1]}-{number:05d}-of-{found[3]}.gguf" for number in range(1, int(found[3]) + 1))


def family_of(name: str) -> str:
    return next((family for family, pattern in PATTERNS if pattern.search(name)), "other")


def _by_name(tensors: Sequence[tuple[str, int, int]], whole: int) -> dict[str, float]:
    """Bytes of each family; what the files hold beyond their tensors counts as other."""
    made: dict[str, float] = dict.fromkeys(FAMILIES, 0.0)
    for name, _, size in tensors:
        made[family_of(name)] += size
    made["other"] += max(0.0, whole - sum(made.values()))
    return made


def _fitted(sized: Mapping[str, float], whole: int) -> dict[str, float]:
    """The same proportions at the files' real size. What is replicated is not scaled up: if the files are larger than
    the config explains, the surplus counts as split like the rest, and the reverse."""
    kept = {name: size for name, size in sized.items() if name in WHOLE or name == "key_value"}
    rest = {name: size for name, size in sized.items() if name not in kept}
    left = whole - sum(kept.values())
    if left <= 0 or not sum(rest.values()):
        return {name: size * whole / sum(sized.values()) for name, size in sized.items()}
    return kept | {name: size * left / sum(rest.values()) for name, size in rest.items()}


def _rank(sized: Mapping[str, float], split: Split, config: Mapping[str, Any] | None) -> int:
    """Bytes of the heaviest rank of the heaviest stage."""
    text = text_config(config or {})
    layers = next((text[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if is_size(text.get(name))), 0)
    stage = -(-layers // split.pipeline) / layers if layers else 1 / split.pipeline
    within = sum(size * stage * _part(name, split, text) for name, size in sized.items() if name in LAYERED)
    ends = {name: sized.get(name, 0.0) / split.tensor for name in ("embedding", "head")}
    outside = sum(sized.get(name, 0.0) / split.tensor for name in ("vision", "drafter", "other"))
    if split.pipeline == 1:
        return math.ceil(within + sum(ends.values()) + outside)
    tied = ends["embedding"] if not ends["head"] else ends["head"]
    return math.ceil(within + max(ends["embedding"], tied) + outside)


def _part(name: str, split: Split, text: Mapping[str, Any]) -> float:
    """What of a family one rank of tensor parallel holds."""
    if name in WHOLE:
        return 1.0
    if name == "key_value":
        heads = text.get("num_key_value_heads") or text.get("num_attention_heads")
        return max(1, -(-heads // split.tensor)) / heads if is_size(heads) else 1 / split.tensor
    if name == "experts":
        count, over = _experts(text), split.tensor * split.data
        return -(-count // over) / count if split.experts and count else 1 / over
    return 1 / split.tensor


def _experts(text: Mapping[str, Any]) -> int:
    names = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    return next((text[name] for name in names if is_size(text.get(name))), 0)


# Parameters by family, from config.json alone: for the proportions, and where no file is there yet.


def families(config: Mapping[str, Any] | None) -> dict[str, float] | Unknown:
    """Parameters of each family, or what is missing to count them."""
    if not config:
        return Unknown("the model's config.json was not read")
    text = text_config(config)
    try:
        return _counted(config, text)
    except Missing as gap:
        return Unknown(f"config.json has no {gap}")


def _counted(config: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, float] | Unknown:
    layers, hidden = need(text, "num_hidden_layers", "n_layer"), need(text, "hidden_size", "n_embd", "d_model")
    kinds = layer_kinds(text, layers)
    if isinstance(kinds, Unknown):
        return kinds
    if kinds.get("kda") or kinds.get("lightning") or kinds.get("grouped"):
        return Unknown("the weights of these layers are not counted here")
    made: dict[str, float] = dict.fromkeys(FAMILIES, 0.0)
    made["embedding"] = float(need(text, "vocab_size") * hidden)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", _is_tied(text)))
    made["head"] = 0.0 if tied else made["embedding"]
    mixing = "hybrid_override_pattern" in text  # there a layer is either attention, a mixer or an MLP
    _attention(text, hidden, kinds, made)
    _recurrent(text, hidden, kinds, made)
    _feeding(text, hidden, layers, mixing, made)
    made["norm"] = 2.0 * layers * hidden
    _drafting(text, layers, hidden, made)
    _seeing(config, hidden, made)
    return made


def _is_tied(text: Mapping[str, Any]) -> bool:
    """Where the config does not say: Gemma's are one, others' are two."""
    return str(text.get("model_type", "")).startswith("gemma")


def _attention(text: Mapping[str, Any], hidden: int, kinds: Mapping[str, int], made: dict[str, float]) -> None:
    heads = need(text, "num_attention_heads", "n_head")
    latent, plain = kinds.get("latent", 0), kinds.get("full", 0) + kinds.get("sliding", 0)
    if latent:
        rope, rank = need(text, "qk_rope_head_dim"), need(text, "kv_lora_rank")
        nope, value = need(text, "qk_nope_head_dim"), need(text, "v_head_dim")
        query = text.get("q_lora_rank")
        down = hidden * (rank + rope) + (hidden * query if is_size(query) else 0)
        up = (query if is_size(query) else hidden) * heads * (nope + rope) + rank * heads * (nope + value)
        made["latent"] += latent * down
        made["attention"] += latent * (up + heads * value * hidden)
        index, index_heads = text.get("index_head_dim"), text.get("index_n_heads")
        if is_size(index) and is_size(index_heads) and is_size(query):
            made["indexer"] += latent * (query * index_heads * index + hidden * (index + index_heads))
    if plain:
        head_dim = text.get("head_dim") or hidden // heads
        if not is_size(head_dim):
            raise Missing("head_dim that is a number")
        kv_heads = need(text, "num_key_value_heads", "num_attention_heads")
        gated = str(text.get("model_type", "")).startswith(("qwen3_next", "qwen3_5")) or text.get("attn_output_gate")
        made["attention"] += plain * heads * head_dim * hidden * (3 if gated else 2)
        made["key_value"] += plain * 2 * hidden * kv_heads * head_dim


def _recurrent(text: Mapping[str, Any], hidden: int, kinds: Mapping[str, int], made: dict[str, float]) -> None:
    if kinds.get("linear"):
        keys = need(text, "linear_num_key_heads") * need(text, "linear_key_head_dim")
        heads = need(text, "linear_num_value_heads")
        values = heads * need(text, "linear_value_head_dim")
        mixed = 2 * keys + values
        each = hidden * (mixed + values + 2 * heads) + mixed * need(text, "linear_conv_kernel_dim") + values * hidden
        made["recurrent"] += kinds["linear"] * each
    if kinds.get("mamba"):
        heads, size = need(text, "mamba_num_heads", "mamba_n_heads"), need(text, "mamba_head_dim", "mamba_d_head")
        state = need(text, "ssm_state_size", "mamba_d_state") * need(text, "n_groups", "mamba_n_groups")
        inner = heads * size
        mixed = inner + 2 * state
        each = hidden * (inner + mixed + heads) + mixed * need(text, "conv_kernel", "mamba_d_conv") + inner * hidden
        made["recurrent"] += kinds["mamba"] * each


def _feeding(text: Mapping[str, Any], hidden: int, layers: int, mixing: bool, made: dict[str, float]) -> None:
    """Dense layers, experts, shared experts and the router."""
    matrices = 2 if mixing or text.get("hidden_act") in ("relu2", "gelu_new") else 3
    sparse, dense = _layers_with_experts(text, layers, mixing)
    if dense:
        made["mlp"] += dense * matrices * hidden * need(text, "intermediate_size", "n_inner")
    if not sparse:
        return
    count = _experts(text)
    width = need(text, "moe_intermediate_size", "intermediate_size")
    made["experts"] += sparse * count * matrices * hidden * width
    made["router"] += sparse * hidden * count
    shared = text.get("n_shared_experts") or text.get("num_shared_experts")
    size = text.get("shared_expert_intermediate_size") or text.get("moe_shared_expert_intermediate_size")
    if not is_size(size):
        size = width * shared if is_size(shared) else 0
    made["mlp"] += sparse * matrices * hidden * size


def _layers_with_experts(text: Mapping[str, Any], layers: int, mixing: bool) -> tuple[int, int]:
    """(layers with experts, layers with a plain MLP)."""
    if mixing:
        pattern = str(text["hybrid_override_pattern"])
        return pattern.count("E"), pattern.count("-")
    if not _experts(text):
        return 0, layers
    first, listed = text.get("first_k_dense_replace"), text.get("mlp_only_layers")
    dense = first if is_size(first) else len(listed) if isinstance(listed, list) else 0
    every = text.get("decoder_sparse_step") or text.get("moe_layer_freq") or text.get("interleave_moe_layer_step")
    sparse = (layers - dense) // every if is_size(every) else layers - dense
    return max(0, sparse), layers - max(0, sparse)


def drafting_layers(text: Mapping[str, Any]) -> int:
    """Heads for multi token prediction that the checkpoint may hold."""
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    return next((text[name] for name in names if is_size(text.get(name))), 0)


def _drafting(text: Mapping[str, Any], layers: int, hidden: int, made: dict[str, float]) -> None:
    """Each is a layer like the heaviest: attention and, where the model has them, experts, behind a joining matrix."""
    count = drafting_layers(text) if "num_mtp_modules" not in text else 0  # MiniMax publishes none of its heads
    if not count:
        return
    sparse = max(1, _layers_with_experts(text, layers, False)[0] or layers)
    each = (made["experts"] + made["router"]) / sparse
    each += (made["mlp"] + made["attention"] + made["key_value"] + made["latent"]) / layers + 2 * hidden * hidden
    made["drafter"] += count * each


def _seeing(config: Mapping[str, Any], hidden: int, made: dict[str, float]) -> None:
    """A vision tower, where the config describes a plain transformer."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return
    depth = vision.get("depth") or vision.get("num_hidden_layers")
    width, inner = vision.get("hidden_size"), vision.get("intermediate_size")
    if is_size(depth) and is_size(width):
        inner = inner if is_size(inner) else 4 * width
        made["vision"] += depth * (4 * width * width + 2 * width * inner) + width * hidden


def sizes(counted: Mapping[str, float], config: Mapping[str, Any] | None) -> dict[str, float]:
    """Bytes of each family by the config's types; {} for a quantisation that is not understood.

    Embeddings, head, router and norms keep 16 bit in published quantised checkpoints; further exceptions that a
    checkpoint lists are not followed, so that a 4 bit model may be larger than this."""
    whole = config or {}
    text = text_config(whole)
    plain = 4.0 if str(text.get("dtype") or text.get("torch_dtype") or whole.get("torch_dtype")) == "float32" else 2.0
    how = whole.get("quantization_config") or text.get("quantization_config")
    linear = plain if not how else _quantised(how)
    if linear is None:
        return {}
    only_experts = isinstance(how, Mapping) and how.get("quant_method") == "mxfp4"
    kept = ("embedding", "head", "router", "norm", "vision", *(LAYERED if only_experts else ()))
    return {
        name: count * (linear if name == "experts" and only_experts else plain if name in kept else linear)
        for name, count in counted.items()
    }


def _quantised(how: Any) -> float | None:
    """Bytes of a quantised parameter with its scales."""
    if not isinstance(how, Mapping):
        return None
    method = str(how.get("quant_method", "")).lower()
    text = str(how).lower()
    if method in ("fp8", "fbgemm_fp8"):
        return 1.0 + 4 / (128 * 128)
    if method == "mxfp4":
        return MXFP4_BYTES
    if "nvfp4" in text:
        return NVFP4_BYTES
    bits, group = how.get("bits"), how.get("group_size")
    if method in ("awq", "gptq") and is_size(bits):
        return bits / 8 + (2 + bits / 8) / (group if is_size(group) else 128)
    if method in ("compressed-tensors", "modelopt") and ("float8" in text or "fp8" in text or "'num_bits': 8" in text):
        return 1.0
    return None
