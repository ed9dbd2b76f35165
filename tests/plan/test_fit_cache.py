"""What a model keeps per token and per sequence, component by component, and that nonsense is said to be unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.plan import catalogue, kvcache, weights
from apps.plan.kvcache import Cache, Drafter, Unknown, cache
from tests.plan.test_fit import DEEPSEEK_V3, GPT_OSS, LLAMA_70B, QWEN3_NEXT


def known(config: dict[str, Any], **words: Any) -> Cache:
    found = cache(config, **words)
    assert isinstance(found, Cache), found
    return found


def parts(config: dict[str, Any], **words: Any) -> dict[str, tuple[int, float, float]]:
    return {one.name: (one.layers, one.token_bytes, one.sequence_bytes) for one in known(config, **words).components}


def test_sparse_latent_attention_keeps_its_indexer_beside_it() -> None:
    """DeepSeek V3.2: fp8 is packed into 656 bytes a slot; the indexer's keys are fp8 with a scale for 128 values."""
    config = {**DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64}
    plain, packed = parts(config), parts(config, kv_dtype="fp8", tensor_parallel=8)
    assert plain == {"MLA latent": (61, 61 * 576 * 2, 0.0), "indexer keys": (61, 61 * 132, 0.0)}
    assert packed == {"MLA latent": (61, 61 * 656, 0.0), "indexer keys": (61, 61 * 132, 0.0)}
    assert parts(DEEPSEEK_V3, kv_dtype="fp8") == {"MLA latent": (61, 61 * 576, 0.0)}, (
        "without an indexer it is not packed"
    )


def test_cache_types_have_their_own_width() -> None:
    whole = known(LLAMA_70B).token_bytes
    widths = {"fp8": 1, "fp8_e4m3": 1, "nvfp4": 0.5625, "float32": 4, "q8_0": 34 / 32, "q4_0": 18 / 32, "bfloat16": 2}
    for name, width in widths.items():
        assert known(LLAMA_70B, kv_dtype=name).token_bytes == pytest.approx(whole * width / 2), name


def test_delta_attention_beside_a_latent() -> None:
    """Kimi Linear: KDA layers keep a state, only the others a latent."""
    config = {
        "model_type": "kimi_linear",
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "hidden_size": 2304,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": {
            "kda_layers": [one for one in range(1, 28) if one % 4 and one != 27],
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
    }
    state = 3 * 3 * 32 * 128 * 2 + 32 * 128 * 128 * 4
    assert parts(config) == {"MLA latent": (7, 7 * 576 * 2, 0.0), "KDA state": (20, 0.0, 20 * state)}
    assert parts(config, tensor_parallel=2)["KDA state"][2] == 20 * state / 2


def test_other_architectures() -> None:
    lightning = {**LLAMA_70B, "model_type": "minimax_m1", "num_hidden_layers": 8, "attn_type_list": [0] * 7 + [1]}
    assert parts(lightning) == {
        "full attention": (1, 2 * 8 * 128 * 2, 0.0),
        "lightning state": (7, 0.0, 7 * 64 * 128 * 128 * 4),
    }
    block = {"attention": {"n_heads_in_group": 8, "no_op": False}}
    nas = {**LLAMA_70B, "model_type": "nemotron-nas", "num_hidden_layers": 3}
    nas["block_configs"] = [block, {"attention": {"no_op": True, "n_heads_in_group": None}}, block]
    assert parts(nas) == {"full attention": (2, 2 * 2 * 8 * 128 * 2, 0.0)}
    assert parts(nas, tensor_parallel=16) == {"full attention": (2, 2 * 2 * 128 * 2, 0.0)}
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4}
    gemma |= {"head_dim": 256, "sliding_window": 1024}
    assert {name: one[0] for name, one in parts(gemma).items()} == {"full attention": 2, "sliding window": 10}
    wide = {**gemma, "model_type": "gemma4_text", "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2}
    wide |= {"global_head_dim": 512, "num_global_key_value_heads": 2}
    assert parts(wide)["full attention"] == (2, 2 * 2 * 2 * 512 * 2, 0.0)
    shared = {**wide, "num_kv_shared_layers": 6}
    assert {name: one[0] for name, one in parts(shared).items()} == {"full attention": 1, "sliding window": 5}
    mistral = {**LLAMA_70B, "model_type": "mistral", "sliding_window": 4096}
    assert known(mistral).sequence_bytes(100_000) == known(mistral).sequence_bytes(4096)
    assert known({**mistral, "sliding_window": None}).sequence_bytes(8192) > known(mistral).sequence_bytes(8192)


def test_older_names_are_read() -> None:
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
    assert parts(gpt2) == {"full attention": (12, 12 * 2 * 12 * 64 * 2, 0.0)}
    assert known(gpt2).max_length == 1024
    glm = {"model_type": "chatglm", "num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096}
    glm |= {"multi_query_group_num": 2, "kv_channels": 128, "seq_length": 131072}
    assert parts(glm) == {"full attention": (28, 28 * 2 * 2 * 128 * 2, 0.0)} and known(glm).max_length == 131072


def test_a_drafter_is_counted() -> None:
    mtp = parts(DEEPSEEK_V3, drafter=Drafter("mtp", tokens=1, layers=1), tensor_parallel=2)
    assert mtp["drafter, MLA latent"] == (1, 576 * 2, 0.0) and mtp["MLA latent"] == (61, 61 * 576 * 2, 0.0)
    small = {**LLAMA_70B, "num_hidden_layers": 16}
    own = parts(LLAMA_70B, drafter=Drafter("draft_model", tokens=5, config=small), pipeline_parallel=2)
    assert own["full attention"][0] == 40 and own["drafter, full attention"][0] == 16, "one stage has it whole"
    plain, three = parts(QWEN3_NEXT), parts(QWEN3_NEXT, drafter=Drafter("mtp", tokens=2, layers=1))
    assert three["GDN state"][2] == 3 * plain["GDN state"][2], "a recurrent state is kept for every token guessed"
    assert three["drafter, full attention"][:2] == (1, 2 * 2 * 256 * 2)
    missing = cache(LLAMA_70B, drafter=Drafter("eagle3", unknown="the drafter x/y was not seen"))
    assert missing == Unknown("the drafter x/y was not seen")
    strange = cache(LLAMA_70B, drafter=Drafter("draft_model", config={"model_type": "novel", "num_hidden_layers": 1}))
    assert isinstance(strange, Unknown) and strange.missing.startswith("of the drafter, ")


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({**DEEPSEEK_V3, "compress_ratios": [4, 128]}, "compress_ratios"),
        ({**LLAMA_70B, "num_hidden_layers": 1 << 50}, "num_hidden_layers"),
        ({**LLAMA_70B, "num_key_value_heads": "8"}, "num_key_value_heads"),
        ({**LLAMA_70B, "num_key_value_heads": [8, 4]}, "num_key_value_heads"),
        ({**LLAMA_70B, "head_dim": "128"}, "head_dim"),
        ({key: value for key, value in GPT_OSS.items() if key != "sliding_window"}, "sliding_window"),
        ({**DEEPSEEK_V3, "qk_rope_head_dim": None}, "qk_rope_head_dim"),
        (
            {"model_type": "nemotron-nas", "num_hidden_layers": 2, "block_configs": [1, {"attention": 3}]},
            "no attention",
        ),
    ],
)
def test_what_is_missing_is_named(config: dict[str, Any], missing: str) -> None:
    found = cache(config)
    assert isinstance(found, Unknown) and missing in found.missing, found


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
KEYS = sorted({key for one in catalogue.everything() for key in (*one.config, *kvcache.text_config(one.config))})
KEYS += ["block_configs", "linear_attn_config", "attn_type_list", "layers_block_type", "num_kv_shared_layers"]


@settings(max_examples=300, deadline=None)
@given(
    base=st.sampled_from([one.config for one in catalogue.everything()]),
    changed=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
    tp=st.integers(1, 64),
)
def test_no_config_breaks_it(base: dict[str, Any], changed: dict[str, Any], tp: int) -> None:
    """A known one with any values changed: a number that is not negative, or what is missing; never an exception."""
    text = {**kvcache.text_config(base), **changed}
    for config in ({**base, **changed}, {**base, "text_config": text}):
        found = cache(config, tensor_parallel=tp, drafter=Drafter("mtp", layers=1))
        if isinstance(found, Cache):
            assert found.sequence_bytes(1000) >= 0
            assert all(one.layers >= 0 for one in found.components)
        else:
            assert found.missing
        share = weights.share(weights.Split(tp), whole=None, config=config)
        assert share is None or 0 <= share.bytes <= share.whole + tp
        json.dumps(config)
