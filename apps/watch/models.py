"""What the looks at nodes saw: the newest, a history that grows thinner with age, and what they are compared with."""

from __future__ import annotations

from typing import Any

from django.db import models

from apps.deployments.models import Deployment
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


class Point(models.Model):
    """A node's figures at one moment (`step` 0), or the means of a minute or a quarter of an hour (`step` in seconds, `at` its
    beginning; of the temperature the largest). A node that did not answer has none."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="points")
    step = models.PositiveSmallIntegerField()
    at = models.DateTimeField()
    used_bytes = models.BigIntegerField(null=True)
    total_bytes = models.BigIntegerField(null=True)
    temp_c = models.FloatField(null=True)
    power_w = models.FloatField(null=True)
    busy_pct = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "step", "at"], name="point_once")]
        indexes = [models.Index(fields=["step", "at"], name="point_by_age")]

    def __str__(self) -> str:
        return f"{self.node_id} at {self.at}"


class Mark(models.Model):
    """Something that happened to a node, for its history."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="marks")
    at = models.DateTimeField()
    kind = models.CharField(max_length=12)  # rebooted, unreachable, reachable, or the state of a deployment on it
    text = models.CharField(max_length=200, default="", blank=True)

    class Meta:
        indexes = [models.Index(fields=["node", "at"], name="mark_of_node")]
        ordering = ("at", "pk")

    def __str__(self) -> str:
        return f"{self.node_id} {self.kind} at {self.at}"


class Brake(models.Model):
    """A time in which most nodes fell silent at once, and nothing was concluded from it."""

    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    silent = models.PositiveIntegerField()
    known = models.PositiveIntegerField()  # nodes that answered before

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        return (
            f"{self.silent} of {self.known} nodes stopped answering at once. Most likely it is the network of the machine that runs "
            "sparkweb, so no deployment is called unreachable and no robot acts; states are those of before."
        )


class Followed(models.Model):
    """What looks at a deployment are compared with, since its ranks were launched."""

    deployment = models.OneToOneField(Deployment, on_delete=models.CASCADE, related_name="followed")
    # {"launched": what it belongs to, "ranks": {number: {image_id, command, driver}}, "apis": {service: {tokens, moved_at, still, keyed,
    # peak_w}}, "doubts": {flag: looks}}
    body: models.JSONField[Any, Any] = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"{self.deployment_id}"
