"""Lines reach viewers whoever dies in between: the worker before it rings, Redis, a viewer that stops reading."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async

from apps.doorbell import ring as doorbell
from apps.live import hub as hubs
from apps.people.models import User
from apps.runs import recorder as recording
from apps.runs.models import Run
from apps.runs.recorder import Recorder
from tests.live.conftest import cookie_of, page, redis_program
from tests.openssh import free_port

ROOT = Path(__file__).resolve().parents[2]


def played(act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async_to_sync(act)()


def write(recorder: Recorder, key: str, text: str) -> None:
    recorder.output(key, offset=recorder.position(key), data=text.encode(), ended=False)


async def lines_until(socket: Any, last: int, within_s: float = 20.0) -> list[int]:
    seen: list[int] = []
    while not seen or seen[-1] < last:
        message = await socket.hear(within_s)
        if message["type"] in ("lines", "snapshot"):
            seen += [line["n"] for line in message["lines"]]
    return seen


def test_a_worker_that_dies_before_it_rings_costs_a_moment(
    run: Run, recorder: Recorder, person: User, bell: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = cookie_of(person)

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="log", run=run.pk)
        await socket.hear_type("snapshot")
        monkeypatch.setattr(recording, "ring", lambda *_: None)
        await sync_to_async(write)(recorder, "a", "stored, and nobody was told\n")
        assert await lines_until(socket, 1) == [1]
        await socket.disconnect()

    played(act)


def test_a_ring_that_came_too_soon_is_rung_later(run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[tuple[str, int]] = []
    monkeypatch.setattr(recording, "ring", lambda kind, identity: rung.append((kind, identity)))
    write(recorder, "a", "one\n")
    write(recorder, "b", "two\n")
    assert rung == [("log", run.pk)]
    recorder.cancel_asked()  # every round of the executor
    assert rung == [("log", run.pk)] * 2
    recorder.cancel_asked()
    assert len(rung) == 2


class Server:
    """A Redis that is killed and comes back at the same place, empty."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"unix://{folder / 's'}"
        self.start()

    def start(self) -> None:
        words = [
            redis_program(),
            "--port",
            "0",
            "--unixsocket",
            str(self.folder / "s"),
            "--save",
            "",
            "--dir",
            str(self.folder),
        ]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                redis.Redis.from_url(self.url).ping()
                return
            except redis.RedisError:
                time.sleep(0.05)
        raise AssertionError("Redis does not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def server(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server(tmp_path)
    settings.REDIS_URL = made.url
    monkeypatch.setattr(doorbell, "_client", None)
    monkeypatch.setattr(doorbell, "_quiet_until", 0.0)
    yield made
    made.kill()


def test_redis_restarts_in_a_flood(run: Run, recorder: Recorder, person: User, server: Server) -> None:
    cookie = cookie_of(person)

    def flood(start: int) -> None:
        for n in range(start, start + 10):
            write(recorder, "a", "".join(f"line {n} {m}\n" for m in range(100)))

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="log", run=run.pk, after=0)
        await sync_to_async(flood)(0)
        await sync_to_async(server.kill)()
        await sync_to_async(flood)(10)
        seen = await lines_until(socket, 2000)
        await sync_to_async(server.start)()
        await sync_to_async(flood)(20)
        seen += await lines_until(socket, 3000)
        assert seen == list(range(1, 3001))
        until = time.monotonic() + 20
        while not hubs.hub().connected and time.monotonic() < until:
            await asyncio.sleep(0.05)
        assert hubs.hub().connected  # it hears again
        await socket.disconnect()

    played(act)


def test_viewers_at_the_same_place_share_reads_and_these_are_bounded(
    run: Run, recorder: Recorder, person: User, bell: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = cookie_of(person)
    reads: list[Any] = []
    whole = hubs.runs_lines.lines
    monkeypatch.setattr(hubs.runs_lines, "lines", lambda *a, **k: reads.append(k) or whole(*a, **k))
    monkeypatch.setattr(hubs, "SHARED_BYTES", 1_500_000)
    write(recorder, "a", "".join(f"line {n:05d} {'x' * 200}\n" for n in range(10_000)))

    async def act() -> None:
        sockets = [page(cookie) for _ in range(8)]
        for socket in sockets:
            await socket.connect()
            await socket.say(op="log", run=run.pk, after=0)
        found = await asyncio.gather(*(lines_until(socket, 10_000) for socket in sockets))
        assert all(one == list(range(1, 10_001)) for one in found)
        held = [task.result().size for _, task in hubs.hub()._reads.values() if task.done()]
        assert sum(held[:-1]) <= 1_500_000
        for socket in sockets:
            await socket.disconnect()

    played(act)
    assert len([one for one in reads if one.get("after") is not None]) < 8 * 11  # not everybody for themselves


SEED = """
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from apps.people.models import User
from apps.runs.models import Run, Step
from apps.runs.recorder import Recorder
from tests.live.conftest import cookie_of
run = Run.objects.create(code="c0de", story="probe", state="running", lease_token="t", actor_kind="person", actor_name="a", actor_role="admin")
Step.objects.create(run=run, stage=0, ordinal=0, key="a", title="A", kind="job", rank=0)
recorder = Recorder(run, "t")
for n in range(40):
    data = b"".join(b"line %07d %s\\n" % (n * 10000 + m, b"x" * 100) for m in range(10000))
    recorder.output("a", offset=recorder.position("a"), data=data, ended=False)
print(run.pk, cookie_of(User.objects.create(name="vi", role="viewer")).decode())
"""


def test_a_viewer_that_stops_reading_holds_no_memory(tmp_path: Path, redis_url: str) -> None:
    """The real server in a process of its own, 45 MiB of log, and a viewer that asks for all of it and reads nothing for a while."""
    from websockets.sync.client import connect

    port = free_port()
    environment = {
        **os.environ, "VAR": str(tmp_path), "PORT": str(port), "ORIGINS": f"http://127.0.0.1:{port}", "REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "sparkweb.settings",
    }  # fmt: skip
    seeded = subprocess.run(
        [sys.executable, "-c", SEED], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert seeded.returncode == 0, seeded.stderr
    run, cookie = seeded.stdout.split()
    words = [
        "-m",
        "uvicorn",
        "sparkweb.asgi:application",
        "--port",
        str(port),
        "--lifespan",
        "off",
        "--log-level",
        "warning",
    ]
    server = subprocess.Popen([sys.executable, *words, "--ws-per-message-deflate", "false"], env=environment, cwd=ROOT)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2)
                break
            except OSError:
                time.sleep(0.1)
        with connect(
            f"ws://127.0.0.1:{port}/ws/live", origin=f"http://127.0.0.1:{port}", additional_headers={"Cookie": cookie},
            max_size=None, max_queue=1, compression=None,
        ) as socket:  # fmt: skip
            socket.send(json.dumps({"op": "log", "run": int(run), "after": 0}))
            seen = [line["n"] for line in json.loads(socket.recv(20))["lines"]]
            time.sleep(2)
            before = resident(server.pid)
            time.sleep(6)
            assert resident(server.pid) - before < 5 * 1024  # kB
            while seen[-1] < 400_000:
                message = json.loads(socket.recv(20))
                seen += [line["n"] for line in message.get("lines", [])]
            assert seen == list(range(1, 400_001))
    finally:
        server.terminate()
        server.wait(20)


def resident(pid: int) -> int:
    """kB"""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))
