"""What a stream of output has told so far, and the machinery that every reader shares: rules chosen by the words of a
line.

A rule is tried only on lines that hold its trigger word, so ordinary lines cost next to nothing however many rules
there are.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from apps.diagnosis.frames import superseded
from apps.diagnosis.lines import LONGEST, NOBODY, Bar, Origin, Splitter, bars, clean, origin_of, uncarried, words
from apps.diagnosis.load import Load
from apps.diagnosis.masking import mask_text
from apps.diagnosis.reading import Failure, Milestone, Progress, Reading
from apps.diagnosis.reasons import REASONS
from apps.diagnosis.signs import ECHO, ENGINE_SIGNS, ROOT, SUSPECT, Sign

MOST_MILESTONES = 400
MOST_WARNINGS = 50
MOST_PROCESSES = 2048
EVIDENCE = 600  # characters of a line that are kept as evidence
MEMO_LINES, MEMO_LINE = 4096, 512  # lines that are remembered, and the bytes of the longest of them
FOLLOWING = 8  # lines after a sign whose text may be broken over several


@dataclass(slots=True)
class Line:
    number: int
    text: str  # without process prefix
    origin: Origin
    rank: int | None
    bars: tuple[Bar, ...] = ()


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
        self._got_over(line)

    def _got_over(self, line: Line) -> None:
        """A process that goes on has got over its exceptions and its waiting."""
        doubt = self.signs.get(SUSPECT)
        if doubt is not None and (doubt.key, doubt.rank) == (line.origin.key, line.rank):
            del self.signs[SUSPECT]
        waited = self.signs.get(ECHO)
        if waited is not None and waited.sign.until_milestone:
            del self.signs[ECHO]

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
        before = self.load.phase
        self.load.enter(phase, share)
        if self.load.phase != before or not self.entered:
            stamp = clock_of(line.text)
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


_STAMP = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")


def clock_of(text: str) -> float | None:
    """Seconds of the first time stamp in the line, comparable within one year."""
    match = _STAMP.search(text[:200])
    if match is None:
        return None
    _, month, day, hour, minute, second = match.groups()
    return ((int(month) * 31 + int(day)) * 24 + int(hour)) * 3600.0 + int(minute) * 60 + int(second)


Act = Callable[[Story, "re.Match[str]", Line], None]


@dataclass(frozen=True)
class Rule:
    """On a line with the word `trigger` where `pattern` is found, `act`; it counts `votes` for `kind`."""

    kind: str
    trigger: str
    pattern: re.Pattern[str]
    act: Act
    votes: int = 1
    in_paths: bool = False  # tried on the `File "…", line …` lines of tracebacks too


_PROCESS_WORDS = frozenset(
    {b"apiserver", b"enginecore", b"enginecore_dp0", b"worker_tp0", b"vllmworker", b"rayworkerwrapper"}
)


def _traceback(story: Story, match: re.Match[str], line: Line) -> None:
    """Where the last traceback began; one that came of another goes on with it."""
    if not story.marks.pop("chained", False):
        story.marks["traceback"] = line.number


def _chained(story: Story, match: re.Match[str], line: Line) -> None:
    story.marks["chained"] = True


_COMMON = (
    Rule("", "traceback", re.compile(r"Traceback \(most recent call last\)"), _traceback, 0),
    Rule("", "above", re.compile(r"During handling of the above exception|The above exception was"), _chained, 0),
)


@dataclass(frozen=True)
class Book:
    """Rules by their trigger words. `kinds`: those that are told apart."""

    rules: Mapping[bytes, tuple[Rule, ...]]
    signs: Mapping[bytes, tuple[Sign, ...]]
    triggers: frozenset[bytes]
    in_paths: frozenset[bytes]  # those of them that tell something in the path lines of a traceback

    @classmethod
    def of(cls, rules: Iterable[Rule], signs: Iterable[Sign] = ENGINE_SIGNS) -> Book:
        by_rule: dict[bytes, list[Rule]] = {}
        by_sign: dict[bytes, list[Sign]] = {}
        rules = (*_COMMON, *rules)
        for rule in rules:
            by_rule.setdefault(rule.trigger.encode(), []).append(rule)
        for sign in signs:
            for word in sign.trigger.split():
                by_sign.setdefault(word.encode(), []).append(sign)
        return cls(
            {word: tuple(found) for word, found in by_rule.items()},
            {word: tuple(found) for word, found in by_sign.items()},
            frozenset(by_rule) | frozenset(by_sign) | _PROCESS_WORDS,
            frozenset(rule.trigger.encode() for rule in rules if rule.in_paths),
        )


_EXCEPTION = re.compile(
    r"(?:^|\]\s|\s)(?P<name>(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): \S"
    r"|(?:^|\] )(?:[a-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception)\s*$"
)
_GENERIC = Sign("", _EXCEPTION, "exited", SUSPECT)


class LogReader:
    """Reads one stream with a Book of rules. The result depends on the bytes alone, never on how they were cut."""

    def __init__(self, book: Book, kind: str = "") -> None:
        """`kind`: what the stream is known to be; "" lets the votes of the rules decide."""
        self._book, self._kind = book, kind
        self._splitter = Splitter()
        self._story = Story()
        self._number = 0
        self._closed = False
        self._owner = NOBODY  # of the line that a bar redraws: its prefix was printed once, before the first \r
        # Logs repeat themselves; the same line need not be searched twice.
        self._memo: dict[bytes, Prepared | None] = {}

    def feed(self, data: bytes) -> None:
        if data:
            self._take(self._splitter.feed(data))

    def close(self) -> None:
        self._take(self._splitter.close())
        self._closed = True

    def reading(self) -> Reading:
        """What is known now. A bar frame that stands whole in a line that has not ended counts already."""
        story = self._story
        tail = self._splitter.tail
        if tail and not self._closed and b"%" in tail:
            prepared = prepare(self._book, tail)
            if prepared is not None and prepared.bars:
                story = copy.deepcopy(story)
                _take_line(self._book, story, self._owned(prepared), self._number + 1)
        return tell(story, self._kind, ended=self._closed)

    def _take(self, lines: Sequence[bytes]) -> None:
        memo, story, book = self._memo, self._story, self._book
        passed = superseded(lines) if len(lines) > 2 else []
        before = frozenset(passed)  # places, from 1, of frames that later ones say again
        plain: dict[int, Counter[str]] = {}  # votes of these frames, where nothing but a bar was in them
        again: dict[int, int] = {}  # how often each of them was passed over
        for place, raw in enumerate(lines):
            if not raw:
                continue
            number = self._number + 1 + place
            if passed and (said := passed[place]) and said in plain and story.open_sign is None:
                again[said] = again.get(said, 0) + 1
                continue
            measured = Counter(story.votes) if place + 1 in before else None
            prepared = None if story.ready and _serves(raw) else memo.get(raw, _NOT_YET)
            if prepared is _NOT_YET:
                prepared = prepare(book, raw)
                if len(raw) <= MEMO_LINE:
                    if len(memo) >= MEMO_LINES:
                        memo.clear()
                    memo[raw] = prepared
            if prepared is _OF_A_PROCESS and story.open_sign is None:
                story.marks["vllm_process"] = True
            elif prepared is not None:
                _take_line(book, story, self._owned(prepared), number)
                if measured is not None and _only_a_bar(prepared) and story.open_sign is None:
                    plain[place + 1] = story.votes - measured
            elif story.open_sign is not None:
                _go_on(story, origin_of(uncarried(clean(raw)).decode("utf-8", "replace"))[1])
            if prepared is None or not prepared.bars:
                self._owner = _only_a_prefix(raw) if raw[-1:] in b") \t" and b"pid=" in raw else NOBODY
        for place, times in again.items():
            for kind, votes in plain[place].items():
                story.votes[kind] += votes * times
        self._number += len(lines)

    def _owned(self, prepared: Prepared) -> Prepared:
        """A bar without a prefix of its own belongs to whoever printed the prefix before its first \\r."""
        if not prepared.bars or prepared.origin is not NOBODY or self._owner is NOBODY:
            return prepared
        return replace(prepared, origin=self._owner)


def _serves(raw: bytes) -> bool:
    """Whether the line only says that a server which is ready serves; long logs consist of these."""
    return (
        b'" 200 OK' in raw or b"Avg generation throughput" in raw or b"Decode batch" in raw or b"Prefill batch" in raw
    )


def _only_a_bar(prepared: Prepared) -> bool:
    """Whether all that the line says is how far a bar is: then the next frame of that bar says it again."""
    others = prepared.signs or prepared.wrapped or prepared.in_ray_section or prepared.exception
    return not others and all(rule.trigger in ("%", "%|") for rule, _ in prepared.rules)


_PREFIXES = re.compile(rb"[^(]{0,200}+(?:\([^()]{1,160}+\)[ \t]*+){1,4}+")


def _only_a_prefix(raw: bytes) -> Origin:
    """Who a line belongs to that is nothing but process prefixes; NOBODY for every other line."""
    if _PREFIXES.fullmatch(raw) is None:
        return NOBODY
    origin, rest = origin_of(uncarried(clean(raw)).decode("utf-8", "replace"))
    return origin if not rest.strip() else NOBODY


@dataclass(slots=True)
class Prepared:
    """What a line may tell, found without knowing what came before it."""

    origin: Origin
    text: str
    bars: tuple[Bar, ...]
    rules: tuple[tuple[Rule, re.Match[str]], ...]
    in_ray_section: tuple[tuple[Rule, re.Match[str]], ...]
    signs: tuple[tuple[Sign, re.Match[str]], ...]
    wrapped: tuple[Sign, ...]  # signs that begin here and may go on in the next lines
    exception: bool
    stamped: bool = False  # in the format of vLLM's own loggers
    tagged: bool = False  # in the format of SGLang's


# Lines that tell only whose they are: a process of vLLM printed them, or they name a file of the engine.
_OF_A_PROCESS = Prepared(Origin("Worker"), "", (), (), (), (), (), False)
_OF_SGLANG = Prepared(NOBODY, "", (), (), (), (), (), False)
_VLLM_STAMP = re.compile(
    r"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,120}\.py:\d{1,5}\]"
)
_SGLANG_LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:(?: [DPT]P\d+)+(?: EP\d+)?\]|\] (?:INFO|WARNING|ERROR): )"
)
_NO_ERROR = re.compile(r"(?:\[[^\]]{0,60}\] ?)?(?:WARN|INFO|DEBUG)|.{0,38}WARNING")


_NOT_YET = Prepared(NOBODY, "", (), (), (), (), (), False)  # no line's
_PATH_LINE = re.compile(rb'File "[^"]{1,400}", line \d{1,7}, in \S{1,120}$')
_SECTION_BEGINS = frozenset(b"%d" % digit for digit in range(10)) | {b"{"}


def prepare(book: Book, raw: bytes) -> Prepared | None:
    """Search a line once. None: it tells nothing."""
    if b"\x1b" in raw or len(raw) > LONGEST:
        raw = clean(raw)
    if raw[-1:] == b"^" and b"^^^" in raw:
        return None  # what a traceback points at
    if b'File "' in raw and _PATH_LINE.search(raw) is not None and raw.rpartition(b" ")[2] not in book.in_paths:
        return _OF_SGLANG if b"/sglang/" in raw else _OF_A_PROCESS if b"/vllm/" in raw else None
    found = book.triggers.intersection(words(raw))
    frame = b"%" in raw and (b"%|" in raw or b"% Completed" in raw or b"B/s" in raw)
    exception = b"Error: " in raw or b"Exception: " in raw or raw.endswith((b"Error", b"Exception"))
    spaced = raw[:1] == b" " and raw.lstrip(b" ")[:1] in _SECTION_BEGINS
    if not (found or frame or exception or spaced):
        return None
    if not (frame or exception or spaced) and found <= _PROCESS_WORDS:
        return _OF_A_PROCESS
    origin, text = origin_of(uncarried(raw).decode("utf-8", "replace"))
    found_bars = tuple(bars(text)) if frame else ()
    rules = _matching(book, (b"%|",), text) if found_bars else _matching(book, (b"%",), text) if frame else ()
    ordered = sorted(found)
    rules += _matching(book, ordered, text)
    signs, wrapped = _signs(book, ordered, text)
    in_section = _matching(book, (b" ",), text) if spaced else ()
    exception = exception and not _NO_ERROR.match(text) and _EXCEPTION.search(text) is not None
    if not (rules or signs or wrapped or in_section or exception):
        return None
    stamped, tagged = _VLLM_STAMP.match(text) is not None, _SGLANG_LINE.match(text) is not None
    return Prepared(origin, text, found_bars, rules, in_section, signs, wrapped, exception, stamped, tagged)


def _matching(book: Book, found: Iterable[bytes], text: str) -> tuple[tuple[Rule, re.Match[str]], ...]:
    return tuple(
        [
            (rule, match)
            for word in found
            if word in book.rules
            for rule in book.rules[word]
            if (match := rule.pattern.search(text)) is not None
        ]
    )


def _signs(
    book: Book, found: Iterable[bytes], text: str
) -> tuple[tuple[tuple[Sign, re.Match[str]], ...], tuple[Sign, ...]]:
    matched, wrapped = [], []
    for word in found:
        if word not in book.signs:
            continue
        for sign in book.signs[word]:
            match = sign.pattern.search(text)
            if match is not None:
                matched.append((sign, match))
            elif sign.wrapped and sign.wrapped in text and len(text) < 400:
                wrapped.append(sign)
    return tuple(matched), tuple(wrapped)


_VLLM_PROCESSES = ("APIServer", "EngineCore", "VllmWorker", "Worker", "RayWorkerWrapper")


def _take_line(book: Book, story: Story, prepared: Prepared, number: int) -> None:
    line = Line(number, prepared.text, prepared.origin, rank_of(story, prepared.origin), prepared.bars)
    if story.open_sign is not None:
        _go_on(story, prepared.text)
    if prepared is _OF_SGLANG:
        story.votes["sglang"] += 1
    if prepared.tagged:
        story.votes["sglang"] += 4
        story.marks["sglang"] = True
    if prepared.stamped or prepared.origin.process.startswith(_VLLM_PROCESSES):
        story.marks["vllm_process"] = True
    for rule, match in prepared.rules:
        _apply(rule, story, match, line)
    if prepared.in_ray_section and "ray_section" in story.marks:
        for rule, match in prepared.in_ray_section:
            _apply(rule, story, match, line)
    for sign, match in prepared.signs:
        if sign.kind:
            story.votes[sign.kind] += 3
        if sign.strength not in story.signs:
            values = {**sign.values, **_extracted(sign, match)}
            story.suspect(sign, line.number, line.text, _speaking(story, line), values, line.origin.key)
    if prepared.wrapped and story.open_sign is None:
        story.open_sign = (prepared.wrapped[0], line.number, line.text, line.rank, FOLLOWING)
    if prepared.exception:
        story.doubt(_GENERIC, line, _speaking(story, line))


_SGLANG_TAG = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: DP\d+)?(?: PP\d+)?(?: TP(?P<rank>\d{1,4}))?")


def _speaking(story: Story, line: Line) -> int | None:
    """The rank that a line is about. SGLang tags only the first line of a scheduler's traceback."""
    if line.rank is not None:
        return line.rank
    tag = _SGLANG_TAG.match(line.text)
    if tag is not None:
        return int(tag["rank"]) if tag["rank"] else None
    speaker: int | None = story.marks.get("speaker")
    return speaker


def _apply(rule: Rule, story: Story, match: re.Match[str], line: Line) -> None:
    if rule.votes:
        story.votes[rule.kind] += rule.votes
    try:
        rule.act(story, match, line)
    except (ValueError, OverflowError):
        return  # "1.2.3 GiB": figures that are none; such a line tells nothing


def _extracted(sign: Sign, match: re.Match[str]) -> dict[str, Any]:
    try:
        return sign.extract(match)
    except (ValueError, OverflowError):
        return {}


def _go_on(story: Story, text: str) -> None:
    """A message that was broken over lines by a narrow terminal: the pieces are put together again."""
    if story.open_sign is None:
        return
    sign, number, before, rank, left = story.open_sign
    whole = before + text
    match = sign.pattern.search(whole)
    if match is not None and None not in match.groups():
        story.open_sign = None
        story.suspect(sign, number, whole, rank, {**sign.values, **_extracted(sign, match)})
    elif left <= 1 or len(whole) > 4_000:
        story.open_sign = None
    else:
        story.open_sign = (sign, number, whole, rank, left - 1)


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
