"""Recipes: where the specification of a deployment begins."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router

from apps.api.finding import page
from apps.api.schemas import LIMIT, After, Limit, RecipeOut, Recipes, RecipeVersionOut, RecipeWithVersions
from apps.diagnosis.refusal import Refused
from apps.people.access import allow
from apps.recipes.models import Recipe
from apps.recipes.services import current_version

router = Router(tags=["recipes"])


def _fields(recipe: Recipe) -> dict[str, Any]:
    version = current_version(recipe)
    return {
        "id": recipe.pk,
        "slug": recipe.slug,
        "name": recipe.name,
        "description": recipe.description,
        "shipped": recipe.shipped,
        "version": version.number,
        "world_size": version.world_size,
        "tested_on": version.tested_on,
        "spec": version.body,
    }


@router.get("recipes", response=Recipes)
@allow("view")
def list_recipes(request: HttpRequest, after: After = None, limit: Limit = LIMIT) -> Recipes:
    """All recipes in their newest version, the oldest first."""
    rows = Recipe.objects.filter(archived_at=None, versions__isnull=False).distinct()
    found, following = page(rows, after=after, limit=limit)
    return Recipes(recipes=[RecipeOut(**_fields(one)) for one in found], next=following)


@router.get("recipes/{slug}", response=RecipeWithVersions)
@allow("view")
def get_recipe(request: HttpRequest, slug: str) -> RecipeWithVersions:
    """One recipe with all its versions, the newest first."""
    found = None if "\0" in slug else Recipe.objects.filter(slug=slug, versions__isnull=False).first()
    if found is None:
        remedy = "GET /api/v1/recipes lists those that exist."
        raise Refused("not_found", f"There is no recipe {slug[:80]}.", status=404, remedy=remedy)
    versions = [
        RecipeVersionOut(
            number=one.number,
            world_size=one.world_size,
            tested_on=one.tested_on,
            note=one.note or None,
            created_at=one.created_at,
            created_by=one.created_by or None,
            spec=one.body,
        )
        for one in found.versions.all()
    ]
    return RecipeWithVersions(**_fields(found), versions=versions)
