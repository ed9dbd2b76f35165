"""What pages and the API read of a run: the phase track, ranks, the ETA."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from apps.diagnosis import eta as estimating
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
                seconds.setdefault(phase, []).append(times["ended"] - times["started"])
    return {phase: median(values) for phase, values in seconds.items()}


def track(run: Run) -> list[dict[str, Any]]:
    """The phases of the plan in order: state (done, busy, waiting, failed, skipped), seconds so far, usual seconds or None."""
    stages = run.plan.get("stages", [])
    planned = list(dict.fromkeys(stage["phase"] for stage in stages)) or list(TRACKS.get(run.story, ()))
    usual = usual_seconds(run)
    rows = []
    for phase in planned:
        times = run.phases.get(phase)
        if times is None:
            state, seconds = ("skipped" if run.ended else "waiting"), None
        else:
            seconds = times.get("ended", time.time()) - times["started"]
            state = (
                "done" if phase != run.phase or run.state == Run.State.SUCCEEDED else "failed" if run.ended else "busy"
            )
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


def _loading_steps(run: Run) -> list[Step]:
    return [step for step in run.steps.select_related("node") if step.kind == "serve" and step.progress]


def rank_progress(run: Run) -> list[dict[str, Any]]:
    """One row a rank: node, phase, shards done and total, seconds a shard, overall 0..1."""
    nodes = run.plan.get("spec", {}).get("nodes", [])
    rows: dict[int, dict[str, Any]] = {
        number: {
            "rank": number,
            "node": node,
            "phase": "starting",
            "done": None,
            "total": None,
            "seconds_per_item": None,
            "overall": 0.0,
        }
        for number, node in enumerate(nodes)
    }
    for step in _loading_steps(run):
        found = {int(rank): progress for rank, progress in (step.progress.get("ranks") or {}).items()}
        if step.rank is not None and step.rank not in found and step.progress.get("progress"):
            found[step.rank] = step.progress["progress"]
        for rank, progress in found.items():
            row = rows.setdefault(rank, {"rank": rank, "node": "", "overall": 0.0})
            if progress["overall"] >= row["overall"]:
                row |= {key: progress[key] for key in ("phase", "done", "total", "seconds_per_item", "overall")}
    return [rows[rank] for rank in sorted(rows)]


def overall(run: Run) -> float:
    """0..1 of the load: the slowest rank."""
    if run.state == Run.State.SUCCEEDED:
        return 1.0
    rows = rank_progress(run)
    return min((row["overall"] for row in rows), default=0.0)


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
    started = loading["started"] if loading else time.time()
    rows = rank_progress(run)
    observations = {
        row["rank"]: [(moment - started, float(done), float(total)) for moment, done, total in points]
        for row in rows
        if (points := _history(run, row["rank"]))
    }
    phase = min(rows, key=lambda row: row["overall"])["phase"] if rows else "starting"
    return estimating.estimate(observations, usual=engine_usual(run) or None, now_s=time.time() - started, phase=phase)


def _history(run: Run, rank: int) -> list[list[float]]:
    for step in _loading_steps(run):
        points: list[list[float]] | None = (step.progress.get("history") or {}).get(str(rank))
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
