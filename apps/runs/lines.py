"""Reading a run's output back: numbered lines after a cursor, search, download. The live socket and HTTP use the same function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from apps.runs.chunking import lines_of
from apps.runs.models import Chunk, Run

PREFIX = re.compile(r"\([A-Za-z]\w* [^()]*pid=\d+[^()]*\)")
ADDRESS = re.compile(r"\bip=([0-9a-fA-F.:]+)")
TENSOR_RANK = re.compile(r"_TP(\d+)")
MOST_LINES = 5000
CHUNKS_A_READ = 64


class Ranks:
    """Which rank printed a line. Under Ray the driver's log on the head carries the lines of all ranks, each with a prefix."""

    def __init__(self, run: Run) -> None:
        gates = [step.get("gate", {}) for stage in run.plan.get("stages", []) for step in stage["steps"]]
        addresses: list[str] = next(
            (gate["addresses"] for gate in gates if gate.get("name") == "ray_nodes" and gate.get("addresses")), []
        )
        self.by_address = {address: rank for rank, address in enumerate(addresses)}

    def of(self, text: str, otherwise: int | None) -> int | None:
        """By the innermost prefix: Ray's address of another node, or the tensor rank in a worker's name."""
        found = otherwise
        for prefix in PREFIX.finditer(text[:200]):
            address, tensor = ADDRESS.search(prefix[0]), TENSOR_RANK.search(prefix[0])
            if address is not None and address[1] in self.by_address:
                found = self.by_address[address[1]]
            elif tensor is not None:
                found = int(tensor[1])
        return found


def _rows(chunk: Chunk, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """The lines of a chunk with what the API and the socket say of each."""
    stream, owner = chunk.stream, chunk.stream.rank
    for place, line in enumerate(lines_of(bytes(chunk.data), chunk.continues)):
        # A bar is redrawn behind a prefix that was printed once: it belongs to whoever the line before it belonged to.
        if not line.redraw:
            owner = stream.rank if stream.rank is None else ranks.of(line.text, stream.rank)
        yield {
            "n": chunk.first_line + place,
            "time": chunk.time.isoformat(),
            "node": stream.node,
            "rank": owner,
            "step": stream.step.key,
            "stream": stream.name,
            "text": line.text,
            "redraw": line.redraw,
            "continued": line.continued,
        }


def _chunks(run: Run, *, rank: int | None, step: str | None) -> Any:
    found = (
        Chunk.objects.filter(run=run, line_count__gt=0).select_related("stream", "stream__step").order_by("first_line")
    )
    if rank is not None:
        found = found.filter(stream__rank__isnull=False)  # which of them are this rank's, the lines themselves tell
    if step is not None:
        found = found.filter(stream__step__key=step)
    return found


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
    `ended` says that no more will come after it."""
    limit = max(1, min(limit, MOST_LINES))
    over = run.ended
    if before is not None:
        return {"lines": _backwards(run, before, limit, rank, step), "next": before - 1, "ended": over}
    found: list[dict[str, Any]] = []
    ranks = Ranks(run)
    # The chunk that holds `after` may begin at or before it and reach past it.
    holding = _chunks(run, rank=rank, step=step).filter(first_line__lte=after).order_by("-first_line").first()
    start = holding.first_line if holding is not None and after > 0 else 0
    for chunk in _chunks(run, rank=rank, step=step).filter(first_line__gte=start).iterator(chunk_size=CHUNKS_A_READ):
        found.extend(row for row in _rows(chunk, ranks) if row["n"] > after and rank in (None, row["rank"]))
        if len(found) > limit:
            break
    more = len(found) > limit
    found = found[:limit]
    return {"lines": found, "next": found[-1]["n"] if found else after, "ended": over and not more}


def _backwards(run: Run, before: int, limit: int, rank: int | None, step: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    ranks = Ranks(run)
    for chunk in (
        _chunks(run, rank=rank, step=step).filter(first_line__lt=before).order_by("-first_line").iterator(chunk_size=8)
    ):
        found = [row for row in _rows(chunk, ranks) if row["n"] < before and rank in (None, row["rank"])] + found
        if len(found) >= limit:
            break
    return found[-limit:]


def tail_cursor(run: Run, *, lines_back: int) -> int:
    """The cursor after which about the last `lines_back` lines come."""
    return max(0, run.next_line - 1 - lines_back)


def search(run: Run, text: str, *, limit: int = 200, after: int = 0) -> list[dict[str, Any]]:
    """Lines that contain `text`, without regard to case, over the whole log."""
    wanted = text.casefold()
    found: list[dict[str, Any]] = []
    if not wanted:
        return found
    ranks = Ranks(run)
    for chunk in (
        _chunks(run, rank=None, step=None)
        .filter(first_line__gt=max(0, after - MOST_LINES))
        .iterator(chunk_size=CHUNKS_A_READ)
    ):
        if wanted not in bytes(chunk.data).decode("utf-8", "replace").casefold():
            continue
        for row in _rows(chunk, ranks):
            if row["n"] > after and wanted in row["text"].casefold():
                found.append(row)
                if len(found) >= limit:
                    return found
    return found


def download(run: Run, *, step: str | None = None, stream: str = "output") -> Iterator[bytes]:
    """The masked bytes as they were: of one step's output in the order of its file, or of all streams in the order of storing."""
    if step is not None:
        chunks = Chunk.objects.filter(run=run, stream__step__key=step, stream__name=stream).order_by("offset")
    else:
        chunks = Chunk.objects.filter(run=run).order_by("seq")
    for data in chunks.values_list("data", flat=True).iterator(chunk_size=CHUNKS_A_READ):
        yield bytes(data)


def stored_lines(run: Run) -> int:
    return run.next_line - 1
