"""Other installations of sparkweb that use the same nodes: how they tell us apart, and removing what a dead one left."""

from __future__ import annotations

import hashlib

from django.conf import settings
from django.db import transaction

from apps.audit import record
from apps.audit.actor import Actor
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan import stories
from apps.remote import nodelock
from apps.runs import services
from apps.runs.models import Run


def installation() -> str:
    """Tells this installation from others that use the same nodes: it goes with the sealing key, also into a restored backup."""
    return hashlib.sha256(f"installation {settings.SPARKWEB_KEY}".encode()).hexdigest()[:12]


def unlock(actor: Actor, node: Node, *, reason: str, idempotency_key: str = "") -> Run:
    """Remove other installations' locks from a node, but for those of one that lives. Raises Refused: no reason, or a node that may
    not be opened. Like a probe it holds nothing: it must work where a run would be refused."""
    reason = reason.strip()

    def known() -> Run | None:
        return services.same_request(actor, idempotency_key, story="unlock", nodes=[node.name], reason=reason)

    return services.once(known, lambda: _unlock(actor, node, reason, idempotency_key))


@transaction.atomic
def _unlock(actor: Actor, node: Node, reason: str, idempotency_key: str) -> Run:
    if not reason:
        raise Refused(
            "bad_input", "Removing another installation's lock needs a reason.", field="reason",
            remedy="Say how you know that it is gone; it is kept in the audit trail.",
        )  # fmt: skip
    if len(reason) > services.LONGEST_REASON:
        raise Refused(
            "bad_input", f"The reason is longer than {services.LONGEST_REASON} characters.", field="reason", remedy="Shorten it."
        )  # fmt: skip
    inventory.endpoint(node)
    plan = stories.unlock(node.name, script=nodelock.removal(installation()))
    run = services.planned_run(actor, plan, why=reason, idempotency_key=idempotency_key)
    record(
        actor, "node:unlock", object_type="node", object_id=str(node.pk), object_name=node.name, outcome="requested",
        reason=reason, run=run.pk,
    )  # fmt: skip
    services.wake(run.pk)
    return run
