"""The lines of a fetch: `@fetch DONE TOTAL FILES OF RATE | DONE SIZE PATH | …` in bytes and bytes a second; the rest is for people."""

from __future__ import annotations

import re
from typing import Any

from apps.diagnosis.reading import Progress, Reading

_LINE = re.compile(
    rb"^@fetch (?P<done>\d{1,16}) (?P<total>\d{1,16}) (?P<files>\d{1,9}) (?P<all>\d{1,9}) (?P<rate>\d{1,16})(?P<parts> .*)?$"
)
_PART = re.compile(r"(?P<done>\d{1,16}) (?P<size>\d{1,16}) (?P<path>.+)")
LONGEST = 1 << 16  # bytes of a line that is still waited for
MOST_FILES = 8


class Reader:
    """Keeps the newest figures; the share never falls."""

    def __init__(self) -> None:
        self._rest = b""
        self._progress: Progress | None = None

    def feed(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[:LONGEST]
        for line in whole:
            if line.startswith(b"@fetch "):
                self._take(line)

    def close(self) -> None:
        if self._rest:
            self.feed(b"\n")

    def reading(self) -> Reading:
        return Reading("fetch", progress=self._progress)

    def _take(self, line: bytes) -> None:
        found = _LINE.match(line)
        if found is None:
            return
        done, total, files, all_files, rate = (int(found[name]) for name in ("done", "total", "files", "all", "rate"))
        share = min(1.0, done / total) if total else float(files >= all_files)
        before = self._progress.overall if self._progress else 0.0
        detail = {
            "files_done": files,
            "files": all_files,
            "rate": rate,
            "seconds_left": round((total - done) / rate) if rate and total >= done else None,
            "current": _parts((found["parts"] or b"").decode("utf-8", "replace")),
        }
        self._progress = Progress("fetching", max(before, share), done, total, "bytes", None, detail)


def _parts(text: str) -> list[dict[str, Any]]:
    """The files that are fetched now."""
    made: list[dict[str, Any]] = []
    for part in text.split(" | ")[1:]:
        found = _PART.fullmatch(part.strip())
        if found is not None and len(made) < MOST_FILES:
            made.append({"path": found["path"], "done": int(found["done"]), "size": int(found["size"])})
    return made
