"""Real requests that prove a service: what is asked, and what the answers show. By what the service is for."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from apps.diagnosis import api
from apps.diagnosis.masking import MASK, mask_text

# Where it may be answered, the likeliest first: vLLM and llama.cpp know the first two for ranking, older vLLM only /score.
PATHS = {
    "chat": ("/v1/chat/completions",),
    "embeddings": ("/v1/embeddings",),
    "rerank": ("/v1/rerank", "/rerank", "/score"),
}
TITLES = {"chat": "One real completion", "embeddings": "Two real embeddings", "rerank": "One real ranking"}
NOUNS = {"chat": "completion", "embeddings": "embeddings", "rerank": "ranking"}
# What a smoke test asks besides: which models there are, the same answer streamed, a call of a tool.
MODELS, STREAMED, TOOLS = "models", "streamed", "tools"
ASKS = {MODELS: "The API names its model", STREAMED: "A streamed completion", TOOLS: "A tool call"}
TOOL = {
    "type": "function",
    "function": {
        "name": "population_of",
        "description": "The number of people who live in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_MARKUP = re.compile(
    r"<\|?(?:tool_call|function|python_tag|channel)|\[TOOL_CALLS\]|\{\s*\"name\"\s*:\s*\"population_of\""
)
MASKED = MASK.decode()
QUESTION = "What is the capital of France?"
FITTING, OTHER = "Paris is the capital of France.", "Bananas are yellow when they are ripe."
ELSEWHERE = (404, 405)  # another path may know it
ALIKE = 1e-6  # of two embeddings' cosine distance: less is the same


@dataclass(frozen=True)
class Proof:
    """`ok`: it is proven. `verdict`: a name of what was seen. `larger`: worth another try with more tokens. `elsewhere`: not here,
    another path may answer. `warning`: it works, but somebody should look. `values`: for people. `reason`: of the table, where it
    is not proven and one is known."""

    ok: bool
    verdict: str
    sentence: str
    larger: bool = False
    elsewhere: bool = False
    warning: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None


def body(kind: str, model: str, *, url: str, max_tokens: int, ask: str = "") -> bytes:
    """What is posted to `url`. `ask`: STREAMED, TOOLS, or "" for the plain proof."""
    asked: dict[str, Any] = {"model": model}
    if kind == "embeddings":
        asked["input"] = [FITTING, OTHER]
    elif kind == "rerank" and url.endswith("/score"):
        asked |= {"text_1": QUESTION, "text_2": [OTHER, FITTING]}
    elif kind == "rerank":
        asked |= {"query": QUESTION, "documents": [OTHER, FITTING]}
    else:
        asked |= {
            "max_tokens": max_tokens,
            "temperature": 0,
            "messages": [{"role": "user", "content": "Name the capital of France in one word."}],
        }
    if ask == STREAMED:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    elif ask == TOOLS:
        content = "How many people live in Paris? Call the function population_of; do not answer from memory."
        asked |= {"messages": [{"role": "user", "content": content}], "tools": [TOOL], "tool_choice": "auto"}
    return json.dumps(asked).encode()


def judge(kind: str, status: int, answer: bytes, *, max_tokens: int = 0) -> Proof:
    """What an answer shows. Never raises for any bytes."""
    if kind not in ("embeddings", "rerank"):
        return _spoken(api.chat(status, answer, max_tokens))
    said = _parsed(answer)
    if status != 200 or api.error_of(said) is not None:
        return _refused(kind, status, answer)
    if not isinstance(said, Mapping):
        return Proof(False, "not_json", f"The answer is no JSON object: {_shown(answer)}")
    return _embeddings(said, answer) if kind == "embeddings" else _ranking(said, answer)


def _spoken(verdict: api.Verdict, **values: Any) -> Proof:
    usage = {name: count for name, count in verdict.usage.items() if isinstance(count, int)}
    told = {
        "finish_reason": verdict.finish_reason,
        "usage": usage,
        "content": verdict.content,
        "reasoning": verdict.reasoning,
    }
    return Proof(
        verdict.ok,
        verdict.verdict,
        verdict.sentence or verdict.verdict,
        verdict.retry_max_tokens is not None,
        values={name: value for name, value in (told | values).items() if value not in (None, "", {})},
        reason=verdict.reason,
    )


def judge_models(status: int, answer: bytes, *, model: str) -> Proof:
    """Whether /v1/models names this model."""
    found = api.models(status, answer, wanted=model)
    if found.ok and found.served:
        length = f", up to {found.max_model_len:,} tokens" if found.max_model_len else ""
        return Proof(True, "ok", f"The API names {model}{length}.", values={"models": list(found.names)})
    if found.ok:
        names = ", ".join(found.names[:8]) or "no model"
        sentence = f"The API names {names}, not {model}: another process answers there, or the engine serves it by another name."
        return Proof(False, "wrong_model", sentence, reason="wrong_model", values={"models": list(found.names)})
    told = api.endpoint(status, answer)
    return Proof(False, told.state, told.sentence or "The answer is no list of models.", reason=found.reason)


def judge_streamed(
    status: int, answer: bytes, *, max_tokens: int, first_token_s: float | None, seconds: float, broken: str = ""
) -> Proof:
    """A streamed completion as it came, in bytes. `first_token_s`: seconds until the first token, a thought counts. `broken`: why
    it ended too soon."""
    if status != 200:
        return _spoken(api.chat(status, answer, max_tokens))
    reader = api.StreamReader(max_tokens)
    reader.feed(answer)
    reader.close()
    if not reader.events and not reader.failed:
        whole = api.chat(status, answer, max_tokens)
        sentence = f"The engine did not stream: {whole.sentence or _shown(answer)}"
        return Proof(False, "not_streamed", sentence, reason=whole.reason or "smoke_failed")
    verdict = reader.verdict()
    tokens = verdict.usage.get("completion_tokens")
    values: dict[str, Any] = {"ttft_s": None if first_token_s is None else round(first_token_s, 3)}
    if isinstance(tokens, int) and tokens > 1 and first_token_s is not None and seconds > first_token_s:
        values["tokens_per_s"] = round((tokens - 1) / (seconds - first_token_s), 1)
    proof = _spoken(verdict, **values)
    if broken and not verdict.ok:
        return replace(proof, sentence=f"{proof.sentence} {broken}".strip())
    if proof.ok and not verdict.usage:
        return replace(proof, warning="The stream told no usage, so its tokens can't be counted.")
    return proof


def judge_tools(status: int, answer: bytes, *, max_tokens: int, parser: str) -> Proof:
    """Whether a question that wants a tool was answered by a call of it. `parser`: what the recipe names."""
    verdict = api.chat(status, answer, max_tokens)
    proof = _spoken(verdict)
    if not verdict.ok:
        return proof
    if not verdict.tool_calls:
        if _MARKUP.search(verdict.content):
            sentence = f"The call came as text: the parser {parser} does not read what this model writes."
            return replace(proof, ok=False, verdict="unparsed_tool_call", sentence=sentence, reason="smoke_failed")
        return replace(
            proof, sentence="The model answered.", warning="It answered in words instead of calling the tool."
        )
    function = verdict.tool_calls[0].get("function")
    called = function if isinstance(function, Mapping) else {}
    given = _parsed(str(called.get("arguments") or "").encode())
    if called.get("name") != "population_of" or not isinstance(given, Mapping):
        sentence = f"The call can't be used: {_shown(json.dumps(called).encode())}"
        cut_off = verdict.finish_reason == "length"  # by its budget, perhaps in the middle of the call
        return replace(
            proof, larger=cut_off, ok=False, verdict="bad_tool_call", sentence=sentence, reason="smoke_failed"
        )
    city = str(given.get("city", ""))[:100]
    return replace(
        proof, sentence=f"It called population_of for {city or 'no city'}.", values={**proof.values, "arguments": given}
    )


MOST_TEXT, MOST_ENTRIES, LARGEST_WHOLE, DEEPEST = 4000, 50, 2**63, 6


def kept(value: Any, secrets: Sequence[str] = (), depth: int = 0) -> Any:
    """The same as it may be stored and shown, whatever an engine answered: texts masked (by the known patterns, and these secrets) and
    cut, lists and objects cut, no figure that JSON can't hold."""
    if isinstance(value, str):
        text = value[: MOST_TEXT * 16]
        for secret in secrets:
            text = text.replace(secret, MASKED) if secret else text
        return mask_text(text)[:MOST_TEXT]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < LARGEST_WHOLE else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= DEEPEST:
        return None
    if isinstance(value, Mapping):
        rows = list(value.items())[:MOST_ENTRIES]
        return {kept(str(name), secrets)[:200]: kept(one, secrets, depth + 1) for name, one in rows}
    if isinstance(value, list | tuple):
        return [kept(one, secrets, depth + 1) for one in value[:MOST_ENTRIES]]
    return None


def _parsed(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        return None


def _shown(answer: bytes) -> str:
    return mask_text(answer[:300].decode("utf-8", "replace")).strip() or "nothing"


def _refused(kind: str, status: int, answer: bytes) -> Proof:
    error = api.error_of(answer)
    told = mask_text(error[0][:300]) if error else _shown(answer)
    missing = error is None or "does not exist" not in error[0]
    if (status in ELSEWHERE and missing) or "not support" in told:
        wanted = "embeddings" if kind == "embeddings" else "ranking"
        return Proof(
            False,
            "not_offered",
            f"The engine serves this model, but not for {wanted} (HTTP {status}: {told}). Start it for that: vLLM wants "
            f"--runner pooling{'' if kind == 'embeddings' else ' and a model with a score head'}, SGLang --is-embedding, "
            f"llama.cpp {'--embedding' if kind == 'embeddings' else '--reranking'}.",
            elsewhere=status in ELSEWHERE,
        )
    return Proof(False, "error", f"HTTP {status}: {told}", reason=api.endpoint(status, answer).reason)


def _embeddings(said: Mapping[str, Any], answer: bytes) -> Proof:
    rows = said.get("data")
    listed = [row.get("embedding") for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    found = [one for one in listed if isinstance(one, list) and one]
    if len(found) != 2:
        return Proof(False, "wrong_count", f"Two texts went in, {len(found)} embeddings came out: {_shown(answer)}")
    vectors = [_numbers(one) for one in found]
    if any(vector is None for vector in vectors):
        return Proof(False, "not_finite", "An embedding holds something that is no finite number; it is of no use.")
    first, second = (vector for vector in vectors if vector is not None)
    if len(first) != len(second):
        return Proof(False, "unequal", f"The embeddings have {len(first)} and {len(second)} numbers.")
    lengths = math.hypot(*first), math.hypot(*second)
    if not all(length >= sys.float_info.min for length in lengths):
        return Proof(False, "all_zero", "An embedding is zero throughout; it is of no use.")
    if not all(map(math.isfinite, lengths)):
        return Proof(False, "not_finite", "The numbers of an embedding are too large to be of use.")
    cosine = sum((a / lengths[0]) * (b / lengths[1]) for a, b in zip(first, second, strict=True))
    values = {"dimensions": len(first), "cosine": round(cosine, 4)}
    warning = "Two texts about different things have the same embedding." if 1 - cosine < ALIKE else ""
    return Proof(
        True, "ok", f"Two embeddings of {len(first)} numbers, cosine {cosine:.2f}.", False, False, warning, values
    )


def _numbers(row: list[Any]) -> list[float] | None:
    """None where something is no finite number; JSON has no NaN, but engines write it."""
    good = [
        float(one) for one in row if isinstance(one, int | float) and not isinstance(one, bool) and abs(one) < 1e300
    ]
    return good if len(good) == len(row) else None


def _ranking(said: Mapping[str, Any], answer: bytes) -> Proof:
    """Of /rerank: {"results": [{"index", "relevance_score"}]}, best first; of /score: {"data": [{"index", "score"}]}."""
    rows = said.get("results", said.get("data"))
    scores: dict[int, Any] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, Mapping) and isinstance(row.get("index"), int):
            scores[row["index"]] = row.get("relevance_score", row.get("score"))
    if set(scores) != {0, 1}:
        return Proof(False, "wrong_count", f"Two texts went in, {len(scores)} scores came out: {_shown(answer)}")
    numbers = _numbers([scores[0], scores[1]])
    if numbers is None:
        return Proof(False, "not_finite", "A score is no finite number; it is of no use.")
    other, fitting = numbers
    warning = ""
    if fitting <= other:
        warning = (
            f"It puts “{OTHER}” ({other:.3g}) before “{FITTING}” ({fitting:.3g}) for “{QUESTION}”: its scores most likely mean "
            "nothing. Check the model's template and --hf-overrides."
        )
    return Proof(
        True, "ok", f"The fitting text scores {fitting:.3g}, the other {other:.3g}.", False, False, warning,
        {"fitting": fitting, "other": other},
    )  # fmt: skip
