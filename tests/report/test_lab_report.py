"""A launch over real SSH on the pretend Sparks, and its report: what it says lies on a node lies there."""

from __future__ import annotations

import json

import pytest

from apps.report import gathering, markdown, shaping
from tests.story.conftest import HEAD, SECOND, Cluster, cluster, ended, worker  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(280)]


def test_the_report_of_a_launch(cluster: Cluster) -> None:  # noqa: F811
    deployment = cluster.deployment()
    run = ended(cluster.start(deployment))
    assert run.state == "succeeded", (run.reason, run.evidence)
    deployment.refresh_from_db()
    body = shaping.report(gathering.of_deployment(deployment, trail=True))
    (one,) = body["deployments"]
    assert one["state"] == "serving" and one["services"][0]["endpoint"]["url"].endswith(":30000/v1")
    assert one["launch"]["run"] == run.pk and one["launch"]["reason"] == "a test" and one["services"][0]["proof"]
    assert [(rank["node"], rank["run"]) for rank in one["ranks"]] == [(HEAD, run.pk), (SECOND, run.pk)]
    assert any(row["run"] == run.pk and row["reason"] == "a test" for row in body["decisions"])
    for node in body["nodes"]:
        assert node["facts"]["age_s"] < 600
        jobs = [row for row in node["files"] if row["kind"] == "job" and row["where"]]
        assert jobs and all(row["ours"] for row in jobs)
        for row in jobs:
            code = row["where"].rsplit("/", 1)[1]
            (folder,) = cluster.lab.root(node["name"]).glob(f"**{row['where']}")
            assert folder.is_dir() and folder.name == code
        models = {row["where"] for row in node["files"] if row["kind"] == "model"}
        assert "/models/Qwen3.5-122B-A10B-FP8" in models
        containers = {row["where"]: row["ours"] for row in node["files"] if row["kind"] == "container"}
        assert any(containers.values())
    text = markdown.of(body)
    assert "# State of qwen3.5-122b\n" in text and HEAD in text and json.dumps(body)
