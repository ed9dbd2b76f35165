"""The audit trail's only table. Rows are added and never touched again; a database trigger sees to it."""

from __future__ import annotations

import datetime
import hashlib
import json
from typing import Any, ClassVar

from django.db import models

from apps.audit.secrecy import canonical

GENESIS = "0" * 64  # prev_hash of the first entry


class Entry(models.Model):
    """One act, or one refusal of it. `id` counts from 1 without a gap."""

    id = models.BigIntegerField(primary_key=True, db_column="seq")
    time = models.DateTimeField(db_index=True)

    actor_kind = models.CharField(max_length=16)  # person, token, robot, system
    actor_id = models.BigIntegerField(null=True)
    actor_name = models.CharField(max_length=128, db_index=True)
    actor_role = models.CharField(max_length=16)
    address = models.CharField(max_length=64, blank=True)
    session = models.CharField(max_length=64, blank=True)  # a short hash, never the key
    request_id = models.CharField(max_length=64, blank=True)

    action = models.CharField(max_length=64, db_index=True)
    object_type = models.CharField(max_length=32, blank=True)
    object_id = models.CharField(max_length=64, blank=True)
    object_name = models.CharField(max_length=256, blank=True)
    outcome = models.CharField(max_length=16)
    reason = models.TextField(blank=True)
    # Canonical JSON as text: jsonb would rewrite numbers, and the hash must be computable from what is stored.
    before_json = models.TextField(blank=True)
    after_json = models.TextField(blank=True)
    run_id = models.BigIntegerField(null=True, db_index=True)

    prev_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        ordering: ClassVar[list[str]] = ["id"]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["object_type", "object_id"], name="audit_object")]

    def __str__(self) -> str:
        return f"{self.id} {self.actor_name} {self.action} {self.object_name} ({self.outcome})"

    @property
    def seq(self) -> int:
        return self.id

    @property
    def before(self) -> Any:
        return json.loads(self.before_json) if self.before_json else None

    @property
    def after(self) -> Any:
        return json.loads(self.after_json) if self.after_json else None

    def content(self) -> dict[str, Any]:
        """Everything that the hash covers."""
        moment = self.time.astimezone(datetime.UTC)
        return {
            "seq": self.id,
            "time": moment.isoformat(timespec="microseconds"),
            "actor": {"kind": self.actor_kind, "id": self.actor_id, "name": self.actor_name, "role": self.actor_role},
            "address": self.address,
            "session": self.session,
            "request_id": self.request_id,
            "action": self.action,
            "object": {"type": self.object_type, "id": self.object_id, "name": self.object_name},
            "outcome": self.outcome,
            "reason": self.reason,
            "before": self.before_json,
            "after": self.after_json,
            "run": self.run_id,
        }

    def computed_hash(self) -> str:
        """SHA-256 over the previous entry's hash and this entry's canonical JSON, as hex."""
        return hashlib.sha256((self.prev_hash + canonical(self.content())).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The entry as the API and the export give it away."""
        return {
            **self.content(),
            "id": self.id,
            "before": self.before,
            "after": self.after,
            "prev_hash": self.prev_hash,
            "hash": self.hash,
        }
