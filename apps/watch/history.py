"""The history of nodes: figures that grow thinner with age, and marks of what happened. Rows are bounded and pruned here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from django.db.models import Avg, Max, QuerySet
from django.utils import timezone

from apps.inventory.models import Node
from apps.watch.judging import NodeSeen
from apps.watch.models import Brake, Mark, Point

MINUTE, QUARTER = 60, 900  # seconds
LOOKS_FOR, MINUTES_FOR, QUARTERS_FOR = timedelta(hours=1), timedelta(days=1), timedelta(days=30)
KEPT = {0: LOOKS_FOR, MINUTE: MINUTES_FOR, QUARTER: QUARTERS_FOR}
MOST_MARKS = 1000  # of a node
MOST_LOOKS = 3600  # of a node within the hour; also where somebody looks every second
SPANS = {"hour": (0, LOOKS_FOR), "day": (MINUTE, MINUTES_FOR), "month": (QUARTER, QUARTERS_FOR)}


@dataclass(frozen=True)
class Gap:
    """Between two looks that saw the node: nobody saw it. Unix seconds."""

    start: float
    end: float


def point(node: Node, seen: NodeSeen) -> Point:
    """The figures of a look that the node answered."""
    total, used = _memory(seen)
    return Point(
        node=node,
        step=0,
        at=datetime.fromtimestamp(seen.at, UTC),
        used_bytes=used,
        total_bytes=total,
        temp_c=_of(seen.gpus, "temp_c", max),
        power_w=_of(seen.gpus, "power_w", sum),
        busy_pct=_of(seen.gpus, "util_pct", max),
    )


def _memory(seen: NodeSeen) -> tuple[int | None, int | None]:
    """(total, used) in bytes of the memory that decides: that of discrete GPUs together, else the machine's own."""
    own = [gpu for gpu in seen.gpus if gpu.get("memory_total_mib") and not gpu.get("unified")]
    if own:
        total = sum(gpu["memory_total_mib"] for gpu in own) << 20
        return total, sum(gpu.get("memory_used_mib") or 0 for gpu in own) << 20
    total, available = (seen.memory or {}).get("total_bytes"), (seen.memory or {}).get("available_bytes")
    return total, None if total is None or available is None else max(0, total - available)


def _of(gpus: Sequence[Mapping[str, object]], name: str, made: object) -> float | None:
    found = [float(gpu[name]) for gpu in gpus if isinstance(gpu.get(name), int | float)]  # type: ignore[arg-type]
    return float(made(found)) if found and callable(made) else None


def keep(points: Sequence[Point]) -> None:
    Point.objects.bulk_create(points, ignore_conflicts=True)


def mark(node_ids: Sequence[int], kind: str, text: str = "", *, at: datetime | None = None) -> None:
    moment = at or timezone.now()
    Mark.objects.bulk_create([Mark(node_id=one, at=moment, kind=kind, text=text[:200]) for one in node_ids])


def thin(now: datetime | None = None) -> None:
    """Make the means of minutes and quarters that are over, and forget what is too old. Idempotent: it may run twice or late."""
    moment = now or timezone.now()
    _means(0, MINUTE, moment, LOOKS_FOR)
    _means(MINUTE, QUARTER, moment, MINUTES_FOR)
    for step, kept in KEPT.items():
        Point.objects.filter(step=step, at__lt=moment - kept).delete()
    Mark.objects.filter(at__lt=moment - QUARTERS_FOR).delete()
    Brake.objects.filter(ended_at__lt=moment - QUARTERS_FOR).delete()
    for node in Mark.objects.values_list("node", flat=True).distinct().order_by():
        over = list(Mark.objects.filter(node=node).order_by("-at", "-pk").values_list("pk", flat=True)[MOST_MARKS:])
        if over:
            Mark.objects.filter(pk__in=over).delete()


def _means(fine: int, coarse: int, now: datetime, reach: timedelta) -> None:
    """Of each span of `coarse` seconds that ended and has none yet; as far back as the finer points go."""
    last = Point.objects.filter(step=coarse).aggregate(last=Max("at"))["last"]
    first = Point.objects.filter(step=fine).order_by("at").values_list("at", flat=True).first()
    if first is None:
        return
    start = max(_floor(first, coarse), _floor(now - reach, coarse))
    if last is not None:
        start = max(start, last + timedelta(seconds=coarse))
    end = _floor(
        now - timedelta(seconds=5 if not fine else MINUTE), coarse
    )  # the last look of a minute may still be kept
    while start < end:
        following = start + timedelta(seconds=coarse)
        rows = Point.objects.filter(step=fine, at__gte=start, at__lt=following).order_by()
        means = rows.values("node").annotate(
            used=Avg("used_bytes"),
            total=Max("total_bytes"),
            temp=Max("temp_c"),
            power=Avg("power_w"),
            busy=Avg("busy_pct"),
        )
        made = [
            Point(
                node_id=row["node"],
                step=coarse,
                at=start,
                used_bytes=None if row["used"] is None else int(row["used"]),
                total_bytes=row["total"],
                temp_c=row["temp"],
                power_w=row["power"],
                busy_pct=row["busy"],
            )
            for row in means
        ]
        Point.objects.bulk_create(made, ignore_conflicts=True)
        start = following


def _floor(at: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def points(node: Node, span: str, now: datetime | None = None) -> list[Point]:
    """Of the last hour, day or month, the oldest first."""
    step, reach = SPANS[span]
    moment = now or timezone.now()
    return list(Point.objects.filter(node=node, step=step, at__gte=moment - reach).order_by("at")[:MOST_LOOKS])


def marks(node: Node, span: str, now: datetime | None = None) -> QuerySet[Mark]:
    moment = now or timezone.now()
    return Mark.objects.filter(node=node, at__gte=moment - SPANS[span][1]).order_by("at", "pk")[:MOST_MARKS]


def gaps(found: Sequence[Point], span: str, period_s: float) -> list[Gap]:
    """Where more than two points in a row are missing."""
    allowed = _allowed(span, period_s)
    times = [one.at.timestamp() for one in found]
    return [Gap(a, b) for a, b in pairwise(times) if b - a > allowed]


def last_gap(found: Sequence[Point], span: str, period_s: float, now: float) -> list[Gap]:
    """From the last point to now (unix seconds), where that is too long ago; a point of a mean stands at its beginning."""
    if not found:
        return []
    last = found[-1].at.timestamp() + SPANS[span][0]
    return [Gap(last, now)] if now - last > _allowed(span, period_s) else []


def _allowed(span: str, period_s: float) -> float:
    step = SPANS[span][0]
    return 2.5 * step if step else 2.5 * max(period_s, 1.0) + 10.0
