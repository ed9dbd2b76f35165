"""The audit trail: filter it, read one entry and its change, see whether the chain is whole, take it as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, time
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.urls import path
from django.utils import timezone
from django.views.decorators.http import require_GET

from apps.audit import queries, record
from apps.audit.exporting import comma_separated, jsonl
from apps.audit.models import Entry
from apps.audit.tags import Outcome, Tag
from apps.audit.verifying import head_is_sound, verify
from apps.people.access import actor_of, allow, may

FILTERS = ("actor", "object", "action", "outcome", "since", "until")
TONES = {"done": "ok", "requested": "off", "failed": "bad", "denied": "warn"}
TYPES_WITH_PAGES = {"deployment": "deployments", "run": "runs", "node": "nodes", "recipe": "recipes"}
FORMATS = {"csv": ("text/csv; charset=utf-8", comma_separated), "jsonl": ("application/x-ndjson", jsonl)}
CHECKED = 500


class BadFilter(ValueError):
    def __init__(self, field: str, value: str) -> None:
        self.field = field
        super().__init__(f"{value[:40]!r} is not a time.")


def _moment(field: str, text: str) -> datetime | None:
    """A date or a date with time, UTC unless it says otherwise. Raises BadFilter."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadFilter(field, text) from None
    if len(text) == 10:
        found = datetime.combine(found.date(), time())
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _filters(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "").strip()[:200] for name in FILTERS}


def _arguments(filters: dict[str, str]) -> dict[str, Any]:
    times = {name: _moment(name, filters[name]) for name in ("since", "until")}
    return {**filters, **times}


def object_url(entry: Entry) -> str:
    """The page of what an entry is about; empty when there is none."""
    if entry.object_type == "person" and entry.object_id:
        return f"/settings/people/{entry.object_id}"
    where = TYPES_WITH_PAGES.get(entry.object_type)
    return f"/{where}/{entry.object_id}" if where and entry.object_id else ""


def _row(entry: Entry) -> dict[str, Any]:
    return {"entry": entry, "tone": TONES.get(entry.outcome, "off"), "url": object_url(entry)}


@allow("view")
@require_GET
def audit(request: HttpRequest) -> HttpResponse:
    filters, error, found = _filters(request), None, []
    before = request.GET.get("before", "")
    older_than = int(before) if before.isdecimal() and len(before) < 19 else None
    try:
        found = queries.entries(**_arguments(filters), older_than=older_than, limit=queries.PAGE + 1)
    except BadFilter as problem:
        error = {
            "title": "That can't be filtered by",
            "field": problem.field,
            "detail": str(problem),
            "remedy": "Write it like 2026-11-30 or 2026-11-30T14:05.",
        }
    shown = found[: queries.PAGE]
    chosen = {name: value for name, value in filters.items() if value}
    context = {
        "rows": [_row(entry) for entry in shown],
        "filters": filters,
        "filtered": bool(chosen),
        "query": urlencode(chosen),
        "older": urlencode({**chosen, "before": shown[-1].id}) if len(found) > len(shown) else "",
        "newest": older_than is None,
        "error": error,
        "actions": acts(queries.actions_seen()),
        "outcomes": list(Outcome),
        "may_export": may(actor_of(request), "export_audit"),
        **_chain(request),
    }
    return render(request, "pages/audit.html", context, status=400 if error else 200)


def acts(tags: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Tags in words, by what they are about: Deployment -> (deployment:launch, launch)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for tag in tags:
        thing, _, what = tag.partition(":")
        about = thing.replace("_", " ").capitalize()
        found.setdefault(about, []).append((tag, what.replace("_", " ")))
    return found


def _chain(request: HttpRequest) -> dict[str, Any]:
    """The newest entries are checked on each view, all of them when somebody asks."""
    if request.GET.get("check") == "all":
        result = verify()
        return {"chain": result, "chain_words": f"All {result['entries']:,} entries were checked"}
    result = head_is_sound(CHECKED)
    return {"chain": result, "chain_words": f"The newest {result['checked']:,} entries were checked"}


@allow("view")
@require_GET
def entry(request: HttpRequest, number: int) -> HttpResponse:
    found = Entry.objects.filter(pk=number).first() if number < 2**63 else None
    if found is None:
        raise Http404
    context = {
        "entry": found,
        **_row(found),
        "changes": changes(found.before, found.after),
        "whole": found.computed_hash() == found.hash,
        "related": Entry.objects.filter(request_id=found.request_id).exclude(pk=found.pk)[:20]
        if found.request_id
        else [],
        "neighbours": {"older": number - 1 if number > 1 else None, "newer": number + 1},
        "has_newer": Entry.objects.filter(pk=number + 1).exists(),
    }
    return render(request, "pages/audit.html", context)


def changes(before: Any, after: Any) -> list[dict[str, str]]:
    """What differs, field by field: name, before, after, and kind: same, added, removed or changed."""
    old, new = _flat(before), _flat(after)
    rows = []
    for name in [*old, *(name for name in new if name not in old)]:
        kind = "added" if name not in old else "removed" if name not in new else "changed"
        if kind == "changed" and old[name] == new[name]:
            kind = "same"
        rows.append({"name": name, "before": old.get(name, ""), "after": new.get(name, ""), "kind": kind})
    return rows


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if value is None and not prefix:
        return {}
    if isinstance(value, dict) and value:
        flat: dict[str, str] = {}
        for key, item in value.items():
            flat.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
        return flat
    if isinstance(value, list):
        return {prefix: ", ".join(str(item) for item in value) or "none"}
    words = {None: "none", True: "yes", False: "no"}
    return {prefix: words[value] if value is None or isinstance(value, bool) else str(value)}


@allow("export_audit")
@require_GET
def export(request: HttpRequest) -> HttpResponseBase:
    """Everything that matches the filters, oldest first, as a file. Itself an entry of the trail."""
    form = request.GET.get("format", "csv")
    filters = _filters(request)
    try:
        if form not in FORMATS:
            raise ValueError(f"format: {form[:20]!r} is unknown; use csv or jsonl.")
        found = queries.matching(**_arguments(filters))
    except ValueError as problem:
        return HttpResponse(str(problem), status=400, content_type="text/plain; charset=utf-8")
    content_type, write = FORMATS[form]
    last = Entry.objects.order_by("-id").values_list("id", flat=True).first() or 0
    found = found.filter(id__lte=last)
    chosen = {name: value for name, value in filters.items() if value}
    record(
        actor_of(request),
        Tag.AUDIT_EXPORTED,
        object_type="audit",
        after={"format": form, "entries": found.count(), "up_to": last, "filters": chosen},
    )
    lines = write(queries.oldest_first(found))
    content = _from_thread(lines) if isinstance(request, ASGIRequest) else lines
    response = StreamingHttpResponse(content, content_type=content_type)
    name = f"sparkweb-audit-{timezone.now():%Y%m%d-%H%M%S}.{form}"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


async def _from_thread(lines: Iterator[str]) -> AsyncIterator[str]:
    """The same lines for an ASGI server, some hundreds at a time, so that a long trail is never all in memory."""

    def some() -> str:
        return "".join(islice(lines, 500))

    while chunk := await sync_to_async(some)():
        yield chunk


urlpatterns = [
    path("audit", audit, name="audit"),
    path("audit/export", export, name="audit-export"),
    path("audit/<int:number>", entry, name="audit-entry"),
]
