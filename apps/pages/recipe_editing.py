"""A recipe as a form and as YAML side by side: what is changed on one side is shown on the other, with what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.views.decorators.http import require_http_methods, require_POST

from apps.diagnosis.refusal import Refused
from apps.pages import forms
from apps.pages.recipes import text_of, word
from apps.pages.refusing import Error, error_of
from apps.people.access import actor_of, allow
from apps.plan.spec import FieldError
from apps.recipes import services
from apps.recipes.formats import bodies, own, recognise
from apps.recipes.formats.imported import Unreadable
from apps.recipes.formats.yaml_text import Document, load
from apps.recipes.models import Recipe, RecipeVersion
from apps.recipes.services import current_version

BEGIN = {"model": "", "engine": "vllm", "runtime": "docker", "cluster": "single", "port": 30000}
SPARE_LINES = 40  # numbers beside the YAML beyond its last line, for what is typed


@dataclass(frozen=True)
class Typed:
    """What one side says."""

    name: str
    description: str
    nodes: int
    body: dict[str, Any]


@allow("edit_recipes")
@require_http_methods(["GET", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return _page(request, None, None, Typed("", "", 1, dict(BEGIN)))
    try:
        typed = _typed(request.POST)
        made = services.create(
            actor_of(request),
            name=typed.name,
            description=typed.description,
            world_size=typed.nodes,
            body=typed.body,
            note=request.POST.get("note", ""),
        )
    except Refused as refused:
        return _again(request, None, None, error_of(refused))
    messages.success(request, f"{made.name} is a draft: it may change until a deployment is made from it.")
    return redirect(made.get_absolute_url())


@allow("edit_recipes")
@require_http_methods(["GET", "POST"])
def edit(request: HttpRequest, slug: str) -> HttpResponse:
    recipe = get_object_or_404(Recipe, slug=slug)
    version = current_version(recipe)
    if request.method == "GET":
        typed = Typed(recipe.name, recipe.description, version.world_size, version.body)
        return _page(request, recipe, version, typed)
    try:
        typed = _typed(request.POST)
        made = services.edit(
            actor_of(request),
            recipe,
            name=typed.name,
            description=typed.description,
            world_size=typed.nodes,
            body=typed.body,
            note=request.POST.get("note", ""),
            seen=request.POST.get("seen", ""),
        )
    except Refused as refused:
        return _again(request, recipe, version, error_of(refused))
    messages.success(request, f"Saved as version {made.number}.")
    return redirect(recipe.get_absolute_url())


@allow("edit_recipes")
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """The other side of what was typed, and what is wrong with it. Keeps nothing. `by`: form or yaml."""
    by = "yaml" if request.GET.get("by") == "yaml" else "form"
    try:
        typed = _typed(request.POST, by)
    except Refused as refused:
        error = error_of(refused)
        made = render(request, "pages/recipe_checks.html", {"checks": _one_check(error), "again": True})
        made["HX-Reswap"] = "none"
        return made
    text = request.POST.get("yaml", "") if by == "yaml" else _yaml(typed)
    context = {**_sides(typed, text), "checks": _checks(typed, text), "by": by, "again": True}
    return render(request, "pages/recipe_side.html", context)


# What was typed


def _typed(post: QueryDict, by: str = "") -> Typed:
    """What the side that was saved says. Raises Refused."""
    if (by or post.get("by")) == "yaml":
        return _of_yaml(post.get("yaml", ""))
    nodes = post.get("nodes", "").strip()
    if not (nodes.isascii() and nodes.isdecimal() and len(nodes) < 4):
        raise Refused("bad_input", f"{nodes[:40]!r} is no number of nodes.", field="nodes", remedy="Use 1 or more.")
    body = {**_beyond_form(post.get("yaml", "")), **forms.spec_body(post)}
    return Typed(post.get("name", "").strip(), post.get("description", "").strip(), int(nodes), body)


def _beyond_form(text: str) -> dict[str, Any]:
    """Fields that only the YAML side shows, such as further services: the form must not lose them."""
    try:
        typed = _of_yaml(text)
    except Refused:
        return {}
    return forms.beyond(typed.body)


def _of_yaml(text: str) -> Typed:
    try:
        document = _document(text)
        draft = own.read(document, text)
    except Unreadable as problem:
        where = f"Line {problem.line}: " if problem.line else ""
        said = f"{where}{problem.message}."
        raise Refused("bad_input", said[:1].upper() + said[1:], field="yaml", remedy=problem.remedy) from None
    return Typed(draft.name, draft.description.strip(), draft.world_size, draft.body)


def _document(text: str) -> Document:
    return recognise.mapping(recognise.checked(text))


# What is shown


def _yaml(typed: Typed) -> str:
    return own.write(name=typed.name, description=typed.description, world_size=typed.nodes, body=typed.body)


def _sides(typed: Typed, text: str) -> dict[str, Any]:
    try:
        values = forms.shown(typed.body)
    except (TypeError, ValueError, KeyError, IndexError):
        values = {}
    count = text.count("\n") + 1
    return {
        "typed": typed,
        "main": [{"field": field, "value": values.get(field.name, "")} for field in forms.MAIN],
        "further": [{"field": field, "value": values.get(field.name, "")} for field in forms.FURTHER],
        "beyond": [
            word(name)
            for name, value in typed.body.items()
            if name not in forms.FIELDS and value != bodies.DEFAULTS.get(name)
        ],
        "yaml": text,
        "rows": max(count + 2, 24),
        "numbers": "\n".join(str(number) for number in range(1, max(count, 24) + SPARE_LINES)),
    }


def _checks(typed: Typed, text: str) -> list[dict[str, Any]]:
    """Everything that is wrong, each with the line of the YAML that says it."""
    found = list(bodies.errors(typed.body, typed.nodes))
    if not typed.name:
        found.insert(0, FieldError("name", "it is missing", "Write one."))
    try:
        document = load(text)
    except Unreadable:
        return [_check(one, 0) for one in found]
    return [_check(one, document.line(one.field if one.field == "name" else f"spec.{one.field}")) for one in found]


def _check(error: FieldError, line: int) -> dict[str, Any]:
    return {"field": word(error.field), "line": line, "message": error.message, "remedy": error.remedy}


def _one_check(error: Error) -> list[dict[str, Any]]:
    where = "" if error.field == "yaml" else word(error.field)
    return [{"field": where, "line": 0, "message": error.detail, "remedy": error.remedy}]


def _page(
    request: HttpRequest, recipe: Recipe | None, version: RecipeVersion | None, typed: Typed, error: Error | None = None
) -> HttpResponse:
    text = text_of(version) if version else _yaml(typed)
    context = {**_sides(typed, text), "checks": _checks(typed, text) if recipe else []}
    return _render(request, recipe, version, context, error)


def _again(request: HttpRequest, recipe: Recipe | None, version: RecipeVersion | None, error: Error) -> HttpResponse:
    """The page with all that was typed on both sides, and what was refused."""
    post = request.POST
    values = forms.typed(post)
    text = post.get("yaml", "")
    typed = Typed(post.get("name", ""), post.get("description", ""), forms.identity(post.get("nodes", "")) or 1, {})
    context = _sides(typed, text)
    for side in ("main", "further"):
        for row in context[side]:
            row["value"] = values.get(row["field"].name, "")
    return _render(request, recipe, version, {**context, "checks": _refused(error)}, error)


def _refused(error: Error) -> list[dict[str, Any]]:
    errors: Any = (error.extra or {}).get("errors") or ()
    return [_check(FieldError(**one), 0) for one in errors] or _one_check(error)


def _render(
    request: HttpRequest,
    recipe: Recipe | None,
    version: RecipeVersion | None,
    context: Mapping[str, Any],
    error: Error | None,
) -> HttpResponse:
    more = {
        "recipe": recipe,
        "version": version,
        "error": error,
        "note": request.POST.get("note", version.note if version and version.used_at is None else ""),
        "seen": request.POST.get("seen") or (services.digest(version) if version else ""),
        "further_open": bool(error and error.field in {field.name for field in forms.FURTHER}),
    }
    return render(request, "pages/recipe_form.html", {**context, **more}, status=error.status if error else 200)


urlpatterns = [
    path("recipes/new", new, name="recipe-new"),
    path("recipes/check", check, name="recipe-check"),
    path("recipes/<str:slug>/edit", edit, name="recipe-edit"),
]
