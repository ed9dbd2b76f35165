"""The line before nodes that another run holds: who is before whom, and whose turn it is. Only looks; services writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.runs.models import Reservation, Run


@dataclass(frozen=True)
class Holder:
    """Who holds a node: the run, what it does, who started it, since when."""

    node: str
    run: int
    what: str  # "launch of qwen"
    by: str
    since: datetime


@dataclass(frozen=True)
class Place:
    """`position` 1 is the next. `holders`: of the nodes that are not free, each with its own."""

    position: int
    ahead: tuple[int, ...]  # runs that wait before this one for one of its nodes
    holders: tuple[Holder, ...]

    @property
    def sentence(self) -> str:
        held = ", ".join(
            f"{one.node} is held by run {one.run}, the {one.what} that {one.by} started, since {one.since:%H:%M:%S} UTC"
            for one in self.holders
        )
        return f"Number {self.position} in line. {held or 'Its nodes are free: it begins with the next look'}."


def purpose(run: Run) -> str:
    return f"{run.story} of {run.deployment.name}" if run.deployment else run.story


def waits(run: Run) -> bool:
    return run.state == Run.State.RESERVING and bool(run.parameters.get("waits"))


def waiting_for(nodes: Sequence[str], *, before: int | None = None) -> list[Run]:
    """Runs that wait for one of these nodes, the first first; with `before` only those that came earlier than this run."""
    wanted = set(nodes)
    rows = Run.objects.filter(state=Run.State.RESERVING).select_related("deployment").order_by("pk")
    rows = rows if before is None else rows.filter(pk__lt=before)
    return [run for run in rows if waits(run) and wanted & set(run.plan.get("nodes", []))]


def holders(nodes: Sequence[str]) -> tuple[Holder, ...]:
    held = Reservation.objects.filter(node__name__in=list(nodes)).select_related("run__deployment", "node")
    return tuple(
        Holder(one.node.name, one.run_id, purpose(one.run), one.run.actor_name, one.since)
        for one in held.order_by("node__name")
    )


def place(run: Run) -> Place | None:
    """Where a waiting run stands; None for one that does not wait."""
    if not waits(run):
        return None
    nodes = run.plan.get("nodes", [])
    ahead = tuple(one.pk for one in waiting_for(nodes, before=run.pk))
    return Place(len(ahead) + 1, ahead, holders(nodes))
