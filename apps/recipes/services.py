"""Recipes as shipped, and the version that a new deployment starts from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.db import transaction

from apps.recipes.models import Recipe, RecipeVersion

SHIPPED = Path(__file__).parent / "shipped"


def current_version(recipe: Recipe) -> RecipeVersion:
    return recipe.versions.latest("number")


@transaction.atomic
def load_shipped() -> int:
    """Bring the recipes that come with sparkweb into the database; a changed file becomes a new version. Returns how many changed."""
    changed = 0
    for path in sorted(SHIPPED.glob("*.json")):
        body: dict[str, Any] = json.loads(path.read_text())
        recipe, _ = Recipe.objects.get_or_create(slug=path.stem, defaults={"name": body["name"], "shipped": True})
        newest = recipe.versions.order_by("-number").first()
        if newest is not None and newest.body == body["spec"]:
            continue
        Recipe.objects.filter(pk=recipe.pk).update(name=body["name"], description=body["description"])
        RecipeVersion.objects.create(
            recipe=recipe,
            number=1 if newest is None else newest.number + 1,
            body=body["spec"],
            world_size=body["world_size"],
            tested_on=body["tested_on"],
            created_by="sparkweb",
        )
        changed += 1
    return changed
