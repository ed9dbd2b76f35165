"""No page is wider than its window, none says an error in the console; the pictures are kept to be looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser import screenshots
from tests.browser.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_screenshots(size: str, site: Site, signed_in: Callable[..., Any]) -> None:
    window = signed_in("admin", phone=size == "phone")
    found = {name: screenshots.take(window, name, path, size) for name, path in screenshots.pages(site.ids).items()}
    stranger = signed_in("admin", phone=size == "phone")
    stranger.clear_cookies()
    found["sign-in"] = screenshots.take(stranger, "sign-in", "/sign-in", size)
    assert {name: one for name, one in found.items() if one["troubles"] or one["beyond"] > 0} == {}
