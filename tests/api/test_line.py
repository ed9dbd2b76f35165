"""Waiting in line for nodes that another run holds: who is before whom, and what happens when the turn comes."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from apps.audit.models import Entry
from apps.deployments import services as deployments
from apps.inventory import services as inventory
from apps.runs import services, settling, working
from apps.runs.models import Reservation, Run
from tests.api.conftest import CONSENT, EDITOR, Program, Story
from tests.api.test_problems import is_problem
from tests.api.test_runs import digest_of, path_of
from tests.plan import sheets


def asked(program: Program, story: Story, **more: Any) -> dict[str, Any]:
    return {"digest": digest_of(program, story, clear=CONSENT), "reason": "a test", "clear": CONSENT, **more}


def start(program: Program, story: Story, **more: Any) -> Any:
    return program.post(path_of(story, "launch"), asked(program, story, **more))


def turn(run: int) -> str:
    """What a worker's slice does with it; an executor is not reached before the turn has come."""
    token = secrets.token_hex(8)
    Run.objects.filter(pk=run).update(lease_token=token)
    said = services.take_turn(Run.objects.get(pk=run), token)
    Run.objects.filter(pk=run).update(lease_token="")
    return said


def end(run: int, state: str = "failed") -> None:
    settling.finish(Run.objects.get(pk=run), state, reason=None if state == "succeeded" else "smoke_failed")


def test_without_being_asked_nobody_waits(admin: Program, story: Story) -> None:
    first = start(admin, story).body["run"]
    answer = start(admin, story)
    is_problem(answer, 409, "node_reserved")
    assert answer.body["run"] == first and f"run {first}, the launch of qwen" in answer.body["detail"]
    assert "since" in answer.body["detail"] and "line" in answer.body["remedy"] and answer.body["line"] == 0


def test_the_line_names_holder_purpose_and_since(admin: Program, program: Any, story: Story) -> None:
    first = start(admin, story).body["run"]
    second, third = (start(program("editor"), story, wait=True) for _ in range(2))
    assert (second.status, third.status) == (202, 202)
    shown = admin.get(f"runs/{third.body['run']}").body
    assert (shown["state"], shown["phase"]) == ("reserving", "reserving")
    assert (shown["waiting"]["position"], shown["waiting"]["ahead"]) == (2, [second.body["run"]])
    held = shown["waiting"]["holders"]
    assert [(one["node"], one["run"], one["what"], one["by"]) for one in held] == [
        (node, first, "launch of qwen", "admin program") for node in ("spark-1a32", "spark-5be3")
    ]
    assert all(one["since"] for one in held)
    assert admin.get(f"runs/{first}").body["waiting"] is None
    assert Reservation.objects.filter(run_id=first).count() == Reservation.objects.count() == 2
    entry = Entry.objects.get(run_id=second.body["run"], outcome="requested")
    assert entry.after["waits_for"] == [first]


def test_turns_come_in_order_and_nobody_passes_by(admin: Program, story: Story) -> None:
    first = start(admin, story).body["run"]
    second, third = (start(admin, story, wait=True).body["run"] for _ in range(2))
    assert (turn(second), turn(third)) == ("waits", "waits")
    end(first)
    is_problem(start(admin, story), 409, "node_reserved")  # the nodes are free, but there is a line
    assert turn(third) == "waits"
    assert turn(second) == "on"
    assert set(Reservation.objects.values_list("run_id", flat=True)) == {second}
    row = Run.objects.get(pk=second)
    assert (row.state, row.phase, row.parameters) == ("queued", None, {})
    assert turn(third) == "waits"
    end(second)
    assert turn(third) == "on"


def test_a_worker_takes_the_turn(admin: Program, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "_execute", lambda *_: True)
    first = start(admin, story).body["run"]
    second = start(admin, story, wait=True).body["run"]
    assert working.slice_of(second) == "later"
    assert second in services.stuck(older_than=timedelta(0)), "nobody would look for it again"
    end(first)
    assert working.slice_of(second) == "again" and working.slice_of(second) == "done"


def test_it_is_planned_anew_and_clears_only_what_was_agreed_to(admin: Program, story: Story) -> None:
    first = start(admin, story).body["run"]
    second = start(admin, story, wait=True).body["run"]
    before = Run.objects.get(pk=second)
    end(first)
    first_sheet = sheets.head()
    running = [one for one in first_sheet.containers or () if one.name != "reranker"]
    inventory.store_sheet(story.head, replace(first_sheet, containers=tuple(running)))
    assert turn(second) == "on"
    row = Run.objects.get(pk=second)
    assert row.digest != before.digest and row.outcome == {"planned_before": before.digest}
    assert row.digest == services.preview(EDITOR, story.deployment, clear=services.clear_from(CONSENT)).digest
    assert row.steps.count() == sum(len(stage["steps"]) for stage in row.plan["stages"])
    assert "reranker" not in str([step.key for step in row.steps.all()])


def test_what_is_in_the_way_when_the_turn_comes_ends_it_by_name(admin: Program, story: Story) -> None:
    """Somebody else's container came meanwhile; nobody agreed to clear it."""
    first = start(admin, story).body["run"]
    second = admin.post(path_of(story, "launch"), {**asked(admin, story), "wait": True}).body["run"]
    Run.objects.filter(pk=second).update(parameters={"waits": True, "clear": []})
    end(first, "succeeded")
    state = admin.get(path_of(story, "")[:-1]).body["state"]
    assert turn(second) == "ended"
    row = Run.objects.get(pk=second)
    assert row.state == "failed" and row.reason and "When its turn came:" in row.evidence
    assert not Reservation.objects.exists()
    assert Entry.objects.filter(run_id=second).values_list("outcome", flat=True).count() == 2
    assert admin.get(path_of(story, "")[:-1]).body["state"] == state, "a run that only waited says nothing of it"


def test_a_newer_revision_takes_its_place(admin: Program, story: Story) -> None:
    first = start(admin, story).body["run"]
    second = start(admin, story, wait=True).body["run"]
    end(first)
    body = {k: v for k, v in story.deployment.revision.spec.to_json().items() if k not in ("name", "nodes")}
    nodes = ["spark-1a32", "spark-5be3"]
    deployments.revise(EDITOR, story.deployment, body={**body, "port": 30001}, nodes=nodes, reason="other port")
    assert turn(second) == "ended"
    assert Run.objects.get(pk=second).reason == "superseded"


def test_a_cancel_in_line_needs_no_worker(admin: Program, story: Story) -> None:
    first = start(admin, story).body["run"]
    second = start(admin, story, wait=True).body["run"]
    assert admin.post(f"runs/{second}/cancel", {"reason": "not needed"}).status == 202
    row = Run.objects.get(pk=second)
    assert (row.state, row.reason) == ("cancelled", "cancelled")
    assert admin.get(path_of(story, "")[:-1]).body["state"] == "launching", "that is the first run, which goes on"
    assert set(Reservation.objects.values_list("run_id", flat=True)) == {first}
    assert turn(second) == "ended"
