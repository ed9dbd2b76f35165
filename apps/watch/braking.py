"""The brake: when most of the fleet falls silent within one cycle, it is most likely our own network, and nobody is alarmed."""

from __future__ import annotations

import logging
from collections.abc import Collection

from django.db import transaction
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import robot
from apps.doorbell.ring import ring_on_commit
from apps.watch.models import Brake

log = logging.getLogger(__name__)
LEAST = 3  # nodes: two may well lose power together
OF_THE_NETWORK = (
    "dns",
    "no_route",
    "ssh_timeout",
    "ssh_refused",
)  # a refused key or a changed host key is the node's own
WATCH = robot("watch")


def likely_ours(silent: int, known: int) -> bool:
    """`silent` nodes of `known` that answered in the last cycle do not any more: at least three, and more than half."""
    return silent >= LEAST and 2 * silent > known


def current() -> Brake | None:
    return Brake.objects.filter(ended_at=None).order_by("-pk").first()


@transaction.atomic
def hold(silent: Collection[str], known: int) -> Brake:
    """Begin it, or go on with other figures."""
    brake = Brake.objects.select_for_update().filter(ended_at=None).order_by("-pk").first()
    if brake is not None:
        if (brake.silent, brake.known) != (len(silent), known):
            brake.silent, brake.known = len(silent), known
            brake.save(update_fields=["silent", "known"])
            ring_on_commit("fleet", 0)
        return brake
    brake = Brake.objects.create(silent=len(silent), known=known, started_at=timezone.now())
    log.warning("%s", brake.sentence)
    _say(brake, "watch:braked", {"silent": sorted(silent)[:50], "of": known})
    return brake


@transaction.atomic
def release() -> None:
    """Enough nodes answer again. Does nothing where no brake holds."""
    for brake in Brake.objects.select_for_update().filter(ended_at=None):
        brake.ended_at = timezone.now()
        brake.save(update_fields=["ended_at"])
        _say(brake, "watch:released", {"seconds": round((brake.ended_at - brake.started_at).total_seconds())})


def _say(brake: Brake, action: str, after: dict[str, object]) -> None:
    record(
        WATCH, action, object_type="watch", object_id=str(brake.pk), object_name="fleet", outcome="done", after=after
    )
    ring_on_commit("audit", 0)
    ring_on_commit("fleet", 0)
