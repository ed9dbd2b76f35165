"""Pretend Sparks for the tests: one lab per way of leading paths elsewhere, reset before every test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.lab import Lab
from tests.lab.visit import Visit


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def _lab(tmp_path_factory: pytest.TempPathFactory, key: Path, redirect: str) -> Iterator[Lab]:
    with Lab.start(tmp_path_factory.mktemp(redirect), factor=150, shard_s=6, redirect=redirect, timeout_s=90) as lab:
        lab.authorize(key.with_suffix(".pub").read_text())
        yield lab


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Iterator[Lab]:
    yield from _lab(tmp_path_factory, key, "auto")


@pytest.fixture(scope="session")
def rewritten(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Iterator[Lab]:
    yield from _lab(tmp_path_factory, key, "rewrite")


@pytest.fixture
def lab(started: Lab) -> Iterator[Lab]:
    """At the start scene; what a test did is undone after it."""
    yield started
    started.reset()


@pytest.fixture
def visit(lab: Lab, key: Path) -> Visit:
    return Visit(lab, key)


@pytest.fixture
def look(started: Lab, key: Path) -> Visit:
    """For tests that leave the scene as it was: nothing is reset after them."""
    return Visit(started, key)
