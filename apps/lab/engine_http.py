"""HTTP of the pretend engine: health, models, completions (plain and streamed), metrics."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

from apps.lab import pooling

if TYPE_CHECKING:
    from apps.lab.engine import Engine
    from apps.lab.engine_other import Program

THOUGHT = [
    "Okay,",
    "the",
    "user",
    "wants",
    "a",
    "short",
    "answer.",
    "Let",
    "me",
    "think",
    "about",
    "what",
    "is",
    "asked,",
    "check",
    "whether",
    "anything",
    "in",
    "the",
    "question",
    "is",
    "a",
    "trap,",
    "and",
    "decide",
    "on",
    "the",
    "wording.",
    "The",
    "question",
    "is",
    "simple,",
    "so",
    "the",
    "answer",
    "can",
    "be",
    "a",
    "single",
    "sentence.",
    "I",
    "should",
    "answer",
    "directly",
    "and",
    "politely,",
    "without",
    "repeating",
    "the",
    "question.",
]
SECONDS = {1: 27.0, 2: 21.0, 4: 19.0, 8: 12.0, 16: 10.0}  # tokens per second and request by how many run together


def pace(active: int) -> float:
    return next((rate for count, rate in SECONDS.items() if active <= count), 9.0)


class Server:
    """vLLM's routes; others say what is theirs."""

    thought = "reasoning"  # where what a model thinks stands
    owner = "vllm"

    def __init__(self, engine: Engine | Program) -> None:
        self.engine: Any = engine

    def listening(self) -> bool:
        """Whether it answers at all; vLLM's port is open only once it is ready."""
        return bool(self.engine.ready)

    def not_yet(self, path: str) -> tuple[str, bytes] | None:
        """What is said instead while it loads."""
        return None

    def health(self) -> tuple[str, bytes, str]:
        return "200 OK", b"", "text/plain"

    async def serve(self, reader: Any, writer: Any) -> None:
        while True:
            head = await self._head(reader)
            if head is None:
                return
            lines = head.decode("latin-1").split("\r\n")
            method, path, _ = ([*lines[0].split(" "), "", ""])[:3]
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines[1:])
                if name
            }
            body = (
                await reader.readexactly(int(headers.get("content-length", 0) or 0))
                if headers.get("content-length")
                else b""
            )
            if not self.listening():
                return
            status = await self._answer(writer, method, path.split("?")[0], headers, body)
            await self.engine.api(
                f'INFO:     {self.engine.node.addresses[0]}:51742 - "{method} {path} HTTP/1.1" {status}'
            )
            if headers.get("connection", "").lower() == "close":
                return

    async def _head(self, reader: Any) -> bytes | None:
        data = b""
        while b"\r\n\r\n" not in data:
            line = await reader.readline()
            if not line:
                return None
            data += line
        return bytes(data.split(b"\r\n\r\n")[0])

    async def _send(self, writer: Any, status: str, body: bytes, kind: str = "application/json") -> str:
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(self.engine.node.now()))
        writer.write(
            f"HTTP/1.1 {status}\r\ndate: {date}\r\nserver: uvicorn\r\ncontent-length: {len(body)}\r\ncontent-type: {kind}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        return status

    async def _error(self, writer: Any, status: str, text: str, kind: str) -> str:
        code = int(status.split()[0])
        return await self._send(
            writer, status, json.dumps({"error": {"message": text, "type": kind, "param": None, "code": code}}).encode()
        )

    async def _answer(self, writer: Any, method: str, path: str, headers: dict[str, str], body: bytes) -> str:
        engine = self.engine
        key = engine.options.get("--api-key")
        if key and path.startswith("/v1") and headers.get("authorization") != f"Bearer {key}":
            return await self._send(writer, "401 Unauthorized", b'{"error":"Unauthorized"}')
        if later := self.not_yet(path):
            return await self._send(writer, *later)
        if path in ("/health", "/ping"):
            return await self._send(writer, *self.health())
        if path == "/version" and self.owner == "vllm":
            return await self._send(
                writer, "200 OK", json.dumps({"version": engine.container.image.software.vllm}).encode()
            )
        if path == "/metrics":
            return await self._send(
                writer, "200 OK", self.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8"
            )
        if self.fault() == "warming-up" and path.startswith("/v1"):
            return await self._error(writer, "503 Service Unavailable", "Loading model", "unavailable_error")
        if path == "/v1/models":
            return await self._send(writer, "200 OK", json.dumps(self.models()).encode())
        if path in ("/v1/chat/completions", "/v1/completions") and engine.options.get("--runner") != "pooling":
            if method != "POST":
                return await self._send(writer, "405 Method Not Allowed", b'{"detail":"Method Not Allowed"}')
            return await self._complete(writer, path.endswith("chat/completions"), body)
        if path in pooling.PATHS and engine.options.get("--runner") == "pooling":
            return await self._pool(writer, path, body)
        return await self._send(writer, "404 Not Found", b'{"detail":"Not Found"}')

    async def _pool(self, writer: Any, path: str, body: bytes) -> str:
        try:
            asked = json.loads(body)
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            return await self._error(writer, "400 Bad Request", "JSON decode error", "Bad Request")
        model = asked.get("model") or self.engine.served[0]
        if model not in self.engine.served:
            return await self._error(writer, "404 Not Found", f"The model `{model}` does not exist.", "NotFoundError")
        if self.engine.hung:
            await self.engine.dead.wait()
        made = pooling.answer(path, asked, model)
        if made is None:
            return await self._error(writer, "400 Bad Request", "Field required", "Bad Request")
        return await self._send(writer, "200 OK", json.dumps(made).encode())

    def models(self) -> dict[str, Any]:
        engine = self.engine
        permission = {
            "id": "modelperm-" + uuid.uuid4().hex[:16],
            "object": "model_permission",
            "created": int(engine.created),
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "object": "list",
            "data": [
                {
                    "id": name,
                    "object": "model",
                    "created": int(time.time()),
                    "owned_by": self.owner,
                    "root": name if self.fault() == "wrong-model" else engine.model,
                    "parent": None,
                    "max_model_len": engine.max_len,
                    "permission": [permission],
                }
                for name in (["somebody/elses-model"] if self.fault() == "wrong-model" else engine.served)
            ],
        }

    def fault(self) -> str:
        """How the API is to answer, by the fault that is switched on at its node."""
        return str(self.engine.node.faults.get("api") or "")

    def metrics(self) -> str:
        engine = self.engine
        label = f'{{engine="0",model_name="{engine.served[0]}"}}'
        values = (
            ("num_requests_running", "gauge", float(engine.active)),
            ("num_requests_waiting", "gauge", 0.0),
            ("kv_cache_usage_perc", "gauge", min(1.0, engine.active * 0.004)),
            ("prompt_tokens_total", "counter", engine.counters["prompt"]),
            ("generation_tokens_total", "counter", engine.counters["generated"]),
            ("num_preemptions_total", "counter", 0.0),
            ("prefix_cache_queries_total", "counter", engine.counters["prompt"]),
            ("prefix_cache_hits_total", "counter", 0.0),
        )
        text = ""
        for name, kind, value in values:
            text += (
                f"# HELP vllm:{name} {name.replace('_', ' ')}.\n# TYPE vllm:{name} {kind}\nvllm:{name}{label} {value}\n"
            )
        return (
            text
            + f'# TYPE vllm:request_success_total counter\nvllm:request_success_total{{engine="0",finished_reason="stop",model_name="{engine.served[0]}"}} {engine.counters["requests"]}\n'
        )

    async def _complete(self, writer: Any, chat: bool, body: bytes) -> str:
        engine = self.engine
        try:
            asked = json.loads(body)
        except ValueError:
            return await self._error(
                writer,
                "400 Bad Request",
                "[{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error'}]",
                "Bad Request",
            )
        model = asked.get("model") or engine.served[0]
        if model not in engine.served or self.fault() == "wrong-model":
            return await self._error(writer, "404 Not Found", f"The model `{model}` does not exist.", "NotFoundError")
        if chat and not asked.get("messages"):
            return await self._error(
                writer,
                "400 Bad Request",
                "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]",
                "Bad Request",
            )
        prompt = (
            " ".join(str(m.get("content") or "") for m in asked.get("messages", []))
            if chat
            else str(asked.get("prompt", ""))
        )
        limit = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or (2048 if chat else 16))
        count = len(prompt.split()) + 11
        if count + limit > engine.max_len:
            return await self._error(
                writer,
                "400 Bad Request",
                f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's maximum context length is {engine.max_len} tokens and your request has {count} input tokens.",
                "BadRequestError",
            )
        thinking, answer = self.tokens(chat, asked, prompt, model, limit)
        total = len(thinking) + len(answer)
        full = thinking + answer
        reason = "length" if total >= limit and len(full) >= limit else "stop"
        engine.active += 1
        nodes = [rank.node for rank in engine.ranks]
        for node in nodes:
            node.busy = True
        try:
            engine.counters["prompt"] += count
            if asked.get("stream"):
                return await self._stream(writer, chat, asked, thinking, answer, reason, count)
            await asyncio.sleep((0.48 + total / pace(engine.active)) / engine.world.factor)
            if engine.hung:
                await engine.dead.wait()
            engine.counters["generated"] += total
            engine.counters["requests"] += 1
            usage = {
                "prompt_tokens": count,
                "total_tokens": count + total,
                "completion_tokens": total,
                "prompt_tokens_details": None,
            }
            created = int(engine.node.now())
            if chat:
                reasoner = bool(engine.options.get("--reasoning-parser"))
                calls = self.tool_calls(asked) if answer else []
                if calls:
                    answer, reason = [], "tool_calls"
                message: dict[str, Any] = {
                    "role": "assistant",
                    "content": " ".join(answer) or None,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "tool_calls": calls,
                    self.thought: " ".join(thinking) or None,
                }
                if thinking and not reasoner and self.owner == "vllm":
                    message["content"], message[self.thought] = (
                        "<think>\n" + " ".join(thinking) + ("\n</think>\n\n" + " ".join(answer) if answer else ""),
                        None,
                    )
                made = {
                    "id": "chatcmpl-" + uuid.uuid4().hex,
                    "object": "chat.completion",
                    "created": created,
                    "model": model,
                    "choices": [
                        {
                            "index": 0,
                            "message": message,
                            "logprobs": None,
                            "finish_reason": reason,
                            "stop_reason": None,
                            "token_ids": None,
                        }
                    ],
                    "service_tier": None,
                    "system_fingerprint": None,
                    "usage": usage,
                    "prompt_logprobs": None,
                    "prompt_token_ids": None,
                    "kv_transfer_params": None,
                }
            else:
                made = {
                    "id": "cmpl-" + uuid.uuid4().hex,
                    "object": "text_completion",
                    "created": created,
                    "model": model,
                    "choices": [
                        {
                            "index": 0,
                            "text": " " + " ".join(answer),
                            "logprobs": None,
                            "finish_reason": reason,
                            "stop_reason": None,
                        }
                    ],
                    "usage": usage,
                }
            return await self._send(writer, "200 OK", json.dumps(made).encode())
        finally:
            engine.active -= 1
            if not engine.active:
                for node in nodes:
                    node.busy = False

    def tool_calls(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """A call of the first tool that was offered, where the engine was started with a parser for them."""
        if not asked.get("tools") or not self.engine.options.get("--tool-call-parser"):
            return []
        function = asked["tools"][0]["function"]
        given = {name: "Paris" for name in (function.get("parameters") or {}).get("required", [])}
        called = {"name": function["name"], "arguments": json.dumps(given)}
        return [{"id": "chatcmpl-tool-" + uuid.uuid4().hex, "type": "function", "function": called}]

    def tokens(
        self, chat: bool, asked: dict[str, Any], prompt: str, model: str, limit: int
    ) -> tuple[list[str], list[str]]:
        """What it thinks and what it answers, cut at the budget. Thinking alone is longer than 50 tokens."""
        thinks = (
            chat
            and "qwen3" in model.lower()
            and "embed" not in model.lower()
            and (asked.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        )
        thinking = (THOUGHT * 2)[:96] if thinks else []
        text = (
            "Paris is the capital of France."
            if "France" in prompt
            else f"Hello! This is {model.rsplit('/', 1)[-1]} answering: all ranks are up and well."
        )
        answer = text.split()
        if self.fault() == "thinks-only":
            thinking, answer = THOUGHT * (limit // len(THOUGHT) + 1), []
        elif self.fault() == "empty":
            thinking, answer = [], []
        elif self.fault() == "garbled":
            thinking, answer = [], ["!!!!!!!!"] * 12
        if asked.get("ignore_eos"):
            answer = (answer * (limit // max(1, len(answer)) + 1))[: max(0, limit - len(thinking))]
        return thinking[:limit], answer[: max(0, limit - len(thinking))]

    async def _stream(
        self,
        writer: Any,
        chat: bool,
        asked: dict[str, Any],
        thinking: list[str],
        answer: list[str],
        reason: str,
        prompt_tokens: int,
    ) -> str:
        engine = self.engine
        name, created = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex, int(engine.node.now())
        writer.write(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )

        async def event(body: dict[str, Any] | str) -> None:
            data = f"data: {body if isinstance(body, str) else json.dumps(body)}\n\n".encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()

        def chunk(delta: dict[str, Any] | None, text: str = "", finish: str | None = None) -> dict[str, Any]:
            choice = (
                {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish, "token_ids": None}
                if chat
                else {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            )
            return {
                "id": name,
                "object": "chat.completion.chunk" if chat else "text_completion",
                "created": created,
                "model": asked.get("model") or engine.served[0],
                "choices": [choice],
            }

        await asyncio.sleep(0.48 / engine.world.factor)
        if chat:
            await event(chunk({"role": "assistant", "content": ""}))
        count = 0
        for kind, words in ((self.thought, thinking), ("content", answer)):
            for number, word in enumerate(words):
                if engine.hung or not engine.ready or (self.fault() == "stream-error" and count == 2):
                    await event(
                        {
                            "error": {
                                "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                                "type": "InternalServerError",
                                "param": None,
                                "code": 500,
                            }
                        }
                    )
                    await event("[DONE]")
                    writer.write(b"0\r\n\r\n")
                    return "200 OK"
                text = word if number == 0 else " " + word
                count += 1
                engine.counters["generated"] += 1
                await event(chunk({kind: text}, text))
                await asyncio.sleep(1 / pace(engine.active) / engine.world.factor)
        await event(chunk({}, "", reason))
        engine.counters["requests"] += 1
        if (asked.get("stream_options") or {}).get("include_usage"):
            await event(
                {
                    "id": name,
                    "object": "chat.completion.chunk",
                    "created": created,
                    "model": asked.get("model"),
                    "choices": [],
                    "usage": {
                        "prompt_tokens": prompt_tokens,
                        "total_tokens": prompt_tokens + count,
                        "completion_tokens": count,
                    },
                }
            )
        await event("[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return "200 OK"
