"""The main job on two real nodes: real systemd, sshd, Docker, Ray and vLLM, through the product's own services."""

from __future__ import annotations

import json

import pytest

from apps.inventory import services as inventory
from apps.plan.step import Plan
from apps.runs import queries, services
from tests.real.conftest import ADMIN, HEAD, PORT, SECOND, Cluster, ended, text_of

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]


def stops(plan: Plan) -> list[tuple[str, str, str]]:
    return [(problem.name, problem.node, problem.title) for problem in plan.problems if problem.severity == "stop"]


def test_both_nodes_tell_what_they_are(cluster: Cluster) -> None:
    for row, name in ((cluster.head, HEAD), (cluster.second, SECOND)):
        sheet = inventory.latest_sheet(row)
        assert sheet is not None and sheet.machine is not None
        assert sheet.machine.boot_id == cluster.real.boot_id(name)
        assert sheet.docker is not None and sheet.docker.version == "20.10.24+dfsg1"
        print(json.dumps({k: str(v)[:600] for k, v in sheet.__dict__.items() if k != "evidence"}, indent=1))


def test_tensor_parallel_over_ray(cluster: Cluster) -> None:
    deployment = cluster.deployment()
    plan = services.preview(ADMIN, deployment)
    assert stops(plan) == [], plan.problems
    run = cluster.launched(deployment)
    text = text_of(run)
    print(text)
    print(run.facts, run.outcome, queries.rank_progress(run), run.phases)
    stop = ended(cluster.start(deployment, story="stop"), 120)
    assert stop.state == "succeeded", (stop.reason, stop.evidence, text_of(stop))
    assert PORT
