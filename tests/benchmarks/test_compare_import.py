"""Files of other tools become results of ours; what is wrong with one is said with its field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.benchmarks import importing
from apps.benchmarks.results import Result
from apps.diagnosis.refusal import Refused


def metric(mean: float, *values: float) -> dict[str, Any]:
    return {"mean": mean, "std": 0.1, "values": list(values) or [mean]}


def benchy_entry(concurrency: Any, **over: Any) -> dict[str, Any]:
    entry = {
        "concurrency": concurrency,
        "context_size": 0,
        "prompt_size": 2048,
        "response_size": 128,
        "is_context_prefill_phase": False,
        "pp_throughput": metric(1800.0),
        "pp_req_throughput": metric(1800.0),
        "tg_throughput": metric(27.5 * concurrency, 27.0 * concurrency, 28.0 * concurrency),
        "tg_req_throughput": metric(27.5, 27.0, 27.4, 28.1),
        "peak_throughput": metric(45.0),
        "peak_req_throughput": metric(45.0),
        "ttfr": metric(480.0),
        "est_ppt": metric(1100.0),
        "e2e_ttft": metric(505.0, 480.0, 505.0, 530.0),
    }
    return entry | over


def benchy(*entries: dict[str, Any], **over: Any) -> dict[str, Any]:
    return {
        "version": "0.4.0",
        "timestamp": "2026-08-28T10:00:00Z",
        "latency_mode": "generation",
        "latency_ms": 12.5,
        "model": "Qwen/Qwen3.5-122B-A10B-FP8",
        "prefix_caching_enabled": False,
        "max_concurrency": 4,
        "benchmarks": list(entries),
    } | over


def vllm(concurrency: int | None, **over: Any) -> dict[str, Any]:
    return {
        "date": "20260828-101500",
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": None,
        "model_id": "Qwen/Qwen3-8B",
        "tokenizer_id": "Qwen/Qwen3-8B",
        "num_prompts": 10,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": concurrency,
        "duration": 20.0,
        "completed": 10,
        "failed": 0,
        "total_input_tokens": 5120,
        "total_output_tokens": 1280,
        "request_throughput": 0.5,
        "request_goodput": None,
        "output_throughput": 64.0,
        "total_token_throughput": 320.0,
        "mean_ttft_ms": 210.0,
        "median_ttft_ms": 200.0,
        "std_ttft_ms": 4.0,
        "p99_ttft_ms": 300.0,
        "mean_tpot_ms": 21.0,
        "median_tpot_ms": 20.0,
        "p99_tpot_ms": 30.0,
        "mean_itl_ms": 20.5,
        "median_itl_ms": 19.0,
        "p99_itl_ms": 40.0,
        "mean_e2el_ms": 2700.0,
        "median_e2el_ms": 2600.0,
        "p99_e2el_ms": 2900.0,
    } | over


def refused(body: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        importing.read(body if isinstance(body, str) else json.dumps(body))
    return caught.value


def test_llama_benchy() -> None:
    fill = benchy_entry(1, is_context_prefill_phase=True, tg_throughput=None)
    (made,) = importing.read(json.dumps(benchy(benchy_entry(4), fill, benchy_entry(1))))
    assert (made["source"], made["tool"], made["made"]) == ("imported", "llama-benchy", "2026-08-28T10:00:00Z")
    assert made["subject"]["model"] == "Qwen/Qwen3.5-122B-A10B-FP8"
    assert (made["settings"]["prompt_tokens"], made["settings"]["output_tokens"]) == (2048, 128)
    assert made["settings"]["prefix_proof"] is True
    first, second = made["levels"]
    assert (first["concurrency"], second["concurrency"]) == (1, 4)
    assert second["aggregate_tok_s"] == pytest.approx(110.0)
    assert first["per_request_tok_s"]["p50"] == 27.4 and first["per_request_tok_s"]["mean"] == 27.5
    assert first["ttft_s"] == pytest.approx({"p50": 0.505, "p90": 0.53, "p99": 0.53, "mean": 0.505})


def test_other_lengths_and_contexts_are_other_results() -> None:
    made = importing.read(
        json.dumps(benchy(benchy_entry(1), benchy_entry(1, context_size=4096), benchy_entry(1, response_size=32)))
    )
    assert [one["settings"]["prompt_tokens"] for one in made] == [2048, 6144, 2048]
    assert "behind 4096 tokens" in made[1]["note"]


def test_vllm_bench_serve_of_one_sweep() -> None:
    text = "\n".join(json.dumps(vllm(level, output_throughput=30.0 * level)) for level in (8, 1, 4))
    (made,) = importing.read(text)
    assert [level["concurrency"] for level in made["levels"]] == [1, 4, 8] == made["settings"]["levels"]
    level = made["levels"][2]
    assert level["aggregate_tok_s"] == 240.0 and level["requests"] == 10 and level["errors"] == 0
    assert level["per_request_tok_s"]["p50"] == 50.0
    assert level["ttft_s"] == {"p50": 0.2, "p90": None, "p99": 0.3, "mean": 0.21}
    assert level["e2e_s"]["p50"] == 2.6 and level["itl_s"]["p99"] == 0.04
    assert made["settings"]["endpoint"] == "chat" and made["made"] == "2026-08-28T10:15:00Z"
    assert (made["settings"]["prompt_tokens"], made["settings"]["output_tokens"]) == (512, 128)


def test_vllm_that_is_no_sweep() -> None:
    made = importing.read(
        json.dumps([vllm(4), vllm(4), vllm(4, model_id="other/model"), vllm(8, total_output_tokens=12800)])
    )
    assert len(made) == 4
    (open_loop,) = importing.read(json.dumps(vllm(None, request_rate=2.5)))
    assert open_loop["settings"]["mode"] == "open" and open_loop["levels"][0]["rate"] == 2.5
    assert open_loop["levels"][0]["concurrency"] is None
    (at_once,) = importing.read(json.dumps(vllm(None)))
    assert at_once["levels"][0]["concurrency"] == 10


def test_ours_from_elsewhere_comes_back_the_same() -> None:
    (made,) = importing.read(json.dumps(benchy(benchy_entry(1))))
    measured = {**made, "source": "measured", "tool": "sparkweb"}
    (again,) = importing.read(json.dumps(measured))
    assert again == {**measured, "source": "imported"}
    exported = {"format": "sparkweb-benchmarks", "version": 1, "results": [{"id": "3", "name": "x", "result": again}]}
    assert importing.read(json.dumps(exported)) == [again]
    assert Result.from_json(again).to_json() == again


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ("", "text", "empty"),
        ("{", "text", "no JSON"),
        ('{"a": 1}', "text", "none of the formats"),
        ("[1]", "[0]", "object"),
        (f"{json.dumps(vllm(1))}\nnonsense", "line 2", "no JSON"),
        (benchy(benchy_entry(1, tg_throughput=None, tg_req_throughput=None)), "benchmarks[0].tg_throughput", "missing"),
        (
            benchy(benchy_entry(1), benchy_entry(2, e2e_ttft={"mean": "fast"})),
            "benchmarks[1].e2e_ttft.mean",
            "not a number",
        ),
        (benchy(benchy_entry(1.5)), "benchmarks[0].concurrency", "whole"),
        (benchy(benchy_entry(1), model=None), "model", "missing"),
        (benchy(benchy_entry(1), timestamp="yesterday"), "timestamp", "no time"),
        (vllm(1, output_throughput=None), "output_throughput", "missing"),
        (vllm(1, duration=-1), "duration", "not a number"),
        (vllm(1, median_ttft_ms="x"), "median_ttft_ms", "not a number"),
        ([vllm(1), vllm(2, model_id=7)], "[1].model_id", "text"),
        (benchy(), "text", "no result"),
    ],
)
def test_what_is_wrong_is_named(body: Any, field: str, words: str) -> None:
    said = refused(body)
    assert said.field == field and words in said.detail and said.remedy


def test_a_field_of_our_own_format_is_named() -> None:
    (made,) = importing.read(json.dumps(benchy(benchy_entry(1))))
    made["levels"][0]["ttft_s"]["p50"] = "soon"
    said = refused(made)
    assert said.field.startswith("results[0].levels[0].ttft_s") and said.status == 422


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda part: (
            st.lists(part, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "benchmarks",
                        "latency_mode",
                        "model",
                        "output_throughput",
                        "duration",
                        "completed",
                        "format",
                        "results",
                        "levels",
                        "date",
                    ]
                ),
                part,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_anything_is_read_or_refused(body: Any) -> None:
    try:
        made = importing.read(json.dumps(body))
    except Refused as said:
        assert said.field and said.detail
    else:
        assert all(Result.from_json(one) for one in made)
