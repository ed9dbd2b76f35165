"""The first page: what serves, what is loading, what broke, who did what last; and the banners of every page."""

from __future__ import annotations

from collections import Counter

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.http import require_GET

from apps.audit.models import Entry
from apps.deployments.models import Deployment
from apps.inventory.models import Node
from apps.pages import memory
from apps.pages.deployments import ORDER, in_order, row_of
from apps.people.access import allow
from apps.watch import triage

DEPLOYMENTS, NODES, ENTRIES = 20, 50, 8
# Acts of people and of the watch; what sessions and links do is noise here.
ACTS = ("deployment:", "node:", "run:", "recipe:", "host_key:", "credential:", "access:")


def _summary() -> str:
    """`1 serving · 1 lost · 1 node unreachable`."""
    found = Counter(Deployment.objects.filter(archived_at=None).values_list("state", flat=True))
    words = [
        f"{found[state]} {state}"
        for state in ("serving", "launching", "stopping", *ORDER[:4], "stopped", "draft")
        if found[state]
    ]
    away = Node.objects.filter(unreachable_since__isnull=False).count()
    if away:
        words.append(f"{away} node{'s' if away > 1 else ''} unreachable")
    return " · ".join(words)


@allow("view")
@require_GET
def fleet(request: HttpRequest) -> HttpResponse:
    shown = in_order(Deployment.objects.filter(archived_at=None))
    nodes = list(Node.objects.select_related("sighting", "jump")[:NODES])
    looked = max(
        (row for row in Node.objects.values_list("last_seen_at", flat=True).order_by("-last_seen_at")[:1] if row),
        default=None,
    )
    entries = Entry.objects.filter(action__regex=f"^({'|'.join(ACTS)})").order_by("-id")[:ENTRIES]
    context = {
        "rows": [row_of(one) for one in shown[:DEPLOYMENTS]],
        "deployments_count": shown.count(),
        "deployments_shown": DEPLOYMENTS,
        "nodes": memory.rows(nodes),
        "nodes_count": Node.objects.count(),
        "nodes_shown": NODES,
        "summary": _summary(),
        "looked": looked,
        "history": entries,
        "show_object": True,
        "trouble": triage.any_trouble(),
    }
    return render(
        request, "pages/fleet_live.html" if request.headers.get("HX-Request") else "pages/fleet.html", context
    )


@allow("view")
@require_GET
def banners(request: HttpRequest) -> HttpResponse:
    """The banners alone, asked for by every open page."""
    return render(request, "parts/banners_inner.html")


urlpatterns = [path("", fleet, name="fleet"), path("banners", banners, name="banners")]
