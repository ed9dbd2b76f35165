"""The provision page: what is ticked, what would run, who may, and that a password is in none of it."""

from __future__ import annotations

from collections.abc import Callable

from django.test import Client

from apps.audit.models import Entry
from apps.runs import provisioning
from apps.runs.models import Passing, Reservation, Run
from tests.web import seed

PAGE = "/nodes/provision"
BOTH = {"node": ["spark-1a32", "spark-5be3"]}


def test_the_page_shows_every_step_with_its_reason(signed_in: Callable[[str], Client], seeded: seed.Seeded) -> None:
    text = signed_in("editor").get(PAGE, {"node": "spark-5be3"}).content.decode()
    assert "Docker for this user" in text and "nothing to do, because" in text
    assert 'value="spark-5be3:limits" checked' in text and 'value="spark-5be3:earlyoom">' in text
    assert "60-sparkweb.conf" in text  # the exact command
    node = signed_in("editor").get(seeded.second.get_absolute_url()).content.decode()
    assert f'href="{PAGE}?node=spark-5be3"' in node


def test_a_viewer_sees_no_plan_and_an_operator_may_not_start(
    signed_in: Callable[[str], Client], seeded: seed.Seeded
) -> None:
    assert signed_in("viewer").get(PAGE).status_code == 403
    page = signed_in("operator").get(PAGE, BOTH)
    assert page.status_code == 200 and "not run it" in page.content.decode()
    assert signed_in("operator").post(PAGE, BOTH).status_code == 403


def test_unticked_steps_are_left_out_and_what_was_typed_stays(
    signed_in: Callable[[str], Client], seeded: seed.Seeded
) -> None:
    asked = {
        "node": "spark-5be3", "seen": "spark-5be3", "ticked": "1", "tick": ["spark-5be3:fabric"],
        "place:spark-5be3:enp1s0f0np0": "192.168.77.13/24", "models": "/data/models",
    }  # fmt: skip
    text = signed_in("editor").get(PAGE, asked, headers={"HX-Request": "true"}).content.decode()
    assert "192.168.77.13/24" in text and 'value="/data/models"' in text
    assert "All answer" in text and "60-sparkweb.conf" not in text
    assert "<html" not in text
    wrong = signed_in("editor").get(PAGE, {**asked, "place:spark-5be3:enp1s0f0np0": "8.8.8.8/24"})
    assert wrong.status_code == 422 and "no private address" in wrong.content.decode()


def test_a_start_needs_a_reason_and_keeps_the_plan(signed_in: Callable[[str], Client], seeded: seed.Seeded) -> None:
    client, form = signed_in("editor"), {"node": "spark-5be3"}
    digest = provisioning.preview({"nodes": ["spark-5be3"], "key": []}).plan.digest
    refused = client.post(PAGE, {**form, "digest": digest})
    assert refused.status_code == 422 and "needs a reason" in refused.content.decode()
    changed = client.post(PAGE, {**form, "digest": "0" * 64, "reason": "new"})
    assert changed.status_code == 409
    loading = client.post(PAGE, {**form, "digest": digest, "reason": "new"})
    assert loading.status_code == 409 and f"run {seeded.loading.pk}" in loading.content.decode()
    Reservation.objects.all().delete()
    started = client.post(PAGE, {**form, "digest": digest, "reason": "new"})
    run = Run.objects.latest("pk")
    assert started.status_code == 302 and started.headers["Location"] == run.get_absolute_url()
    assert (run.story, run.digest, run.why) == ("provision", digest, "new")
    entry = Entry.objects.latest("pk")
    assert (entry.action, entry.outcome, entry.reason) == ("node:provision", "requested", "new")
    assert client.get(run.get_absolute_url()).status_code == 200
    held = client.post(PAGE, {**form, "digest": digest, "reason": "again"})
    assert held.status_code == 409 and f"run {run.pk}" in held.content.decode()


def test_a_password_is_sealed_and_nowhere_else(signed_in: Callable[[str], Client], seeded: seed.Seeded) -> None:
    client, secret = signed_in("editor"), "Tr0ub4dor&3"
    wish = {"nodes": ["spark-5be3"], "key": ["spark-5be3"]}
    made = provisioning.preview(wish)
    assert made.passwords == ("once:login:spark-5be3",)
    form = {"node": "spark-5be3", "key": "spark-5be3", "digest": made.plan.digest, "reason": "new"}
    missing = client.post(PAGE, form)
    assert missing.status_code == 422 and "password of spark-5be3 is missing" in missing.content.decode()
    wrong = client.post(PAGE, {**form, "digest": "0" * 64, "password:once:login:spark-5be3": secret})
    assert wrong.status_code == 409 and secret not in wrong.content.decode()
    Reservation.objects.all().delete()
    assert client.post(PAGE, {**form, "password:once:login:spark-5be3": secret}).status_code == 302
    run = Run.objects.latest("pk")
    kept = Passing.objects.get(run=run)
    assert secret not in kept.sealed_value and secret not in str(run.plan)
    assert not [entry for entry in Entry.objects.all() if secret in str(entry.__dict__)]
    assert secret not in client.get(run.get_absolute_url()).content.decode()


def test_nothing_recorded_is_said(signed_in: Callable[[str], Client], seeded: seed.Seeded) -> None:
    answer = signed_in("editor").get("/nodes/restore", {"node": "spark-5be3"})
    assert answer.status_code == 409 and "is left to be put back" in answer.content.decode()
