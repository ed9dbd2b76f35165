"""Recipes under people who hurry, copy and paste secrets, and have very many of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from apps.audit.actor import Actor
from apps.audit.models import Entry
from apps.diagnosis.refusal import Refused
from apps.recipes import services
from apps.recipes.formats import recognise
from apps.recipes.models import Recipe, RecipeVersion

pytestmark = pytest.mark.django_db
EDITOR, ADMIN = Actor("person", 1, "ed", "editor"), Actor("person", 2, "ann", "admin")
BODY = {"model": "a/b", "image": "i", "cluster": "single"}
S = "Zq7hunter2Xw"
STACK = """services:
  chat: {image: vllm/vllm-openai, command: --model a/b}
  first: {image: vllm/vllm-openai, command: --model c/d --port 8001 --trust-remote-code}
  second: {image: vllm/vllm-openai, command: --model e/f --port 8002}
"""


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": f"token={S}"}, "name"),
        ({"description": f"use it with\nHF_TOKEN={S}"}, "description"),
        ({"note": f"api_key={S}"}, "note"),
        ({"body": {**BODY, "model": "hf_Zq7hunter2Xwabcdefgh"}}, "model"),
        ({"body": {**BODY, "image": f"me:{S}@host/x"}}, "image"),
        ({"body": {**BODY, "executable": f"/x --token={S}"}}, "executable"),
        ({"body": {**BODY, "served_model_name": "hf_Zq7hunter2Xwabcdefgh"}}, "served_model_name"),
        ({"body": {**BODY, "services": [{**BODY, "service": "e", "arguments": ["--hf-token", S]}]}}, "services"),
    ],
)
def test_a_secret_that_is_typed_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        services.create(EDITOR, **{"name": "R", "body": BODY, **fields})
    assert refused.value.field.startswith(field)
    assert not Recipe.objects.exists()
    assert "hunter2" not in str(list(Entry.objects.values()))


def test_so_is_one_in_the_name_of_an_import_and_in_a_reason() -> None:
    with pytest.raises(Refused):
        services.import_text(EDITOR, text="vllm serve a/b", name=f"token={S}")
    made = services.import_text(EDITOR, text="vllm serve a/b --trust-remote-code")
    version = services.current_version(made)
    with pytest.raises(Refused):
        services.decide(ADMIN, version, take=["q1"], reason=f"password={S}")
    assert len(services.current_version(made).waiting) == 1


def test_what_waits_for_a_service_goes_with_it() -> None:
    """Not to the one that stands at its place after an edit."""
    made = services.import_text(EDITOR, text=STACK)
    version = services.current_version(made)
    body, (first, second) = version.body, version.body["services"]
    args = {"name": made.name, "description": "", "world_size": 1}
    services.edit(EDITOR, made, **args, body={**body, "services": [second, first]})
    done = services.decide(ADMIN, services.current_version(made), take=["q1"], reason="read")
    assert [one.get("arguments", []) for one in done.body["services"]] == [[], ["--trust-remote-code"]]


def test_what_waits_for_a_service_that_is_gone_is_left_out() -> None:
    made = services.import_text(EDITOR, text=STACK)
    body = services.current_version(made).body
    args = {"name": made.name, "description": "", "world_size": 1}
    version = services.edit(EDITOR, made, **args, body={**body, "services": body["services"][1:]})
    assert not version.waiting and version.quarantine[0]["by"] == "ed"
    with pytest.raises(Refused):
        services.decide(ADMIN, version, take=["q1"], reason="read")


def test_a_list_of_recipes_costs_the_same_however_many() -> None:
    for number in range(60):
        recipe = Recipe.objects.create(slug=f"r{number}", name=f"R {number}")
        for version in (1, 2):
            RecipeVersion.objects.create(recipe=recipe, number=version, body={**BODY, "port": 2000 + version})
    found = list(Recipe.objects.all())
    with CaptureQueriesContext(connection) as queries:
        newest = services.newest_of(found)
    assert len(queries) == 1
    assert len(newest) == 60 and {one.number for one in newest.values()} == {2}


def test_a_name_that_many_have_is_found_at_once() -> None:
    Recipe.objects.bulk_create([Recipe(slug=f"same-{number}", name="same") for number in range(2, 500)])
    Recipe.objects.create(slug="same", name="same")
    with CaptureQueriesContext(connection) as queries:
        made = services.create(EDITOR, name="same", body=BODY)
    assert made.slug == "same-500"
    assert len(queries) < 20


def test_two_people_edit_at_once() -> None:
    made = services.create(EDITOR, name="R", body=BODY)
    seen = services.digest(services.current_version(made))
    args = {"name": "R", "description": "", "world_size": 1, "seen": seen}
    services.edit(EDITOR, made, **args, body={**BODY, "port": 9000})
    with pytest.raises(Refused) as refused:
        services.edit(ADMIN, made, **args, body={**BODY, "port": 9001})
    assert refused.value.reason == "recipe_changed"
    assert services.current_version(made).body["port"] == 9000


def test_what_was_approved_and_edited_is_read_again_as_it_stands() -> None:
    """An export that is imported elsewhere is judged anew: an approval does not travel."""
    made = services.import_text(EDITOR, text="docker run img vllm serve a/b --trust-remote-code")
    version = services.decide(ADMIN, services.current_version(made), take=["q1"], reason="read")
    from apps.recipes import exports

    for form in ("sparkweb", "eugr", "sparkrun", "compose"):
        (text,) = exports.of_version(version, form).values()
        assert [one.kind for one in recognise.read(text).held] == ["trust"], form


def test_recipes_are_changed_under_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[str] = []
    plain = QuerySet.select_for_update

    def noted(self: Any, *args: Any, **words: Any) -> Any:
        locked.append(self.model.__name__)
        return plain(self, *args, **words)

    monkeypatch.setattr(QuerySet, "select_for_update", noted)
    made = services.import_text(EDITOR, text="vllm serve a/b --trust-remote-code")
    services.decide(ADMIN, services.current_version(made), leave=["q1"], reason="no")
    services.edit(EDITOR, made, name="R", description="", world_size=1, body=BODY)
    assert locked == ["Recipe", "Recipe"]
