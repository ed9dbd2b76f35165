"""Removing what a dead installation left on a node: who may, what it says, what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import Entry
from apps.inventory import services as inventory
from apps.runs import foreign
from apps.runs.models import Reservation, Run
from tests.api.conftest import Story
from tests.api.test_problems import is_problem

pytestmark = pytest.mark.django_db


def test_an_editor_says_why_and_a_worker_does_it(program: Any, story: Story) -> None:
    path = f"nodes/{story.head.pk}/unlock"
    is_problem(program("operator").post(path, {"reason": "x"}), 403, "denied")
    is_problem(program("editor").post(path, {}), 422, "bad_input", "reason")
    is_problem(program("editor").post(path, {"reason": "  "}), 422, "bad_input", "reason")
    assert not Run.objects.exists()
    first = program("editor").post(path, {"reason": "its laptop is gone"}, Idempotency_Key="k")
    again = program("editor").post(path, {"reason": "its laptop is gone"}, Idempotency_Key="k")
    assert first.status == 202 and first.body == again.body
    run = Run.objects.get()
    assert (run.story, run.state, run.why) == ("unlock", "queued", "its laptop is gone")
    assert not Reservation.objects.exists(), "it works beside whoever holds the node here"
    entry = Entry.objects.get(action="node:unlock", outcome="requested")
    assert (entry.object_id, entry.actor_role) == (str(story.head.pk), "editor")
    assert (entry.reason, entry.run_id) == ("its laptop is gone", run.pk)
    (step,) = (step for stage in run.plan["stages"] for step in stage["steps"])
    assert (step["kind"], step["node"]) == ("job", "spark-1a32") and foreign.installation() in step["script"]


def test_not_where_nobody_may_log_in(program: Any, story: Story) -> None:
    inventory.not_reached(story.head, reason="host_key_changed", evidence="SHA256:new", hop="spark-1a32")
    is_problem(program("editor").post(f"nodes/{story.head.pk}/unlock", {"reason": "x"}), 409, "host_key_changed")
    assert not Run.objects.exists()
