"""Weights: arithmetic that agrees with published totals, and what a rank holds of each family."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.plan import catalogue, kvcache, weights
from apps.plan.weights import Share, Split, share

ALL = {known.models[0]: known for known in catalogue.everything()}
GB = 10**9


def shared(split: Split, **words: Any) -> Share:
    found = share(split, **words)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "parameters"),  # as published, in billions
    [
        ("meta-llama/Llama-3.1-8B", 8.030),
        ("meta-llama/Llama-3.1-70B", 70.554),
        ("Qwen/Qwen3-8B", 8.191),
        ("Qwen/Qwen3-32B", 32.762),
        ("Qwen/Qwen3-30B-A3B", 30.532),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79.67),
        ("openai/gpt-oss-20b", 20.91),
        ("openai/gpt-oss-120b", 116.83),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.58),
        ("MiniMaxAI/MiniMax-M2", 228.7),
    ],
)
def test_parameters_agree_with_what_is_published(model: str, parameters: float) -> None:
    counted = weights.families(ALL[model].config)
    assert not isinstance(counted, kvcache.Unknown)
    assert sum(counted.values()) / GB == pytest.approx(parameters, rel=0.001)


@pytest.mark.parametrize("known", [one for one in ALL.values() if one.weights_bytes], ids=lambda one: one.models[0])
def test_sizes_of_the_catalogue_agree_with_their_configs(known: catalogue.Known) -> None:
    """A typing error in a figure or in a config shows: both come from elsewhere and agree within 1 %."""
    assert shared(Split(), whole=None, config=known.config).whole == pytest.approx(known.weights_bytes, rel=0.01)


def test_the_catalogue_is_complete_and_found_by_name_or_folder() -> None:
    names = [name.lower() for known in catalogue.everything() for name in known.models]
    assert len(names) == len(set(names)) and len(ALL) >= 14
    for known in catalogue.everything():
        assert isinstance(kvcache.cache(known.config), kvcache.Cache), known.models
        assert known.source and (known.weights_bytes or known.unknown)
        assert json.loads(json.dumps(known.config)) == known.config
    assert catalogue.find("OPENAI/gpt-oss-120B") is ALL["openai/gpt-oss-120b"]
    assert catalogue.find("local", "/models/Qwen3-8B/") is ALL["Qwen/Qwen3-8B"]
    assert catalogue.find("local", "/models/Qwen3-8B-AWQ") is None and catalogue.find("", "") is None


def test_replicated_families_are_on_every_rank() -> None:
    config = ALL["deepseek-ai/DeepSeek-V3"].config
    counted = weights.families(config)
    assert not isinstance(counted, kvcache.Unknown)
    sized = weights.sizes(counted, config)
    whole = sum(sized.values())
    two = shared(Split(2), whole=None, config=config).bytes
    held = sum(sized[name] for name in ("latent", "router", "norm", "indexer"))
    assert two == pytest.approx(held + (whole - held) / 2, abs=8) and held > GB, "MLA's down projections and routers"


def test_kv_projections_are_replicated_beyond_their_heads() -> None:
    """Llama 8B: 8 KV heads over 16 ranks: each holds one, an eighth, not a sixteenth."""
    config, size = ALL["meta-llama/Llama-3.1-8B"].config, 16_060_522_496
    eight, sixteen = (shared(Split(tp), whole=size, config=config).bytes for tp in (8, 16))
    key_value = 32 * 2 * 4096 * 1024 * 2
    assert sixteen - eight / 2 == pytest.approx(key_value / 16 + 32 * 2 * 4096 * 2 / 2, rel=0.01)


def test_tensors_out_of_the_headers_decide() -> None:
    tensors = (
        ("model.embed_tokens.weight", 1, 1000),
        ("lm_head.weight", 1, 1000),
        ("model.layers.N.self_attn.q_a_proj.weight", 4, 400),
        ("model.layers.N.self_attn.kv_a_proj_with_mqa.weight", 4, 200),
        ("model.layers.N.self_attn.o_proj.weight", 4, 4000),
        ("model.layers.N.mlp.gate.weight", 4, 80),
        ("model.layers.N.mlp.experts.N.up_proj.weight", 96, 90000),
        ("model.layers.N.mlp.shared_experts.up_proj.weight", 4, 800),
        ("mtp.layers.N.mlp.experts.N.up_proj.weight", 24, 5000),
    )
    whole, config = sum(size for _, _, size in tensors), {"num_hidden_layers": 4, "n_routed_experts": 24}
    plain = shared(Split(2), whole=whole, tensors=tensors, config=config)
    assert plain.about == "by the files' tensors" and plain.whole == whole
    assert plain.bytes == (1000 + 1000 + 4000 + 90000 + 800) // 2 + 400 + 200 + 80, (
        "heads that nobody drafts with stay out"
    )
    drafting = shared(Split(2), whole=whole, tensors=tensors, config=config, drafting=True)
    assert drafting.bytes == plain.bytes + 2500
    spread = shared(Split(5, experts=True), whole=whole, tensors=tensors, config=config)
    even = shared(Split(5), whole=whole, tensors=tensors, config=config)
    assert spread.bytes - even.bytes == 90000 * 5 // 24 - 90000 // 5, "24 experts over 5 ranks: one has 5"
    replicas = shared(Split(1, data=2), whole=whole, tensors=tensors, config=config)
    assert replicas.bytes == 1000 + 1000 + 400 + 200 + 4000 + 80 + 45000 + 800, "only experts are spread over replicas"
    stages = shared(Split(1, pipeline=2), whole=whole, tensors=tensors, config=config)
    assert stages.bytes == 1000 + (400 + 200 + 4000 + 80 + 90000 + 800) // 2, (
        "an end is on the first or on the last stage"
    )


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("model.layers.N.self_attn.k_proj.weight", "key_value"),
        ("model.layers.N.self_attn.k_norm.weight", "norm"),
        ("model.layers.N.linear_attn.in_proj_qkvz.weight", "recurrent"),
        ("model.language_model.layers.N.linear_attn.A_log", "norm"),
        ("backbone.layers.N.mixer.in_proj.weight", "recurrent"),
        ("model.layers.N.mlp.shared_expert.down_proj.weight", "mlp"),
        ("model.layers.N.mlp.shared_expert_gate.weight", "router"),
        ("model.layers.N.block_sparse_moe.experts.N.w1.weight", "experts"),
        ("model.layers.N.self_attn.indexer.wk.weight", "indexer"),
        ("model.visual.blocks.N.attn.qkv.weight", "vision"),
        ("transformer.wte.weight", "embedding"),
        ("model.layers.N.eh_proj.weight", "drafter"),
        ("something.else", "other"),
    ],
)
def test_families_by_name(name: str, family: str) -> None:
    assert weights.family_of(name) == family


def test_without_shapes_it_is_split_evenly_and_says_so() -> None:
    found = shared(Split(2, 2), whole=1001, config={"model_type": "novel", "num_hidden_layers": 3})
    assert found == Share(251, 1001, "by the files' size, split evenly", even=True)
    assert share(Split(), whole=None, config={"model_type": "novel"}) is None
    strange = {**ALL["Qwen/Qwen3-8B"].config, "quantization_config": {"quant_method": "secret"}}
    assert share(Split(), whole=None, config=strange) is None, "an unknown quantisation gives no number"


@pytest.mark.parametrize(
    ("how", "share_of_16_bit"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.26),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, 0.2813),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 0.5),
    ],
)
def test_quantised_layers_are_smaller_and_ends_are_not(how: dict[str, Any], share_of_16_bit: float) -> None:
    config = ALL["Qwen/Qwen3-8B"].config
    plain = weights.families(config)
    assert not isinstance(plain, kvcache.Unknown)
    sized = weights.sizes(plain, {**config, "quantization_config": how})
    assert sized["embedding"] == plain["embedding"] * 2
    assert sized["mlp"] == pytest.approx(plain["mlp"] * 2 * share_of_16_bit, rel=0.01)


def test_parts_of_a_gguf() -> None:
    assert weights.gguf_parts("a-Q4_K_M.gguf") == ("a-Q4_K_M.gguf",)
    assert weights.gguf_parts("a-00001-of-00002.gguf") == ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf")


SPLITS = st.builds(Split, st.integers(1, 64), st.integers(1, 8), st.integers(1, 4), st.booleans())


@settings(max_examples=300, deadline=None)
@given(model=st.sampled_from(sorted(ALL)), split=SPLITS, whole=st.none() | st.integers(10**6, 10**13))
def test_a_rank_never_holds_less_than_its_share(model: str, split: Split, whole: int | None) -> None:
    """Not less than an equal part, not more than all; more ranks of tensor parallel never make one heavier."""
    config = ALL[model].config
    found = shared(split, whole=whole, config=config)
    assert found.whole >= found.bytes - 8 and found.bytes * split.ranks >= found.whole * 0.999 - split.ranks
    wider = shared(Split(split.tensor * 2, split.pipeline, split.data, split.experts), whole=whole, config=config)
    assert wider.bytes <= found.bytes + 1
