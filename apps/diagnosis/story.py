"""What a stream of output has told so far, what its lines may change in that, and the Reading that comes of it."""

from __future__ import annotations

import copy
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from apps.diagnosis.alike import Found
from apps.diagnosis.lines import NOBODY, Bar, Origin, origin_of
from apps.diagnosis.load import Load
from apps.diagnosis.masking import mask_text
from apps.diagnosis.reading import Failure, Milestone, Progress, Reading
from apps.diagnosis.reasons import REASONS
from apps.diagnosis.signs import ECHO, ROOT, SUSPECT, Sign

MOST_MILESTONES = 400
MOST_WARNINGS = 50
MOST_PROCESSES = 2048
EVIDENCE = 600  # characters of a line that are kept as evidence


@dataclass(slots=True)
class Line:
    number: int
    text: str  # without process prefix
    origin: Origin
    rank: int | None
    bars: tuple[Bar, ...] = ()
    stamped: bool = True  # whether there may be a time stamp in it


@dataclass
class Suspect:
    """A sign that was seen, as long as nothing better is known."""

    sign: Sign
    line_number: int
    evidence: str
    rank: int | None
    values: dict[str, Any]
    phase: str
    reason: str
    cause: str
    key: str = ""  # Origin.key of the process that said it


@dataclass
class Story:
    """All state of a reader; small, plain and bounded, so that it can be copied to look ahead."""

    votes: Counter[str] = field(default_factory=Counter)
    facts: dict[str, Any] = field(default_factory=dict)
    milestones: list[Milestone] = field(default_factory=list)
    warnings: dict[str, dict[str, Any]] = field(default_factory=dict)
    signs: dict[int, Suspect] = field(default_factory=dict)  # the first one by strength
    open_sign: tuple[Sign, int, str, int | None, int] | None = None  # sign, line, text so far, rank, lines left
    load: Load = field(default_factory=Load)
    transfer: tuple[str, float, int | None, int | None, str] | None = None  # phase, overall, done, total, unit
    ready: bool = False
    processes: dict[str, int] = field(default_factory=dict)  # Origin.key -> rank, where a line said so
    remote_processes: int = 0
    marks: dict[str, Any] = field(default_factory=dict)  # what rules remember for themselves
    clock: float | None = None  # seconds, of the last time stamp read
    entered: dict[str, float] = field(default_factory=dict)  # phase -> clock when it began

    def milestone(self, name: str, line: Line, **values: Any) -> None:
        if len(self.milestones) < MOST_MILESTONES:
            self.milestones.append(Milestone(name, line.number, line.rank, values))
        if self.signs:
            self._got_over(line)

    def _got_over(self, line: Line) -> None:
        """A process that goes on has got over its exceptions and its waiting."""
        doubt = self.signs.get(SUSPECT)
        if doubt is not None and (doubt.key, doubt.rank) == (line.origin.key, line.rank):
            del self.signs[SUSPECT]
        waited = self.signs.get(ECHO)
        if waited is not None and waited.sign.until_milestone:
            del self.signs[ECHO]

    def told_before(self, found: Found) -> bool:
        """Whether the first of what a rule found is known, and milestones are no longer counted."""
        return len(self.milestones) >= MOST_MILESTONES and found.names() <= self.facts.keys()

    def fact(self, **values: Any) -> None:
        self.facts.update(values)

    def first(self, **values: Any) -> None:
        """Keep what was said first."""
        for name, value in values.items():
            self.facts.setdefault(name, value)

    def warn(self, name: str, title: str, line: Line, *, severity: str = "info") -> None:
        known = self.warnings.get(name)
        if known is not None:
            known["count"] += 1
        elif len(self.warnings) < MOST_WARNINGS:
            self.warnings[name] = {
                "name": name,
                "title": title,
                "severity": severity,
                "line_number": line.number,
                "rank": line.rank,
                "count": 1,
                "evidence": shorten(line.text),
            }

    def enter(self, phase: str, line: Line, share: float = 0.0) -> None:
        load, before = self.load, self.load.phase
        load.enter(phase, share)
        if load.phase != before or (not self.entered and (line.stamped or self.clock is not None)):
            stamp = clock_of(line.text) if line.stamped else None
            self.clock = stamp if stamp is not None else self.clock
            if self.clock is not None:
                self.entered.setdefault(self.load.phase, self.clock)

    def become_ready(self, line: Line) -> None:
        if not self.ready:
            self.milestone("ready", line)
        self.enter("ready", line)
        self.ready = True
        self.signs.clear()  # whatever went wrong before, the program got over it

    def stop(self, line: Line) -> None:
        """The server was ended in order: it is ready no longer."""
        if self.ready:
            self.ready = False
            self.marks["stopped"] = True
            self.facts.pop("ready", None)
            self.milestone("stopped", line)

    def start_again(self, line: Line) -> None:
        """The program begins anew in the same log (a container that was restarted): what was ready is no longer."""
        if not (self.ready or self.marks.pop("stopped", False)):
            return
        self.ready = False
        self.signs.clear()
        self.load = Load(reached=max(self.load.reached, self.load.overall))
        self.entered.clear()
        self.facts.pop("ready", None)
        self.marks.pop("loads_seen", None)
        self.fact(restarts=self.facts.get("restarts", 0) + 1)
        self.milestone("restarted", line)
        self.warn("restarted", "The program was started again in the same log", line, severity="warning")

    def suspect(
        self, sign: Sign, line_number: int, text: str, rank: int | None, values: dict[str, Any], key: str = ""
    ) -> None:
        cause = values.pop("cause", sign.cause) or sign.reason
        if sign.strength in self.signs:
            return
        self.signs[sign.strength] = Suspect(
            sign,
            line_number,
            shorten(text),
            rank,
            values,
            self.marks.get("traced", self.load.phase),
            sign.reason,
            cause,
            key,
        )

    def doubt(self, sign: Sign, line: Line, rank: int | None) -> None:
        """An exception of unknown meaning. The first one counts; of a server that serves, the first of the last
        traceback, since its earlier ones were about single requests."""
        known = self.signs.get(SUSPECT)
        if (
            known is not None
            and self.ready
            and ECHO not in self.signs
            and self.marks.get("traceback", 0) > known.line_number
        ):
            del self.signs[SUSPECT]
        if SUSPECT not in self.signs:
            self.suspect(sign, line.number, line.text, rank, {}, line.origin.key)


def shorten(text: str) -> str:
    """Evidence for showing: masked, without outer blanks, at most EVIDENCE characters."""
    plain = mask_text(text[: 4 * EVIDENCE]).strip()
    return plain if len(plain) <= EVIDENCE else plain[: EVIDENCE - 1] + "…"


STAMP = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")


def clock_of(text: str) -> float | None:
    """Seconds of the first time stamp in the line, comparable within one year."""
    match = STAMP.search(text, 0, 200)
    if match is None:
        return None
    _, month, day, hour, minute, second = match.groups()
    return ((int(month) * 31 + int(day)) * 24 + int(hour)) * 3600.0 + int(minute) * 60 + int(second)


def _width(story: Story) -> int:
    """How many tensor ranks a pipeline stage has, as far as it is known."""
    width = story.facts.get("tp")
    return width if isinstance(width, int) and 0 < width < MOST_PROCESSES else 1


def rank_of(story: Story, origin: Origin) -> int | None:
    """The world rank of the process that printed a line, as far as it is known."""
    if origin is NOBODY:
        return None
    known = story.processes.get(origin.key)
    if known is not None:
        return known
    if origin.stage is not None:
        return origin.stage * _width(story) + (origin.rank or 0)
    if origin.rank is not None:
        return origin.rank
    if origin.process.startswith("RayWorker") and len(story.processes) < MOST_PROCESSES:
        # Ray names no rank; until the process says its own, the one beside the driver counts as 0, the others in order.
        if not origin.local:
            story.remote_processes += 1
        return story.processes.setdefault(origin.key, 0 if origin.local else story.remote_processes)
    return None


def tell(story: Story, kind: str = "", *, ended: bool = False) -> Reading:
    """The frozen Reading of a story. `ended`: no more will come, so an exception that nothing followed was the end."""
    chosen = kind or _kind(story)
    failure = _failure(story, chosen, ended)
    ready = story.ready and failure is None
    facts = dict(story.facts)
    progress: Progress | None = None
    if story.transfer is not None and chosen not in _ENGINES:
        phase, overall, done, total, unit = story.transfer
        progress = Progress(phase, round(overall, 4), done, total, unit)
    if progress is None and (chosen in _ENGINES or story.load.overall > 0):
        progress = story.load.progress()
        facts.update(_phase_seconds(story))
        if story.load.loads:
            facts["loads"] = story.load.loads
    if failure is not None:
        facts.update({name: value for name, value in failure.values.items() if name not in ("rank",)})
    if chosen in _ENGINES and (facts.get("ready") is None or failure is not None):
        facts["ready"] = ready
    return Reading(
        kind=chosen,
        milestones=tuple(story.milestones),
        progress=progress,
        ranks=story.load.by_rank(),
        ready=ready,
        failure=failure,
        warnings=tuple(copy.deepcopy(list(story.warnings.values()))),
        facts=copy.deepcopy(facts),
    )


_ENGINES = frozenset({"vllm", "sglang", "llamacpp"})


def _kind(story: Story) -> str:
    # NCCL and Ray lines stand inside engine logs, and hub messages too: an engine that shows itself at all is the kind.
    best = max(story.votes.items(), key=lambda vote: (vote[0] in _ENGINES, vote[1], vote[0]), default=("unknown", 0))[0]
    if story.marks.get("vllm_process") and best not in _ENGINES and best not in ("nccl", "ray"):
        return "vllm"  # only its processes' names were seen
    return best


def _phase_seconds(story: Story) -> dict[str, Any]:
    entered = sorted(story.entered.items(), key=lambda item: item[1])
    spent = {phase: after - begun for (phase, begun), (_, after) in pairwise(entered) if after >= begun}
    return {"phase_s": spent} if spent else {}


def _failure(story: Story, kind: str, ended: bool) -> Failure | None:
    real = [strength for strength in story.signs if strength >= ECHO]
    over = story.ready or (story.transfer is not None and story.transfer[1] >= 1.0)
    if not real and not (ended and SUSPECT in story.signs and not over):
        return None
    strength = max(real, default=SUSPECT)
    if strength == ECHO and SUSPECT in story.signs:
        strength = SUSPECT
    found = story.signs[strength]
    reason, values = found.reason, dict(found.values)
    if strength == SUSPECT and real:
        reason = story.signs[ECHO].reason
    for other, sign in story.signs.items():
        if other < strength or strength == SUSPECT:
            values = {**sign.values, **values}
    replica = origin_of(f"({found.key})")[0].replica if found.key else None
    if replica is not None:
        values["dp_rank"] = replica
    codes = values.get("exit_codes") or {}
    if reason == "exited" and strength == ECHO and set(codes.values()) & {"SIGSEGV", "SIGBUS", "SIGILL", "SIGABRT"}:
        reason = "engine_crashed"
    if reason == "exited" and kind in ("hf", "rsync"):
        reason = "copy_interrupted"
    known = REASONS[reason]
    values["cause"] = found.cause if reason == found.reason and strength != SUSPECT else reason
    if found.phase != "starting" or kind in _ENGINES:
        values.setdefault("phase", found.phase)
    if strength >= ROOT:
        confidence = "high"
    else:
        confidence = "medium" if strength not in (ECHO, SUSPECT) else "low"
    values["confidence"] = confidence
    return Failure(reason, known.title, found.evidence, found.line_number, found.rank, known.remedy, values)
