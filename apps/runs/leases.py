"""When a run's lease is nobody's any more. The database's clock decides, and it may be set back or forth under us."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.db.models.functions import Now

LEASES = 10  # of LEASE_S; workers may have different settings, but not that different
LONGEST_S = 120.0  # of a lease at least, before it is called impossible


def nobodys() -> Q:
    """No lease, or one that has run out, or one that ends further ahead than any can: the database's clock was set back since,
    and whoever had it may be dead for hours. Harmless when its owner lives after all: then it loses the run to another."""
    furthest = Now() + timedelta(seconds=max(LONGEST_S, LEASES * settings.LEASE_S))
    return Q(lease_until__isnull=True) | Q(lease_until__lt=Now()) | Q(lease_until__gt=furthest)


def unheard(older_than: timedelta) -> Q:
    """Nobody works on it, and it is too old for its first message to be on the way; or made at a time that is still to come."""
    waits = Q(created_at__lt=Now() - older_than) | Q(created_at__gt=Now() + older_than)
    return nobodys() & (Q(lease_until__isnull=False) | waits)
