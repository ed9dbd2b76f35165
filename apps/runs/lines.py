"""Reading a run's output back: numbered lines after a cursor, search, download. The live socket and HTTP use the same function."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models.functions import Length

from apps.plan.spec import Spec
from apps.plan.together import bases, services_of
from apps.runs import limits
from apps.runs.chunking import lines_of
from apps.runs.models import Chunk, Run, Stream

PREFIX = re.compile(r"\([A-Za-z]\w* [^()]*pid=\d+[^()]*\)")
ADDRESS = re.compile(r"\bip=([0-9a-fA-F.:]+)")
TENSOR_RANK = re.compile(r"_TP(\d+)")
MOST_LINES = 5000
MOST_BYTES = 4 << 20  # of one read, about: lines can be long
FIRST_READ, MOST_READ = 2, 32  # chunks, some 32 KiB each; a read that needs more doubles
SEARCH_S = 4.0
MOST_CONTEXT = 20


class Ranks:
    """Which rank printed a line. Under Ray the driver's log on the head carries the lines of all ranks, each with a prefix."""

    def __init__(self, run: Run) -> None:
        gates = [step.get("gate", {}) for stage in run.plan.get("stages", []) for step in stage["steps"]]
        addresses: list[str] = next(
            (gate["addresses"] for gate in gates if gate.get("name") == "ray_nodes" and gate.get("addresses")), []
        )
        self.by_address = {address: rank for rank, address in enumerate(addresses)}
        self.bases = _bases(run)

    def of(self, text: str, otherwise: int | None, step: str = "") -> int | None:
        """By the innermost prefix: Ray's address of another node, or the tensor rank in a worker's name. `step`: the key of the
        step whose output it is, because a service's own log counts its ranks from 0."""
        found = otherwise
        if "pid=" not in text[:200]:
            return found
        for prefix in PREFIX.finditer(text[:200]):
            address, tensor = ADDRESS.search(prefix[0]), TENSOR_RANK.search(prefix[0])
            if address is not None and address[1] in self.by_address:
                found = self.by_address[address[1]]
            elif tensor is not None:
                found = int(tensor[1]) + self.bases.get(step, 0)
        return found


def _bases(run: Run) -> dict[str, int]:
    """Key of a further service's step -> number of its first rank."""
    body = run.plan.get("spec") or {}
    if not body.get("services"):
        return {}
    first = bases(Spec.from_json(body))
    return {key: first.get(service, 0) for key, service in services_of(run.plan).items()}


def _rows(chunk: Chunk, ranks: Ranks) -> list[dict[str, Any]]:
    """The lines of a chunk with what the API and the socket say of each. The first one behind a gap says what is missing."""
    stream, owner = chunk.stream, chunk.stream.rank
    node, name, step, at = stream.node, stream.name, stream.step.key, chunk.time.isoformat()
    after_gap = bool(stream.gap_end) and chunk.offset == stream.gap_end
    rows = []
    for n, line in enumerate(lines_of(bytes(chunk.data), chunk.continues), chunk.first_line):
        # A bar is redrawn behind a prefix that was printed once: it belongs to whoever the line before it belonged to.
        if not line.redraw:
            owner = stream.rank if stream.rank is None else ranks.of(line.text, stream.rank, step)
        rows.append(
            {
                "n": n,
                "time": at,
                "node": node,
                "rank": owner,
                "step": step,
                "stream": name,
                "text": line.text,
                "redraw": line.redraw,
                "continued": line.continued and not after_gap,
            }
        )
    if after_gap and rows:
        rows[0]["gap"] = {"bytes": stream.gap_bytes, "lines": stream.gap_lines}
    return rows


def _chunks(run: Run, *, rank: int | None, step: str | None) -> Any:
    found = (
        Chunk.objects.filter(run=run, line_count__gt=0).select_related("stream", "stream__step").order_by("first_line")
    )
    if rank is not None:
        found = found.filter(stream__rank__isnull=False)  # which of them are this rank's, the lines themselves tell
    if step is not None:
        found = found.filter(stream__step__key=step)
    return found


def _forwards(chunks: Any, after: int) -> Iterator[Chunk]:
    """The chunks with lines above `after`, read a few at a time: few readers want all of them."""
    # The chunk that holds `after` may begin at or before it and reach past it.
    holding = chunks.filter(first_line__lte=after).order_by("-first_line").values_list("first_line", flat=True).first()
    start, size = (holding or 0), FIRST_READ
    while True:
        found = list(chunks.filter(first_line__gte=start)[:size])
        yield from found
        if len(found) < size:
            return
        start, size = found[-1].first_line + 1, min(size * 2, MOST_READ)


def lines(
    run: Run,
    *,
    after: int = 0,
    limit: int = 1000,
    rank: int | None = None,
    step: str | None = None,
    before: int | None = None,
) -> dict[str, Any]:
    """Up to `limit` lines with numbers above `after`, or the last `limit` below `before`. `next` is the cursor to pass as `after`;
    `ended` says that the run is over and no line stored so far comes after it, `serving` that its engine may still print."""
    limit = max(1, min(limit, MOST_LINES))
    over, serving = run.ended, still_printing(run)
    if before is not None:
        found = _backwards(run, before, limit, rank, step)
        last = max(min(before - 1, stored_lines(run)), found[-1]["n"] if found else 0)
        return {"lines": found, "next": last, "more": False, "ended": over, "serving": serving}
    found, ranks, seen, size = [], Ranks(run), after, 0
    for chunk in _forwards(_chunks(run, rank=rank, step=step), after):
        rows = _rows(chunk, ranks)
        seen = rows[-1]["n"] if rows else seen
        found.extend(row for row in rows if row["n"] > after and rank in (None, row["rank"]))
        size += chunk.length
        if len(found) > limit or size > MOST_BYTES:
            break
    more = len(found) > limit or size > MOST_BYTES
    # Past the lines of other ranks too, which nobody reads twice.
    following = found[limit - 1]["n"] if len(found) > limit else max(seen, after)
    return {
        "lines": found[:limit],
        "next": following,
        "more": more,
        "ended": over and not more,
        "serving": serving,
    }


def _backwards(run: Run, before: int, limit: int, rank: int | None, step: str | None) -> list[dict[str, Any]]:
    parts: list[list[dict[str, Any]]] = []
    ranks, count, read, below, size = Ranks(run), 0, 0, before, FIRST_READ
    chunks = _chunks(run, rank=rank, step=step).order_by("-first_line")
    while count < limit:
        found = list(chunks.filter(first_line__lt=below)[:size])
        for chunk in found:
            rows = [row for row in _rows(chunk, ranks) if row["n"] < before and rank in (None, row["rank"])]
            parts.append(rows)
            count, read = count + len(rows), read + chunk.length
            if count >= limit or (count and read > MOST_BYTES):
                break
        if len(found) < size or (count and read > MOST_BYTES):
            break
        below, size = found[-1].first_line, min(size * 2, MOST_READ)
    return [row for rows in reversed(parts) for row in rows][-limit:]


def still_printing(run: Run) -> bool:
    """Whether the engine that this run started serves on and its log is followed."""
    if run.state != Run.State.SUCCEEDED or run.story not in ("launch", "relaunch"):
        return False
    return run.streams.filter(name="output", ended=False, step__kind="serve", step__job_id__gt="").exists()


def tail_cursor(run: Run, *, lines_back: int) -> int:
    """The cursor after which about the last `lines_back` lines come."""
    return max(0, run.next_line - 1 - lines_back)


# Search


@dataclass(frozen=True)
class Found:
    """`next`: where to go on with `after` when there may be more; None when everything was looked through."""

    lines: list[dict[str, Any]]
    next: int | None


def search(
    run: Run,
    text: str,
    *,
    limit: int = 200,
    after: int = 0,
    context: int = 0,
    rank: int | None = None,
    step: str | None = None,
    within_s: float = SEARCH_S,
) -> Found:
    """Lines that contain `text`, without regard to case, with numbers above `after`; each with up to `context` lines of the same
    output `before` and `following` it. Stops after `limit` lines or `within_s` seconds and says where."""
    wanted, until = text.casefold(), time.monotonic() + within_s
    context = max(0, min(context, MOST_CONTEXT))
    found: list[dict[str, Any]] = []
    if not wanted:
        return Found(found, None)
    ranks, seen = Ranks(run), after
    for chunk in _forwards(_chunks(run, rank=rank, step=step), after):
        if seen > after and time.monotonic() > until:
            return Found(found, seen)
        seen = chunk.first_line + chunk.line_count - 1
        if wanted not in bytes(chunk.data).decode("utf-8", "replace").casefold():
            continue
        rows = _rows(chunk, ranks)
        for place, row in enumerate(rows):
            if row["n"] > after and rank in (None, row["rank"]) and wanted in row["text"].casefold():
                if len(found) >= limit:
                    return Found(found, found[-1]["n"])
                around = _around(chunk, rows, place, context, ranks) if context else {}
                found.append({**row, **around})
    return Found(found, None)


def _around(
    chunk: Chunk, rows: list[dict[str, Any]], place: int, context: int, ranks: Ranks
) -> dict[str, list[dict[str, Any]]]:
    before, following = rows[max(0, place - context) : place], rows[place + 1 : place + 1 + context]
    same = Chunk.objects.filter(stream=chunk.stream_id, line_count__gt=0).select_related("stream", "stream__step")
    if len(before) < context:
        earlier = same.filter(offset__lt=chunk.offset).order_by("-offset").first()
        if earlier is not None:
            before = [*_rows(earlier, ranks)[len(before) - context :], *before]
    if len(following) < context:
        later = same.filter(offset__gt=chunk.offset).order_by("offset").first()
        if later is not None:
            following = [*following, *_rows(later, ranks)[: context - len(following)]]
    return {"before": before, "following": following}


# Download


@dataclass(frozen=True)
class Part:
    """A part of a download: a stored chunk, or with `pk` 0 the mark of what is not kept."""

    pk: int
    length: int
    text: bytes = b""


class Download:
    """The masked bytes as they were: of one step's output in the order of its file, or of all streams in the order of storing.
    Where lines are not kept a line of ours says so. `size` in bytes; `tag` changes when bytes before the end did."""

    def __init__(self, run: Run, *, step: str | None = None, stream: str = "output") -> None:
        streams = run.streams.all() if step is None else run.streams.filter(step__key=step, name=stream)
        self._streams = list(streams.select_related("step"))
        chunks = Chunk.objects.filter(run=run)
        if step is not None:
            chunks = chunks.filter(stream__in=self._streams).order_by("offset")
        else:
            chunks = chunks.order_by("seq")
        marks = {(one.pk, one.gap_end): _mark(one) for one in self._streams if one.gap_end}
        self.parts: list[Part] = []
        rows = chunks.annotate(size=Length("data")).values_list("pk", "stream", "offset", "size")
        for pk, owner, offset, size in rows.iterator(chunk_size=2000):
            mark = marks.pop((owner, offset), None)
            if mark:
                self.parts.append(Part(0, len(mark), mark))
            self.parts.append(Part(pk, size))
        self.size = sum(part.length for part in self.parts)
        first = self.parts[0].pk if self.parts else 0
        gaps = "-".join(f"{one.pk}.{one.gap_end}" for one in self._streams if one.gap_end)
        self.tag = f'"{run.pk}-{step or "all"}-{first}-{gaps}"'.encode("ascii", "replace").decode().replace(" ", "")

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to before `stop`, a chunk at a time. A chunk that was taken away meanwhile reads as NULs, so that
        the length stays what was promised."""
        stop, at = self.size if stop is None else stop, 0
        for part in self.parts:
            if at >= stop:
                return
            end = at + part.length
            if end > start:
                yield self._bytes(part)[max(0, start - at) : stop - at]
            at = end

    def _bytes(self, part: Part) -> bytes:
        if part.text:
            return part.text
        data = Chunk.objects.filter(pk=part.pk).values_list("data", flat=True).first()
        return bytes(part.length) if data is None else bytes(data)


def _mark(stream: Stream) -> bytes:
    return f"[sparkweb: {gap_words(stream.gap_lines, stream.gap_bytes)}]\n".encode()


def gap_words(lines: int, size: int) -> str:
    return f"{lines:,} lines ({size:,} bytes) of this output are not kept; the job was not affected"


def download(run: Run, *, step: str | None = None, stream: str = "output") -> Iterator[bytes]:
    """All of a Download."""
    return Download(run, step=step, stream=stream).read()


def stored_lines(run: Run) -> int:
    """How many lines there have been; the number of the newest."""
    return run.next_line - 1


@dataclass(frozen=True)
class Kept:
    """What is not in a log: outputs whose middle is not kept, and outputs whose file on the node something befell."""

    gaps: tuple[Stream, ...]
    marks: tuple[tuple[Stream, tuple[str, ...]], ...]


def kept(run: Run) -> Kept:
    streams = list(run.streams.select_related("step"))
    said = [(one, tuple(dict.fromkeys(limits.MARKS.get(mark["what"], "") for mark in one.marks))) for one in streams]
    return Kept(tuple(one for one in streams if one.gap_end), tuple(one for one in said if one[1]))
