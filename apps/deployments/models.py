"""Deployment, Revision, Rank, and the consents that people gave to clear things out of its way."""

from __future__ import annotations

from typing import Any

from django.db import models

from apps.inventory.models import Node
from apps.plan.spec import Spec
from apps.recipes.models import RecipeVersion


class Deployment(models.Model):
    """The state columns are written by deployments.state.settle() alone."""

    class State(models.TextChoices):
        DRAFT = "draft"
        LAUNCHING = "launching"
        SERVING = "serving"
        DEGRADED = "degraded"
        STOPPING = "stopping"
        STOPPED = "stopped"
        FAILED = "failed"
        LOST = "lost"
        UNREACHABLE = "unreachable"

    name = models.CharField(max_length=63, unique=True)
    recipe_version = models.ForeignKey(RecipeVersion, on_delete=models.PROTECT, null=True)
    state = models.CharField(max_length=12, choices=State.choices, default=State.DRAFT)
    reason = models.CharField(max_length=40, null=True, default=None)  # noqa: DJ001 - null is the API's "no reason"
    phase = models.CharField(max_length=20, null=True, default=None)  # noqa: DJ001 - likewise
    evidence = models.TextField(default="", blank=True)
    flags: models.JSONField[Any, Any] = models.JSONField(default=dict)
    observed: models.JSONField[Any, Any] = models.JSONField(default=dict)  # what the watch concluded since the last run
    since = models.DateTimeField(auto_now_add=True)
    served_at = models.DateTimeField(null=True)  # last time it was seen serving
    on_rank_lost = models.CharField(max_length=8, default="stop")
    version = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=80, default="")
    archived_at = models.DateTimeField(null=True)
    # What was there before us and runs as this deployment: a list of {"node", "kind" (container, unit), "name", "service",
    # "restart_policy", "units"}. Empty for one that we launched ourselves.
    found: models.JSONField[Any, Any] = models.JSONField(default=list)
    # What a robot does when it is lost: nothing (manual), one relaunch after a reboot (once), or as often as the limit says, each
    # try after twice the wait of the one before (always).
    relaunch_policy = models.CharField(max_length=8, default="manual")
    relaunch_limit = models.PositiveSmallIntegerField(default=3)
    relaunch_backoff_s = models.PositiveIntegerField(default=60)
    relaunch_set: models.JSONField[Any, Any] = models.JSONField(
        default=dict
    )  # {"by", "at", "reason"} of who chose that
    # What the robot does or waits for: {"state", "sentence", "tries", "next_at"}; empty while there is nothing to do.
    relaunching: models.JSONField[Any, Any] = models.JSONField(default=dict)
    taken_over_at = models.DateTimeField(null=True)  # what was found is ours to stop and launch from then on

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return f"/deployments/{self.pk}"

    @property
    def adopted(self) -> bool:
        """It runs as it was found and is not ours to change: nobody has taken it over."""
        return bool(self.found) and self.taken_over_at is None

    @property
    def revision(self) -> Revision:
        """The newest revision. A deployment is never without one."""
        return self.revisions.latest("number")


class Revision(models.Model):
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    body: models.JSONField[Any, Any] = models.JSONField()
    reason = models.TextField(default="", blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=80, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["deployment", "number"], name="revision_once")]
        ordering = ("-number",)

    def __str__(self) -> str:
        return f"{self.deployment} r{self.number}"

    @property
    def spec(self) -> Spec:
        return Spec.from_json(self.body)


class Rank(models.Model):
    """One engine process on one node, as the last run left it and the watch last saw it."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="ranks")
    number = models.PositiveIntegerField()  # counted through all services, see plan.together
    service = models.CharField(max_length=31, default="", blank=True)  # "" is the main one
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="ranks")
    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="+")
    run_id = models.BigIntegerField()
    container = models.CharField(max_length=128, default="", blank=True)
    unit = models.CharField(max_length=255, default="", blank=True)  # where it was found as a unit's own process
    job_id = models.CharField(max_length=80, default="", blank=True)
    boot_id = models.CharField(max_length=64, default="", blank=True)
    state = models.CharField(max_length=12, default="starting")  # starting loading serving gone unknown
    seen_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["deployment", "number"], name="rank_once")]
        ordering = ("number",)

    def __str__(self) -> str:
        return f"{self.deployment} rank {self.number}"


class Consent(models.Model):
    """An editor agreed that this thing may be cleared for this deployment; an operator's relaunch may do exactly that again."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="consents")
    node = models.CharField(max_length=63)
    kind = models.CharField(max_length=10)
    name = models.CharField(max_length=255)
    disable = models.BooleanField(default=False)
    given_by = models.CharField(max_length=80)
    given_at = models.DateTimeField(auto_now_add=True)
    reason = models.TextField(default="", blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["deployment", "node", "kind", "name"], name="consent_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} on {self.node}"


class FitSample(models.Model):
    """What one launch said of its memory and what was predicted for it before any correction; bytes and tokens of one
    rank, the tightest. The next prediction for the same model on the same engine is corrected by it."""

    deployment = models.ForeignKey(Deployment, on_delete=models.SET_NULL, null=True, related_name="fit_samples")
    run_id = models.BigIntegerField(unique=True)
    at = models.DateTimeField(auto_now_add=True)
    model = models.CharField(max_length=300)
    engine = models.CharField(max_length=40)
    shape = models.CharField(max_length=120)  # what must be equal for tokens to be comparable
    nodes: models.JSONField[Any, Any] = models.JSONField(default=list)
    claim_bytes = models.BigIntegerField(null=True)
    predicted_weights_bytes = models.BigIntegerField(null=True)
    predicted_cache_bytes = models.BigIntegerField(null=True)
    predicted_tokens = models.BigIntegerField(null=True)
    shown_cache_bytes = models.BigIntegerField(null=True)  # with the correction of that time, as a person saw it
    weights_bytes = models.BigIntegerField(null=True)
    cache_bytes = models.BigIntegerField(null=True)
    tokens = models.BigIntegerField(null=True)

    class Meta:
        indexes = [models.Index(fields=["model", "engine", "-run_id"], name="fit_sample_of")]
        ordering = ("-run_id",)

    def __str__(self) -> str:
        return f"{self.model} on {self.engine}, run {self.run_id}"
