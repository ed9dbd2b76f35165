"""Two results pasted in, one called good, the other found slower; and the state report: in a real browser under the
Content-Security-Policy, also on a phone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.benchmarks.test_compare_import import benchy, benchy_entry, metric
from tests.browser.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def pasted(page: Any, name: str, scale: float) -> None:
    levels = [benchy_entry(at, tg_throughput=metric(27.0 * at**0.6 * scale)) for at in (1, 2, 4, 8)]
    page.goto("/benchmarks/import")
    page.get_by_label("JSON", exact=True).fill(
        json.dumps(benchy(*levels, timestamp=f"2026-08-2{int(scale * 4)}T10:00:00Z"))
    )
    page.get_by_label("Hardware").fill("2 × DGX Spark (GB10)")
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Import").click()
    page.get_by_text("is here to compare").wait_for()


def test_two_results_and_the_report(site: Site, signed_in: Callable[..., Any]) -> None:
    window = signed_in("admin")
    page = window.new_page()
    troubles: list[str] = []
    page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda problem: troubles.append(str(problem)))
    pasted(page, "as it was", 1.0)
    page.get_by_text("Mark as good, or remove…").click()
    page.get_by_label("Reason", exact=True).fill("the first good one")
    page.get_by_role("button", name="Mark as good", exact=True).click()
    page.get_by_text("as it was is a known good").wait_for()
    pasted(page, "after the update", 0.5)

    page.goto("/benchmarks")
    page.get_by_text("regression", exact=True).wait_for()
    assert page.get_by_text("13.5 instead of 27 tokens/s at 1 (50% fewer)").count() == 1
    plot = page.locator("svg.plot").first
    assert plot.locator(".plot-line").count() == 3 and plot.bounding_box()["width"] > 250
    colours = {
        page.evaluate("one => getComputedStyle(one).stroke", line.element_handle())
        for line in plot.locator(".plot-line").all()
    }
    assert len(colours) == 3
    page.get_by_label("after the update").uncheck()
    page.get_by_role("button", name="Compare the ticked").click()
    page.wait_for_url("**/benchmarks?id=*")
    assert page.locator("svg.plot").first.locator(".plot-line").count() == 2
    with page.expect_download() as file:
        page.locator(".actions").get_by_role("link", name="CSV").click()
    assert file.value.suggested_filename == "sparkweb-benchmarks.csv"

    page.goto("/settings")
    page.get_by_role("link", name="State report").click()
    page.get_by_role("heading", name="Open problems").wait_for()
    with page.expect_download() as file:
        page.get_by_role("link", name="Markdown").click()
    assert file.value.suggested_filename.endswith(".md")
    assert troubles == []

    phone = signed_in("viewer", phone=True).new_page()
    for path in ("/benchmarks", "/report", f"/deployments/{site.ids['lost']}/report"):
        phone.goto(path)
        assert phone.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
    assert phone.get_by_text("Mark as good").count() == 0
