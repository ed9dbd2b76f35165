"""Benchmarks of ours: the form that starts one, and the curve as it grows."""

from __future__ import annotations

import contextlib
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.views.decorators.http import require_http_methods

from apps.benchmarks import compared, measuring
from apps.benchmarks.compared import Row
from apps.benchmarks.loadgen import DEFAULTS
from apps.benchmarks.measured import Measured
from apps.benchmarks.models import Benchmark
from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.pages import plots
from apps.pages.refusing import error_of
from apps.people.access import actor_of, allow
from apps.runs.models import Run

NUMBERS = (
    ("prompt_tokens", "Prompt, tokens"),
    ("output_tokens", "Answer, tokens"),
    ("requests_per_level", "Requests a level (0: four a place)"),
    ("seconds_per_level", "Seconds a level (0: until done)"),
    ("warmup", "Requests to warm up"),
    ("seed", "Seed"),
)


@allow("benchmark")
@require_http_methods(["GET", "POST"])
def measure(request: HttpRequest, deployment_id: int) -> HttpResponse:
    found = get_object_or_404(Deployment, pk=deployment_id, archived_at=None)
    error, values = None, _first_values()
    if request.method == "POST":
        values = {name: request.POST.get(name, "").strip() for name in (*values, "reason", "service")}
        try:
            run = measuring.start(
                actor_of(request),
                found,
                _given(values),
                service=values["service"],
                reason=values["reason"],
                idempotency_key=request.POST.get("key", "")[:80],
            )
            return redirect(run.get_absolute_url())
        except Refused as refused:
            error = error_of(refused)
    spec = found.revision.spec
    context = {
        "deployment": found,
        "error": error,
        "values": values,
        "numbers": [(name, label, values[name]) for name, label in NUMBERS],
        "services": [(one.service, one.label) for one in spec.each if one.kind == "chat"],
        "serves": found.ranks.exists(),
    }
    return render(request, "pages/benchmark_form.html", context, status=error.status if error else 200)


def _first_values() -> dict[str, Any]:
    values: dict[str, Any] = {name: DEFAULTS[name] for name in measuring.FIELDS}
    yes = {name: "1" if values[name] else "" for name in ("ignore_eos", "prefix_proof")}
    return values | yes | {"levels": ", ".join(str(level) for level in values["levels"])}


def _given(values: dict[str, str]) -> dict[str, Any]:
    """The form's texts as settings; what is no number stays a text, and is refused by its name."""
    made: dict[str, Any] = {name: values[name] for name in ("mode", "endpoint")}
    made |= {name: _number(values[name]) for name, _ in NUMBERS}
    made |= {name: bool(values[name]) for name in ("ignore_eos", "prefix_proof")}
    return made | {"levels": [_number(word) for word in values["levels"].replace(";", ",").split(",") if word.strip()]}


def _number(text: str) -> int | float | str:
    text = text.strip()
    with contextlib.suppress(ValueError):
        return int(text) if len(text) < 20 else text
    with contextlib.suppress(ValueError):
        return float(text)
    return text


def shown(run: Run) -> dict[str, Any] | None:
    """For parts/measured.html: curves and a table of what a benchmark's run has measured so far; None for other runs."""
    if run.story != "benchmark":
        return None
    found = measuring.of_run(run)
    kept = Benchmark.objects.filter(run=run).first()
    return {
        "levels": found.levels,
        "tick": None if run.ended else found.tick,
        "at": _at(run, found),
        "notes": found.notes,
        "figures": figures(found) if len(found.levels) > 1 else [],
        "kept": kept,
        "open": (run.parameters.get("settings") or {}).get("mode") == "open",
        "settings": run.parameters.get("settings") or {},
        "samples": {name: values[-1] for name, values in found.samples.items() if values},
    }


def _at(run: Run, found: Measured) -> str:
    levels = (run.parameters.get("settings") or {}).get("levels") or []
    return "" if run.ended or len(found.levels) >= len(levels) else f"level {len(found.levels) + 1} of {len(levels)}"


def figures(found: Measured) -> list[dict[str, Any]]:
    """Aggregate, per request and first token against the level."""
    x_name = "requests a second" if found.settings.get("mode") == "open" else "concurrency"
    levels = [{**level, "concurrency": level["concurrency"] or level["rate"]} for level in found.levels]
    row = Row("run", "this run", {"levels": levels})
    made = []
    for name, (title, unit) in compared.FIGURES.items():
        plot = plots.across(
            [plots.Series("this run", tuple(compared.points(row, name)), 0)],
            label=f"{title}, {unit}, against {x_name}",
            x_name=x_name,
            y_name=unit.split(",")[0],
        )
        made.append({"title": title, "unit": unit, "plot": plot})
    return made


urlpatterns = [path("deployments/<int:deployment_id>/benchmark", measure, name="deployment-benchmark")]
