"""Slows down guessing: after a few failures each further try from the same address has to wait longer."""

from __future__ import annotations

import hashlib
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from apps.people.models import Throttle, name_key

FREE = 4  # failures for one name from one address that cost nothing
FREE_ADDRESS = 30  # failures for any names from one address
LONGEST = timedelta(minutes=15)
FORGOTTEN_AFTER = timedelta(hours=1)


def _keys(purpose: str, name: str, address: str) -> list[tuple[str, int]]:
    def digest(*parts: str) -> str:
        return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()

    return [
        (digest(purpose, name_key(name), address), FREE),
        (digest(purpose, "", "any name", address), FREE_ADDRESS),
    ]


def wait_s(purpose: str, name: str, address: str) -> int:
    """Seconds until the next try counts; 0 when it may be made now."""
    now = timezone.now()
    keys = [key for key, _ in _keys(purpose, name, address)]
    waits = [
        (row.blocked_until - now).total_seconds()
        for row in Throttle.objects.filter(key__in=keys)
        if row.blocked_until and row.blocked_until > now
    ]
    return int(max(waits, default=0) + 0.999)


def failed(purpose: str, name: str, address: str) -> None:
    """Remember a failure; from the fifth on the wait is 2, 4, 8 … s, at most 15 min."""
    now = timezone.now()
    with transaction.atomic():
        Throttle.objects.filter(last_at__lt=now - FORGOTTEN_AFTER).delete()
        for key, free in _keys(purpose, name, address):
            row, _ = Throttle.objects.select_for_update().get_or_create(key=key)
            row.failures += 1
            row.last_at = now
            over = row.failures - free
            row.blocked_until = now + min(timedelta(seconds=2 ** min(over, 12)), LONGEST) if over > 0 else None
            row.save()


def succeeded(purpose: str, name: str, address: str) -> None:
    """Forget the failures of this name from this address."""
    Throttle.objects.filter(key=_keys(purpose, name, address)[0][0]).delete()
