"""What people meet at a server of its own: a database that is away, a proxy in front, characters no database holds."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.conf import settings as configured
from django.test import Client

from apps.people.models import User
from scripts import real_nodes_door
from tests.live.conftest import redis_url
from tests.production.conftest import Databases, Installation
from tests.production.serving import free_port, served
from tests.production.visit import csrf_of
from tests.web.conftest import browser_of

__all__ = ["redis_url"]
MINE = "192.0.2.1"


class Way:
    """A loopback port that leads to the database until it is closed; it opens again at the same number."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, str(port))
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        with socket.create_server(("127.0.0.1", self.port)) as listener:
            self.port = int(listener.getsockname()[1])
            listener.set_inheritable(True)
            words = [sys.executable, real_nodes_door.__file__, str(listener.fileno()), *self.target]
            self.process = subprocess.Popen(words, pass_fds=[listener.fileno()])

    def close(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def way(databases: Databases) -> Iterator[Way]:
    if databases.kind != "postgresql":
        pytest.skip("a file is never away")
    place = urlsplit(os.environ["DATABASE_URL"])
    found = Way(place.hostname or "127.0.0.1", place.port or 5432)
    yield found
    found.close()


def test_a_database_that_is_away_is_said_and_comes_back(
    databases: Databases, way: Way, tmp_path: Path, redis_url: str
) -> None:
    place = databases.empty("away")
    port = free_port()
    url = urlsplit(place.settings["DATABASE_URL"])
    through = url._replace(netloc=f"{url.username}@127.0.0.1:{way.port}").geturl()
    place.settings |= {"PORT": str(port), "REDIS_URL": redis_url, "DATABASE_URL": through}
    place.manage("serve", "prepare")
    place.manage("person", "add", "Ana", "--role", "admin")
    token = place.printed("token", "robot", "--role", "viewer")
    with served(place, tmp_path / "log"), _browser(port) as anyone:
        bearer = {"Authorization": f"Bearer {token}"}
        assert anyone.get("/api/v1/nodes", headers=bearer).status_code == 200
        assert anyone.get("/sign-in").status_code == 200
        way.close()
        for path in ("/", "/sign-in/nonsense", "/nodes"):
            answer = anyone.get(path, headers={"Cookie": f"sparkweb_{port}=somebodys-session-key"})
            assert answer.status_code == 503 and "does not answer" in answer.text and "/readyz" in answer.text, path
            assert "Traceback" not in answer.text and "psycopg" not in answer.text
        answer = anyone.get("/api/v1/nodes", headers=bearer)
        assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/problem+json")
        assert answer.json()["reason"] == "database" and answer.json()["remedy"]
        assert anyone.get("/healthz").status_code == 200
        answer = anyone.get("/readyz")
        assert answer.status_code == 503 and answer.json()["database"]["ok"] is False
        told = (tmp_path / "log").read_text()
        assert "Traceback" not in told and re.search(r"ERROR django.request: .*/nodes \(OperationalError: ", told), told
        way.open()
        until = time.monotonic() + 30
        while (answer := anyone.get("/api/v1/nodes", headers=bearer)).status_code != 200:
            assert time.monotonic() < until, answer.text
            time.sleep(0.2)


def _browser(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://localhost:{port}", trust_env=False, timeout=20)


@pytest.mark.parametrize(("proxies", "alone"), [("127.0.0.1", True), ("", False)])
def test_behind_a_proxy_failures_count_for_who_made_them(
    tmp_path: Path, redis_url: str, proxies: str, alone: bool
) -> None:
    port = free_port()
    place = Installation(tmp_path / "v", {"PORT": str(port), "PROXIES": proxies, "REDIS_URL": redis_url})
    place.manage("serve", "prepare")
    place.manage("person", "add", "Ana", "--role", "viewer")
    with served(place, tmp_path / "log"):
        statuses = [_failed(port, MINE) for _ in range(6)]
        assert statuses[0] == 403 and statuses[-1] == 429
        assert _failed(port, "192.0.2.2") == (403 if alone else 429)
        # What a client claims itself stands to the left of what the proxy saw.
        assert _failed(port, f"203.0.113.9, {MINE}") == 429
    told = place.python(
        "from apps.audit.models import Entry; print(*sorted(set(Entry.objects.filter(outcome='denied')"
        ".values_list('address', flat=True))))"
    )
    assert told == (f"{MINE} 192.0.2.2" if alone else "127.0.0.1")


def _failed(port: int, address: str) -> int:
    with _browser(port) as browser:
        browser.headers["X-Forwarded-For"] = address
        token = csrf_of(browser.get("/sign-in").text)
        fields = {"csrfmiddlewaretoken": token, "name": "Ana", "password": "wrong"}
        return browser.post("/sign-in", data=fields, headers={"Origin": f"http://localhost:{port}"}).status_code


@pytest.fixture
def admin(db: None) -> Client:
    return browser_of(User.objects.create(name="root", role="admin"))


PAGES = ("/settings/people?find=%00", "/nodes?name=a%00b", "/deployments?name=%00", "/audit?object=%00")


@pytest.mark.parametrize("path", [*PAGES, "/recipes?page=%00", "/sign-in?next=%00", "/?%00=1"])
def test_a_nul_character_is_a_bad_request(admin: Client, path: str) -> None:
    answer = admin.get(path)
    assert answer.status_code == 400 and "NUL character" in answer.content.decode()


@pytest.mark.parametrize("path", ["/recipes/%00", "/sign-in/a%00b", "/%00"])
def test_nothing_is_at_an_address_with_a_nul_character(admin: Client, path: str) -> None:
    assert admin.get(path).status_code == 404


def test_a_nul_character_in_a_form_or_a_cookie(admin: Client) -> None:
    answer = admin.post("/sign-in", {"name": "a\0b", "password": "wrong"})
    assert answer.status_code == 400 and "NUL character" in answer.content.decode()
    answer = admin.get("/api/v1/nodes?name=%00")
    assert answer.status_code == 422 and answer.json()["field"] == "name"
    odd = Client().get("/nodes", headers={"cookie": f"{configured.SESSION_COOKIE_NAME}=0123456789\0abc"})
    assert odd.status_code == 302  # nobody's session: to the sign-in


@pytest.mark.parametrize(
    ("origins", "banner"),
    [
        (("http://sparkweb.example:8000",), True),
        (("http://127.0.0.1:8000", "http://localhost:8000"), False),
        (("https://sparkweb.example",), False),  # a proxy ends TLS, so the request itself is plain
    ],
)
def test_the_banner_goes_by_the_origins(admin: Client, settings: Any, origins: tuple[str, ...], banner: bool) -> None:
    settings.REACH = replace(settings.REACH, origins=origins)
    assert ("Plain HTTP" in admin.get("/").content.decode()) is banner


def test_the_demo_refuses_a_database_that_up_refuses(tmp_path: Path, databases: Databases) -> None:
    place = databases.empty("broken")
    place.settings |= {"PORT": str(free_port())}
    place.manage("serve", "prepare")
    place.python("from apps.inventory import services as s; from apps.audit.actor import Actor; "
                 "s.make_credential(Actor('system', None, 'test', 'admin'), name='field')")  # fmt: skip
    place.settings["SPARKWEB_KEY"] = "the key of somebody else"
    for command in (["up"], ["demo", "--once"]):
        said = place.manage(*command, fails=True)
        assert "does not open 1 of 1" in said, command
    assert '"state": "failed"' in said.splitlines()[-3] or '"state": "failed"' in said
