"""The state of a deployment, computed from the last run and the last looks, in one place; nobody else writes these columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import F
from django.utils import timezone

from apps.deployments.models import Deployment
from apps.doorbell.ring import ring_on_commit

State = Deployment.State
RankState = Literal["starting", "serving", "stopping", "gone", "unknown"]
# A rank's row says what the last good launch left; what of it holds now follows from the deployment's state.
RANK_IN: dict[str, RankState] = {
    State.SERVING: "serving",
    State.LOST: "gone",
    State.STOPPING: "stopping",
    State.LAUNCHING: "starting",
    State.STOPPED: "gone",
}


@dataclass(frozen=True)
class Attempt:
    """The newest run of a deployment, as far as the state depends on it."""

    story: str
    state: str  # of a run
    phase: str | None = None
    reason: str | None = None
    evidence: str = ""
    kept: tuple[str, ...] = ()  # labels of services that this run left alone because they served


@dataclass(frozen=True)
class Computed:
    state: str
    reason: str | None = None
    phase: str | None = None
    evidence: str = ""


def compute(attempt: Attempt | None, observed: dict[str, Any]) -> Computed:
    """Fixed priority: a run in progress, a stop, a failed or cancelled launch, then what the watch saw since the last good launch."""
    if attempt is None:
        return Computed(State.DRAFT)
    if attempt.state in ("queued", "reserving", "running"):
        return Computed(State.STOPPING if attempt.story == "stop" else State.LAUNCHING, None, attempt.phase)
    if attempt.story == "stop":
        if attempt.state == "succeeded":
            # A stop that nobody wished for, of what a lost rank left: why it does not serve stays said.
            return (
                Computed(State.FAILED, attempt.reason, None, attempt.evidence)
                if attempt.reason
                else Computed("stopped")
            )
        return Computed(State.FAILED, attempt.reason or "cleanup_incomplete", attempt.phase, attempt.evidence)
    if attempt.kept and attempt.state != "succeeded":  # what it left alone serves on
        if observed:
            return Computed(observed["state"], observed.get("reason"), None, observed.get("evidence", ""))
        serves = f"{_listed(attempt.kept)} {'serves' if len(attempt.kept) == 1 else 'serve'} on."
        return Computed(State.DEGRADED, attempt.reason or attempt.state, None, f"{serves} {attempt.evidence}".strip())
    if attempt.state == "cancelled":
        return Computed(State.STOPPED, attempt.reason or "cancelled", attempt.phase, attempt.evidence)
    if attempt.state != "succeeded":
        return Computed(State.FAILED, attempt.reason or "internal", attempt.phase, attempt.evidence)
    if observed:
        return Computed(observed["state"], observed.get("reason"), None, observed.get("evidence", ""))
    return Computed(State.SERVING)


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def rank_state(deployment_state: str) -> RankState:
    """What a rank of a deployment in this state is: serving only while the deployment itself is."""
    return RANK_IN.get(deployment_state, "unknown")


def settle(deployment: Deployment, attempt: Attempt | None) -> Deployment:
    """Write the computed state if it differs, and ring. Returns the fresh row."""
    deployment.refresh_from_db()
    new = compute(attempt, deployment.observed)
    now = timezone.now()
    fields: dict[str, Any] = {}
    if (deployment.state, deployment.reason) != (new.state, new.reason):
        fields |= {"state": new.state, "reason": new.reason, "since": now}
    if (deployment.phase, deployment.evidence) != (new.phase, new.evidence):
        fields |= {"phase": new.phase, "evidence": new.evidence}
    if new.state == State.SERVING:
        fields["served_at"] = now
    if fields:
        Deployment.objects.filter(pk=deployment.pk).update(version=F("version") + 1, **fields)
        deployment.refresh_from_db()
        ring_on_commit("deployment", deployment.pk, deployment.version)
        ring_on_commit("fleet", 0)
    return deployment


def observe(deployment: Deployment, observed: dict[str, Any], attempt: Attempt | None) -> Deployment:
    """Keep what the watch concluded (empty: nothing yet) and settle."""
    Deployment.objects.filter(pk=deployment.pk).update(observed=observed)
    return settle(deployment, attempt)


FLAG_WORDS = {
    "drift": "not as recorded",
    "exposed": "open without a key",
    "wedged": "hangs",
    "readiness": "not ready",
}


def flag(deployment: Deployment, flags: Mapping[str, str]) -> list[tuple[str, str]]:
    """Keep what is true beside the state: evidence by name, with the moment from which it is. Rings where something changed; returns
    the names that came (with evidence) and went (without)."""
    before: dict[str, Any] = deployment.flags or {}
    if {name: one.get("evidence") for name, one in before.items()} == dict(flags):
        return []
    now = timezone.now().isoformat()
    kept = {
        name: {"evidence": evidence, "since": before.get(name, {}).get("since", now)}
        for name, evidence in flags.items()
    }
    Deployment.objects.filter(pk=deployment.pk).update(flags=kept, version=F("version") + 1)
    deployment.refresh_from_db(fields=["flags", "version"])
    ring_on_commit("deployment", deployment.pk, deployment.version)
    ring_on_commit("fleet", 0)
    came = [(name, evidence) for name, evidence in flags.items() if name not in before]
    return came + [(name, "") for name in before if name not in flags]
