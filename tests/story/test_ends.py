"""`vllm serve` alone, Ray alone and the container: whichever of them is killed on a node has a name of its own, over real SSH."""

from __future__ import annotations

import os
import time

import pytest

from apps.deployments import services as deployments
from apps.deployments.models import Deployment
from apps.inventory import services as inventory
from apps.recipes.models import Recipe
from apps.recipes.services import current_version
from apps.runs import lines
from apps.runs.models import Run
from apps.runs.working import pool
from apps.watch import looking
from tests.story.conftest import ADMIN, HEAD, SECOND, ended

pytestmark = pytest.mark.django_db(transaction=True)
FIRST, OTHER = "vllm-qwen35-r0", "vllm-qwen35-r1"
OUTSIDE = "was stopped or killed from outside, exit code 137"
SERVE = f"docker exec {FIRST} pkill -KILL -f 'vllm serve'"
RAY = f"docker exec {FIRST} pkill -KILL -x gcs_server"


def on_node(cluster, name: str, command: str) -> None:
    node = cluster.head if name == HEAD else cluster.second
    result = pool().get(inventory.endpoint(node)).run(command, timeout_s=30)
    assert result.ok, (command, result.stderr)


def reported(cluster) -> Deployment:
    """The main job's deployment; what is left of it when a rank is lost is left alone."""
    version = current_version(Recipe.objects.get(slug="qwen3.5-122b-a10b-fp8"))
    body = {**version.body, "container": "vllm-qwen35"}
    return deployments.create(
        ADMIN, name="ends", body=body, nodes=[HEAD, SECOND], recipe_version=version, on_rank_lost="report"
    )


def told(deployment: Deployment, words: str) -> Deployment:
    """The deployment when the watch's evidence has these words in it."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        looking.look()
        deployment.refresh_from_db()
        if words in deployment.evidence:
            return deployment
        time.sleep(0.3)
    raise AssertionError((words, deployment.state, deployment.reason, deployment.evidence))


def killed_while_loading(cluster, run: Run, command: str) -> Run:
    """The run at its end, after the command was given on its head in the middle of the load."""
    until = time.monotonic() + 90
    while "checkpoint shards" not in text_of(run):
        run = Run.objects.get(pk=run.pk)
        assert not run.ended and time.monotonic() < until, (run.reason, run.evidence, text_of(run))
        time.sleep(0.2)
    on_node(cluster, HEAD, command)
    run = ended(run)
    assert run.state == "failed", text_of(run)
    return run


def text_of(run: Run) -> str:
    return "\n".join(line["text"] for line in lines.lines(run, limit=5000)["lines"])


def test_what_is_killed_while_it_serves_has_a_name_of_its_own(cluster):
    """`vllm serve`, then the other node's container, then Ray, all on one launch."""
    deployment = reported(cluster)
    run = ended(cluster.start(deployment), 120)
    assert run.state == "succeeded", (run.evidence, text_of(run))

    on_node(cluster, HEAD, SERVE)
    seen = told(deployment, f"the engine of rank 0 on {HEAD} ended, its container is still up")
    assert (seen.state, seen.reason) == ("degraded", "rank_lost") and "killed from outside" not in seen.evidence
    on_node(cluster, SECOND, f"docker kill {OTHER}")
    seen = told(deployment, f"rank 1 on {SECOND} is gone (its container {OUTSIDE})")
    assert (seen.state, seen.reason) == ("degraded", "rank_lost")
    on_node(cluster, HEAD, RAY)
    seen = told(deployment, f"Ray in {FIRST} ended with exit code 1; {OTHER} {OUTSIDE}.")
    assert (seen.state, seen.reason) == ("lost", "vanished")


@pytest.mark.skipif(not os.environ.get("SPARKWEB_SYSTEMS"), reason="three launches: run by make test-systems")
def test_what_is_killed_in_the_middle_of_a_load_ends_it_for_a_reason_of_its_own(cluster):
    """The second try that starts by itself is the next one's."""
    cluster.lab.set(shard_s=300)  # 21 s a load
    cluster.probe()
    deployment = reported(cluster)
    run = killed_while_loading(cluster, cluster.start(deployment), SERVE)
    assert run.reason == "exited" and "Serve ended with 137" in run.evidence, (run.evidence, text_of(run))
    again = killed_while_loading(cluster, Run.objects.get(second_try_of=run), RAY)
    assert again.reason == "ray_ended", (again.evidence, text_of(again))
    assert f"Ray in {FIRST} on {HEAD} ended with 1" in again.evidence
    last = killed_while_loading(cluster, cluster.start(deployment, story="relaunch"), f"docker kill {FIRST}")
    assert last.reason == "container_killed" and f"{FIRST} on {HEAD} {OUTSIDE}" in last.evidence, (
        last.evidence,
        text_of(last),
    )
    deployment.refresh_from_db()
    assert (deployment.state, deployment.reason) == ("failed", "container_killed")
