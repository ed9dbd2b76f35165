"""The first fatal line across the ranks of a launch: what an engine said before it died."""

from __future__ import annotations

from dataclasses import dataclass

from apps.deployments.models import Deployment
from apps.diagnosis.explaining import explain
from apps.plan.together import services_of
from apps.runs.chunking import lines_of
from apps.runs.models import Run, Step, Stream

LAST_LINES = 300  # of each log: an engine that served for days has printed much that was not fatal
LAST_CHUNKS = 16


@dataclass(frozen=True)
class FatalLine:
    number: int  # of the run's log
    rank: int | None
    node: str
    text: str
    reason: str  # of the table of reasons


AFTER = ("rank_lost", "vanished", "exited")


def of_deployment(deployment: Deployment) -> tuple[Run, FatalLine] | None:
    """Of the launch that served last, after a rank of it was lost or its engines are gone without a reboot."""
    if deployment.reason not in AFTER or deployment.state not in ("degraded", "lost", "failed"):
        return None
    good = deployment.runs.filter(state=Run.State.SUCCEEDED, story__in=("launch", "relaunch", "adopt"))
    run = good.order_by("-pk").first()
    found = first_fatal_line(run) if run is not None else None
    return None if run is None or found is None else (run, found)


def first_fatal_line(run: Run, *, service: str | None = None) -> FatalLine | None:
    """None where no log says why. `service`: of its ranks alone."""
    whose = services_of(run.plan)
    streams = Stream.objects.filter(run=run, name="output", step__kind="serve").select_related("step")
    found = [
        fatal
        for stream in streams
        if service is None or whose.get(stream.step.key, "") == service
        if (fatal := _of(stream, stream.step)) is not None
    ]
    return min(found, key=lambda one: one.number, default=None)


def _of(stream: Stream, step: Step) -> FatalLine | None:
    numbered: list[tuple[int, str]] = []
    for chunk in stream.chunks.order_by("-offset")[:LAST_CHUNKS]:
        rows = lines_of(bytes(chunk.data), chunk.continues)
        numbered = [(n, row.text) for n, row in enumerate(rows, chunk.first_line)] + numbered
        if len(numbered) >= LAST_LINES:
            break
    numbered = numbered[-LAST_LINES:]
    failure = explain("\n".join(text for _, text in numbered).encode()).failure if numbered else None
    if failure is None:
        return None
    place = next(
        (n for n, text in numbered if failure.evidence and failure.evidence.strip()[:120] in text), numbered[-1][0]
    )
    return FatalLine(
        place, step.rank if failure.rank is None else failure.rank, step.node_name, failure.evidence, failure.reason
    )
