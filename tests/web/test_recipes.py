"""Recipes on the pages: import, decide, edit on either side, compare, export, deploy; who may, and what is refused."""

from __future__ import annotations

import html
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.deployments.models import Deployment
from apps.recipes.models import Recipe, RecipeVersion
from apps.recipes.services import current_version
from tests.web import seed as story

SignedIn = Callable[[str], Client]
CASES = Path(__file__).parents[1] / "recipes" / "cases"
TRUSTING = (CASES / "eugr" / "10-unknown-keys.yaml").read_text()
SHELL = (CASES / "eugr" / "07-shell-around.yaml").read_text()
PIECE = {"HX-Request": "true"}
pytestmark = pytest.mark.django_db


def page(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.content.decode()[:2000]
    return answer.content.decode()


def imported(client: Client, text: str = TRUSTING, **more: str) -> Recipe:
    answer = client.post("/recipes/import", {"text": text, "act": "keep", **more})
    assert answer.status_code == 302, answer.content.decode()[-3000:]
    return Recipe.objects.get(slug=answer.headers["Location"].rpartition("/")[2])


def decide(client: Client, recipe: Recipe, choice: dict[str, str], reason: str = "looked at it") -> Any:
    items = {f"item-{key}": value for key, value in choice.items()}
    return client.post(f"/recipes/{recipe.slug}/decide", {"version": "1", "reason": reason, **items})


def fields_of(client: Client, path: str) -> dict[str, str]:
    """What a browser would send from the form of a page."""
    text = page(client.get(path))
    found = dict(re.findall(r'<input[^>]* name="([^"]+)" value="([^"]*)"', text))
    found |= dict(re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>(.*?)</textarea>', text, re.DOTALL))
    for name, inner in re.findall(r'<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>', text, re.DOTALL):
        chosen = re.search(r'<option(?: value="([^"]*)")? selected>([^<]*)', inner)
        found[name] = (chosen[1] or chosen[2]) if chosen else ""
    from html import unescape

    return {name: unescape(value) for name, value in found.items()}


# Import


def test_looking_keeps_nothing_and_sends_no_secret_back(signed_in: SignedIn) -> None:
    client = signed_in("editor")
    before = Recipe.objects.count()
    for headers in ({}, PIECE):
        text = page(client.post("/recipes/import", {"text": SHELL, "act": "look"}, headers=headers))
        assert "Qwen/Qwen3-8B" in text and "pip install -q flashinfer-python" in text and "hf-token" in text
        assert "hf_ThisIsNo" not in text and "sk-not-a" not in text
        assert ("<html" in text) == (not headers)
    assert Recipe.objects.count() == before


def test_an_import_is_a_draft_with_what_waits(signed_in: SignedIn) -> None:
    client = signed_in("editor")
    recipe = imported(client)
    version = current_version(recipe)
    assert (recipe.name, version.family, version.used_at) == ("Nemotron 3 Nano NVFP4", "eugr", None)
    assert [item["text"] for item in version.waiting] == [
        "--trust-remote-code", "--reasoning-parser-plugin nano_v3_reasoning_parser.py",
    ]  # fmt: skip
    assert "--trust-remote-code" not in json.dumps(version.body)
    text = page(client.get(recipe.get_absolute_url()))
    assert "Waits for a decision" in text and "maintainer" in text and "/deployments/new?recipe" not in text
    assert page(client.get("/recipes")).count("waits for a decision") == 1
    entry = Entry.objects.latest("pk")
    assert (entry.action, entry.object_name) == ("recipe:imported", recipe.name)
    assert entry.after["sha256"] == version.source_sha256 and len(version.source_sha256) == 64


def test_no_secret_of_an_import_is_kept_anywhere(signed_in: SignedIn) -> None:
    client = signed_in("editor")
    text = (CASES / "sparkrun" / "09-env-secrets.yaml").read_text()
    recipe = imported(client, text)
    row = json.dumps(list(RecipeVersion.objects.filter(recipe=recipe).values()), default=str)
    trail = json.dumps(list(Entry.objects.values()), default=str)
    shown = page(client.get(recipe.get_absolute_url())) + page(client.get(f"{recipe.get_absolute_url()}/export/source"))
    for secret in ("hf_Another", "abcde", "hunter2", "topsecret", "hf_Third"):
        assert secret not in row + trail + shown


def test_a_file_and_a_chosen_format(signed_in: SignedIn) -> None:
    client = signed_in("editor")
    file = io.BytesIO(b"\xef\xbb\xbfvllm serve Qwen/Qwen3-8B\r\n")
    answer = client.post("/recipes/import", {"act": "keep", "file": file, "name": "mine", "family": "command"})
    assert answer.status_code == 302
    assert current_version(Recipe.objects.get(name="mine")).body["model"] == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no text"),
        ("just words", "no known format"),
        ("a: 1\na: 2\n", "Line 2: a is given twice"),
        ("recipe_version: '1'\ncontainer: c\ncommand: vllm serve {x}\n", "Line 3: {x} has no value"),
        ("x" * ((1 << 20) + 1), "larger than 1 MB"),
        ("vllm serve 'a", "Line 1: a single quote is never closed"),
    ],
)
def test_what_can_not_be_read_says_where_and_why(text: str, said: str, signed_in: SignedIn) -> None:
    for act in ("look", "keep"):
        answer = page(signed_in("editor").post("/recipes/import", {"text": text, "act": act}), 422)
        assert said.lower() in answer.replace("&#x27;", "'").lower()
    assert not Recipe.objects.filter(shipped=False).exists()


# Decide


def test_taking_over_is_an_admins_leaving_out_an_editors(signed_in: SignedIn) -> None:
    recipe = imported(signed_in("editor"))
    assert decide(signed_in("editor"), recipe, {"q1": "take"}).status_code == 403
    assert decide(signed_in("viewer"), recipe, {"q1": "leave"}).status_code == 403
    assert len(current_version(recipe).waiting) == 2
    assert "A decision needs a reason" in page(decide(signed_in("admin"), recipe, {"q1": "take"}, " "), 422)
    assert decide(signed_in("editor"), recipe, {"q2": "leave", "q1": ""}).status_code == 302
    assert decide(signed_in("admin"), recipe, {"q1": "take"}, "read the model's code").status_code == 302
    version = current_version(recipe)
    assert not version.waiting and version.body["arguments"] == ["--trust-remote-code"]
    actions = list(
        Entry.objects.filter(object_name=recipe.name, action__startswith="recipe:")
        .order_by("pk")
        .values_list("action", "outcome")
    )
    assert actions == [("recipe:imported", "done"), ("recipe:left_out", "done"), ("recipe:approved", "done")]
    last = Entry.objects.get(action="recipe:approved")
    assert last.reason == "read the model's code" and "--trust-remote-code" in json.dumps(last.after)
    assert Entry.objects.filter(action="access:denied", outcome="denied").count() == 2
    text = page(signed_in("viewer").get(recipe.get_absolute_url()))
    assert "taken over" in text and "left out" in text and "Waits for a decision" not in text


@pytest.mark.parametrize("choice", [{}, {"q99": "leave"}, {"q1": ""}, {"q1": "nonsense"}])
def test_a_decision_about_nothing(choice: dict[str, str], signed_in: SignedIn) -> None:
    recipe = imported(signed_in("admin"))
    page(decide(signed_in("admin"), recipe, choice), 422)


def test_what_has_no_place_can_not_be_taken(signed_in: SignedIn) -> None:
    recipe = imported(signed_in("admin"), SHELL)
    assert "never does it" in page(decide(signed_in("admin"), recipe, {"q1": "take"}), 422)


def test_what_waits_can_not_be_deployed(seeded: story.Seeded, signed_in: SignedIn) -> None:
    client = signed_in("editor")
    recipe = imported(client)
    sent = {
        "name": "nano",
        "recipe": recipe.slug,
        "nodes": "spark-1a32",
        "model": "a/b",
        "model_path": "",
        "image": "i",
        "cluster": "single",
    }
    assert "wait for a decision" in page(client.post("/deployments/new", sent), 422)
    decide(client, recipe, {"q1": "leave", "q2": "leave"})
    assert client.post("/deployments/new", sent).status_code == 302
    version = current_version(recipe)
    assert version.used_at is not None and Deployment.objects.get(name="nano").recipe_version == version


# Edit


def test_a_draft_changes_in_place_a_used_version_becomes_the_next(seeded: story.Seeded, signed_in: SignedIn) -> None:
    client = signed_in("editor")
    recipe = imported(
        client, "docker run --name web vllm/vllm-openai:v1 --model Qwen/Qwen3-8B --port 9000", name="Eight"
    )
    fields = fields_of(client, f"/recipes/{recipe.slug}/edit")
    assert fields["model"] == "Qwen/Qwen3-8B" and "port: 9000" in fields["yaml"]
    assert client.post(f"/recipes/{recipe.slug}/edit", {**fields, "port": "9001", "by": "form"}).status_code == 302
    version = current_version(recipe)
    assert (version.number, version.body["port"], version.changed_by) == (1, 9001, "ed1")
    sent = {
        "name": "eight",
        "recipe": recipe.slug,
        "nodes": "spark-1a32",
        **{name: fields[name] for name in ("model", "image", "cluster")},
        "model_path": "",
    }
    assert client.post("/deployments/new", sent).status_code == 302
    fields = fields_of(client, f"/recipes/{recipe.slug}/edit")
    text = fields["yaml"].replace("port: 9001", "port: 9002") + "  arguments: [--max-num-seqs, 8]\n"
    assert (
        client.post(
            f"/recipes/{recipe.slug}/edit", {**fields, "yaml": text, "by": "yaml", "note": "more at once"}
        ).status_code
        == 302
    )
    assert [(one.number, one.body["port"]) for one in recipe.versions.all()] == [(2, 9002), (1, 9001)]
    beside = page(client.get(f"/recipes/{recipe.slug}/diff"))
    assert "<del>  port: 9001</del>" in beside and "<ins>  port: 9002</ins>" in beside and "--max-num-seqs" in beside
    text = page(client.get(recipe.get_absolute_url()))
    assert (
        "more at once" in text
        and ">eight</a>" in text
        and "fixed since" in page(client.get(f"{recipe.get_absolute_url()}?version=1"))
    )
    assert (
        client.get(f"/deployments/new?recipe={recipe.slug}&version=1")
        .content.decode()
        .count('name="version" value="1"')
        == 1
    )


def test_whoever_edits_an_old_state_is_told(signed_in: SignedIn) -> None:
    client = signed_in("editor")
    recipe = imported(client, "vllm serve Qwen/Qwen3-8B", name="Twice")
    fields = fields_of(client, f"/recipes/{recipe.slug}/edit")
    assert client.post(f"/recipes/{recipe.slug}/edit", {**fields, "port": "9001", "by": "form"}).status_code == 302
    answer = page(client.post(f"/recipes/{recipe.slug}/edit", {**fields, "port": "9002", "by": "form"}), 409)
    assert "while you edited it" in answer and 'value="9002"' in answer
    assert current_version(recipe).body["port"] == 9001


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"port": "99"}, "out of range"),
        ({"port": "many"}, "is not a whole number"),
        ({"nodes": "0"}, "out of range"),
        ({"nodes": "x"}, "no number of nodes"),
        ({"name": " "}, "name is missing"),
        ({"name": "x" * 121}, "longer than 120"),
        ({"model": "$(reboot)"}, "is not allowed"),
        ({"arguments": "x"}, "belongs to no option"),
        ({"environment": "A"}, "has no"),
        ({"by": "yaml", "yaml": "spec: {modelx: a}\n"}, "Did you mean model?"),
        ({"by": "yaml", "yaml": "name: x\nspec:\n  model: a\n  model: b\n"}, "Line 4: model is given twice"),
        ({"by": "yaml", "yaml": "spec: {model: !!python/name:os.system }\n"}, "the tag"),
        (
            {"by": "yaml", "yaml": "name: n\nspec: {model: a/b, image: i, port: '8000', cluster: single}\n"},
            "out of range",
        ),
        ({"by": "yaml", "yaml": "name: n\nspec: {model: a/b, environment: {A: [1]}}\n"}, "must be one word"),
        ({"by": "yaml", "yaml": "[]"}, "no known format"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_lost(change: dict[str, str], said: str, signed_in: SignedIn) -> None:
    client = signed_in("editor")
    fields = fields_of(client, "/recipes/new") | {
        "name": "New",
        "model": "a/b",
        "image": "i",
        "cluster": "single",
        "by": "form",
    }
    answer = page(client.post("/recipes/new", fields | change), 422)
    assert said in answer.replace("&#x27;", "'")
    assert not Recipe.objects.filter(shipped=False).exists()


def test_one_side_shows_what_the_other_says(signed_in: SignedIn) -> None:
    client = signed_in("editor")
    fields = fields_of(client, "/recipes/new") | {
        "name": "New",
        "model": "a/b",
        "image": "i",
        "port": "80",
        "environment": "A=b",
    }
    text = page(client.post("/recipes/check?by=form", fields, headers=PIECE))
    yaml = re.search(r"<textarea[^>]*>(.*?)</textarea>", text, re.DOTALL)
    assert yaml is not None and "port: 80" in yaml[1] and "A: b" in yaml[1]
    line = yaml[1].split("\n").index("  port: 80") + 1
    assert f"line {line}<" in text and "out of range" in text
    changed = yaml[1].replace(
        "port: 80",
        "port: 8000\n  services:\n    - {service: e, model: c/d, image: i, port: 8001, container: e, cluster: single}",
    )
    text = page(client.post("/recipes/check?by=yaml", fields | {"yaml": changed}, headers=PIECE))
    assert 'name="port" value="8000"' in text and "Nothing is wrong" in text
    answer = client.post("/recipes/check?by=yaml", fields | {"yaml": "a: ["}, headers=PIECE)
    assert answer.headers["HX-Reswap"] == "none" and "no YAML" in page(answer)
    further = re.search(r'<textarea[^>]*name="services"[^>]*>(.*?)</textarea>', text, re.DOTALL)
    assert further is not None and "c/d" in further[1]  # what the YAML says of further services is in the form too
    form = {"port": "8000", "cluster": "single", "services": html.unescape(further[1]), "by": "form"}
    assert client.post("/recipes/new", fields | {"yaml": changed} | form).status_code == 302
    assert current_version(Recipe.objects.get(name="New")).body["services"][0]["service"] == "e"


# The rest of its life


def test_shipped_recipes_are_duplicated_not_edited(seeded: story.Seeded, signed_in: SignedIn) -> None:
    client = signed_in("editor")
    shipped = Recipe.objects.filter(shipped=True).first()
    assert shipped is not None
    fields = fields_of(client, f"/recipes/{shipped.slug}/edit")
    page(client.post(f"/recipes/{shipped.slug}/edit", {**fields, "by": "form"}), 409)
    answer = client.post(f"/recipes/{shipped.slug}/duplicate", {"name": "Ours", "version": "1"})
    assert answer.headers["Location"] == "/recipes/ours"
    made = Recipe.objects.get(slug="ours")
    assert not made.shipped and current_version(made).body == current_version(shipped).body
    page(client.post(f"/recipes/{shipped.slug}/duplicate", {"name": " ", "version": "1"}), 422)
    page(client.post(f"/recipes/{shipped.slug}/duplicate", {"name": "x", "version": "77"}), 404)


def test_archive_tested_and_filters(signed_in: SignedIn) -> None:
    client = signed_in("editor")
    recipe = imported(client, "vllm serve Qwen/Qwen3-8B", name="Away")
    client.post(f"/recipes/{recipe.slug}/tested", {"version": "1", "tested_on": "two Sparks, 580.95"})
    assert "two Sparks, 580.95" in page(client.get("/recipes"))
    assert client.post(f"/recipes/{recipe.slug}/archive", {}).status_code == 302
    page(client.get("/recipes"))
    assert f"/recipes/{recipe.slug}" not in page(client.get("/recipes")) and "Away" in page(
        client.get("/recipes?archived=1")
    )
    assert "None of that kind" in page(client.get("/recipes?name=nothing"))
    assert "Bring it back" in page(client.get(recipe.get_absolute_url()))
    assert client.post(f"/recipes/{recipe.slug}/archive", {"back": "1"}).status_code == 302
    assert [one.action for one in Entry.objects.order_by("pk")][-3:] == [
        "recipe:tested",
        "recipe:archived",
        "recipe:unarchived",
    ]


@pytest.mark.parametrize("form", ["sparkweb", "eugr", "sparkrun", "compose", "source"])
def test_exports_come_as_files(form: str, signed_in: SignedIn) -> None:
    recipe = imported(signed_in("editor"))
    answer = signed_in("viewer").get(f"{recipe.get_absolute_url()}/export/{form}?version=1")
    assert answer.status_code == 200 and recipe.slug in answer.headers["Content-Disposition"]
    assert "Nemotron-3-Nano" in answer.content.decode()


def test_an_export_that_can_not_be_says_why(signed_in: SignedIn) -> None:
    client = signed_in("editor")
    recipe = imported(client, "vllm serve Qwen/Qwen3-8B", name="Process")
    assert "runs as a process" in page(client.get(f"{recipe.get_absolute_url()}/export/eugr"), 409)
    page(client.get(f"{recipe.get_absolute_url()}/export/nonsense"), 404)


def test_a_plan_leaves_as_script_compose_and_units(seeded: story.Seeded, signed_in: SignedIn) -> None:
    client = signed_in("operator")
    at = f"/deployments/{seeded.draft.pk}/export"
    script = client.get(f"{at}/shell")
    assert script.content.startswith(b"#!/bin/sh") and b"docker run -d" in script.content
    for form, name in (("compose", "spark-1a32/compose.yaml"), ("systemd", ".service")):
        answer = client.get(f"{at}/{form}")
        assert answer.headers["Content-Type"] == "application/zip"
        names = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
        assert any(one.endswith(name) for one in names) and len({one.partition("/")[0] for one in names}) == 2
    assert client.get(f"{at}/nonsense").status_code == 302
    assert signed_in("viewer").get(f"{at}/shell").status_code == 403


def test_long_names_and_strange_addresses(signed_in: SignedIn) -> None:
    client = signed_in("editor")
    recipe = imported(client, "vllm serve Qwen/Qwen3-8B", name="W" * 120)
    assert "W" * 120 in page(client.get(recipe.get_absolute_url()))
    second = imported(client, "vllm serve Qwen/Qwen3-8B", name="W" * 120)
    assert second.slug != recipe.slug
    assert imported(client, "vllm serve a/b", name="Import").slug == "import-2"
    assert imported(client, "vllm serve a/b", name="模型").slug == "recipe"
    for path in ("?version=99999999999999999999", "?version=x", "/diff?older=9&newer=x", "/export/eugr?version=0"):
        assert client.get(recipe.get_absolute_url() + path).status_code in (200, 404, 409)
    assert client.get("/recipes/nothing").status_code == 404


NASTY = [
    "", " ", "$(reboot)", "; reboot", "-v /:/x", "\n--privileged", "\u202e", "\U0001f600" * 200, "<script>alert(1)</script>", "{{x}}", "x" * 200_000,
    "../../etc", "9" * 4000, "-1", "1e999", "NaN", "[]", "{", "\x1b[31m", "hf_ABCDEFGHIJKLMNOPQR", "!!python/object/apply:os.system [id]", "a: *a",
]  # fmt: skip


def test_nothing_typed_anywhere_breaks_a_page(signed_in: SignedIn) -> None:
    """Every input of every form with values that nobody expects: an answer in words, and no mark-up of theirs."""
    client = signed_in("admin")
    client.raise_request_exception = False
    recipe = imported(client, TRUSTING, name="Nasty")
    form = fields_of(client, f"/recipes/{recipe.slug}/edit") | {"by": "form"}
    sent: list[tuple[str, dict[str, str]]] = [
        ("/recipes/new", form),
        (f"/recipes/{recipe.slug}/edit", form),
        (f"/recipes/{recipe.slug}/edit", form | {"by": "yaml"}),
        ("/recipes/check?by=form", form),
        ("/recipes/check?by=yaml", form),
        ("/recipes/import", {"text": TRUSTING, "name": "n", "family": "", "act": "look"}),
        (f"/recipes/{recipe.slug}/decide", {"version": "1", "item-q1": "leave", "reason": "r"}),
        (f"/recipes/{recipe.slug}/duplicate", {"version": "1", "name": "n"}),
        (f"/recipes/{recipe.slug}/tested", {"version": "1", "tested_on": "x"}),
        (f"/recipes/{recipe.slug}/archive", {"reason": "r", "back": "1"}),
    ]
    tried = 0
    for number, (path, body) in enumerate(sent):
        for place, field in enumerate(body):
            nasty = NASTY[(number * 5 + place) % len(NASTY)]
            answer = client.post(path, {**body, field: nasty})
            tried += 1
            assert answer.status_code < 500, (path, field, nasty[:40])
            assert b"<script>alert" not in answer.content, (path, field)
    assert tried > 100
    for query in NASTY[:12]:
        for path in ("/recipes", recipe.get_absolute_url(), f"{recipe.get_absolute_url()}/diff"):
            answer = client.get(
                path, {"name": query[:2000], "version": query[:2000], "older": query[:2000], "newer": "1"}
            )
            assert answer.status_code < 500
