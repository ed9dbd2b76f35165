"""Recipes and their versions. A version's body holds Spec fields, without name and nodes."""

from __future__ import annotations

from typing import Any

from django.db import models


class Recipe(models.Model):
    slug = models.SlugField(max_length=80, unique=True)
    name = models.CharField(max_length=120)
    description = models.TextField(default="", blank=True)
    shipped = models.BooleanField(default=False)
    archived_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class RecipeVersion(models.Model):
    recipe = models.ForeignKey(Recipe, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    body: models.JSONField[Any, Any] = models.JSONField()
    world_size = models.PositiveIntegerField(default=1)  # nodes it wants
    note = models.TextField(default="", blank=True)
    tested_on = models.CharField(max_length=200, default="untested on hardware")
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=80, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["recipe", "number"], name="recipe_version_once")]
        ordering = ("-number",)

    def __str__(self) -> str:
        return f"{self.recipe} v{self.number}"
