"""The lines of a copy: `@copy DONE TOTAL RATE` in bytes and bytes a second; the rest is for people."""

from __future__ import annotations

import re

from apps.diagnosis.reading import Progress, Reading

_LINE = re.compile(rb"@copy (?P<done>\d{1,16}) (?P<total>\d{1,16}) (?P<rate>\d{1,16})")
LONGEST = 1 << 12  # bytes of a line that is still waited for


class Reader:
    """Keeps the newest figures; the share never falls."""

    def __init__(self) -> None:
        self._rest = b""
        self._progress: Progress | None = None

    def feed(self, data: bytes) -> None:
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LONGEST]
        for line in whole:
            found = _LINE.fullmatch(line.strip())
            if found is not None:
                self._take(int(found["done"]), int(found["total"]), int(found["rate"]))

    def close(self) -> None:
        if self._rest:
            self.feed(b"\n")

    def reading(self) -> Reading:
        return Reading("copy", progress=self._progress)

    def _take(self, done: int, total: int, rate: int) -> None:
        share = min(1.0, done / total) if total else 1.0
        before = self._progress.overall if self._progress else 0.0
        left = round((total - done) / rate) if rate and total >= done else None
        self._progress = Progress(
            "copying", max(before, share), done, total, "bytes", None, {"rate": rate, "seconds_left": left}
        )
