"""Cluster with nothing there, and with a node of which nothing is known."""

from __future__ import annotations

from collections.abc import Callable

from django.test import Client

from tests.web import seed as story

SignedIn = Callable[[str], Client]


def test_no_node_yet(signed_in: SignedIn) -> None:
    text = signed_in("editor").get("/cluster").content.decode()
    assert "No node yet" in text
    assert 'href="/nodes/add"' in text
    assert "/nodes/add" not in signed_in("viewer").get("/cluster").content.decode()


def test_a_node_without_a_sheet(signed_in: SignedIn, db: None) -> None:
    story.node("lonely", "10.0.0.9")
    text = signed_in("viewer").get("/cluster").content.decode()
    assert "not probed yet" in text
    assert "No fabric port has been seen" in text
