"""Adopt and take over in the browser: what is offered, who may, what is refused beside its field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from django.test import Client

from apps.audit.models import Entry
from apps.deployments import state
from apps.deployments.models import Deployment
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.runs.models import Reservation, Run
from tests.web import seed as story

COMMANDS = {
    "vllm_node": "vllm serve /models/GLM-4.7-Flash --served-model-name GLM --port 8000",
    "reranker": "vllm serve /models/Rerank --served-model-name Rerank --port 8002 --runner pooling",
}


def serving(head: Node) -> Node:
    """The start scene's containers say what they serve."""
    sheet = inventory.latest_sheet(head)
    assert sheet and sheet.containers
    told = tuple(
        replace(one, command=COMMANDS.get(one.name, "postgres"), restart_policy="unless-stopped")
        for one in sheet.containers
    )
    inventory.store_sheet(head, replace(sheet, containers=told, evidence={}))
    Reservation.objects.all().delete()
    Run.objects.filter(state="running").update(state="failed")
    return head


def test_what_serves_is_adopted_by_an_editor_and_taken_over_with_a_reason(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    head, client = serving(seeded.head), signed_in("editor")
    page = client.get(head.get_absolute_url()).content.decode()
    assert "Serves already" in page and 'value="container:vllm_node"' in page and "unless-stopped" in page
    assert "Name of the deployment" not in signed_in("operator").get(head.get_absolute_url()).content.decode()
    things = {"thing": ["container:vllm_node", "container:reranker"], "name": "found", "reason": "it is here"}
    address = f"{head.get_absolute_url()}/adopt"
    assert signed_in("operator").post(address, things).status_code == 403
    refused = client.post(address, {**things, "thing": ["container:nothing"]})
    assert refused.status_code == 422 and "No container called nothing" in refused.content.decode()

    answer = client.post(address, things)
    made = Deployment.objects.get(name="found")
    run = Run.objects.get(deployment=made)
    assert answer["Location"] == run.get_absolute_url() and (run.story, made.adopted) == ("adopt", True)
    assert "Serves already" not in client.get(head.get_absolute_url()).content.decode(), "each is adopted once"
    assert "belongs to found already" in client.post(address, {**things, "name": "again"}).content.decode()
    story.finish(run, "succeeded")
    state.settle(made, None)

    page = client.get(made.get_absolute_url()).content.decode()
    assert "Take found over" in page and "Docker restarts it: unless-stopped" in page and "Relaunch…" not in page
    changed = client.post(f"{made.get_absolute_url()}/change", {"model": "x", "nodes": head.name, "reason": "r"})
    assert changed.status_code == 409 or "Take it over first" in changed.content.decode()
    assert client.post(f"{made.get_absolute_url()}/take-over", {"reason": " "}).status_code == 422
    client.post(f"{made.get_absolute_url()}/take-over", {"reason": "ours now", "disable": "1"})
    made.refresh_from_db()
    assert not made.adopted and {(one.kind, one.name) for one in made.consents.all()} >= {("container", "vllm_node")}
    entry = Entry.objects.filter(action="deployment:taken_over").get()
    assert entry.reason == "ours now" and entry.actor_name


def test_what_is_watched_is_archived_only_once_nobody_follows_it(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    deployment = seeded.lost
    found = {"node": seeded.head.name, "kind": "container", "name": "a", "service": "", "units": []}
    Deployment.objects.filter(pk=deployment.pk).update(found=[found])
    answer = signed_in("editor").post(f"{deployment.get_absolute_url()}/archive", {"reason": "r"})
    assert answer.status_code == 409 and "is watched still" in answer.content.decode()
