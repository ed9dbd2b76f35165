"""Benchmarks side by side: compare, import, export."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status

from apps.api.schemas import Compared, ComparedRow, ImportBody, Imported, Word
from apps.benchmarks import compared, comparing, exporting
from apps.benchmarks.compared import Row
from apps.people.access import actor_of, allow

router = Router(tags=["benchmarks"])


def _chosen(ids: str) -> list[Row]:
    return comparing.chosen(ids.split(","))


def _shown(row: Row, good: list[Row]) -> ComparedRow:
    judged = comparing.judged(row)
    verdict = compared.judge(row, good) if row.source != "reference" else compared.Verdict(None)
    return ComparedRow(
        id=row.id,
        name=row.name,
        good=row.good,
        result=dict(row.result),
        against=verdict.against.id if verdict.against else None,
        regression=verdict.regression if verdict.against else None,
        worse=[one.sentence for one in verdict.worse],
        roofline={
            "bandwidth_gb_s": judged.bandwidth.gb_s if judged.bandwidth else None,
            "source": judged.bandwidth.source if judged.bandwidth else None,
            "context_tokens": judged.context,
            "missing": judged.missing or None,
            "levels": [
                {
                    "concurrency": bound.step.batch,
                    "weights_bytes": round(bound.weights_bytes),
                    "cache_bytes": round(bound.step.cache),
                    "per_request_tok_s": bound.per_request_tok_s,
                    "aggregate_tok_s": bound.aggregate_tok_s,
                    "share": bound.share,
                }
                for bound in judged.bounds
            ],
        },
    )


@router.get("benchmarks/compare", response=Compared)
@allow("view")
def compare_benchmarks(request: HttpRequest, ids: Word = "") -> Compared:
    """`ids`: numbers of results, or names of those that come with sparkweb, with commas between; at most 12. Without any: what there
    is to choose from, the newest 200 first, as `available` alone."""
    rows = _chosen(ids)
    listed, _ = comparing.listed()
    good = comparing.good_ones() if rows else []
    return Compared(
        threshold=compared.THRESHOLD,
        results=[_shown(row, good) for row in rows],
        differences={name: values for name, values in compared.differences(rows)} if len(rows) > 1 else {},
        available=[{"id": row.id, "name": row.name, "source": row.source, "good": row.good} for row in listed],
    )


@router.get("benchmarks/export", response=dict[str, Any])
@allow("view")
def export_benchmarks(request: HttpRequest, ids: Word = "", format: Word = "json") -> HttpResponse | dict[str, Any]:
    """The results themselves, which another sparkweb imports. `format`: json, or csv with a line a level. Without `ids` the newest 200
    and those that come with sparkweb."""
    rows = _chosen(ids) if ids else comparing.listed()[0]
    if format == "csv":
        return HttpResponse(exporting.as_csv(rows), content_type="text/csv; charset=utf-8")
    return exporting.as_json(rows)


@router.post("benchmarks/import", response={201: Imported})
@allow("benchmark", post="benchmark")
def import_benchmarks(request: HttpRequest, body: ImportBody) -> Status[Imported]:
    """Results of llama-benchy, `vllm bench serve` or another sparkweb, as `text`. `hardware`, `tensor_parallel` and `where` are
    taken where the text does not say them. What is there already comes back as it is."""
    made = comparing.import_text(
        actor_of(request),
        text=body.text,
        hardware=body.hardware,
        name=body.name,
        where=body.where,
        tensor_parallel=body.tensor_parallel,
    )
    return Status(201, Imported(benchmarks=[one.pk for one in made]))
