"""What a smoke test asks, and what the answers show."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from apps.plan import proofs
from apps.plan.spec import Given
from apps.plan.step import Plan
from apps.plan.stories import smoke
from tests.plan.sheets import qwen35
from tests.plan.test_together import three

MODEL = "Qwen/Qwen3.5-122B-A10B-FP8"
HELLO = {"content": "Paris"}


def asked(plan: Plan) -> list[tuple[str, str]]:
    return [(step.key, step.gate.get("ask", "")) for stage in plan.stages for step in stage.steps]


def body(message: dict[str, Any], finish: str = "stop", **usage: int) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}).encode()


def events(*deltas: dict[str, Any], finish: str = "stop", usage: int = 0, done: bool = True) -> bytes:
    rows: list[dict[str, Any]] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    rows.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    if usage:
        rows.append({"choices": [], "usage": {"completion_tokens": usage}})
    return "".join(f"data: {json.dumps(row)}\n\n" for row in rows).encode() + (b"data: [DONE]\n\n" if done else b"")


def test_a_service_is_asked_for_what_its_recipe_promises() -> None:
    spec = qwen35(tool_call_parser="qwen3_coder")
    plan = smoke(spec, given=Given(deployment=7, revision=2))
    head = spec.nodes[0]
    names = ["models", "smoke", "streamed", "tools"]
    assert asked(plan) == [(f"verify.{name}.{head}", name.replace("smoke", "")) for name in names]
    assert plan.nodes == (head,) and plan.spec == spec.to_json() and (plan.deployment, plan.revision) == (7, 2)
    assert {step.kind for stage in plan.stages for step in stage.steps} == {"smoke"}
    without = smoke(replace(spec, tool_call_parser=""), given=Given(deployment=7))
    assert asked(without) == asked(plan)[:3]


def test_each_of_several_services_is_asked_by_what_it_is_for() -> None:
    plan = smoke(three(), given=Given(deployment=7))
    node = three().nodes[0]
    assert asked(plan) == [
        (f"verify.models.{node}", "models"), (f"verify.smoke.{node}", ""), (f"verify.streamed.{node}", "streamed"),
        (f"verify.embeddings.models.{node}", "models"), (f"verify.embeddings.smoke.{node}", ""),
        (f"verify.reranker.models.{node}", "models"), (f"verify.reranker.smoke.{node}", ""),
    ]  # fmt: skip
    only = smoke(three(), given=Given(deployment=7, only=("reranker",)))
    assert [key for key, _ in asked(only)] == [f"verify.reranker.{one}.{node}" for one in ("models", "smoke")]


@pytest.mark.parametrize(
    ("status", "answer", "ok", "reason"),
    [
        (200, json.dumps({"object": "list", "data": [{"id": MODEL, "max_model_len": 131072}]}).encode(), True, None),
        (200, b'{"object": "list", "data": [{"id": "somebody/elses"}]}', False, "wrong_model"),
        (200, b'{"object": "list", "data": []}', False, "wrong_model"),
        (
            503,
            b'{"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}',
            False,
            "warming_up",
        ),
        (401, b'{"error": "Unauthorized"}', False, "unauthorized"),
        (404, b'{"detail": "Not Found"}', False, "other_service"),
        (200, b"<!doctype html><title>Jupyter</title>", False, "other_service"),
    ],
)
def test_whose_the_port_is(status: int, answer: bytes, ok: bool, reason: str | None) -> None:
    proof = proofs.judge_models(status, answer, model=MODEL)
    assert (proof.ok, proof.reason) == (ok, reason) and proof.sentence
    if reason == "wrong_model":
        assert MODEL in proof.sentence and "another process" in proof.sentence


@pytest.mark.parametrize(
    ("status", "answer", "verdict", "reason"),
    [
        (200, events(HELLO, usage=3), "ok", None),
        (200, events({"reasoning": "I think"}, HELLO, usage=5), "ok", None),
        (200, events({"reasoning_content": "I think"}, finish="length", usage=50), "thinking_used_budget", "thinking_used_budget"),
        (200, events(HELLO, done=False), "broken_off", "stream_broken"),
        (200, b'data: {"error": {"message": "EngineCore encountered an issue", "code": 500}}\n\ndata: [DONE]\n\n', "error", "engine_dead"),
        (200, b'data: {"error": {"message": "bad luck", "code": 500}}\n\ndata: [DONE]\n\n', "error", "stream_broken"),
        (200, body(HELLO), "not_streamed", "smoke_failed"),
        (503, b'{"error": {"message": "Loading model", "code": 503}}', "error", "warming_up"),
        (404, b'{"error": {"message": "The model `x` does not exist.", "code": 404}}', "error", "wrong_model"),
        (404, b'{"object": "error", "message": "The model `x` does not exist.", "code": 404}', "error", "wrong_model"),
        (200, events({"content": "!!!!" * 20}), "garbled", "garbled_answer"),
        (200, events({"content": "!!!!!! " * 20}), "garbled", "garbled_answer"),
        (200, events(), "empty", "smoke_failed"),
    ],
)  # fmt: skip
def test_a_stream(status: int, answer: bytes, verdict: str, reason: str | None) -> None:
    proof = proofs.judge_streamed(status, answer, max_tokens=50, first_token_s=0.25, seconds=0.75)
    assert (proof.verdict, proof.reason, proof.ok) == (verdict, reason, verdict == "ok"), proof
    assert proof.larger == (verdict == "thinking_used_budget")


def test_the_speed_of_a_stream() -> None:
    proof = proofs.judge_streamed(200, events(HELLO, usage=11), max_tokens=50, first_token_s=0.25, seconds=0.75)
    assert (proof.values["ttft_s"], proof.values["tokens_per_s"]) == (
        0.25,
        20.0,
    )  # ten tokens after the first, in half a second
    untold = proofs.judge_streamed(200, events(HELLO), max_tokens=50, first_token_s=0.25, seconds=0.75)
    assert untold.ok and "usage" in untold.warning and "tokens_per_s" not in untold.values


def call(name: str = "population_of", arguments: str = '{"city": "Paris"}') -> dict[str, Any]:
    return {
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("message", "verdict", "ok", "words"),
    [
        (call(), "ok_tool_call", True, "population_of for Paris"),
        (call(arguments="{}"), "ok_tool_call", True, "no city"),
        (call(arguments="{'city': "), "bad_tool_call", False, "can't be used"),
        (call(name="weather"), "bad_tool_call", False, "can't be used"),
        ({"content": "About two million people."}, "ok", True, "The model answered."),
        ({"content": '<tool_call>\n{"name": "population_of"}</tool_call>'}, "unparsed_tool_call", False, "parser hermes"),
        ({"content": '[TOOL_CALLS][{"name": "population_of"}]'}, "unparsed_tool_call", False, "parser hermes"),
        ({"content": ""}, "empty", False, "nothing"),
    ],
)  # fmt: skip
def test_a_tool_call(message: dict[str, Any], verdict: str, ok: bool, words: str) -> None:
    proof = proofs.judge_tools(200, body(message), max_tokens=256, parser="hermes")
    assert (proof.verdict, proof.ok) == (verdict, ok) and words in proof.sentence
    assert bool(proof.warning) == (verdict == "ok")


def test_what_is_posted() -> None:
    streamed = json.loads(proofs.body("chat", MODEL, url="", max_tokens=50, ask=proofs.STREAMED))
    assert streamed["stream"] is True and streamed["stream_options"] == {"include_usage": True}
    tools = json.loads(proofs.body("chat", MODEL, url="", max_tokens=50, ask=proofs.TOOLS))
    assert tools["tools"] == [proofs.TOOL] and tools["tool_choice"] == "auto"
    assert "tools" not in json.loads(proofs.body("chat", MODEL, url="", max_tokens=50))


def test_what_an_engine_answers_is_kept_masked_and_small() -> None:
    told = proofs.kept(
        {
            "content": "my key is s3cr3t-of-ours and hf_abcdefghijklmnopqrstuvwxyz0123456789",
            "nan": float("nan"), "huge": 10**4000, "models": ["x" * 10_000] * 5000, "deep": [[[[[[[[1]]]]]]]],
            "usage": {str(n): n for n in range(1000)}, "fine": [1, 2.5, True, None],
        },
        ["s3cr3t-of-ours"],
    )  # fmt: skip
    assert (
        "s3cr3t" not in told["content"] and "hf_abc" not in told["content"] and told["content"].startswith("my key is ")
    )
    assert told["nan"] is None and told["huge"] is None and told["fine"] == [1, 2.5, True, None]
    assert len(json.dumps(told)) < 400_000 and len(told["models"]) == 50 == len(told["usage"])


@pytest.mark.parametrize("numbers", [[1e-320], [1e299, 1e299], [0.0]])
def test_embeddings_of_no_use_are_named(numbers: list[float]) -> None:
    rows = json.dumps({"data": [{"embedding": numbers}, {"embedding": numbers}]}).encode()
    proof = proofs.judge("embeddings", 200, rows)
    assert "nan" not in proof.sentence and (proof.ok or proof.verdict in ("all_zero", "not_finite"))


def test_a_call_that_its_budget_cut_off_is_asked_for_again() -> None:
    proof = proofs.judge_tools(200, body(call(arguments='{"ci'), finish="length"), max_tokens=256, parser="hermes")
    assert not proof.ok and proof.larger
