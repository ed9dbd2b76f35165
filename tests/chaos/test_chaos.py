"""The schedules themselves: the same from the same seed, made smaller when they fail; and a judge that sees what is planted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import judging
from tests.chaos.judging import Verdict, must_come
from tests.chaos.playing import Played
from tests.chaos.schedule import HEAD, NODES, PHASES, Act, Schedule, made, printed, shrunk

MANY = [made(7, number) for number in range(300)]


def test_a_seed_makes_the_same_schedules_again_and_another_seed_others() -> None:
    assert [made(7, number) for number in range(300)] == MANY
    assert [made(8, number) for number in range(300)] != MANY
    assert [Schedule.from_json(json.loads(printed(one))) for one in MANY] == MANY


def test_everything_that_can_go_wrong_comes_up() -> None:
    acts = [act for one in MANY for act in one.acts]
    assert {act.do for act in acts} >= {
        "kill",
        "stall",
        "cut",
        "freeze",
        "reboot",
        "flush",
        "resend",
        "cancel",
        "cancel-twice",
        "end",
    }
    assert {act.what for act in acts if act.do == "kill"} == {"worker", "beat", "web", "redis"}
    assert {one.story for one in MANY} == {"launch", "relaunch", "stop"}
    assert any(one.rivals for one in MANY) and any(one.doubled for one in MANY)
    for one in MANY:
        assert all(act.when in PHASES[one.story] for act in one.acts), one
        assert not (one.story == "stop" and any(act.do == "reboot" for act in one.acts)), one


def test_a_failing_schedule_is_made_as_small_as_it_can_be() -> None:
    kill, cut, flush = (
        Act("loading", 1, "kill", "worker"),
        Act("loading", 1, "cut", HEAD, 2.0),
        Act("queued", 0, "flush"),
    )
    whole = Schedule("7/1", "launch", (flush, kill, flush, cut, flush), rivals=True, doubled=True)
    played: list[Schedule] = []

    def fails(schedule: Schedule) -> bool:
        played.append(schedule)
        return {"kill", "cut"} <= {act.do for act in schedule.acts}

    small = shrunk(whole, fails, tries=100)
    assert small == Schedule("7/1", "launch", (kill, cut)) and len(played) < 40
    assert shrunk(whole, lambda _: False, tries=100) == whole
    assert shrunk(whole, fails, tries=0) == whole


def test_what_must_come() -> None:
    played = Played(MANY[0], 1)
    assert must_come(played) == (("succeeded", None),)
    played.rebooted_at = 10.0
    assert must_come(played) == (("failed", "rebooted"),)
    played.cancel_accepted_at = 9.0
    assert must_come(played) == (("cancelled", "cancelled"),)
    played.cancel_accepted_at = 11.0
    assert must_come(played) == (("cancelled", "cancelled"), ("failed", "rebooted"))


RAW = b"one\ntwo token=hunter2hunter2\nthree\n"
STORED = b"one\ntwo token=[masked]\nthree\n"


class Stored:
    """As much of a site as the judge of one stream needs."""

    def __init__(self, folder: Path, chunks: list[tuple[int, int, bytes]], state: str = "cancelled") -> None:
        self.folder, self.chunks, self.state = folder, chunks, state
        log = folder / "home/aurora/.local/state/sparkweb/jobs/abc-1/log"
        log.parent.mkdir(parents=True)
        log.write_bytes(RAW)
        self.stack = SimpleNamespace(rows=lambda *_: self.chunks)
        self.nodes = SimpleNamespace(root=lambda _: folder)

    def row(self, _: int) -> dict[str, Any]:
        return {"state": self.state}


@pytest.mark.parametrize(
    ("chunks", "lost", "doubled"),
    [
        ([(0, 4, STORED[:4]), (4, 31, STORED[4:])], 0, 0),
        ([(0, 4, STORED[:4])], 31, 0),  # the rest is missing
        ([(4, 31, STORED[4:])], 4, 0),  # the beginning is missing
        ([(0, 4, STORED[:4]), (0, 4, STORED[:4]), (4, 31, STORED[4:])], 0, 4),
        ([(0, 35, STORED.replace(b"one", b"own"))], 2, 0),  # other bytes than those that were written
        ([(0, 35, RAW)], 1, 0),  # not masked
    ],
)
def test_the_judge_counts_bytes(tmp_path: Path, chunks: list[tuple[int, int, bytes]], lost: int, doubled: int) -> None:
    verdict = Verdict()
    judging._bytes(Stored(tmp_path, chunks), Played(MANY[0], 1), verdict, 1, "abc-1", HEAD, True)  # type: ignore[arg-type]
    assert (verdict.lost_bytes > 0, verdict.duplicated_bytes) == (lost > 0, doubled), verdict.words
    assert not lost or verdict.lost_bytes >= lost
    assert verdict.good == (not lost and not doubled)


def test_the_judge_sees_processes_containers_and_locks(tmp_path: Path) -> None:
    ours = {"sparkweb.deployment": "1", "sparkweb.run": "5"}
    running = {"r0": {"state": "running", "labels": ours}, "glm": {"state": "running", "labels": {}}}
    nodes = {name: {"containers": running if name == HEAD else {}} for name in NODES}
    site: Any = SimpleNamespace(nodes=SimpleNamespace(state=lambda: {"nodes": nodes}))
    played = Played(Schedule("7/1", "launch", ()), 5)
    assert judging._containers(site, played, False, "cancelled") == [f"container r0 of run 5 runs on {HEAD}"]
    assert judging._containers(site, played, True, "succeeded") == [f"{NODES[1]} runs nothing of ours"]
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "sparkweb-abc.lock").touch()
    assert [path.name for path in judging._locks(tmp_path)] == ["sparkweb-abc.lock"]
