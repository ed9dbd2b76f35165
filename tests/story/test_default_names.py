"""A deployment without a container name of its own: plan, record and watch call its containers the same."""

from __future__ import annotations

import pytest

from apps.watch import looking
from tests.story.conftest import ended

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_watch_finds_containers_that_were_named_by_default(cluster):
    deployment = cluster.deployment(container="")
    run = ended(cluster.start(deployment), 120)
    assert run.state == "succeeded", run.evidence
    assert [rank.container for rank in deployment.ranks.all()] == [f"sparkweb-qwen3.5-122b-r{n}" for n in (0, 1)]
    seen = set()
    for _ in range(3):
        looking.look()
        deployment.refresh_from_db()
        seen.add(deployment.state)
    # On a busy machine a look may come too late and is called unreachable; but nothing is ever called gone.
    assert seen <= {"serving", "unreachable"}, deployment.evidence
