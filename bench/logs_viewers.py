"""Viewers of benchmark `logs`: sockets as the pages open them, in a process of their own.

    python -m bench.logs_viewers     one JSON object on standard input: url, cookie, origin, viewers, run, lines, prefix

Each follows the run until it has the line `lines` (0: only the first frame). Checks that no number is missing or comes twice.
Prints a line once all are connected, and at the end one JSON object. A frame's first and last line are timed: the stamp that the
node printed against now.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any

from websockets.asyncio.client import connect

NUMBER = re.compile(r'\{"n":(\d+),')
STAMP = re.compile(r'"text":"(\d{10}\.\d{6}) ')
PATIENCE_S = 60.0


class Viewer:
    def __init__(self) -> None:
        self.last, self.gaps, self.lines, self.bytes = 0, 0, 0, 0
        self.first_frame_s = 0.0
        self.samples: list[tuple[float, float]] = []  # seconds behind, lines that it stands for

    async def watch(self, asked: dict[str, Any], all_there: asyncio.Barrier) -> None:
        began = time.perf_counter()
        headers = {"Cookie": asked["cookie"]}
        async with connect(asked["url"], origin=asked["origin"], additional_headers=headers, max_size=None) as socket:
            await socket.send(json.dumps({"op": "log", "run": asked["run"], "after": asked.get("after")}))
            async with asyncio.timeout(PATIENCE_S):
                await all_there.wait()
            while True:
                async with asyncio.timeout(PATIENCE_S):
                    text = await socket.recv()
                self._take(str(text))
                self.first_frame_s = self.first_frame_s or time.perf_counter() - began
                if self.last >= asked["lines"]:
                    return

    def _take(self, text: str) -> None:
        now = time.time()
        self.bytes += len(text)
        head = text.find('"lines":[{')
        if head < 0:
            return
        first = NUMBER.search(text, head)
        assert first is not None
        tail = text.rfind('{"n":')
        last = NUMBER.match(text, tail)
        assert last is not None
        count = text.count('{"n":', head)
        start, end = int(first[1]), int(last[1])
        if (self.last and start != self.last + 1) or end - start + 1 != count:
            self.gaps += 1
        self.last, self.lines = end, self.lines + count
        for found in (STAMP.search(text, head), STAMP.search(text, tail)):
            if found:
                self.samples.append((now - float(found[1]), count / 2))


async def watched(asked: dict[str, Any]) -> dict[str, Any]:
    viewers = [Viewer() for _ in range(asked["viewers"])]
    all_there = asyncio.Barrier(len(viewers) + 1)

    async def say() -> None:
        await all_there.wait()
        print("all there", flush=True)

    told = asyncio.create_task(say())
    failures = []
    for result in await asyncio.gather(*(one.watch(asked, all_there) for one in viewers), return_exceptions=True):
        if isinstance(result, BaseException):
            failures.append(repr(result))
    told.cancel()
    return {
        "failures": failures,
        "gaps": sum(one.gaps for one in viewers),
        "lines": min(one.lines for one in viewers),
        "mib": sum(one.bytes for one in viewers) / 2**20,
        "first_frame_s": [one.first_frame_s for one in viewers],
        "samples": [sample for one in viewers for sample in one.samples],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(watched(json.loads(sys.stdin.read())))), flush=True)
