"""Triage: every system that is meant to serve, what happened to it and what is next."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router

from apps.api.schemas import TriageOut, TriageSystem
from apps.people.access import allow
from apps.watch import triage

router = Router(tags=["deployments"])


@router.get("triage", response=TriageOut)
@allow("plan")
def triage_systems(request: HttpRequest) -> TriageOut:
    """By what the watch saw last; no node is asked. A system with `action` relaunch is ready: post its `digest` and `clear` with a
    reason to `deployments/{id}/relaunch`. One that can't be reached holds up no other."""
    return TriageOut(systems=[TriageSystem(**triage.as_json(one)) for one in triage.systems()])
