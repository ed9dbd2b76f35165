"""Explain: what a pasted log or a command's output means. Nothing of it is stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.http import require_http_methods

from apps.diagnosis import explaining
from apps.diagnosis.findings import Finding, findings
from apps.diagnosis.lines import Splitter, clean
from apps.diagnosis.masking import mask, mask_text
from apps.diagnosis.reading import Failure, Milestone, Progress, Reading
from apps.diagnosis.reasons import REASONS
from apps.facts.recognising import Recognised, recognised
from apps.pages.refusing import Error
from apps.people.access import allow

MOST_BYTES = 2 * 1024 * 1024
AROUND = 6  # lines shown before and after the one that proves it
MOST_READINGS = 40
MOST_PAIRS = 80
MOST_ROWS = 200
MOST_MILESTONES = 80
KINDS = {
    "vllm": "vLLM log",
    "sglang": "SGLang log",
    "llamacpp": "llama.cpp log",
    "ray": "Ray",
    "nccl": "NCCL log",
    "rsync": "rsync copy",
    "hf": "Download from the hub",
    "docker-pull": "docker pull",
    "docker": "Docker",
    "ssh": "SSH",
    "api": "Answer of an OpenAI-compatible API",
    "kernel": "Kernel log",
}
_SEPARATOR = re.compile(rb"^---8<---[^\r\n]*(?:\r\n|\r|\n|\Z)", re.MULTILINE)
INNER = frozenset({"confidence", "ready", "cause", "rank"})  # said elsewhere on the page


@dataclass(frozen=True)
class TextLine:
    number: int
    text: str
    proves: bool = False


@dataclass(frozen=True)
class Table:
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Explained:
    """One reading as the page shows it. `tone`: bad, warn, ok, busy, off."""

    title: str
    tone: str
    verdict: str
    failure: Failure | None = None
    sentence: str = ""
    confidence: str = ""
    lines: tuple[TextLine, ...] = ()
    progress: Progress | None = None
    ranks: tuple[tuple[int, Progress], ...] = ()
    milestones: tuple[tuple[Milestone, str], ...] = ()
    more_milestones: int = 0
    warnings: tuple[Mapping[str, Any], ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Source:
    """The lines of what was pasted, masked, to find the one that proves it."""

    lines: tuple[str, ...] = field(default_factory=tuple)

    @classmethod
    def of(cls, data: bytes) -> Source:
        splitter = Splitter()
        raw = [*splitter.feed(mask(data)), *splitter.close()]
        return cls(tuple(clean(line).decode("utf-8", "replace") for line in raw))

    def around(self, failure: Failure) -> tuple[TextLine, ...]:
        """The proof with its neighbours; empty where the numbered line is not the evidence (several inputs, JSON)."""
        number = failure.line_number
        if number is None or not 0 < number <= len(self.lines):
            return ()
        head = failure.evidence[:60].strip()
        if not head or head not in self.lines[number - 1]:
            return ()
        first, last = max(1, number - AROUND), min(len(self.lines), number + AROUND)
        return tuple(
            TextLine(each, self.lines[each - 1][:1200], each == number)
            for each in range(first, last + 1)
            if each == number or self.lines[each - 1].strip()
        )


def explained(data: bytes) -> list[Explained]:
    """Everything that was pasted, in order; at most MOST_READINGS."""
    made: list[Explained] = []
    for piece in _SEPARATOR.split(data)[:MOST_READINGS]:
        if piece.strip():
            made += _piece(piece)
    return made[:MOST_READINGS] or _piece(data)


def _piece(data: bytes) -> list[Explained]:
    """One input: as a log; where no log is known, as the output of a command."""
    source = Source.of(data)
    found = explaining.explain_all(data)
    if all(reading.kind == "unknown" and reading.failure is None for reading in found):
        facts = recognised(data.decode("utf-8", "replace"))
        if facts is not None and facts.fact != "ray":
            return [_facts(facts)]
    return [_log(reading, source) for reading in found]


def _log(reading: Reading, source: Source) -> Explained:
    failure = reading.failure
    unknown = "A command's output" if failure else "Not recognised"
    title = unknown if reading.kind == "unknown" else KINDS.get(reading.kind, reading.kind)
    tone, verdict = _verdict(reading)
    known = REASONS.get(failure.reason) if failure else None
    return Explained(
        title=title,
        tone=tone,
        verdict=verdict,
        failure=failure,
        sentence=known.sentence if known else "",
        confidence=str(failure.values.get("confidence", "")) if failure else "",
        lines=source.around(failure) if failure else (),
        progress=reading.progress
        if reading.progress and (reading.progress.overall or reading.progress.total)
        else None,
        ranks=tuple(sorted(reading.ranks.items())) if len(reading.ranks) > 1 else (),
        milestones=tuple((one, _said(one.values)) for one in reading.milestones[:MOST_MILESTONES]),
        more_milestones=max(0, len(reading.milestones) - MOST_MILESTONES),
        warnings=reading.warnings,
        pairs=tuple(_pairs(reading.facts))[:MOST_PAIRS],
    )


def _verdict(reading: Reading) -> tuple[str, str]:
    if reading.failure is not None:
        return "bad", reading.failure.title
    if reading.ready:
        return "ok", "It works"
    progress = reading.progress
    if progress is not None and progress.overall >= 1:
        return "ok", "Finished"
    if progress is not None and (progress.overall > 0 or progress.total):
        return "busy", f"{progress.phase.capitalize()}, {progress.overall * 100:.0f} %"
    if reading.kind == "unknown":
        return "off", "Nothing in it is known"
    return ("warn", "Only warnings") if reading.warnings else ("off", "Nothing went wrong in it")


def _facts(found: Recognised) -> Explained:
    """A command's output: what it says, and what that means for a deployment."""
    seen = findings({sheet.node: sheet for sheet in found.sheets})
    mine = tuple(one for one in seen if one.name != "unreadable")
    problem = found.value.get("problem") if isinstance(found.value, dict) else None
    known = REASONS.get(str(problem)) if problem else None
    worst = mine[0].severity if mine else ""
    tone = {"bad": "bad", "warn": "warn", "note": "off"}.get(worst, "bad" if problem else "ok")
    tables, rest = _tables(found.value)
    return Explained(
        title=f"Facts: {found.fact.replace('-', ' ')}",
        tone=tone,
        verdict=known.title if known else mine[0].title if mine else "Nothing stands out",
        sentence="" if mine or not known else f"{known.sentence} {known.remedy}",
        findings=mine,
        tables=tables,
        pairs=tuple(_pairs(rest))[:MOST_PAIRS],
    )


def _tables(value: Any, title: str = "") -> tuple[tuple[Table, ...], Any]:
    """Lists of objects as tables, and what is left of the value without them."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        nested = [item for item in value if any(isinstance(part, list | Mapping) for part in item.values() if part)]
        if not nested:
            return (_table(title, value),), None
        found = [_tables(dict(item), f"{title} {place + 1}".strip()) for place, item in enumerate(value)]
        return tuple(one for tables, _ in found for one in tables), [rest for _, rest in found]
    if not isinstance(value, Mapping):
        return (), value
    made: list[Table] = []
    rest: dict[str, Any] = {}
    for name, item in value.items():
        tables, left = _tables(item, f"{title} {_label(name)}".strip())
        if not any(table.rows == one.rows for table in tables for one in made):
            made += tables
        if left is not None:
            rest[str(name)] = left
    return tuple(made), rest


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Columns in which anything is known; aliases of an earlier column are left out."""
    columns: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(str(key) for row in rows for key in row):
        cells = tuple("" if row.get(name) in (None, "", [], {}) else mask_text(_plain(row[name]))[:200] for row in rows)
        if any(cells) and cells not in columns.values():
            columns[name] = cells
    heads = tuple(_label(name) for name in columns)
    return Table(title, heads, tuple(zip(*columns.values(), strict=True))[:MOST_ROWS])


def _pairs(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of all leaves; lists of plain values in one, unknown ones left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not prefix and key in INNER:
                continue
            yield from _pairs(item, f"{prefix} {key}".strip())
    elif isinstance(value, list | tuple):
        plain = [item for item in value if item is not None and not isinstance(item, Mapping | list | tuple)]
        if plain:
            yield from _pairs(", ".join(_plain(item) for item in plain), prefix)
        for place, item in enumerate(value):
            if isinstance(item, Mapping | list | tuple):
                yield from _pairs(item, f"{prefix} {place + 1}".strip())
    elif value is not None and value != "":
        name, said = _measure(prefix or "value", value)
        yield name or prefix, mask_text(said)[:400]


UNITS = {
    "s": "s",
    "gib": "GiB",
    "mib": "MiB",
    "gb": "GB",
    "pct": "%",
    "bytes": "bytes",
    "mbps": "Mbit/s",
    "gbps": "Gb/s",
}


def _measure(name: str, value: Any) -> tuple[str, str]:
    """The unit stands at the end of a name: `load_s` 7.4 is `load`, `7.4 s`."""
    stem, _, unit = name.rpartition("_") if "_" in name else ("", "", name)
    if unit in UNITS and isinstance(value, int | float) and not isinstance(value, bool):
        return _label(stem), f"{_plain(value)} {UNITS[unit]}"
    return _label(name), _plain(value)


def _label(key: Any) -> str:
    return re.sub(r"_", " ", str(key))[:60]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 100_000:
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _said(values: Mapping[str, Any]) -> str:
    """The values of a milestone in one line: `shards 39, 702.1 s`."""
    told = [_measure(name, value) for name, value in values.items() if value not in (None, "", [], {})]
    return mask_text(", ".join(f"{name} {said}".strip() for name, said in told))[:200]


@allow("view", post="view")
@require_http_methods(["GET", "POST"])
def explain(request: HttpRequest) -> HttpResponse:
    """The form; sent back with an answer beneath it, or the answer alone for htmx."""
    if request.method == "GET":
        return render(request, "pages/explain.html", {"most_bytes": MOST_BYTES})
    data, error = _given(request)
    answers = explained(data) if error is None else []
    context = {
        "answers": answers,
        "error": error,
        "typed": request.POST.get("text", ""),
        "most_bytes": MOST_BYTES,
    }
    page = "pages/explain_answer.html" if request.headers.get("HX-Request") else "pages/explain.html"
    return render(request, page, context, status=error.status if error else 200)


def _given(request: HttpRequest) -> tuple[bytes, Error | None]:
    """The file, else the text; or what is wrong with it."""
    upload = request.FILES.get("file")
    if upload is not None and upload.size:
        if upload.size > MOST_BYTES:
            return b"", Error(
                "Too large for this page",
                f"The file has {upload.size / (1 << 20):.1f} MB; this page reads up to 2 MB.",
                f"`{settings.COMMAND} explain FILE` reads any size; or send the part around the failure.",
                "file",
                status=422,
            )
        return upload.read(), None
    text = request.POST.get("text", "").encode("utf-8", "replace")
    if not text.strip():
        return b"", Error(
            "Nothing to explain", "The text is empty.", "Paste some output, or choose a file.", "text", status=422
        )
    return text, None


urlpatterns = [path("explain", explain, name="explain")]
