"""What an OpenAI-compatible API's answer means: is it ours, is it ready, did the completion work, and if not, why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apps.diagnosis.masking import mask_text
from apps.diagnosis.reasons import REASONS

MOST_TEXT = 4_000  # characters of an answer that are kept


@dataclass(frozen=True)
class Models:
    """What /v1/models said. `served`: whether the wanted model is among `names` (None when none was asked for)."""

    ok: bool
    names: tuple[str, ...] = ()  # ids, which are the names to use in requests, in the answer's order
    adapters: tuple[str, ...] = ()  # those of them that are LoRA adapters
    max_model_len: int | None = None  # of the wanted model, else of the first
    owned_by: str | None = None
    served: bool | None = None
    reason: str | None = None  # of diagnosis.reasons, when not ok or not served
    evidence: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a completion showed. `healthy` may be true when `ok` is not: see `thinking_used_budget`."""

    ok: bool
    healthy: bool
    verdict: str  # ok, ok_tool_call, thinking_used_budget, empty, garbled, error, unauthorized, not_json …
    reason: str | None = None  # of diagnosis.reasons when not ok
    sentence: str = ""
    content: str = ""  # the final answer, without reasoning
    reasoning: str = ""
    finish_reason: str | None = None
    retry_max_tokens: int | None = None  # try again with this budget
    tool_calls: tuple[dict[str, Any], ...] = ()
    usage: Mapping[str, Any] = field(default_factory=dict)
    error_code: int | None = None
    evidence: str = ""


@dataclass(frozen=True)
class Readiness:
    """What one request told about an endpoint. `ready` only when it answers as it should."""

    ready: bool
    state: str  # ready, not_listening, warming_up, proxy_no_backend, died, busy_or_hung, unauthorized, other_service, …
    reason: str | None = None
    sentence: str = ""
    evidence: str = ""


Body = bytes | str | Mapping[str, Any] | list[Any] | None


def _text(body: Body) -> str:
    if body is None:
        return ""
    if isinstance(body, bytes):
        return body.decode("utf-8", "replace")
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)


def _parsed(body: Body) -> Any:
    if isinstance(body, bytes | str):
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
    return body


def _evidence(body: Body) -> str:
    return mask_text(_text(body)[:600]).strip()


def error_of(body: Body) -> tuple[str, int | None] | None:
    """(message, code) of an error answer, in any of its envelopes: {"error": {"message", "code"}} (OpenAI, vLLM since
    0.10),
    {"object": "error", "message", "code"} (older vLLM), {"error": "text"} (key check), {"detail": …} (FastAPI)."""
    parsed = _parsed(body)
    if not isinstance(parsed, Mapping):
        return None
    error = parsed.get("error")
    if isinstance(error, Mapping):
        return str(error.get("message") or error.get("type") or "error"), _code(error.get("code"))
    if isinstance(error, str):
        return error, None
    if parsed.get("object") == "error":
        return str(parsed.get("message") or "error"), _code(parsed.get("code"))
    if "detail" in parsed and "choices" not in parsed and "data" not in parsed:
        return _text(parsed["detail"]), None
    return None


def _code(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def models(status: int, body: Body, *, wanted: str = "") -> Models:
    """Read /v1/models. With `wanted`, say whether that model is served under that name."""
    found = endpoint(status, body)
    parsed = _parsed(body)
    rows = parsed.get("data") if isinstance(parsed, Mapping) else None
    if status != 200 or not isinstance(rows, list):
        return Models(False, reason=found.reason or "other_service", evidence=_evidence(body))
    entries = [row for row in rows if isinstance(row, Mapping) and isinstance(row.get("id"), str)]
    names = tuple(row["id"] for row in entries)
    chosen = next((row for row in entries if row["id"] == wanted), entries[0] if entries else {})
    length = chosen.get("max_model_len")
    served = wanted in names if wanted else None
    return Models(
        True,
        names,
        tuple(row["id"] for row in entries if row.get("parent")),
        length if isinstance(length, int) else None,
        str(chosen["owned_by"]) if chosen.get("owned_by") else None,
        served,
        "wrong_model" if served is False else None,
        "" if served is not False else _evidence(body),
    )


_NOT_READY = {
    502: "proxy_no_backend",
    504: "proxy_no_backend",
    503: "warming_up",
    401: "unauthorized",
    403: "unauthorized",
    404: "other_service",
    429: "rate_limited_api",
}


def endpoint(status: int | None, body: Body = None, *, failure: str = "", evidence: str = "") -> Readiness:
    """Whether the endpoint is ready. Without an answer, `failure` is refused, timeout or broken (as
    `HttpFailed.reason`).

    A refused connection or a 503 means "loading" only while the engine's process is alive; that the caller must know.
    """
    if status is None:
        state = {"refused": "not_listening", "timeout": "busy_or_hung", "broken": "died"}.get(failure, "died")
        return _not_ready(state, evidence)
    if 200 <= status < 300:
        if re.match(r"\s*<(?:!doctype html|html)", _text(body)[:200], re.IGNORECASE):
            return _not_ready("other_service", evidence or _evidence(body))  # a web site, not the API
        return Readiness(True, "ready")
    error = error_of(body)
    if status >= 500 and error is not None and re.search(r"EngineCore|EngineDead|engine.{0,20}(?:dead|died)", error[0]):
        return _not_ready("engine_dead", evidence or _evidence(body))
    if status == 503 and "<html" in _text(body).lower():
        return _not_ready("proxy_no_backend", evidence or _evidence(body))
    state = _NOT_READY.get(status, "engine_dead" if status >= 500 else "bad_request")
    return _not_ready(state, evidence or _evidence(body))


def _not_ready(state: str, evidence: str) -> Readiness:
    reason = "exited" if state == "died" else state
    return Readiness(False, state, reason, REASONS[reason].sentence, evidence)


_CURL = {
    7: "not_listening",
    6: "dns",
    28: "busy_or_hung",
    35: "other_service",
    52: "died",
    55: "died",
    56: "died",
    18: "stream_broken",
}
_CURL_SAYS = re.compile(r"returned error: (?P<status>[45]\d\d)")


def curl(exit_code: int, stderr: str = "") -> Readiness:
    """What curl's exit code says about an endpoint (7 refused, 28 time out, 52 empty reply, 56 reset)."""
    if exit_code == 0:
        return Readiness(True, "ready")
    refused = _CURL_SAYS.search(stderr)
    if exit_code == 22 and refused is not None:
        return endpoint(int(refused["status"]), None, evidence=mask_text(stderr[:600]).strip())
    return _not_ready(_CURL.get(exit_code, "died"), mask_text(stderr[:600]).strip())


_THINK = re.compile(r"<think(?:ing)?>(?P<inside>.*?)(?:</think(?:ing)?>|\Z)", re.DOTALL)


def answer_of(message: Mapping[str, Any]) -> tuple[str, str]:
    """(final answer, reasoning) of a message: `reasoning` (current), `reasoning_content` (older), `<think>` in the
    content."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    text = content if isinstance(content, str) else ""
    refusal = message.get("refusal")
    text = text or (refusal if isinstance(refusal, str) else "")
    said = message.get("reasoning") or message.get("reasoning_content")
    reasoning = said if isinstance(said, str) else ""
    thought = _THINK.search(text) if "<think" in text else None
    if thought is not None:
        reasoning = reasoning or thought["inside"].strip()
        text = text[: thought.start()] + text[thought.end() :]
    elif "</think>" in text:  # the template itself opened the block
        before, _, text = text.partition("</think>")
        reasoning = reasoning or before.strip()
    return text.strip(), reasoning


def _garbled(text: str) -> bool:
    """Replacement characters, or one short piece repeated without end: the signs of broken kernels or quantisation."""
    if len(text) < 24:
        return text.count("\ufffd") > 2
    if text.count("\ufffd") * 10 > len(text):
        return True
    text = "".join(text.split())
    return any(
        len(text) >= 8 * size and text[: len(text) // size * size] == text[:size] * (len(text) // size)
        for size in range(1, 5)
    )


def chat(status: int, body: Body, max_tokens: int = 0) -> Verdict:
    """Judge one whole answer of /v1/chat/completions or /v1/completions. `max_tokens`: the budget that was given."""
    error = error_of(body)
    if status != 200 or error is not None:
        return _refused(status, body, error)
    parsed = _parsed(body)
    choices = parsed.get("choices") if isinstance(parsed, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return _bad("not_json" if parsed is None else "empty", "smoke_failed", "The answer holds no completion.", body)
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, Mapping):
        message = {"content": choice.get("text")}
    usage = parsed.get("usage")
    finish = choice.get("finish_reason")
    calls = message.get("tool_calls")
    return _judge(
        *answer_of(message),
        finish if isinstance(finish, str) else None,
        tuple(call for call in calls if isinstance(call, Mapping)) if isinstance(calls, list) else (),
        usage if isinstance(usage, Mapping) else {},
        max_tokens,
        _evidence(body),
    )


def _judge(
    content: str,
    reasoning: str,
    finish: str | None,
    calls: tuple[Any, ...],
    usage: Mapping[str, Any],
    max_tokens: int,
    evidence: str,
) -> Verdict:
    shown: dict[str, Any] = {
        "content": content[:MOST_TEXT],
        "reasoning": reasoning[:MOST_TEXT],
        "finish_reason": finish,
        "tool_calls": calls,
        "usage": usage,
    }
    if calls:
        return Verdict(True, True, "ok_tool_call", sentence="The model answered with a tool call.", **shown)
    if content:
        if _garbled(content):
            return Verdict(
                False,
                False,
                "garbled",
                "garbled_answer",
                REASONS["garbled_answer"].sentence,
                evidence=evidence,
                **shown,
            )
        return Verdict(True, True, "ok", sentence="The model answered.", **shown)
    if reasoning and not _garbled(reasoning) and finish in ("length", None):
        spent = _code(usage.get("completion_tokens")) or max_tokens
        sentence = f"Thinking used the whole budget{f' of {spent} tokens' if spent else ''}; the model is healthy."
        return Verdict(
            False,
            True,
            "thinking_used_budget",
            "thinking_used_budget",
            sentence,
            retry_max_tokens=max(512, 4 * (max_tokens or spent)),
            evidence=evidence,
            **shown,
        )
    if reasoning and not _garbled(reasoning):
        return Verdict(
            False,
            True,
            "empty",
            "smoke_failed",
            "The model thought, and then answered nothing.",
            evidence=evidence,
            retry_max_tokens=max(512, 4 * max_tokens),
            **shown,
        )
    verdict = "garbled" if reasoning else "empty"
    reason = "garbled_answer" if reasoning else "smoke_failed"
    return Verdict(
        False,
        False,
        verdict,
        reason,
        "The model answered nothing." if not reasoning else REASONS[reason].sentence,
        evidence=evidence,
        **shown,
    )


def _refused(status: int, body: Body, error: tuple[str, int | None] | None) -> Verdict:
    code = (error[1] if error else None) or (status if status != 200 else None)
    found = (
        endpoint(code or status or 500, body) if (code or status) != 200 else _not_ready("engine_dead", _evidence(body))
    )
    if status == 404 and error is not None and "does not exist" in error[0]:
        found = _not_ready("wrong_model", _evidence(body))
    message = mask_text(error[0][:300]) if error else ""
    sentence = f"{found.sentence} It says: {message}" if message else found.sentence
    verdict = "unauthorized" if found.state == "unauthorized" else "error"
    return Verdict(
        False,
        found.state in ("unauthorized", "bad_request", "rate_limited_api"),
        verdict,
        found.reason,
        sentence,
        error_code=code,
        evidence=found.evidence,
    )


def _bad(verdict: str, reason: str, sentence: str, body: Body) -> Verdict:
    return Verdict(False, False, verdict, reason, sentence, evidence=_evidence(body))


class StreamReader:
    """A streamed answer (server-sent events) in any chunking. `verdict` after `close` judges the whole."""

    MOST_LINE = 1_048_576  # bytes of one event line; longer ones are dropped

    def __init__(self, max_tokens: int = 0) -> None:
        self._max_tokens = max_tokens
        self._held = b""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._sizes = [0, 0]
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._error: tuple[str, int | None] | None = None
        self._error_text = ""
        self.done = False  # [DONE] was seen
        self.events = 0

    def feed(self, data: bytes) -> None:
        self._held += data
        *lines, self._held = self._held.split(b"\n")
        if len(self._held) > self.MOST_LINE:
            self._held = b""
        for line in lines:
            self._line(line)

    def close(self) -> None:
        self._line(self._held)
        self._held = b""

    @property
    def speaks(self) -> bool:
        """Whether a token came; a thought is one."""
        return bool(self._content or self._reasoning or self._calls)

    @property
    def failed(self) -> bool:
        """Whether an error stood in the stream."""
        return self._error is not None

    @property
    def partial(self) -> str:
        """The answer's text so far."""
        return "".join(self._content)

    def _line(self, line: bytes) -> None:
        line = line.strip()
        if not line.startswith(b"data:"):
            return
        payload = line[5:].strip()
        if payload == b"[DONE]":
            self.done = True
            return
        parsed = _parsed(payload)
        error = error_of(parsed)
        if error is not None:
            self._error, self._error_text = self._error or error, self._error_text or _evidence(payload)
        elif isinstance(parsed, Mapping):
            self.events += 1
            self._chunk(parsed)

    def _chunk(self, parsed: Mapping[str, Any]) -> None:
        usage = parsed.get("usage")
        if isinstance(usage, Mapping):
            self._usage = usage
        choices = parsed.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"]
        said = choice.get("delta")
        delta: Mapping[str, Any] = said if isinstance(said, Mapping) else {"content": choice.get("text")}
        self._keep(0, self._content, delta.get("content"))
        self._keep(1, self._reasoning, delta.get("reasoning") or delta.get("reasoning_content"))
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping) and len(self._calls) < 64:
                index = call.get("index")
                self._calls.setdefault(index if isinstance(index, int) else 0, dict(call))

    def _keep(self, which: int, into: list[str], piece: Any) -> None:
        if isinstance(piece, str) and piece and self._sizes[which] < MOST_TEXT * 4:
            into.append(piece)
            self._sizes[which] += len(piece)

    def verdict(self) -> Verdict:
        content, reasoning = answer_of({"content": "".join(self._content), "reasoning": "".join(self._reasoning)})
        if self._error is not None:
            message, code = self._error
            dead = re.search(r"EngineCore|EngineDead", message) is not None
            reason = "engine_dead" if dead else "stream_broken"
            return Verdict(
                False,
                False,
                "error",
                reason,
                f"{REASONS[reason].sentence} It says: {mask_text(message[:300])}",
                content,
                reasoning,
                self._finish,
                error_code=code,
                usage=self._usage,
                evidence=self._error_text,
            )
        if not self.done:
            return Verdict(
                False,
                False,
                "broken_off",
                "stream_broken",
                "The stream ended without [DONE].",
                content,
                reasoning,
                self._finish,
                usage=self._usage,
                evidence=f"{self.events} events and no [DONE]",
            )
        return _judge(content, reasoning, self._finish, tuple(self._calls.values()), self._usage, self._max_tokens, "")


def stream(data: bytes, max_tokens: int = 0) -> Verdict:
    """Judge a whole streamed answer. The status 200 and [DONE] prove nothing: an error may stand between them."""
    reader = StreamReader(max_tokens)
    reader.feed(data)
    reader.close()
    return reader.verdict()
