"""What the last looks at a node saw."""

from __future__ import annotations

from typing import Any

from django.db import models

from apps.inventory.models import Node


class Sighting(models.Model):
    """The newest look at a node (one row a node, overwritten)."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="sighting")
    at = models.DateTimeField()
    boot_id = models.CharField(max_length=64, default="", blank=True)
    booted_at = models.DateTimeField(null=True)
    body: models.JSONField[Any, Any] = models.JSONField(default=dict)  # memory, gpu, containers, units as seen

    def __str__(self) -> str:
        return f"{self.node_id} at {self.at}"
