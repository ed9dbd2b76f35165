"""The main job on two real nodes as a person does it: in a browser, from nothing to a real model that serves, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.real_nodes import Nodes
from tests.browser.test_main_job import WATCH_PROGRESS, Person, agree, create_administrator, enrol_one, probe_both
from tests.real.product import ENVIRONMENT, HEAD, SECOND, SPEC, Product

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
LOADED_MS = 300_000
SHARD_S = 3  # these shards are small: without this all of them are read between two looks of the page
KEPT = ("model", "model_path", "image", "served_model_name", "port", "tensor_parallel", "max_model_len", "os_floor_gib")
EMPTY = ("gpu_memory_utilization", "reasoning_parser", "tool_call_parser", "attention_backend")


@pytest.fixture
def stack(tmp_path: Path, clean: Nodes) -> Iterator[Product]:
    made = Product(tmp_path, clean)
    try:
        yield made
    finally:
        made.end()


def test_the_main_job_in_the_browser(stack: Product, browser: Any) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=60_000)
    stack.stack.waits_for("one-time code: ", 180)
    url = f"http://127.0.0.1:{stack.stack.port}"
    window = browser.new_context(base_url=url, viewport={"width": 1440, "height": 900})
    try:
        admin = Person(window, expect)
        admin.page.set_default_timeout(60_000)
        create_administrator(admin, stack.stack.out.partition("one-time code: ")[2].split()[0])
        make_key(admin, stack.nodes)
        probe_both(admin, *enrol_both(admin, stack.nodes))
        describe(admin)
        launch(admin)
        admin.follows("Open deployment")
        admin.sees("First completion passed")
        stop(admin)
        assert admin.troubles == []
    except BaseException:
        print(stack.stack.said())
        raise
    finally:
        window.close()


def make_key(admin: Person, nodes: Nodes) -> None:
    admin.page.goto("/settings/credentials")
    admin.page.locator("form:has(input[value=generate]) [name=name]").fill("sparks")
    admin.presses("Make it")
    nodes.authorize(admin.page.locator(".rows code", has_text="ssh-ed25519").first.inner_text())


def enrol_both(admin: Person, nodes: Nodes) -> tuple[str, str]:
    """The paths of their pages."""
    paths = []
    for node, jump in ((nodes.head, ""), (nodes.second, HEAD)):
        fields = {"name": node.name, "address": node.address, "port": str(node.port), "user": node.user}
        paths.append(enrol_one(admin, fields, [{"sha256": key.sha256} for key in node.host_keys], jump=jump))
    return paths[0], paths[1]


def describe(admin: Person) -> None:
    """The tiny model in the form, and the plan that comes of it."""
    page = admin.page
    page.goto("/deployments/new")
    for recipe in ("none", "qwen3.5-122b-a10b-fp8"):  # any with two ranks; its values are written over
        with page.expect_response(lambda answer: "/deployments/new?" in answer.url):
            page.locator("#field-recipe").select_option(recipe)
    page.locator("#rank-1").wait_for()
    page.locator("#further summary").click()
    for rank, name in enumerate((HEAD, SECOND)):
        page.locator(f"#rank-{rank}").select_option(name)
    environment = {**ENVIRONMENT, "SPARKLAB_SHARD_S": SHARD_S}
    admin.types(
        name="tiny",
        **{field: str(SPEC[field]) for field in KEPT},
        **{field: "" for field in EMPTY},
        container="",
        arguments="\n".join(SPEC["arguments"]),
        environment="\n".join(f"{key}={value}" for key, value in environment.items()),
    )
    admin.presses("Save and look at the plan")
    admin.sees("What will run")
    for node in (HEAD, SECOND):
        commands = page.locator(".plan-stage", has_text=node).locator(".code").all_inner_texts()
        assert any("docker run" in text and "sparklab/engine:1" in text for text in commands), (node, commands)
    agree(admin)


def launch(admin: Person) -> None:
    """On one page, without a reload: shards of real files are counted, lines grow, and it serves."""
    page = admin.page
    page.locator("[name=reason]").fill("the tiny model is needed")
    admin.presses("Launch")
    page.wait_for_url("**/runs/*")
    title = page.locator(".title")
    with admin.without_reload():
        page.evaluate(WATCH_PROGRESS)
        expect_end = re.compile("succeeded|failed|cancelled|interrupted")
        admin.expect(title).to_contain_text(expect_end, timeout=LOADED_MS)
    assert "succeeded" in title.inner_text(), admin.page.locator("#main").inner_text()[:3000]
    seen = page.evaluate("window.progressSeen")
    assert len(seen["shards"]) >= 2 and seen["shards"] == sorted(seen["shards"]), seen
    assert seen["lines"][-1] >= seen["lines"][0] > 0, seen
    page.locator("#log").scroll_into_view_if_needed()
    admin.page.locator("[data-log=search] input").fill(
        "checkpoint shards"
    )  # the pane holds only what is seen while it follows
    admin.page.keyboard.press("Enter")
    admin.expect(admin.page.locator("[data-log=found] .found-hit").first).to_contain_text("checkpoint shards")


def stop(admin: Person) -> None:
    admin.follows(re.compile("^Stop"))
    admin.sees("What will run")
    admin.presses("Stop")
    admin.page.wait_for_url("**/runs/*")
    admin.sees("succeeded", within_s=240, where=".title")
    admin.follows("Open deployment")
    admin.sees("stopped")
