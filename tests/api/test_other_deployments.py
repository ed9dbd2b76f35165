"""What a program is told of a node that another deployment has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from apps.deployments import queries, services
from apps.deployments.models import Deployment, Rank
from apps.facts.values import Container
from apps.inventory import services as inventory
from tests.api.conftest import EDITOR, Program, Story
from tests.plan import sheets


def serving(story: Story) -> Container:
    """The story's deployment serves on the head, as the sheet shows it."""
    Deployment.objects.filter(pk=story.deployment.pk).update(state="serving")
    Rank.objects.create(
        deployment=story.deployment,
        number=0,
        node=story.head,
        revision=story.deployment.revision,
        run_id=1,
        container="vllm-qwen35-r0",
    )
    container = Container(
        "vllm-qwen35-r0",
        state="running",
        labels={"sparkweb.deployment": str(story.deployment.pk)},
        memory_bytes=99 << 30,
        network="host",
    )
    inventory.store_sheet(story.head, replace(sheets.head(), containers=(container,), units=()))
    return container


def second(story: Story) -> Deployment:
    body = {**story.deployment.revision.body, "container": "other", "port": 30001}
    nodes = body.pop("nodes")
    return services.create(EDITOR, name="second", body=body, nodes=nodes)


def test_the_plan_names_who_serves_there_and_the_launch_is_refused(
    story: Story, program: Callable[..., Program]
) -> None:
    serving(story)
    other, api = second(story), program("editor")
    clear = [{"node": "spark-1a32", "kind": "container", "name": "vllm-qwen35-r0", "disable": False}]
    for asked in ([], clear):
        plan = api.post(f"deployments/{other.pk}/plan", {"clear": asked}).body
        (stop,) = [one for one in plan["problems"] if one["deployment"]]
        assert (stop["name"], stop["severity"], stop["deployment"]) == ("other_deployment", "stop", story.deployment.pk)
        assert stop["title"] == "qwen is serving on spark-1a32" and stop["clear"] == []
        assert not [item for one in plan["problems"] for item in one["clear"]]
        answer = api.post(f"deployments/{other.pk}/launch", {"digest": plan["digest"], "clear": asked})
        assert (answer.status, answer.body["reason"]) == (409, "other_deployment")
        assert answer.body["deployment"] == story.deployment.pk


def test_only_what_runs_on_these_nodes_comes_with_its_spec(story: Story) -> None:
    other = second(story)
    (known,) = queries.others(other, ["spark-1a32"])
    assert known.name == "qwen" and known.spec == story.deployment.revision.spec
    serving(story)
    services.revise(
        EDITOR,
        story.deployment,
        body={**story.deployment.revision.body, "port": 30005},
        nodes=["spark-1a32"],
        reason="x",
    )
    (known,) = queries.others(other, ["spark-1a32"])
    assert known.state == "serving" and known.spec is not None and known.spec.port == 30000
    (known,) = queries.others(other, ["spark-5be3"])
    assert known.spec is None
