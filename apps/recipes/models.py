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

    def get_absolute_url(self) -> str:
        return f"/recipes/{self.slug}"


class RecipeVersion(models.Model):
    recipe = models.ForeignKey(Recipe, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    body: models.JSONField[Any, Any] = models.JSONField()
    world_size = models.PositiveIntegerField(default=1)  # nodes it wants
    note = models.TextField(default="", blank=True)
    tested_on = models.CharField(max_length=200, default="untested on hardware")
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=80, default="")
    used_at = models.DateTimeField(null=True)  # a deployment was made from it: it never changes again
    changed_at = models.DateTimeField(null=True)  # last edit of a draft
    changed_by = models.CharField(max_length=80, default="", blank=True)
    family = models.CharField(max_length=20, default="", blank=True)  # format that it was imported from
    source = models.TextField(default="", blank=True)  # the imported text, secrets masked
    source_sha256 = models.CharField(max_length=64, default="", blank=True)  # of the text as it came
    extra: models.JSONField[Any, Any] = models.JSONField(default=dict, blank=True)  # what it says beyond the body
    notes: models.JSONField[Any, Any] = models.JSONField(default=list, blank=True)  # {path, message, remedy, line}
    # What waits for a decision, or had one: {key, kind, path, text, line, takes, place, at, decision, by, when, reason};
    # decision is "", taken or left.
    quarantine: models.JSONField[Any, Any] = models.JSONField(default=list, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["recipe", "number"], name="recipe_version_once")]
        ordering = ("-number",)

    def __str__(self) -> str:
        return f"{self.recipe} v{self.number}"

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """What nobody has decided yet."""
        return [one for one in self.quarantine if not one["decision"]]
