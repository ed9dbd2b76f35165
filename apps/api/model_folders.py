"""Model folders on the nodes: which are where, and copying, verifying, removing them."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Status

from apps.api import planned
from apps.api.schemas import (
    IdempotencyKey,
    ModelHeldOut,
    ModelOut,
    ModelPlanBody,
    ModelsOut,
    ModelStartBody,
    PlanOut,
    Started,
)
from apps.people.access import actor_of, allow
from apps.runs import copying

router = Router(tags=["models"])


@router.get("models", response=ModelsOut)
@allow("view")
def list_models(request: HttpRequest) -> ModelsOut:
    """Model folders that the newest sheets name."""
    return ModelsOut(
        items=[
            ModelOut(
                path=one.path,
                name=one.name,
                revision=one.revision or None,
                bytes=one.bytes,
                used_by=list(one.used_by),
                nodes=[
                    ModelHeldOut(
                        node=held.node,
                        state=held.state,
                        bytes=held.bytes,
                        missing=list(held.folder.missing),
                        run=held.run,
                    )
                    for held in one.held.values()
                ],
            )
            for one in copying.table()[1]
        ]
    )


@router.post("models/plan", response=PlanOut)
@allow("plan")
def plan_model(request: HttpRequest, body: ModelPlanBody) -> PlanOut:
    """What would be done. Changes nothing."""
    return planned.shown(copying.preview(body.story, body.path, body.nodes, source=body.source))


@router.post("models/start", response={202: Started})
@allow("provision")
def start_model(request: HttpRequest, body: ModelStartBody, idempotency_key: IdempotencyKey = None) -> Status[Started]:
    """Do it, or join the run that does it already."""
    run = copying.start(
        actor_of(request),
        body.story,
        body.path,
        body.nodes,
        source=body.source,
        reason=body.reason,
        confirm=body.confirm,
        digest=body.digest,
        idempotency_key=idempotency_key or "",
    )
    return Status(202, Started(run=run.pk))
