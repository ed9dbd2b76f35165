"""One streamed request to an engine through SSH, timed as it comes. No Django."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from apps.diagnosis import api
from apps.remote import tunnel
from apps.remote.transport import HttpFailed

LONGEST_S = 300.0  # of a whole stream
SILENCE_S = 120.0  # between two pieces of one
LARGEST = 4 * 1024 * 1024  # bytes of one


@dataclass(frozen=True)
class Streamed:
    """A streamed answer: its bytes as they came, seconds until the first token (a thought counts) and until the end, and why it
    ended too soon ("" when it did not)."""

    status: int
    body: bytes
    first_token_s: float | None
    seconds: float
    broken: str = ""


def streamed(transport: tunnel.Tunnels, url: str, *, body: bytes, headers: Mapping[str, str]) -> Streamed:
    """POST `body` and read the answer to its end. Raises HttpFailed where no answer began, and RemoteError from SSH."""
    began = time.monotonic()
    reader, data, first, broken = api.StreamReader(), bytearray(), None, ""
    with tunnel.stream(
        transport, "POST", url, body=body, headers=headers, timeout_s=SILENCE_S, idle_s=SILENCE_S
    ) as answer:
        try:
            for piece in answer:
                data += piece
                reader.feed(piece)
                if first is None and reader.speaks:
                    first = time.monotonic() - began
                if len(data) > LARGEST or time.monotonic() - began > LONGEST_S:
                    broken = f"It was still going on after {len(data)} bytes and {time.monotonic() - began:.0f} s."
                    break
        except HttpFailed as problem:
            broken = problem.evidence
    return Streamed(answer.status, bytes(data), first, time.monotonic() - began, broken)
