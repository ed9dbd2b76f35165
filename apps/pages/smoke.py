"""Smoke tests: the button that starts one, and what each question showed."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import path
from django.views.decorators.http import require_POST

from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.pages.refusing import error_of
from apps.people.access import actor_of, allow
from apps.plan.proofs import TITLES
from apps.runs import testing
from apps.runs.models import Run

MOST_SHOWN = 5


@allow("test")
@require_POST
def test(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """Ask what runs what people will ask of it; the run's page shows the answers."""
    found = get_object_or_404(Deployment, pk=deployment_id, archived_at=None)
    try:
        run = testing.test(actor_of(request), found, reason=request.POST.get("reason", ""))
    except Refused as refused:
        error = error_of(refused)
        messages.error(request, f"{error.detail} {error.remedy}".strip())
        return redirect(found.get_absolute_url())
    return redirect(run.get_absolute_url())


def answer_rows(run: Run) -> list[dict[str, Any]]:
    """For parts/answers.html: each question with its verdict, figures, request and answer."""
    rows = []
    for row in testing.answers(run):
        values = row.get("values") or {}
        rows.append(
            {
                **row,
                "name": TITLES.get(row["kind"], row["title"]) if not row["ask"] else row["title"],
                "tone": "bad" if row["verdict"] != "passed" else "warn" if row.get("warning") else "ok",
                "figures": _figures(values, row.get("seconds")),
                "content": values.get("content", ""),
                "reasoning": values.get("reasoning", ""),
                "asked": _indented(row["request"]),
            }
        )
    return rows


def _figures(values: dict[str, Any], seconds: float | None) -> list[str]:
    usage = values.get("usage") or {}
    told = [
        f"first token after {values['ttft_s']:.2f} s" if values.get("ttft_s") is not None else "",
        f"{values['tokens_per_s']:g} tokens/s" if values.get("tokens_per_s") else "",
        f"{usage['completion_tokens']} tokens" if usage.get("completion_tokens") else "",
        f"ended by {values['finish_reason']}" if values.get("finish_reason") else "",
        f"{seconds:.1f} s in all" if seconds else "",
    ]
    return [one for one in told if one]


def _indented(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def latest(deployment: Deployment) -> list[dict[str, Any]]:
    """The newest tests of a deployment, each with its rows; those that have not ended have what was answered so far."""
    return [{"run": run, "rows": answer_rows(run)} for run in testing.tests_of(deployment, most=MOST_SHOWN)]


urlpatterns = [path("deployments/<int:deployment_id>/test", test, name="deployment-test")]
