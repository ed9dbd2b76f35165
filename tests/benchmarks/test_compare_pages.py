"""Benchmarks as people and programs meet them: choose, import, a row by hand, what is good, files, the API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from apps.audit.actor import COMMAND_LINE, Actor
from apps.audit.models import Entry
from apps.benchmarks import comparing
from apps.benchmarks.models import Benchmark
from apps.diagnosis.refusal import Refused
from apps.people import services as people
from tests.benchmarks.test_compare_import import benchy, benchy_entry, vllm
from tests.benchmarks.test_compare_pure import row

ADMIN = Actor("person", 1, "root1", "admin")
FIELD = "shipped-field-qwen3.5-122b-2-sparks"
pytestmark = pytest.mark.django_db


def stored(name: str, **over: Any) -> Benchmark:
    return Benchmark.objects.create(
        name=name, result={"made": "2026-11-30T10:00:00Z", "tool": "sparkweb", **row(**over).result}
    )


def test_before_anything_was_measured(signed_in: Any) -> None:
    text = signed_in("viewer").get("/benchmarks").content.decode()
    assert "Nothing was measured here yet" in text and "Measured in the field" in text and "reference" in text
    assert 'style="' not in text and "/benchmarks/import" not in text
    assert text.count('class="plot"') == 3 and "49 % of what 273 GB/s allow" in text


def test_side_by_side_with_a_regression(signed_in: Any) -> None:
    browser = signed_in("operator")
    good, bad = stored("first"), stored("second", faster=0.8, subject={"revision": 2})
    reply = browser.post(f"/benchmarks/{good.pk}/good?id={good.pk}&id={bad.pk}", {"reason": "as in the field"})
    assert reply.status_code == 302 and reply.url == f"/benchmarks?id={good.pk}&id={bad.pk}"
    text = browser.get(reply.url).content.decode()
    assert "known good" in text and "regression" in text and "20.8 instead of 26 tokens/s at 1 (20% fewer)" in text
    assert "more than 10% below the best" in text and ">prompt tokens<" not in text and ">revision<" in text
    entry = Entry.objects.get(action="benchmark:marked_good")
    assert (entry.object_id, entry.reason, entry.actor_name) == (str(good.pk), "as in the field", "operator person")
    browser.post(f"/benchmarks/{good.pk}/good", {"reason": "a mistake", "no": "1"})
    assert not Benchmark.objects.get(pk=good.pk).good and Entry.objects.filter(action="benchmark:unmarked").exists()
    assert "A reason is missing" in browser.post(f"/benchmarks/{good.pk}/good", {"reason": " "}).content.decode()


def test_what_can_not_be_good() -> None:
    with pytest.raises(Refused, match="nobody's own"):
        comparing.mark(ADMIN, stored("r", source="reference"), good=True, reason="x")
    with pytest.raises(Refused, match="no level"):
        comparing.mark(ADMIN, stored("r", levels=[{"aggregate_tok_s": 1}]), good=True, reason="x")


def test_import_by_text_and_by_file(signed_in: Any) -> None:
    browser = signed_in("operator")
    text = json.dumps(benchy(benchy_entry(1), benchy_entry(4)))
    reply = browser.post(
        "/benchmarks/import", {"text": text, "hardware": "DGX Spark (GB10)", "where": "the lab next door"}
    )
    one = Benchmark.objects.get()
    assert reply.url == f"/benchmarks?id={one.pk}" and one.name == "Qwen3.5-122B-A10B-FP8, llama-benchy, 2026-08-28"
    assert one.result["subject"]["hardware"] == "DGX Spark (GB10)" and one.result["where"] == "the lab next door"
    assert Entry.objects.filter(action="benchmark:imported", object_id=str(one.pk)).count() == 1
    browser.post("/benchmarks/import", {"text": text, "hardware": "DGX Spark (GB10)", "where": "the lab next door"})
    assert Benchmark.objects.count() == 1  # the same again is not a second one
    file = SimpleUploadedFile("a.json", json.dumps(vllm(4)).encode(), content_type="application/json")
    browser.post("/benchmarks/import", {"file": file, "name": "mine"})
    assert Benchmark.objects.filter(name="mine").exists()
    bad = browser.post("/benchmarks/import", {"text": json.dumps(vllm(4, duration="long"))})
    assert bad.status_code == 422 and "<code>duration</code>" in bad.content.decode() and "long" in bad.content.decode()
    binary = browser.post("/benchmarks/import", {"file": SimpleUploadedFile("a.bin", b"\xff\xfe\x00")})
    assert binary.status_code == 422 and "no text in UTF-8" in binary.content.decode()
    assert signed_in("viewer").post("/benchmarks/import", {"text": text}).status_code == 403


def test_a_row_by_hand(signed_in: Any) -> None:
    browser = signed_in("operator")
    form = {
        "name": "theirs",
        "where": "their blog",
        "model": "Qwen/Qwen3-8B",
        "hardware": "RTX 5090",
        "concurrency-0": "1",
        "aggregate_tok_s-0": "98,5",
    }
    bad = browser.post("/benchmarks/by-hand", form | {"ttft_s-0": "soon"})
    assert (
        bad.status_code == 422
        and "First token, line 1: " in bad.content.decode()
        and 'value="their blog"' in bad.content.decode()
    )
    assert "Say where it is from" in browser.post("/benchmarks/by-hand", form | {"where": ""}).content.decode()
    assert (
        "at least one level"
        in browser.post("/benchmarks/by-hand", {k: v for k, v in form.items() if "-0" not in k}).content.decode()
    )
    browser.post("/benchmarks/by-hand", form)
    one = Benchmark.objects.get()
    assert one.result["source"] == "reference" and one.result["levels"][0]["aggregate_tok_s"] == 98.5
    page = browser.get(f"/benchmarks?id={one.pk}").content.decode()
    assert "Source: their blog" in page and "Mark as good" not in page
    browser.post(f"/benchmarks/{one.pk}/remove", {"reason": "wrong machine"})
    assert not Benchmark.objects.exists() and Entry.objects.get(action="benchmark:removed").reason == "wrong machine"


def test_several_machines_are_judged_once_their_split_is_said(signed_in: Any) -> None:
    browser = signed_in("operator")
    text = json.dumps(benchy(benchy_entry(1)))
    browser.post("/benchmarks/import", {"text": text, "hardware": "2 × DGX Spark (GB10)"})
    one = Benchmark.objects.get()
    assert "how the model is split over 2" in browser.get(f"/benchmarks?id={one.pk}").content.decode()
    reply = browser.post(
        "/benchmarks/import", {"text": text, "hardware": "2 × DGX Spark (GB10)", "tensor_parallel": "2"}
    )
    assert "of what 273 GB/s allow" in browser.get(reply.url).content.decode()
    assert browser.post("/benchmarks/import", {"text": text, "tensor_parallel": "two"}).status_code == 422


def test_what_was_measured_stays() -> None:
    with pytest.raises(Refused, match="is kept"):
        comparing.remove(ADMIN, stored("mine"), reason="x")


def test_unknown_and_too_many(signed_in: Any) -> None:
    browser = signed_in("viewer")
    assert "There is no benchmark 12345" in browser.get("/benchmarks?id=12345").content.decode()
    assert browser.get("/benchmarks?" + "&".join(f"id={n}" for n in range(40))).status_code == 422
    assert browser.get("/benchmarks?id=" + "9" * 400).status_code == 422


def test_a_thousand_results(signed_in: Any) -> None:
    result = {"made": "2026-11-30T10:00:00Z", "tool": "sparkweb", **row().result}
    Benchmark.objects.bulk_create(Benchmark(name=f"result {at} {'x' * 90}", result=result) for at in range(1000))
    page = signed_in("viewer").get("/benchmarks")
    assert page.status_code == 200 and "800 older ones" in page.content.decode()
    assert "result 7 " in signed_in("viewer").get("/benchmarks?text=result+7+").content.decode()


def test_files(signed_in: Any) -> None:
    browser = signed_in("viewer")
    one = stored("first")
    text = browser.get(f"/benchmarks/export?format=csv&id={one.pk}&id={FIELD}")
    assert text["Content-Type"].startswith("text/csv") and text.content.decode().count("\r\n") == 11
    body = json.loads(browser.get(f"/benchmarks/export?format=json&id={one.pk}").content)
    assert body["format"] == "sparkweb-benchmarks" and body["results"][0]["name"] == "first"
    assert len(json.loads(browser.get("/benchmarks/export?format=json").content)["results"]) == 4


def test_by_the_revision_of_a_deployment(seeded: Any) -> None:
    """What sparkweb knows of the revision beats what the result says: its files, its split, its nodes' GPUs."""
    deployment = seeded.serving
    one = stored("measured", subject={"hardware": None, "model": "aurora/renamed"})
    Benchmark.objects.filter(pk=one.pk).update(deployment=deployment, revision=deployment.revision)
    judged = comparing.judged(comparing.row_of(Benchmark.objects.get(pk=one.pk)))
    assert judged.bandwidth is not None and judged.bandwidth.gb_s == 273 and judged.split.tensor == 2
    assert judged.bounds and 40 < judged.bounds[0].per_request_tok_s < 65


def program(role: str) -> Client:
    token = people.make_token(COMMAND_LINE, name=role, role=role).value
    return Client(headers={"authorization": f"Bearer {token}"})


def test_the_api() -> None:
    api = program("operator")
    text = json.dumps(benchy(benchy_entry(1), benchy_entry(4)))
    made = api.post("/api/v1/benchmarks/import", {"text": text, "hardware": "GB10"}, content_type="application/json")
    (number,) = made.json()["benchmarks"]
    assert made.status_code == 201
    body = api.get(f"/api/v1/benchmarks/compare?ids={number},{FIELD}").json()
    mine, field = body["results"]
    assert mine["regression"] is None and field["roofline"]["levels"][0]["concurrency"] == 1
    assert field["roofline"]["bandwidth_gb_s"] == 273 and "more than 10%" in body["threshold"]
    assert body["differences"]["hardware"] == ["GB10", "2 × DGX Spark (GB10)"]
    assert {one["id"] for one in body["available"]} >= {str(number), FIELD}
    assert api.get("/api/v1/benchmarks/compare?ids=777").status_code in (404, 422)
    again = api.get(f"/api/v1/benchmarks/export?ids={number}").json()
    assert api.post(
        "/api/v1/benchmarks/import", {"text": json.dumps(again)}, content_type="application/json"
    ).json() == {"benchmarks": [number]}
    assert api.get(f"/api/v1/benchmarks/export?ids={number}&format=csv")["Content-Type"].startswith("text/csv")
    bad = api.post(
        "/api/v1/benchmarks/import", {"text": json.dumps(vllm(1, completed=None))}, content_type="application/json"
    )
    assert bad.status_code == 422 and bad.json()["field"] == "completed"
    assert (
        program("viewer").post("/api/v1/benchmarks/import", {"text": text}, content_type="application/json").status_code
        == 403
    )
