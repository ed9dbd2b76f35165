"""Benchmark: one result, ours or another's, as `results.Result.to_json` gives it."""

from __future__ import annotations

from typing import Any

from django.db import models

from apps.deployments.models import Deployment, Revision
from apps.runs.models import Run


class Benchmark(models.Model):
    """Kept for ever. What it was measured on stands in the result as it was then, because deployments and nodes change."""

    deployment = models.ForeignKey(Deployment, on_delete=models.SET_NULL, null=True, related_name="benchmarks")
    revision = models.ForeignKey(Revision, on_delete=models.SET_NULL, null=True, related_name="benchmarks")
    run = models.OneToOneField(Run, on_delete=models.SET_NULL, null=True, related_name="benchmark")
    name = models.CharField(max_length=120)
    result: models.JSONField[Any, Any] = models.JSONField(default=dict)
    good = models.BooleanField(default=False)  # a person called it good: later ones are judged against it
    made = models.DateTimeField(auto_now_add=True)
    by = models.CharField(max_length=80, default="")

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.name
