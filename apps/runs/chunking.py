"""Raw bytes of a job's output -> masked pieces that can be stored on their own. Pure; the same for any chunking.

A line ends with \\n, \\r\\n or \\r (progress bars redraw with \\r). A piece is cut after a line's end, never inside of a secret; a line of
more than 64 KiB is cut in between and goes on in the next piece. A progress bar that waits for its next redraw is flushed too, and
what follows is its continuation; any other unfinished line waits for its end, because the second half of a secret may still come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from apps.diagnosis.masking import Masker, whole_characters

PIECE = 32 * 1024  # bytes; larger pieces come only where a line or a private key block is longer
UNCLEAN = 4 * 1024 * 1024  # bytes; a block of masked lines that is longer than this is cut in the middle
LONG_LINE = 16 * 1024  # bytes; a longer one is no progress bar
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


def count_lines(data: bytes, continues: bool) -> int:
    """len(lines_of(data, continues)), without making them."""
    if not data:
        return 0
    count = data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") + (data[-1:] not in (b"\n", b"\r"))
    return count - (continues and data[:1] in (b"\n", b"\r"))


class Chunker:
    """Holds the bytes of one stream that were read and are not stored yet. Linear in what it is fed."""

    def __init__(self, *, secrets: Sequence[bytes] = (), offset: int = 0, open_line: bool = False) -> None:
        self.offset, self.open_line = offset, open_line
        self.buffer = b""
        self._masker = Masker(secrets)  # never fed: pieces are masked by fresh ones

    @property
    def position(self) -> int:
        """Raw offset of the next byte wanted from the source."""
        return self.offset + len(self.buffer)

    def feed(self, data: bytes) -> None:
        self.buffer += data

    def cut(self, *, idle: bool = False, ended: bool = False) -> list[Piece]:
        """Pieces that may be stored now. `idle`: nothing came for a while; `ended`: nothing will come."""
        pieces, at = [], 0
        while at < len(self.buffer):
            length, data = self._next(at, idle=idle, ended=ended)
            if length == 0:
                break
            pieces.append(Piece(self.offset, length, data, self.open_line, count_lines(data, self.open_line)))
            self.open_line = ends_open(data, self.open_line)
            self.offset += length
            at += length
        self.buffer = self.buffer[at:]
        return pieces

    def _next(self, at: int, *, idle: bool, ended: bool) -> tuple[int, bytes]:
        """Length and masked bytes of the next piece. It ends where what follows may be masked on its own; only where no such
        place comes for UNCLEAN bytes does it end elsewhere, and the masker remembers within what."""
        size, left = PIECE, len(self.buffer) - at
        while True:
            window = self.buffer[at : at + size]
            masker = self._masker.fresh()
            given = masker.feed(window)
            if ended and size >= left:
                return left, given + masker.finish()
            if masker.clean_at:
                whole = masker.clean_at == masker.consumed
                return masker.clean_at, given if whole else self._masked(window[: masker.clean_at])
            if size >= UNCLEAN and masker.consumed:
                self._masker = masker.fresh()
                return masker.consumed, given
            if size >= left:
                return self._waiting(window, masker) if idle else (0, b"")
            size *= 2

    def _masked(self, data: bytes) -> bytes:
        masker = self._masker.fresh()
        return masker.feed(data) + masker.finish()

    def _waiting(self, line: bytes, masker: Masker) -> tuple[int, bytes]:
        """An unfinished line that may go: its redraw may be long in coming. (0, b"") for any other."""
        closed = line.endswith(b"\r") and not ENDS.search(line[:-1]) and masker.may_end_here()
        if not closed and not (len(line) < LONG_LINE and BAR.search(line)):
            return 0, b""
        if self._masked(line) != line:
            return 0, b""
        length = len(line) if closed else whole_characters(line)
        return length, line[:length]
