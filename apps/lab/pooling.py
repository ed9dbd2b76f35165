"""What a pooling model answers: embeddings and rankings of texts, made from their words so that alike texts are near."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

DIMENSIONS = 64
PATHS = ("/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/score", "/v1/score")


def vector(text: str) -> list[float]:
    """Of length 1."""
    made = [1e-3] * DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        digest = hashlib.sha256(word.encode()).digest()
        made[digest[0] % DIMENSIONS] += 1.0 if digest[1] & 1 else -1.0
        made[digest[2] % DIMENSIONS] += 0.5
    length = math.hypot(*made)
    return [round(value / length, 6) for value in made]


def near(first: str, second: str) -> float:
    """0..1, larger for texts that share words."""
    cosine = sum(a * b for a, b in zip(vector(first), vector(second), strict=True))
    return round(1 / (1 + math.exp(-6 * (cosine - 0.3))), 6)


def answer(path: str, asked: dict[str, Any], model: str) -> dict[str, Any] | None:
    """None for a body that is not of this path."""
    if path == "/v1/embeddings":
        texts = asked.get("input")
        listed: list[Any] = texts if isinstance(texts, list) else [texts]
        if not listed or not all(isinstance(text, str) for text in listed):
            return None
        rows = [{"index": n, "object": "embedding", "embedding": vector(text)} for n, text in enumerate(listed)]
        return {"id": "embd-1", "object": "list", "model": model, "data": rows, "usage": usage(listed)}
    if path.endswith("score"):
        query, texts = asked.get("text_1"), asked.get("text_2")
    else:
        query, texts = asked.get("query"), asked.get("documents")
    if not isinstance(query, str) or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return None
    scores = [near(query, text) for text in texts]
    if path.endswith("score"):
        rows = [{"index": n, "object": "score", "score": score} for n, score in enumerate(scores)]
        return {"id": "score-1", "object": "list", "model": model, "data": rows, "usage": usage(texts)}
    best = sorted(range(len(texts)), key=lambda n: -scores[n])
    results = [{"index": n, "document": {"text": texts[n]}, "relevance_score": scores[n]} for n in best]
    return {"id": "rerank-1", "model": model, "usage": usage(texts), "results": results}


def usage(texts: list[str]) -> dict[str, int]:
    count = sum(len(text.split()) for text in texts)
    return {"prompt_tokens": count, "total_tokens": count}
