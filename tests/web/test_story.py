"""Every page, with nothing there and with the whole story, for every role; refused forms keep what was typed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from apps.deployments.models import Deployment
from apps.runs.models import Run, WorkerBeat
from tests.web import seed as story

EMPTY = [
    "/",
    "/deployments",
    "/nodes",
    "/recipes",
    "/settings",
    "/settings/credentials",
    "/patterns",
    "/audit",
    "/banners",
]
MINE = ["/deployments/new", "/nodes/add", "/settings/secrets"]


def test_every_page_of_the_story(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    client = signed_in("admin")
    paths = [*EMPTY, *MINE]
    for one in Deployment.objects.all():
        paths += [one.get_absolute_url(), f"/deployments/{one.pk}/change"]
        paths += [f"/deployments/{one.pk}/plan?story={name}" for name in ("launch", "relaunch", "stop")]
        paths += [f"/deployments/{one.pk}/plan.txt?story=launch"]
    for run in Run.objects.all():
        paths += [
            run.get_absolute_url(),
            f"/runs/{run.pk}/lines",
            f"/runs/{run.pk}/log",
            f"/runs/{run.pk}/plan.txt",
            f"/runs/{run.pk}/search?q=shard",
        ]
    paths += [
        seeded.head.get_absolute_url(),
        seeded.second.get_absolute_url(),
        seeded.away.get_absolute_url(),
        "/recipes/qwen3.5-122b-a10b-fp8",
    ]
    for path in paths:
        response = client.get(path)
        assert response.status_code == 200, path
        if "html" in response.headers["Content-Type"]:
            text = response.content.decode()
            assert not re.search(r"\sstyle=|<script(?![^>]*\ssrc=)|\son\w+=|javascript:", text), path
            assert "{{ " not in text and "{% " not in text, path
            piece = client.get(path, headers={"HX-Request": "true"})
            assert piece.status_code == 200, path


def test_a_run_shows_where_it_stands(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    text = signed_in("viewer").get(f"/runs/{seeded.loading.pk}").content.decode()
    for words in (
        "loading, shard 16 of 39",
        "17/39",
        "RDMA",
        "IBext_v11",
        "2 nodes, 2.0 GPU",
        "firmware update",
        "data-log-pane",
        "refused, the engine is loading",
    ):
        assert words in text, words
    assert "Cancel" not in text  # a viewer may not


def test_a_failed_run_pins_the_line_and_explains_it(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    text = signed_in("operator").get(f"/runs/{seeded.failed_run.pk}").content.decode()
    assert "CUDA out of memory" in text and "data-log-find" in text
    assert "story=launch" in text and "Relaunch" not in text  # it never served


def test_the_fleet_answers_its_four_questions(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    text = signed_in("operator").get("/").content.decode()
    for words in (
        "lost: replaced",
        "Both nodes rebooted 24 min ago",
        "http://10.1.230.180:30000/v1",
        "shard 16/39",
        "failed: oom gpu",
        "seg-others",
        "via spark-1a32",
        "op1",
        "Sparks were rebooted",
    ):
        assert words in text, words


def test_lines_over_http_join_without_gap(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    client, path = signed_in("viewer"), f"/runs/{seeded.loading.pk}/lines"
    seen, after = [], 0
    while True:
        body = client.get(path, {"after": after, "limit": 7}).json()
        seen += [line["n"] for line in body["lines"]]
        if not body["lines"]:
            break
        after = body["next"]
    assert seen == list(range(1, body["total"] + 1)) and not body["ended"]
    tail = client.get(path, {"tail": 5}).json()
    assert [line["n"] for line in tail["lines"]] == seen[-5:] and tail["next"] == seen[-1]
    before = client.get(path, {"before": 6, "limit": 3}).json()
    assert [line["n"] for line in before["lines"]] == [3, 4, 5]


@pytest.mark.parametrize("query", ["after=-1", "after=x", "limit=99999999", "tail=1e9", "rank=one", "before=٣"])
def test_bad_numbers_name_their_field(query: str, seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    response = signed_in("viewer").get(f"/runs/{seeded.loading.pk}/lines?{query}")
    assert response.status_code == 422 and response.json()["field"] == query.partition("=")[0]


def test_search_finds_over_the_whole_log(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    client = signed_in("viewer")
    body = client.get(f"/runs/{seeded.loading.pk}/search", {"q": "net/ibext"}).json()
    assert len(body["lines"]) == 2 and not body["more"]
    assert client.get(f"/runs/{seeded.loading.pk}/search", {"q": " "}).status_code == 422


def test_the_plan_shows_commands_problems_and_consent(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    client = signed_in("editor")
    path = f"/deployments/{seeded.draft.pk}/plan"
    text = client.get(path, {"story": "launch"}).content.decode()
    assert "98.1 GiB of spark-1a32 is held by" in text and 'name="clear"' in text
    assert re.search(r"<button[^>]*type=\"submit\"[^>]*disabled", text)
    assert "docker run" in text and "held by" in text
    items = json.dumps([{"node": one.node, "kind": one.kind, "name": one.name} for one in story.sheets.CONSENT])
    ticked = client.get(
        path, {"story": "launch", "ticked": "1", "clear": items}, headers={"HX-Request": "true"}
    ).content.decode()
    assert "systemctl stop" in ticked and 'name="disable"' in ticked and "checked" in ticked
    assert "will come back after a reboot" in ticked and "<html" not in ticked
    script = client.get(
        f"/deployments/{seeded.draft.pk}/plan.txt", {"story": "launch", "clear": items}
    ).content.decode()
    assert script.startswith("# launch") and "systemctl" in script and "#!" not in script


def plan_form(client: Client, deployment: Deployment, story_name: str = "launch") -> dict[str, object]:
    items = json.dumps([{"node": one.node, "kind": one.kind, "name": one.name} for one in story.sheets.CONSENT])
    text = client.get(
        f"/deployments/{deployment.pk}/plan", {"story": story_name, "ticked": "1", "clear": items}
    ).content.decode()
    found = {name: value for name, value in re.findall(r'name="(digest|key)" value="([^"]*)"', text)}
    return {**found, "story": story_name, "ticked": "1", "clear": items, "reason": "to try it"}


def test_relaunch_needs_a_reason(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    story.finish(seeded.loading, "cancelled", reason="cancelled")
    client = signed_in("editor")
    form = plan_form(client, seeded.lost, "relaunch")
    response = client.post(f"/deployments/{seeded.lost.pk}/plan", form | {"reason": " "})
    assert response.status_code == 422 and "needs a reason" in response.content.decode()
    assert client.post(f"/deployments/{seeded.lost.pk}/plan", form).status_code == 302


def test_launch_needs_free_nodes(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    client = signed_in("editor")
    form = plan_form(client, seeded.draft)
    response = client.post(f"/deployments/{seeded.draft.pk}/plan", form)
    assert response.status_code == 409
    assert "is held by run" in response.content.decode() and "op1" in response.content.decode()
    assert "to try it" in response.content.decode()


def test_launch_without_a_worker_answers_at_once_and_stays_queued(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    story.finish(seeded.loading, "cancelled", reason="cancelled")
    runs_worker_beats = __import__("apps.runs.models", fromlist=["WorkerBeat"]).WorkerBeat
    runs_worker_beats.objects.all().delete()
    client = signed_in("editor")
    response = client.post(f"/deployments/{seeded.draft.pk}/plan", plan_form(client, seeded.draft))
    assert response.status_code == 302
    page = client.get(response.headers["Location"]).content.decode()
    assert "Queued: no worker is there" in page
    made = Run.objects.order_by("-pk").first()
    assert made is not None and made.state == "queued" and made.actor_role == "editor"
    again = client.post(f"/deployments/{seeded.draft.pk}/plan", plan_form(client, seeded.draft))
    assert again.status_code == 409


def test_in_line_the_page_says_who_holds_what_and_since_when(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    client = signed_in("editor")
    assert "Wait in line" in client.get(f"/deployments/{seeded.draft.pk}/plan?story=launch").content.decode()
    form = plan_form(client, seeded.draft) | {"wait": "1"}
    first, second = (client.post(f"/deployments/{seeded.draft.pk}/plan", form | {"key": key}) for key in ("a", "b"))
    assert (first.status_code, second.status_code) == (302, 302)
    page = " ".join(client.get(second.headers["Location"]).content.decode().split())
    assert "Number 2 in line" in page and f'behind <a href="{first.headers["Location"]}">' in page
    assert (
        f'held by <a href="/runs/{seeded.loading.pk}">run {seeded.loading.pk}</a>' in page
        and "op1 started, since" in page
    )
    client.post(f"{first.headers['Location']}/cancel", {"reason": "not needed"})
    assert "Number 1 in line" in client.get(second.headers["Location"]).content.decode()


def test_a_cancel_without_a_worker_is_shown_as_waiting_with_its_age(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    WorkerBeat.objects.all().update(at=timezone.now() - timedelta(seconds=90))
    client = signed_in("editor")
    client.post(f"/runs/{seeded.loading.pk}/cancel", {"reason": "wrong model"})
    Run.objects.filter(pk=seeded.loading.pk).update(cancel_asked_at=timezone.now() - timedelta(seconds=42))
    page = client.get(f"/runs/{seeded.loading.pk}").content.decode()
    assert "Cancel asked for" in page and re.search(r"no worker is there, the last one was seen 1 min \d+ s ago", page)
    assert "It begins by itself" not in page, "it will not begin any more"
    assert re.search(r"It waits for <time[^>]*>(4[2-9]|5\d) s</time> now", page), page
    assert "first thing that the next one does" in page
    WorkerBeat.objects.all().update(at=timezone.now())
    seeded.second.unreachable_since = timezone.now()
    seeded.second.save(update_fields=["unreachable_since"])
    page = client.get(f"/runs/{seeded.loading.pk}").content.decode()
    assert "spark-5be3 is out of sight and cleaned as soon as it is back" in page
    words = "spark-5be3 could not be cleaned for 30 min; what this run started may still be there"
    story.finish(seeded.loading, "cancelled", reason="cleanup_incomplete", evidence=words)
    page = client.get(f"/runs/{seeded.loading.pk}").content.decode()
    assert "Cancelled, not cleaned" in page and words in page and "the nodes are clean" not in page


def test_the_same_form_sent_twice_starts_one_run(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    story.finish(seeded.loading, "cancelled", reason="cancelled")
    client = signed_in("editor")
    form = plan_form(client, seeded.draft)
    first = client.post(f"/deployments/{seeded.draft.pk}/plan", form)
    second = client.post(f"/deployments/{seeded.draft.pk}/plan", form)
    assert first.headers["Location"] == second.headers["Location"]
    assert seeded.draft.runs.count() == 1


def test_a_changed_plan_is_shown_with_what_differs(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    story.finish(seeded.loading, "cancelled", reason="cancelled")
    client = signed_in("editor")
    response = client.post(
        f"/deployments/{seeded.draft.pk}/plan",
        plan_form(client, seeded.draft) | {"digest": "0" * 64, "shown": '{"gone.step": "1"}'},
    )
    text = response.content.decode()
    assert response.status_code == 409
    assert "What differs from the plan that you saw" in text and "gone.step" in text and "to try it" in text
    assert not seeded.draft.runs.exists()


def test_an_operator_relaunches_with_what_an_editor_agreed_to(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    story.finish(seeded.loading, "cancelled", reason="cancelled")
    client = signed_in("operator")
    text = client.get(f"/deployments/{seeded.lost.pk}/plan", {"story": "relaunch"}).content.decode()
    assert "checked" in text
    found = dict(re.findall(r'name="(digest|key)" value="([^"]*)"', text))
    import html

    ticks = [html.unescape(value) for value in re.findall(r'name="clear"[^>]*value="([^"]*)"[^>]*checked', text)]
    assert ticks
    response = client.post(
        f"/deployments/{seeded.lost.pk}/plan",
        {**found, "story": "relaunch", "ticked": "1", "clear": ticks, "reason": "rebooted"},
    )
    assert response.status_code == 302, response.content.decode()
    other = client.get(f"/deployments/{seeded.draft.pk}/plan", {"story": "launch"}).content.decode()
    assert "checked" not in other


@pytest.mark.parametrize(("role", "allowed"), [("viewer", False), ("auditor", False), ("operator", True)])
def test_who_may_cancel(role: str, allowed: bool, seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    response = signed_in(role).post(f"/runs/{seeded.loading.pk}/cancel", {"reason": "enough"})
    seeded.loading.refresh_from_db()
    assert response.status_code == (302 if allowed else 403)
    assert bool(seeded.loading.cancel_asked_at) == allowed
    if allowed:
        text = signed_in(role).get(f"/runs/{seeded.loading.pk}").content.decode()
        assert "Cancel asked for" in text and "Not confirmed yet" in text and "enough" in text


def test_a_new_deployment_keeps_what_was_typed_when_refused(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    client = signed_in("editor")
    form = {
        "name": "Not A Name",
        "recipe": "qwen3.5-122b-a10b-fp8",
        "nodes": ["spark-1a32", "spark-5be3"],
        "model": "Qwen/Qwen3-8B",
        "engine": "vllm",
        "runtime": "docker",
        "cluster": "ray",
        "image": "an/image",
        "port": "30000",
        "tensor_parallel": "2",
        "environment": "A=1",
    }
    response = client.post("/deployments/new", form)
    text = response.content.decode()
    assert response.status_code == 422 and "aria-invalid" in text and "Not A Name" in text and "Qwen/Qwen3-8B" in text
    response = client.post("/deployments/new", form | {"name": "fine", "port": "thirty"})
    assert response.status_code == 422 and "is not a whole number" in response.content.decode()
    response = client.post("/deployments/new", form | {"name": "fine", "environment": "no equals sign"})
    assert response.status_code == 422 and "has no" in response.content.decode()
    response = client.post("/deployments/new", form | {"name": "fine", "nodes": ["nowhere"]})
    assert response.status_code == 422 and "no node called nowhere" in response.content.decode()
    response = client.post("/deployments/new", form | {"name": "fine"})
    made = Deployment.objects.get(name="fine")
    assert response.headers["Location"] == f"/deployments/{made.pk}/plan?story=launch"
    assert made.revision.spec.environment == (("A", "1"),) and made.revision.spec.tensor_parallel == 2


def test_a_change_is_a_new_revision_with_a_reason(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    client = signed_in("editor")
    path = f"/deployments/{seeded.draft.pk}/change"
    from apps.pages import forms

    form = {**forms.shown(seeded.draft.revision.body), "nodes": ["spark-1a32", "spark-5be3"], "max_model_len": "65536"}
    assert client.post(path, form).status_code == 422
    assert client.post(path, form | {"reason": "shorter contexts"}).status_code == 302
    assert seeded.draft.revision.number == 2 and seeded.draft.revision.spec.max_model_len == 65536
    text = client.get(f"/deployments/{seeded.draft.pk}").content.decode()
    assert "shorter contexts" in text and "131072" in text and "65536" in text


def test_a_host_key_is_confirmed_by_its_fingerprint(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    made = story.inventory.add_node(
        story.EDITOR,
        name="new-one",
        address="10.1.1.1",
        port=22,
        user="aurora",
        credential=seeded.head.credential,
        jump=None,
        found=[{"type": "ssh-ed25519", "base64": "AAAA", "sha256": "SHA256:abc"}],
    )
    assert signed_in("editor").post(f"/nodes/{made.pk}/confirm", {"sha256": "SHA256:abc"}).status_code == 403
    client = signed_in("admin")
    assert client.post(f"/nodes/{made.pk}/confirm", {"sha256": "SHA256:other"}).status_code == 422
    assert client.post(f"/nodes/{made.pk}/confirm", {"sha256": "SHA256:abc"}).status_code == 302
    made.refresh_from_db()
    assert made.state == "ready"


def test_what_was_typed_by_others_is_text(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    """Names, reasons and evidence can't become markup."""
    hostile = "<img src=x onerror=alert(1)>\"'</script>"
    Run.objects.filter(pk=seeded.failed_run.pk).update(why=hostile, evidence=hostile, actor_name=hostile)
    Deployment.objects.filter(pk=seeded.lost.pk).update(evidence=hostile)
    client = signed_in("viewer")
    for path in ("/", f"/runs/{seeded.failed_run.pk}", seeded.lost.get_absolute_url(), "/deployments"):
        assert "<img src=x" not in client.get(path).content.decode(), path


def test_errors_are_pages_without_a_traceback(seeded: story.Seeded, signed_in: Callable[[str], Client]) -> None:
    client = signed_in("viewer")
    for path in (
        "/nothing/here",
        "/runs/99999999",
        "/deployments/99999999",
        "/nodes/99999999999999999999",
        "/recipes/none",
    ):
        response = client.get(path)
        assert response.status_code == 404 and "Traceback" not in response.content.decode(), path
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    response = strict.post(f"/runs/{seeded.loading.pk}/cancel")
    assert response.status_code == 403 and "too old" in response.content.decode()


def test_an_error_of_ours_says_so(
    seeded: story.Seeded, signed_in: Callable[[str], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.runs import queries

    def broken(*_: object) -> None:
        raise RuntimeError("boom /secret/path")

    monkeypatch.setattr(queries, "track", broken)
    client = signed_in("viewer")
    client.raise_request_exception = False
    response = client.get(f"/runs/{seeded.loading.pk}")
    text = response.content.decode()
    assert response.status_code == 500 and "our mistake" in text and "boom" not in text and "Traceback" not in text


def test_a_database_that_is_full_is_not_called_our_mistake(
    seeded: story.Seeded, signed_in: Callable[[str], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    from apps.runs import queries

    def full(*_: object) -> None:
        raise OperationalError("database or disk is full")

    monkeypatch.setattr(queries, "track", full)
    client = signed_in("viewer")
    client.raise_request_exception = False
    response = client.get(f"/runs/{seeded.loading.pk}")
    assert response.status_code == 503 and "full, locked" in response.content.decode()


def test_what_the_engine_is_told_stands_on_the_plan_with_whose_it_is(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    page = signed_in("operator").get(f"/deployments/{seeded.draft.pk}/plan?story=launch").content.decode()
    assert "What the engine is told" in page and "of them ours" in page
    row = page[page.index("<code>--distributed-executor-backend</code>") :].partition("</tr>")[0]
    assert "<code>ray</code>" in row and ">ours<" in row and "the ranks are Ray workers" in row
    row = page[page.index("<code>VLLM_HOST_IP</code>") :].partition("</tr>")[0]
    assert "spark-1a32" in row and "192.168.200.12" in row


def test_fields_that_an_engine_has_no_use_for_are_not_taken(
    seeded: story.Seeded, signed_in: Callable[[str], Client]
) -> None:
    asked = {"name": "gguf", "recipe": "none", "nodes": "spark-5be3", "engine": "llamacpp", "runtime": "docker"}
    asked |= {"model": "a/b", "model_path": "/models/x/y.gguf", "image": "i", "gpu_memory_utilization": "0.85"}
    asked |= {"cluster": "ray", "attention_backend": "flashinfer", "port": "", "tensor_parallel": ""}
    answer = signed_in("admin").post("/deployments/new", asked)
    assert answer.status_code == 302, answer.content.decode()[:2000]
    body = Deployment.objects.get(name="gguf").revision.body
    assert (body["cluster"], body["gpu_memory_utilization"], body["attention_backend"]) == ("single", None, "")
    assert body["tensor_parallel"] == 1 and body["port"] >= 30000
