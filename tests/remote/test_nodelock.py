"""Two installations on one node: the one that came first stays, the other is told by whom; what is stale is nobody's."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.remote.nodelock import ALIVE_S, STALE_S, Holding, NodeHeld, NodeLock, removal
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
    assert no.value.reason == "foreign_installation"
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


# What is planted


def planted(tmp_path: Path, *, name: str = "planted", id: str = "bbbb2222", since: object = 1_700_000_000) -> Path:
    """A lock of another installation that counts, under a name of its own."""
    boot = (tmp_path / "boot").read_text().strip()
    path = tmp_path / "two words" / f"sparkweb-{name}.lock"
    path.write_text(f"sparkweb 1 {id} run9 {boot} {since} launch of glm by bea\n")
    return path


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("planted", "bbbb2222"),
        ("its own name", "../../etc/passwd"),
        ("new\nline", "$(touch${IFS}/pwned)"),
        ("ta\tb", "B"),
        ("$(touch pwned)", "x" * 300),
    ],
)
def test_the_refusal_names_the_file_whatever_it_is_called_and_says(
    lock: NodeLock, tmp_path: Path, name: str, id: str
) -> None:
    path = planted(tmp_path, name=name, id=id)
    with pytest.raises(NodeHeld) as no:
        lock.hold(OURS)
    shown = str(path).replace("\n", "?").replace("\t", "?")
    assert shown in no.value.evidence and "launch of glm by bea" in no.value.evidence, no.value.evidence
    assert len(no.value.evidence.splitlines()) == 1
    assert not file_of(tmp_path, OURS).exists() and not Path("/pwned").exists()


@pytest.mark.parametrize(
    "what", ["a folder", "a link", "a pipe", "empty", "unreadable", "words", "a huge line", "since"]
)
def test_what_is_no_lock_of_anybody_hinders_nobody(lock: NodeLock, tmp_path: Path, what: str) -> None:
    path = planted(tmp_path)
    text = path.read_text()
    match what:
        case "a folder":
            path.unlink()
            path.mkdir()
        case "a link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "a pipe":
            path.unlink()
            os.mkfifo(path)
        case "empty":
            path.write_text("")
        case "unreadable":
            if os.geteuid() == 0:
                pytest.skip("root reads everything")
            path.chmod(0)
        case "words":
            path.write_text("hello\n" + text)
        case "a huge line":
            path.write_bytes(b"x" * (8 << 20) + text.encode())
        case "since":
            path.write_text(text.replace("1700000000", "9" * 40))
    assert lock.hold(OURS)
    lock.let_go(OURS)
    assert path.exists() or path.is_symlink()


@pytest.mark.parametrize("ahead_s", [STALE_S + 5, 10 * 365 * 86400])
def test_a_sign_of_life_from_far_ahead_is_nobodys(lock: NodeLock, tmp_path: Path, ahead_s: int) -> None:
    """The node's clock was set back: such a file would hold the node until that time comes again."""
    path = planted(tmp_path)
    os.utime(path, (time.time() + ahead_s,) * 2)
    assert lock.hold(OURS) and not path.exists()


def test_one_that_came_in_a_time_to_come_holds_the_node(lock: NodeLock, tmp_path: Path) -> None:
    planted(tmp_path, since=int(time.time()) + 3600)
    with pytest.raises(NodeHeld):
        lock.hold(OURS)


@pytest.mark.parametrize("how", ["a folder", "a link to a folder", "no space"])
def test_anothers_is_respected_where_ours_can_not_be_written(lock: NodeLock, tmp_path: Path, how: str) -> None:
    mine, elsewhere = file_of(tmp_path, OURS), tmp_path / "elsewhere"
    elsewhere.mkdir()
    if how == "a folder":
        mine.mkdir()
    elif how == "a link to a folder":
        mine.symlink_to(elsewhere)
    else:
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        lock._transport.words = ["env", f"PATH={_full_disk(tmp_path)}:{os.environ['PATH']}", *lock._transport.words]  # type: ignore[attr-defined]
    planted(tmp_path)
    with pytest.raises(NodeHeld):
        lock.hold(OURS)
    assert list(elsewhere.iterdir()) == [], "a link is not followed"
    planted(tmp_path).unlink()
    assert lock.hold(OURS) is (how == "a link to a folder"), "whether it says on the node that we are there"
    assert list(elsewhere.iterdir()) == []


def _full_disk(tmp_path: Path) -> Path:
    """A folder with an `mv` that fails as on a full disk."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "mv").write_text("#!/bin/sh\necho 'mv: No space left on device' >&2\nexit 1\n")
    (folder / "mv").chmod(0o755)
    return folder


# Removing


def removed(lock: NodeLock, tmp_path: Path) -> tuple[int | None, list[str]]:
    script = removal(OURS.installation, places=lock._places, boot_id_path=str(tmp_path / "boot"))
    done = lock._transport.run(script)
    return done.exit_code, done.stdout.decode().splitlines()


def aged(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_what_a_dead_installation_left_is_removed_and_named(lock: NodeLock, tmp_path: Path) -> None:
    lock.hold(OURS)
    paths = [planted(tmp_path, name=name) for name in ("one", "two\nlines")]
    for path in paths:
        aged(path, ALIVE_S + 5)
    code, said = removed(lock, tmp_path)
    assert code == 0 and said[-1] == "2 removed" and len(said) == 3
    assert any(line.startswith(f"removed {paths[0]}: launch of glm by bea (last sign of life") for line in said), said
    assert not any(path.exists() for path in paths) and file_of(tmp_path, OURS).exists(), "ours stays"
    assert removed(lock, tmp_path) == (0, ["no lock of another installation stands in the way"])


def test_that_of_one_which_lives_stays_and_says_so(lock: NodeLock, tmp_path: Path) -> None:
    dead, living = planted(tmp_path, name="dead"), planted(tmp_path, name="living")
    aged(dead, ALIVE_S + 5)
    aged(living, 12)
    code, said = removed(lock, tmp_path)
    assert code == 1 and living.exists() and not dead.exists()
    assert said[-1].startswith(f"sparkweb: foreign_installation: {living} is of an installation that lives"), said


def test_what_may_not_be_removed_is_said(lock: NodeLock, tmp_path: Path) -> None:
    path = planted(tmp_path)
    aged(path, ALIVE_S + 5)
    (tmp_path / "bin").mkdir()
    for name in ("rm", "sudo"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    shell = lock._transport
    shell.words = ["env", f"PATH={tmp_path / 'bin'}:{os.environ['PATH']}", *shell.words]  # type: ignore[attr-defined]
    code, said = removed(lock, tmp_path)
    if "busybox" in " ".join(shell.words):  # type: ignore[attr-defined]
        return  # it uses its own rm before any other
    assert code == 1 and path.exists()
    assert said[-1].startswith(f"sparkweb: permission_denied: {path} could not be removed"), said
