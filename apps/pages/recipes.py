"""Recipes: the list, and one with its versions. Read only."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import path
from django.views.decorators.http import require_GET

from apps.deployments.models import Deployment
from apps.pages import forms
from apps.pages.deployments import differences
from apps.people.access import allow
from apps.recipes.models import Recipe

PAGE = 50


@allow("view")
@require_GET
def recipes(request: HttpRequest) -> HttpResponse:
    found = (
        Recipe.objects.filter(archived_at=None)
        .annotate(count=Count("versions"))
        .prefetch_related("versions")
        .order_by("name")
    )
    return render(request, "pages/recipes.html", {"page": Paginator(found, PAGE).get_page(request.GET.get("page"))})


@allow("view")
@require_GET
def recipe(request: HttpRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Recipe, slug=slug)
    versions = list(found.versions.all())
    rows = [
        {
            "version": one,
            "changes": differences(versions[place + 1].body, one.body) if place + 1 < len(versions) else [],
        }
        for place, one in enumerate(versions)
    ]
    newest = forms.shown(versions[0].body) if versions else {}
    return render(
        request,
        "pages/recipe.html",
        {
            "recipe": found,
            "rows": rows,
            "newest": versions[0] if versions else None,
            "fields": [
                (field, newest[field.name]) for field in (*forms.MAIN, *forms.FURTHER) if newest.get(field.name)
            ],
            "deployments": Deployment.objects.filter(recipe_version__recipe=found, archived_at=None)[:PAGE],
        },
    )


urlpatterns = [path("recipes", recipes, name="recipes"), path("recipes/<str:slug>", recipe, name="recipe")]
