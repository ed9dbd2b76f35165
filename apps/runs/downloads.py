"""A log as a file over HTTP: streamed, never whole in memory, with Range so that a broken download goes on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from itertools import islice

from channels.db import database_sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from apps.runs.lines import Download
from apps.runs.models import Run

RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
AT_A_TIME = 4  # chunks, some 32 KiB each


def response(request: HttpRequest, found: Download, name: str) -> HttpResponseBase:
    """200 with all of it, 206 with the asked range, 416 when there is no such range."""
    start, stop, status = 0, found.size, 200
    asked = _range(request, found)
    if asked is not None:
        start, stop, status = asked[0], asked[1], 206
        if start >= stop:
            refused = HttpResponse(status=416)
            refused["Content-Range"] = f"bytes */{found.size}"
            return refused
    pieces = found.read(start, stop)
    body = _from_thread(pieces) if isinstance(request, ASGIRequest) else pieces
    made = StreamingHttpResponse(body, status=status, content_type="text/plain; charset=utf-8")
    made["Content-Disposition"] = f'attachment; filename="{name}"'
    made["Content-Length"] = str(stop - start)
    made["Accept-Ranges"] = "bytes"
    made["ETag"] = found.tag
    if status == 206:
        made["Content-Range"] = f"bytes {start}-{stop - 1}/{found.size}"
    return made


def name_of(run: Run, step: str = "") -> str:
    """Of the file: `run-7.log`, `run-7-serve.engine.spark-1.log`."""
    return f"run-{run.pk}{'-' + re.sub(r'[^A-Za-z0-9._-]', '-', step) if step else ''}.log"


def _range(request: HttpRequest, found: Download) -> tuple[int, int] | None:
    """From and before which byte; None for all of it. A range of something that has changed since is not given (If-Range)."""
    match = RANGE.fullmatch(request.headers.get("Range", "").strip())
    wanted = request.headers.get("If-Range")
    if match is None or (wanted is not None and wanted.strip() != found.tag) or not (match[1] or match[2]):
        return None
    if not match[1]:
        return max(0, found.size - int(match[2])), found.size
    return int(match[1]), min(found.size, int(match[2]) + 1) if match[2] else found.size


async def _from_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same for an ASGI server, which would collect an ordinary iterator whole before it sends the first byte."""

    def some() -> list[bytes]:
        return list(islice(pieces, AT_A_TIME))

    while read := await database_sync_to_async(some)():
        yield b"".join(read)
