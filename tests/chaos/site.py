"""What the schedules are played on: `manage.py up` with its own VAR and ports, two pretend Sparks, two people with tokens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from apps.lab import Lab
from tests.chaos.schedule import HEAD, SECOND
from tests.stack.conftest import BASE, PYTHON, Started, forget_database, free_port, until

FACTOR, SHARDS, LOAD_S = 100.0, 6, 5.0  # everything pretended is this much faster, but a load takes about LOAD_S
SETTINGS = {"WATCH_PERIOD_S": "3"}
PEOPLE = ("ada", "bea")
OVER = ("succeeded", "failed", "cancelled", "interrupted")
SAY_AGAIN_S = 90.0  # a killed web server is back long before
WORKER = [
    *("-m", "celery", "-A", "sparkweb.celery:app", "worker", "--pool", "threads", "--concurrency", "4"),
    *("--loglevel", "warning", "--without-gossip", "--without-mingle", "--hostname", "second@%h"),
]


class Site:
    """`close` ends all of it."""

    def __init__(self, folder: Path, *, shards: int = SHARDS, load_s: float = LOAD_S) -> None:
        self.folder, self.shards, self.load_s = folder, shards, load_s
        self.stack = Started(folder / "var", "up", port=free_port(), **SETTINGS)
        self.lab: Lab | None = None
        self.second: subprocess.Popen[bytes] | None = None
        self.tokens: dict[str, str] = {}
        self.deployment = 0

    @property
    def nodes(self) -> Lab:
        assert self.lab is not None
        return self.lab

    def open(self) -> None:
        """Everything up, both nodes enrolled, one deployment made. Raises AssertionError."""
        shard_s = FACTOR * self.load_s / self.shards
        self.lab = Lab.start(self.folder / "lab", factor=FACTOR, shards=self.shards, shard_s=shard_s, timeout_s=120)
        self.stack.waits_for("serves at", 150)
        self.stack.manage("person", "add", "carl", "--role", "admin")
        for name in PEOPLE:
            self.tokens[name] = self.stack.manage("token", name, "--role", "admin").strip()
        key = self.need("credentials", {"name": "lab"})
        self.nodes.authorize(key["public_key"])
        for name, address, port, jump in (
            (HEAD, "127.0.0.1", self.nodes.nodes[HEAD].port, None),
            (SECOND, "192.168.200.13", 22, HEAD),
        ):
            body = {"name": name, "address": address, "port": port, "user": "aurora", "credential": "lab", "jump": jump}
            node = self.need("nodes", body)
            self.need(f"nodes/{node['id']}/confirm", {"sha256": self.nodes.nodes[name].host_keys[0]["sha256"]})
        self.probe()
        body = {"name": "chaos", "recipe": "qwen3.5-122b-a10b-fp8", "nodes": [HEAD, SECOND]}
        self.deployment = self.need("deployments", body)["id"]

    def close(self) -> None:
        if self.second is not None:
            self.second.kill()
            self.second.wait()
        self.stack.end()
        if self.lab is not None:
            self.lab.stop()
        forget_database(self.stack.environment["DATABASE_URL"])

    # over the API

    def ask(
        self, path: str, body: Any = None, *, who: str = "ada", key: str = "", patient_s: float = SAY_AGAIN_S
    ) -> tuple[int, Any]:
        """Status and body. While nothing answers, or the site says that it is not ready, the same is asked again."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.tokens[who]}"}
        if key:
            headers["Idempotency-Key"] = key
        data = None if body is None else json.dumps(body).encode()
        end = time.monotonic() + patient_s
        while True:
            try:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{self.stack.port}/api/v1/{path}", data=data, headers=headers
                )
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as answer:
                said = json.loads(answer.read() or b"{}")
                if answer.code != 503 or time.monotonic() > end:
                    return answer.code, said
            except (OSError, ValueError):
                if time.monotonic() > end:
                    raise
            time.sleep(0.3)

    def need(self, path: str, body: Any = None, **how: Any) -> Any:
        status, answer = self.ask(path, body, **how)
        assert status < 300, (path, status, answer)
        return answer

    def run(self, run: int) -> dict[str, Any]:
        return dict(self.need(f"runs/{run}"))

    def ended(self, run: int, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.row(run)["state"] in OVER:
                return True
            time.sleep(0.2)
        return False

    def row(self, run: int) -> dict[str, Any]:
        names = ("state", "phase", "reason", "cancel_asked_at", "evidence")
        (found,) = self.stack.rows(f"select {', '.join(names)} from runs_run where id = ?", run)
        return dict(zip(names, found, strict=True))

    def probe(self) -> None:
        """Fresh sheets of both nodes; asked again where a node did not answer in time."""
        for _ in range(5):
            asked = [
                self.need(f"nodes/{node['id']}/probe", {}, key=uuid.uuid4().hex)["run"]
                for node in self.need("nodes")["nodes"]
            ]
            if all(self.ended(run, 120) and self.row(run)["state"] == "succeeded" for run in asked):
                return
        raise AssertionError([self.row(run) for run in asked])

    def planned(self, story: str) -> dict[str, Any]:
        """The body that starts what would run now, with consent to clear what is in the way."""
        path = f"deployments/{self.deployment}/plan"
        problems = self.need(path, {"story": story})["problems"]
        clear = [{**item, "disable": False} for p in problems if p["severity"] == "consent" for item in p["clear"]]
        plan = self.need(path, {"story": story, "clear": clear})
        return {"digest": plan["digest"], "reason": "chaos", "clear": clear}

    def begin(self, story: str) -> int:
        """Start it, whatever has changed between looking and asking; the run's id."""
        for _ in range(10):
            status, answer = self.ask(
                f"deployments/{self.deployment}/{story}", self.planned(story), key=uuid.uuid4().hex
            )
            if status == 202:
                return int(answer["run"])
            time.sleep(2)
            self.probe()
        raise AssertionError((story, status, answer))

    # the machines

    def others(self) -> Celery:
        """A sender of messages that is none of the stack's processes."""
        return Celery(broker=self.redis_url)

    @property
    def redis_url(self) -> str:
        return str(json.loads((self.stack.var / "run" / "redis.json").read_text())["url"])

    def flush(self) -> None:
        with contextlib.suppress(redis.RedisError):  # it may be dead just now: then it has forgotten as well
            redis.Redis.from_url(self.redis_url, socket_timeout=5).flushall()

    def resend(self, run: int, copies: int) -> None:
        with contextlib.suppress(Exception), self.others() as app:
            for _ in range(copies):
                app.send_task("runs.advance", (run,), ignore_result=True, retry=False)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        process = self.stack.child(name)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, how)

    @contextlib.contextmanager
    def second_worker(self) -> Iterator[None]:
        with (self.stack.var / "log" / "second.log").open("ab") as log:
            self.second = subprocess.Popen(
                [PYTHON, *WORKER], cwd=BASE, env=self.stack.environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            alive = "select 1 from runs_workerbeat where name like ?"
            until(lambda: self.stack.rows(alive, f"%:{self.second.pid}"), 60, self.stack.said)
            yield
        finally:
            self.second.kill()
            self.second.wait()
            self.second = None

    def stop_worker(self) -> int:
        """The worker stands still from now on, but not in the middle of writing: that would hold the database for everybody."""
        for _ in range(200):
            process = self.stack.child("worker")
            if process is not None:
                os.kill(process, signal.SIGSTOP)
                if self._database_is_free():
                    return process
                os.kill(process, signal.SIGCONT)
            time.sleep(0.05)
        raise AssertionError("the worker is always writing")

    def _database_is_free(self) -> bool:
        if self.stack.environment["DATABASE_URL"]:
            return True
        with contextlib.closing(sqlite3.connect(self.stack.var / "sparkweb.sqlite3", timeout=0.5)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            database.rollback()
            return True
