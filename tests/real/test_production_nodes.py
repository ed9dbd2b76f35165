"""The main job through docker-compose.yml, on two real nodes: every service is restarted while the model loads.

The stack runs on the nodes' own outer Docker, in their network without a way out, on images built from a base of this
machine's release. Two loopback doors lead in: to the nodes' sshd, and to the site.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps.diagnosis.masking import mask
from scripts import real_nodes, real_nodes_door, real_nodes_images
from scripts.real_nodes import HEAD, MANAGEMENT, SECOND, Nodes
from tests.production.compose import Compose, restarted, wait_until_ready
from tests.production.serving import free_port
from tests.production.visit import Site
from tests.real.conftest import full
from tests.real.product import ENVIRONMENT, Declined, Json, Product, waited
from tests.real.test_nodes import prove

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400), full]
WEB = f"{MANAGEMENT}.20"
# The site's network is the nodes' management network: no port is published, nothing leads out.
OVERRIDE = f"""\
services:
  web: {{networks: {{outside: {{ipv4_address: {WEB}}}}}}}
networks:
  outside: {{external: true, name: lab-mgmt}}
"""
SHARD_S = 25.0  # four shards: the load takes about as long as all the restarts
STORED = """
import hashlib, json
from apps.runs.models import Chunk, Run, Stream
rows = []
for step in Run.objects.get(pk={run}).steps.filter(job_id__gt=""):
    chunks = list(Chunk.objects.filter(stream__step=step, stream__name="output").order_by("offset"))
    at = 0
    for chunk in chunks:
        assert chunk.offset == at, (step.key, chunk.offset, at)
        at += chunk.length
    data = b"".join(bytes(chunk.data) for chunk in chunks)
    rows.append([step.key, step.node.name, step.job_id, at, hashlib.sha256(data).hexdigest()])
print(json.dumps(rows))
"""


class Composed(Product):
    """The same product as elsewhere here, through the containers of docker-compose.yml."""

    def __init__(self, compose: Compose, nodes: Nodes) -> None:
        self.compose, self.nodes = compose, Inside(nodes)
        self.tokens: dict[str, str] = {}
        self.ids: dict[str, int] = {}
        self.numbers = itertools.count(1)
        self.browser = httpx.Client()

    def start(self) -> None:
        with Site(self.compose.origin).browser() as anyone:
            wait_until_ready(anyone, since=time.monotonic())
        self.browser = Site(self.compose.origin, self.compose.certificate()).browser()
        for role in ("admin", "operator"):
            said = self.compose.manage("token", f"a test's {role}", "--role", role).decode()
            self.tokens[role] = said.split()[-1]

    def ask(self, path: str, body: Json | None = None, *, role: str = "admin") -> Any:
        """As there. A question is asked again while web or database are away; what starts something is asked once."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}"}
        until = time.monotonic() + 90
        while True:
            try:
                if body is None:
                    answer = self.browser.get(f"/api/v1/{path}", headers=headers)
                else:
                    answer = self.browser.post(f"/api/v1/{path}", headers=headers, json=body, timeout=90)
            except httpx.TransportError:
                if body is not None or time.monotonic() > until:
                    raise
            else:
                if answer.status_code < 400:
                    return answer.json()
                if answer.status_code != 503 or body is not None or time.monotonic() > until:
                    raise Declined(answer.json())
            time.sleep(0.5)


class Inside(Nodes):
    """The nodes as they are reached from beside them: the head needs no door."""

    def __init__(self, nodes: Nodes) -> None:
        self.__dict__.update(nodes.__dict__)

    @property
    def head(self) -> real_nodes.Node:
        return dataclasses.replace(super().head, address=f"{MANAGEMENT}.11", port=22)


@contextlib.contextmanager
def door(nodes: Nodes, port: int) -> Iterator[None]:
    """The site's port on this machine's loopback."""
    enter = real_nodes.find("nsenter") or "nsenter"
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.set_inheritable(True)
        words = [sys.executable, "-IS", real_nodes_door.__file__, str(listener.fileno()), WEB, str(port)]
        process = subprocess.Popen([enter, f"--net=/run/netns/{nodes.namespace}", *words], pass_fds=[listener.fileno()])
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture
def compose(nodes: Nodes, tmp_path: Path) -> Compose:
    (tmp_path / "nodes.yml").write_text(OVERRIDE)
    base = real_nodes_images.imported(
        nodes.docker,
        "sparklab/production",
        real_nodes_images.production_recipe(),
        nodes._build(real_nodes_images.make_production),
        [],
    )
    said = nodes.docker(
        "run", "--rm", "--network=none", base, "python3", "-c", "import sys; print(*sys.version_info[:2])"
    )
    fetched(".".join(said.split()))
    host = {"DOCKER_HOST": f"unix://{nodes.runtime}/docker.sock", "BASE_IMAGE": base}
    often = {"WATCH_PERIOD_S": "4", "LEASE_S": "30"}
    return Compose(tmp_path, free_port(), files=(tmp_path / "nodes.yml",), **host, **often)


def fetched(python: str) -> None:
    """deploy/wheelhouse is of this lock file and for this Python."""
    environment = {**os.environ, "PYTHON_VERSION": python}
    subprocess.run(["sh", "deploy/wheelhouse.sh"], cwd=real_nodes.BASE, env=environment, check=True)


@pytest.fixture
def composed(compose: Compose, clean: Nodes) -> Iterator[Composed]:
    with door(clean, int(compose.environment["PORT"])), compose.up():
        made = Composed(compose, clean)
        made.start()
        made.enrol()
        made.know()
        try:
            yield made
        finally:
            made.browser.close()


def test_every_service_is_restarted_while_the_model_loads(composed: Composed) -> None:
    slow = {**ENVIRONMENT, "SPARKLAB_SHARD_S": str(SHARD_S)}
    tiny = composed.deployment("tiny", environment=slow)
    assert composed.stops(tiny) == []
    run = composed.begin(tiny)
    waited(lambda: loading(composed, run), 240, lambda: composed.text(run)[-4000:])
    for service in ("web", "worker", "beat", "redis"):
        assert loading(composed, run), f"the load ended before {service} was restarted"
        restarted(composed.compose, service)
    assert loading(composed, run), "the load ended before the database was restarted"
    composed.compose.compose("stop", "postgres")
    said = composed.browser.get("/nodes")
    assert said.status_code == 503 and "The database can" in said.text and "Traceback" not in said.text
    composed.compose.compose("start", "postgres")
    assert loading(composed, run), "the load ended before the database was back"
    made = composed.succeeded(run, 420)
    prove(composed, made, "ray")
    composed.becomes(tiny, "serving")
    stored_once(composed, run)
    counted(composed, run)
    composed.stop(tiny)
    assert composed.compose.manage("verify_audit")
    logged(composed.compose)


def loading(product: Composed, run: int) -> bool:
    now = product.ask(f"runs/{run}")
    assert now["ended_at"] is None, (now["state"], now["reason"], now["evidence"], product.text(run)[-4000:])
    return bool(now["phase"] == "loading")


def stored_once(product: Composed, run: int) -> None:
    """Each step's stored output is, byte for byte, what lies on its node."""
    said = product.compose.manage("shell", "-v", "0", "-c", STORED.format(run=run)).decode()
    rows = json.loads(said.splitlines()[-1])
    assert {name for _, name, *_ in rows} == {HEAD, SECOND}
    for key, name, job, length, digest in rows:
        path = f"/home/spark/.local/state/sparkweb/jobs/{job}/log"
        raw = base64.b64decode(product.nodes.inside(name, "base64", "-w0", path))
        assert hashlib.sha256(mask(raw[:length])).hexdigest() == digest, (key, name, len(raw), length)
        assert 0 <= len(raw) - length < 4000, (key, len(raw), length)  # what a serving engine printed afterwards


def counted(product: Composed, run: int) -> None:
    """Lines are numbered from 1 without a gap."""
    numbers, after = [], 0
    while rows := (answer := product.ask(f"runs/{run}/lines?after={after}&limit=1000"))["lines"]:
        numbers += [row["n"] for row in rows]
        after = answer["next"]
    assert numbers == list(range(1, len(numbers) + 1)) and numbers


def logged(compose: Compose) -> None:
    """Nobody met what it did not expect: that database and Redis were away is a line each time, and no traceback."""
    for service in ("web", "worker", "beat"):
        text = compose.compose("logs", "--no-color", service).decode(errors="replace")
        assert text and "Traceback" not in text, (service, text[-5000:])
