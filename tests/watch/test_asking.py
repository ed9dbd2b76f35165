"""What the watch asks for when a deployment is lost, and how the trail and the plan page say it."""

from __future__ import annotations

import pytest

from apps.audit.models import Entry
from apps.inventory.models import Node
from apps.runs import settling
from apps.runs.models import Run
from apps.watch import looking
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
