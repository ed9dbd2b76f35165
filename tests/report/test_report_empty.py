"""A report before there is anything."""

from __future__ import annotations

from typing import Any

import pytest

from apps.report import gathering, markdown, shaping


@pytest.mark.django_db
def test_nothing_at_all(signed_in: Any) -> None:
    text = signed_in("viewer").get("/report").content.decode()
    assert "There is no deployment yet" in text and "There is no node yet" in text
    body = shaping.report(gathering.fleet(trail=True))
    assert body["deployments"] == body["nodes"] == [] and markdown.of(body).startswith("# State of the fleet")
