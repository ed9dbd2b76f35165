"""A deployment that holds nothing is put away; its history stays and its nodes may be removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from apps.audit.models import Entry
from apps.deployments import services
from apps.deployments.models import Deployment, Rank
from apps.diagnosis.refusal import Refused
from apps.facts.values import Container
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.people.models import User
from apps.runs.models import Run, Step
from tests.api.conftest import EDITOR, Program, Story
from tests.plan import sheets
from tests.web.conftest import browser_of


def put(story: Story, **fields: Any) -> Deployment:
    Deployment.objects.filter(pk=story.deployment.pk).update(**fields)
    return Deployment.objects.get(pk=story.deployment.pk)


def archived(deployment: Deployment) -> bool:
    return Deployment.objects.exclude(archived_at=None).filter(pk=deployment.pk).exists()


@pytest.mark.parametrize("state", ["draft", "stopped", "failed", "lost"])
def test_what_holds_nothing_is_archived_and_comes_back_as_it_was(story: Story, state: str) -> None:
    deployment = put(story, state=state)
    Rank.objects.create(deployment=deployment, number=0, node=story.head, revision=deployment.revision, run_id=1)
    services.archive(EDITOR, deployment, reason=" over ")
    services.archive(EDITOR, deployment)
    assert archived(deployment) and not Rank.objects.exists()
    services.unarchive(EDITOR, deployment)
    services.unarchive(EDITOR, deployment)
    assert not archived(deployment) and put(story).state == state
    told = Entry.objects.filter(object_type="deployment", object_id=str(deployment.pk)).order_by("id")
    assert [(one.action, one.reason) for one in told][-2:] == [
        ("deployment:archived", "over"),
        ("deployment:unarchived", ""),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        *({"state": state} for state in ("serving", "degraded", "launching", "stopping", "unreachable")),
        {"state": "failed", "reason": "cleanup_incomplete"},
    ],
)
def test_what_may_hold_something_is_not(story: Story, fields: dict[str, str]) -> None:
    deployment = put(story, **fields)
    with pytest.raises(Refused) as refused:
        services.archive(EDITOR, deployment)
    assert (refused.value.reason, refused.value.status) == ("in_use", 409) and "Stop it" in refused.value.remedy
    assert not archived(deployment)


@pytest.mark.parametrize(
    "fields", [{"state": "failed", "reason": "exited"}, {"state": "stopped", "reason": "cleanup_incomplete"}]
)
def test_a_container_that_still_runs_is_named(story: Story, fields: dict[str, str]) -> None:
    """Also after a cancel that did not wait any longer for a node."""
    mine = Container("left", state="running", labels={"sparkweb.deployment": str(story.deployment.pk)})
    inventory.store_sheet(story.head, replace(sheets.head(), containers=(mine,)))
    deployment = put(story, **fields)
    with pytest.raises(Refused, match="Container left of qwen runs on spark-1a32"):
        services.archive(EDITOR, deployment)
    inventory.store_sheet(story.head, replace(sheets.head(), containers=(replace(mine, state="exited"),)))
    services.archive(EDITOR, deployment)


def test_programs_archive_list_and_bring_back(story: Story, program: Callable[..., Program]) -> None:
    api, path = program("editor"), f"deployments/{story.deployment.pk}"
    assert program("operator").post(f"{path}/archive").status == 403
    plan = api.post(f"{path}/plan", {}).body
    answer = api.post(f"{path}/archive", {"reason": "over"})
    assert answer.status == 200 and answer.body["archived_at"]
    assert api.get("deployments").body["deployments"] == []
    assert [one["name"] for one in api.get("deployments?archived=true").body["deployments"]] == ["qwen"]
    assert api.get(path).status == 200 and api.get(f"{path}/revisions").status == 200
    for refused in ("plan", "launch"):
        assert api.post(f"{path}/{refused}", {"digest": plan["digest"]}).status in (404, 422)
    again = api.post("deployments", {"name": "qwen", "recipe": "qwen3.5-122b-a10b-fp8", "nodes": ["spark-1a32"]})
    assert again.status == 422 and "An archived deployment called qwen" in again.body["detail"]
    assert api.post(f"{path}/unarchive").body["archived_at"] is None
    Deployment.objects.update(state="serving")
    answer = api.post(f"{path}/archive")
    assert (answer.status, answer.body["reason"]) == (409, "in_use")


def test_people_archive_find_and_bring_back(story: Story) -> None:
    browser, path = browser_of(User.objects.create(name="Edda", role="editor")), f"/deployments/{story.deployment.pk}"
    Deployment.objects.update(state="serving")
    refused = browser.post(f"{path}/archive")
    assert refused.status_code == 409 and "qwen is serving." in refused.content.decode()
    Deployment.objects.update(state="stopped")
    assert browser.post(f"{path}/archive", {"reason": "over"}).headers["Location"] == "/deployments"
    assert path not in browser.get("/deployments").content.decode()
    assert path in browser.get("/deployments?state=archived").content.decode()
    page = browser.get(path).content.decode()
    assert "Bring qwen back" in page and "/plan?story=" not in page and f"{path}/change" not in page
    assert browser.get(f"{path}/plan").status_code == 404
    assert browser.post(f"{path}/archive", {"back": "1"}).headers["Location"] == path
    assert not archived(story.deployment)


def test_its_nodes_can_be_removed_and_its_runs_still_name_them(story: Story, program: Callable[..., Program]) -> None:
    deployment, api = put(story, state="lost"), program("editor")
    Rank.objects.create(deployment=deployment, number=1, node=story.second, revision=deployment.revision, run_id=1)
    stage = {"name": "Serve", "phase": "loading", "steps": [{"key": "a", "node": "spark-5be3"}]}
    run = Run.objects.create(code="c", story="launch", deployment=deployment, plan={"stages": [stage]})
    step = Step.objects.create(run=run, stage=0, ordinal=0, key="a", node=story.second, title="t", kind="note")
    path = f"nodes/{story.second.pk}"
    refused = api.send("DELETE", path).body
    assert (refused["detail"], refused["remedy"]) == ("qwen has ranks on spark-5be3.", "Stop it first.")
    services.archive(EDITOR, deployment)
    assert api.send("DELETE", path).body["detail"] == "A run is at work on spark-5be3."
    Run.objects.update(state="failed")
    assert api.send("DELETE", path).status == 204
    assert not Node.objects.filter(pk=story.second.pk).exists()
    step = Step.objects.get(pk=step.pk)
    assert (step.node, step.node_name) == (None, "spark-5be3")
    assert [one["node"] for one in api.get(f"runs/{run.pk}").body["steps"]] == ["spark-5be3"]
