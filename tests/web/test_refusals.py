"""Every refusal of a launch, with its words and its way on: on the pages that a person sees, and as problem+json."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

import pytest
from django.test import Client

from apps.deployments.models import Deployment
from apps.facts.sheet import Sheet
from apps.inventory.models import Node
from apps.pages import forms
from apps.people.models import User
from apps.plan.spec import Spec, validate
from apps.plan.stories import launch
from apps.runs.models import Run
from tests.api.conftest import Program, program_of
from tests.api.test_problems import is_problem
from tests.plan.sheets import GIVEN, pair, qwen35
from tests.plan.test_stories import REFUSALS
from tests.web import seed
from tests.web.conftest import browser_of

pytestmark = pytest.mark.django_db
OUTSIDE = ("name", "nodes", "on_rank_lost", "service", "services")  # not of a spec that is sent
TOLD = ("name", "severity", "node", "title", "meaning", "remedy", "evidence")  # of a problem
VALUE = "hf_" + "QrStUvWxYz" * 3  # of a secret
PLANNED = {
    name: case for name, case in REFUSALS.items() if not validate(case[0]) and launch(*case, given=GIVEN).refused
}
NONSENSE = {name: spec for name, (spec, _) in REFUSALS.items() if validate(spec)} | {
    "a secret given as a variable's value": qwen35(environment=(("HF_TOKEN", VALUE),)),
    "a secret given as an argument": qwen35(arguments=("--api-key", VALUE)),
    "Ray without Docker": qwen35(runtime="process", executable="/opt/venv/bin/vllm"),
    "one node that is two": qwen35(cluster="single"),
}


@pytest.fixture
def editor() -> Client:
    return browser_of(User.objects.create(name="Ed", role="editor"))


@pytest.fixture
def program(editor: Client) -> Program:
    return program_of("editor")


def enrolled(nodes: tuple[str, ...], found: Mapping[str, Sheet]) -> None:
    head: Node | None = None
    for number, name in enumerate(dict.fromkeys(nodes)):
        made = seed.node(name, f"10.1.230.{number + 10}", jump=head, sheet=found.get(name))
        head = head or made


def form_of(spec: Spec) -> dict[str, object]:
    return {**forms.shown(spec.to_json()), "name": spec.name, "nodes": list(spec.nodes), "on_rank_lost": "stop"}


def body_of(spec: Spec) -> dict[str, object]:
    own = {name: value for name, value in spec.to_json().items() if name not in OUTSIDE}
    return {"name": spec.name, "nodes": list(spec.nodes), "spec": own}


def words(page: bytes) -> str:
    """What a person reads."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page.decode())).split())


def said(text: str) -> str:
    """A sentence of a problem as `words` has it: backquotes became code."""
    return " ".join(text.replace("`", "").split())


@pytest.mark.parametrize("name", PLANNED)
def test_what_a_plan_refuses_stands_on_its_page_and_is_told_to_programs(
    name: str, editor: Client, program: Program
) -> None:
    spec, found = PLANNED[name]
    enrolled(spec.nodes, found)
    wanted = launch(spec, found, given=GIVEN).refused
    answer = editor.post("/deployments/new", form_of(spec))
    assert answer.status_code == 302, words(answer.content)
    page = words(editor.get(answer.headers["Location"]).content)
    for problem in wanted:
        texts = (problem.title, problem.meaning, problem.remedy, problem.evidence)
        assert not (missing := [text for text in texts if said(text) not in page]), (missing, page)
    assert re.search("needs? an answer first", page)

    at = f"deployments/{Deployment.objects.get().pk}"
    plan = program.post(f"{at}/plan").body
    told = [{name: one[name] or "" for name in TOLD} for one in plan["problems"]]
    assert plan["refused"] and not [one for one in wanted if {name: getattr(one, name) for name in TOLD} not in told]
    no = program.post(f"{at}/launch", {"digest": plan["digest"], "reason": "all the same"})
    is_problem(no, 409, wanted[0].name)
    assert (no.body["remedy"], no.body["detail"].startswith(wanted[0].title)) == (wanted[0].remedy, True), no.body
    assert not Run.objects.exists()


@pytest.mark.parametrize("name", NONSENSE)
def test_a_field_that_can_not_be_meant_is_refused_beside_it(name: str, editor: Client, program: Program) -> None:
    """One field at a time: the first that is wrong, with its name and remedy."""
    spec = NONSENSE[name]
    enrolled(spec.nodes, pair(busy=False))
    errors = validate(spec)
    answer = editor.post("/deployments/new", form_of(spec))
    page = words(answer.content)
    assert answer.status_code == 422, page
    assert any(said(one.message) in page and said(one.remedy) in page for one in errors) or "is no deployment" in page
    no = program.post("deployments", body_of(spec))
    is_problem(no, 422, "bad_input")
    if no.body["field"] == "name":
        assert "small letters" in no.body["remedy"]
    else:
        field = no.body["field"].removeprefix("spec.")
        assert (field, no.body["detail"], no.body["remedy"]) in [(one.field, one.message, one.remedy) for one in errors]
    assert VALUE not in str(no.body)
    assert not Deployment.objects.exists()
