"""What one node says must not end the watch over the others, and must be fit to keep and to show."""

from __future__ import annotations

import json
import threading

import pytest

from apps.facts.values import Container
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.remote.transport import Endpoint
from apps.watch import looking
from apps.watch.judging import NodeSeen
from apps.watch.models import Sighting
from tests.api.conftest import EDITOR

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def nodes() -> list[str]:
    key = inventory.make_credential(EDITOR, name="key")
    names = ["bad", "good"]
    for name in names:
        found = [{"type": "ssh-ed25519", "base64": "AAAA", "sha256": f"SHA256:{name}"}]
        node = inventory.add_node(
            EDITOR, name=name, address="127.0.0.1", port=22, user="u", credential=key, jump=None, found=found
        )
        inventory.confirm_host_key(EDITOR, node, sha256=f"SHA256:{name}")
    looking._looking.clear()  # a look that a test replaces does not say that it has ended
    return names


def test_a_look_that_breaks_is_one_nodes_own(nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(door: Endpoint, _: object) -> NodeSeen:
        if door.name == "bad":
            raise RecursionError("made to break")
        return NodeSeen(door.name, 1.0, boot_id="b")

    monkeypatch.setattr(looking, "_look_at", looked)
    looking.look()
    assert list(Sighting.objects.values_list("node__name", flat=True)) == ["good"]


def test_names_that_no_database_takes_are_kept_readable(nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = Container(id="1", name="a\ud800\0b", image="<script>", state="running")
    monkeypatch.setattr(looking, "_look_at", lambda door, _: NodeSeen(door.name, 1.0, containers=(hostile,)))
    looking.look()
    body = Sighting.objects.get(node=Node.objects.get(name="bad")).body
    assert body["containers"][0]["name"] == "a\ufffd\ufffdb"
    assert json.dumps(body, ensure_ascii=False).encode()


def test_a_look_that_does_not_end_is_no_answer(nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def looked(door: Endpoint, _: object) -> NodeSeen:
        if door.name == "bad":
            go_on.wait(60)
        return NodeSeen(door.name, 1.0, boot_id="b")

    monkeypatch.setattr(looking, "_look_at", looked)
    monkeypatch.setattr(looking, "PATIENCE_S", 1.0)
    try:
        looking.look()
    finally:
        go_on.set()
    bad = Node.objects.get(name="bad")
    assert bad.unreachable_reason == "ssh_timeout" and "no answer to the look within 1 s" in bad.unreachable_evidence
    assert Node.objects.get(name="good").unreachable_since is None
