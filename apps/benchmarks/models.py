"""Result: one benchmark, ours or another's. Its levels have the shape of `diagnosis.measured.Level.as_json`."""

from __future__ import annotations

from typing import Any

from django.db import models

from apps.deployments.models import Deployment, Revision
from apps.runs.models import Run


class Result(models.Model):
    """Kept for ever. What it was measured on is stored as it was then, because deployments and nodes change."""

    class Source(models.TextChoices):
        MEASURED = "measured"  # by a run of ours; `run` says which
        IMPORTED = "imported"  # from a file that another generator wrote
        REFERENCE = "reference"  # entered by hand or shipped, with where it is from

    source = models.CharField(max_length=10, choices=Source.choices)
    name = models.CharField(max_length=120)
    origin = models.TextField(default="", blank=True)  # a reference's source, an imported file's name and generator
    run = models.OneToOneField(Run, on_delete=models.PROTECT, null=True, related_name="benchmark")
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, null=True, related_name="benchmarks")
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, null=True, related_name="benchmarks")
    service = models.CharField(max_length=63, default="", blank=True)
    model = models.CharField(max_length=200, default="", blank=True)
    engine = models.CharField(max_length=80, default="", blank=True)  # with its version where known
    machine = models.CharField(max_length=120, default="", blank=True)  # "2 × NVIDIA GB10"
    settings: models.JSONField[Any, Any] = models.JSONField(default=dict)  # what was asked of the generator
    levels: models.JSONField[Any, Any] = models.JSONField(default=list)
    metrics: models.JSONField[Any, Any] = models.JSONField(default=dict)  # before and after: engine, power, temperature
    state = models.CharField(max_length=12, default="complete")  # running complete cancelled failed
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=80, default="")

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return f"/benchmarks/{self.pk}"
