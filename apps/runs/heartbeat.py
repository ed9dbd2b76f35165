"""A worker says every two seconds that it is alive; pages and /readyz look at the age."""

from __future__ import annotations

import logging
import os
import socket
import threading
from datetime import datetime, timedelta

from django.db import close_old_connections, connection
from django.db.models.functions import Now
from django.utils import timezone

from apps.runs.models import WorkerBeat

EVERY_S = 2.0
KEPT = timedelta(hours=1)
log = logging.getLogger(__name__)


def start() -> threading.Event:
    """Begin in a thread of its own; set the returned event to end it."""
    stop = threading.Event()
    threading.Thread(target=_beat, args=(stop,), name="heartbeat", daemon=True).start()
    return stop


def beat(name: str, started: datetime) -> None:
    """One sign of life, by the database's clock. Those that are far from it, before or after, go."""
    WorkerBeat.objects.update_or_create(name=name, defaults={"at": Now(), "started_at": started})
    WorkerBeat.objects.exclude(at__gt=Now() - KEPT, at__lt=Now() + KEPT).delete()


def _beat(stop: threading.Event) -> None:
    name, started = f"{socket.gethostname()}:{os.getpid()}", timezone.now()
    while True:
        try:
            beat(name, started)
        except Exception:
            log.warning("no heartbeat could be written", exc_info=True)
            close_old_connections()
        if stop.wait(EVERY_S):
            connection.close()
            return
