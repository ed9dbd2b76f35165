"""A deployment without a container name of its own: plan, record and watch call its containers the same."""

from __future__ import annotations

import pytest

from apps.watch import looking
from apps.watch.models import Followed, Point, Sighting
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
    head = deployment.ranks.get(number=0).node
    if "serving" in seen:
        api = Sighting.objects.get(node=head).body["apis"][0]
        assert (api["port"], api["health"], api["running"], api["asked_by"]) == (30000, 200, 0.0, "curl")
        assert api["tokens"] > 0, "the smoke test's"
        assert Followed.objects.get(deployment=deployment).body["apis"][""]["keyed"] is False
        assert Point.objects.filter(node=head, temp_c__gt=0, used_bytes__gt=0).exists()
    assert not {"drift", "readiness", "wedged"} & set(deployment.flags), "what was just launched is what was recorded"
