"""A node's history for its page: two pictures, what they show in words, and what happened."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django.conf import settings
from django.utils import timezone
from django.utils.safestring import SafeString

from apps.diagnosis.reasons import REASONS
from apps.inventory.models import Node
from apps.pages.charts import GIB, Sample, Sign, over_time
from apps.watch import history
from apps.watch.models import Mark, Point

SPANS = {"hour": "1 h", "day": "24 h", "month": "30 days"}
COLD, HOT = 20.0, 100.0  # °C; between them is what GPUs do
TONES = {"rebooted": "warn", "unreachable": "off", "reachable": "ok", "lost": "warn", "degraded": "warn"}
WORDS = {"rebooted": "Rebooted", "unreachable": "Not reached", "reachable": "Reached again"}
MOST_MARKS = 30  # listed; all are drawn


@dataclass(frozen=True)
class Figure:
    name: str
    unit: str
    lowest: float
    highest: float
    latest: float
    picture: SafeString
    top: str
    bottom: str


@dataclass(frozen=True)
class Happened:
    at: datetime
    tone: str
    word: str
    text: str


@dataclass(frozen=True)
class History:
    span: str
    spans: tuple[tuple[str, str], ...]
    figures: tuple[Figure, ...]
    times: tuple[datetime, ...]  # beneath the pictures, evenly spread
    happened: tuple[Happened, ...]
    gaps: int


def history_of(node: Node, span: str) -> History:
    """`span`: hour, day or month; anything else is the hour."""
    span = span if span in SPANS else "hour"
    now = timezone.now()
    found = history.points(node, span, now)
    marks = list(history.marks(node, span, now))
    reach = history.SPANS[span][1]
    start, end = (now - reach).timestamp(), now.timestamp()
    gaps = [(one.start, one.end) for one in history.gaps(found, span, settings.WATCH_PERIOD_S)]
    gaps += [(one.start, one.end) for one in history.last_gap(found, span, settings.WATCH_PERIOD_S, end)]
    signs = [
        Sign(one.at.timestamp(), TONES.get(one.kind, "off"), _words(one)) for one in marks if one.kind != "reachable"
    ]
    figures = [one for one in (_memory(found), _temperature(found)) if one is not None]
    return History(
        span=span,
        spans=tuple(SPANS.items()),
        figures=tuple(
            _drawn(name, unit, samples, low, high, start, end, gaps, signs)
            for name, unit, samples, low, high in figures
        ),
        times=tuple(datetime.fromtimestamp(start + (end - start) * part / 4, UTC) for part in range(5)),
        happened=tuple(
            Happened(one.at, TONES.get(one.kind, "off"), WORDS.get(one.kind, one.kind.capitalize()), _text(one))
            for one in reversed(marks[-MOST_MARKS:])
        ),
        gaps=len(gaps),
    )


def _words(mark: Mark) -> str:
    text = _text(mark)
    return f"{WORDS.get(mark.kind, mark.kind)} {mark.at:%Y-%m-%d %H:%M} UTC{': ' if text else ''}{text}"


def _text(mark: Mark) -> str:
    """Why a node was not reached is kept as a reason of the table."""
    reason = REASONS.get(mark.text) if mark.kind == "unreachable" else None
    return reason.title if reason else mark.text


def _memory(found: list[Point]) -> tuple[str, str, list[Sample], float, float] | None:
    samples = [Sample(one.at.timestamp(), one.used_bytes / GIB) for one in found if one.used_bytes is not None]
    total = max((one.total_bytes or 0 for one in found), default=0) / GIB
    return ("Memory in use", "GiB", samples, 0.0, total or max(one.value for one in samples)) if samples else None


def _temperature(found: list[Point]) -> tuple[str, str, list[Sample], float, float] | None:
    samples = [Sample(one.at.timestamp(), one.temp_c) for one in found if one.temp_c is not None]
    return ("Temperature", "°C", samples, COLD, HOT) if samples else None


def _drawn(
    name: str,
    unit: str,
    samples: list[Sample],
    low: float,
    high: float,
    start: float,
    end: float,
    gaps: list[tuple[float, float]],
    signs: list[Sign],
) -> Figure:
    values = [one.value for one in samples]
    lowest, highest, latest = min(values), max(values), values[-1]
    label = f"{name}: {lowest:.0f} to {highest:.0f} {unit}, {latest:.0f} {unit} at last"
    picture = over_time(
        samples, start=start, end=end, low=low, high=high, gaps=gaps, signs=signs, label=label, filled=low == 0.0
    )
    return Figure(name, unit, lowest, highest, latest, picture, f"{high:.0f} {unit}", f"{low:.0f}")
