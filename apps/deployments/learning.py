"""What launches said of their memory, kept beside what was predicted, for the next prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.deployments.models import Deployment, FitSample
from apps.plan.measured import MOST, Measured
from apps.plan.spec import Spec

GIB = 1 << 30
KEPT = 50  # samples of one model on one engine; older ones go
LARGEST = 1 << 60


def remember(
    run_id: int, deployment: Deployment, plan: Mapping[str, Any], facts: Mapping[str, Any]
) -> FitSample | None:
    """Store what this launch said against what its plan predicted; None where either is silent. Inside the transaction
    that ends the run; asked twice for the same run it stays one row."""
    predicted = (plan.get("fit") or {}).get("predicted") or {}
    weights, cache = _bytes(facts.get("model_gib")), _bytes(facts.get("kv_gib"))
    several = (plan.get("spec") or {}).get("services")  # their figures can't be told apart
    if not predicted.get("weights") or weights is None or several:
        return None
    made, _ = FitSample.objects.update_or_create(
        run_id=run_id,
        defaults={
            "deployment": deployment,
            "model": str(predicted.get("model", ""))[:300],
            "engine": str(predicted.get("engine", ""))[:40],
            "shape": str(predicted.get("shape", ""))[:120],
            "nodes": list(plan.get("nodes", ())),
            "claim_bytes": _whole(predicted.get("claim")),
            "predicted_weights_bytes": _whole(predicted["weights"]),
            "predicted_cache_bytes": _whole(predicted.get("cache")),
            "predicted_tokens": _whole(predicted.get("tokens")),
            "shown_cache_bytes": _whole(predicted.get("shown_cache")),
            "weights_bytes": weights,
            "cache_bytes": cache,
            "tokens": _whole(facts.get("kv_tokens")),
        },
    )
    alike = FitSample.objects.filter(model=made.model, engine=made.engine).order_by("-run_id")
    FitSample.objects.filter(pk__in=list(alike.values_list("pk", flat=True)[KEPT:])).delete()
    return made


def _bytes(gib: Any) -> int | None:
    known = isinstance(gib, int | float) and not isinstance(gib, bool) and 0 < gib < LARGEST / GIB
    return int(gib * GIB) if known else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST else None


def measured(spec: Spec) -> tuple[Measured, ...]:
    """What launches of the spec's models on its engines said, the newest first."""
    each: tuple[Spec, ...] = getattr(spec, "each", (spec,))
    models, engines = {one.model for one in each}, {one.engine for one in each}
    rows = FitSample.objects.filter(model__in=models, engine__in=engines).order_by("-run_id")[: MOST * 4 * len(each)]
    return tuple(
        Measured(
            row.model,
            row.engine,
            row.shape,
            row.claim_bytes,
            row.predicted_weights_bytes,
            row.predicted_cache_bytes,
            row.predicted_tokens,
            row.weights_bytes,
            row.cache_bytes,
            row.tokens,
        )
        for row in rows
    )
