"""What an answer of an embeddings or a ranking API proves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.plan import proofs


def embeddings(*vectors: Any) -> bytes:
    return json.dumps(
        {"object": "list", "data": [{"index": n, "embedding": v} for n, v in enumerate(vectors)]}
    ).encode()


def ranked(fitting: Any, other: Any) -> bytes:
    rows = [{"index": 1, "relevance_score": fitting}, {"index": 0, "relevance_score": other}]
    return json.dumps({"id": "r", "results": rows}).encode()


SCORED = json.dumps({"data": [{"index": 0, "score": 0.1}, {"index": 1, "score": 0.9}]}).encode()
NO_SUCH_PATH = b'{"detail":"Not Found"}'
NO_POOLING = b'{"error":{"message":"The model does not support Embeddings API","type":"BadRequestError","code":400}}'


@pytest.mark.parametrize(
    ("kind", "status", "answer", "verdict", "ok"),
    [
        ("embeddings", 200, embeddings([0.6, 0.8], [0.8, -0.6]), "ok", True),
        ("embeddings", 200, embeddings([0.6, 0.8]), "wrong_count", False),
        ("embeddings", 200, embeddings([], []), "wrong_count", False),
        ("embeddings", 200, embeddings([0.6, 0.8], [1.0]), "unequal", False),
        ("embeddings", 200, embeddings([0.0, 0.0], [1.0, 0.0]), "all_zero", False),
        ("embeddings", 200, embeddings([float("nan"), 0.0], [1.0, 0.0]), "not_finite", False),
        ("embeddings", 200, embeddings([None, 0.0], [1.0, 0.0]), "not_finite", False),
        ("embeddings", 200, b"<html>", "not_json", False),
        ("embeddings", 404, NO_SUCH_PATH, "not_offered", False),
        ("embeddings", 400, NO_POOLING, "not_offered", False),
        ("embeddings", 404, b'{"error":{"message":"The model `x` does not exist.","code":404}}', "error", False),
        ("embeddings", 500, b'{"error":{"message":"EngineCore died"}}', "error", False),
        ("rerank", 200, ranked(0.98, 0.01), "ok", True),
        ("rerank", 200, SCORED, "ok", True),
        ("rerank", 200, ranked(None, 0.01), "not_finite", False),
        ("rerank", 200, b'{"results":[]}', "wrong_count", False),
        ("rerank", 200, b'{"results":{"a":1}}', "wrong_count", False),
        ("rerank", 405, NO_SUCH_PATH, "not_offered", False),
    ],
)
def test_verdicts(kind: str, status: int, answer: bytes, verdict: str, ok: bool) -> None:
    found = proofs.judge(kind, status, answer)
    assert (found.verdict, found.ok, bool(found.sentence)) == (verdict, ok, True)
    assert found.elsewhere == (verdict == "not_offered" and status in (404, 405))


def test_a_ranking_that_means_nothing_is_warned_of() -> None:
    found = proofs.judge("rerank", 200, ranked(0.2, 0.7))
    assert found.ok and "hf-overrides" in found.warning and not proofs.judge("rerank", 200, ranked(0.7, 0.2)).warning


def test_embeddings_that_are_all_alike_are_warned_of() -> None:
    assert "same embedding" in proofs.judge("embeddings", 200, embeddings([1.0, 2.0], [1.0, 2.0])).warning
    found = proofs.judge("embeddings", 200, embeddings([1.0, 0.0], [0.0, 1.0]))
    assert not found.warning and found.values == {"dimensions": 2, "cosine": 0.0}


def test_a_completion_is_judged_as_before() -> None:
    said = {"choices": [{"message": {"content": None, "reasoning": "I think"}, "finish_reason": "length"}]}
    found = proofs.judge("chat", 200, json.dumps(said).encode(), max_tokens=50)
    assert not found.ok and found.larger and found.verdict == "thinking_used_budget"


def test_what_is_asked_follows_from_the_path() -> None:
    asked = {
        path: json.loads(proofs.body("rerank", "m", url=f"http://h{path}", max_tokens=1))
        for path in proofs.PATHS["rerank"]
    }
    assert set(asked["/v1/rerank"]) == {"model", "query", "documents"} and set(asked["/score"]) == {
        "model",
        "text_1",
        "text_2",
    }
    assert len(json.loads(proofs.body("embeddings", "m", url="", max_tokens=1))["input"]) == 2
    assert json.loads(proofs.body("chat", "m", url="", max_tokens=7))["max_tokens"] == 7


@pytest.mark.parametrize("kind", ["embeddings", "rerank"])
@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"null", b"1e999", b'{"data":[1e999]}', b'{"data":[{"embedding":[1e999]}]}', b"[" * 9999]
)
def test_any_bytes_are_judged(kind: str, answer: bytes) -> None:
    assert not proofs.judge(kind, 200, answer).ok
