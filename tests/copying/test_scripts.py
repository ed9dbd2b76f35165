"""The scripts of a copy between nodes with real sshd, ssh and rsync, and real files."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import time
from pathlib import Path

import pytest

from apps.plan.copying import scripts
from apps.plan.copying.wish import Wish
from tests.copying import nodes
from tests.copying.models import COMMIT, hub_model
from tests.copying.nodes import Machine, value

pytestmark = pytest.mark.skipif(not nodes.possible(), reason="needs root, rsync, sshd and mount namespaces")
HUB = f"/srv/hub/models--acme--tiny/snapshots/{COMMIT}"


@pytest.fixture
def machines(tmp_path):
    made = [Machine(name, tmp_path / name) for name in ("alfa", "bravo", "charlie", "delta")]
    for one in made:
        one.start()
    yield made
    for one in made:
        one.end()


def copy(chain: list[Machine], path: str, **changes: int) -> list[tuple[int, str]]:
    """All stages; of the copy and the end what each node said."""
    wish = Wish(path, chain[0].place, tuple(one.place for one in chain[1:]), **{"keep_free": 0, **changes})
    code, said = chain[0].do(scripts.manifest(wish).text)
    assert code == 0, said
    listed, answers = value(said), [(0, said)]
    hops = list(itertools.pairwise(chain))
    for here, _ in hops:
        code, said = here.do(scripts.key().text)
        assert code == 0, said
        here.values["key"] = value(said)
    for here, to in hops:
        answers.append(
            to.do(scripts.let_in(wish, "127.0.0.1").text, SPARKWEB_PEER=here.values["key"], SPARKWEB_MANIFEST=listed)
        )
    if any(code for code, _ in answers):
        return answers
    running = [here.begin(scripts.copy(wish, to.place).text) for here, to in hops]
    for process in running:
        said = process.communicate(timeout=60)[0].decode()
        answers.append((process.returncode, said))
    if not any(code for code, _ in answers):
        answers += [to.do(scripts.publish(path).text) for to in chain[1:]]
    return answers


def good(answers: list[tuple[int, str]]) -> str:
    said = "\n---\n".join(text for _, text in answers)
    assert not any(code for code, _ in answers), said
    return said


def tree(folder: Path) -> dict[str, str]:
    return {
        str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest()
        for one in sorted(folder.rglob("*")) if one.is_file()
    }  # fmt: skip


def at(machine: Machine, path: str) -> Path:
    return machine.folder / path.lstrip("/")


def no_keys_left(machines: list[Machine]) -> None:
    for one in machines:
        assert not (one.home / ".local/state/sparkweb/copy").exists()
        file = one.home / ".ssh/authorized_keys"
        assert not file.exists() or "sparkweb-copy" not in file.read_text()


@pytest.mark.parametrize("nested", [False, True], ids=["links", "shared blobs"])
def test_a_symlink_farm_arrives_whole_and_its_keys_are_gone(machines, nested):
    a, b, *_ = machines
    hub_model(a.srv / "hub", nested=nested)
    said = good(copy([a, b], HUB))
    assert "3 hashes are known by the hub's names, 1 files are read" in said
    assert tree(at(b, HUB)) == tree(at(a, HUB))
    assert not any(one.is_symlink() for one in at(b, HUB).rglob("*"))
    book = b.srv / "hub/models--acme--tiny/sparkweb"
    manifest = json.loads((book / f"{COMMIT}.json").read_text())
    assert (manifest["repo"], manifest["commit"], manifest["complete"]) == ("acme/tiny", COMMIT, True)
    assert {one["path"]: one["sha256"] for one in manifest["files"]} == tree(at(b, HUB))
    assert (b.srv / "hub/models--acme--tiny/refs/main").read_text() == COMMIT
    assert not (book / f"{COMMIT}.copy").exists()
    no_keys_left([a, b])
    again = good(copy([a, b], HUB))
    assert "complete already" in again and "bytes went to" not in again


def test_a_chain_of_four(machines):
    hub_model(machines[0].srv / "hub")
    good(copy(machines, HUB))
    for one in machines[1:]:
        assert tree(at(one, HUB)) == tree(at(machines[0], HUB))
    no_keys_left(machines)


def test_a_damaged_file_is_repaired_alone(machines):
    a, b, *_ = machines
    hub_model(a.srv / "hub")
    good(copy([a, b], HUB))
    victim = at(b, HUB) / "model-00003-of-00003.safetensors"
    was = victim.stat()
    with victim.open("r+b") as file:
        file.seek(500_000)
        file.write(b"bitrot")
    os.utime(victim, ns=(was.st_atime_ns, was.st_mtime_ns))
    code, said = b.do(scripts.verify(HUB).text)
    assert code == 1 and "manifest_mismatch: 1 of 4 files differ, e.g. model-00003" in said
    said = good(copy([a, b], HUB))
    assert "1 files differ and are copied again" in said
    assert tree(at(b, HUB)) == tree(at(a, HUB))
    assert "1048576 of 1048576 bytes went to bravo by rsync" in said and "\n0 of " in said
    code, said = b.do(scripts.verify(HUB).text)
    assert code == 0, said


def test_cut_in_the_middle_it_keeps_what_came_and_goes_on(machines):
    a, b, *_ = machines
    hub_model(a.srv / "hub", sizes=(96 << 20, 1 << 20))
    wish = Wish(HUB, a.place, (b.place,), keep_free=0)
    _, said = a.do(scripts.manifest(wish).text)
    listed = value(said)
    key = value(a.do(scripts.key().text)[1])
    b.do(scripts.let_in(wish, "127.0.0.1").text, SPARKWEB_PEER=key, SPARKWEB_MANIFEST=listed)
    running = a.begin(scripts.copy(wish, b.place).text)
    stage = b.srv / f"hub/models--acme--tiny/sparkweb/{COMMIT}.copy"
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if sum(one.stat().st_size for one in stage.rglob("*") if one.is_file()) > 20 << 20:
            break
        time.sleep(0.005)
    os.killpg(running.pid, signal.SIGTERM)
    said = running.communicate(timeout=30)[0].decode()
    assert running.returncode != 0 and "what was copied so far stays" in said, said
    no_keys_left([a, b])
    assert not at(b, HUB).exists()
    time.sleep(0.5)
    kept = sum(one.stat().st_size for one in stage.rglob("*") if one.is_file())
    said = good(copy([a, b], HUB))
    assert tree(at(b, HUB)) == tree(at(a, HUB))
    moved = next(int(line.split()[0]) for line in said.splitlines() if "bytes went to" in line)
    assert kept > 0 and moved <= (97 << 20) - kept + (1 << 20), (kept, moved)


def test_without_room_nothing_is_begun(machines):
    a, b, *_ = machines
    hub_model(a.srv / "hub")
    answers = copy([a, b], HUB, keep_free=1 << 60)
    assert answers[-1][0] == 1 and "sparkweb: disk_full: 6291479 bytes are missing" in answers[-1][1]
    assert not at(b, HUB).exists()


def test_removed_with_its_blobs_but_for_those_of_others(machines):
    a, *_ = machines
    hub_model(a.srv / "hub", nested=True)
    snapshots = at(a, HUB).parent
    other = snapshots / ("0" * 40)
    other.mkdir()
    kept = "model-00001-of-00003.safetensors"
    os.symlink(os.readlink(snapshots / COMMIT / kept), other / kept)
    code, said = a.do(scripts.remove(HUB).text)
    assert code == 0, said
    assert not at(a, HUB).exists() and (other / kept).exists()
    assert len([one for one in (a.srv / "hub/blobs").rglob("*") if one.is_file()]) == 1


def test_by_tar_where_there_is_no_rsync(machines):
    a, b, *_ = machines
    folder = a.srv / "models/It's tiny"
    folder.mkdir(parents=True)
    (folder / "a b.safetensors").write_bytes(b"x" * 100_000)
    path = "/srv/models/It's tiny"
    a.do("mkdir -p /root/bin; for one in /usr/bin/*; do case $one in */rsync) ;; *) ln -s $one /root/bin/;; esac; done")
    a.programs = "/root/bin"
    said = good(copy([a, b], path))
    assert "no rsync on both ends" in said
    assert tree(at(b, path)) == tree(at(a, path))
