"""The report of the story's rows: as a page, as Markdown, as JSON and by the API; what each role may see of it."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client
from django.utils import timezone

from apps.audit.actor import COMMAND_LINE
from apps.benchmarks.models import Benchmark
from apps.deployments.models import Deployment
from apps.inventory.models import Node
from apps.people import services as people
from apps.report import gathering, markdown, shaping
from tests.benchmarks.test_compare_pure import row


def fleet(trail: bool = True) -> dict[str, Any]:
    return shaping.report(gathering.fleet(trail=trail))


def test_the_fleet_in_one_page(seeded: Any, signed_in: Any) -> None:
    page = signed_in("viewer").get("/report")
    text = page.content.decode()
    assert page.status_code == 200
    for word in (
        "qwen3.5-122b",
        "Services of before wait on spark-1a32",
        "pro6000",
        "No route to host",
        "vllm-cluster.service",
        "util 0.85, OOM killer of Ray off",
        "/models/Qwen3.5-122B-A10B-FP8",
        ".local/state/sparkweb/jobs/",
        "0.17.1rc1",
    ):
        assert word in text, word
    assert 'style="' not in text and "<script>" not in text


def test_the_files_say_the_same(seeded: Any, signed_in: Any) -> None:
    browser = signed_in("viewer")
    made = browser.get("/report?format=json")
    body = json.loads(made.content)
    assert (body["format"], body["version"], body["scope"]) == ("sparkweb-report", 1, "fleet")
    assert made["Content-Disposition"].startswith('attachment; filename="sparkweb-report-fleet-')
    assert {one["name"] for one in body["deployments"]} >= {"qwen3.5-122b", "qwen3.5-122b-b"}
    text = browser.get("/report?format=markdown")
    assert text["Content-Type"].startswith("text/markdown")
    assert text.content.decode().startswith("# State of the fleet\n")
    assert "| util 0.85, OOM killer of Ray off |" in text.content.decode()


def test_of_one_deployment(seeded: Any, signed_in: Any) -> None:
    browser = signed_in("viewer")
    assert f"/deployments/{seeded.lost.pk}/report" in browser.get(f"/deployments/{seeded.lost.pk}").content.decode()
    page = browser.get(f"/deployments/{seeded.lost.pk}/report").content.decode()
    assert (
        "State of qwen3.5-122b" in page and "Both nodes rebooted 24 min ago" in page and "qwen3.5-122b-big" not in page
    )
    body = json.loads(browser.get(f"/deployments/{seeded.lost.pk}/report?format=json").content)
    (one,) = body["deployments"]
    assert [node["name"] for node in body["nodes"]] == ["spark-1a32", "spark-5be3"] == one["nodes"]
    assert body["nodes"][0]["facts"]["age_s"] < 3600
    assert one["launch"]["reason"] == "util 0.85, OOM killer of Ray off"
    assert one["services"][0]["versions"]["vllm"] == "0.17.1rc1"
    assert one["settings"] and all(row["reason"] for row in one["settings"])
    assert [row["reason"] for row in body["decisions"]].count("util 0.85, OOM killer of Ray off") >= 1
    assert not any(row["object"]["name"] == "qwen3.5-122b-big" for row in body["decisions"])
    assert {row["what"] for row in body["problems"]} >= {"replaced", "cleared"}
    kinds = {row["kind"] for row in body["nodes"][0]["files"]}
    assert kinds >= {"job", "model", "image", "container", "unit"}
    assert browser.get("/deployments/999999/report").status_code == 404


def test_what_serves_and_where_it_is_reached(seeded: Any) -> None:
    body = shaping.report(gathering.of_deployment(seeded.serving, trail=True))
    (one,) = body["deployments"]
    assert one["services"][0]["endpoint"]["url"].endswith(":30000/v1")
    assert one["ranks"][0]["container"] == "vllm-b-r0" and one["revision"]["running"] == 1
    assert {row["what"] for row in body["limitations"]} >= {"manual"}


def test_benchmarks_and_one_that_is_worse(seeded: Any, signed_in: Any) -> None:
    deployment = seeded.serving
    for name, faster, good in (("then", 1.0, True), ("now", 0.7, False)):
        result = {"made": "2026-11-30T10:00:00Z", "tool": "sparkweb", **row(faster=faster).result}
        Benchmark.objects.create(
            name=name, result=result, good=good, deployment=deployment, revision=deployment.revision
        )
    body = shaping.report(gathering.of_deployment(deployment, trail=True))
    now, then = body["deployments"][0]["benchmarks"]
    assert (now["name"], now["against"], then["good"]) == ("now", "then", True)
    assert then["levels"][0] == {"concurrency": 1, "aggregate_tok_s": 26, "ttft_s": 0.48}
    (slower,) = [one for one in body["problems"] if one["what"] == "slower"]
    assert "18.2 instead of 26 tokens/s" in slower["said"][0]
    assert "1: 26, 0.48 s; 2: 41" in markdown.of(body)
    assert "regression" in signed_in("viewer").get(f"/deployments/{deployment.pk}/report").content.decode()


def test_without_the_trail_there_are_no_reasons(seeded: Any) -> None:
    body = fleet(trail=False)
    assert body["decisions"] is None and any("audit trail" in one for one in body["left_out"])
    assert "Not shown to this role." in markdown.of(body)


def test_a_secret_is_masked_wherever_it_stands(seeded: Any) -> None:
    body = seeded.lost.revision.body
    revision = seeded.lost.revision
    revision.body = {**body, "arguments": ["--api-key", "sk-live-0123456789abcdefghij"]}
    revision.reason = "with hf_AbCdEfGh1234567890Zz in it"
    revision.save()
    text = json.dumps(shaping.report(gathering.of_deployment(seeded.lost, trail=True)))
    assert "0123456789abcdefghij" not in text and "hf_AbCd" not in text and "[masked]" in text


def test_a_thousand_of_everything(seeded: Any, signed_in: Any, django_assert_max_num_queries: Any) -> None:
    credential = Node.objects.get(name="spark-1a32").credential
    Node.objects.bulk_create(
        Node(name=f"n{number}", address=f"10.9.{number // 250}.{number % 250}", user="u", credential=credential)
        for number in range(1000)
    )
    Deployment.objects.bulk_create(Deployment(name=f"d{number}", state="stopped") for number in range(1000))
    revision = type(seeded.lost.revision)
    body = seeded.lost.revision.body
    revision.objects.bulk_create(
        revision(deployment=one, number=1, body=body) for one in Deployment.objects.filter(name__startswith="d")
    )
    with django_assert_max_num_queries(3500):
        made = fleet()
    assert len(made["deployments"]) == gathering.MOST_DEPLOYMENTS and len(made["nodes"]) == gathering.MOST_NODES
    assert made["deployments"][0]["state"] == "failed"
    assert len(made["left_out"]) == 2 and "1005" in made["left_out"][0]
    began = timezone.now()
    assert signed_in("viewer").get("/report").status_code == 200
    assert (timezone.now() - began).total_seconds() < 20


def test_the_api(seeded: Any) -> None:
    token = people.make_token(COMMAND_LINE, name="reads", role="viewer").value
    client = Client(headers={"authorization": f"Bearer {token}"})
    body = client.get("/api/v1/report").json()
    assert body["scope"] == "fleet" and body["decisions"]
    one = client.get(f"/api/v1/deployments/{seeded.lost.pk}/report").json()
    assert one["name"] == "qwen3.5-122b" and set(one) == set(body)
    assert client.get("/api/v1/deployments/999999/report").status_code == 404
    assert Client().get("/api/v1/report").status_code == 401
