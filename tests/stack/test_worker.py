"""Runs outlive what carries them: a stopped worker, a killed one, two at once, doubled messages, a killed Redis."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from apps.diagnosis.masking import mask
from apps.lab import Lab
from tests.stack.conftest import BASE, PYTHON, Started, forget_database, free_port, until

pytestmark = pytest.mark.timeout(400)
HEAD, SECOND = "spark-1a32", "spark-5be3"
TAKEN_OVER_S = 20.0 + 10.0  # the promise, and what a busy machine may add
OVER = ("succeeded", "failed", "cancelled", "interrupted")
SEND_TWENTY = """
import sys
from sparkweb.celery import app
for _ in range(20):
    app.send_task("runs.advance", (int(sys.argv[1]),), ignore_result=True)
"""


@dataclass
class Site:
    stack: Started
    lab: Lab
    token: str
    deployment: int

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        return self.stack.ask(f"/api/v1/{path}", body, token=self.token)[:2]

    def need(self, path: str, body: Any = None) -> Any:
        status, answer = self.ask(path, body)
        assert status < 300, (path, status, answer, self.stack.said())
        return answer

    def begin(self, story: str) -> int:
        """Plan, agree to what needs consent, start; the run's id."""
        path = f"deployments/{self.deployment}"
        problems = self.need(f"{path}/plan", {"story": story})["problems"]
        clear = [{**item, "disable": False} for p in problems if p["severity"] == "consent" for item in p["clear"]]
        plan = self.need(f"{path}/plan", {"story": story, "clear": clear})
        return self.need(f"{path}/{story}", {"digest": plan["digest"], "reason": "a test", "clear": clear})["run"]

    def run(self, run: int) -> dict[str, Any]:
        return self.need(f"runs/{run}")

    def done(self, run: int) -> int:
        """Shards that the slowest rank has loaded."""
        return min((row["done"] or 0 for row in self.run(run)["ranks"]), default=0)

    def succeeded(self, run: int, seconds: float = 150.0, *, then: str = "serving") -> None:
        until(lambda: self.run(run)["state"] in OVER, seconds, self.stack.said, pause=0.5)
        assert self.run(run)["state"] == "succeeded", (self.run(run), self.stack.said())
        assert self.need(f"deployments/{self.deployment}")["state"] == then

    def nothing_lost_or_doubled(self, run: int) -> None:
        """What is stored of each job is what the job wrote on its node, byte for byte; line numbers have no gap."""
        steps = self.stack.rows(
            "select s.id, s.job_id, n.name from runs_step s join inventory_node n on n.id = s.node_id "
            "where s.run_id = ? and s.job_id > ''",
            run,
        )
        assert len(steps) >= 3
        for step, job, node in steps:
            chunks = self.stack.rows(
                "select c.offset, c.length, c.data from runs_chunk c join runs_stream t on t.id = c.stream_id "
                "where t.step_id = ? and t.name = 'output' order by c.offset",
                step,
            )
            kept = 0
            for offset, length, _ in chunks:
                assert offset == kept, (job, offset, kept)
                kept += length
            (log,) = self.lab.root(node).glob(f"**/jobs/{job}/log")
            raw, stored = log.read_bytes(), b"".join(data for *_, data in chunks)
            assert hashlib.sha256(stored).digest() == hashlib.sha256(mask(raw[:kept])).digest(), job
            assert len(raw) - kept < 400, (job, len(raw), kept)  # what a serving engine printed after the run ended
        numbers = [row["n"] for row in self.need(f"runs/{run}/lines?limit=5000")["lines"]]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 50


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """`manage.py up` and two pretend Sparks, registered and probed over the API."""
    folder = tmp_path_factory.mktemp("worker")
    stack = Started(folder / "var", "up", port=free_port())
    try:
        with Lab.start(folder / "lab", factor=60.0, shards=20, shard_s=60.0) as lab:
            stack.waits_for("serves at")
            stack.manage("person", "add", "ada", "--role", "admin")
            yield _registered(Site(stack, lab, stack.manage("token", "test", "--role", "admin").strip(), 0))
    finally:
        stack.end()
        forget_database(stack.environment["DATABASE_URL"])


def _registered(site: Site) -> Site:
    key = site.need("credentials", {"name": "lab"})
    site.lab.authorize(key["public_key"])
    ids = []
    for name, address, port, jump in (
        (HEAD, "127.0.0.1", site.lab.nodes[HEAD].port, None),
        (SECOND, "192.168.200.13", 22, HEAD),
    ):
        body = {"name": name, "address": address, "port": port, "user": "aurora", "credential": "lab", "jump": jump}
        node = site.need("nodes", body)
        site.need(f"nodes/{node['id']}/confirm", {"sha256": site.lab.nodes[name].host_keys[0]["sha256"]})
        ids.append(node["id"])
    for node in ids:
        run = site.need(f"nodes/{node}/probe", {})["run"]
        until(lambda run=run: site.run(run)["state"] == "succeeded", 60, site.stack.said)
    body = {"name": "qwen", "recipe": "qwen3.5-122b-a10b-fp8", "nodes": [HEAD, SECOND]}
    site.deployment = site.need("deployments", body)["id"]
    return site


def test_without_a_worker_a_launch_waits_and_a_killed_worker_loses_nothing(site: Site) -> None:
    stack = site.stack
    worker = stack.child("worker")
    os.kill(worker, signal.SIGSTOP)
    try:
        until(lambda: not stack.ready(), 30)
        status, health, _ = stack.ask("/readyz")
        assert status == 503 and not health["worker"]["ok"] and health["worker"]["heartbeat_age_s"] > 5, health
        assert health["database"]["ok"] and health["redis"]["ok"]
        asked = time.monotonic()
        run = site.begin("launch")
        assert time.monotonic() - asked < 10  # three requests on a busy machine; nothing of them waits for a worker
        time.sleep(5)  # the reaper's period and more
        assert site.run(run)["state"] == "queued"
        status, refused = site.ask(
            "nodes", {"name": "x", "address": "127.0.0.1", "user": "aurora", "credential": "lab"}
        )
        assert (status, refused["reason"]) == (503, "no_worker")
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: site.done(run) >= 3, 90, stack.said, pause=0.3)
    assert stack.ready()
    os.kill(stack.child("worker"), signal.SIGKILL)
    killed, before = time.monotonic(), site.done(run)
    until(lambda: site.done(run) > before, TAKEN_OVER_S, stack.said, pause=0.3)
    print(f"the load was seen to go on {time.monotonic() - killed:.1f} s after the kill")
    site.succeeded(run)
    site.nothing_lost_or_doubled(run)


def test_two_workers_doubled_messages_and_a_killed_redis_are_harmless(site: Site) -> None:
    stack = site.stack
    words = ["celery", "-A", "sparkweb.celery:app", "worker", "--pool", "threads", "--concurrency", "4"]
    more = [*words, "--loglevel", "warning", "--without-gossip", "--without-mingle", "--hostname", "second@%h"]
    with (stack.var / "log" / "second.log").open("wb") as log:
        second = subprocess.Popen([PYTHON, "-m", *more], cwd=BASE, env=stack.environment, stdout=log, stderr=log)
    try:
        until(lambda: stack.rows("select 1 from runs_workerbeat where name like ?", f"%:{second.pid}"), 60, stack.said)
        site.succeeded(site.begin("stop"), then="stopped")
        run = site.begin("relaunch")
        _send_twenty(stack, run)
        until(lambda: site.done(run) >= 3, 90, stack.said, pause=0.3)
        redis = stack.child("redis")
        os.kill(redis, signal.SIGKILL)
        until(lambda: stack.child("redis") not in (None, redis), 15, stack.said)
        until(stack.ready, 30, stack.said)
        _send_twenty(stack, run)
        site.succeeded(run)
    finally:
        second.kill()
        second.wait()
    site.nothing_lost_or_doubled(run)
    tries = stack.rows("select key, count(*) from runs_step where run_id = ? group by key having count(*) > 1", run)
    assert tries == []
    probe = site.need(f"nodes/{site.need('nodes')['nodes'][0]['id']}/probe", {})["run"]
    until(lambda: site.run(probe)["state"] == "succeeded", 30, stack.said)


def _send_twenty(stack: Started, run: int) -> None:
    done = subprocess.run(
        [PYTHON, "-c", SEND_TWENTY, str(run)], cwd=BASE, env=stack.environment, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
