"""How much of an output is kept, and for how long: the first and the last of it with a mark between, for so many days.

A job never waits for its log and never fails for its length.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Sum
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import robot
from apps.runs.models import Chunk, Run, Stream

log = logging.getLogger(__name__)
RETENTION = robot("retention")
BATCH = 500  # chunks of one transaction
SLACK = 16  # a part of the tail by which it may grow before its beginning is taken away
MARKS = {
    "log_lost": "the disk there is full, so a part of the output could not be written and is lost",
    "log_capped": "the file there has reached its largest size, so what came later was not written",
    "log_shrunk": "somebody emptied or replaced the file there; what had not been read by then is lost",
    "log_gone": "the file there is gone, so nothing more of it can be read",
}


def trim(stream: Stream) -> None:
    """Inside of the transaction that stored more: take away what lies between the first LOG_HEAD_BYTES and the last
    LOG_TAIL_BYTES (raw). Both are kept whole; a piece more is where their borders do not lie between two pieces."""
    head, tail = settings.LOG_HEAD_BYTES, settings.LOG_TAIL_BYTES
    kept_from = stream.gap_end or head
    slack = 0 if stream.ended else tail // SLACK
    if stream.offset - kept_from <= tail + slack:
        return
    start = stream.gap_end or _border(stream, head, after=True)
    end = _border(stream, stream.offset - tail)
    if end <= start:
        return
    gone = stream.chunks.filter(offset__gte=start, offset__lt=end)
    lines = gone.aggregate(lines=Sum("line_count"))["lines"] or 0
    gone.delete()
    stream.gap_start = stream.gap_start if stream.gap_end else start
    stream.gap_end = end
    stream.gap_lines += lines


def _border(stream: Stream, offset: int, *, after: bool = False) -> int:
    """The border of two pieces at `offset` or, where that lies within a piece, the one before it, or `after` it."""
    found = stream.chunks.filter(offset__lte=offset).order_by("-offset").values_list("offset", "length").first()
    if found is None:
        return 0
    start, length = found
    return start + length if after and start < offset else start


def forget(*, within_s: float = 60.0) -> int:
    """Take away lines that are older than LOG_KEPT_DAYS of runs that ended before, in batches. Runs, steps and the audit trail
    stay. Returns how many pieces went; 0 days keep everything."""
    days = settings.LOG_KEPT_DAYS
    if not days:
        return 0
    until, cutoff, removed = time.monotonic() + within_s, timezone.now() - timedelta(days=days), 0
    old = Chunk.objects.filter(run=OuterRef("pk"), time__lt=cutoff)
    for run in Run.objects.filter(Exists(old), ended_at__lt=cutoff).order_by("pk"):
        removed += _forget_of(run, cutoff, days, until)
        if time.monotonic() > until:
            break
    return removed


def _forget_of(run: Run, cutoff: Any, days: int, until: float) -> int:
    removed = 0
    first = run.log_removed_at is None
    while time.monotonic() < until or not removed:
        with transaction.atomic():
            oldest = list(
                Chunk.objects.filter(run=run, time__lt=cutoff).order_by("seq").values_list("pk", flat=True)[:BATCH]
            )
            if not oldest:
                break
            Chunk.objects.filter(pk__in=oldest).delete()
            Run.objects.filter(pk=run.pk).update(log_removed_at=timezone.now(), log_kept_days=days)
            if first and not removed:
                record(
                    RETENTION,
                    "run:log_removed",
                    object_type="run",
                    object_id=str(run.pk),
                    object_name=f"run {run.pk}",
                    outcome="done",
                    reason=f"the retention of {days} days",
                    run=run.pk,
                )
        removed += len(oldest)
    return removed
