"""Import a recipe of another format: paste or drop it, look at what would come of it, keep it as a draft."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.views.decorators.http import require_http_methods

from apps.diagnosis.refusal import Refused
from apps.pages.recipes import item_of, noted, rows_of, shown
from apps.pages.refusing import error_of
from apps.people.access import actor_of, allow, may
from apps.recipes import services
from apps.recipes.formats.imported import LARGEST_TEXT, Imported
from apps.recipes.formats.recognise import FAMILIES


@allow("edit_recipes")
@require_http_methods(["GET", "POST"])
def bring(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return _render(request, {})
    name, family = request.POST.get("name", ""), request.POST.get("family", "")
    typed = {"name": name[:200], "family": family}
    try:
        text = _text(request)
        if request.POST.get("act") != "keep":
            found = services.read_text(text, family=family)
            return _render(request, {**typed, **_shown(request, found), "text": found.source})
        made = services.import_text(actor_of(request), text=text, name=name, family=family)
    except Refused as refused:
        return _render(request, {**typed, "error": error_of(refused)})
    waiting = len(services.current_version(made).waiting)
    more = f" {waiting} thing{'s' if waiting > 1 else ''} of it wait for a decision." if waiting else ""
    messages.success(request, f"{made.name} was imported as a draft.{more}")
    return redirect(made.get_absolute_url())


def _text(request: HttpRequest) -> str:
    """What was pasted, or else the file. Raises Refused."""
    text: str = request.POST.get("text", "")
    file = request.FILES.get("file")
    if text.strip() or file is None:
        return text
    data: bytes = file.read(LARGEST_TEXT + 1)
    if len(data) > LARGEST_TEXT:
        raise Refused("bad_input", "The file is larger than 1 MB.", field="text", remedy="Import one recipe at a time.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused("bad_input", "The file is no text.", field="text", remedy="Save it as UTF-8.") from None


def _shown(request: HttpRequest, found: Imported) -> dict[str, Any]:
    approver = may(actor_of(request), "approve_recipes")
    return {
        "found": found,
        **shown(found.body, found.world_size),
        "waiting": [item_of({**asdict(one), "decision": ""}, approver) for one in found.held],
        "kept": rows_of(found.extra),
        "notes": noted(found.notes),
    }


def _render(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    """The whole page, or its answer alone. What was pasted is never sent back as it was: it may hold secrets."""
    piece = request.headers.get("HX-Request")
    error = context.get("error")
    template = "pages/recipe_read.html" if piece else "pages/recipe_import.html"
    made = {**context, "families": FAMILIES, "most_bytes": LARGEST_TEXT}
    return render(request, template, made, status=error.status if error else 200)


urlpatterns = [path("recipes/import", bring, name="recipe-import")]
