"""Celery's side: short slices and the reaper. A message is a wake-up; the row decides.

Messages may be of another version of ours (an upgrade under way) or of nobody: what they carry too much is not looked at.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from celery import shared_task

from apps.runs import limits, passing, services, serving, working

log = logging.getLogger(__name__)
LARGEST_ID = 2**63 - 1


@shared_task(name="runs.advance")
def advance(run_id: object = None, *_: object, **__: object) -> None:
    """Work on a run for a slice; if it goes on, wake somebody again."""
    if not isinstance(run_id, int) or isinstance(run_id, bool) or not 0 < run_id <= LARGEST_ID:
        log.warning("a message that names no run: %.80r", run_id)
        return
    if working.slice_of(run_id) == "again":
        services.wake(run_id)


@shared_task(name="runs.reap")
def reap(*_: object, **__: object) -> None:
    """Hand on what nobody works on: lost messages, dead workers. Forget passwords whose time is over."""
    passing.forget()
    for run_id in services.stuck(older_than=timedelta(seconds=2)):
        services.wake(run_id)


@shared_task(name="runs.follow")
def follow(*_: object, **__: object) -> None:
    """What engines that serve have printed since the last look."""
    serving.follow()


@shared_task(name="runs.forget_logs")
def forget_logs(*_: object, **__: object) -> None:
    """Lines that are older than the retention."""
    limits.forget()
