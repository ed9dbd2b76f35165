"""Will it fit: the bars of a verdict, on a plan and live while a deployment is made."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import path
from django.views.decorators.http import require_POST

from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.pages import charts, forms
from apps.people.access import allow
from apps.plan.step import Bar, Fit
from apps.runs import fitting

SMALLEST = 1 << 24  # bytes; what a legend would call 0.0 is left out


def bars(fit: Fit) -> list[dict[str, Any]]:
    """One a node: its picture, and what the picture shows in words."""
    return [
        {
            "node": bar.node,
            "about": _about(bar),
            "total": bar.total_bytes,
            "over": bar.over_bytes if bar.over_bytes >= charts.SMALLEST_OVER else 0,
            "picture": charts.memory_bar(bar.segments, bar.total_bytes, large=True, key=f"fit{number}"),
            "parts": [
                ("deployments" if name.startswith("deployment ") else name, charts.NAMES.get(name, name), size)
                for name, size in bar.parts
                if size >= SMALLEST
            ],
        }
        for number, bar in enumerate(fit.bars)
    ]


def _about(bar: Bar) -> str:
    if bar.gpu is None:
        return ""
    return f"GPU {bar.gpu}" + (f", the tightest of {bar.gpus}" if bar.gpus > 1 else "")


@allow("plan", post="plan")
@require_POST
def fit_now(request: HttpRequest) -> HttpResponse:
    """The piece beneath the fields of a deployment: the verdict on what stands in them now. Stores nothing."""
    identity = forms.identity(request.POST.get("deployment", ""))
    deployment = get_object_or_404(Deployment, pk=identity) if identity else None
    nodes = [node for node in request.POST.getlist("nodes") if node]
    context: dict[str, Any] = {"nodes": nodes, "live": True}
    if nodes:
        try:
            found = fitting.will_it_fit(
                forms.spec_body(request.POST),
                nodes,
                deployment=deployment,
                config=request.POST.get("config", "").strip(),
            )
            context |= {"fit": found, "bars": bars(found)}
        except Refused as refused:
            context["refused"] = refused
    return render(request, "parts/fit.html", context)


urlpatterns = [path("deployments/fit", fit_now, name="deployment-fit")]
