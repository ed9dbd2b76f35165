"""Models: which model folder is where and how whole it is; copying, verifying and removing it."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.views.decorators.http import require_http_methods

from apps.diagnosis.refusal import Refused
from apps.pages.deployments import stage_rows
from apps.pages.refusing import Error, error_of
from apps.people.access import actor_of, allow
from apps.people.roles import allows
from apps.plan.step import Plan
from apps.runs import copying

TONES = {"complete": "ok", "unverified": "off", "partial": "warn", "corrupt": "bad"}
MOST_NODES = 64
WORDS = {"copy": "Copy", "verify": "Verify", "remove": "Remove"}


@allow("view", post="provision")
@require_http_methods(["GET", "POST"])
def models(request: HttpRequest) -> HttpResponse:
    """The table; with `path` one model; with `story` and `node` what would run, which POST starts."""
    source = request.POST if request.method == "POST" else request.GET
    actor, where, story = actor_of(request), source.get("path", ""), source.get("story", "")
    names = list(dict.fromkeys(source.getlist("node")))[:MOST_NODES]
    error: Error | None = None
    if request.method == "POST":
        try:
            run = copying.start(
                actor,
                story,
                where,
                names,
                source=source.get("source", ""),
                reason=source.get("reason", ""),
                confirm=source.get("confirm", "").strip(),
                digest=source.get("digest", ""),
                idempotency_key=source.get("idempotency", ""),
            )
            return redirect(run.get_absolute_url())
        except Refused as refused:
            error = error_of(refused)
    nodes, found = copying.table()
    chosen = next((one for one in found if one.path == where), None)
    plan: Plan | None = None
    if chosen is not None and story and allows(actor.role, "plan"):
        try:
            plan = copying.preview(story, where, names, source=source.get("source", ""))
        except Refused as refused:
            error = error or error_of(refused)
    context: dict[str, Any] = {
        "nodes": nodes,
        "models": [(one, [_cell(one, node) for node in nodes]) for one in found],
        "chosen": chosen,
        "missing": bool(where) and chosen is None,
        "cells": [(node, _cell(chosen, node)) for node in nodes] if chosen else [],
        "stories": [(name, word, name == story) for name, word in WORDS.items()],
        "story": story,
        "word": WORDS.get(story, ""),
        "names": names,
        "plan": plan,
        "stages": stage_rows(plan) if plan else [],
        "reason": source.get("reason", ""),
        "folder": where.rsplit("/", 1)[-1],
        "idempotency": uuid.uuid4().hex,
        "may_start": allows(actor.role, "provision"),
        "error": error,
    }
    return render(request, "pages/models.html", context, status=error.status if error else 200)


def _cell(model: copying.Model, node: str) -> tuple[str, copying.Held] | None:
    held = model.held.get(node)
    return (TONES[held.state], held) if held else None


urlpatterns = [path("models", models, name="models")]
