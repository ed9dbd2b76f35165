"""Benchmarks: results side by side, as plots and tables, against the best known good and against what the memory allows; import,
a row by hand, export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.benchmarks import bandwidth, compared, comparing, exporting, importing, roofline
from apps.benchmarks.compared import Row
from apps.benchmarks.models import Benchmark
from apps.diagnosis.refusal import Refused
from apps.pages import plots
from apps.pages.refusing import Error, error_of
from apps.people.access import actor_of, allow, authorize

SOURCES = ("measured", "imported", "reference")
FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
REFERENCE_ROWS = 6  # lines of the form for a row by hand


@allow("view")
@require_GET
def benchmarks(request: HttpRequest) -> HttpResponse:
    return _shown(request)


def _shown(request: HttpRequest, error: Error | None = None) -> HttpResponse:
    ids = request.GET.getlist("id")
    text, source = request.GET.get("text", "").strip()[:100], request.GET.get("source", "")
    source = source if source in SOURCES else ""
    try:
        rows = comparing.chosen(ids) if ids else comparing.usual()
    except Refused as refused:
        rows, error = comparing.usual(), error or error_of(refused)
    listed, count = comparing.listed(text=text, source=source)
    chosen = {row.id for row in rows}
    good = comparing.good_ones()
    context = {
        "rows": [_row(row, place, good) for place, row in enumerate(rows)],
        "figures": _figures(rows),
        "concurrencies": compared.concurrencies(rows),
        "differences": compared.differences(rows) if len(rows) > 1 else [],
        "listed": [{"row": row, "chosen": row.id in chosen} for row in listed],
        "stored": count,
        "more": max(0, count - comparing.MOST_LISTED),
        "most": comparing.MOST_CHOSEN,
        "text": text,
        "source": source,
        "sources": SOURCES,
        "threshold": compared.THRESHOLD,
        "assumptions": roofline.ASSUMPTIONS,
        "bandwidths": bandwidth.EVERY,
        "query": urlencode([("id", row.id) for row in rows]),
        "error": error,
    }
    return render(request, "pages/benchmarks.html", context, status=error.status if error else 200)


def _row(row: Row, place: int, good: Sequence[Row]) -> dict[str, Any]:
    judged = comparing.judged(row)
    verdict = compared.judge(row, good) if row.source != "reference" else compared.Verdict(None)
    return {
        "row": row,
        "key": plots.key(place) if place < plots.MOST_SERIES else "",
        "judged": judged,
        "best": max(judged.bounds, key=lambda bound: bound.share or 0.0, default=None),
        "verdict": verdict,
        "stored": row.id.isdecimal(),
        "may_be_good": row.id.isdecimal() and row.source != "reference",
        "may_go": row.id.isdecimal() and row.source != "measured",
    }


def _figures(rows: Sequence[Row]) -> list[dict[str, Any]]:
    made = []
    for name, (title, unit) in compared.FIGURES.items():
        series = [
            plots.Series(row.name, tuple(compared.points(row, name)), place)
            for place, row in enumerate(rows[: plots.MOST_SERIES])
        ]
        table = [
            {"row": row, "key": plots.key(place) if place < plots.MOST_SERIES else "", "values": values, "loose": loose}
            for place, (row, values, loose) in enumerate(compared.table(rows, name))
        ]
        made.append(
            {
                "name": name,
                "title": title,
                "unit": unit,
                "plot": plots.across(
                    series,
                    label=f"{title}, {unit}, against concurrency",
                    x_name="concurrency",
                    y_name=unit.split(",")[0],
                ),
                "table": table,
                "loose": any(line["loose"] for line in table),
                "decimals": 2 if name == "ttft" else 1,
            }
        )
    return made


@allow("view")
@require_GET
def export(request: HttpRequest) -> HttpResponse:
    """The chosen ones, or all that are listed, as CSV or JSON."""
    form = request.GET.get("format", "csv")
    form = form if form in FORMATS else "csv"
    try:
        ids = request.GET.getlist("id")
        rows = comparing.chosen(ids) if ids else comparing.listed()[0]
    except Refused as refused:
        return _shown(request, error_of(refused))
    body = (
        exporting.as_csv(rows) if form == "csv" else json.dumps(exporting.as_json(rows), indent=1, ensure_ascii=False)
    )
    headers = {"Content-Disposition": f'attachment; filename="sparkweb-benchmarks.{form}"'}
    return HttpResponse(body, content_type=FORMATS[form], headers=headers)


@allow("benchmark")
@require_http_methods(["GET", "POST"])
def bring(request: HttpRequest) -> HttpResponse:
    """Import a file or a pasted text."""
    error, text = None, request.POST.get("text", "")
    values = {name: request.POST.get(name, "").strip() for name in ("hardware", "tensor_parallel", "name", "where")}
    if request.method == "POST":
        try:
            made = comparing.import_text(
                actor_of(request),
                text=_given(request, text),
                hardware=values["hardware"],
                name=values["name"],
                where=values["where"],
                tensor_parallel=_whole("tensor_parallel", values["tensor_parallel"]),
            )
        except Refused as refused:
            error = error_of(refused)
        else:
            messages.success(request, f"{len(made)} result{'s are' if len(made) > 1 else ' is'} here to compare.")
            return redirect(f"/benchmarks?{urlencode([('id', one.pk) for one in made[: comparing.MOST_CHOSEN]])}")
    context = {"error": error, "text": text, "values": values, "formats": importing.READ}
    return render(request, "pages/benchmark_import.html", context, status=error.status if error else 200)


def _given(request: HttpRequest, text: str) -> str:
    """The file, where one was chosen, else the text. Raises Refused for a file that is none of text."""
    file = request.FILES.get("file")
    if file is None:
        return text
    if (file.size or 0) > importing.LARGEST:
        raise Refused(
            "bad_input",
            f"The file has more than {importing.LARGEST >> 20} MiB.",
            field="file",
            remedy="Save it without per-request details.",
        )
    try:
        return bytes(file.read()).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused("bad_input", "The file is no text in UTF-8.", field="file", remedy=importing.READ) from None


@allow("benchmark")
@require_http_methods(["GET", "POST"])
def by_hand(request: HttpRequest) -> HttpResponse:
    """A reference row with its source."""
    error = None
    names = ("name", "where", "model", "hardware", "engine", "prompt_tokens", "output_tokens", "tensor_parallel")
    values = {name: request.POST.get(name, "").strip() for name in names}
    levels = [
        {name: request.POST.get(f"{name}-{place}", "").strip() for name in LEVEL_FIELDS}
        for place in range(REFERENCE_ROWS)
    ]
    if request.method == "POST":
        try:
            made = comparing.add_reference(
                actor_of(request),
                name=values["name"],
                where=values["where"],
                model=values["model"],
                hardware=values["hardware"],
                engine=values["engine"],
                prompt_tokens=_whole("prompt_tokens", values["prompt_tokens"]),
                output_tokens=_whole("output_tokens", values["output_tokens"]),
                tensor_parallel=_whole("tensor_parallel", values["tensor_parallel"]),
                levels=[
                    {name: _figure(f"{name}-{place}", level[name]) for name in LEVEL_FIELDS}
                    for place, level in enumerate(levels)
                    if any(level.values())
                ],
            )
        except Refused as refused:
            error = error_of(refused)
        else:
            messages.success(request, f"{made.name} is here to compare.")
            return redirect(f"/benchmarks?id={made.pk}")
    context = {"error": error, "values": values, "levels": list(enumerate(levels))}
    return render(request, "pages/benchmark_by_hand.html", context, status=error.status if error else 200)


LEVEL_FIELDS = {
    "concurrency": "Concurrency",
    "aggregate_tok_s": "Aggregate tokens/s",
    "per_request_tok_s": "Tokens/s of a request",
    "ttft_s": "First token",
}


def _called(field: str) -> str:
    """`First token, line 2: ` for a cell of the table; nothing for a field that shows its error beside it."""
    name, _, line = field.rpartition("-")
    return f"{LEVEL_FIELDS[name]}, line {int(line) + 1}: " if name in LEVEL_FIELDS else ""


def _figure(field: str, text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise Refused(
            "bad_input",
            f"{_called(field)}{text[:40]!r} is no number of 0 or more.",
            field=field,
            remedy="Write it like 26.5.",
        )
    return value


def _whole(field: str, text: str) -> int | None:
    value = _figure(field, text)
    if value is not None and value != int(value):
        raise Refused("bad_input", f"{text[:40]!r} is no whole number.", field=field, remedy="Write it like 512.")
    return None if value is None else int(value)


@allow("benchmark")
@require_POST
def good(request: HttpRequest, benchmark_id: int) -> HttpResponse:
    """Call it good, or with `no` no longer."""
    one = get_object_or_404(Benchmark, pk=benchmark_id)
    actor = actor_of(request)
    authorize(actor, "benchmark", one)
    try:
        one = comparing.mark(actor, one, good=not request.POST.get("no"), reason=request.POST.get("reason", ""))
    except Refused as refused:
        return _shown(request, error_of(refused))
    messages.success(request, f"{one.name} is {'a known good' if one.good else 'no known good any more'}.")
    return redirect(f"/benchmarks?{request.GET.urlencode() or urlencode({'id': one.pk})}")


@allow("benchmark")
@require_POST
def remove(request: HttpRequest, benchmark_id: int) -> HttpResponse:
    one = get_object_or_404(Benchmark, pk=benchmark_id)
    try:
        comparing.remove(actor_of(request), one, reason=request.POST.get("reason", ""))
    except Refused as refused:
        return _shown(request, error_of(refused))
    messages.success(request, f"{one.name} is gone.")
    return redirect("/benchmarks")


urlpatterns = [
    path("benchmarks", benchmarks, name="benchmarks"),
    path("benchmarks/export", export, name="benchmarks-export"),
    path("benchmarks/import", bring, name="benchmarks-import"),
    path("benchmarks/by-hand", by_hand, name="benchmarks-by-hand"),
    path("benchmarks/<int:benchmark_id>/good", good, name="benchmark-good"),
    path("benchmarks/<int:benchmark_id>/remove", remove, name="benchmark-remove"),
]
