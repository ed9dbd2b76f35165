"""The form that fetches a model, who may use it, and the progress beside the run's steps."""

from __future__ import annotations

from collections.abc import Callable

from django.test import Client

from apps.audit.models import Entry
from apps.inventory import services as inventory
from apps.runs.models import Reservation, Run
from tests.runs.conftest import ADMIN
from tests.web import seed

PAGE = "/models/fetch"
FORM = {"node": "spark-5be3", "repo": "acme/tiny-1b", "include": "*.json\r\n*.safetensors", "reason": "for friday"}


def test_the_form_leads_to_a_run_and_a_second_request_to_the_same(
    signed_in: Callable[[str], Client], seeded: seed.Seeded
) -> None:
    client = signed_in("editor")
    node = client.get(seeded.second.get_absolute_url()).content.decode()
    assert f'href="{PAGE}?node=spark-5be3"' in node
    assert '<option value="spark-5be3" selected>' in client.get(PAGE, {"node": "spark-5be3"}).content.decode()
    held = Reservation.objects.count()
    first = client.post(PAGE, {**FORM, "idempotency": "a"})
    run = Run.objects.get(story="fetch")
    assert first.status_code == 302 and first["Location"] == run.get_absolute_url()
    assert run.parameters["wish"]["include"] == ["*.json", "*.safetensors"]
    assert Reservation.objects.count() == held
    second = client.post(PAGE, {**FORM, "idempotency": "b"})
    assert second["Location"] == run.get_absolute_url()
    assert [one.after.get("joined") for one in Entry.objects.filter(action="node:fetch").order_by("id")] == [
        None,
        run.pk,
    ]
    for changed in ({"revision": "v2"}, {"include": "*.json"}):
        refused = client.post(PAGE, {**FORM, **changed})
        assert refused.status_code == 409 and f"Run {run.pk}" in refused.content.decode()
    other = client.post(PAGE, {**FORM, "repo": "acme/other"})
    assert other["Location"] != run.get_absolute_url()


def test_what_is_wrong_stands_beside_its_field_and_what_was_typed_stays(
    signed_in: Callable[[str], Client], seeded: seed.Seeded
) -> None:
    inventory.keep_secret(ADMIN, name="hub", value="hf_verysecret")
    client = signed_in("editor")
    for field, value in (
        ("repo", "../x"),
        ("token", "gone"),
        ("node", "nobody"),
        ("endpoint", "ftp://x"),
        ("streams", "99"),
    ):
        answer = client.post(PAGE, {**FORM, field: value})
        text = answer.content.decode()
        assert answer.status_code == 422, field
        assert f'id="field-{field}" name="{field}"' in text and 'aria-invalid="true"' in text, field
        assert "for friday" in text and "hf_verysecret" not in text
    assert not Run.objects.filter(story="fetch").exists()
    assert [signed_in(role).get(PAGE).status_code for role in ("viewer", "operator")] == [403, 403]


def test_the_run_shows_bytes_rate_time_left_and_files(signed_in: Callable[[str], Client], seeded: seed.Seeded) -> None:
    client = signed_in("editor")
    client.post(PAGE, FORM)
    run = Run.objects.get(story="fetch")
    name = "a/" + "very-" * 30 + "long.safetensors"
    detail = {"files_done": 3, "files": 9, "rate": 110_000_000, "seconds_left": 272}
    detail["current"] = [{"path": name, "done": 10, "size": 20}]
    progress = {"phase": "fetching", "overall": 0.25, "done": 10_000_000_000, "total": 40_000_000_000, "detail": detail}
    run.steps.filter(key="fetch.files.spark-5be3").update(state="running", progress={"progress": progress})
    text = client.get(run.get_absolute_url()).content.decode()
    assert "3 of 9" in text and name in text and "about 4 min 32 s to go" in text
    assert "10.0 GB of 40.0 GB" in text and "110.0 MB/s" in text
    assert "Fetch acme/tiny-1b on spark-5be3" in text
