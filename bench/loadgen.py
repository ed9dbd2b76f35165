"""The load generator: how far its figures are from a known schedule, and how fast it is, beside a plain client of httpx.

The server speaks on a schedule: the first token after `FIRST_S`, then one every `GAP_S`, whatever the load. It is a process of its
own, as the generator is, so both can have a core; where they share one, the wall figures are those of the waiting.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from bench.measure import CannotMeasure, Figures, say

GENERATOR = Path(__file__).resolve().parent.parent / "apps" / "benchmarks" / "loadgen.py"
FIRST_S, GAP_S, TOKENS = 0.2, 0.02, 100
LEVELS = (1, 2, 4, 8, 16)
STREAMS, TOP_TOKENS = 64, 400
REACH_TOK_S, REACH_OFF = 5000, 0.03

_SERVER = textwrap.dedent(
    """
    import asyncio, json, sys
    FIRST, GAP = float(sys.argv[1]), float(sys.argv[2])
    CHOICE = b'{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}'
    TOKEN = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[%s]}\\n\\n' % CHOICE
    CHUNK = b"%x\\r\\n" % len(TOKEN) + TOKEN + b"\\r\\n"
    async def serve(reader, writer):
        try:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode()
            length = int((head.lower().split("content-length: ") + ["0"])[1].split("\\r\\n")[0] or 0)
            count = json.loads(await reader.readexactly(length))["max_tokens"] if length else 0
            if not count:
                writer.write(b"HTTP/1.1 404 Not Found\\r\\ncontent-length: 0\\r\\n\\r\\n")
                return
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
            loop = asyncio.get_running_loop()
            began = loop.time() + FIRST
            for n in range(count):
                if GAP or n == 0:
                    await asyncio.sleep(max(0.0, began + n * GAP - loop.time()))
                writer.write(CHUNK)
                if not GAP and n % 8 == 0:
                    await writer.drain()
            usage = b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":%d}}\\n\\ndata: [DONE]\\n\\n' % count
            writer.write(b"%x\\r\\n" % len(usage) + usage + b"\\r\\n0\\r\\n\\r\\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()
    asyncio.run(main())
    """
)


class _Server:
    def __init__(self, first_s: float, gap_s: float) -> None:
        words = [sys.executable, "-c", _SERVER, str(first_s), str(gap_s)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def measured(quick: bool) -> Figures:
    """`quick`: two levels and shorter answers."""
    levels = LEVELS[:2] if quick else LEVELS
    tokens = 20 if quick else TOKENS
    with _Server(FIRST_S, GAP_S) as server:
        rows, _ = _generate(server.port, levels, tokens, requests=4 if quick else 16)
    schedule = [_against(row, tokens) for row in rows]
    with _Server(0.0, 0.0) as server:
        count = 64 if quick else 256
        top, cpu = _generate(server.port, (STREAMS,), TOP_TOKENS, requests=count)
        others = {"httpx": _other("httpx", server.port, count)}
    ours = {**_rates(top[0]["output_tokens"], top[0]["seconds"], cpu), "aggregate_tok_s": top[0]["aggregate_tok_s"]}
    off = max(max(abs(row["tok_s_off"]), abs(row["ttft_off"])) for row in schedule)
    return {
        "schedule": {
            "first_s": FIRST_S,
            "gap_s": GAP_S,
            "tokens": tokens,
            "levels": schedule,
            "largest_off": round(off, 4),
        },
        "top": {"streams": STREAMS, "tokens_each": TOP_TOKENS, "loadgen": ours, "others": others},
        "reach": {"tok_s": REACH_TOK_S, "off": REACH_OFF},
        "reached": {"tok_s_a_core": ours["tok_s_a_core"] > REACH_TOK_S, "off": off <= REACH_OFF},
        "failures": sum(row["errors"] for row in (*rows, *top)),
    }


def _generate(port: int, levels: tuple[int, ...], tokens: int, *, requests: int) -> tuple[list[dict[str, Any]], float]:
    """(the levels that it told, processor seconds of its process)."""
    given = {
        "url": f"http://127.0.0.1:{port}", "model": "m", "levels": list(levels), "output_tokens": tokens, "prompt_tokens": 100,
        "requests_per_level": requests, "sample_s": 0,
    }  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, str(GENERATOR), json.dumps(given)], capture_output=True, text=True, timeout=600
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise CannotMeasure(f"the generator ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    rows = [
        row
        for line in done.stdout.splitlines()
        if line.startswith("{") and (row := json.loads(line))["event"] == "level"
    ]
    for row in rows:
        say(
            f"loadgen at {row['concurrency']}: {row['aggregate_tok_s']:.1f} tokens/s, first token {row['ttft_s']['p50']:.3f} s"
        )
    return rows, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _against(row: dict[str, Any], tokens: int) -> dict[str, Any]:
    """How far a level is from the schedule, as shares of it."""
    rate = 1 / GAP_S
    return {
        "concurrency": row["concurrency"],
        "tok_s": row["per_request_tok_s"]["p50"],
        "tok_s_off": round(row["per_request_tok_s"]["p50"] / rate - 1, 4),
        "ttft_s": row["ttft_s"]["p50"],
        "ttft_off": round(row["ttft_s"]["p50"] / FIRST_S - 1, 4),
        "aggregate_tok_s": row["aggregate_tok_s"],
        "aggregate_of_schedule": round(
            row["aggregate_tok_s"] / (row["concurrency"] * tokens / (FIRST_S + (tokens - 1) * GAP_S)), 4
        ),
        "errors": row["errors"],
    }


def _rates(tokens: int, wall_s: float, cpu_s: float) -> dict[str, float]:
    return {
        "tok_s": round(tokens / wall_s, 1),
        "cpu_s": round(cpu_s, 2),
        "tok_s_a_core": round(tokens / cpu_s, 1) if cpu_s else 0.0,
    }


def _other(name: str, port: int, requests: int) -> dict[str, Any]:
    """The same load by a client as a person would write it, in a process of its own."""
    words = [sys.executable, "-m", "bench.loadgen", str(port), str(requests)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=GENERATOR.parent.parent.parent)
    if done.returncode:
        return {"missing": (done.stderr.strip().splitlines() or ["it failed"])[-1][:200]}
    made = json.loads(done.stdout.splitlines()[-1])
    say(f"{name}: {made['tok_s']} tokens/s, {made['tok_s_a_core']} a core")
    return dict(made)


async def _plainly(port: int, requests: int) -> int:
    import httpx

    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    asked = {"model": "m", "max_tokens": TOP_TOKENS, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    left, count, stamps = iter(range(requests)), 0, []

    def line_of(line: str) -> None:
        nonlocal count
        if not line.startswith("data:") or line.endswith("[DONE]"):
            return
        event = json.loads(line[5:])
        if event["choices"] and event["choices"][0]["delta"].get("content"):
            count += 1
            stamps.append(time.perf_counter())

    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=STREAMS)) as client:

        async def place() -> None:
            for _ in left:
                async with client.stream("POST", url, json=asked) as answer:
                    async for line in answer.aiter_lines():
                        line_of(line)

        await asyncio.gather(*(place() for _ in range(STREAMS)))
    statistics.fmean(stamps)
    return count


def main(words: list[str]) -> None:
    port, requests = int(words[0]), int(words[1])
    began, cpu = time.perf_counter(), sum(os.times()[:2])
    tokens = asyncio.run(_plainly(port, requests))
    print(json.dumps(_rates(tokens, time.perf_counter() - began, sum(os.times()[:2]) - cpu)))


if __name__ == "__main__":
    main(sys.argv[1:])
