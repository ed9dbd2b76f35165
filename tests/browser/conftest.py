"""A real Chromium against a real server of the seeded story. State, port and Redis are this session's own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import redis_url

__all__ = ["redis_url"]
ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Site:
    """A running site; `manage` runs a line of Python inside of it (another process on the same database)."""

    url: str
    ids: dict[str, Any]
    environment: dict[str, str]
    folder: Path

    def python(self, code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-"],
            input=f"import django; django.setup()\n{code}",
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


SEED = """
import json, time
from django.core.management import call_command
call_command("migrate", verbosity=0)
from tests.web.seed import imported_recipes, past, seed
from tests.web.conftest import browser_of
from django.conf import settings
made = seed()
past(made)
imported_recipes()
cookies = {role: browser_of(person).cookies[settings.SESSION_COOKIE_NAME].value for role, person in made.people.items()}
print(json.dumps({
    "cookie": settings.SESSION_COOKIE_NAME, "cookies": cookies, "loading": made.loading.pk, "failed_run": made.failed_run.pk, "head": made.head.pk,
    "away": made.away.pk, "lost": made.lost.pk, "serving": made.serving.pk, "draft": made.draft.pk, "failed": made.failed.pk,
}))
"""

# Gives a worker's signs of life and takes no run up: the seeded story must stay as it is.
WORKER = """
import signal
import django; django.setup()
from apps.runs import heartbeat
heartbeat.start()
signal.pause()
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    port = free_port()
    environment = {
        **os.environ,
        "VAR": str(folder),
        "PORT": str(port),
        "ORIGINS": f"http://127.0.0.1:{port}",
        "REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "sparkweb.settings",
        "PYTHONPATH": str(ROOT),
        "DJANGO_ALLOW_ASYNC_UNSAFE": "1",
    }
    made = Site(f"http://127.0.0.1:{port}", {}, environment, folder)
    made.ids = json.loads(made.python(SEED).strip().splitlines()[-1])
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "uvicorn",
            "sparkweb.asgi:application",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-server-header",
            "--ws-max-size",
            "65536",
            "--timeout-graceful-shutdown",
            "2",
            "--log-level",
            "warning",
        ],
        env=environment,
        cwd=ROOT,
        stdout=(folder / "web.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{made.url}/sign-in", timeout=2)
            break
        except OSError:
            time.sleep(0.1)
    worker = subprocess.Popen([sys.executable, "-c", WORKER], env=environment, cwd=ROOT)
    yield made
    for process in (worker, server):
        process.terminate()
        process.wait(15)
    log = (folder / "web.log").read_text()
    assert "Traceback" not in log, log[-4000:]


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium here; install it: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Ends with its module: its event loop counts as running in this thread, and async tests could not have theirs."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright here; install it: make setup")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def signed_in(browser: Any, site: Site) -> Iterator[Callable[..., Any]]:
    """signed_in("operator", phone=True) is a new browser window of that person."""
    windows = []

    def make(role: str = "operator", *, phone: bool = False, **more: Any) -> Any:
        size = {"width": 390, "height": 780} if phone else {"width": 1440, "height": 900}
        window = browser.new_context(
            viewport=size, color_scheme="light", device_scale_factor=1, base_url=site.url, **more
        )
        window.add_cookies([{"name": site.ids["cookie"], "value": site.ids["cookies"][role], "url": site.url}])
        windows.append(window)
        return window

    yield make
    for window in windows:
        window.close()
