"""The load generator against a server that speaks on a schedule, and its arithmetic on recorded times."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.benchmarks import loadgen, measured
from apps.benchmarks.results import Result

FILE = Path(loadgen.__file__)


class Server:
    """Streams completions of `tokens` tokens, the first after `first_s`, the next ones `gap_s` apart; `says` may answer otherwise."""

    def __init__(self, *, first_s: float = 0.02, gap_s: float = 0.005, together: int = 1) -> None:
        self.first_s, self.gap_s, self.together = first_s, gap_s, together
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.most = self.now = 0
        self.says: dict[int, bytes] = {}  # number of the request -> a whole answer instead
        self.cut_after = 0
        self.gone = threading.Event()
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()

        def run() -> None:
            asyncio.set_event_loop(self.loop)
            server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0))
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            self.loop.run_forever()

        threading.Thread(target=run, daemon=True).start()
        assert ready.wait(10)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.keys += [line for line in head.split("\r\n") if line.startswith("Authorization")]
        if head.startswith("GET /metrics"):
            writer.write(b'HTTP/1.1 200 OK\r\n\r\n# HELP x\nvllm:generation_tokens_total{a="b"} 7.0\nother 3\n')
            writer.close()
            return
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        asked = json.loads(await reader.readexactly(length))
        self.asked.append(asked)
        number = len(self.asked) - 1
        if number in self.says:
            writer.write(self.says[number])
            writer.close()
            return
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.speak(asked, writer)
        except ConnectionError:
            self.gone.set()
        finally:
            self.now -= 1
            writer.close()

    async def speak(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        began = time.perf_counter() + self.first_s

        async def event(body: Any) -> None:
            data = f"data: {body if isinstance(body, str) else json.dumps(body)}\n\n".encode()
            cut = len(data) // 2  # chunks need not end where events do
            for piece in (data[:cut], data[cut:]):
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()

        count = int(asked["max_tokens"])
        for place in range(0, count, self.together):
            await asyncio.sleep(max(0.0, began + place * self.gap_s - time.perf_counter()))
            if self.cut_after and place >= self.cut_after:
                return
            await event({"choices": [{"index": 0, "delta": {"content": "a " * self.together}, "finish_reason": None}]})
        await event({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": count}})
        await event("[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)


def run(
    server: Server, *, environment: dict[str, str] | None = None, **settings: Any
) -> tuple[int, list[dict[str, Any]], str]:
    given = {
        "url": f"http://127.0.0.1:{server.port}",
        "model": "m",
        "prompt_tokens": 20,
        "output_tokens": 12,
        "sample_s": 0,
        **settings,
    }
    done = subprocess.run(
        [sys.executable, "-u", "-", json.dumps(given)],
        input=FILE.read_bytes(),
        capture_output=True,
        timeout=60,
        env=environment,
    )
    text = done.stdout.decode()
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return done.returncode, rows, text + done.stderr.decode()


def test_a_closed_loop_keeps_its_places_filled(server: Server) -> None:
    code, rows, text = run(server, levels=[1, 4], requests_per_level=8)
    assert code == 0, text
    assert [row["event"] for row in rows if row["event"] != "tick"] == [
        "begin",
        "metrics",
        "level",
        "level",
        "metrics",
        "end",
    ]
    one, four = (row for row in rows if row["event"] == "level")
    assert (one["concurrency"], one["requests"], one["errors"], one["output_tokens"]) == (1, 8, 0, 96)
    assert four["concurrency"] == 4 and server.most == 4
    assert one["ttft_s"]["p50"] >= 0.02 and one["itl_s"]["p50"] > 0.002
    assert one["input_tokens"] == 160 and one["seconds"] > 8 * (0.02 + 11 * 0.005) * 0.99
    assert one["aggregate_tok_s"] == pytest.approx(96 / one["seconds"], rel=1e-3)
    assert {asked["ignore_eos"] for asked in server.asked} == {True} and {
        asked["stream"] for asked in server.asked
    } == {True}
    begun = [asked["messages"][0]["content"][:12] for asked in server.asked]
    assert len(set(begun)) == len(begun), "no two prompts begin alike"
    found = measured.read(text.splitlines())
    result = Result.from_json(found.as_json(made="2026-12-01T00:00:00+00:00", subject={"model": "m"}, node="n"))
    assert result.levels[1].concurrency == 4 and result.engine_metrics["before"] == {
        "vllm:generation_tokens_total": 7.0
    }
    assert found.ended and not found.partial


def test_an_open_loop_goes_by_the_clock(server: Server) -> None:
    code, rows, text = run(server, mode="open", levels=[50.0], requests_per_level=20, seed=7)
    (level,) = (row for row in rows if row["event"] == "level")
    assert code == 0 and level["rate"] == 50.0 and level["concurrency"] is None and level["requests"] == 20, text
    assert server.most > 1, "the next arrives whatever became of the one before"


def test_several_tokens_in_one_event_are_counted_by_usage() -> None:
    server = Server(together=4)
    code, rows, text = run(server, levels=[1], requests_per_level=2)
    (level,) = (row for row in rows if row["event"] == "level")
    assert code == 0 and level["output_tokens"] == 24, text


def test_what_fails_is_counted_by_its_reason(server: Server) -> None:
    server.says = {
        1: b"HTTP/1.1 500 Internal Server Error\r\n\r\n" + b'{"error": {"message": "EngineCore died"}}',
        2: b"HTTP/1.1 200 OK\r\n\r\n" + b'data: {"error": {"message": "bad luck"}}\n\n',
        3: b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n",
        4: b"HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n",
        5: b"nonsense\r\n\r\n",
    }
    code, rows, text = run(server, levels=[1], requests_per_level=8)
    (level,) = (row for row in rows if row["event"] == "level")
    assert (code, level["requests"], level["errors"]) == (0, 8, 5), text
    assert {
        "HTTP 500: EngineCore died",
        "error in the stream: bad luck",
        "the stream broke off",
        "no token in the answer",
    } <= set(level["error_reasons"])


def test_an_engine_that_refuses_ignore_eos_is_asked_without(server: Server) -> None:
    server.says = {0: b"HTTP/1.1 400 Bad Request\r\n\r\n" + b'{"error": {"message": "extra field ignore_eos"}}'}
    code, rows, text = run(server, levels=[1], requests_per_level=1)
    assert code == 0 and "ignore_eos" not in server.asked[-1], text
    assert any(row["event"] == "note" and "ignore_eos" in row["text"] for row in rows)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b'HTTP/1.1 401 Unauthorized\r\n\r\n{"error": "Unauthorized"}', "unauthorized"),
        (b'HTTP/1.1 404 Not Found\r\n\r\n{"error": {"message": "The model `m` does not exist."}}', "smoke_failed"),
    ],
)
def test_when_the_first_request_fails_nothing_is_measured(server: Server, answer: bytes, reason: str) -> None:
    server.says = {0: answer, 1: answer}
    code, _, text = run(server, levels=[1])
    assert code == 1 and f"sparkweb: {reason}: the first request failed: " in text and "Traceback" not in text


def test_nobody_listens() -> None:
    server = Server()
    server.port = 1
    code, _, text = run(server, levels=[1])
    assert code == 1 and "sparkweb: not_listening" in text and "Traceback" not in text


def test_its_key_goes_by_the_environment(server: Server) -> None:
    code, _, text = run(
        server, levels=[1], requests_per_level=1, key_variable="VLLM_API_KEY", environment={"VLLM_API_KEY": "s3cret"}
    )
    assert code == 0 and set(server.keys) == {"Authorization: Bearer s3cret"} and "s3cret" not in text


def test_told_to_end_it_tells_what_it_has(server: Server) -> None:
    given = {
        "url": f"http://127.0.0.1:{server.port}",
        "model": "m",
        "levels": [2, 4],
        "output_tokens": 12,
        "requests_per_level": 5000,
        "sample_s": 0,
    }
    process = subprocess.Popen([sys.executable, "-u", str(FILE), json.dumps(given)], stdout=subprocess.PIPE)
    until = time.monotonic() + 20
    while len(server.asked) < 12 and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    found = measured.read(out.decode().splitlines())
    assert process.returncode == 128 + signal.SIGTERM and found.partial and found.ended
    assert found.levels[0]["requests"] >= 5 and found.levels[0]["aggregate_tok_s"] > 0


# Arithmetic


def request(began: float, *tokens: float, ended: float, usage: int | None = None) -> loadgen.Request:
    made = loadgen.Request(began)
    for at in tokens:
        made.token(at)
    made.ended, made.output_tokens, made.input_tokens = ended, usage, 10
    return made


def test_figures_of_a_level_with_known_times() -> None:
    level = loadgen.Level("closed", 2)
    level.began = 100.0
    level.good = [
        request(100.0, 100.5, 100.6, 100.7, 100.8, 100.9, ended=101.0),
        request(100.0, 101.0, 101.2, 101.4, 101.6, 101.8, ended=102.0),
    ]
    level.failed("HTTP 500: x")
    told = level.told()
    assert (told["requests"], told["errors"], told["error_reasons"]) == (3, 1, {"HTTP 500: x": 1})
    assert (told["seconds"], told["output_tokens"], told["aggregate_tok_s"]) == (2.0, 10, 5.0)
    assert (told["ttft_s"]["p50"], told["ttft_s"]["p99"], told["ttft_s"]["mean"]) == (0.5, 1.0, 0.75)
    assert (told["per_request_tok_s"]["p50"], told["per_request_tok_s"]["p99"]) == (
        pytest.approx(5.0),
        pytest.approx(10.0),
    )
    assert told["itl_s"]["p90"] == pytest.approx(0.2) and told["e2e_s"]["mean"] == 1.5


def test_a_request_of_several_tokens_an_event() -> None:
    one = request(0.0, 0.5, 1.0, ended=1.0, usage=9)  # two events, nine tokens: a draft was accepted
    assert one.tokens == 9 and one.tok_s == pytest.approx(16.0)
    assert request(0.0, 0.5, ended=1.0).tok_s is None


@pytest.mark.parametrize(
    ("count", "p50", "p90", "p99"), [(1, 1, 1, 1), (2, 1, 2, 2), (10, 5, 9, 10), (100, 50, 90, 99)]
)
def test_quantiles_are_of_the_nearest_rank(count: int, p50: int, p90: int, p99: int) -> None:
    told = loadgen.quantiles([float(n) for n in range(1, count + 1)][::-1])
    assert (told["p50"], told["p90"], told["p99"]) == (p50, p90, p99)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 1000])
def test_chunks_in_any_cutting(size: int) -> None:
    whole = b"5\r\nhello\r\n1;x=y\r\n \r\n6\r\nworld!\r\n0\r\n\r\n"
    body = loadgen.Body(True)
    assert b"".join(body.feed(whole[at : at + size]) for at in range(0, len(whole), size)) == b"hello world!"
    assert body.over
    assert loadgen.Body(False).feed(b"as it is") == b"as it is"


def test_what_a_node_printed_is_no_danger() -> None:
    lines = [
        "noise", '{"event": "level", "requests": 2, "errors": 0, "ttft_s": "no"}', '{"event"', '{"event": 5}', '{"event": "tick"}',
        '{"event": "metrics", "when": "later", "values": {}}', '{"event": "node", "power_w": "x"}', "[" * 100_000,
    ]  # fmt: skip
    found = measured.read(lines)
    assert len(found.levels) == 1 and found.levels[0]["ttft_s"] == {} and found.tick == {}
