"""Recipes: the list, one with its versions and what waits for a decision, two versions side by side, exports."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.pages import files, forms
from apps.pages.refusing import Error, error_of
from apps.people.access import actor_of, allow, may
from apps.recipes import compared, exports, services
from apps.recipes.formats import bodies, own
from apps.recipes.formats.imported import KINDS
from apps.recipes.models import Recipe, RecipeVersion

PAGE = 50
FORMS = (
    ("sparkweb", "sparkweb (YAML)"),
    ("eugr", "eugr"),
    ("sparkrun", "sparkrun"),
    ("compose", "Compose file"),
    ("source", "as it was imported"),
)


@allow("view")
@require_GET
def recipes(request: HttpRequest) -> HttpResponse:
    name, archived = request.GET.get("name", "").strip(), bool(request.GET.get("archived"))
    found = Recipe.objects.filter(archived_at__isnull=not archived, versions__isnull=False).distinct()
    found = found.order_by("name", "pk")
    if name:
        found = found.filter(name__icontains=name)
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    newest = services.newest_of(page.object_list)
    context = {
        "page": page,
        "rows": [(one, newest[one.pk]) for one in page.object_list],
        "name": name,
        "archived": archived,
        "filtered": bool(name or archived),
    }
    return render(request, "pages/recipes.html", context)


# One


@allow("view")
@require_GET
def recipe(request: HttpRequest, slug: str) -> HttpResponse:
    return one(request, _recipe(slug))


def _recipe(slug: str) -> Recipe:
    return get_object_or_404(Recipe, slug=slug)


def _number(text: str | None) -> int | None:
    return forms.identity(text) if text else None


def _version(recipe: Recipe, text: str | None) -> RecipeVersion:
    return services.version_of(recipe, _number(text))


def one(request: HttpRequest, found: Recipe, error: Error | None = None, number: int | None = None) -> HttpResponse:
    """The page of a recipe, of the version that the address names or the newest."""
    versions = list(found.versions.all())
    wanted = number or _number(request.GET.get("version"))
    version = next((each for each in versions if each.number == wanted), versions[0] if versions else None)
    context: dict[str, Any] = {
        "recipe": found,
        "version": version,
        "newest": versions[0] if versions else None,
        "rows": [_row(each, versions[at + 1] if at + 1 < len(versions) else None) for at, each in enumerate(versions)],
        "deployments": _deployments(found),
        "error": error,
        "typed": request.POST if error else {},
        "forms": [each for each in FORMS if each[0] != "source" or (version and version.source)],
    }
    if version is not None:
        context |= shown(version.body, version.world_size) | _decisions(request, version)
        context |= {"kept": rows_of(version.extra), "notes": version.notes, "source": version.source}
    return render(request, "pages/recipe.html", context, status=error.status if error else 200)


def _deployments(recipe: Recipe) -> Any:
    found = Deployment.objects.filter(recipe_version__recipe=recipe, archived_at=None)
    return found.select_related("recipe_version").order_by("-pk")[:PAGE]


def _row(version: RecipeVersion, before: RecipeVersion | None) -> dict[str, Any]:
    changes = compared.changes(before.body, version.body) if before else []
    return {"version": version, "before": before, "changes": [word(name) for name, _, _ in changes]}


def word(name: str) -> str:
    return forms.FIELDS[name].label if name in forms.FIELDS else name.replace("_", " ").capitalize()


def shown(body: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """What a template needs to show a body: its fields as text, those of further services, and what is wrong with it."""
    services_ = body.get("services") or ()
    return {
        "fields": fields_of(body),
        "parts": [{"name": part.get("service", ""), "fields": fields_of(part)} for part in services_],
        "wrong": bodies.errors(body, world_size),
    }


ALWAYS = ("model", "engine", "runtime")


def fields_of(body: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """(label, value, whether it is code) of every field that is given, and of those that say most."""
    body = {name: bodies.DEFAULTS.get(name) for name in ALWAYS} | dict(body)
    texts = forms.shown(body)
    made = []
    for name in bodies.FIELDS:
        if name == "services" or body.get(name) in (None, "", [], ()):
            continue
        field = forms.FIELDS.get(name)
        code = field is not None and field.kind in ("lines", "pairs", "secrets")
        made.append((word(name), texts.get(name) or str(body[name]), code))
    return made


def rows_of(extra: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What an imported text says beyond the body: path and value as text."""
    return [
        (path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1))
        for path, value in extra.items()
    ]


# What waits


def _decisions(request: HttpRequest, version: RecipeVersion) -> dict[str, Any]:
    approver = may(actor_of(request), "approve_recipes")
    items = [item_of(item, approver) for item in version.quarantine]
    return {
        "waiting": sorted((item for item in items if not item["decision"]), key=lambda item: not item["adds"]),
        "takeable": sum(1 for item in items if item["adds"] and not item["decision"]),
        "decided": [item for item in items if item["decision"]],
        "approver": approver,
    }


def item_of(item: Mapping[str, Any], approver: bool) -> dict[str, Any]:
    """A held item as a page shows it: what it is, and the lines that the spec would get."""
    where = f"services[{item['place']}]." if item["place"] >= 0 else ""
    adds = [f"{where}{name}: {_added(value)}" for name, value in item["takes"].items()]
    return {
        **item,
        "means": KINDS.get(item["kind"], ""),
        "adds": adds,
        "may_take": bool(adds) and (approver or item["kind"] in services.HARMLESS),
    }


def _added(value: Any) -> str:
    if isinstance(value, list):
        return " ".join("=".join(map(str, one)) if isinstance(one, list) else str(one) for one in value)
    return str(value)


@allow("edit_recipes")
@require_POST
def decide(request: HttpRequest, slug: str) -> HttpResponse:
    found = _recipe(slug)
    chosen = {key.removeprefix("item-"): value for key, value in request.POST.items() if key.startswith("item-")}
    try:
        version = _version(found, request.POST.get("version"))
        made = services.decide(
            actor_of(request),
            version,
            take=[key for key, value in chosen.items() if value == "take"],
            leave=[key for key, value in chosen.items() if value == "leave"],
            reason=request.POST.get("reason", ""),
        )
    except Refused as refused:
        return one(request, found, error_of(refused), _number(request.POST.get("version")))
    left = len(made.waiting)
    said = f"{left} thing{'s' if left > 1 else ''} still wait." if left else "Nothing waits any more."
    messages.success(request, f"Decided. {said}")
    return redirect(f"{found.get_absolute_url()}?version={made.number}")


# Acts


@allow("edit_recipes")
@require_POST
def duplicate(request: HttpRequest, slug: str) -> HttpResponse:
    found = _recipe(slug)
    try:
        version = _version(found, request.POST.get("version"))
        made = services.duplicate(actor_of(request), version, name=request.POST.get("name", ""))
    except Refused as refused:
        return one(request, found, error_of(refused))
    messages.success(request, f"{made.name} is a recipe of its own now.")
    return redirect(made.get_absolute_url())


@allow("edit_recipes")
@require_POST
def archive(request: HttpRequest, slug: str) -> HttpResponse:
    """Take it off the lists, or with `back` bring it back."""
    found = _recipe(slug)
    act = services.unarchive if request.POST.get("back") else services.archive
    try:
        found = act(actor_of(request), found, reason=request.POST.get("reason", ""))
    except Refused as refused:
        return one(request, found, error_of(refused))
    messages.success(request, f"{found.name} is {'archived' if found.archived_at else 'back'}.")
    return redirect("/recipes" if found.archived_at else found.get_absolute_url())


@allow("edit_recipes")
@require_POST
def tested(request: HttpRequest, slug: str) -> HttpResponse:
    found = _recipe(slug)
    try:
        version = _version(found, request.POST.get("version"))
        services.mark_tested(actor_of(request), version, tested_on=request.POST.get("tested_on", ""))
    except Refused as refused:
        return one(request, found, error_of(refused), _number(request.POST.get("version")))
    return redirect(f"{found.get_absolute_url()}?version={version.number}")


# Side by side, and out


@allow("view")
@require_GET
def diff(request: HttpRequest, slug: str) -> HttpResponse:
    found = _recipe(slug)
    versions = {each.number: each for each in found.versions.all()}
    last = versions.get(_number(request.GET.get("newer")) or max(versions, default=0))
    before = _number(request.GET.get("older")) or (last.number - 1 if last else 0)
    first = versions.get(before) or last
    if first is None or last is None:
        return redirect(found.get_absolute_url())
    differ = {name for name, _, _ in compared.changes(first.body, last.body)}
    pairs = compared.lines(text_of(first, differ), text_of(last, differ))
    context = {"recipe": found, "versions": list(versions.values()), "first": first, "last": last, "pairs": pairs}
    return render(
        request, "pages/recipe_diff.html", context | {"same": all(pair.kind in ("same", "skipped") for pair in pairs)}
    )


def text_of(version: RecipeVersion, also: Collection[str] = ()) -> str:
    """A version as YAML, the fields of `also` in any case. Of a body that can't be read, its JSON."""
    recipe = version.recipe
    try:
        return own.write(
            name=recipe.name,
            description=recipe.description,
            world_size=version.world_size,
            body=version.body,
            also=also,
        )
    except (TypeError, ValueError, KeyError):
        return json.dumps(version.body, indent=2, ensure_ascii=False)


@allow("view")
@require_GET
def export(request: HttpRequest, slug: str, form: str) -> HttpResponse:
    found = _recipe(slug)
    try:
        made = exports.of_version(_version(found, request.GET.get("version")), form)
    except Refused as refused:
        return one(request, found, error_of(refused))
    return files.download(made, found.slug)


def noted(found: Any) -> list[dict[str, Any]]:
    return [asdict(note) for note in found]


urlpatterns = [
    path("recipes", recipes, name="recipes"),
    path("recipes/<str:slug>", recipe, name="recipe"),
    path("recipes/<str:slug>/decide", decide, name="recipe-decide"),
    path("recipes/<str:slug>/duplicate", duplicate, name="recipe-duplicate"),
    path("recipes/<str:slug>/archive", archive, name="recipe-archive"),
    path("recipes/<str:slug>/tested", tested, name="recipe-tested"),
    path("recipes/<str:slug>/diff", diff, name="recipe-diff"),
    path("recipes/<str:slug>/export/<str:form>", export, name="recipe-export"),
]
