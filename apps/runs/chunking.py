"""Raw bytes of a job's output -> masked pieces that can be stored on their own. Pure; the same for any chunking.

A line ends with \\n, \\r\\n or \\r (progress bars redraw with \\r). A piece is cut after a line's end. A progress bar that waits for
its next redraw is flushed too, and what follows is its continuation; any other unfinished line waits for its end, because the
second half of a secret may still come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from apps.diagnosis.masking import mask, safe_cut

PIECE = 32 * 1024  # bytes; larger pieces are cut at a line's end
LONG_LINE = 16 * 1024  # bytes; a longer line is cut in the middle
ENDS = re.compile(rb"\r\n|\n|\r")
BAR = re.compile(rb"\d+%[^\r\n]*[\])|\s]$|\d+/\d+ [^\r\n]*\]\s*$|\d+%$")


@dataclass(frozen=True)
class Piece:
    offset: int  # of the raw bytes, in the source
    length: int  # raw bytes
    data: bytes  # masked
    continues: bool  # its first bytes belong to the line before
    line_count: int


@dataclass(frozen=True)
class Line:
    text: str
    continued: bool  # the rest of a line whose beginning was stored earlier
    redraw: bool  # began after a bare \\r: it replaces the line before it on a terminal


def lines_of(data: bytes, continues: bool) -> list[Line]:
    """The lines of one stored piece, in order. `continues`: the piece before ended in the middle of a line."""
    found: list[Line] = []
    start, redraw = 0, False
    for end in ENDS.finditer(data):
        first = start == 0
        if not (first and continues and end.start() == 0):
            found.append(_line(data[start : end.start()], first and continues, redraw))
        redraw = end.group() == b"\r"
        start = end.end()
    if start < len(data):
        found.append(_line(data[start:], start == 0 and continues, redraw))
    return found


def _line(raw: bytes, continued: bool, redraw: bool) -> Line:
    return Line(raw.decode("utf-8", "replace").replace("\0", "\ufffd"), continued, redraw)


def ends_open(data: bytes, before: bool) -> bool:
    """Whether the line is still unfinished after this piece; `before` is the answer for an empty piece."""
    return before if not data else data[-1:] not in (b"\n", b"\r")


class Chunker:
    """Holds the bytes of one stream that were read and are not stored yet."""

    def __init__(self, *, secrets: Sequence[bytes] = (), offset: int = 0, open_line: bool = False) -> None:
        self.secrets, self.offset, self.open_line = tuple(secrets), offset, open_line
        self.buffer = b""

    @property
    def position(self) -> int:
        """Raw offset of the next byte wanted from the source."""
        return self.offset + len(self.buffer)

    def feed(self, data: bytes) -> None:
        self.buffer += data

    def cut(self, *, idle: bool = False, ended: bool = False) -> list[Piece]:
        """Pieces that may be stored now. `idle`: nothing came for a while; `ended`: nothing will come."""
        pieces = []
        while self.buffer:
            length = self._next_cut(idle=idle, ended=ended)
            if length == 0:
                break
            raw, self.buffer = self.buffer[:length], self.buffer[length:]
            data = mask(raw, self.secrets)
            pieces.append(Piece(self.offset, length, data, self.open_line, len(lines_of(data, self.open_line))))
            self.open_line = ends_open(data, self.open_line)
            self.offset += length
        return pieces

    def _next_cut(self, *, idle: bool, ended: bool) -> int:
        buffer = self.buffer
        safe = len(buffer) if ended else safe_cut(buffer, self.secrets)
        window = buffer[: min(safe, PIECE)]
        end = max(window.rfind(b"\n"), window.rfind(b"\r")) + 1
        if end and end == len(buffer) and window.endswith(b"\r") and not (ended or idle):
            end = max(window[:-1].rfind(b"\n"), window[:-1].rfind(b"\r")) + 1  # a \n may follow
        if end and end < len(buffer) and buffer[end - 1 : end + 1] == b"\r\n":
            end = (
                end + 1 if end + 1 <= safe else max(window[: end - 1].rfind(b"\n"), window[: end - 1].rfind(b"\r")) + 1
            )
        if end:
            return end
        if ended or len(window) >= LONG_LINE:
            return _whole_characters(window, ended=ended and len(window) == len(buffer))
        if idle and len(buffer) < LONG_LINE and BAR.search(buffer) and mask(buffer, self.secrets) == buffer:
            return _whole_characters(buffer, ended=False)
        return 0


def _whole_characters(data: bytes, *, ended: bool) -> int:
    """The length without a UTF-8 character that is cut at the end."""
    if ended:
        return len(data)
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        wanted = 1 if byte < 0x80 else 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4 if byte >> 3 == 30 else 1
        return len(data) if wanted <= back else len(data) - back
    return len(data)
