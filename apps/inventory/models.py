"""Nodes, the credentials and host keys that open them, and their sheets."""

from __future__ import annotations

from typing import Any

from django.db import models


class Credential(models.Model):
    """An SSH key pair. The private half is sealed and never shown again."""

    name = models.CharField(max_length=80, unique=True)
    kind = models.CharField(max_length=12)  # generated, uploaded
    public_key = models.TextField()
    sealed_private_key = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=80, default="")

    def __str__(self) -> str:
        return self.name


class Secret(models.Model):
    """A value that plans call by name, e.g. `hub` for HF_TOKEN. Write-only."""

    name = models.CharField(max_length=80, unique=True)
    sealed_value = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """A machine that answers SSH, perhaps only through another one."""

    class State(models.TextChoices):
        UNCONFIRMED = "unconfirmed"  # host keys were seen and nobody has confirmed one yet
        READY = "ready"
        STOPPED = "stopped"  # its host key changed: nothing is done there until an admin settles it

    name = models.CharField(max_length=63, unique=True)
    address = models.CharField(max_length=255)
    port = models.PositiveIntegerField(default=22)
    user = models.CharField(max_length=64)
    credential = models.ForeignKey(Credential, on_delete=models.PROTECT, related_name="nodes")
    jump = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="behind")
    state = models.CharField(max_length=12, choices=State.choices, default=State.UNCONFIRMED)
    boot_id = models.CharField(max_length=64, default="", blank=True)
    last_seen_at = models.DateTimeField(null=True)
    unreachable_since = models.DateTimeField(null=True)
    unreachable_reason = models.CharField(max_length=40, default="", blank=True)
    unreachable_evidence = models.TextField(default="", blank=True)
    unreachable_hop = models.CharField(max_length=63, default="", blank=True)
    version = models.PositiveIntegerField(default=0)  # grows with every change a page could show
    # Grows with what only a new login gets (groups, limits): connections of before are used no more, in no process.
    logins = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return f"/nodes/{self.pk}"


class HostKey(models.Model):
    """A key that a node's door showed. Only pinned ones are trusted."""

    class State(models.TextChoices):
        OFFERED = "offered"
        PINNED = "pinned"
        REFUSED = "refused"  # shown in place of a pinned one

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="host_keys")
    type = models.CharField(max_length=40)
    base64 = models.TextField()
    sha256 = models.CharField(max_length=64)  # SHA256:…
    state = models.CharField(max_length=8, choices=State.choices, default=State.OFFERED)
    seen_at = models.DateTimeField(auto_now_add=True)
    confirmed_at = models.DateTimeField(null=True)
    confirmed_by = models.CharField(max_length=80, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "type", "sha256"], name="host_key_once")]

    def __str__(self) -> str:
        return f"{self.node_id} {self.type} {self.sha256}"


class SheetRow(models.Model):
    """The facts of a node at one moment, as facts.Sheet.to_json() gives them."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="sheets")
    taken_at = models.DateTimeField()
    body: models.JSONField[Any, Any] = models.JSONField()

    class Meta:
        indexes = [models.Index(fields=["node", "-taken_at"])]
        get_latest_by = "taken_at"

    def __str__(self) -> str:
        return f"{self.node_id} at {self.taken_at}"
