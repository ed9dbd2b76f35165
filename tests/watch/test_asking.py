"""What the watch asks for when a deployment is lost, and how the trail and the plan page say it."""

from __future__ import annotations

import pytest

from apps.audit.models import Entry
from apps.facts.values import Container
from apps.inventory.models import Node
from apps.runs import settling
from apps.runs.models import Run
from apps.watch import looking
from apps.watch.judging import NodeSeen
from tests.web.conftest import browser_of
from tests.web.seed import seed

pytestmark = pytest.mark.django_db


def test_the_reachable_nodes_of_a_lost_deployment_are_probed() -> None:
    made = seed()
    nodes = list(Node.objects.filter(ranks__deployment=made.lost).distinct())
    assert nodes
    looking._ask_for_facts(made.lost)
    run = Run.objects.get(story="probe", actor_name="watch")
    assert run.plan["nodes"] == [node.name for node in nodes if node.unreachable_since is None]
    settling.finish(run, Run.State.SUCCEEDED)
    entry = Entry.objects.get(action="node:probed", run_id=run.pk)
    assert entry.actor_name == "watch" and entry.object_name == ", ".join(run.plan["nodes"])


def test_nothing_is_asked_when_no_node_is_reached() -> None:
    made = seed()
    Node.objects.update(unreachable_since="2026-11-30T10:00:00Z")
    looking._ask_for_facts(made.lost)
    assert not Run.objects.filter(actor_name="watch").exists()


def test_the_plan_page_says_that_its_facts_are_from_before_a_reboot() -> None:
    made = seed()
    browser = browser_of(made.people["operator"])
    path = f"/deployments/{made.lost.pk}/plan?story=relaunch"
    assert "before a reboot" not in browser.get(path).content.decode()
    Node.objects.update(boot_id="another")
    assert "before a reboot" in browser.get(path).content.decode()


def test_looks_that_leave_a_silent_node_out_do_not_make_it_answer() -> None:
    """While one look waits for a silent node the next ones see the other nodes only."""
    serving = seed().serving
    ranks = list(serving.ranks.select_related("node"))
    both = {
        rank.node.name: NodeSeen(
            rank.node.name, 1.0, boot_id=rank.boot_id, containers=(Container(name=rank.container, state="running"),)
        )
        for rank in ranks
    }
    first, second = both
    silent = {**both, second: NodeSeen(second, 1.0, reason="ssh_timeout", evidence="no answer")}
    others = {first: both[first]}
    said = []
    for seen in (both, silent, others, silent, others, both):
        looking.judge_all(seen)
        serving.refresh_from_db()
        said.append((serving.state, serving.reason))
    away = ("unreachable", "ssh_timeout")
    assert said == [("serving", None)] * 3 + [away] * 2 + [("serving", None)]
