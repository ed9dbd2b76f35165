"""Celery's side: short slices and the reaper. A message is a wake-up; the row decides."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task

from apps.runs import limits, passing, services, serving, working


@shared_task(name="runs.advance")
def advance(run_id: int) -> None:
    """Work on a run for a slice; if it goes on, wake somebody again."""
    if working.slice_of(run_id) == "again":
        services.wake(run_id)


@shared_task(name="runs.reap")
def reap() -> None:
    """Hand on what nobody works on: lost messages, dead workers. Forget passwords whose time is over."""
    passing.forget()
    for run_id in services.stuck(older_than=timedelta(seconds=2)):
        services.wake(run_id)


@shared_task(name="runs.follow")
def follow() -> None:
    """What engines that serve have printed since the last look."""
    serving.follow()


@shared_task(name="runs.forget_logs")
def forget_logs() -> None:
    """Lines that are older than the retention."""
    limits.forget()
