"""Answers of OpenAI-compatible APIs: ready or not, ours or not, healthy or not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.diagnosis import api


def chat_body(message: dict[str, object], finish: str = "stop", tokens: int = 50) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps(
        {"object": "chat.completion", "choices": [choice], "usage": {"completion_tokens": tokens}}
    ).encode()


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_thinking_used_the_whole_budget(key: str) -> None:
    verdict = api.chat(200, chat_body({"content": None, key: "Okay, the user wants"}, "length"), 50)
    assert (verdict.ok, verdict.healthy, verdict.reason) == (False, True, "thinking_used_budget")
    assert verdict.retry_max_tokens is not None and verdict.retry_max_tokens > 50
    assert "50 tokens" in verdict.sentence and "healthy" in verdict.sentence


def test_an_open_think_block_is_thinking_too() -> None:
    verdict = api.chat(200, chat_body({"content": "<think>\nOkay, the user"}, "length"), 50)
    assert verdict.reason == "thinking_used_budget" and verdict.reasoning.startswith("Okay")
    closed = api.chat(200, chat_body({"content": "thinking here</think>\n\nParis."}), 50)
    assert closed.ok and closed.content == "Paris."


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        ("Paris.", "ok"),
        ("", "empty"),
        ("!" * 200, "garbled"),
        ("\ufffd" * 30, "garbled"),
        ("haha " * 3, "ok"),
        ("no no", "ok"),
    ],
)
def test_content(content: str, verdict: str) -> None:
    found = api.chat(200, chat_body({"content": content}), 50)
    assert found.verdict == verdict and found.ok is (verdict == "ok")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (401, b'{"error":"Unauthorized"}', "unauthorized"),
        (
            404,
            b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}',
            "wrong_model",
        ),
        (
            404,
            b'{"object":"error","message":"The model `x` does not exist.","type":"NotFoundError","code":404}',
            "wrong_model",
        ),
        (
            400,
            b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}',
            "bad_request",
        ),
        (422, b'{"detail":[{"msg":"field required"}]}', "bad_request"),
        (500, b'{"error":{"message":"EngineCore encountered an issue.","code":500}}', "engine_dead"),
        (502, b"<html>502 Bad Gateway</html>", "proxy_no_backend"),
        (503, b"", "warming_up"),
        (200, b"not json", "smoke_failed"),
        (200, b'{"choices":[]}', "smoke_failed"),
        (200, b'{"error":{"message":"x","code":500}}', "engine_dead"),
    ],
)
def test_refused(status: int, body: bytes, reason: str) -> None:
    verdict = api.chat(status, body, 50)
    assert not verdict.ok and verdict.reason == reason and verdict.sentence


def test_models() -> None:
    body = b'{"object":"list","data":[{"id":"a","owned_by":"vllm","max_model_len":10},{"id":"b","parent":"a"}]}'
    assert api.models(200, body, wanted="a") == api.Models(True, ("a", "b"), ("b",), 10, "vllm", True)
    other = api.models(200, body, wanted="c")
    assert other.served is False and other.reason == "wrong_model"
    assert api.models(200, b"<html>", wanted="a").reason == "other_service"
    assert api.models(503, b"", wanted="a").reason == "warming_up"
    assert api.models(200, body).served is None


def test_no_answer() -> None:
    states = [api.endpoint(None, failure=failure).state for failure in ("refused", "timeout", "broken")]
    assert states == ["not_listening", "busy_or_hung", "died"]
    assert api.endpoint(200).ready


def event(**delta: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": None}]}).encode() + b"\n\n"


def test_streams() -> None:
    whole = (
        event(role="assistant")
        + event(reasoning="hm")
        + event(content="Pa")
        + event(content="ris")
        + b"data: [DONE]\n\n"
    )
    found = api.stream(whole)
    assert found.ok and found.content == "Paris" and found.reasoning == "hm"
    assert api.stream(whole[: -len(b"data: [DONE]\n\n")]).verdict == "broken_off"
    assert api.stream(b"data: [DONE]\n\n").verdict == "empty"


@given(
    st.lists(
        st.sampled_from(
            [event(content="é"), event(reasoning="x"), b"data: {", b"}\r\n", b": ping\n", b"data: [DONE]\n"]
        )
    ),
    st.lists(st.integers(0, 500), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_streams_in_any_chunking(parts: list[bytes], cuts: list[int]) -> None:
    data, reader, at = b"".join(parts), api.StreamReader(), 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        reader.feed(data[at:cut])
        at = cut
    reader.close()
    assert reader.verdict() == api.stream(data)


@given(st.integers(100, 599), st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_answer(status: int, body: bytes) -> None:
    api.models(status, body, wanted="m")
    api.chat(status, body, 5)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"error":{"message":"\\ud800","code":Infinity}}',
        b'{"error":{"message":"x","code":1e400}}',
        b'{"error":"\\udfff"}',
        b'{"detail":{"a":"\\ud800"}}',
        b'{"data":[{"id":"\\ud800","max_model_len":' + b"9" * 5000 + b"}]}",
        b'{"choices":[{"message":{"content":"\\ud800"},"finish_reason":"\\ud800"}],"usage":{"a":"\\ud800"}}',
    ],
)
def test_answers_made_to_break_the_reader(body: bytes) -> None:
    for status in (200, 400, 503):
        for found in (api.models(status, body, wanted="x"), api.chat(status, body, 50), api.endpoint(status, body)):
            assert found.evidence.encode() is not None
