"""Fetch a model: the form, and the progress of a fetch beside a run's steps."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.views.decorators.http import require_http_methods

from apps.diagnosis.refusal import Refused
from apps.inventory.models import Node, Secret
from apps.pages.refusing import Error, error_of
from apps.people.access import actor_of, allow
from apps.plan.fetching.wish import FIELDS, HUB, TOOLS
from apps.runs import fetching
from apps.runs.models import Run, Step

MOST_NODES = 1000
TOOL_WORDS = {"auto": "hf where it is found, else curl", "hf": "hf or huggingface_hub", "curl": "curl"}


def size_words(size: int) -> str:
    """Bytes as disks and hubs count them: in thousands."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


@dataclass(frozen=True)
class Transfer:
    """Where a fetch stands. Bytes, bytes a second, seconds; None: not known."""

    node: str
    done: int
    total: int
    share: float
    files_done: int
    files: int
    rate: int
    seconds_left: int | None
    current: tuple[dict[str, Any], ...]
    state: str

    @property
    def of_total(self) -> str:
        return f"{size_words(self.done)} of {size_words(self.total)}"

    @property
    def speed(self) -> str:
        return f"{size_words(self.rate)}/s" if self.rate else ""


def transfer(run: Run) -> Transfer | None:
    """None for a run that fetches nothing, or has not begun to."""
    if run.story != "fetch":
        return None
    for step in run.steps.filter(kind="job").exclude(progress={}):
        found = step.progress.get("progress") or {}
        detail = found.get("detail") or {}
        if "files_done" in detail:
            at_work = step.state == Step.State.RUNNING
            return Transfer(
                node=step.node_name,
                done=int(found.get("done") or 0),
                total=int(found.get("total") or 0),
                share=float(found.get("overall") or 0.0),
                files_done=int(detail["files_done"]),
                files=int(detail.get("files") or 0),
                rate=int(detail.get("rate") or 0) if at_work else 0,
                seconds_left=detail.get("seconds_left") if at_work else None,
                current=tuple(_named(one) for one in detail.get("current") or ()) if at_work else (),
                state=step.state,
            )
    return None


def _named(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "of_size": f"{size_words(int(one['done']))} of {size_words(int(one['size']))}"}


@allow("provision")
@require_http_methods(["GET", "POST"])
def fetch(request: HttpRequest) -> HttpResponse:
    """GET shows the form; POST starts the fetch, or leads to the one that brings the same bytes already."""
    source = request.POST if request.method == "POST" else request.GET
    error: Error | None = None
    if request.method == "POST":
        try:
            node = Node.objects.filter(name=source.get("node", "")).first()
            if node is None:
                raise Refused("bad_input", "There is no node of that name.", field="node", remedy="Choose one.")
            body = {name: source[name] for name in FIELDS if source.get(name, "").strip()}
            run = fetching.start(
                actor_of(request),
                node,
                body,
                reason=source.get("reason", ""),
                idempotency_key=source.get("idempotency", ""),
            )
            return redirect(run.get_absolute_url())
        except Refused as refused:
            error = error_of(refused)
    context = {
        "nodes": Node.objects.filter(state=Node.State.READY).order_by("pk")[:MOST_NODES],
        "secrets": Secret.objects.order_by("name"),
        "tools": [(name, TOOL_WORDS[name]) for name in TOOLS],
        "typed": {name: source.get(name, "") for name in (*FIELDS, "node", "reason")},
        "hub": HUB,
        "idempotency": uuid.uuid4().hex,
        "error": error,
    }
    return render(request, "pages/model_fetch.html", context, status=error.status if error else 200)


urlpatterns = [path("models/fetch", fetch, name="model-fetch")]
