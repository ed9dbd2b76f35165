"""Benchmarks of ours: start one, and what they measured."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Status

from apps.api.finding import by_id, page
from apps.api.schemas import (
    LIMIT,
    After,
    BenchmarkBody,
    BenchmarkOut,
    Benchmarks,
    IdempotencyKey,
    Limit,
    Started,
)
from apps.benchmarks import measuring
from apps.benchmarks.models import Benchmark
from apps.deployments.models import Deployment
from apps.people.access import actor_of, allow

router = Router(tags=["benchmarks"])


@router.post("deployments/{int:deployment_id}/benchmark", response={202: Started})
@allow("benchmark")
def benchmark_deployment(
    request: HttpRequest, deployment_id: int, body: BenchmarkBody | None = None, idempotency_key: IdempotencyKey = None
) -> Status[Started]:
    """Put load on what runs and measure it, level by level, from beside the engine. A run of its own that holds no node; a second
    one of the same deployment at the same time is a 409 `in_use`."""
    asked = (body or BenchmarkBody()).model_dump()
    service, reason = asked.pop("service"), asked.pop("reason")
    run = measuring.start(
        actor_of(request),
        by_id(Deployment.objects.filter(archived_at=None), deployment_id),
        asked,
        service=service,
        reason=reason,
        idempotency_key=idempotency_key or "",
    )
    return Status(202, Started(run=run.pk))


@router.get("benchmarks", response=Benchmarks)
@allow("view")
def list_benchmarks(
    request: HttpRequest, deployment: int | None = None, after: After = None, limit: Limit = LIMIT
) -> Benchmarks:
    """Results that are stored here, measured and imported ones, the newest first."""
    rows = Benchmark.objects.exclude(result={})
    rows = rows if deployment is None else rows.filter(deployment_id=deployment)
    found, following = page(rows, after=after, limit=limit, newest_first=True)
    return Benchmarks(benchmarks=[_shown(one) for one in found], next=following)


@router.get("benchmarks/{int:benchmark_id}", response=BenchmarkOut)
@allow("view")
def get_benchmark(request: HttpRequest, benchmark_id: int) -> BenchmarkOut:
    """One result."""
    return _shown(by_id(Benchmark.objects.all(), benchmark_id))


def _shown(one: Benchmark) -> BenchmarkOut:
    return BenchmarkOut(
        id=one.pk,
        name=one.name,
        deployment=one.deployment_id,
        revision=one.revision.number if one.revision else None,
        run=one.run_id,
        good=one.good,
        made=one.made,
        by=one.by,
        result=one.result,
    )
