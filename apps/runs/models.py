"""Run, Step, and the output in chunks. The columns of the lease are the fence: every write of a worker names its token."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q

from apps.deployments.models import Deployment, Revision
from apps.inventory.models import Node

ACTIVE = ("queued", "reserving", "running")
LOOKS_ON = ("smoke",)  # stories that are about a deployment and change nothing of it: they keep nobody from anything


class Run(models.Model):
    class State(models.TextChoices):
        QUEUED = "queued"
        RESERVING = "reserving"
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"

    code = models.CharField(max_length=12, unique=True)  # random; job folders on nodes begin with it
    story = models.CharField(max_length=16)  # scan probe launch relaunch stop clear provision restore smoke unlock
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, null=True, related_name="runs")
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, null=True, related_name="+")
    plan: models.JSONField[Any, Any] = models.JSONField(default=dict)
    digest = models.CharField(max_length=64, default="", blank=True)
    parameters: models.JSONField[Any, Any] = models.JSONField(default=dict)  # of stories without a plan (scan)
    outcome: models.JSONField[Any, Any] = models.JSONField(default=dict)  # what a scan found, the smoke test's answer …
    state = models.CharField(max_length=12, choices=State.choices, default=State.QUEUED)
    phase = models.CharField(max_length=20, null=True, default=None)  # noqa: DJ001 - null is the API's "none"
    reason = models.CharField(max_length=40, null=True, default=None)  # noqa: DJ001 - likewise
    evidence = models.TextField(default="", blank=True)
    why = models.TextField(default="", blank=True)  # the person's reason
    actor_kind = models.CharField(max_length=8)
    actor_id = models.BigIntegerField(null=True)
    actor_name = models.CharField(max_length=80)
    actor_role = models.CharField(max_length=10)
    idempotency_key = models.CharField(max_length=80, null=True, default=None)  # noqa: DJ001 - unique when given
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    cancel_asked_at = models.DateTimeField(null=True)
    cancel_asked_by = models.CharField(max_length=80, default="", blank=True)
    cancel_why = models.TextField(default="", blank=True)
    was = models.CharField(max_length=40, default="", blank=True)  # relaunch: the deployment's reason (or state) before
    second_try_of = models.OneToOneField("self", on_delete=models.PROTECT, null=True, related_name="second_try")
    phases: models.JSONField[Any, Any] = models.JSONField(default=dict)  # phase -> {started, ended} unix seconds
    facts: models.JSONField[Any, Any] = models.JSONField(default=dict)  # pulled out of the log: kv_tokens, transport …
    next_line = models.BigIntegerField(default=1)
    next_seq = models.BigIntegerField(default=1)
    log_removed_at = models.DateTimeField(null=True)  # when the retention took lines away last
    log_kept_days = models.PositiveIntegerField(default=0)  # by which rule it did
    lease_token = models.CharField(max_length=32, default="", blank=True)
    lease_owner = models.CharField(max_length=80, default="", blank=True)
    lease_until = models.DateTimeField(null=True)
    lease_serial = models.PositiveIntegerField(
        default=0
    )  # grows with each claim: tells a worker that nobody came between
    version = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=["actor_kind", "actor_name", "idempotency_key"], name="run_idempotent"),
        ]
        indexes = [models.Index(fields=["state"], name="run_active", condition=Q(state__in=ACTIVE))]

    def __str__(self) -> str:
        return f"run {self.pk}: {self.story}"

    def get_absolute_url(self) -> str:
        return f"/runs/{self.pk}"

    @property
    def ended(self) -> bool:
        return self.state not in ACTIVE


def at_work(deployment: Deployment) -> models.QuerySet[Run]:
    """The runs of a deployment that are changing it now, the newest first."""
    return Run.objects.filter(deployment=deployment, state__in=ACTIVE).exclude(story__in=LOOKS_ON).order_by("-pk")


class Reservation(models.Model):
    """One node, one active run: the row exists exactly while the run holds the node."""

    node = models.OneToOneField(Node, on_delete=models.PROTECT, related_name="reservation")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="reservations")
    since = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.node} by {self.run}"


def keep_while_active(collector: Any, field: Any, steps: Any, using: str) -> None:
    """A node stays while a run is at work there; later its steps do without it (see Step.node_name)."""
    at_work = steps.filter(run__state__in=ACTIVE)
    if at_work.exists():
        raise models.ProtectedError("a run is at work there", set(at_work))
    models.SET_NULL(collector, field, steps, using)


class Step(models.Model):
    class State(models.TextChoices):
        WAITING = "waiting"
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"
        SKIPPED = "skipped"

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps")
    stage = models.PositiveIntegerField()
    ordinal = models.PositiveIntegerField()
    key = models.CharField(max_length=120)
    node = models.ForeignKey(Node, on_delete=keep_while_active, null=True, related_name="+")
    rank = models.IntegerField(null=True)
    title = models.CharField(max_length=300)
    kind = models.CharField(max_length=10)
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    reason = models.CharField(max_length=40, null=True, default=None)  # noqa: DJ001
    evidence = models.TextField(default="", blank=True)
    note = models.TextField(default="", blank=True)  # one line: what it came to
    job_id = models.CharField(max_length=80, default="", blank=True)
    progress: models.JSONField[Any, Any] = models.JSONField(default=dict)  # reader's progress of its output
    memory: models.JSONField[Any, Any] = models.JSONField(default=dict)  # what the executor keeps from slice to slice
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("ordinal",)
        constraints = [models.UniqueConstraint(fields=["run", "key"], name="step_once")]

    def __str__(self) -> str:
        return f"{self.run_id} {self.key}"

    @property
    def node_name(self) -> str:
        """Also of a node that was removed since: the stored plan says it."""
        if self.node is not None:
            return self.node.name
        planned = (step for stage in self.run.plan.get("stages", ()) for step in stage["steps"])
        return next((str(step["node"]) for step in planned if step["key"] == self.key), "")


class Stream(models.Model):
    """One output: of a step's job on its node, or our own notes about a step. Raw offsets are those of the node's file, plus
    `base` where somebody emptied that file under the job. What lies between `gap_start` and `gap_end` is not kept any more."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="streams")
    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="streams")
    node = models.CharField(max_length=63, default="", blank=True)
    rank = models.IntegerField(null=True)
    name = models.CharField(max_length=10)  # output, note
    offset = models.BigIntegerField(default=0)  # raw bytes taken from the source and stored
    open_line = models.BooleanField(default=False)  # the last stored line has no end yet
    ended = models.BooleanField(default=False)
    base = models.BigIntegerField(default=0)  # raw offset of the first byte of the node's file as it is now
    gap_start = models.BigIntegerField(default=0)  # raw offsets, both 0 while everything is kept
    gap_end = models.BigIntegerField(default=0)
    gap_lines = models.BigIntegerField(default=0)
    marks: models.JSONField[Any, Any] = models.JSONField(
        default=list
    )  # what befell the node's file, see runs.limits.MARKS

    class Meta:
        constraints = [models.UniqueConstraint(fields=["step", "name"], name="stream_once")]

    def __str__(self) -> str:
        return f"{self.step_id} {self.name}"

    @property
    def gap_bytes(self) -> int:
        """Raw bytes that are not kept."""
        return self.gap_end - self.gap_start


class Chunk(models.Model):
    """Masked bytes of a stream, keyed by raw offset; line numbers are derived: first_line + position in the chunk."""

    stream = models.ForeignKey(Stream, on_delete=models.CASCADE, related_name="chunks")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="chunks")
    seq = models.BigIntegerField()
    offset = models.BigIntegerField()
    length = models.IntegerField()  # raw bytes, before masking
    continues = models.BooleanField(default=False)  # its first bytes belong to the line before
    first_line = models.BigIntegerField()
    line_count = models.IntegerField()
    time = models.DateTimeField()
    data = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["stream", "offset"], name="chunk_offset_once"),
            models.UniqueConstraint(fields=["run", "seq"], name="chunk_seq_once"),
        ]
        indexes = [models.Index(fields=["run", "first_line"])]

    def __str__(self) -> str:
        return f"{self.stream_id} @{self.offset}"


class Passing(models.Model):
    """A password that somebody gave for one run, sealed; gone when the run has ended, or after minutes."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=120)
    sealed_value = models.TextField()
    until = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="passing_once")]

    def __str__(self) -> str:
        return f"{self.run_id} {self.name}"


class WorkerBeat(models.Model):
    """A worker says that it is alive; pages and /readyz look at the age."""

    name = models.CharField(max_length=120, unique=True)
    at = models.DateTimeField()
    started_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
