"""What pages and the API read of a run: the phase track, ranks, the ETA."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from apps.deployments.models import Deployment
from apps.diagnosis import eta as estimating
from apps.plan.spec import Spec
from apps.plan.together import bases, services_of
from apps.runs import phases as phase_times
from apps.runs.models import Run, Step

TRACKS = {
    "launch": ("preflight", "clearing", "cluster", "loading", "verifying"),
    "relaunch": ("preflight", "clearing", "cluster", "loading", "verifying"),
    "stop": ("stopping",),
    "probe": ("preflight",),
}
NAMES = {
    "preflight": "Preflight",
    "clearing": "Clear",
    "preparing": "Prepare",
    "restoring": "Put back",
    "cluster": "Cluster",
    "loading": "Load",
    "verifying": "Verify",
    "stopping": "Stop",
    "fetching": "Fetch",
    "distributing": "Distribute",
    "reserving": "Reserve",
}


def usual_seconds(run: Run) -> dict[str, float]:
    """Phase -> median seconds of the last three good launches of the same deployment."""
    if run.deployment_id is None:
        return {}
    earlier = Run.objects.filter(
        deployment=run.deployment_id, state=Run.State.SUCCEEDED, story__in=("launch", "relaunch"), pk__lt=run.pk
    )
    seconds: dict[str, list[float]] = {}
    for phases in earlier.order_by("-pk").values_list("phases", flat=True)[:3]:
        for phase, times in phases.items():
            if "ended" in times:
                seconds.setdefault(phase, []).append(phase_times.seconds(times, now=0.0))
    return {phase: median(values) for phase, values in seconds.items()}


def track(run: Run) -> list[dict[str, Any]]:
    """The phases of the plan in order: state (done, busy, waiting, failed, skipped), seconds so far, usual seconds or None."""
    stages = run.plan.get("stages", [])
    planned = list(dict.fromkeys(stage["phase"] for stage in stages)) or list(TRACKS.get(run.story, ()))
    usual = usual_seconds(run)
    ahead = _comes_again(run)
    rows = []
    for phase in planned:
        times = run.phases.get(phase)
        if times is None:
            state, seconds = ("skipped" if run.ended else "waiting"), None
        else:
            seconds = phase_times.seconds(times, now=time.time())
            state = (
                "done" if phase != run.phase or run.state == Run.State.SUCCEEDED else "failed" if run.ended else "busy"
            )
            if state == "done" and phase in ahead:
                state = "skipped" if run.ended else "waiting"
        rows.append(
            {
                "phase": phase,
                "name": NAMES.get(phase, phase.capitalize()),
                "state": state,
                "seconds": seconds,
                "usual_seconds": usual.get(phase),
            }
        )
    return rows


def _comes_again(run: Run) -> frozenset[str]:
    """Phases that another service will enter still."""
    stages = run.plan.get("stages", [])
    if not (run.plan.get("spec") or {}).get("services") or run.state == Run.State.SUCCEEDED:
        return frozenset()
    waiting = set(run.steps.filter(state__in=(Step.State.WAITING, Step.State.SKIPPED)).values_list("stage", flat=True))
    return frozenset(stage["phase"] for number, stage in enumerate(stages) if number in waiting)


def _loading_steps(run: Run) -> list[Step]:
    return [step for step in run.steps.select_related("node") if step.kind == "serve" and step.progress]


def spec_of(run: Run) -> Spec | None:
    """What the plan of a run is about; None for stories without."""
    body = run.plan.get("spec") or {}
    return Spec.from_json(body) if body.get("nodes") and body.get("model") is not None else None


def rank_progress(run: Run) -> list[dict[str, Any]]:
    """One row a rank: service, node, phase, shards done and total, seconds a shard, overall 0..1. Of the services that the run
    starts, not of those that it leaves alone."""
    spec = spec_of(run)
    if spec is None:
        return []
    first = bases(spec)
    rows: dict[int, dict[str, Any]] = {}
    for one in spec.each:
        if one.service not in run.plan.get("kept", ()):
            rows |= {first[one.service] + place: _rank_row(one, place, first) for place in range(len(one.nodes))}
    whose = services_of(run.plan)
    for step in _loading_steps(run):
        base = first.get(whose.get(step.key, ""), 0)
        found = {base + int(rank): progress for rank, progress in (step.progress.get("ranks") or {}).items()}
        if step.rank is not None and step.rank not in found and step.progress.get("progress"):
            found[step.rank] = step.progress["progress"]
        for rank, progress in found.items():
            row = rows.setdefault(rank, {"rank": rank, "node": "", "service": "", "overall": 0.0})
            if progress["overall"] >= row["overall"]:
                row |= {key: progress[key] for key in ("phase", "done", "total", "seconds_per_item", "overall")}
    return [rows[rank] for rank in sorted(rows)]


def _rank_row(spec: Spec, place: int, first: dict[str, int]) -> dict[str, Any]:
    return {
        "rank": first[spec.service] + place,
        "service": spec.label if len(first) > 1 else "",
        "node": spec.nodes[place],
        "phase": "starting",
        "done": None,
        "total": None,
        "seconds_per_item": None,
        "overall": 0.0,
    }


def overall(run: Run) -> float:
    """0..1 of the load: the slowest rank; of several services, which load one after the other, their mean."""
    if run.state == Run.State.SUCCEEDED:
        return 1.0
    slowest: dict[str, float] = {}
    for row in rank_progress(run):
        slowest[row["service"]] = min(slowest.get(row["service"], 1.0), row["overall"])
    return sum(slowest.values()) / len(slowest) if slowest else 0.0


def service_steps(run: Run) -> list[dict[str, Any]]:
    """One row a service of a launch of several: label, kind, model, port, nodes, state (kept, waiting, busy, done, failed), the
    phase that it is in, overall 0..1, and what its proof said. Empty for a deployment of one service."""
    spec = spec_of(run)
    if spec is None or not spec.services:
        return []
    phases = {number: stage["phase"] for number, stage in enumerate(run.plan.get("stages", []))}
    steps: dict[str, list[Step]] = {one.service: [] for one in spec.each}
    whose = services_of(run.plan)
    for step in run.steps.all():
        if phases.get(step.stage) not in ("preflight", "clearing"):
            steps.setdefault(whose.get(step.key, ""), []).append(step)
    loads: dict[str, float] = {}
    for row in rank_progress(run):
        loads[row["service"]] = min(loads.get(row["service"], 1.0), row["overall"])
    return [_service_row(run, one, steps[one.service], phases, loads.get(one.label, 0.0)) for one in spec.each]


def _service_row(run: Run, spec: Spec, steps: list[Step], phases: dict[int, str], load: float) -> dict[str, Any]:
    kept = spec.service in run.plan.get("kept", ())
    open_step = next((step for step in steps if step.state != Step.State.SUCCEEDED), None)
    begun = any(step.state not in (Step.State.WAITING, Step.State.SKIPPED) for step in steps)
    failed = next((step for step in steps if step.state == Step.State.FAILED), None)
    state = (
        "kept" if kept
        else "done" if open_step is None and steps
        else "failed" if failed
        else "waiting" if not begun
        else "busy" if not run.ended
        else "cancelled"
    )  # fmt: skip
    proof = run.outcome.get(f"smoke:{spec.service}" if spec.service else "smoke") or {}
    return {
        "service": spec.service,
        "label": spec.label,
        "kind": spec.kind,
        "model": spec.model_name,
        "port": spec.port,
        "nodes": list(spec.nodes),
        "state": state,
        "phase": phases.get(open_step.stage) if open_step is not None and begun else None,
        "overall": 1.0 if state == "done" else load,
        "reason": failed.reason if failed else None,
        "evidence": failed.evidence if failed else "",
        "proof": proof.get("said") or proof.get("detail") or "",
        "warning": proof.get("warning") or "",
    }


def engine_usual(run: Run) -> dict[str, float]:
    """Seconds of each of the engine's own phases in the last good launch of this deployment; empty when there was none."""
    if run.deployment_id is None:
        return {}
    earlier = Run.objects.filter(
        deployment=run.deployment_id, state=Run.State.SUCCEEDED, story__in=("launch", "relaunch"), pk__lt=run.pk
    )
    facts = earlier.order_by("-pk").values_list("facts", flat=True).first() or {}
    spent = facts.get("phase_s")
    return dict(spent) if isinstance(spent, dict) else {}


def eta(run: Run) -> estimating.Estimate:
    """Seconds until the model is ready, by this load's own pace and the last good launch."""
    loading = run.phases.get("loading")
    started = phase_times.began(loading) if loading else time.time()
    rows = _at_work(rank_progress(run))
    observations = {
        row["rank"]: [(moment - started, float(done), float(total)) for moment, done, total in points]
        for row in rows
        if (points := _history(run, row["rank"]))
    }
    phase = min(rows, key=lambda row: row["overall"])["phase"] if rows else "starting"
    return estimating.estimate(observations, usual=engine_usual(run) or None, now_s=time.time() - started, phase=phase)


def _at_work(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ranks of the service that loads now: the first that is not ready."""
    service = next((row["service"] for row in rows if row["overall"] < 1.0), None)
    return [row for row in rows if service is None or row["service"] == service]


def _history(run: Run, rank: int) -> list[list[float]]:
    spec, whose = spec_of(run), services_of(run.plan)
    first = bases(spec) if spec else {}
    for step in _loading_steps(run):
        own = rank - first.get(whose.get(step.key, ""), 0)  # as the engine's own log counts
        points: list[list[float]] | None = (step.progress.get("history") or {}).get(str(own))
        if points:
            return points
    return []


def run_summary(run: Run) -> dict[str, Any]:
    """Plain values of a run for lists."""
    done = run.steps.filter(state=Step.State.SUCCEEDED).count()
    return {
        "id": run.pk,
        "story": run.story,
        "state": run.state,
        "reason": run.reason,
        "phase": run.phase,
        "evidence": run.evidence,
        "steps_done": done,
        "steps": run.steps.count(),
        "by": run.actor_name,
        "role": run.actor_role,
        "why": run.why,
    }


OF_RUN = {"kept": "serving", "waiting": "starting", "busy": "starting", "done": "serving"}


def service_states(deployment: Deployment) -> list[dict[str, Any]]:
    """One row a service of a deployment of several, as it is now: label, kind, model, port, nodes, state (of states.md, and
    `starting`), reason, evidence, phase, overall 0..1. While a run is at work on it what its steps say, else what the watch saw.
    Empty for a deployment of one service."""
    spec = _running_spec(deployment)
    if not spec.services:
        return []
    run = deployment.runs.filter(story__in=("launch", "relaunch", "adopt")).order_by("-pk").first()
    steps = {row["service"]: row for row in service_steps(run)} if run is not None and not run.ended else {}
    seen: dict[str, Any] = deployment.observed.get("services") or {}
    rows = []
    for one in spec.each:
        row = {
            "service": one.service,
            "label": one.label,
            "kind": one.kind,
            "model": one.model_name,
            "port": one.port,
            "nodes": list(one.nodes),
            "state": deployment.state,
            "reason": None,
            "evidence": "",
            "phase": None,
            "overall": None,
        }
        if one.service in steps:
            at = steps[one.service]
            row |= {"state": OF_RUN.get(at["state"], at["state"]), "phase": at["phase"], "overall": at["overall"]}
            row |= {"reason": at["reason"], "evidence": at["evidence"]}
        elif one.service in seen and deployment.state in ("serving", "degraded", "lost", "unreachable"):
            row |= {key: seen[one.service][key] for key in ("state", "reason", "evidence")}
        rows.append(row)
    return rows


def _running_spec(deployment: Deployment) -> Spec:
    """Of the revision that runs, else of the newest."""
    rank = deployment.ranks.select_related("revision").first()
    return rank.revision.spec if rank is not None else deployment.revision.spec
