"""Celery's side of watching."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings

from apps.audit import anchors
from apps.watch import history, looking, relaunching


@shared_task(name="watch.look")
def look(*_: object, **__: object) -> None:
    looking.look()
    relaunching.go_on()


@shared_task(name="watch.thin")
def thin(*_: object, **__: object) -> None:
    history.thin()


@shared_task(name="watch.note_audit_head")
def note_audit_head(*_: object, **__: object) -> None:
    """The newest entry's hash goes to a file outside of the database, so that a trail that was cut off later is found."""
    anchors.note(settings.VAR / anchors.FILE)
