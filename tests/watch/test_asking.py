"""What the watch asks for when a deployment is lost, and how the trail and the plan page say it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from apps.audit.models import Entry
from apps.deployments.models import Deployment
from apps.facts.values import Container, EngineApi, Listener
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.runs import settling
from apps.runs.models import Run
from apps.watch import asking, braking, looking
from apps.watch.judging import SURE, NodeSeen
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


def seen_of(deployment: Deployment, *, without: int) -> dict[str, NodeSeen]:
    """Looks at the nodes of a deployment, the container of one rank being gone."""
    return {
        rank.node.name: NodeSeen(
            rank.node.name,
            1.0,
            boot_id=rank.boot_id,
            containers=() if rank.number == without else (Container(name=rank.container, state="running"),),
        )
        for rank in deployment.ranks.select_related("node")
    }


def test_after_a_lost_rank_the_others_are_stopped_and_why_stays_said() -> None:
    made = seed()
    serving = made.serving
    settling.finish(made.loading, Run.State.CANCELLED, reason="cancelled")  # it holds the nodes
    one_gone = seen_of(serving, without=1)
    looking.judge_all(one_gone)
    assert not serving.runs.filter(story="stop").exists(), "one look is not sure"
    for _ in range(SURE):
        looking.judge_all(one_gone)
    stop = serving.runs.get(story="stop")
    assert (stop.actor_name, stop.was) == ("watch", "rank_lost") and "rank 1 on" in stop.why
    serving.refresh_from_db()
    assert serving.state == "stopping"
    looking.judge_all(one_gone)
    assert serving.runs.filter(story="stop").count() == 1
    settling.finish(stop, Run.State.SUCCEEDED)
    serving.refresh_from_db()
    assert (serving.state, serving.reason) == ("failed", "rank_lost") and "rank 1 on" in serving.evidence
    looking.judge_all(one_gone)
    serving.refresh_from_db()
    assert serving.state == "failed" and serving.runs.filter(story="stop").count() == 1


def test_a_deployment_that_wants_it_only_reported_is_left_alone() -> None:
    serving = seed().serving
    Deployment.objects.filter(pk=serving.pk).update(on_rank_lost="report")
    for _ in range(SURE + 2):
        looking.judge_all(seen_of(serving, without=1))
    serving.refresh_from_db()
    assert (serving.state, serving.reason) == ("degraded", "rank_lost")
    assert not serving.runs.filter(story="stop").exists()


def test_while_somebody_holds_a_node_the_others_wait_for_the_next_look() -> None:
    made = seed()
    serving = made.serving
    for _ in range(SURE + 2):
        looking.judge_all(seen_of(serving, without=1))
    assert not serving.runs.filter(story="stop").exists(), "another run holds the nodes"
    settling.finish(made.loading, Run.State.CANCELLED, reason="cancelled")
    looking.judge_all(seen_of(serving, without=1))
    assert serving.runs.filter(story="stop").count() == 1


def open_to_all(deployment: Deployment) -> dict[str, NodeSeen]:
    """All ranks stand, and the API wants no key."""
    seen = seen_of(deployment, without=-1)
    head = deployment.ranks.select_related("node").get(number=0).node.name
    port = deployment.revision.spec.port
    seen[head] = replace(
        seen[head],
        apis=(EngineApi(port, 200, keyed=False, asked_by="curl"),),
        listeners=(Listener("0.0.0.0", port),),
        interfaces=inventory.part_of_sheet(Node.objects.get(name=head), "interfaces").interfaces,
        fabric=frozenset({"enp1s0f0np0", "enP2p1s0f0np0"}),
    )
    return seen


def test_flags_stand_beside_the_state_in_words_and_are_taken_back() -> None:
    made = seed()
    serving = made.serving
    settling.finish(made.loading, Run.State.CANCELLED, reason="cancelled")
    for _ in range(SURE):
        looking.judge_all(open_to_all(serving))
    serving.refresh_from_db()
    said = "The API at port 30010 of "
    assert serving.state == "serving" and set(serving.flags) == {"exposed"}, "a flag never changes the state"
    assert "listens on 10.1.230.180." in serving.flags["exposed"]["evidence"]
    assert Entry.objects.filter(action="deployment:exposed", actor_name="watch").count() == 1
    browser = browser_of(made.people["viewer"])
    page = browser.get(serving.get_absolute_url()).content.decode()
    assert "open without a key" in page and "listens on 10.1.230.180." in page
    assert "open without a key" in browser.get("/").content.decode()
    told = browser.get(f"/api/v1/deployments/{serving.pk}").json()["flags"]["exposed"]
    assert told["words"] == "open without a key" and told["evidence"].startswith(said[:15]) and told["since"]
    looking.judge_all(seen_of(serving, without=-1))
    serving.refresh_from_db()
    assert serving.flags == {} and Entry.objects.filter(action="deployment:exposed_over").count() == 1


def test_what_is_lost_or_being_launched_has_no_flags() -> None:
    made = seed()
    serving = made.serving
    Deployment.objects.filter(pk=serving.pk).update(
        flags={"wedged": {"evidence": "x", "since": "2026-11-30T10:00:00Z"}}
    )
    rebooted = {name: replace(one, boot_id="another", containers=()) for name, one in open_to_all(serving).items()}
    looking.judge_all(rebooted)
    serving.refresh_from_db()
    assert (serving.state, serving.flags) == ("lost", {})


def test_each_node_is_asked_for_its_own_engines_and_what_it_misses() -> None:
    serving = seed().serving
    head, second = (rank.node for rank in serving.ranks.select_related("node").order_by("number"))
    asked = asking.what_to_ask()
    spec = serving.revision.spec
    assert (spec.port, "127.0.0.1", True) in asked[head.name].apis
    assert all(port != spec.port for port, _, _ in asked[second.name].apis), "its API is the head's"
    assert asked[head.name].missed == () and "key" in asked[head.name].extra["apis"]
    look = {one.node: one for one in seen_of(serving, without=1).values()}
    looking._keep(second, look[second.name], missed=["gone-r1"])
    looking.judge_all(open_to_all(serving))
    asked = asking.what_to_ask()
    assert asked[second.name].missed == ("gone-r1",) and asked[second.name].extra["missed"] == "gone-r1"
    assert (spec.port, "127.0.0.1", False) in asked[head.name].apis, "whether it wants a key is known now"


def test_a_brake_is_said_on_every_page() -> None:
    made = seed()
    browser = browser_of(made.people["viewer"])
    assert "Most nodes are silent" not in browser.get("/banners").content.decode()
    braking.hold({"a", "b", "c"}, 4)
    text = browser.get("/banners").content.decode()
    assert "Most nodes are silent" in text and "3 of 4 nodes stopped answering at once" in text
    braking.release()
    assert "Most nodes are silent" not in browser.get("/").content.decode()
