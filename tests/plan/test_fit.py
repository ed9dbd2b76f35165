"""The arithmetic of memory: the correct column of the comparison of public calculators, and verdicts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from apps.facts.values import Gpu, Gpus, Memory
from apps.plan import kvcache
from apps.plan.fit import claim_bytes, fit
from apps.plan.spec import Given
from tests.plan.sheets import CONSENTED, GIVEN, QWEN35, pair, plain, qwen35, servers, tiny

GIB = 1 << 30
TOKENS = 131072

QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
}
LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
}


def gib(config: dict[str, Any], *, tensor_parallel: int = 1, kv_dtype: str = "") -> float:
    found = kvcache.cache(config, tensor_parallel=tensor_parallel, kv_dtype=kv_dtype)
    assert isinstance(found, kvcache.Cache), found
    return found.sequence_bytes(TOKENS) / GIB


@pytest.mark.parametrize(
    ("config", "tensor_parallel", "correct"),
    [
        (QWEN3_NEXT, 1, 3.07),
        ({"model_type": "some_vl", "vision_config": {}, "text_config": QWEN3_NEXT}, 1, 3.07),
        (DEEPSEEK_V3, 2, 8.58),
        (LLAMA_70B, 1, 40.0),
        (GPT_OSS, 1, 4.50),
    ],
    ids=["qwen3-next", "nested", "deepseek-v3", "llama-70b", "gpt-oss"],
)
def test_the_correct_column(config: dict[str, Any], tensor_parallel: int, correct: float) -> None:
    assert gib(config, tensor_parallel=tensor_parallel) == pytest.approx(correct, abs=0.005)


def test_each_component_has_its_own_width() -> None:
    assert gib(LLAMA_70B, tensor_parallel=2) == pytest.approx(20.0)
    assert gib(LLAMA_70B, tensor_parallel=16) == pytest.approx(5.0), "a rank never holds less than one head"
    assert gib(DEEPSEEK_V3, tensor_parallel=8) == gib(DEEPSEEK_V3), "the latent is replicated"
    assert gib(LLAMA_70B, kv_dtype="fp8") == pytest.approx(20.0)
    assert gib(DEEPSEEK_V3, kv_dtype="fp8_ds_mla") == pytest.approx(61 * 656 * TOKENS / GIB)
    without_types = {key: value for key, value in GPT_OSS.items() if key != "layer_types"}
    assert gib(without_types) == gib(GPT_OSS)
    found = kvcache.cache(QWEN3_NEXT)
    assert isinstance(found, kvcache.Cache)
    assert [(one.name, one.layers) for one in found.components] == [("full attention", 12), ("GDN state", 36)]


@pytest.mark.parametrize(
    "config",
    [
        None,
        {"model_type": "novel", "num_hidden_layers": 3},
        {"model_type": "llama"},
        {"model_type": "llama", "num_hidden_layers": 3},
        {"num_hidden_layers": 2, "layer_types": ["holographic"] * 2, "num_attention_heads": 2, "hidden_size": 8},
    ],
)
def test_what_is_not_understood_is_said_to_be_unknown(config: dict[str, Any] | None) -> None:
    found = kvcache.cache(config)
    assert isinstance(found, kvcache.Unknown) and found.missing


def test_hybrid_models_are_known_by_their_layers() -> None:
    assert kvcache.is_hybrid_gdn(QWEN35) and kvcache.is_hybrid_gdn(QWEN3_NEXT)
    assert not kvcache.is_hybrid_gdn(LLAMA_70B) and not kvcache.is_hybrid_gdn(None)


def test_mamba_layers_keep_a_state() -> None:
    config = {
        "model_type": "nemotron_h",
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "M*-M",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
    }
    found = kvcache.cache(config)
    assert isinstance(found, kvcache.Cache)
    state = 2 * (3 * (128 * 64 + 2 * 8 * 128) * 2 + 128 * 64 * 128 * 4)
    assert found.sequence_bytes(10) == state + 10 * 2 * 8 * 128 * 2


def test_bars_sum_up_to_the_machine() -> None:
    for given in (GIVEN, CONSENTED):
        for busy in (False, True):
            for bar in fit(qwen35(), pair(busy=busy), given).bars:
                used = dict(bar.segments)
                assert sum(used.values()) >= bar.total_bytes - (1 << 20)
                assert [name for name, _ in bar.segments] == [
                    "os",
                    "weights",
                    "graphs",
                    "state",
                    "kv",
                    "deployments",
                    "others",
                    "free",
                ]
    clear = fit(qwen35(), pair(busy=False), GIVEN).bars
    assert all(sum(size for _, size in bar.segments) == bar.total_bytes for bar in clear)


def test_verdicts() -> None:
    assert fit(qwen35(), pair(busy=False), GIVEN).verdict == "fits"
    asked = fit(qwen35(), pair(), GIVEN)
    assert asked.verdict == "fits_after_clearing" and "once" in asked.sentence
    consented = fit(qwen35(), pair(), CONSENTED)
    assert consented.verdict == "fits_after_clearing" and "98.1 GiB" in consented.sentence
    assert consented.kv_tokens == asked.kv_tokens and consented.kv_tokens and consented.kv_tokens > 1_000_000
    assert fit(qwen35(), {}, GIVEN).verdict == "unknown"
    nowhere = fit(qwen35(model="some/body", model_path="/models/none"), pair(busy=False), GIVEN)
    assert nowhere.verdict == "unknown" and "the catalogue does not have some/body" in nowhere.sentence
    listed = fit(qwen35(model_path="/models/none"), pair(busy=False), GIVEN)
    assert listed.verdict == "fits" and "from the catalogue of known models" in listed.remarks[0], listed


def test_the_largest_setting_is_one_that_fits() -> None:
    spec = qwen35(gpu_memory_utilization=0.95)
    too_much = fit(spec, pair(busy=False), GIVEN)
    assert too_much.verdict == "does_not_fit" and too_much.largest
    again = fit(replace(spec, **too_much.largest), pair(busy=False), GIVEN)
    assert again.verdict == "fits"
    long = qwen35(gpu_memory_utilization=0.52, max_model_len=262144)
    short = fit(long, pair(busy=False), GIVEN)
    assert short.verdict == "does_not_fit"
    assert fit(replace(long, **short.largest), pair(busy=False), GIVEN).verdict == "fits"
    assert short.largest["max_model_len"] < 262144


def test_the_smallest_node_decides() -> None:
    made = pair(busy=False)
    small = made["spark-5be3"]
    made["spark-5be3"] = replace(small, memory=Memory(100 * GIB, 90 * GIB, 92 * GIB))
    found = fit(qwen35(), made, GIVEN)
    assert found.verdict == "fits" and "unequal" in found.sentence and "spark-5be3" in found.sentence
    whole = fit(qwen35(), pair(busy=False), GIVEN)
    assert found.kv_tokens and whole.kv_tokens and found.kv_tokens < whole.kv_tokens


def test_claims() -> None:
    sheet = pair()["spark-1a32"]
    assert sheet.memory and sheet.memory.total_bytes
    assert claim_bytes(qwen35(), sheet) == int(sheet.memory.total_bytes * 0.85)
    assert claim_bytes(qwen35(gpu_memory_utilization=None), sheet) == int(sheet.memory.total_bytes * 0.9)
    assert claim_bytes(qwen35(arguments=("--kv-cache-memory-bytes=1000",)), sheet) is None
    assert claim_bytes(tiny(), plain()) is None


def test_a_discrete_gpu_is_judged_by_its_own_memory() -> None:
    box = replace(
        plain(), gpus=Gpus("580", "13.0", (Gpu(0, "RTX PRO 6000", memory_total_mib=97887, memory_used_mib=500),))
    )
    found = fit(tiny(arguments=(), gpu_memory_utilization=0.9), {"box": box}, Given())
    assert found.verdict == "fits"
    assert found.bars[0].total_bytes == 97887 << 20


def test_the_cpu_run_of_the_tiny_model_fits() -> None:
    found = fit(tiny(), {"box": plain()}, GIVEN)
    assert found.verdict == "fits" and found.kv_tokens == 33554432 // (2 * 4 * 2 * 32 * 2)


def test_stages_share_layers_and_their_cache() -> None:
    """Two stages of four ranks hold as much as one of eight; the short names of options count too."""
    eight = fit(qwen35(tensor_parallel=8), servers(4, 4), GIVEN)
    stages = [
        fit(qwen35(tensor_parallel=4, arguments=words), servers(4, 4), GIVEN)
        for words in (("-pp", "2"), ("-pp=2",), ("--pipeline-parallel-size", "2"), ("--pipeline_parallel_size=2",))
    ]
    assert stages[1:] == stages[:-1] and eight.verdict == stages[0].verdict == "fits"
    weights = [dict(each.bars[0].segments)["weights"] for each in (eight, stages[0])]
    assert weights[0] == weights[1] == math.ceil(118_990_000_000 / 8)
    # 2 KV heads: under TP 8 and TP 4 a rank holds one all the same, but a stage has only half of the layers.
    assert stages[0].kv_tokens == pytest.approx(2 * (eight.kv_tokens or 0), rel=0.05)
    assert "per GPU" in eight.sentence and "per GPU" in stages[0].sentence


def test_a_stage_holds_the_larger_part_of_odd_layers() -> None:
    assert gib(LLAMA_70B, tensor_parallel=2) == pytest.approx(20.0)
    found = kvcache.cache({**LLAMA_70B, "num_hidden_layers": 81}, pipeline_parallel=2)
    assert isinstance(found, kvcache.Cache) and [one.layers for one in found.components] == [41]
    assert found.token_bytes == pytest.approx(41 * 2 * 8 * 128 * 2)
