"""Recipes over the API: the same services as the pages, errors with field and line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.audit.models import Entry
from tests.api.conftest import Program, Story
from tests.api.test_problems import is_problem

pytestmark = pytest.mark.django_db
LINE = "docker run --ipc=host vllm/vllm-openai --model Qwen/Qwen3-4B --trust-remote-code --api-key sk-0123456789abcdef"
SPEC = {"model": "a/b", "image": "i", "cluster": "single", "environment": {"A": "b"}, "secrets": {"HF_TOKEN": "hub"}}


def test_the_life_of_an_imported_recipe(program: Callable[..., Program], story: Story) -> None:
    editor, admin = program("editor"), program("admin")
    read = editor.post("recipes/read", {"text": LINE})
    assert read.status == 200 and [item["kind"] for item in read.body["quarantine"]] == ["ipc", "trust"]
    assert read.body["spec"]["secrets"] == [{"variable": "VLLM_API_KEY", "name": "vllm-api-key"}]
    made = editor.post("recipes/import", {"text": LINE, "name": "Four"})
    assert made.status == 201 and made.body["slug"] == "four"
    assert "sk-0123" not in json.dumps([read.body, made.body])
    version = made.body["versions"][0]
    assert version["family"] == "docker run" and version["used_at"] is None and version["errors"] == []
    wanted = {"name": "four", "recipe": "four", "nodes": ["spark-1a32"]}
    is_problem(editor.post("deployments", wanted), 409, "approval_needed", "recipe")
    is_problem(editor.post("recipes/four/decide", {"take": ["q2"], "reason": "r"}), 403)
    is_problem(admin.post("recipes/four/decide", {"take": ["q1"], "reason": "r"}), 422, "bad_input", "decision")
    decided = admin.post("recipes/four/decide", {"take": ["q2"], "leave": ["q1"], "reason": "read it"})
    assert decided.body["spec"]["arguments"] == ["--trust-remote-code"]
    assert [item["decision"] for item in decided.body["quarantine"]] == ["left", "taken"]
    assert editor.post("deployments", wanted).status == 201
    used = editor.get("recipes/four").body["versions"][0]
    assert used["used_at"] is not None
    spec = {**used["spec"], "port": 9000}
    edited = editor.post("recipes/four/versions", {"spec": spec, "seen": used["digest"]})
    assert edited.status == 201 and edited.body["number"] == 2
    is_problem(editor.post("recipes/four/versions", {"spec": spec, "seen": used["digest"]}), 409, "recipe_changed")
    diff = editor.get("recipes/four/diff").body
    assert diff["changes"] == [{"field": "port", "before": 8000, "after": 9000}]
    older = editor.post("deployments", {**wanted, "name": "older", "recipe_version": 1, "spec": {"container": "o"}})
    assert older.body["recipe_version"] == 1 and older.body["spec"]["port"] == 8000
    is_problem(editor.post("deployments", {**wanted, "name": "x", "recipe_version": 9}), 404, "not_found", "version")


def test_who_may(program: Callable[..., Program]) -> None:
    body = {"name": "R", "spec": SPEC}
    assert program("editor").post("recipes", body).status == 201
    for role in ("viewer", "operator", "auditor"):
        assert program(role).get("recipes/r").status == 200
        is_problem(program(role).post("recipes", body), 403)
    assert [entry.action for entry in Entry.objects.filter(object_type="recipe", outcome="done")] == ["recipe:added"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"spec": {**SPEC, "modelx": "x"}}, "spec.modelx"),
        ({"spec": {**SPEC, "port": 80}}, "spec.port"),
        ({"spec": {**SPEC, "port": "8000"}}, "spec.port"),
        ({"spec": {**SPEC, "arguments": ["x"]}}, "spec.arguments"),
        ({"spec": {**SPEC, "arguments": [["x"]]}}, "spec.arguments[0]"),
        ({"spec": {**SPEC, "environment": {"A": {}}}}, "spec.environment.A"),
        ({"spec": {**SPEC, "nodes": ["x"]}}, "spec.nodes"),
        ({"spec": {**SPEC, "services": [{"model": "a/b", "image": "i", "service": "E!"}]}}, "spec.services[0].service"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": 65}, "nodes"),
        ({"name": "\u202e"}, "name"),
        ({"name": ""}, "name"),
        ({"description": "\x07"}, "description"),
    ],
)
def test_what_is_wrong_names_its_field(change: dict[str, Any], field: str, program: Callable[..., Program]) -> None:
    answer = program("editor").post("recipes", {"name": "R", "spec": SPEC, **change})
    is_problem(answer, 422, "bad_input", field)
    assert answer.body["remedy"]


def test_a_text_that_can_not_be_read(program: Callable[..., Program]) -> None:
    for path in ("recipes/read", "recipes/import"):
        answer = program("editor").post(path, {"text": "a: 1\nb: [\n"})
        is_problem(answer, 422, "bad_input", "text")
        assert answer.body["line"] == 3 and "Line 3" in answer.body["detail"]
        is_problem(
            program("editor").post(path, {"text": "vllm serve a/b", "family": "cobol"}), 422, "bad_input", "family"
        )


def test_exports(program: Callable[..., Program], story: Story) -> None:
    viewer = program("viewer")
    for form in ("sparkweb", "eugr", "sparkrun", "compose"):
        answer = viewer.get(f"recipes/qwen3.5-122b-a10b-fp8/export/{form}")
        assert "Qwen3.5-122B-A10B-FP8" in next(iter(answer.body["files"].values()))
    is_problem(viewer.get("recipes/qwen3.5-122b-a10b-fp8/export/source"), 404, "not_found", "format")
    is_problem(viewer.get("recipes/vllm-process/export/eugr"), 409, "bad_input", "format")
    operator = program("operator")
    for form in ("shell", "compose", "systemd"):
        assert operator.get(f"deployments/{story.deployment.pk}/export/{form}").body["files"]
    is_problem(operator.get(f"deployments/{story.deployment.pk}/export/cobol"), 404, "not_found", "format")
    is_problem(viewer.get(f"deployments/{story.deployment.pk}/export/shell"), 403)


def test_the_examples_of_the_documentation_run(admin: Program, story: Story) -> None:
    """Every line of the section Recipes of docs/api.md, in its order, with the answers that it speaks of."""
    text = (
        (Path(__file__).parents[2] / "docs" / "api.md").read_text().partition("## Recipes")[2].partition("## Deploy")[0]
    )
    lines = [line for line in text.splitlines() if line.startswith("api ")]
    assert len(lines) > 10
    for line in lines:
        words = shlex.split(line)
        method = words[words.index("-X") + 1] if "-X" in words else "GET"
        body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
        address = next(word for word in words if word.startswith("$SPARKWEB")).removeprefix("$SPARKWEB/")
        answer = admin.send(method, address, body)
        assert answer.status in (200, 201), (line, answer.body)
    assert re.search("quarantine", text)
