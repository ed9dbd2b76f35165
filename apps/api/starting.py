"""An idempotency key means one request. Used for another one it is a mistake, which must not look like success."""

from __future__ import annotations

from collections.abc import Sequence

from apps.diagnosis.refusal import Refused
from apps.runs.models import Run


def replayed_for(
    run: Run, *, story: str, deployment: int | None = None, nodes: Sequence[str] | None = None, digest: str = ""
) -> None:
    """Raises Refused (422) when `run`, which a key gave back, was started by a request for something else."""
    same = run.story == story and run.deployment_id == deployment
    same = same and (nodes is None or list(run.plan.get("nodes", [])) == list(nodes))
    if same and (not digest or run.digest == digest):
        return
    raise Refused(
        "idempotency_key_reused",
        f"This key started run {run.pk}, a {run.story}, with another request.",
        field="Idempotency-Key",
        remedy="Use a new key for each thing that you start, e.g. a UUID.",
        extra={"run": run.pk},
    )
