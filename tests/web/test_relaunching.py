"""The pages of a relaunch: what differs, going back, the policy, the first fatal line, triage, and what a new one begins with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from django.test import Client
from django.utils import timezone

from apps.audit.models import Entry
from apps.deployments import services as deployments
from apps.deployments.models import Deployment
from apps.facts.values import Address
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.recipes.models import Recipe
from apps.runs import services as runs
from apps.runs import settling
from apps.runs.models import Run, Step
from apps.runs.recorder import Recorder
from apps.runs.suggesting import suggested
from tests.plan import sheets
from tests.web.seed import EDITOR, TOKEN, Seeded, with_evidence

SignedIn = Callable[[str], Client]


def test_the_plan_shows_what_the_reboot_changed(seeded: Seeded, signed_in: SignedIn) -> None:
    sheet = with_evidence(sheets.head())
    moved = tuple(
        replace(one, name="enp1s0f5np5", addresses=(Address("192.168.200.44", 24),))
        if one.name == "enp1s0f0np0"
        else one
        for one in sheet.interfaces or ()
    )
    fabric = tuple(
        replace(one, netdev="enp1s0f5np5") if one.netdev == "enp1s0f0np0" else one for one in sheet.fabric or ()
    )
    inventory.store_sheet(seeded.head, replace(sheet, interfaces=moved, fabric=fabric))
    path = f"/deployments/{seeded.lost.pk}/plan?story=relaunch"
    page = signed_in("operator").get(path).content.decode()
    section = page.partition('id="since"')[2].partition("</section>")[0]
    assert "What is otherwise than at the last good launch" in section
    for word in ("VLLM_HOST_IP", "192.168.200.12", "192.168.200.44", "enp1s0f0np0", "enp1s0f5np5", "has another name"):
        assert word in section, word
    assert "the other ranks of its service are stopped" in page


def test_nothing_differs_and_that_is_said(seeded: Seeded, signed_in: SignedIn) -> None:
    page = signed_in("operator").get(f"/deployments/{seeded.lost.pk}/plan?story=relaunch").content.decode()
    assert "Exactly what served last: revision 1" in page and "With changes" not in page
    assert (
        "With changes" in signed_in("editor").get(f"/deployments/{seeded.lost.pk}/plan?story=relaunch").content.decode()
    )


def test_the_last_good_revision_is_offered_and_taken(seeded: Seeded, signed_in: SignedIn) -> None:
    lost = seeded.lost
    settling.finish(seeded.loading, Run.State.CANCELLED, reason="cancelled")
    body = lost.revision.body
    deployments.revise(EDITOR, lost, body={**body, "max_model_len": 4096}, nodes=body["nodes"], reason="smaller")
    operator = signed_in("operator")
    assert "story=relaunch&amp;revision=1" in operator.get(lost.get_absolute_url()).content.decode()
    newest = operator.get(f"/deployments/{lost.pk}/plan?story=relaunch").content.decode()
    assert "Revision 2 has never served" in newest and "revision 2 says so" in newest
    page = operator.get(f"/deployments/{lost.pk}/plan?story=relaunch&revision=1")
    shown = page.content.decode()
    assert "takes revision 1, which served last" in shown and "revision 2 says so" not in shown
    form = {
        "story": "relaunch", "revision": "1", "ticked": "1", "digest": page.context["plan"].digest, "reason": "as before",
        "clear": json.dumps([{"node": one.node, "kind": one.kind, "name": one.name} for one in page.context["clear"]]),
    }  # fmt: skip
    answer = operator.post(f"/deployments/{lost.pk}/plan", form)
    assert answer.status_code == 302, answer.content.decode()[:3000]
    run = Run.objects.get(pk=int(answer.headers["Location"].rpartition("/")[2]))
    assert run.revision is not None and run.revision.number == 3 and run.revision.body == body


def test_an_editor_sets_the_policy_and_an_operator_sees_it(seeded: Seeded, signed_in: SignedIn) -> None:
    path = f"/deployments/{seeded.lost.pk}/policy"
    form = {"policy": "always", "limit": "4", "backoff_s": "30", "reason": "nobody is here at night"}
    assert signed_in("operator").post(path, form).status_code == 403
    refused = signed_in("editor").post(path, {**form, "limit": "0"})
    assert refused.status_code == 422 and "Use 1 to 20 tries" in refused.content.decode()
    assert signed_in("editor").post(path, form).status_code == 302
    seeded.lost.refresh_from_db()
    assert (seeded.lost.relaunch_policy, seeded.lost.relaunch_limit, seeded.lost.relaunch_backoff_s) == (
        "always",
        4,
        30,
    )
    entry = Entry.objects.get(action="deployment:policy")
    assert (
        entry.reason == form["reason"] and entry.before["relaunch"] == "manual" and entry.after["relaunch"] == "always"
    )
    page = signed_in("operator").get(seeded.lost.get_absolute_url()).content.decode()
    assert "At most 4 tries; 30 s before the second" in page and "nobody is here at night" in page
    assert f'action="{path}"' not in page


def test_what_the_robot_says_stands_on_the_page(seeded: Seeded, signed_in: SignedIn) -> None:
    said = {
        "state": "gave_up", "sentence": "Gave up after 3 tries: the limit of this policy is 3.",
        "next_at": (timezone.now() + timedelta(minutes=2)).isoformat(),
    }  # fmt: skip
    Deployment.objects.filter(pk=seeded.lost.pk).update(relaunch_policy="always", relaunching=said)
    page = signed_in("viewer").get(seeded.lost.get_absolute_url()).content.decode()
    robot = page.partition('id="robot"')[2].partition("</section>")[0]
    assert "Gave up after 3 tries" in robot and "Robot does not act" in robot and "Not before" in robot


def test_the_first_fatal_line_across_the_ranks(seeded: Seeded, signed_in: SignedIn) -> None:
    serving = seeded.serving
    run = runs.last_good(serving)
    assert run is not None
    Run.objects.filter(pk=run.pk).update(
        lease_token=TOKEN, lease_until=timezone.now() + timedelta(days=1), state="running"
    )
    run.refresh_from_db()
    recorder = Recorder(run, TOKEN)
    said = "(Worker_TP1 pid=377) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    steps = list(Step.objects.filter(run=run, kind="serve").order_by("ordinal"))
    recorder.output(steps[0].key, offset=recorder.position(steps[0].key), data=f"{said}\n".encode(), ended=False)
    Run.objects.filter(pk=run.pk).update(state="succeeded", lease_token="")
    page = signed_in("viewer").get(serving.get_absolute_url()).content.decode()
    assert 'id="fatal"' not in page, "it serves"
    Deployment.objects.filter(pk=serving.pk).update(state="degraded", reason="rank_lost", evidence="rank 1 is gone")
    page = signed_in("viewer").get(serving.get_absolute_url()).content.decode()
    fatal = page.partition('id="fatal"')[2].partition("</section>")[0]
    assert "CUDA out of memory" in fatal and f"/runs/{run.pk}" in fatal


def test_triage_says_of_every_system_what_is_next(seeded: Seeded, signed_in: SignedIn) -> None:
    settling.finish(seeded.loading, Run.State.CANCELLED, reason="cancelled")
    operator = signed_in("operator")
    assert "/triage" in operator.get("/").content.decode()
    assert "/triage" not in signed_in("viewer").get("/").content.decode()
    away = deployments.create(
        EDITOR, name="on-the-rtx", body={**_one_node(seeded), "container": "rtx"}, nodes=["pro6000"]
    )  # fmt: skip
    Deployment.objects.filter(pk=away.pk).update(
        state="lost", reason="vanished", evidence="gone", served_at=timezone.now()
    )
    page = operator.get("/triage")
    found = {row["one"].deployment.name: row["one"] for row in page.context["rows"]}
    assert found[seeded.lost.name].verdict == "replaced"
    assert found[seeded.serving.name].verdict == "fine"
    rtx = found["on-the-rtx"]
    assert (rtx.verdict, rtx.action) == ("unreachable", "reach") and "No route to host" in rtx.why
    assert rtx.away[0].reason == "no_route"
    text = page.content.decode()
    assert "No route to host" in text and "Both nodes rebooted" in text


def _one_node(seeded: Seeded) -> dict[str, object]:
    body = seeded.lost.revision.body
    return {**body, "cluster": "single", "tensor_parallel": 1, "port": 30044, "nodes": []}


def test_each_system_of_a_triage_is_relaunched_by_itself(seeded: Seeded, signed_in: SignedIn) -> None:
    """Its own reason, the plan that was seen; one that is refused holds up nobody."""
    settling.finish(seeded.loading, Run.State.CANCELLED, reason="cancelled")
    Deployment.objects.filter(pk=seeded.serving.pk).update(archived_at=timezone.now())
    other = deployments.create(
        EDITOR, name="second-alone", body={**_small(seeded), "container": "alone"}, nodes=["spark-5be3"]
    )  # fmt: skip
    Deployment.objects.filter(pk=other.pk).update(
        state="lost", reason="vanished", evidence="gone", served_at=timezone.now()
    )
    Deployment.objects.filter(pk=seeded.failed.pk).update(archived_at=timezone.now())
    operator = signed_in("operator")
    page = operator.get("/triage")
    ready = {row["one"].deployment.pk: row["one"] for row in page.context["rows"] if row["one"].action == "relaunch"}
    assert set(ready) == {seeded.lost.pk, other.pk}, [(row["one"].next) for row in page.context["rows"]]
    assert ready[seeded.lost.pk].clear, "what an editor agreed to goes along"
    form = {"relaunch": [str(one) for one in ready], f"reason-{other.pk}": "its own", "reason": "all were rebooted"}
    form |= {f"digest-{pk}": one.digest for pk, one in ready.items()}
    answer = operator.post("/triage/relaunch", form)
    assert answer.status_code == 422, "both want the second node: the later one is refused, beside its row"
    text = answer.content.decode()
    assert "is held by run" in text and "Begun" in text
    begun = Run.objects.filter(story="relaunch", actor_name__startswith="op").latest("pk")
    assert (begun.deployment_id, begun.why) == (seeded.lost.pk, "all were rebooted")
    assert signed_in("viewer").post("/triage/relaunch", form).status_code == 403


def _small(seeded: Seeded) -> dict[str, object]:
    return {
        **_one_node(seeded), "model": "Qwen/Qwen3-8B", "model_path": sheets.SMALL.path, "max_model_len": 8192,
        "gpu_memory_utilization": 0.4, "port": 30055, "reasoning_parser": "", "tool_call_parser": "",
    }  # fmt: skip


def test_check_now_asks_the_nodes_of_each_lost_system(seeded: Seeded, signed_in: SignedIn) -> None:
    assert signed_in("operator").post("/triage/check").status_code == 302
    assert Run.objects.filter(story="probe", actor_kind="person").exists()
    assert signed_in("viewer").post("/triage/check").status_code == 403


def test_a_new_deployment_begins_with_the_recipe_used_last_or_one_whose_model_is_there(seeded: Seeded) -> None:
    last = Deployment.objects.exclude(recipe_version=None).order_by("-pk").first()
    assert last is not None and suggested() == last.recipe_version.recipe
    Deployment.objects.update(recipe_version=None)
    found = suggested()
    assert found is not None and found.slug == "qwen3.5-122b-a10b-fp8", "the first whose model is on both"
    Node.objects.update(state="stopped")
    assert suggested() == Recipe.objects.get(slug="glm-4.7-flash-stack"), "never the one that is only a command"
