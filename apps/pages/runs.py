"""One run: where it stands, every step, every line; cancel it; take its log and its commands away."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from django.contrib import messages
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    QueryDict,
)
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

from apps.audit.models import Entry
from apps.diagnosis.eta import Estimate
from apps.diagnosis.refusal import Refused
from apps.inventory.models import Node
from apps.pages import charts, measure, scripts
from apps.pages.fetching import transfer
from apps.pages.refusing import error_of, explained
from apps.pages.smoke import answer_rows
from apps.pages.words import clock, duration_words, tone
from apps.people.access import actor_of, allow
from apps.plan.step import Plan
from apps.runs import downloads, line, queries, restoring, sampling, services
from apps.runs import lines as stored
from apps.runs.models import Run, Step

MOST_FOUND = 200
TITLES = {
    "scan": "Look at the host keys",
    "probe": "Probe",
    "launch": "Launch",
    "adopt": "Adopt",
    "relaunch": "Relaunch",
    "stop": "Stop",
    "clear": "Clear",
    "provision": "Provision",
    "restore": "Restore",
    "unlock": "Remove locks",
    "fetch": "Fetch",
    "copy": "Copy a model",
    "verify": "Verify a model",
    "remove": "Remove a model",
    "smoke": "Smoke test",
    "benchmark": "Benchmark",
}


@dataclass(frozen=True)
class StepRow:
    step: Step
    tone: str
    drawing: str
    seconds: float | None
    commands: tuple[str, ...] = ()


@dataclass
class StageRow:
    name: str
    phase: str
    done: int = 0
    rows: list[StepRow] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether somebody should look at it: something runs or failed."""
        return any(row.step.state in (Step.State.RUNNING, Step.State.FAILED) for row in self.rows)

    @property
    def tone(self) -> str:
        states = {row.step.state for row in self.rows}
        for state in (Step.State.FAILED, Step.State.RUNNING):
            if state in states:
                return tone(state)
        return "ok" if states == {Step.State.SUCCEEDED} else "off"

    @property
    def seconds(self) -> float | None:
        """From the first step's start to the last one's end."""
        begun = [row.step.started_at for row in self.rows if row.step.started_at]
        ended = [row.step.ended_at for row in self.rows if row.step.ended_at]
        if not begun:
            return None
        end = max(ended).timestamp() if len(ended) == len(self.rows) else time.time()
        return max(0.0, end - min(begun).timestamp()) if ended or self.open else None


@dataclass(frozen=True)
class Fact:
    name: str
    value: Any
    status: str = ""
    about: str = ""


def title_of(run: Run) -> str:
    words = TITLES.get(run.story, run.story.capitalize())
    if run.deployment is not None:
        return f"{words} of {run.deployment.name}"
    nodes = run.plan.get("nodes") or [run.parameters.get("name", "")]
    if run.story == "fetch":
        return f"{words} {run.parameters.get('wish', {}).get('repo', 'a model')} on {nodes[0]}"
    more = f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    return f"{words}{' of' if run.story in ('probe', 'provision') else ''} {', '.join(nodes[:4])}{more}"


def stage_rows(run: Run) -> list[StageRow]:
    """The steps as a tree: stages in order, in each the steps of all nodes."""
    names: dict[str, tuple[str, ...]] = {}
    stages: list[StageRow] = []
    for stage in run.plan.get("stages", []):
        stages.append(StageRow(stage["name"], stage["phase"]))
        names |= {step["key"]: tuple(step.get("commands", ())) for step in stage["steps"]}
    for step in run.steps.select_related("node"):
        while len(stages) <= step.stage:
            stages.append(StageRow(f"Stage {len(stages) + 1}", ""))
        seconds = None
        if step.started_at:
            end = step.ended_at.timestamp() if step.ended_at else time.time()
            seconds = max(0.0, end - step.started_at.timestamp())
        drawing = {"succeeded": "ok", "running": "busy", "failed": "bad"}.get(step.state, "off")
        stages[step.stage].rows.append(StepRow(step, tone(step.state), drawing, seconds, names.get(step.key, ())))
        stages[step.stage].done += step.state == Step.State.SUCCEEDED
    return [stage for stage in stages if stage.rows]


def track_rows(run: Run) -> list[dict[str, Any]]:
    rows = queries.track(run)
    widths = charts.grows(
        [
            row["seconds"]
            if row["state"] in ("done", "failed")
            else max(row["usual_seconds"] or 0, row["seconds"] or 0)
            for row in rows
        ]
    )
    overall = queries.overall(run)
    for row, width in zip(rows, widths, strict=True):
        row["grow"] = width
        row["value"] = {"done": 1.0, "failed": 1.0, "busy": _busy_share(row, overall)}.get(row["state"], 0.0)
    return rows


def _busy_share(row: dict[str, Any], overall: float) -> float:
    if row["phase"] == "loading" and overall:
        return overall
    if row["usual_seconds"]:
        return min(0.95, float(row["seconds"] or 0.0) / float(row["usual_seconds"]))
    return 0.5


def rank_rows(run: Run, slow_rank: int | None) -> list[dict[str, Any]]:
    """Ranks with their picture; the one that holds up the others is named slow."""
    rows = queries.rank_progress(run)
    for row in rows:
        row["slow"] = row["rank"] == slow_rank
        row["picture"] = charts.shards(row.get("done"), row.get("total"), row.get("overall") or 0.0)
        row["tone"] = (
            "ok"
            if run.state == Run.State.SUCCEEDED
            else "bad"
            if run.state == Run.State.FAILED
            else "warn"
            if row["slow"]
            else "busy"
        )
    return rows


def service_rows(run: Run, ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The services of a launch of several, each with its tone and its ranks."""
    tones = {"done": "ok", "kept": "ok", "busy": "busy", "failed": "bad"}
    return [
        row
        | {
            "tone": tones.get(row["state"], "off"),
            "ranks": [rank for rank in ranks if rank["service"] == row["label"] and row["state"] in ("busy", "failed")],
        }
        for row in queries.service_steps(run)
    ]


def badge(run: Run, ranks: list[dict[str, Any]]) -> str:
    """The state in words: `loading, shard 17 of 39`."""
    if run.cancel_asked_at and not run.ended:
        return "cancelling"
    if run.state == Run.State.QUEUED:
        return "queued"
    if run.state == Run.State.RUNNING and run.phase:
        at_work = next((row["service"] for row in ranks if row["service"] and (row.get("overall") or 0.0) < 1), "")
        ranks = [row for row in ranks if not at_work or row["service"] == at_work]
        counted = [row for row in ranks if row.get("total") and row.get("done") is not None]
        if run.phase == "loading" and counted:
            slowest = min(counted, key=lambda row: row["done"] / row["total"])
            if slowest["done"] < slowest["total"]:
                return f"loading, shard {slowest['done']} of {slowest['total']}"
            later = min((row for row in ranks), key=lambda row: row.get("overall") or 0.0)["phase"]
            return f"loading, {str(later).replace('_', ' ')}"
        return run.phase
    words = run.state
    return f"{words}: {run.reason.replace('_', ' ')}" if run.reason else words


def fact_rows(run: Run, ranks: list[dict[str, Any]], estimate: Estimate | None) -> list[Fact]:
    """What the logs and the looks say, as a strip. Only what is known."""
    found: list[Fact] = []
    facts = run.facts
    seconds = estimate.seconds if estimate else None
    if run.story in ("launch", "relaunch") and not run.ended and run.phase == "loading":
        if estimate is None or seconds is None:
            found.append(Fact("Ready at about", "not known yet", about=estimate.sentence if estimate else ""))
        else:
            found.append(
                Fact(
                    "Ready at about" if estimate.until == "ready" else "Loaded at about",
                    clock(time.time() + seconds),
                    about=f"in {duration_words(seconds)}, by {estimate.basis}",
                )
            )
    if run.ended and run.started_at and run.ended_at:
        found.append(Fact("Took", duration_words((run.ended_at - run.started_at).total_seconds())))
    smoke = run.outcome.get("smoke") or {}
    if smoke:
        found.append(Fact("Completion", smoke.get("verdict", ""), "ok" if smoke.get("verdict") == "passed" else "bad"))
    nodes, _, rest = _note_of(run, "ray").removeprefix("Ray shows ").partition(", ")
    if nodes:
        found.append(Fact("Ray", nodes, about=rest))
    transport = facts.get("transport")
    if transport:
        network = str(facts.get("network", ""))
        slow = transport == "Socket"
        words = "TCP sockets, the slow path" if slow else " · ".join(filter(None, (str(transport), network)))
        found.append(Fact("Transport", words, "warn" if slow else "ok"))
    weights = _weights(run, ranks)
    if weights:
        found.append(Fact("Weights read", weights))
    if facts.get("kv_tokens"):
        size = f"{float(facts['kv_gib']):.1f} GiB a node" if facts.get("kv_gib") else ""
        found.append(Fact("KV cache", f"{int(facts['kv_tokens']):,} tokens", about=size))
    free = _lowest_free(run)
    if free is not None and not run.ended and run.story != "fetch":
        found.append(Fact("Lowest free memory", f"{free / charts.GIB:.1f} GiB"))
    tries = _last_try(run)
    if tries:
        found.append(_api(run, tries))
    return found


def memory_rows(run: Run) -> list[dict[str, Any]]:
    """By node how its available memory went while the run cleared or loaded there."""
    curves: dict[str, list[list[float]]] = run.outcome.get("memory") or {}
    floors = sampling.floors(Plan.from_json(run.plan)) if curves and run.plan.get("stages") else {}
    rows = []
    for node, points in curves.items():
        if len(points) < 2:
            continue
        lowest, last, floor = min(points, key=lambda point: point[1]), points[-1], floors.get(node, 0)
        words = (
            f"{node}: {points[0][1] / charts.GIB:.1f} GiB were available, at the least {lowest[1] / charts.GIB:.1f}, "
            f"at the end {last[1] / charts.GIB:.1f}"
        )
        rows.append(
            {
                "node": node,
                "first": points[0][1] / charts.GIB,
                "lowest": lowest[1] / charts.GIB,
                "lowest_at": clock(lowest[0]),
                "last": last[1] / charts.GIB,
                "seconds": last[0] - points[0][0],
                "floor": floor / charts.GIB,
                "tone": "bad" if floor and lowest[1] < floor else "off",
                "picture": charts.memory_curve(points, floor, label=words),
            }
        )
    return rows


def _note_of(run: Run, word: str) -> str:
    step = run.steps.filter(key__icontains=word, kind="wait").exclude(note="").order_by("-ordinal").first()
    return step.note if step else ""


def _weights(run: Run, ranks: list[dict[str, Any]]) -> str:
    fit = run.plan.get("fit") or {}
    total = sum(size for bar in fit.get("bars", []) for name, size in bar["segments"] if name == "weights")
    counted = [row["done"] / row["total"] for row in ranks if row.get("total") and row.get("done") is not None]
    if not total or not counted:
        return ""
    return f"{total * sum(counted) / len(counted) / 1e9:.1f} of {total / 1e9:.0f} GB"


def _lowest_free(run: Run) -> int | None:
    nodes = Node.objects.filter(name__in=run.plan.get("nodes", [])).select_related("sighting")
    found = []
    for node in nodes:
        sighting = getattr(node, "sighting", None)
        memory = (sighting.body.get("memory") if sighting else None) or {}
        if memory.get("available_bytes") is not None:
            found.append(int(memory["available_bytes"]))
    return min(found, default=None)


def _api(run: Run, tries: str) -> Fact:
    """Whether the API names the model, with the last try."""
    port = (run.plan.get("spec") or {}).get("port", "")
    step = run.steps.filter(kind="ready", state=Step.State.SUCCEEDED).first()
    return Fact("API", f":{port} {'answers' if step else 'not yet'}", "ok" if step else "", tries)


def _last_try(run: Run) -> str:
    step = run.steps.filter(kind="ready").exclude(state=Step.State.WAITING).first()
    if step is None:
        return ""
    if step.note:
        return step.note
    last = stored.lines(run, before=2**62, limit=1, step=step.key)["lines"]
    return str(last[0]["text"]) if last else ""


def _away(run: Run) -> list[str]:
    """Nodes of the run that nobody sees now."""
    nodes = Node.objects.filter(name__in=run.plan.get("nodes", []), unreachable_since__isnull=False)
    return list(nodes.order_by("name").values_list("name", flat=True))


def run_context(run: Run) -> dict[str, Any]:
    loads = run.story in ("launch", "relaunch")
    estimate = queries.eta(run) if loads and not run.ended else None
    ranks = rank_rows(run, estimate.slow_rank if estimate else None) if loads else []
    named = service_rows(run, ranks)
    stages = stage_rows(run)
    steps = [row for stage in stages for row in stage.rows]
    second = Run.objects.filter(second_try_of=run).first()
    first = next((row.step for row in steps if row.step.state == Step.State.FAILED and row.step.evidence), None)
    return {
        "run": run,
        "title": title_of(run),
        "badge": badge(run, ranks),
        "badge_tone": "warn" if run.cancel_asked_at and not run.ended else tone(run.state),
        "track": track_rows(run),
        "ranks": [] if run.story == "adopt" or named else ranks,
        "services": named,
        "estimate": estimate,
        "facts": fact_rows(run, ranks, estimate),
        "transfer": transfer(run),
        "memory": memory_rows(run),
        "kernel": run.outcome.get("kernel") or [],
        "cleared": run.ended and any(row.step.key.startswith(restoring.CLEARING) for row in steps),
        "answers": answer_rows(run),
        "measured": measure.shown(run),
        "stages": stages,
        "steps_done": sum(stage.done for stage in stages),
        "steps_total": len(steps),
        "second_try": second,
        "second_try_tone": tone(second.state) if second else "",
        "explained": explained(run.reason),
        "failed_step": first,
        "fatal": run.evidence or (first.evidence if first else ""),
        "waits": run.state in (Run.State.QUEUED, Run.State.RESERVING),
        "place": line.place(run),
        "waits_for_cancel": run.cancel_asked_at is not None and not run.ended,
        "away": _away(run) if run.cancel_asked_at and not run.ended else [],
        "worker": services.worker_status() if not run.ended else None,
        **log_kept(run),
        "outcome_entry": Entry.objects.filter(run_id=run.pk).order_by("id").first(),
    }


def log_kept(run: Run) -> dict[str, Any]:
    return {"log_run": run, "log_kept": stored.kept(run)}


def log_context(run: Run) -> dict[str, Any]:
    """What parts/log.html and parts/log_state.html need to show the log of a run."""
    return {
        **log_kept(run),
        "log_ranks": _log_ranks(run) if run.story in ("launch", "relaunch", "adopt") else [],
        "last_lines": stored.lines(run, before=2**62, limit=100)["lines"],
    }


def _log_ranks(run: Run) -> list[tuple[int, str, str]]:
    """Number, node and name of the tab of each rank that this run starts; of several services their names."""
    rows = [(row["rank"], row["node"], row["service"]) for row in queries.rank_progress(run) if row["node"]]
    names = [service for _, _, service in rows]
    return [
        (rank, node, service if service and names.count(service) == 1 else f"{service} rank {rank}".strip())
        for rank, node, service in rows
    ]


def plan_page(query: QueryDict) -> str:
    """The page of the plan that asked for this run (?plan=DEPLOYMENT&story=STORY); empty when none did."""
    number, story = query.get("plan", ""), query.get("story", "")
    known = number.isascii() and number.isdigit() and len(number) < 18 and story in ("launch", "relaunch", "stop")
    return f"/deployments/{number}/plan?story={story}" if known else ""


@allow("view")
@require_GET
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    found = get_object_or_404(Run.objects.select_related("deployment", "revision"), pk=run_id)
    context = run_context(found) | {"back": plan_page(request.GET)}
    if request.headers.get("HX-Request"):
        return render(request, "pages/run_live.html", context)
    context |= {
        "log_steps": [row.step for stage in context["stages"] for row in stage.rows],
        **log_context(found),
    }
    return render(request, "pages/run.html", context)


def _whole(request: HttpRequest, name: str, *, most: int = 2**62) -> int | None:
    value = request.GET.get(name, "")
    if not value:
        return None
    if not value.isascii() or not value.isdigit() or len(value) > 19 or int(value) > most:
        raise Refused(
            "bad_input", f"{name}={value[:40]!r} is not a whole number.", field=name, remedy="Use digits only."
        )
    return int(value)


@allow("view")
@require_GET
def lines(request: HttpRequest, run_id: int) -> HttpResponse:
    """The lines of the socket over HTTP, for when it can't connect: ?after=N | before=N | tail=N, limit, rank, step."""
    found = get_object_or_404(Run, pk=run_id)
    try:
        tail, before = _whole(request, "tail", most=5000), _whole(request, "before")
        limit = _whole(request, "limit", most=5000) or 1000
        about = _about(request)
        if tail is not None:
            answer = stored.lines(found, before=2**62, limit=tail, **about)
            answer["next"] = answer["lines"][-1]["n"] if answer["lines"] else 0
        else:
            after = min(_whole(request, "after") or 0, stored.stored_lines(found))
            answer = stored.lines(found, after=after, before=before, limit=limit, **about)
    except Refused as refused:
        return JsonResponse({"detail": refused.detail, "field": refused.field, "remedy": refused.remedy}, status=422)
    over = answer["ended"] and not answer["serving"]  # the pane follows an engine for as long as it serves
    return JsonResponse(answer | {"run": found.pk, "total": stored.stored_lines(found), "ended": over})


@allow("view")
@require_GET
def search(request: HttpRequest, run_id: int) -> HttpResponse:
    """Lines that hold `q`, over the whole log: {lines, next, more}; ?after, context, rank, step. `next`: to go on from there."""
    found = get_object_or_404(Run, pk=run_id)
    text = request.GET.get("q", "").strip()
    if not text or len(text) > 500:
        return JsonResponse(
            {
                "detail": "The search text is empty or longer than 500 characters.",
                "field": "q",
                "remedy": "Type a part of a line.",
            },
            status=422,
        )
    try:
        about = _about(request)
        context = _whole(request, "context", most=stored.MOST_CONTEXT) or 0
        hits = stored.search(
            found, text, limit=MOST_FOUND, after=_whole(request, "after") or 0, context=context, **about
        )
    except Refused as refused:
        return JsonResponse({"detail": refused.detail, "field": refused.field, "remedy": refused.remedy}, status=422)
    return JsonResponse({"lines": hits.lines, "next": hits.next, "more": hits.next is not None})


def _about(request: HttpRequest) -> dict[str, Any]:
    """Whose lines are asked for. Raises Refused."""
    return {"rank": _whole(request, "rank", most=100000), "step": request.GET.get("step") or None}


@allow("view")
@require_GET
def download(request: HttpRequest, run_id: int) -> HttpResponseBase:
    """The log as text: merged in the order of storing, or one step's output."""
    found = get_object_or_404(Run, pk=run_id)
    step = request.GET.get("step", "")
    if step and not found.steps.filter(key=step).exists():
        raise Http404
    return downloads.response(request, stored.Download(found, step=step or None), downloads.name_of(found, step))


@allow("view")
@require_GET
def script(request: HttpRequest, run_id: int) -> HttpResponse:
    """The stored plan's commands as a text to read."""
    found = get_object_or_404(Run, pk=run_id)
    if not found.plan.get("stages"):
        raise Http404
    return scripts.response(Plan.from_json(found.plan), f"run-{found.pk}")


@allow("cancel")
@require_POST
def cancel(request: HttpRequest, run_id: int) -> HttpResponse:
    found = get_object_or_404(Run, pk=run_id)
    try:
        services.cancel(actor_of(request), found, reason=request.POST.get("reason", "").strip())
    except Refused as refused:
        error = error_of(refused)
        messages.error(request, f"{error.detail} {error.remedy}".strip())
    return redirect(f"/runs/{run_id}")


urlpatterns = [
    path("runs/<int:run_id>", run, name="run"),
    path("runs/<int:run_id>/lines", lines, name="run-lines"),
    path("runs/<int:run_id>/search", search, name="run-search"),
    path("runs/<int:run_id>/log", download, name="run-log"),
    path("runs/<int:run_id>/plan.txt", script, name="run-script"),
    path("runs/<int:run_id>/cancel", cancel, name="run-cancel"),
]
