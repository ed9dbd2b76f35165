"""State report: one page that says what runs where, on which versions, what is wrong, who decided what and where every file is;
also as Markdown and JSON."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import path
from django.views.decorators.http import require_GET

from apps.deployments.models import Deployment
from apps.pages import audit
from apps.pages.deployments import TONE_OF_SEVERITY
from apps.people.access import action_of, actor_of, allow, may
from apps.report import gathering, markdown, shaping
from apps.report.known import Known

TONES = {"bad": "bad", "warn": "warn", "note": "off"} | TONE_OF_SEVERITY
FORMATS = {"markdown": ("text/markdown; charset=utf-8", "md"), "json": ("application/json", "json")}


def sees_trail(request: HttpRequest) -> bool:
    """Whether this viewer may open the audit trail, by that page's own mark."""
    return may(actor_of(request), action_of(audit.audit, "GET") or "")


@allow("view")
@require_GET
def fleet(request: HttpRequest) -> HttpResponse:
    return _answered(request, gathering.fleet(trail=sees_trail(request)), None)


@allow("view")
@require_GET
def of_deployment(request: HttpRequest, deployment_id: int) -> HttpResponse:
    found = get_object_or_404(Deployment.objects.select_related("recipe_version__recipe"), pk=deployment_id)
    return _answered(request, gathering.of_deployment(found, trail=sees_trail(request)), found)


def _answered(request: HttpRequest, known: Known, deployment: Deployment | None) -> HttpResponse:
    made = shaping.report(known)
    chosen = request.GET.get("format", "")
    if chosen in FORMATS:
        return _file(made, chosen)
    return render(
        request,
        "pages/report.html",
        {
            "report": made,
            "deployment": deployment,
            "problems": [_shown(row) for row in made["problems"]],
            "limitations": [_shown(row) for row in made["limitations"]],
            "files": sum(len(node["files"]) for node in made["nodes"]),
        },
    )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"tone": TONES.get(row["severity"], "off")}


def _file(made: dict[str, Any], chosen: str) -> HttpResponse:
    kind, ending = FORMATS[chosen]
    body = markdown.of(made) if chosen == "markdown" else json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    name = f"sparkweb-report-{made['name'] or 'fleet'}-{made['made'][:10]}.{ending}"
    return HttpResponse(body, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


urlpatterns = [
    path("report", fleet, name="report"),
    path("deployments/<int:deployment_id>/report", of_deployment, name="deployment-report"),
]
