"""Provisioning over the API: plan, who may start, passwords by node."""

from __future__ import annotations

from typing import Any

from apps.runs.models import Passing, Run
from tests.api.conftest import Program

WISH = {"nodes": ["spark-1a32", "spark-5be3"]}


def test_plan_and_start(program: Any, story: Any) -> None:
    editor: Program = program("editor")
    plan = editor.send("POST", "nodes/provision/plan", WISH)
    assert plan.status == 200, plan.body
    steps = [step for stage in plan.body["stages"] for node in stage["nodes"] for step in node["steps"]]
    assert {step["kind"] for step in steps} >= {"note", "job", "probe"}
    assert all(
        step["why"].startswith(("nothing to do, because", "not done:")) for step in steps if step["kind"] == "note"
    )
    assert plan.body["wish"]["places"] and plan.body["passwords"] == []
    start = {**WISH, "digest": plan.body["digest"], "reason": "two new Sparks"}
    assert program("operator").send("POST", "nodes/provision/start", start).status == 403
    begun = editor.send("POST", "nodes/provision/start", start, Idempotency_Key="k1")
    assert begun.status == 202, begun.body
    assert editor.send("POST", "nodes/provision/start", start, Idempotency_Key="k1").body == begun.body
    assert Run.objects.get(pk=begun.body["run"]).digest == plan.body["digest"]
    held = editor.send("POST", "nodes/provision/start", start)
    assert (held.status, held.body["reason"], held.body["run"]) == (409, "node_reserved", begun.body["run"])


def test_a_bad_wish_names_its_field(program: Any, story: Any) -> None:
    editor: Program = program("editor")
    for changes, field in (
        ({"ticks": {"spark-1a32": ["fly"]}}, "ticks.spark-1a32[0]"),
        ({"ticks": {"other": []}}, "ticks.other"),
        (
            {"fabric": [{"node": "spark-1a32", "interface": "eth0; reboot", "address": "192.168.1.2/24"}]},
            "fabric[0].interface",
        ),
        ({"fabric": [{"node": "spark-1a32", "interface": "eth0", "address": "1.2.3.4/24"}]}, "fabric[0].address"),
        ({"models": "/models/../etc"}, "models"),
        ({"units": {"spark-1a32": ["a b.service"]}}, "units.spark-1a32[0]"),
        ({"revert_s": 1}, "revert_s"),
        ({"nodes": ["spark-1a32", "nobody"]}, "nodes[1]"),
        ({"internet": "nobody"}, "internet"),
    ):
        answer = editor.send("POST", "nodes/provision/plan", {**WISH, **changes})
        assert answer.status in (404, 422) and answer.body["field"] == field, (changes, answer.body)


def test_a_password_is_asked_for_by_node_and_kind(program: Any, story: Any) -> None:
    editor: Program = program("editor")
    wish = {"nodes": ["spark-5be3"], "key": ["spark-5be3"]}
    plan = editor.send("POST", "nodes/provision/plan", wish).body
    assert plan["passwords"] == [{"node": "spark-5be3", "kind": "login"}]
    start = {**wish, "digest": plan["digest"], "reason": "new"}
    missing = editor.send("POST", "nodes/provision/start", start)
    assert (missing.status, missing.body["field"]) == (422, "passwords.spark-5be3.login")
    given = {**start, "passwords": {"spark-5be3": {"login": "Tr0ub4dor&3"}}}
    begun = editor.send("POST", "nodes/provision/start", given)
    assert begun.status == 202 and Passing.objects.filter(run=begun.body["run"]).count() == 1
    assert "Tr0ub4dor" not in str(editor.get(f"runs/{begun.body['run']}/plan").body)


def test_restore_says_when_there_is_nothing(program: Any, story: Any) -> None:
    answer = program("editor").send("POST", "nodes/restore/plan", {"nodes": ["spark-5be3"]})
    assert (answer.status, answer.body["field"]) == (409, "nodes")
