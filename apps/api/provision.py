"""Provision runs: make nodes ready, and put back what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Router, Status

from apps.api import planned
from apps.api.schemas import (
    IdempotencyKey,
    NeededPassword,
    PasswordsBody,
    PlanOut,
    PreviousBody,
    PreviousPlanBody,
    ProvisionBody,
    ProvisionPlanOut,
    RestoreBody,
    RestorePlanBody,
    Started,
    WishBody,
)
from apps.deployments.models import Deployment
from apps.people.access import actor_of, allow
from apps.runs import passing, provisioning, restoring
from apps.runs.provisioning import Provisioning

router = Router(tags=["nodes"])
OF_START = {"digest", "reason", "passwords"}


def _wish(body: WishBody) -> dict[str, Any]:
    given = body.model_dump(exclude=OF_START)
    return {name: value for name, value in given.items() if value is not None}


def _passwords(given: Mapping[str, PasswordsBody]) -> dict[str, str]:
    return {
        passing.name(kind, node): value
        for node, both in given.items()
        for kind, value in (("sudo", both.sudo), ("login", both.login))
        if value
    }


def _shown(made: Provisioning) -> ProvisionPlanOut:
    kinds = [passing.parts(name) for name in made.passwords]
    needed = [NeededPassword(node=node, kind="login" if kind == "login" else "sudo") for kind, node in kinds]
    return ProvisionPlanOut(**planned.shown(made.plan).model_dump(), wish=made.wish.to_json(), passwords=needed)


@router.post("nodes/provision/plan", response=ProvisionPlanOut)
@allow("plan")
def plan_provision(request: HttpRequest, body: WishBody) -> ProvisionPlanOut:
    """What would be done to make these nodes ready, and for each step that does nothing, why. Changes nothing."""
    return _shown(provisioning.preview(_wish(body)))


@router.post("nodes/provision/start", response={202: Started})
@allow("provision")
def start_provision(
    request: HttpRequest, body: ProvisionBody, idempotency_key: IdempotencyKey = None
) -> Status[Started]:
    """Run the plan with this digest; the wish must be the one that was planned."""
    run = provisioning.start(
        actor_of(request),
        _wish(body),
        digest=body.digest,
        reason=body.reason,
        passwords=_passwords(body.passwords),
        idempotency_key=idempotency_key or "",
    )
    return Status(202, Started(run=run.pk))


@router.post("nodes/restore/plan", response=ProvisionPlanOut)
@allow("plan")
def plan_restore(request: HttpRequest, body: RestorePlanBody) -> ProvisionPlanOut:
    """How everything that provision runs changed on these nodes would be put back, the newest first."""
    return _shown(provisioning.preview_restore(body.nodes, with_key=body.with_key))


@router.post("nodes/restore/start", response={202: Started})
@allow("provision")
def start_restore(request: HttpRequest, body: RestoreBody, idempotency_key: IdempotencyKey = None) -> Status[Started]:
    """Put it back, file by file as it was; what somebody else changed since is refused."""
    run = provisioning.start_restore(
        actor_of(request),
        body.nodes,
        digest=body.digest,
        reason=body.reason,
        with_key=body.with_key,
        passwords=_passwords(body.passwords),
        idempotency_key=idempotency_key or "",
    )
    return Status(202, Started(run=run.pk))


@router.post("nodes/previous/plan", response=PlanOut)
@allow("plan")
def plan_previous(request: HttpRequest, body: PreviousPlanBody) -> PlanOut:
    """How the units and containers that runs cleared on these nodes would be put back as they were. What has changed since is a
    problem of the plan, and left out. Changes nothing."""
    return planned.shown(restoring.preview(body.nodes))


@router.post("nodes/previous/start", response={202: Started})
@allow("clear")
def start_previous(request: HttpRequest, body: PreviousBody, idempotency_key: IdempotencyKey = None) -> Status[Started]:
    """Restore previous services: run the plan with this digest. Refused while a deployment of ours is on one of the nodes."""
    run = restoring.start(
        actor_of(request),
        body.nodes,
        digest=body.digest,
        reason=body.reason,
        deployment=get_object_or_404(Deployment, pk=body.deployment) if body.deployment else None,
        idempotency_key=idempotency_key or "",
    )
    return Status(202, Started(run=run.pk))
