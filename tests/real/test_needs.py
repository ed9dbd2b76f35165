"""What a machine lacks for real nodes is named, with the line that installs it. Nothing is started here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import real_nodes


def test_missing_programs_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_nodes, "find", lambda program: None if program in ("dockerd", "mmdebstrap") else "/x")
    found = real_nodes.missing(tmp_path)
    line = next(line for line in found if "not installed" in line)
    assert line == "dockerd, mmdebstrap not installed: apt-get install -y --no-install-recommends docker.io mmdebstrap"


def test_a_user_is_told_to_be_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_nodes.os, "geteuid", lambda: 1000)
    assert any(line.startswith("root is needed") for line in real_nodes.missing(tmp_path))


def test_a_full_disk_and_little_memory_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_nodes, "DISK_NEEDED", 1 << 60)
    monkeypatch.setattr(real_nodes, "MEMORY_NEEDED", 1 << 60)
    told = "; ".join(real_nodes.missing(tmp_path / "not" / "there"))
    assert "SPARKWEB_CACHE" in told and "GiB of memory are available" in told


def test_the_command_line_fails_in_words(tmp_path: Path) -> None:
    script = real_nodes.BASE / "scripts" / "real_nodes.py"
    words = [sys.executable, str(script), "--folder", str(tmp_path), "missing"]
    done = subprocess.run(words, capture_output=True, text=True, env={"PATH": "/nowhere"})
    assert (done.returncode, done.stderr) == (1, "")
    said = next(line for line in done.stdout.splitlines() if "not installed" in line)
    assert said.startswith("the real nodes can't run here: ") and "chromium" in said
    assert "apt-get install -y --no-install-recommends chromium" in said


def test_folder_prefers_the_cache_over_the_state() -> None:
    assert real_nodes.folder_from({"SPARKWEB_CACHE": "/c", "VAR": "/v"}) == Path("/c/nodes")
    assert real_nodes.folder_from({"VAR": "/v"}) == Path("/v/nodes")
    assert real_nodes.folder_from({}) == real_nodes.BASE / "var" / "nodes"
