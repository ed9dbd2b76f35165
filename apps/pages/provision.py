"""Provision: what is missing on nodes, what would be done about it, step by step; and the way back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import path
from django.views.decorators.http import require_http_methods

from apps.diagnosis.refusal import Refused
from apps.inventory.models import Node
from apps.pages.deployments import stage_rows
from apps.pages.refusing import Error, error_of
from apps.people.access import actor_of, allow, authorize
from apps.people.roles import allows
from apps.plan.provision.scripts import key_shown
from apps.plan.provision.wish import OFFERS, Offer
from apps.plan.step import Plan, Step
from apps.runs import passing, provisioning
from apps.runs import services as runs
from apps.runs.provisioning import Provisioning

MOST_NODES = 16
TONES = {"stop": "bad", "consent": "warn", "warn": "warn", "fine": "ok"}


@dataclass(frozen=True)
class OfferRow:
    """One offer for one node: ticked or not, and what came of it."""

    offer: Offer
    value: str
    ticked: bool
    step: Step | None = None

    @property
    def tone(self) -> str:
        if self.step is None:
            return "off"
        return "busy" if self.step.kind == "job" else "warn" if self.step.why.startswith("not done") else "ok"

    @property
    def drawing(self) -> str:
        return "wait" if self.tone == "busy" else self.tone


@dataclass(frozen=True)
class NodeRow:
    node: Node
    known: bool
    offers: tuple[OfferRow, ...]
    places: tuple[Mapping[str, str], ...]
    units: tuple[tuple[str, bool], ...]
    let_in: bool
    paste: str


def body_from(source: QueryDict) -> dict[str, Any]:
    """The wish of a form. Before anything was ticked (`ticked` absent) everything is filled in."""
    body: dict[str, Any] = {
        "nodes": list(dict.fromkeys(source.getlist("node")))[:MOST_NODES],
        "key": source.getlist("key"),
    }
    if "ticked" not in source:
        return body
    body["ticks"] = _by_node(source.getlist("tick"))
    body["units"] = _by_node(source.getlist("unit"))
    body["fabric"] = [
        {"node": node, "interface": interface, "address": value.strip()}
        for name, value in source.items()
        if isinstance(value, str) and value.strip() and name.startswith("place:")
        for node, _, interface in [name.removeprefix("place:").partition(":")]
    ]
    body["fill"] = [name for name in body["nodes"] if name not in source.getlist("seen")]
    asked = {name.removeprefix("place:").partition(":")[0] for name in source if name.startswith("place:")}
    body["fill_fabric"] = [node for node, names in body["ticks"].items() if "fabric" in names and node not in asked]
    for name in ("models", "internet"):
        body[name] = source.get(name, "").strip()
    for name in ("clock_mhz", "revert_s"):
        text = source.get(name, "").strip()
        if text:
            body[name] = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else text
    return body


def _by_node(values: list[str]) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {}
    for value in values:
        node, _, name = value.partition(":")
        made.setdefault(node, []).append(name)
    return made


def given_passwords(source: QueryDict) -> dict[str, str]:
    """Never put back into the page."""
    return {
        name.removeprefix("password:"): value
        for name, value in source.items()
        if name.startswith("password:once:") and isinstance(value, str)
    }


def needed(made: Provisioning | None) -> list[dict[str, str]]:
    return [
        {"name": f"password:{name}", "kind": kind, "node": node}
        for name in (made.passwords if made else ())
        for kind, node in [passing.parts(name)]
    ]


def node_rows(made: Provisioning) -> list[NodeRow]:
    """Per node what is offered, in the order of the table."""
    wish, sheets = made.wish, runs.sheets_of(made.wish.nodes)
    steps = {step.key: step for stage in made.plan.stages for step in stage.steps}
    chosen = {(one.node, one.interface): f"{one.address}/{one.prefix}" for one in wish.places}
    rows = []
    for node in Node.objects.filter(name__in=wish.nodes).select_related("credential").order_by("pk"):
        sheet = sheets.get(node.name)
        fabric = [
            one.name
            for one in (sheet.interfaces if sheet else None) or ()
            if one.role == "fabric" or (node.name, one.name) in chosen
        ]
        units = [name for at, name in wish.units if at == node.name]
        found = [unit.name for unit in (sheet.units if sheet else None) or () if unit.containers]
        rows.append(
            NodeRow(
                node=node,
                known=sheet is not None,
                offers=tuple(
                    OfferRow(
                        offer, f"{node.name}:{offer.name}", wish.ticked(node.name, offer.name),
                        steps.get(f"provision.{offer.name}.{node.name}"),
                    )
                    for offer in OFFERS
                ),
                places=tuple(
                    {"name": f"place:{node.name}:{name}", "interface": name, "value": chosen.get((node.name, name), "")}
                    for name in dict.fromkeys(fabric)
                ),
                units=tuple((name, name in units) for name in sorted({*units, *found})),
                let_in=node.name in wish.key,
                paste=key_shown(node.credential.public_key),
            )
        )  # fmt: skip
    return rows


@allow("plan", post="provision")
@require_http_methods(["GET", "POST"])
def provision(request: HttpRequest) -> HttpResponse:
    """GET shows what would be done; POST does exactly that, or, with `update`, shows it for what is ticked now."""
    source = request.POST if request.method == "POST" else request.GET
    actor = actor_of(request)
    if request.method == "GET" or "update" in source:
        return _show(request, source)
    authorize(actor, "provision")
    try:
        run = provisioning.start(
            actor,
            body_from(source),
            digest=source.get("digest", ""),
            reason=source.get("reason", ""),
            passwords=given_passwords(source),
            idempotency_key=source.get("idempotency", ""),
        )
    except Refused as refused:
        return _show(request, source, error_of(refused))
    return redirect(run.get_absolute_url())


def _show(request: HttpRequest, source: QueryDict, error: Error | None = None) -> HttpResponse:
    made: Provisioning | None = None
    if not source.getlist("node"):
        found = Node.objects.filter(state=Node.State.READY).order_by("pk")[:MOST_NODES]
        source = source.copy()
        source.setlist("node", [node.name for node in found])
    try:
        made = provisioning.preview(_let_in_first(source))
    except Refused as refused:
        error = error or error_of(refused)
    context = {
        **_common(request, source, made, error),
        "rows": node_rows(made) if made else [],
        "all_nodes": Node.objects.filter(state=Node.State.READY).order_by("pk")[:MOST_NODES],
        "action": "/nodes/provision",
        "verb": "Provision",
    }
    piece = request.headers.get("HX-Request") and request.method == "GET"
    return render(
        request,
        "pages/provision_body.html" if piece else "pages/provision.html",
        context,
        status=error.status if error else 200,
    )


def _let_in_first(source: QueryDict) -> dict[str, Any]:
    """A node of which nothing is known because our key is not in yet begins with that."""
    body = body_from(source)
    if "ticked" not in source and not body["key"]:
        shut = Node.objects.filter(name__in=body["nodes"], sheets=None)
        body["key"] = [node.name for node in shut]
    return body


def _common(request: HttpRequest, source: QueryDict, made: Provisioning | None, error: Error | None) -> dict[str, Any]:
    plan: Plan | None = made.plan if made else None
    steps = [step for stage in plan.stages for step in stage.steps] if plan else []
    return {
        "names": source.getlist("node"),
        "plan": plan,
        "wish": made.wish if made else None,
        "stages": stage_rows(plan) if plan else [],
        "changes": sum(bool(step.undo) for step in steps),
        "anything": any(step.kind in ("job", "key") for step in steps),
        "problems": [(one, TONES[one.severity]) for one in plan.problems] if plan else [],
        "refused": bool(plan and plan.refused),
        "passwords": needed(made),
        "reason": source.get("reason", ""),
        "idempotency": uuid.uuid4().hex,
        "may_start": allows(actor_of(request).role, "provision"),
        "error": error,
    }


@allow("plan", post="provision")
@require_http_methods(["GET", "POST"])
def restore(request: HttpRequest) -> HttpResponse:
    """Everything that provision runs changed on the named nodes, put back."""
    source = request.POST if request.method == "POST" else request.GET
    names, with_key = source.getlist("node")[:MOST_NODES], "with_key" in source
    error: Error | None = None
    made: Provisioning | None = None
    if request.method == "POST" and "update" not in source:
        authorize(actor_of(request), "provision")
        try:
            run = provisioning.start_restore(
                actor_of(request),
                names,
                digest=source.get("digest", ""),
                reason=source.get("reason", ""),
                with_key=with_key,
                passwords=given_passwords(source),
                idempotency_key=source.get("idempotency", ""),
            )
            return redirect(run.get_absolute_url())
        except Refused as refused:
            error = error_of(refused)
    try:
        made = provisioning.preview_restore(names, with_key=with_key)
    except Refused as refused:
        error = error or error_of(refused)
    context = {
        **_common(request, source, made, error),
        "with_key": with_key,
        "action": "/nodes/restore",
        "verb": "Put back",
    }
    return render(request, "pages/provision.html", context, status=error.status if error else 200)


urlpatterns = [
    path("nodes/provision", provision, name="provision"),
    path("nodes/restore", restore, name="restore"),
]
