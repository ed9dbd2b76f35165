"""Where a deployment's API can be reached: by the address that people have, or only on its node, through ssh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from apps.deployments import queries, services
from apps.deployments.models import Deployment
from apps.facts.values import Address, Interface
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.people.models import User
from tests.api.conftest import EDITOR, Program, Story
from tests.plan import sheets
from tests.web.conftest import browser_of

LOCAL = "http://127.0.0.1:30000/v1"


def served(story: Story, state: str = "serving", **spec: Any) -> queries.Reached | None:
    if spec:
        body = {**story.deployment.revision.body, **spec}
        services.revise(EDITOR, story.deployment, body=body, nodes=body["nodes"], reason="x")
    Deployment.objects.update(state=state)
    return queries.endpoint(Deployment.objects.get(pk=story.deployment.pk))


def moved(story: Story, **fields: Any) -> None:
    Node.objects.filter(pk=story.head.pk).update(**fields)


def test_the_address_that_people_have(story: Story) -> None:
    found = served(story)
    assert found == queries.Reached("http://10.1.230.180:30000/v1", "spark-1a32")
    moved(story, address="head.example")
    assert served(story) == found  # a name is taken to be the node's; its own address is sure
    inventory.store_sheet(story.head, replace(sheets.head(), interfaces=None))
    again = served(story)
    assert again is not None and again.url == "http://head.example:30000/v1"


@pytest.mark.parametrize("state", ["draft", "launching", "stopping", "stopped", "failed", "lost", "unreachable"])
def test_there_is_none_while_nothing_serves(story: Story, state: str) -> None:
    assert served(story, state) is None


def test_an_address_of_its_own_is_kept(story: Story) -> None:
    found = served(story, api_host="10.1.230.180")
    assert found is not None and (found.url, found.tunnel) == ("http://10.1.230.180:30000/v1", "")
    found = served(story, "degraded", api_host="fd00::5")
    assert found is not None and found.url == "http://[fd00::5]:30000/v1"


@pytest.mark.parametrize(
    ("node", "spec", "tunnel", "why"),
    [
        ({}, {"api_host": "127.0.0.1"}, "ssh -N -L 30000:127.0.0.1:30000 aurora@10.1.230.180", "listens on 127.0.0.1"),
        ({}, {"api_host": "::1"}, "ssh -N -L '30000:[::1]:30000' aurora@10.1.230.180", "listens on ::1"),
        (
            {"address": "127.0.0.1", "port": 2201},
            {},
            "ssh -N -L 30000:127.0.0.1:30000 -p 2201 aurora@127.0.0.1",
            "a forwarded port of the machine that runs sparkweb",
        ),
        ({"address": "localhost"}, {}, "ssh -N -L 30000:127.0.0.1:30000 aurora@localhost", "a forwarded port"),
        ({"address": "203.0.113.9"}, {}, "ssh -N -L 30000:127.0.0.1:30000 aurora@203.0.113.9", "forwards SSH"),
        (
            {},
            {"api_host": "192.168.200.12"},
            "ssh -N -L 30000:192.168.200.12:30000 aurora@10.1.230.180",
            "a fabric address",
        ),
    ],
)
def test_only_on_the_node(story: Story, node: dict[str, Any], spec: dict[str, Any], tunnel: str, why: str) -> None:
    moved(story, **node)
    found = served(story, **spec)
    assert found is not None and (found.url, found.node, found.tunnel) == (LOCAL, "spark-1a32", tunnel)
    assert why in found.why


def test_a_node_that_has_fabric_addresses_alone_is_no_ones_to_reach(story: Story) -> None:
    fabric = Interface("enp1s0f0np0", True, addresses=(Address("192.168.200.12", 24),), role="fabric")
    inventory.store_sheet(story.head, replace(sheets.head(), interfaces=(fabric,)))
    moved(story, address="192.168.200.12")
    found = served(story)
    assert found is not None and found.tunnel.endswith(" aurora@192.168.200.12") and "fabric" in found.why


def test_behind_jump_hosts_the_line_names_each_in_order(story: Story) -> None:
    Node.objects.create(name="outer", address="203.0.113.9", port=2222, user="me", credential=story.head.credential)
    moved(story, jump=Node.objects.get(name="outer"), address="fd00::7")
    found = served(story, nodes=["spark-5be3", "spark-1a32"])
    assert found is not None and found.node == "spark-5be3" and "is reached through spark-1a32" in found.why
    assert found.tunnel == (
        "ssh -N -L 30000:127.0.0.1:30000 -J 'me@203.0.113.9:2222,aurora@[fd00::7]:22' aurora@192.168.200.13"
    )


def test_what_runs_counts_not_the_newest_revision(story: Story) -> None:
    story.deployment.ranks.create(number=0, node=story.head, revision=story.deployment.revision, run_id=1)
    found = served(story, port=31000)
    assert found is not None and found.url == "http://10.1.230.180:30000/v1"


def test_programs_and_pages_say_the_same(story: Story, program: Callable[..., Program]) -> None:
    api, browser = program("viewer"), browser_of(User.objects.create(name="Vera", role="viewer"))
    path = f"deployments/{story.deployment.pk}"

    def pages() -> str:
        return "".join(browser.get(f"/{one}").content.decode() for one in (path, "deployments", ""))

    assert ":30000/v1" not in pages() and "endpoint-head" not in pages()
    served(story)
    body = api.get(path).body
    assert (body["endpoint"], body["tunnel"]) == ("http://10.1.230.180:30000/v1", None)
    assert pages().count("http://10.1.230.180:30000/v1") == 4  # its page with the curl, and both lists
    moved(story, address="127.0.0.1", port=2201)
    body = api.get("deployments").body["deployments"][0]
    assert body["endpoint"] is None and body["tunnel"].startswith("ssh -N -L 30000:")
    assert body["tunnel"] in pages() and pages().count("answers only on spark-1a32") == 2


@pytest.mark.parametrize(
    ("state", "of_rank"),
    [
        ("serving", "serving"),
        ("launching", "starting"),
        ("stopping", "stopping"),
        ("lost", "gone"),
        ("stopped", "gone"),
        ("unreachable", "unknown"),
        ("degraded", "unknown"),
        ("failed", "unknown"),
    ],
)
def test_a_ranks_state_follows_from_its_deployments(
    state: str, of_rank: str, story: Story, program: Callable[..., Program]
) -> None:
    """The row keeps what the last good launch left; a program must not read that a lost rank serves."""
    story.deployment.ranks.create(
        number=0, node=story.head, revision=story.deployment.revision, run_id=1, state="serving"
    )
    Deployment.objects.update(state=state)
    (rank,) = program("viewer").get(f"deployments/{story.deployment.pk}").body["ranks"]
    assert rank["state"] == of_rank
