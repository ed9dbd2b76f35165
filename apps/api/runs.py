"""Runs: how far they are, their lines, cancelling."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponseBase
from ninja import Query, Router

from apps.api import planned
from apps.api.finding import LARGEST_ID, by_id, page
from apps.api.schemas import (
    LIMIT,
    ActorOut,
    After,
    CancelBody,
    EtaOut,
    Found,
    FoundLine,
    HolderOut,
    Identity,
    Limit,
    LineOfRun,
    LineOut,
    Lines,
    PhaseOut,
    PlanOut,
    RankProgress,
    RunOut,
    Runs,
    RunWithSteps,
    ServiceProgress,
    StepOut,
    Word,
)
from apps.diagnosis.reasons import REASONS
from apps.diagnosis.refusal import Refused
from apps.people.access import actor_of, allow
from apps.plan.step import Plan
from apps.runs import downloads, line, lines, queries, services
from apps.runs.models import Run, Step

router = Router(tags=["runs"])
MOST_FOUND = 500
RunLimit = Annotated[int, Query(ge=1, description=f"at most {lines.MOST_LINES} come")]
LineNumber = Annotated[int, Query(ge=0, le=LARGEST_ID)]


def _fields(run: Run) -> dict[str, Any]:
    reason = REASONS.get((run.reason or "").partition(":")[0])
    return {
        "id": run.pk,
        "story": run.story,
        "state": run.state,
        "phase": run.phase,
        "reason": run.reason,
        "evidence": run.evidence or None,
        "remedy": reason.remedy if reason else None,
        "deployment": run.deployment_id,
        "revision": run.revision.number if run.revision else None,
        "digest": run.digest or None,
        "why": run.why or None,
        "was": run.was or None,
        "second_try_of": run.second_try_of_id,
        "second_try": run.second_try.pk if hasattr(run, "second_try") else None,
        "actor": ActorOut(kind=run.actor_kind, id=run.actor_id, name=run.actor_name, role=run.actor_role),
        "created_at": run.created_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "cancel_asked_at": run.cancel_asked_at,
        "cancel_asked_by": run.cancel_asked_by or None,
        "waiting": _waiting(run),
        "lines": lines.stored_lines(run),
    }


def _waiting(run: Run) -> LineOfRun | None:
    found = line.place(run)
    if found is None:
        return None
    holders = [HolderOut(**asdict(one)) for one in found.holders]
    return LineOfRun(position=found.position, ahead=list(found.ahead), holders=holders)


def _step(step: Step) -> StepOut:
    return StepOut(
        key=step.key,
        node=step.node_name or None,
        rank=step.rank,
        title=step.title,
        kind=step.kind,
        state=step.state,
        reason=step.reason,
        evidence=step.evidence or None,
        note=step.note or None,
        started_at=step.started_at,
        ended_at=step.ended_at,
    )


def _eta(run: Run) -> EtaOut | None:
    if run.ended or run.story not in ("launch", "relaunch"):
        return None
    found = queries.eta(run)
    return EtaOut(
        seconds=found.seconds,
        basis=found.basis,
        until=found.until,
        slow_rank=found.slow_rank,
        sentence=found.sentence,
    )


def _whole(run_id: int) -> RunWithSteps:
    run = by_id(Run.objects.select_related("revision", "second_try"), run_id)
    return RunWithSteps(
        **_fields(run),
        track=[PhaseOut(**row) for row in queries.track(run)],
        overall=queries.overall(run),
        ranks=[RankProgress(**row) for row in queries.rank_progress(run)],
        services=[ServiceProgress(**row) for row in queries.service_steps(run)],
        eta=_eta(run),
        steps=[_step(step) for step in run.steps.select_related("node")],
        facts=run.facts,
        outcome=run.outcome,
        worker_alive=None if run.ended else services.worker_status().alive,
    )


@router.get("runs", response=Runs)
@allow("view")
def list_runs(
    request: HttpRequest,
    deployment: Identity = None,
    state: Word = "",
    story: Word = "",
    after: After = None,
    limit: Limit = LIMIT,
) -> Runs:
    """All runs, the newest first; filtered by deployment (id), state and story."""
    rows = Run.objects.select_related("revision", "second_try")
    wanted = {"deployment": deployment, "state": state or None, "story": story or None}
    rows = rows.filter(**{name: value for name, value in wanted.items() if value is not None})
    found, following = page(rows, after=after, limit=limit, newest_first=True)
    return Runs(runs=[RunOut(**_fields(one)) for one in found], next=following)


@router.get("runs/{int:run_id}", response=RunWithSteps)
@allow("view")
def get_run(request: HttpRequest, run_id: int) -> RunWithSteps:
    """One run: phases, progress of every rank, time that remains, steps."""
    return _whole(run_id)


@router.get("runs/{int:run_id}/plan", response=PlanOut)
@allow("view")
def get_run_plan(request: HttpRequest, run_id: int) -> PlanOut:
    """The stored plan: exactly what ran."""
    run = by_id(Run.objects.all(), run_id)
    if not run.plan:
        remedy = "Only probes, launches, relaunches and stops have one."
        raise Refused("not_found", f"Run {run.pk}, a {run.story}, has no plan.", status=404, remedy=remedy)
    return planned.shown(Plan.from_json(run.plan))


@router.get("runs/{int:run_id}/lines", response=Lines)
@allow("view")
def list_lines(
    request: HttpRequest,
    run_id: int,
    after: LineNumber = 0,
    limit: RunLimit = 1000,
    rank: Annotated[int | None, Query(ge=0, le=100_000)] = None,
    step: Word = "",
) -> Lines:
    """Lines numbered above `after`, in order; of one rank or step when asked. Pass `next` as `after` until `ended`. A cursor behind
    the end (an older backup was restored) is one at the end."""
    run = by_id(Run.objects.all(), run_id)
    after = min(after, lines.stored_lines(run))
    answer = lines.lines(run, after=after, limit=limit, rank=rank, step=step or None)
    return Lines(lines=_shown(answer["lines"]), next=answer["next"], ended=answer["ended"], serving=answer["serving"])


def _shown(rows: list[dict[str, Any]]) -> list[LineOut]:
    return [LineOut(**{**row, "node": row["node"] or None}) for row in rows]


@router.get("runs/{int:run_id}/search", response=Found)
@allow("view")
def search_lines(
    request: HttpRequest,
    run_id: int,
    text: Annotated[Word, Query(min_length=1)],
    after: LineNumber = 0,
    limit: Annotated[int, Query(ge=1, description=f"at most {MOST_FOUND} come")] = 200,
    context: Annotated[int, Query(ge=0, description=f"lines around each, at most {lines.MOST_CONTEXT}")] = 0,
    rank: Annotated[int | None, Query(ge=0, le=100_000)] = None,
    step: Word = "",
) -> Found:
    """Lines that hold `text`, without regard to case, over the whole log; of one rank or step when asked."""
    run = by_id(Run.objects.all(), run_id)
    found = lines.search(
        run, text, limit=min(limit, MOST_FOUND), after=after, context=context, rank=rank, step=step or None
    )
    return Found(lines=[_found(row) for row in found.lines], next=found.next)


def _found(row: dict[str, Any]) -> FoundLine:
    around = {name: _shown(row.get(name, [])) for name in ("before", "following")}
    return FoundLine(**{**row, "node": row["node"] or None, **around})


@router.get("runs/{int:run_id}/log", response={200: str})
@allow("view")
def download_log(request: HttpRequest, run_id: int, step: Word = "") -> HttpResponseBase:
    """The masked bytes as they were printed, as plain text: of one step's output, or of all in the order of storing. `Range` works."""
    run = by_id(Run.objects.all(), run_id)
    if step and not run.steps.filter(key=step).exists():
        remedy = "The steps of a run are in GET /runs/{id}."
        raise Refused("not_found", f"Run {run.pk} has no step {step!r}.", status=404, field="step", remedy=remedy)
    found = lines.Download(run, step=step or None)
    return downloads.response(request, found, downloads.name_of(run, step))


@router.post("runs/{int:run_id}/cancel", response={202: RunOut})
@allow("cancel")
def cancel_run(request: HttpRequest, run_id: int, body: CancelBody | None = None) -> RunOut:
    """Ask for the end of a run. It is `cancelled` once its nodes are clean. Asking twice changes nothing."""
    run = by_id(Run.objects.all(), run_id)
    reason = body.reason.strip() if body else ""
    return RunOut(**_fields(services.cancel(actor_of(request), run, reason=reason)))
