"""Load for an OpenAI-compatible API, and what it did, as JSON lines. Runs on the node: Python 3.8 or newer, nothing else.

    python3 loadgen.py '{"url": "http://127.0.0.1:8000", "model": "m", "levels": [1, 2, 4]}'

`url` is where the API is; every other setting stands in DEFAULTS. A key of the API is taken from the environment variable that
`key_variable` names. Each line is an object with `event`: begin, note, metrics, tick (every two seconds), node, level, end. Times are
seconds. SIGTERM ends it after the level that runs was told as far as it came (`partial`).
"""

# mypy: ignore-errors

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from urllib.parse import urlsplit

DEFAULTS = {
    "mode": "closed",  # closed: as many requests at a time as the level says; open: the level is requests a second
    "levels": [1, 2, 4, 8, 16],
    "prompt_tokens": 512,
    "output_tokens": 128,
    "requests_per_level": 0,  # 0: four a place in a closed loop, ten seconds' worth in an open one, at least 8
    "seconds_per_level": 0,  # 0: until all requests are done; else no request begins later
    "warmup": 1,
    "seed": 1,
    "ignore_eos": True,
    "prefix_proof": True,  # no two prompts begin alike, so that a prefix cache helps none
    "endpoint": "chat",  # chat or completions
    "timeout_s": 600,  # of one request
    "key_variable": "",
    "sample_s": 5,  # between two looks at power, temperature and clock; 0: none
}
TICK_S = 2.0
MOST_OPEN = 512  # requests at a time in an open loop; a generator that waits is said so
KEPT_METRICS = (
    "prompt_tokens_total", "generation_tokens_total", "num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
    "kv_cache_usage_perc", "gpu_cache_usage_perc", "request_success_total", "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total", "cache_hit_rate", "token_usage", "num_running_reqs", "requests_processing",
    "prompt_tokens_seconds", "predicted_tokens_seconds", "tokens_predicted_total",
)  # fmt: skip
SYLLABLES = (
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "ki",
    "lo",
    "mu",
    "ne",
    "pa",
    "ri",
    "so",
    "tu",
    "ve",
    "wi",
    "xa",
    "yo",
    "zu",
    "en",
)


def say(event, **values):
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


def end_with(reason, words):
    """The last line says a reason by its name, as sparkweb reads it from any job."""
    sys.stdout.write(f"sparkweb: {reason}: {words}\n")
    sys.stdout.flush()


class Failed(Exception):
    """A request that brought no whole answer; its text is the reason, alike for alike failures."""


class Request:
    """What one request did. Times are of time.perf_counter."""

    __slots__ = ("began", "ended", "events", "first", "gaps", "input_tokens", "last", "output_tokens")

    def __init__(self, began):
        self.began, self.first, self.last, self.ended = began, None, None, None
        self.gaps, self.events, self.input_tokens, self.output_tokens = [], 0, None, None

    def token(self, now):
        self.events += 1
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now

    @property
    def tokens(self):
        return self.events if self.output_tokens is None else self.output_tokens

    @property
    def tok_s(self):
        """Tokens a second after the first one; None for less than two."""
        if self.first is None or self.tokens < 2 or self.last <= self.first:
            return None
        return (self.tokens - 1) / (self.last - self.first)


class Body:
    """Takes the chunks of a chunked answer apart, in any cutting; plain bodies pass."""

    def __init__(self, chunked):
        self.chunked, self.held, self.left, self.over = chunked, b"", 0, False

    def feed(self, data):
        if not self.chunked:
            return data
        made, data = [], self.held + data
        at = 0
        while not self.over:
            if self.left > 0:
                piece = data[at : at + self.left]
                made.append(piece)
                at += len(piece)
                self.left -= len(piece)
                if self.left:
                    break
                self.left = -2  # the line end behind the chunk
            if self.left < 0:
                if len(data) - at < -self.left:
                    break
                at += -self.left
                self.left = 0
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            size = int(data[at:end].split(b";")[0] or b"0", 16)
            at = end + 2
            if size == 0:
                self.over = True
            else:
                self.left = size
        self.held = data[at:]
        return b"".join(made)


class Engine:
    """One API and how it is asked."""

    def __init__(self, settings):
        self.settings = settings
        parts = urlsplit(settings["url"])
        self.host, self.port, self.root = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        key = os.environ.get(settings["key_variable"] or "", "")
        self.headers = f"Host: {self.host}:{self.port}\r\nConnection: close\r\n"
        if key:
            self.headers += f"Authorization: Bearer {key}\r\n"
        self.extra = {"ignore_eos": True} if settings["ignore_eos"] else {}
        self.random = random.Random(settings["seed"])
        self.words_a_token = 0.6
        self.asked = 0

    def prompt(self):
        """About `prompt_tokens` long; with `prefix_proof` it begins like no other."""
        count = max(1, int(self.settings["prompt_tokens"] * self.words_a_token))
        draw = self.random if self.settings["prefix_proof"] else random.Random(self.settings["seed"])
        words = ["".join(draw.choice(SYLLABLES) for _ in range(1 + draw.randrange(3))) for _ in range(count)]
        self.asked += 1
        return " ".join(words)

    def body(self, output_tokens=None):
        most = output_tokens or self.settings["output_tokens"]
        asked = {"model": self.settings["model"], "max_tokens": most, "stream": True, "temperature": 0.0, **self.extra}
        asked["stream_options"] = {"include_usage": True}
        text = self.prompt()
        if self.settings["endpoint"] == "chat":
            return "/v1/chat/completions", dict(asked, messages=[{"role": "user", "content": text}])
        return "/v1/completions", dict(asked, prompt=text)

    async def get(self, path):
        reader, writer = await asyncio.wait_for(asyncio.open_connection(self.host, self.port), 10)
        try:
            writer.write(f"GET {self.root}{path} HTTP/1.1\r\n{self.headers}\r\n".encode())
            data = await asyncio.wait_for(reader.read(-1), 20)
        finally:
            writer.close()
        head, _, rest = data.partition(b"\r\n\r\n")
        body = Body(b"chunked" in head.lower())
        return int(head.split(b" ", 2)[1]), body.feed(rest)

    async def ask(self, output_tokens=None):
        """One streamed request. Raises Failed."""
        path, asked = self.body(output_tokens)
        data = json.dumps(asked).encode()
        request = Request(time.perf_counter())
        try:
            await asyncio.wait_for(self._ask(path, data, request), self.settings["timeout_s"])
        except TimeoutError:
            raise Failed("no whole answer within {:g} s".format(self.settings["timeout_s"])) from None
        except ConnectionRefusedError:
            raise Failed("connection refused") from None
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as problem:
            raise Failed(f"{type(problem).__name__}: {str(problem)[:120]}") from None
        request.ended = time.perf_counter()
        if not request.events:
            raise Failed("no token in the answer")
        return request

    async def _ask(self, path, data, request):
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        try:
            head = "POST {}{} HTTP/1.1\r\n{}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n"
            writer.write(head.format(self.root, path, self.headers, len(data)).encode() + data)
            head = await reader.readuntil(b"\r\n\r\n")
            status, body = int(head.split(b" ", 2)[1]), Body(b"transfer-encoding: chunked" in head.lower())
            if status != 200:
                raise Failed(refusal(status, body.feed(await reader.read(1 << 16))))
            await self._follow(reader, body, request)
        finally:
            writer.close()

    async def _follow(self, reader, body, request):
        held, done = b"", False
        while not done:
            data = await reader.read(1 << 16)
            now = time.perf_counter()
            if not data:
                break
            *lines, held = (held + body.feed(data)).split(b"\n")
            for line in lines:
                if line[:5] != b"data:":
                    continue
                line = line[5:].strip()
                if line == b"[DONE]":
                    done = True
                    break
                self._event(json.loads(line), request, now)
        if not done:
            raise Failed("the stream broke off")

    @staticmethod
    def _event(event, request, now):
        if event.get("error"):
            error = event["error"]
            raise Failed(
                "error in the stream: {}".format((error.get("message") if isinstance(error, dict) else error) or "?")[
                    :160
                ]
            )
        usage = event.get("usage")
        if usage:
            request.input_tokens, request.output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        choices = event.get("choices")
        if not choices:
            return
        said = choices[0].get("delta") or choices[0]
        if (
            said.get("content")
            or said.get("reasoning")
            or said.get("reasoning_content")
            or said.get("text")
            or said.get("tool_calls")
        ):
            request.token(now)


def refusal(status, body):
    try:
        said = json.loads(body)
        error = said.get("error", said)
        words = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        words = body.decode("utf-8", "replace")
    return f"HTTP {status}: {str(words)[:160]}"


def quantiles(values):
    """p50, p90, p99 (nearest rank) and the mean; all None for no values."""
    if not values:
        return {"p50": None, "p90": None, "p99": None, "mean": None}
    ordered, count = sorted(values), len(values)
    made = {f"p{p}": ordered[max(0, -(-p * count // 100) - 1)] for p in (50, 90, 99)}
    return {name: round(value, 5) for name, value in dict(made, mean=sum(ordered) / count).items()}


class Level:
    """What came of one level."""

    def __init__(self, mode, value):
        self.mode, self.value = mode, value
        self.good, self.reasons, self.running = [], {}, 0
        self.began = time.perf_counter()

    def failed(self, why):
        self.reasons[why] = self.reasons.get(why, 0) + 1

    def told(self, partial=False):
        good, seconds = self.good, time.perf_counter() - self.began
        if good and not partial:
            seconds = max(one.ended for one in good) - self.began
        tokens = sum(one.tokens for one in good)
        known = [one.input_tokens for one in good if one.input_tokens is not None]
        errors = sum(self.reasons.values())
        rates = [one.tok_s for one in good if one.tok_s is not None]
        made = {
            "concurrency": int(self.value) if self.mode == "closed" else None,
            "rate": float(self.value) if self.mode == "open" else None,
            "requests": len(good) + errors,
            "errors": errors,
            "error_reasons": self.reasons,
            "seconds": round(seconds, 4),
            "input_tokens": sum(known) if known else None,
            "output_tokens": tokens,
            "aggregate_tok_s": round(tokens / seconds, 3) if seconds > 0 and good else None,
            "per_request_tok_s": quantiles(rates),
            "ttft_s": quantiles([one.first - one.began for one in good]),
            "itl_s": quantiles([gap for one in good for gap in one.gaps]),
            "e2e_s": quantiles([one.ended - one.began for one in good]),
        }
        if partial:
            made["partial"] = True
        return made


class Load:
    def __init__(self, settings):
        self.settings, self.engine = settings, Engine(settings)
        self.level, self.stopped = None, False

    async def run(self):
        say("begin", **{name: self.settings[name] for name in (*DEFAULTS, "model")})
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, self.stop, name)
        helpers = [asyncio.ensure_future(self.ticks())]
        if self.settings["sample_s"] and shutil.which("nvidia-smi"):
            helpers.append(asyncio.ensure_future(self.samples()))
        try:
            await self.warm_up()
            await self.metrics("before")
            for value in self.settings["levels"]:
                await self.play(value)
            await self.metrics("after")
        finally:
            for one in helpers:
                one.cancel()
        say("end")

    def stop(self, signal_number):
        """The level that runs is told as far as it came, and that is the end: a person wants it to stop now."""
        if self.level is not None:
            say("level", **self.level.told(partial=True))
        say("end", stopped=True)
        os._exit(128 + signal_number)

    async def warm_up(self):
        """Also finds how many words make a token, and whether the engine minds `ignore_eos`."""
        for number in range(max(1, self.settings["warmup"])):
            words = max(1, int(self.settings["prompt_tokens"] * self.engine.words_a_token))
            try:
                request = await self.engine.ask(min(16, self.settings["output_tokens"]))
            except Failed as problem:
                if number == 0 and self.engine.extra and str(problem).startswith(("HTTP 400", "HTTP 422")):
                    self.engine.extra = {}
                    say(
                        "note",
                        text=f"The engine refuses ignore_eos ({problem}); answers may be shorter than asked for.",
                    )
                    try:
                        request = await self.engine.ask(min(16, self.settings["output_tokens"]))
                    except Failed as again:
                        raise SystemExit(self.refused(again)) from None
                else:
                    raise SystemExit(self.refused(problem)) from None
            if request.input_tokens and number == 0:
                overhead = min(30, request.input_tokens // 4)  # the template around the words
                self.engine.words_a_token = max(0.05, min(2.0, words / max(1, request.input_tokens - overhead)))

    @staticmethod
    def refused(problem):
        """The last line says the reason by its name, as sparkweb reads it from any job."""
        words = str(problem)
        reason = "unauthorized" if "HTTP 401" in words or "HTTP 403" in words else "smoke_failed"
        reason = "not_listening" if "refused" in words and "HTTP" not in words else reason
        end_with(reason, f"the first request failed: {words}")
        return 1

    async def metrics(self, when):
        try:
            status, body = await self.engine.get("/metrics")
        except (TimeoutError, OSError, ValueError, IndexError):
            return
        found = {}
        for line in body.decode("utf-8", "replace").splitlines() if status == 200 else ():
            name, _, value = line.rpartition(" ")
            name = name.split("{")[0]
            if line[:1] != "#" and name.split(":")[-1] in KEPT_METRICS:
                try:
                    found[name] = found.get(name, 0.0) + float(value)
                except ValueError:
                    continue
        if found:
            say("metrics", when=when, values=found)

    async def ticks(self):
        _last, _began = 0, time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            level = self.level
            if level is not None:
                done = len(level.good) + sum(level.reasons.values())
                tokens = sum(one.tokens for one in level.good)
                seconds = time.perf_counter() - level.began
                say(
                    "tick",
                    level=level.value,
                    done=done,
                    running=level.running,
                    seconds=round(seconds, 1),
                    tok_s=round(tokens / seconds, 1),
                )

    async def samples(self):
        command = ("nvidia-smi", "--query-gpu=power.draw,temperature.gpu,clocks.sm", "--format=csv,noheader,nounits")
        while True:
            await asyncio.sleep(self.settings["sample_s"])
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
                out, _ = await asyncio.wait_for(process.communicate(), 10)
            except (TimeoutError, OSError):
                continue
            rows = [[number(word) for word in line.split(",")] for line in out.decode("utf-8", "replace").splitlines()]
            rows = [row for row in rows if len(row) == 3]
            if rows:
                power = [row[0] for row in rows if row[0] is not None]
                heat = [row[1] for row in rows if row[1] is not None]
                clock = [row[2] for row in rows if row[2] is not None]
                say(
                    "node",
                    power_w=sum(power) if power else None,
                    temperature_c=max(heat) if heat else None,
                    clock_mhz=min(clock) if clock else None,
                )

    async def play(self, value):
        mode = self.settings["mode"]
        count = self.settings["requests_per_level"]
        if not count:
            count = max(8, int(value * (4 if mode == "closed" else 10)))
        self.level = level = Level(mode, value)
        until = level.began + self.settings["seconds_per_level"] if self.settings["seconds_per_level"] else None
        if mode == "closed":
            left = iter(range(max(count, int(value))))
            await asyncio.gather(*(self.place(level, left, until) for _ in range(int(value))))
        else:
            await self.arrive(level, value, count, until)
        self.level = None
        say("level", **level.told())
        if not level.good and level.reasons:
            end_with("smoke_failed", f"all requests failed: {next(iter(level.reasons))}")
            raise SystemExit(1)

    async def place(self, level, left, until):
        """One of the places of a closed loop: the next request begins when the last has ended."""
        for _ in left:
            if until is not None and time.perf_counter() >= until:
                return
            await self.one(level)

    async def arrive(self, level, rate, count, until):
        """Requests arrive by chance, `rate` a second, whatever became of those before."""
        draw, at, tasks, late = random.Random(self.settings["seed"]), level.began, set(), False
        for _ in range(count):
            at += draw.expovariate(rate)
            if until is not None and at >= until:
                break
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            while len(tasks) >= MOST_OPEN:
                late = True
                _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            tasks.add(asyncio.ensure_future(self.one(level)))
        if tasks:
            await asyncio.wait(tasks)
        if late:
            say("note", text=f"{MOST_OPEN} requests were open at a time; at {rate:g}/s the loop was not open any more.")

    async def one(self, level):
        level.running += 1
        try:
            level.good.append(await self.engine.ask())
        except Failed as problem:
            level.failed(str(problem))
            await asyncio.sleep(0.05)
        finally:
            level.running -= 1


def number(word):
    try:
        return float(word)
    except ValueError:
        return None  # [N/A], Not Supported


def main(words):
    settings = dict(DEFAULTS, **json.loads(words[0]))
    code = 0
    try:
        asyncio.run(Load(settings).run())
    except SystemExit as ended:
        code = ended.code or 0
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
