"""The script that prints a container's log, with a `docker` that breaks off as the real one can."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from apps.plan.commands import docker

DOCKER = """#!/bin/sh
cd {folder}
echo "$*" >> asked
case "$1" in
logs)
    count=$(($(cat count 2>/dev/null || echo 0) + 1))
    echo $count > count
    echo "line $count"
    sleep 1.2
    echo "complaint $count" >&2 ;;
inspect) cat state.$(cat count) ;;
version) [ -e up ] || {{ : > up; exit 1; }} ;;
esac
"""


def followed(folder: Path, states: list[str], monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    monkeypatch.setattr(docker, "OVERLAP_S", 0)
    (folder / "docker").write_text(DOCKER.format(folder=folder))
    (folder / "docker").chmod(0o700)
    for number, state in enumerate(states, 1):
        if state:
            (folder / f"state.{number}").write_text(f"{state}\n")
    text = docker.follow("one-r0").text
    return subprocess.run(
        ["sh", "-c", text], env={"PATH": f"{folder}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("code", [0, 7, 137])
def test_the_end_of_the_container_is_the_end(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = followed(tmp_path, [f"exited {code}"], monkeypatch)
    assert (done.returncode, done.stdout, done.stderr) == (code, "line 1\ncomplaint 1\n", "")


def test_it_is_read_again_while_the_container_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = followed(tmp_path, ["running 0", "exited 0"], monkeypatch)
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == ["line 1", "complaint 1"] and "may stand twice" in done.stdout
    assert done.stdout.endswith("line 2\ncomplaint 2\n")
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("logs")]
    assert asked[0] == "logs --follow one-r0" and asked[1].startswith("logs --follow --since 1")


def test_docker_away_for_a_moment_is_no_end_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = followed(tmp_path, [""], monkeypatch)  # the first `docker version` fails too
    assert done.returncode == 143 and (tmp_path / "up").exists()
    asked = [line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()]
    assert asked == ["logs", "inspect", "version", "inspect", "version"]
