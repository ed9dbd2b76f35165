"""A recipe from pasted text to two sides that follow each other, in a real browser under the Content-Security-Policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
LINE = "docker run --gpus all -v /data/m:/models vllm/vllm-openai:v1 --model /models/Qwen3-8B --port 9000 --trust-remote-code"


def test_paste_decide_and_edit_on_both_sides(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("admin").new_page()
    page.goto("/recipes/import")
    page.get_by_label("Recipe", exact=True).fill(LINE)
    page.get_by_label("Name").fill("From a browser")
    page.get_by_role("button", name="Look at it").click()
    page.get_by_text("2 things would wait").wait_for()
    assert page.get_by_label("Recipe", exact=True).input_value() == LINE
    page.get_by_role("button", name="Import", exact=True).click()
    page.get_by_role("heading", name="Waits for a decision").wait_for()
    for choice in page.get_by_label("take over").all():
        choice.check()
    page.get_by_label("Reason").fill("our own weights")
    page.get_by_role("button", name="Decide").click()
    page.get_by_text("Nothing waits any more").wait_for()
    assert page.get_by_text("/data/m/Qwen3-8B", exact=True).count() == 1

    page.get_by_role("link", name="Edit…").click()
    page.get_by_label("Port", exact=True).fill("80")
    page.get_by_label("Port", exact=True).press("Tab")
    page.locator("#recipe-checks").get_by_text("out of range").wait_for()
    yaml = page.get_by_label("The recipe as YAML")
    assert "port: 80\n" in yaml.input_value() + "\n"
    yaml.fill(yaml.input_value().replace("port: 80", "port: 8123"))
    yaml.press("Tab")
    page.locator("#recipe-checks").get_by_text("Nothing is wrong").wait_for()
    assert page.get_by_label("Port", exact=True).input_value() == "8123"
    page.get_by_role("button", name="Save the form").click()
    page.get_by_text("Saved as version 1").wait_for()
    page.close()
