"""What a robot does about a lost deployment: the policy as a table, and its acts on the story's rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from apps.audit.models import Entry
from apps.deployments import services as deployments
from apps.deployments import state as deployment_state
from apps.deployments.models import Consent, Deployment
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Node, SheetRow
from apps.runs import services as runs
from apps.runs import settling
from apps.runs.models import Run
from apps.watch import braking, relaunching
from apps.watch.relaunching import Case, Try, decide
from tests.plan import sheets
from tests.web import seed as story
from tests.web.seed import EDITOR, OPERATOR, Seeded, with_evidence

NOW = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)
BOOT = {"spark-1a32": "now"}
ALWAYS = Case("always", limit=3, backoff_s=60, lost=True, boots=BOOT, now=NOW)
ONCE = replace(ALWAYS, policy="once")


def tried(*seconds_ago: float, boots: dict[str, str] | None = None, only_looked: bool = False) -> tuple[Try, ...]:
    return tuple(Try(NOW - timedelta(seconds=one), boots or {}, only_looked) for one in seconds_ago)


@pytest.mark.parametrize(
    ("case", "state", "said"),
    [
        (replace(ALWAYS, policy="manual"), "", ""),
        (replace(ALWAYS, lost=False), "", ""),
        (ALWAYS, "act", ""),
        (replace(ALWAYS, boots={}), "act", ""),
        (replace(ALWAYS, tries=tried(59)), "waits", "1 try of 3 spent"),
        (replace(ALWAYS, tries=tried(61)), "act", ""),
        (replace(ALWAYS, tries=tried(300, 119)), "waits", "2 tries of 3 spent"),
        (replace(ALWAYS, tries=tried(300, 121)), "act", ""),
        (
            replace(ALWAYS, tries=tried(900, 600, 300)),
            "gave_up",
            "Gave up after 3 tries: the limit of this policy is 3.",
        ),
        (replace(ALWAYS, untried=4), "gave_up", "Revision 4 has never served"),
        (ONCE, "act", ""),
        (replace(ONCE, boots={}), "gave_up", "No node was rebooted"),
        (replace(ONCE, tries=tried(5, boots=BOOT)), "gave_up", "relaunched once after this reboot"),
        (replace(ONCE, tries=tried(5000, boots={"spark-1a32": "before"})), "act", ""),
        (replace(ONCE, tries=tried(5, boots=BOOT, only_looked=True)), "waits", "1 try of 3 spent"),
        (replace(ONCE, tries=tried(500, boots=BOOT, only_looked=True)), "act", ""),
        (replace(ONCE, tries=tried(900, 700, 500, boots=BOOT, only_looked=True)), "gave_up", "Gave up after 3 tries"),
    ],
)
def test_what_a_policy_wants(case: Case, state: str, said: str) -> None:
    found = decide(case)
    assert found.state == state and said in found.sentence


def test_the_wait_doubles_and_is_told() -> None:
    first, second = (decide(replace(ALWAYS, tries=tried(*ago))).next_at for ago in ((10,), (500, 10)))
    assert first and second
    assert [(one - NOW).total_seconds() for one in (first, second)] == [50, 110]


@pytest.fixture
def seeded(db: None) -> Seeded:
    """The story's lost deployment, its nodes free and their facts fresh."""
    made = story.seed()
    settling.finish(made.loading, Run.State.CANCELLED, reason="cancelled")
    fresh()
    Deployment.objects.filter(pk=made.serving.pk).update(archived_at=timezone.now())
    return made


def fresh(**changes: object) -> None:
    for sheet in (sheets.head(), sheets.second()):
        node = Node.objects.get(name=sheet.node)
        inventory.store_sheet(node, replace(with_evidence(sheet), **changes))  # type: ignore[arg-type]


def policy(deployment: Deployment, name: str = "always", **more: int) -> None:
    deployments.set_policy(EDITOR, deployment, policy=name, reason="nobody is here at night", **more)


def robots_runs(deployment: Deployment) -> list[Run]:
    return list(deployment.runs.filter(actor_name="relaunch", story="relaunch").order_by("pk"))


def said_of(deployment: Deployment) -> dict[str, object]:
    deployment.refresh_from_db()
    return deployment.relaunching


def test_manual_is_the_default_and_nothing_happens(seeded: Seeded) -> None:
    relaunching.consider(seeded.lost.pk)
    assert not robots_runs(seeded.lost) and said_of(seeded.lost) == {}


def test_a_robots_relaunch_names_the_policy_and_who_set_it_and_clears_what_was_agreed(seeded: Seeded) -> None:
    policy(seeded.lost)
    relaunching.consider(seeded.lost.pk)
    (run,) = robots_runs(seeded.lost)
    assert (run.actor_kind, run.was) == ("robot", "replaced")
    assert run.why.startswith("Policy “always”, set by ed1. Both nodes rebooted")
    entry = Entry.objects.get(action="deployment:relaunch", run_id=run.pk)
    after = entry.body()["after"] if callable(getattr(entry, "body", None)) else entry.after
    assert after["under"]["policy"] == "always" and after["under"]["set_by"] == "ed1"
    assert len(after["clear"]) == len(sheets.CONSENT)
    assert set(seeded.lost.consents.values_list("given_by", flat=True)) == {"ed1"}, "a robot agrees to nothing"
    relaunching.consider(seeded.lost.pk)
    assert len(robots_runs(seeded.lost)) == 1, "a run is in progress"


def test_what_no_editor_agreed_to_is_not_cleared_and_that_is_said_once(seeded: Seeded) -> None:
    policy(seeded.lost)
    Consent.objects.filter(deployment=seeded.lost, name="reranker").delete()
    for _ in range(3):
        relaunching.consider(seeded.lost.pk)
    assert not robots_runs(seeded.lost)
    said = said_of(seeded.lost)
    assert said["state"] == "gave_up" and "container reranker on spark-1a32 would have to be cleared" in str(
        said["sentence"]
    )
    denied = Entry.objects.filter(actor_name="relaunch", outcome="denied")
    assert denied.count() == 1 and "no editor has agreed" in denied[0].reason
    assert not Run.objects.filter(story="probe", actor_name="relaunch").exists(), "asking again would change nothing"


def test_it_waits_for_facts_of_this_boot_and_for_what_comes_up(seeded: Seeded) -> None:
    policy(seeded.lost)
    Node.objects.filter(name="spark-5be3").update(boot_id="a newer boot")
    relaunching.consider(seeded.lost.pk)
    probe = Run.objects.get(story="probe", actor_name="relaunch")
    assert probe.plan["nodes"] == ["spark-5be3"] and said_of(seeded.lost)["state"] == "waits"
    relaunching.consider(seeded.lost.pk)
    assert Run.objects.filter(story="probe", actor_name="relaunch").count() == 1, "one at a time"
    settling.finish(probe, Run.State.SUCCEEDED)
    fresh(docker=None)
    relaunching.consider(seeded.lost.pk)
    said = said_of(seeded.lost)
    assert said["state"] == "waits" and "Docker did not answer" in str(said["sentence"])
    fresh()
    relaunching.consider(seeded.lost.pk)
    assert len(robots_runs(seeded.lost)) == 1 and said_of(seeded.lost) == {}


def test_an_unreachable_node_is_waited_for_and_old_facts_are_asked_for_again(seeded: Seeded) -> None:
    policy(seeded.lost)
    Node.objects.filter(name="spark-5be3").update(unreachable_since=timezone.now())
    relaunching.consider(seeded.lost.pk)
    assert said_of(seeded.lost)["sentence"] == "Waits until spark-5be3 answers."
    Node.objects.update(unreachable_since=None)
    SheetRow.objects.update(taken_at=timezone.now() - timedelta(minutes=5))
    relaunching.consider(seeded.lost.pk)
    assert Run.objects.filter(story="probe", actor_name="relaunch").exists() and not robots_runs(seeded.lost)


def test_a_failed_relaunch_is_tried_again_after_a_wait_up_to_the_limit(seeded: Seeded) -> None:
    policy(seeded.lost, limit=2)
    relaunching.consider(seeded.lost.pk)
    first = robots_runs(seeded.lost)[0]
    settling.finish(first, Run.State.FAILED, reason="image_missing", evidence="no image")
    relaunching.go_on()
    said = said_of(seeded.lost)
    assert (seeded.lost.state, said["state"]) == ("failed", "waits") and said["next_at"]
    Run.objects.filter(pk=first.pk).update(ended_at=timezone.now() - timedelta(seconds=61))
    fresh()
    relaunching.go_on()
    second = robots_runs(seeded.lost)[1]
    assert second.parameters["under"]["try"] == 2
    settling.finish(second, Run.State.FAILED, reason="image_missing", evidence="no image")
    Run.objects.filter(pk=second.pk).update(ended_at=timezone.now() - timedelta(hours=1))
    relaunching.go_on()
    assert said_of(seeded.lost)["sentence"] == "Gave up after 2 tries: the limit of this policy is 2."
    policy(seeded.lost, limit=2)
    relaunching.go_on()
    assert len(robots_runs(seeded.lost)) == 3, "a person chose anew: what was before counts no more"


def test_after_it_served_for_long_a_new_loss_begins_at_the_first_try(seeded: Seeded) -> None:
    policy(seeded.lost, limit=1)
    relaunching.consider(seeded.lost.pk)
    (first,) = robots_runs(seeded.lost)
    settling.finish(first, Run.State.SUCCEEDED)
    lose(seeded.lost)
    relaunching.consider(seeded.lost.pk)
    assert said_of(seeded.lost)["state"] == "gave_up", "it was lost at once"
    Deployment.objects.filter(pk=seeded.lost.pk).update(served_at=timezone.now() + timedelta(minutes=11))
    relaunching.consider(seeded.lost.pk)
    assert [run.parameters["under"]["try"] for run in robots_runs(seeded.lost)] == [1, 1]


def lose(deployment: Deployment) -> None:
    seen = {"state": "lost", "reason": "vanished", "evidence": "gone"}
    deployment.refresh_from_db()
    deployment_state.observe(deployment, seen, settling.newest_attempt(deployment))


def test_a_robot_never_fights_a_person(seeded: Seeded) -> None:
    """A stop, a cancel of its own run, and a launch of a person that failed: all of them end it."""
    policy(seeded.lost)
    relaunching.consider(seeded.lost.pk)
    (first,) = robots_runs(seeded.lost)
    runs.cancel(OPERATOR, first, reason="not now")
    first.refresh_from_db()
    settling.finish(first, Run.State.CANCELLED, reason="cancelled")
    relaunching.go_on()
    assert len(robots_runs(seeded.lost)) == 1 and said_of(seeded.lost) == {}
    plan = runs.preview(OPERATOR, seeded.lost, story="stop")
    stop = runs.start(OPERATOR, seeded.lost, story="stop", digest=plan.digest, reason="enough")
    settling.finish(stop, Run.State.SUCCEEDED)
    relaunching.go_on()
    clear = deployments.consented(seeded.lost)
    plan = runs.preview(EDITOR, seeded.lost, story="relaunch", clear=clear)
    mine = runs.start(EDITOR, seeded.lost, story="relaunch", digest=plan.digest, reason="by hand", clear=clear)
    settling.finish(mine, Run.State.FAILED, reason="rank_lost", evidence="a rank died")
    relaunching.go_on()
    relaunching.consider(seeded.lost.pk)
    assert len(robots_runs(seeded.lost)) == 1


def test_a_revision_that_never_served_is_for_a_person(seeded: Seeded) -> None:
    policy(seeded.lost)
    body = seeded.lost.revision.body
    deployments.revise(EDITOR, seeded.lost, body={**body, "max_model_len": 4096}, nodes=body["nodes"], reason="smaller")
    relaunching.consider(seeded.lost.pk)
    assert "Revision 2 has never served" in str(said_of(seeded.lost)["sentence"]) and not robots_runs(seeded.lost)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"policy": "often"}, "policy"),
        ({"limit": 0}, "limit"),
        ({"limit": 21}, "limit"),
        ({"backoff_s": 9}, "backoff_s"),
        ({"backoff_s": 90000}, "backoff_s"),
        ({"reason": "  "}, "reason"),
    ],
)
def test_a_policy_that_makes_no_sense_names_the_field(seeded: Seeded, changes: dict[str, object], field: str) -> None:
    wish: dict[str, object] = {"policy": "always", "reason": "because", **changes}
    with pytest.raises(Refused) as no:
        deployments.set_policy(EDITOR, seeded.lost, **wish)  # type: ignore[arg-type]
    assert no.value.field == field and no.value.remedy


def test_going_back_to_the_revision_that_served_last(seeded: Seeded) -> None:
    """The newest one failed: an operator takes the last good one, which becomes the newest."""
    lost = seeded.lost
    body = lost.revision.body
    deployments.revise(EDITOR, lost, body={**body, "max_model_len": 4096}, nodes=body["nodes"], reason="smaller")
    clear = deployments.consented(lost)
    with pytest.raises(Refused) as no:
        runs.preview(OPERATOR, lost, story="relaunch", revision=7)
    assert no.value.field == "revision" and "use 1, which served last" in no.value.remedy
    newest = runs.preview(OPERATOR, lost, story="relaunch", clear=clear)
    assert next(one.name for one in newest.differences if one.kind == "revision") == "max_model_len"
    plan = runs.preview(OPERATOR, lost, story="relaunch", clear=clear, revision=1)
    assert plan.revision == 3 and not [one for one in plan.differences if one.kind == "revision"]
    assert lost.revision.number == 2, "a look makes no revision"
    run = runs.start(OPERATOR, lost, story="relaunch", digest=plan.digest, reason="as before", clear=clear, revision=1)
    assert run.revision is not None and (run.revision.number, run.revision.body) == (3, body)
    assert lost.revision.reason == "Back to revision 1. as before"
    assert Entry.objects.filter(action="deployment:revised", object_id=str(lost.pk), actor_name="op1").count() == 1


def test_a_stop_is_of_the_nodes_that_it_runs_on_not_of_a_newer_revision(seeded: Seeded) -> None:
    lost = seeded.lost
    body = {**lost.revision.body, "cluster": "single", "tensor_parallel": 1}
    deployments.revise(EDITOR, lost, body=body, nodes=["spark-5be3"], reason="smaller")
    assert runs.preview(OPERATOR, lost, story="stop").nodes == ("spark-1a32", "spark-5be3")
    assert runs.preview(OPERATOR, lost, story="relaunch").nodes == ("spark-5be3",)


def test_while_the_brake_holds_robots_wait_and_say_so(seeded: Seeded) -> None:
    policy(seeded.lost)
    braking.hold({"a", "b", "c"}, 4)
    relaunching.go_on()
    assert not robots_runs(seeded.lost) and "most likely our own network" in str(said_of(seeded.lost)["sentence"])
    braking.release()
    relaunching.consider(seeded.lost.pk)
    assert len(robots_runs(seeded.lost)) == 1
