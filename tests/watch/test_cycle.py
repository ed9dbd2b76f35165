"""The cycle: nodes that hang hold up nobody, and a fleet that falls silent at once is most likely our own network's doing."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from apps.audit.models import Entry
from apps.deployments.models import Deployment
from apps.facts.values import Container
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.remote.transport import Endpoint
from apps.runs.models import Run
from apps.watch import braking, looking
from apps.watch.judging import NodeSeen
from apps.watch.models import Brake, Mark, Point, Sighting
from tests.api.conftest import EDITOR
from tests.web.seed import seed

pytestmark = pytest.mark.django_db
seen_by_threads = pytest.mark.django_db(transaction=True)


def fleet(count: int) -> list[str]:
    key = inventory.make_credential(EDITOR, name="key")
    names = [f"node-{number}" for number in range(count)]
    for name in names:
        found = [{"type": "ssh-ed25519", "base64": "AAAA", "sha256": f"SHA256:{name}"}]
        node = inventory.add_node(
            EDITOR, name=name, address="127.0.0.1", port=22, user="u", credential=key, jump=None, found=found
        )
        inventory.confirm_host_key(EDITOR, node, sha256=f"SHA256:{name}")
    return names


class Doors:
    """What each node answers: in place of the look itself. A node in `hangs` answers when the test lets it."""

    def __init__(self) -> None:
        self.silent: dict[str, tuple[str, str]] = {}  # name -> (reason, whose door)
        self.hangs: set[str] = set()
        self.boot = "b"
        self.go_on = threading.Event()
        self.asked: list[str] = []
        self.containers: dict[str, tuple[Container, ...]] = {}
        self.boots: dict[str, str] = {}

    def look(self, door: Endpoint, _: object) -> NodeSeen:
        self.asked.append(door.name)
        try:
            if door.name in self.hangs:
                self.go_on.wait(60)
            if door.name in self.silent:
                reason, hop = self.silent[door.name]
                return NodeSeen(door.name, 1.0, reason=reason, evidence=f"{hop}: no answer", hop=hop)
            boot = self.boots.get(door.name, self.boot)
            return NodeSeen(door.name, 1.0, boot_id=boot, containers=self.containers.get(door.name))
        finally:
            with looking._lock:
                looking._looking.discard(door.name)


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Doors]:
    looking._looking.clear()
    made = Doors()
    monkeypatch.setattr(looking, "_look_at", made.look)
    yield made
    made.go_on.set()


def no_answer(names: list[str], reason: str = "ssh_timeout") -> dict[str, tuple[str, str]]:
    return {name: (reason, name) for name in names}


@seen_by_threads
def test_nodes_that_hang_do_not_keep_the_others_from_being_kept(doors: Doors) -> None:
    names = fleet(8)
    looking.look()
    Sighting.objects.all().delete()
    doors.hangs = set(names[:3])
    cycle = threading.Thread(target=in_thread, args=(looking.look,), daemon=True)
    cycle.start()
    wait_until(lambda: Sighting.objects.count() == 5)
    assert cycle.is_alive(), "three still hang"
    doors.asked.clear()
    doors.silent = no_answer(names[3:4])
    second = threading.Thread(target=in_thread, args=(looking.look,), daemon=True)
    second.start()
    second.join(30)
    assert sorted(doors.asked) == names[3:], "a node still stuck from an earlier cycle is skipped, not queued"
    assert Node.objects.get(name=names[3]).unreachable_reason == "ssh_timeout"
    doors.go_on.set()
    cycle.join(30)
    assert Sighting.objects.count() == 8 and not cycle.is_alive()


def in_thread(act) -> None:
    from django.db import connection

    try:
        act()
    finally:
        connection.close()


def wait_until(true, within_s: float = 30.0) -> None:
    event, tries = threading.Event(), 0
    while not true():
        tries += 1
        assert tries < within_s * 20, "it did not come true"
        event.wait(0.05)


@seen_by_threads
def test_a_deployment_whose_nodes_answered_is_judged_while_others_hang(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "_ask_for_facts", lambda _: None)  # there is no broker here
    made = seed()
    fleet_of_rest = [node.name for node in Node.objects.exclude(ranks__deployment=made.lost).distinct()]
    Node.objects.update(unreachable_since=None)
    assert fleet_of_rest, "some node is no part of it"
    doors.hangs = {made.away.name}
    Deployment.objects.filter(pk=made.serving.pk).update(observed={"state": "serving", "reason": None})
    ranks = list(made.serving.ranks.select_related("node"))
    doors.boots = {rank.node.name: "after a reboot" for rank in ranks}
    doors.containers = {rank.node.name: () for rank in ranks}
    Run.objects.filter(deployment=made.serving, state="running").delete()
    assert made.away.name not in {rank.node.name for rank in ranks}
    cycle = threading.Thread(target=in_thread, args=(looking.look,), daemon=True)
    cycle.start()
    wait_until(lambda: Deployment.objects.get(pk=made.serving.pk).state == "lost")
    assert cycle.is_alive()
    doors.go_on.set()
    cycle.join(30)
    assert Mark.objects.filter(kind="lost", node=ranks[0].node).exists()


@pytest.mark.parametrize(
    ("silent", "known", "ours"),
    [
        (2, 2, False),
        (3, 3, True),
        (3, 5, True),
        (3, 6, False),
        (4, 6, True),
        (32, 64, False),
        (33, 64, True),
        (0, 0, False),
    ],
)
def test_when_it_is_likely_our_own_network(silent: int, known: int, ours: bool) -> None:
    assert braking.likely_ours(silent, known) is ours


def test_a_fleet_that_falls_silent_at_once_alarms_nobody_and_ends_by_itself(doors: Doors) -> None:
    names = fleet(5)
    looking.look()
    doors.silent = no_answer(names[:4])
    for _ in range(3):
        looking.look()
    assert not Node.objects.exclude(unreachable_since=None).exists()
    brake = braking.current()
    assert brake is not None and brake.sentence.startswith("4 of 5 nodes stopped answering at once.")
    assert Entry.objects.filter(action="watch:braked").count() == 1 == Brake.objects.count()
    doors.silent = no_answer(names[:1])
    looking.look()
    assert braking.current() is None and Entry.objects.filter(action="watch:released").count() == 1
    assert list(Node.objects.exclude(unreachable_since=None).values_list("name", flat=True)) == names[:1]
    doors.silent = {}
    looking.look()
    assert not Node.objects.exclude(unreachable_since=None).exists()
    assert list(Mark.objects.values_list("kind", flat=True)) == ["unreachable", "reachable"]


def test_while_the_brake_holds_no_robot_acts(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    made = seed()
    Node.objects.update(unreachable_since=None, last_seen_at="2026-11-30T10:00:00Z")
    considered: list[int] = []
    monkeypatch.setattr(looking.relaunching, "consider", considered.append)
    monkeypatch.setattr(braking, "LEAST", 1)
    rank, other = made.serving.ranks.select_related("node")[:2]
    Run.objects.filter(deployment=made.serving, state="running").delete()
    doors.boots = {rank.node.name: "after a reboot"}
    doors.containers = {rank.node.name: ()}
    doors.silent = no_answer([name for name in Node.objects.values_list("name", flat=True) if name != rank.node.name])
    looking.look()
    made.serving.refresh_from_db()
    assert made.serving.state == "lost" and braking.current() is not None, "what a node says itself is no silence"
    assert considered == []
    doors.silent = {}
    doors.boots[other.node.name] = other.boot_id
    doors.containers[other.node.name] = (Container(name=other.container, state="running"),)
    looking.look()
    assert braking.current() is None and made.serving.pk in considered


def test_nodes_behind_a_jump_host_count_as_the_one_door(doors: Doors) -> None:
    names = fleet(4)
    looking.look()
    doors.silent = {name: ("jump_unreachable", names[0]) for name in names[1:]} | no_answer(names[:1])
    looking.look()
    assert braking.current() is None
    hidden = Node.objects.get(name=names[1])
    assert (hidden.unreachable_reason, hidden.unreachable_hop) == ("jump_unreachable", names[0])


def test_refused_keys_are_no_outage(doors: Doors) -> None:
    names = fleet(4)
    looking.look()
    doors.silent = no_answer(names, "ssh_auth")
    looking.look()
    assert braking.current() is None and Node.objects.exclude(unreachable_since=None).count() == 4


def test_a_look_that_answered_is_a_point_and_a_reboot_is_marked(doors: Doors) -> None:
    names = fleet(1)
    looking.look()
    assert Point.objects.filter(node__name=names[0], step=0).count() == 1
    doors.boot = "c"
    looking.look()
    assert list(Mark.objects.values_list("kind", flat=True)) == ["rebooted"]
