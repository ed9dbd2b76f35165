"""Tests marked `long` (pytest -p): what a quicker test proves in the main, once more at length.

`make test` names them as not run; `make test-long` and .ci/run play them.
"""

from __future__ import annotations

import os

import pytest

REASON = "long: run by make test-long"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("SPARKWEB_LONG"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason=REASON))
