"""Ring and listen. Ringing never raises: the database is the truth and viewers look again by themselves."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import transaction

if TYPE_CHECKING:
    import redis  # imported where it is needed: most commands ring nothing

CHANNEL = "sparkweb:doorbell"
log = logging.getLogger(__name__)
_lock = threading.Lock()
_client: redis.Redis[bytes] | None = None
_quiet_until = 0.0  # while Redis is away, do not spend a connect timeout on each ring


def _connection() -> redis.Redis[bytes]:
    global _client
    import redis

    with _lock:
        if _client is None:
            _client = redis.Redis.from_url(
                settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=1, health_check_interval=15
            )
        return _client


def ring(kind: str, identity: int | str, version: int = 0) -> None:
    """Say now that `kind` (run, deployment, node, fleet, person …) has news."""
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return
    from redis import RedisError

    try:
        _connection().publish(CHANNEL, json.dumps({"object": kind, "id": identity, "version": version}))
    except (RedisError, OSError) as problem:
        _quiet_until = time.monotonic() + 2
        log.warning("the doorbell is silent: %s", problem)


def ring_on_commit(kind: str, identity: int | str, version: int = 0) -> None:
    """Ring once the transaction around us has been committed (at once when there is none)."""
    transaction.on_commit(lambda: ring(kind, identity, version))
