"""How a run ends, and what that means for its deployment: one place for workers, cancel and the reaper."""

from __future__ import annotations

import time

from django.db.models import F
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import Actor
from apps.deployments import learning
from apps.deployments import state as deployment_state
from apps.deployments.models import Deployment
from apps.deployments.state import Attempt
from apps.doorbell.ring import ring_on_commit
from apps.facts.sheet import storable
from apps.runs import phases as times
from apps.runs.at_the_end import AT_THE_END
from apps.runs.models import Passing, Reservation, Run, Step

STORIES_OF_STATE = ("launch", "relaunch", "stop", "adopt")  # a probe says nothing about a deployment
PAST = {
    "launch": "launched",
    "adopt": "adopted",
    "relaunch": "relaunched",
    "stop": "stopped",
    "probe": "probed",
    "scan": "scanned",
    "clear": "cleared",
    "provision": "provisioned",
    "restore": "restored",
    "unlock": "unlocked",
    "smoke": "tested",
    "benchmark": "benchmarked",
    "fetch": "fetched",
    "copy": "copied",
    "verify": "verified",
    "remove": "removed",
}


def newest_attempt(deployment: Deployment) -> Attempt | None:
    """The newest run, but for those that wait or waited in line for nodes: they changed nothing; and for stops of some services
    alone: the others serve on, and what the watch says of all of them holds."""
    runs = deployment.runs.filter(story__in=STORIES_OF_STATE).order_by("-id")
    run = next(
        (run for run in runs.iterator(chunk_size=20) if not run.parameters.get("waits") and not _of_some(run)), None
    )
    if run is None:
        return None
    because = run.parameters if run.state == Run.State.SUCCEEDED else {}
    reason, evidence = run.reason or because.get("because"), run.evidence or because.get("evidence", "")
    return Attempt(run.story, run.state, run.phase, reason, evidence, _kept(run))


def _of_some(run: Run) -> bool:
    return run.story == "stop" and bool(run.plan.get("kept"))


def _kept(run: Run) -> tuple[str, ...]:
    """Labels of the services that a launch left alone, also of those that had come up when it failed."""
    kept = (*run.plan.get("kept", ()), *run.outcome.get("left", ())) if run.story != "stop" else ()
    return tuple(name or str(run.plan["spec"].get("kind") or "chat") for name in kept)


def settle(run: Run) -> None:
    if run.deployment is not None and run.story in STORIES_OF_STATE:
        deployment_state.settle(run.deployment, newest_attempt(run.deployment))


def actor_of(run: Run) -> Actor:
    return Actor(kind=run.actor_kind, id=run.actor_id, name=run.actor_name, role=run.actor_role)


def _looked_at(run: Run) -> str:
    """The nodes of a run that belongs to no deployment, as its entry in the trail names them."""
    names = run.plan.get("nodes") or [run.parameters.get("name") or f"run {run.pk}"]
    return ", ".join(str(name) for name in names)[:200]


def finish(run: Run, state: str, *, reason: str | None = None, evidence: str = "") -> None:
    """Inside a transaction: end the run, its open steps, its reservations; write the outcome to the audit trail."""
    now = timezone.now()
    phases = times.left(run.phases, run.phase, now=time.time())
    Run.objects.filter(pk=run.pk).update(
        state=state,
        reason=reason,
        evidence=storable(evidence[:4000]),
        ended_at=now,
        phases=phases,
        version=F("version") + 1,
        lease_token="",
        lease_until=None,
    )
    left = Step.State.CANCELLED if state == Run.State.CANCELLED else Step.State.SKIPPED
    run.steps.filter(state=Step.State.WAITING).update(state=left)
    run.steps.filter(state=Step.State.RUNNING).update(
        state=Step.State.CANCELLED if left == "cancelled" else Step.State.FAILED, ended_at=now
    )
    Reservation.objects.filter(run=run).delete()
    Passing.objects.filter(run=run).delete()
    run.refresh_from_db()
    if run.deployment is not None and run.story in ("launch", "relaunch"):
        learning.remember(run.pk, run.deployment, run.plan, run.facts)
    settle(run)
    if run.story in AT_THE_END:
        AT_THE_END[run.story](run)
    outcome = "done" if state == Run.State.SUCCEEDED else "failed"
    seconds = round((now - run.created_at).total_seconds(), 1)
    about = run.deployment
    record(
        actor_of(run),
        f"{'deployment' if about else 'node'}:{PAST.get(run.story, run.story)}",
        object_type="deployment" if about else "run",
        object_id=str(about.pk if about else run.pk),
        object_name=about.name if about else _looked_at(run),
        outcome=outcome,
        reason=run.why,
        run=run.pk,
        after={"state": state, "reason": reason, "seconds": seconds, "plan": run.digest[:12]},
    )
    ring_on_commit("run", run.pk)
    ring_on_commit("fleet", 0)
    ring_on_commit("audit", 0)
