"""A worker finds its work itself: every few seconds, and first as it starts, it takes up runs that nobody works on.

Messages are wake-ups that only make it faster. With Redis or beat gone, or a message lost, runs go on all the same.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.conf import settings
from django.db import close_old_connections, connection

from apps.runs import ending, services, working

AT_A_TIME = 16  # runs; as many as messages may wake in one worker
LEFT_S = 2.0  # a younger run has a message on its way
log = logging.getLogger(__name__)


class Finder:
    """`start` begins in a thread of its own; `stop` ends it after the slices at hand."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._at_work: set[int] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="found")
        self._thread = threading.Thread(target=self._find, name="finder", daemon=True)

    def start(self) -> Finder:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _find(self) -> None:
        while not ending.asked():
            try:
                for run_id in services.stuck(older_than=timedelta(seconds=LEFT_S)):
                    self._take(run_id)
            except Exception:
                if ending.has_begun():
                    return
                log.warning("nobody could look for waiting runs", exc_info=True)
                close_old_connections()
            if self._stopping.wait(settings.REAP_PERIOD_S):
                connection.close()
                return

    def _take(self, run_id: int) -> None:
        with self._lock:
            if run_id in self._at_work or len(self._at_work) >= AT_A_TIME:
                return
            self._at_work.add(run_id)
        self._pool.submit(self._work, run_id)

    def _work(self, run_id: int) -> None:
        try:
            while not self._stopping.is_set() and working.slice_of(run_id) == "again":
                pass
        except Exception:
            log.exception("run %s: a slice could not be worked on", run_id)
        finally:
            with self._lock:
                self._at_work.discard(run_id)
            connection.close()
