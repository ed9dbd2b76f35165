"""Every system of the shipped recipes, by a person in a browser on pretend machines: chosen, planned, launched, serving, stopped.

Takes minutes of its own, so `make test` leaves it out; `make test-systems` runs it. The main job's system has its own test.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import free_port
from tests.browser.stack import RealStack, until
from tests.browser.test_main_job import FABRIC_ADDRESS, HEAD, SECOND, Person, agree, path_of
from tests.story.test_engines import left_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("SPARKWEB_SYSTEMS"), reason="takes minutes: run by make test-systems"),
]
THIRD = "pro6000"
COMMAND = {
    "port": "31000",
    "served_model_name": "any",
    "arguments": "/opt/acme/bin/openai-server\n--model\nany\n--port\n31000",
}
SYSTEMS: list[tuple[str, list[str], dict[str, str], list[str]]] = [
    # recipe, nodes in rank order, what is typed over it, what the log must have said
    ("qwen3.5-122b-a10b-fp8-native", [HEAD, SECOND], {}, ["5/5"]),
    ("qwen3.5-122b-a10b-fp8-sglang", [HEAD, SECOND], {}, ["fired up"]),
    ("glm-4.7-flash-stack", [HEAD], {}, ["/v1/rerank"]),
    ("qwen3.5-122b-a10b-bf16-mtp-sglang", [THIRD], {}, ["fired up"]),
    ("openai-server-command", [THIRD], COMMAND, ["serving on port 31000"]),
]


class Machines(RealStack):
    """The stack with three machines enrolled and probed, told so over the API."""

    def __init__(self, folder: Path) -> None:
        lab = ["--factor", "150", "--shards", "5", "--shard-seconds", "6", "--third"]
        super().__init__(folder, port=free_port(), settings={"WATCH_PERIOD_S": "3"}, lab=lab)
        self.code()
        self.link = self.manage("person", "add", "ada", "--role", "admin")
        self.token = self.manage("token", "test", "--role", "admin").split()[-1]
        key = self.api("credentials", {"name": "sparks"})
        (folder / "sparks.pub").write_text(f"{key['public_key']}\n")
        self.sparks()
        self.lab("authorize", str(folder / "sparks.pub"))
        for name, address, jump in (
            (HEAD, "127.0.0.1", None),
            (SECOND, FABRIC_ADDRESS, HEAD),
            (THIRD, "127.0.0.1", None),
        ):
            self._enrol(name, address, jump)

    def _enrol(self, name: str, address: str, jump: str | None) -> None:
        known = self.sparks()[name]
        port = known["port"] if jump is None else 22
        body = {"name": name, "address": address, "port": port, "user": "aurora", "credential": "sparks", "jump": jump}
        node = self.api("nodes", body)["id"]
        self.api(f"nodes/{node}/confirm", {"sha256": known["host_keys"][0]["sha256"]})
        self.probe(node)

    def probe(self, node: int) -> None:
        run = self.api(f"nodes/{node}/probe", {})["run"]
        until(lambda: self.api(f"runs/{run}")["state"] == "succeeded", 90, self.logs)

    def api(self, path: str, body: Any = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/api/v1/{path}", data, headers), timeout=60
        ) as answer:
            return dict(json.loads(answer.read()))


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Machines]:
    made = Machines.__new__(Machines)
    made.started = []
    try:
        made.__init__(tmp_path)  # type: ignore[misc]  # what was started must end, however far it came
        yield made
    finally:
        made.end()


def test_every_system_serves_and_is_stopped_by_a_person(stack: Machines, browser: Any) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    window = browser.new_context(base_url=stack.url, viewport={"width": 1440, "height": 900}, device_scale_factor=1)
    ada = Person(window, expect)
    ada.page.goto(re.findall(r"https?://\S+", stack.link)[0])
    ada.presses("Sign in")
    ada.sees("Fleet")
    try:
        for recipe, nodes, typed, said in SYSTEMS:
            print(f"system {recipe}", flush=True)
            deployment = launch(ada, recipe, nodes, typed)
            run = serves(ada, stack, deployment, said)
            stop(ada, deployment)
            port = int(stack.api(f"deployments/{deployment.rpartition('/')[2]}")["spec"]["port"])
            is_clean(stack, nodes, port, run)
        assert ada.troubles == []
    except BaseException:
        if folder := os.environ.get("MAIN_JOB_PICTURES"):
            ada.page.screenshot(path=f"{folder}/failed-system.png", full_page=True)
        print(ada.page.locator("#main").inner_text()[:6000], stack.logs())
        raise
    finally:
        window.close()
    assert not stack.tracebacks(), "\n\n".join(stack.tracebacks())


def launch(ada: Person, recipe: str, nodes: list[str], typed: dict[str, str]) -> str:
    """From the form to a run that succeeded, with the page open all the time. The path of the deployment's page."""
    page = ada.page
    page.goto("/deployments/new")
    with page.expect_response(lambda answer: "/deployments/new?" in answer.url):
        page.locator("#field-recipe").select_option(recipe)
    page.wait_for_timeout(300)  # the swap
    for rank, node in enumerate(nodes):
        page.locator(f"#rank-{rank}").select_option(node)
    for closed in reversed(page.locator("form details:not([open]) > summary").all()):
        closed.click()
    ada.types(name=recipe[:40].rstrip(".-"), **typed)
    ada.presses("Save and look at the plan")
    ada.sees("What will run")
    page.locator("[name=reason]").fill("every system once")
    agree(ada)
    ada.presses("Launch")
    page.wait_for_url("**/runs/*")
    with ada.without_reload():
        ended = re.compile("succeeded|failed|cancelled|interrupted")
        ada.expect(page.locator(".title")).to_contain_text(ended, timeout=180000)
    assert "succeeded" in page.locator(".title").inner_text(), page.locator("#main").inner_text()
    ada.follows("Open deployment")
    return path_of(page)


def serves(ada: Person, stack: Machines, deployment: str, said: list[str]) -> str:
    ada.sees("serving")
    seen = stack.api(f"deployments/{deployment.rpartition('/')[2]}")
    assert (seen["state"], seen["reason"]) == ("serving", None), seen
    run = stack.api(f"runs?deployment={seen['id']}")["runs"][0]["id"]
    text = "\n".join(line["text"] for line in stack.api(f"runs/{run}/lines?limit=5000")["lines"])
    assert all(one in text for one in said), text[-4000:]
    return f"run {run}"


def stop(ada: Person, deployment: str) -> None:
    page = ada.page
    page.goto(f"{deployment}/plan?story=stop")
    ada.sees("What will run")
    page.locator("[name=reason]").fill("seen, the next please")
    agree(ada)
    ada.presses("Stop")
    page.wait_for_url("**/runs/*")
    ada.expect(page.locator(".title")).to_contain_text("succeeded", timeout=120000)
    page.goto(deployment)
    ada.sees("stopped")


def is_clean(stack: Machines, nodes: list[str], port: int, run: str) -> None:
    until(lambda: not left(stack, nodes, port), 30, lambda: f"{run}: {left(stack, nodes, port)}")


def left(stack: Machines, nodes: list[str], port: int) -> str:
    return left_of(json.loads(stack.lab("state")), nodes, {port, 29501, 25000})
