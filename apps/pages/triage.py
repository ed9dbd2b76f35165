"""Triage: all systems at once after something happened to the fleet; each is relaunched by itself, with its own reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

from apps.diagnosis.refusal import Refused
from apps.pages import forms
from apps.pages.refusing import Error, error_of
from apps.people.access import actor_of, allow, authorize
from apps.people.roles import allows
from apps.watch import triage
from apps.watch.triage import Begun, Wish

TONES = {"fine": "ok", "busy": "busy", "unreachable": "off", "degraded": "warn"}  # the others are bad


@allow("plan")
@require_GET
def systems(request: HttpRequest) -> HttpResponse:
    return _shown(request)


def _shown(request: HttpRequest, begun: Sequence[Begun] = (), error: Error | None = None) -> HttpResponse:
    refused = {one.deployment.pk: error_of(one.refused) for one in begun if one.refused is not None}
    found = triage.systems()
    rows = [
        {
            "one": one,
            "tone": TONES.get(one.verdict, "bad"),
            "refused": refused.get(one.deployment.pk),
            "reason": request.POST.get(f"reason-{one.deployment.pk}", ""),
            "ticked": str(one.deployment.pk) in request.POST.getlist("relaunch")
            or (not request.POST and one.verdict in triage.LOST),
        }
        for one in found
    ]
    context: dict[str, Any] = {
        "rows": rows,
        "ready": sum(one.action == "relaunch" for one in found),
        "fine": sum(one.verdict == "fine" for one in found),
        "begun": [one for one in begun if one.run is not None],
        "error": error,
        "reason": request.POST.get("reason", ""),
        "may_start": allows(actor_of(request).role, "relaunch"),
    }
    return render(request, "pages/triage.html", context, status=422 if error or refused else 200)


@allow("relaunch")
@require_POST
def relaunch(request: HttpRequest) -> HttpResponse:
    """The ticked ones, each with its own reason or the common one, and with the plan that this page showed."""
    actor = actor_of(request)
    authorize(actor, "relaunch")
    common = request.POST.get("reason", "").strip()
    seen = {one.deployment.pk: one for one in triage.systems() if one.action == "relaunch"}
    wishes = []
    for value in request.POST.getlist("relaunch")[: triage.MOST]:
        one = seen.get(forms.identity(value))
        reason = request.POST.get(f"reason-{value}", "").strip() or common
        if one is not None:
            wishes.append(Wish(one.deployment.pk, request.POST.get(f"digest-{value}", ""), reason, one.clear))
    if not wishes:
        no = Refused(
            "bad_input",
            "Nothing is ticked that could be relaunched.",
            field="relaunch",
            remedy="Tick what to relaunch.",
        )
        return _shown(request, error=error_of(no))
    begun = triage.relaunch(actor, wishes)
    if all(one.run is not None for one in begun):
        messages.success(request, f"{' and '.join(one.deployment.name for one in begun)}: begun.")
        return redirect("/triage")
    return _shown(request, begun)


@allow("probe")
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """Fresh facts of everything that does not serve."""
    actor = actor_of(request)
    authorize(actor, "probe")
    try:
        made = triage.check(actor)
        word = f"{len(made)} system{'s' if len(made) != 1 else ''}"
        messages.success(
            request, f"Looking at the nodes of {word}." if made else "Nothing needs a look, or one is going on."
        )
    except Refused as no:
        return _shown(request, error=error_of(no))
    return redirect("/triage")


urlpatterns = [
    path("triage", systems, name="triage"),
    path("triage/relaunch", relaunch, name="triage-relaunch"),
    path("triage/check", check, name="triage-check"),
]
