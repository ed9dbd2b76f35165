"""Restore previous services as a person meets it: what was stopped, who may, what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.deployments.models import Deployment
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.runs import restoring
from apps.runs.models import Reservation, Run
from tests.plan.test_stories import cleared
from tests.web import seed

BOTH = ["spark-1a32", "spark-5be3"]
PAGE = "/nodes/previous"


def as_cleared() -> None:
    for name, sheet in cleared().items():
        inventory.store_sheet(Node.objects.get(name=name), replace(sheet, taken_at=time.time()))


def nobody_serves() -> None:
    as_cleared()
    Reservation.objects.all().delete()
    Deployment.objects.all().update(state="stopped")


def test_it_shows_what_was_stopped_and_is_refused_while_ours_is_there(
    signed_in: Callable[[str], Client], seeded: seed.Seeded
) -> None:
    as_cleared()
    text = signed_in("editor").get(PAGE, {"node": BOTH}).content.decode()
    assert "vllm-cluster.service" in text and "enabled, running" in text and "its unit makes it anew" in text
    assert text.count('<b class="anywhere">vllm-cluster.service</b>') == 1, "however often it was stopped"
    refused = restoring.preview(BOTH).refused
    assert {one.name for one in refused} == {"other_deployment"}
    digest = restoring.preview(BOTH).digest
    answer = signed_in("editor").post(PAGE, {"node": BOTH, "digest": digest, "reason": "back"})
    assert answer.status_code == 409 and refused[0].title in answer.content.decode()


def test_an_editor_starts_it_with_a_reason_and_it_stands_in_the_history(
    signed_in: Callable[[str], Client], seeded: seed.Seeded
) -> None:
    nobody_serves()
    client, digest = signed_in("editor"), restoring.preview(BOTH).digest
    form = {"node": BOTH, "digest": digest, "deployment": seeded.lost.pk}
    assert client.post(PAGE, {**form, "digest": "0" * 64, "reason": "back"}).status_code == 409
    assert "needs a reason" in client.post(PAGE, form).content.decode()
    assert client.post(PAGE, {**form, "reason": "back to GLM"}).status_code == 302
    run, entry = Run.objects.latest("pk"), Entry.objects.latest("pk")
    assert (run.story, run.why, run.deployment_id) == ("restore", "back to GLM", seeded.lost.pk)
    assert (entry.action, entry.outcome, entry.object_id) == ("deployment:restore", "requested", str(seeded.lost.pk))
    assert client.get(run.get_absolute_url()).status_code == 200
    run.steps.all().update(state="succeeded")
    Run.objects.filter(pk=run.pk).update(state="succeeded")
    again = client.get(PAGE, {"node": BOTH})
    assert again.status_code == 409 and "is left to be put back" in again.content.decode()


def test_an_operator_sees_the_plan_and_a_deployment_offers_it(
    signed_in: Callable[[str], Client], seeded: seed.Seeded
) -> None:
    page = signed_in("operator").get(PAGE, {"node": BOTH})
    assert page.status_code == 200 and "not run it" in page.content.decode()
    assert signed_in("operator").post(PAGE, {"node": BOTH}).status_code == 403
    assert signed_in("viewer").get(PAGE, {"node": BOTH}).status_code == 403
    assert "Restore previous services…" in signed_in("editor").get(seeded.lost.get_absolute_url()).content.decode()
    assert signed_in("editor").get(PAGE, {"node": "nobody"}).status_code == 404


def test_a_run_shows_its_memory_and_what_the_kernel_said(
    signed_in: Callable[[str], Client], seeded: seed.Seeded
) -> None:
    points = [[1_764_500_000.0 + second, (40 - second) << 30] for second in range(0, 40, 5)]
    kernel = [
        {"node": "spark-1a32", "name": "gpu_error", "title": "The GPU's driver logged Xid 79", "line": "NVRM: <79>"}
    ]
    Run.objects.filter(pk=seeded.loading.pk).update(outcome={"memory": {"spark-1a32": points}, "kernel": kernel})
    text = signed_in("viewer").get(seeded.loading.get_absolute_url()).content.decode()
    assert "40.0 → 5.0 GiB" in text and "a load is stopped below 2.0 GiB" in text and "curve-floor" in text
    assert "NVRM: &lt;79&gt;" in text and "Xid 79" in text


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 18, "-1", "²", "x"])
def test_a_deployment_that_is_no_number_is_nobodys(signed_in: Callable[[str], Client], number: str) -> None:
    assert signed_in("editor").get("/nodes/previous", {"node": "nowhere", "deployment": number}).status_code == 404


def test_a_place_in_a_log_of_thousands_of_digits_is_refused_in_words(
    signed_in: Callable[[str], Client], seeded: seed.Seeded
) -> None:
    for name in ("tail", "limit", "after", "before"):
        answer = signed_in("viewer").get(f"/runs/{seeded.loading.pk}/lines", {name: "9" * 5000})
        assert answer.status_code == 422 and b"is not a whole number" in answer.content, name


def test_a_plan_shows_who_holds_what(signed_in: Callable[[str], Client], seeded: seed.Seeded) -> None:
    page = signed_in("editor").get(f"/deployments/{seeded.draft.pk}/plan", {"story": "launch"}).content.decode()
    assert "Who holds what" in page and "Comes back by" in page
    assert "systemd at each boot (enabled); it starts its containers again while it runs" in page
