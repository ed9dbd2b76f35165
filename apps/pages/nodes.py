"""Nodes: the list, adding one, and one node with its facts, its raw evidence, its host keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import F, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.audit.models import Entry
from apps.deployments.models import Rank
from apps.deployments.state import rank_state
from apps.diagnosis.findings import Finding
from apps.diagnosis.findings import findings as known_findings
from apps.diagnosis.refusal import Refused
from apps.facts.changes import Change, changes
from apps.facts.sheet import Evidence, Sheet
from apps.inventory import services
from apps.inventory.models import Credential, HostKey, Node
from apps.pages import holding, memory
from apps.pages.facts import groups
from apps.pages.forms import identity
from apps.pages.node_history import history_of
from apps.pages.refusing import Error, error_of, explained
from apps.pages.runs import plan_page
from apps.people.access import actor_of, allow
from apps.plan.provision.wish import MENDS
from apps.runs import foreign, restoring
from apps.runs import services as runs
from apps.runs.models import ACTIVE, Run, Step

PAGE = 50
MOST_NODES = 200


@allow("view")
@require_GET
def nodes(request: HttpRequest) -> HttpResponse:
    found = (
        Node.objects.select_related("sighting", "jump", "credential")
        .order_by("-unreachable_since", "pk")
        .order_by(F("unreachable_since").desc(nulls_last=True), "pk")
    )
    name = request.GET.get("name", "").strip()
    if name:
        found = found.filter(name__icontains=name)
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": memory.rows(list(page.object_list)),
        "name": name,
        "ready": Node.objects.filter(state=Node.State.READY).count(),
    }
    piece = request.headers.get("HX-Request") and request.headers.get("HX-Target") == "nodes"
    return render(request, "pages/nodes_list.html" if piece else "pages/nodes.html", context)


@allow("edit_nodes")
@require_http_methods(["GET", "POST"])
def add(request: HttpRequest) -> HttpResponse:
    """The node is asked for its host keys before anything is stored; a refusal stands beside its field."""
    if request.method == "GET":
        return _add_form(request, {"port": "22", "user": ""})
    typed = {
        name: request.POST.get(name, "").strip() for name in ("name", "address", "port", "user", "credential", "jump")
    }
    try:
        credential = Credential.objects.filter(pk=identity(typed["credential"])).first()
        if credential is None:
            raise Refused(
                "bad_input",
                "Choose the key that opens the node.",
                field="credential",
                remedy="Make one under Settings, Credentials.",
            )
        jump = Node.objects.filter(pk=identity(typed["jump"])).first()
        if typed["jump"] and jump is None:
            raise Refused(
                "bad_input", "That jump host is not there any more.", field="jump", remedy="Choose another one."
            )
        made = runs.enrol(
            actor_of(request),
            name=typed["name"],
            address=typed["address"],
            port=typed["port"],
            user=typed["user"],
            credential=credential,
            jump=jump,
        )
    except Refused as refused:
        return _add_form(request, typed, error_of(refused))
    return redirect(made.get_absolute_url())


def _add_form(request: HttpRequest, typed: dict[str, str], error: Error | None = None) -> HttpResponse:
    credentials = Credential.objects.order_by("name")
    chosen = credentials.filter(pk=identity(typed.get("credential", ""))).first() or credentials.first()
    return render(
        request,
        "pages/node_add.html",
        {
            "typed": typed,
            "error": error,
            "credentials": credentials,
            "chosen": chosen,
            "jumps": Node.objects.filter(state=Node.State.READY).order_by("name")[:MOST_NODES],
            "worker": runs.worker_status(),
        },
        status=error.status if error else 200,
    )


# One node


PIECES = {
    "node-findings": "pages/node_findings.html",
    "node-facts": "pages/node_facts.html",
    "node-history": "pages/node_history.html",
}
TONES = {"bad": "bad", "warn": "warn", "note": "off"}
MOST_CHANGES = 200
MOST_HISTORY = 6  # acts on the page; the trail has all


@dataclass(frozen=True)
class Shown:
    """A finding with its tone and the raw output that it was read from."""

    finding: Finding
    tone: str
    raw: Evidence | None
    mended: bool = False  # a provision run settles it


def findings(sheet: Sheet | None) -> list[Shown]:
    """What of the newest sheet a deployment would stumble over, worst first."""
    found = known_findings({sheet.node: sheet}) if sheet else ()
    return [
        Shown(one, TONES[one.severity], sheet.evidence.get(one.section) if sheet else None, one.name in MENDS)
        for one in found
    ]


@dataclass(frozen=True)
class Verdict:
    """Can a deployment go here, and if not, what is to be done first? `link`: the words of the way on to `url`."""

    tone: str
    word: str
    sentence: str
    remedy: str = ""
    url: str = ""
    link: str = ""


def _at_work(rank: Rank) -> bool:
    return (
        rank_state(rank.deployment.state) in ("serving", "starting", "stopping") or rank.deployment.state == "degraded"
    )


def verdict(found: Node, sheet: Sheet | None, shown: list[Shown]) -> Verdict | None:
    """None where the page says already why nothing can be done there: its key is not settled, or it does not answer."""
    if found.state != Node.State.READY or found.unreachable_since is not None:
        return None
    held = getattr(found, "reservation", None)
    if held is not None:
        whose = (
            f", the {held.run.story} of {held.run.deployment.name}" if held.run.deployment else f", a {held.run.story}"
        )
        sentence = f"Run {held.run.pk}{whose} by {held.run.actor_name}, uses it."
        return Verdict(
            "busy", "not now", sentence, "Wait for it to end, or cancel it.", held.run.get_absolute_url(), "Watch it"
        )
    if sheet is None:
        return Verdict("off", "not known yet", "Nothing is known of it yet.", "Probe it: that changes nothing there.")
    first = next((one for one in shown if one.tone in ("bad", "warn")), None)
    here = sorted({rank.deployment.name for rank in found.ranks.select_related("deployment") if _at_work(rank)})
    if here and (first is None or first.tone != "bad"):
        sentence = f"{' and '.join(here)} {'is' if len(here) == 1 else 'are'} at work here."
        remedy = "A plan says whether there is room beside it; what is too much is stopped by its own Stop."
        return Verdict("warn", "yes, but", sentence, remedy, "/deployments/new", "New deployment")
    if first is None:
        return Verdict("ok", "yes", "Nothing stands in the way.", "", "/deployments/new", "New deployment")
    alike = [one for one in shown if one.tone == first.tone]
    more = f" {len(alike) - 1} more below." if len(alike) > 1 else ""
    mended = any(one.mended for one in alike)
    return Verdict(
        first.tone,
        "not as it is" if first.tone == "bad" else "yes, but",
        f"{first.finding.sentence}.",
        f"{first.finding.remedy}{more}",
        f"/nodes/provision?{urlencode({'node': found.name})}" if mended else "#node-findings",
        "Provision settles some of it" if mended else "all findings",
    )


def changed(found: Node) -> tuple[Any, list[Change]]:
    """When the sheet before the newest one was taken, and what is different since."""
    rows = list(found.sheets.order_by("-taken_at", "-pk")[:2])
    if len(rows) < 2:
        return None, []
    newest, before = (Sheet.from_json(row.body) for row in rows)
    return rows[1].taken_at, changes(before, newest)[:MOST_CHANGES]


def history(found: Node) -> list[Entry]:
    """What was done to this node, and what runs did on it; those of several nodes stand under the run."""
    runs_here = Step.objects.filter(node=found).order_by("-run_id").values_list("run_id", flat=True).distinct()[:50]
    about = Q(object_type="node", object_id=str(found.pk)) | Q(run_id__in=list(runs_here))
    return list(Entry.objects.filter(about).order_by("-id")[:MOST_HISTORY])


@allow("view")
@require_GET
def node(request: HttpRequest, node_id: int) -> HttpResponse:
    found = get_object_or_404(Node.objects.select_related("sighting", "jump", "credential"), pk=node_id)
    return _show(request, found)


def _show(request: HttpRequest, found: Node, error: Error | None = None) -> HttpResponse:
    sheet = services.latest_sheet(found)
    shown = findings(sheet)
    since, differences = changed(found)
    held = getattr(found, "reservation", None)
    hops: list[dict[str, Any]] = []
    hop: Node | None = found
    while hop is not None and len(hops) < 8:
        hops.append({"node": hop, "keys": hop.host_keys.order_by("state", "type")})
        hop = hop.jump
    context = {
        "node": found,
        "row": memory.rows([found])[0],
        "sheet": sheet,
        "taken_at": sheet.taken_at if sheet else None,
        "groups": groups(sheet) if sheet else [],
        "trees": holding.trees([sheet]) if sheet else [],
        "previous": restoring.cleared([found.name]),
        "verdict": verdict(found, sheet, shown),
        "findings": [one for one in shown if one.tone != "off"],
        "notes": [one for one in shown if one.tone == "off"],
        "changes_since": since,
        "changes": differences,
        "hops": list(reversed(hops)),
        "held": held,
        "offered": found.host_keys.filter(state=HostKey.State.OFFERED).order_by("type"),
        "refused": found.host_keys.filter(state=HostKey.State.REFUSED).order_by("type"),
        "error": error,
        "explained": explained(found.unreachable_reason or None),
        "ranks": found.ranks.select_related("deployment"),
        "adoptable": runs.adoptable(found),
        "adopt_name": f"found-on-{found.name.lower()}"[:63],
        "probing": Run.objects.filter(story="probe", state__in=ACTIVE, steps__node=found).first(),
        "history": history(found),
        "past": history_of(found, request.GET.get("span", "")),
        "show_object": True,
    }
    page = "pages/node.html"
    if request.headers.get("HX-Request") and request.method == "GET":
        page = PIECES.get(request.headers.get("HX-Target", ""), "pages/node_live.html")
    return render(request, page, context, status=error.status if error else 200)


@allow("edit_host_keys")
@require_POST
def confirm(request: HttpRequest, node_id: int) -> HttpResponse:
    found = get_object_or_404(Node, pk=node_id)
    try:
        services.confirm_host_key(actor_of(request), found, sha256=request.POST.get("sha256", ""))
    except Refused as refused:
        return _show(request, found, error_of(refused))
    try:
        runs.probe(actor_of(request), [found])
        messages.success(request, f"The host key of {found.name} is pinned. It is being probed now.")
    except Refused:
        messages.success(request, f"The host key of {found.name} is pinned.")
    return redirect(found.get_absolute_url())


@allow("edit_host_keys")
@require_POST
def repin(request: HttpRequest, node_id: int) -> HttpResponse:
    found = get_object_or_404(Node, pk=node_id)
    try:
        services.repin_host_key(
            actor_of(request), found, sha256=request.POST.get("sha256", ""), reason=request.POST.get("reason", "")
        )
    except Refused as refused:
        return _show(request, found, error_of(refused))
    messages.success(request, f"{found.name} is trusted with its new host key.")
    return redirect(found.get_absolute_url())


@allow("edit_host_keys")
@require_POST
def rescan(request: HttpRequest, node_id: int) -> HttpResponse:
    found = get_object_or_404(Node, pk=node_id)
    try:
        run = runs.rescan(actor_of(request), found)
    except Refused as refused:
        return _show(request, found, error_of(refused))
    return redirect(run.get_absolute_url())


@allow("edit_deployments")
@require_POST
def adopt(request: HttpRequest, node_id: int) -> HttpResponse:
    """What serves there becomes a deployment that is watched; nothing on the node is changed."""
    found = get_object_or_404(Node, pk=node_id)
    things = [(kind, name) for kind, _, name in (one.partition(":") for one in request.POST.getlist("thing"))]
    try:
        run = runs.adopt(
            actor_of(request),
            found,
            name=request.POST.get("name", ""),
            things=things,
            reason=request.POST.get("reason", ""),
        )
    except Refused as refused:
        return _show(request, found, error_of(refused))
    return redirect(run.get_absolute_url())


@allow("clear")
@require_POST
def unlock(request: HttpRequest, node_id: int) -> HttpResponse:
    """Remove the locks that other installations of sparkweb left; the run says which."""
    found = get_object_or_404(Node, pk=node_id)
    try:
        run = foreign.unlock(actor_of(request), found, reason=request.POST.get("reason", ""))
    except Refused as refused:
        return _show(request, found, error_of(refused))
    return redirect(run.get_absolute_url())


@allow("edit_nodes")
@require_POST
def remove(request: HttpRequest, node_id: int) -> HttpResponse:
    found = get_object_or_404(Node, pk=node_id)
    try:
        services.remove_node(actor_of(request), found, reason=request.POST.get("reason", ""))
    except Refused as refused:
        return _show(request, found, error_of(refused))
    messages.success(request, f"{found.name} was removed. Nothing was changed on it.")
    return redirect("/nodes")


@allow("probe")
@require_POST
def probe(request: HttpRequest) -> HttpResponse:
    """Fresh sheets of the named nodes, or of all that are ready; asked for by a plan, the run leads back to it."""
    names, plan = [name for name in request.POST.getlist("name") if name], plan_page(request.POST)
    found = Node.objects.filter(name__in=names) if names else Node.objects.filter(state=Node.State.READY)
    try:
        run = runs.probe(actor_of(request), list(found[:MOST_NODES]))
    except Refused as refused:
        error = error_of(refused)
        messages.error(request, f"{error.detail} {error.remedy}".strip())
        return redirect(plan or (found[0].get_absolute_url() if len(names) == 1 and found else "/nodes"))
    way_back = urlencode({"plan": request.POST["plan"], "story": request.POST["story"]}) if plan else ""
    return redirect(f"{run.get_absolute_url()}{'?' if plan else ''}{way_back}")


urlpatterns = [
    path("nodes", nodes, name="nodes"),
    path("nodes/add", add, name="node-add"),
    path("nodes/probe", probe, name="nodes-probe"),
    path("nodes/<int:node_id>", node, name="node"),
    path("nodes/<int:node_id>/confirm", confirm, name="node-confirm"),
    path("nodes/<int:node_id>/repin", repin, name="node-repin"),
    path("nodes/<int:node_id>/rescan", rescan, name="node-rescan"),
    path("nodes/<int:node_id>/adopt", adopt, name="node-adopt"),
    path("nodes/<int:node_id>/unlock", unlock, name="node-unlock"),
    path("nodes/<int:node_id>/remove", remove, name="node-remove"),
]
