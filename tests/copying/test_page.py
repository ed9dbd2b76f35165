"""The table of models, its plans and refusals, from stored sheets; nothing runs."""

from __future__ import annotations

import dataclasses

import pytest

from apps.audit.models import Entry
from apps.diagnosis.copying import Reader
from apps.diagnosis.refusal import Refused
from apps.facts.values import ModelFolder
from apps.inventory import services as inventory
from apps.inventory.models import HostKey, Node, SheetRow
from apps.plan.copying.wish import BadPath, check_path
from apps.runs import copying
from tests.plan.sheets import pair
from tests.runs.conftest import ADMIN
from tests.web.conftest import signed_in

__all__ = ["signed_in"]
PATH = "/models/Tiny"


@pytest.fixture
def fleet(db):
    from django.utils import timezone

    key = inventory.make_credential(ADMIN, name="k")
    made = pair()
    for place, (name, sheet) in enumerate(made.items()):
        node = Node.objects.create(
            name=name, address=f"10.0.0.{place + 1}", user="aurora", credential=key, state="ready"
        )
        HostKey.objects.create(node=node, type="ssh-ed25519", base64="AAAA", sha256=f"SHA256:{place}", state="pinned")
        folder = ModelFolder(PATH, bytes=1000, shards=1, shards_expected=1, complete=True)
        body = dataclasses.replace(sheet, models=(folder,) if place == 0 else ()).to_json()
        SheetRow.objects.create(node=node, taken_at=timezone.now(), body=body)
    return list(made)


def test_the_table_says_where_it_is(fleet):
    _, found = copying.table()
    assert [(one.path, {name: held.state for name, held in one.held.items()}) for one in found] == [
        (PATH, {fleet[0]: "unverified"})
    ]


def test_a_copy_goes_from_the_node_that_has_it_over_the_fabric(fleet):
    plan = copying.preview("copy", PATH, [fleet[1]])
    assert plan.nodes == (fleet[0], fleet[1])
    assert [stage.name for stage in plan.stages] == ["List", "Keys", "Room", "Copy", "Show", "Look again"]
    assert not plan.problems
    assert copying.preview("copy", PATH, [fleet[1]]).digest == plan.digest


def test_two_that_ask_for_the_same_share_a_run(fleet):
    first = copying.start(ADMIN, "copy", PATH, [fleet[1]], reason="mine")
    second = copying.start(ADMIN, "copy", PATH, [fleet[1]], reason="mine too")
    assert first == second
    assert list(Entry.objects.filter(action="model:copy").values_list("reason", flat=True).order_by("pk")) == [
        "mine",
        "mine too",
    ]
    with pytest.raises(Refused) as refused:
        copying.start(ADMIN, "remove", PATH, [fleet[0]], confirm="Tiny")
    assert refused.value.reason == "node_reserved"


def test_a_removal_wants_the_name(fleet):
    with pytest.raises(Refused) as refused:
        copying.start(ADMIN, "remove", PATH, [fleet[0]], confirm="tiny")
    assert refused.value.field == "confirm"
    assert copying.start(ADMIN, "remove", PATH, [fleet[0]], confirm="Tiny").story == "remove"


@pytest.mark.parametrize("path", ["/", "/models", "models/x", "/models/../etc", "/a//b", "/a/b\n", '/a/"b', ""])
def test_paths_that_name_no_model(path):
    with pytest.raises(BadPath):
        check_path(path)


def test_the_page_shows_table_plan_and_refusal(fleet, signed_in):
    client = signed_in("editor")
    assert b"Tiny" in client.get("/models").content
    page = client.get("/models", {"path": PATH, "story": "copy", "node": fleet[1]})
    assert page.status_code == 200 and b"What will run" in page.content
    page = client.get("/models", {"path": PATH, "story": "copy", "node": fleet[0]})
    assert b"No node to copy from" in page.content
    assert b"No such model" in client.get("/models", {"path": "/x/y"}).content
    assert signed_in("viewer").post("/models", {"path": PATH, "story": "copy", "node": fleet[1]}).status_code == 403


def test_progress_is_read():
    reader = Reader()
    reader.feed(b"noise\n@copy 50 200 25\n@copy 40 2")
    found = reader.reading().progress
    assert (found.done, found.total, found.overall, found.detail) == (50, 200, 0.25, {"rate": 25, "seconds_left": 6})
