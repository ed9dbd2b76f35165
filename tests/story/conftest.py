"""Two pretend Sparks behind real SSH, enrolled through the product, and a worker that lives in the test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from apps.deployments import services as deployments
from apps.deployments.models import Deployment
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.lab import Lab
from apps.plan.step import Plan
from apps.recipes.models import Recipe
from apps.recipes.services import current_version, load_shipped
from apps.runs import services
from apps.runs.models import Run
from tests.runs.conftest import ADMIN, OPERATOR, ended, worker

__all__ = ["ADMIN", "OPERATOR", "ended", "worker"]
HEAD, SECOND = "spark-1a32", "spark-5be3"


@dataclass
class Cluster:
    lab: Lab
    head: Node
    second: Node

    def deployment(self, **changes: object) -> Deployment:
        version = current_version(Recipe.objects.get(slug="qwen3.5-122b-a10b-fp8"))
        return deployments.create(
            ADMIN, name="qwen3.5-122b", body={**version.body, **changes}, nodes=[HEAD, SECOND], recipe_version=version
        )

    def probe(self) -> Run:
        return ended(services.probe(OPERATOR, [self.head, self.second]))

    def clears(self, plan: Plan) -> tuple:
        return services.clear_from(
            [{**item, "disable": False} for p in plan.problems if p.severity == "consent" for item in p.clear]
        )

    def start(self, deployment: Deployment, *, story: str = "launch", actor=ADMIN) -> Run:
        clear = self.clears(services.preview(actor, deployment, story=story))
        plan = services.preview(actor, deployment, story=story, clear=clear)
        return services.start(actor, deployment, story=story, digest=plan.digest, reason="a test", clear=clear)

    def job_file(self, node: str, job_id: str) -> Path:
        found = list((self.lab.root(node)).glob(f"**/jobs/{job_id}/log"))
        assert len(found) == 1, found
        return found[0]


def enrol(lab: Lab) -> Cluster:
    load_shipped()
    key = inventory.make_credential(ADMIN, name="lab")
    lab.authorize(key.public_key)
    known = {name: node for name, node in lab.nodes.items()}
    head = services.enrol(
        ADMIN, name=HEAD, address="127.0.0.1", port=known[HEAD].port, user="aurora", credential=key, jump=None
    )
    head = inventory.confirm_host_key(ADMIN, head, sha256=known[HEAD].host_keys[0]["sha256"])
    second = services.enrol(
        ADMIN, name=SECOND, address="192.168.200.13", port=22, user="aurora", credential=key, jump=head
    )
    second = inventory.confirm_host_key(ADMIN, second, sha256=known[SECOND].host_keys[0]["sha256"])
    return Cluster(lab, head, second)


@pytest.fixture
def cluster(worker, settings, tmp_path):
    settings.SLICE_S = 3.0
    with Lab.start(tmp_path / "lab", factor=100.0, shards=7) as lab:
        made = enrol(lab)
        for _ in range(5):  # a busy machine may answer too late
            if made.probe().state == "succeeded":
                break
        yield made
