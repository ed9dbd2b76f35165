"""Restore previous services: what runs stopped on some nodes, how it would be put back, and the start of that."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.views.decorators.http import require_http_methods

from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.pages import holding
from apps.pages.deployments import stage_rows
from apps.pages.refusing import Error, error_of
from apps.people.access import actor_of, allow, authorize
from apps.people.roles import allows
from apps.plan.step import Plan
from apps.runs import restoring
from apps.runs.services import sheets_of

MOST_NODES = 64
TONES = {"stop": "bad", "warn": "warn", "fine": "ok"}


@allow("plan", post="clear")
@require_http_methods(["GET", "POST"])
def previous(request: HttpRequest) -> HttpResponse:
    """GET shows what would be put back on the named nodes; POST does exactly that, if it is still so."""
    source = request.POST if request.method == "POST" else request.GET
    names, actor = source.getlist("node")[:MOST_NODES], actor_of(request)
    number = source.get("deployment", "")
    is_number = number.isascii() and number.isdigit() and len(number) < 19
    deployment = Deployment.objects.filter(pk=int(number)).first() if is_number else None
    error: Error | None = None
    if request.method == "POST":
        authorize(actor, "clear")
        try:
            run = restoring.start(
                actor,
                names,
                digest=source.get("digest", ""),
                reason=source.get("reason", ""),
                deployment=deployment,
                idempotency_key=source.get("idempotency", ""),
            )
            return redirect(run.get_absolute_url())
        except Refused as refused:
            error = error_of(refused)
    plan: Plan | None = None
    try:
        plan = restoring.preview(names)
    except Refused as refused:
        error = error or error_of(refused)
    context: dict[str, Any] = {
        "names": names,
        "deployment": deployment,
        "plan": plan,
        "stages": stage_rows(plan) if plan else [],
        "anything": bool(plan and restoring.does_something(plan)),
        "problems": [(one, TONES[one.severity]) for one in plan.problems] if plan else [],
        "refused": bool(plan and plan.refused),
        "trees": holding.trees(sheets_of(plan.nodes).values()) if plan else [],
        "things": _oldest(restoring.cleared(names)) if plan else [],
        "reason": source.get("reason", ""),
        "idempotency": uuid.uuid4().hex,
        "may_start": allows(actor.role, "clear"),
        "error": error,
    }
    return render(request, "pages/previous.html", context, status=error.status if error else 200)


def _oldest(found: Sequence[restoring.Cleared]) -> list[restoring.Cleared]:
    """Each thing once, as it was before it was stopped first: that is what it is put back to."""
    made: dict[tuple[str, str, str], restoring.Cleared] = {}
    for one in found:
        made.setdefault((one.node, one.kind, one.name), one)
    return list(made.values())


urlpatterns = [path("nodes/previous", previous, name="previous")]
