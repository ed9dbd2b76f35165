"""Celery's side of watching."""

from __future__ import annotations

from celery import shared_task

from apps.watch import looking


@shared_task(name="watch.look")
def look() -> None:
    looking.look()
