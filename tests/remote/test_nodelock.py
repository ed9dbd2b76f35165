"""Two installations on one node: the one that came first stays, the other is told by whom; what is stale is nobody's."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.remote.nodelock import STALE_S, Holding, NodeHeld, NodeLock
from apps.remote.transport import BadAnswer, Result

OURS = Holding("aaaa1111", "run1", "launch of qwen by ada, http://127.0.0.1:8000")
THEIRS = Holding("bbbb2222", "run9", "relaunch of glm by bea; $(touch pwned) `id` 'quoted', http://10.0.0.1")


class Shell:
    """A transport to this machine's own shell."""

    name = "spark-1"

    def __init__(self, shell: str) -> None:
        self.words = shell.split()

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Result:
        done = subprocess.run([*self.words, "-c", script], capture_output=True, timeout=timeout_s, cwd="/")
        return Result(done.stdout, done.stderr, done.returncode)


SHELLS = [shell for shell in ("dash", "bash", "busybox sh") if shutil.which(shell.split()[0])]


@pytest.fixture(params=SHELLS)
def lock(request: pytest.FixtureRequest, tmp_path: Path) -> NodeLock:
    (tmp_path / "boot").write_text("11111111-2222-3333-4444-555555555555\n")
    for name in ("one", "two words"):
        (tmp_path / name).mkdir()
    places = (str(tmp_path / "one"), str(tmp_path / "two words"))
    return NodeLock(Shell(request.param), places=places, boot_id_path=str(tmp_path / "boot"))  # type: ignore[arg-type]


def file_of(tmp_path: Path, holding: Holding) -> Path:
    return tmp_path / "one" / f"sparkweb-{holding.installation}.lock"


def test_the_first_stays_and_the_other_is_told(lock: NodeLock, tmp_path: Path) -> None:
    assert lock.hold(THEIRS)
    with pytest.raises(NodeHeld) as no:
        lock.hold(OURS)
    assert no.value.reason == "node_reserved"
    for words in ("relaunch of glm by bea; $(touch pwned) `id` 'quoted'", "UTC", "sparkweb-bbbb2222.lock"):
        assert words in no.value.evidence, no.value.evidence
    assert not file_of(tmp_path, OURS).exists(), "who is refused leaves nothing"
    assert lock.hold(THEIRS), "the holder goes on"
    lock.let_go(THEIRS)
    assert lock.hold(OURS) and not file_of(tmp_path, THEIRS).exists()
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["sparkweb-aaaa1111.lock"]


def test_ours_is_adopted_by_a_later_run_and_kept_by_the_same(lock: NodeLock, tmp_path: Path) -> None:
    assert lock.hold(OURS)
    line = file_of(tmp_path, OURS).read_text().split()
    assert line[:5] == ["sparkweb", "1", "aaaa1111", "run1", "11111111-2222-3333-4444-555555555555"]
    old = time.time() - 600
    file_of(tmp_path, OURS).write_text(" ".join([*line[:5], str(int(old)), "words"]) + "\n")
    assert lock.hold(OURS)
    assert file_of(tmp_path, OURS).read_text().split()[5] == str(int(old)), "the same run holds it since then"
    next_run = Holding(OURS.installation, "run2", "relaunch")
    assert lock.hold(next_run)
    assert file_of(tmp_path, OURS).read_text().split()[3] == "run2"
    lock.let_go(OURS)
    assert file_of(tmp_path, OURS).exists(), "a run that is over takes nothing from the next"


@pytest.mark.parametrize("how", ["boot", "age"])
def test_what_is_stale_is_nobodys(lock: NodeLock, tmp_path: Path, how: str) -> None:
    assert lock.hold(THEIRS)
    path = file_of(tmp_path, THEIRS)
    if how == "boot":
        (tmp_path / "boot").write_text("99999999-2222-3333-4444-555555555555\n")
    else:
        os.utime(path, (time.time() - STALE_S - 5,) * 2)
    assert lock.hold(OURS) and not path.exists()
    with pytest.raises(NodeHeld):  # who was away for that long is not first any more
        lock.hold(THEIRS)


def test_of_two_that_come_at_once_one_stays_at_most(lock: NodeLock) -> None:
    many = [Holding(f"{letter * 8}", "run1", "x") for letter in "abcdefgh"]

    def take(holding: Holding) -> bool:
        try:
            return lock.hold(holding)
        except NodeHeld:
            return False

    with ThreadPoolExecutor(8) as pool:
        stay = [holding for holding, held in zip(many, pool.map(take, many), strict=True) if held]
    again = [holding for holding in many if holding in stay and take(holding)]
    assert len(again) <= 1


def test_where_there_is_no_place_nothing_is_held(tmp_path: Path) -> None:
    lock = NodeLock(Shell("sh"), places=(str(tmp_path / "missing"),))  # type: ignore[arg-type]
    assert lock.hold(OURS) is False
    lock.let_go(OURS)


def test_an_answer_that_is_none_is_called_so() -> None:
    class Liar(Shell):
        def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Result:
            return Result(b"held by me\n", b"", 0)

    with pytest.raises(BadAnswer):
        NodeLock(Liar("sh")).hold(OURS)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["", "a b", "x/../y", "A", "a;b"])
def test_an_id_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="an id is"):
        Holding(bad, "run1", "")


def test_a_node_may_say_where_its_locks_lie(lock: NodeLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "its own").mkdir()
    monkeypatch.setenv("SPARKWEB_LOCKS", str(tmp_path / "its own"))
    assert lock.hold(OURS)
    assert [path.name for path in (tmp_path / "its own").iterdir()] == ["sparkweb-aaaa1111.lock"]
    lock.let_go(OURS)
    assert not list(tmp_path.rglob("sparkweb-*"))
