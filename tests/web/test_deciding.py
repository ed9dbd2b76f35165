"""What pages say to somebody who wants to decide: can I deploy here, what is left to clean up, whose memory is it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client
from django.utils import timezone

from apps.deployments.models import Deployment
from apps.inventory.models import Node
from apps.pages.audit import acts
from apps.pages.memory import _fabric
from apps.pages.nodes import MOST_HISTORY
from apps.runs.models import Reservation, Run
from tests.web import seed as story


def answer(client: Client, node: Node) -> str:
    """The words of the node page's answer; empty where there is none."""
    page = client.get(node.get_absolute_url()).content.decode()
    found = re.search(r'aria-label="Can I deploy here\?">(.*?)</section>', page, re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found[1])).strip() if found else ""


def test_the_node_page_answers_first_whether_a_deployment_can_go_there(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    client, head = signed_in("editor"), seeded.head
    held = answer(client, head)
    assert "not now" in held and "the launch of qwen3.5-122b-now" in held and "Wait for it to end" in held
    Reservation.objects.all().delete()
    assert "yes, but" in answer(client, head) and "qwen3.5-122b-b is at work here" in answer(client, head)
    Deployment.objects.filter(pk=seeded.serving.pk).update(state="stopped")
    Deployment.objects.filter(state="launching").update(state="failed")
    taken = answer(client, head)
    assert "yes, but 98.1 GiB of 119.7 GiB on spark-1a32 are held by" in taken and "2 more below" in taken
    assert answer(client, seeded.second).endswith("yes Nothing stands in the way. New deployment")
    assert "New deployment" not in answer(signed_in("viewer"), seeded.second)
    seeded.second.sheets.all().delete()
    assert "not known yet" in answer(client, seeded.second)
    assert answer(client, seeded.away) == "", "the page says already why it is not reached"
    Node.objects.filter(pk=head.pk).update(unreachable_since=timezone.now(), unreachable_reason="ssh_timeout")
    assert answer(client, head) == ""


def test_the_node_page_is_folded_and_leads_to_the_rest(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    page = signed_in("viewer").get(seeded.head.get_absolute_url()).content.decode()
    assert not re.search(r"<details[^>]* open", page)
    assert 'id="changes"' in page and 'id="notes"' in page
    assert page.count('class="when"') == MOST_HISTORY and f"/audit?object=node:{seeded.head.pk}" in page


@pytest.mark.parametrize(
    ("role", "offered"), [("viewer", False), ("operator", True), ("editor", True), ("admin", True)]
)
def test_what_a_failed_launch_left_can_be_cleaned_up(
    role: str, offered: bool, seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    assert seeded.failed.state == "failed" and not seeded.failed.ranks.exists()
    client, address = signed_in(role), f"/deployments/{seeded.failed.pk}"
    assert ("Clean up…" in client.get(address).content.decode()) == offered
    assert "Clean up…" not in client.get(f"/deployments/{seeded.draft.pk}").content.decode()
    assert "Clean up…" not in client.get(f"/deployments/{seeded.serving.pk}").content.decode()
    if not offered:
        return
    Reservation.objects.all().delete()
    page = client.get(f"{address}/plan?story=stop").content.decode()
    assert "docker rm -f" in page and page.count('class="split"') == 0, "nothing stands beside the steps"
    digest = re.search(r'name="digest" value="(\w+)"', page)
    key = re.search(r'name="key" value="([^"]+)"', page)
    assert digest and key
    sent = {"story": "stop", "digest": digest[1], "key": key[1], "reason": "clean", "ticked": "1"}
    assert client.post(f"{address}/plan", sent).status_code == 302
    run = seeded.failed.runs.order_by("-pk").first()
    assert run is not None and run.story == "stop"


def test_the_filter_of_the_trail_speaks_words(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    assert acts(["host_key:confirmed", "node:added", "node:host_key_replaced"]) == {
        "Host key": [("host_key:confirmed", "confirmed")],
        "Node": [("node:added", "added"), ("node:host_key_replaced", "host key replaced")],
    }
    page = signed_in("viewer").get("/audit?action=node:host_key_confirmed").content.decode()
    assert '<optgroup label="Node">' in page
    assert '<option value="node:host_key_confirmed" selected>host key confirmed</option>' in page


def port(name: str, state: str) -> dict[str, object]:
    return {"name": name, "state": state, "rate_gbps": 200.0}


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        ((port("rocep1s0f0", "ACTIVE"), port("roceP2p1s0f0", "DOWN")), "200G · one half down"),
        ((port("rocep1s0f0", "ACTIVE"), port("roceP2p1s0f0", "ACTIVE")), "200G · 2 ports"),
        ((port("rocep1s0f0", "ACTIVE"), port("rocep1s0f1", "DOWN")), "200G · 1 port"),
        ((port("mlx5_0", "ACTIVE"), port("mlx5_1", "DOWN")), "200G · 1 port"),  # two plugs, one without a cable
        ((port("mlx5_0", "DOWN"),), "down"),
    ],
)
def test_half_a_plug_is_told_from_a_plug_without_a_cable(ports: tuple[dict[str, object], ...], words: str) -> None:
    assert _fabric(ports)[0] == words


@pytest.mark.parametrize(("role", "offered"), [("operator", False), ("editor", True)])
def test_an_editor_can_remove_what_another_installation_left(
    role: str, offered: bool, seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    client, path = signed_in(role), f"{seeded.second.get_absolute_url()}/unlock"
    assert (f'action="{path}"' in client.get(seeded.second.get_absolute_url()).content.decode()) is offered
    if not offered:
        assert client.post(path, {"reason": "it is gone"}).status_code == 403
        return
    refused = client.post(path, {"reason": " "})
    assert refused.status_code == 422 and "needs a reason" in refused.content.decode()
    answered = client.post(path, {"reason": "its laptop is gone"})
    run = Run.objects.get(story="unlock")
    assert (answered.status_code, answered.headers["Location"]) == (302, run.get_absolute_url())
    page = client.get(run.get_absolute_url()).content.decode()
    assert "Remove locks" in page and "its laptop is gone" in page and "sudo -n rm -f" in page
    away = seeded.away.get_absolute_url()
    assert f'action="{away}/unlock"' in client.get(away).content.decode(), (
        "it is asked for now and done when it answers"
    )
