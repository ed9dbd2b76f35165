"""The lab's nodes with a model of some megabytes on the head."""

from __future__ import annotations

import pytest

from tests.copying.models import hub_model
from tests.story.conftest import ADMIN, Cluster, cluster, ended, worker

__all__ = ["ADMIN", "Cluster", "cluster", "ended", "worker"]


@pytest.fixture
def tiny(cluster: Cluster) -> str:
    below = hub_model(cluster.lab.root("spark-1a32") / "home/aurora/.cache/huggingface/hub")
    assert cluster.probe().state == "succeeded"
    return f"/home/aurora/.cache/huggingface/hub/{below}"
