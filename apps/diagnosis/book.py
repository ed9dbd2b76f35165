"""Rules by the words that set them off, and what the lines of one shape may tell, found by searching one of them.

A rule is tried only on lines that hold its trigger word, so ordinary lines cost next to nothing however many rules there
are; and only once for all lines of one shape, so a log of many lines that differ in figures costs little more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

from apps.diagnosis import identities
from apps.diagnosis.alike import (
    LONGEST_SHAPE,
    MOST_SHAPES,
    Found,
    Places,
    any_digits,
    names_digits,
    places_of,
    shape_of,
)
from apps.diagnosis.identities import ANY_IDENTITY, UNKNOWN, Unknown, Veiled, veiled
from apps.diagnosis.lines import (
    CARRIED,
    LONGEST,
    MOST_PREFIXES,
    NOBODY,
    PREFIX,
    RANK_TAG,
    BarPlaces,
    Origin,
    bar_places,
    carrier_of,
    origin_of,
    speaks_json,
    words,
)
from apps.diagnosis.needles import Needles, needles_of
from apps.diagnosis.signs import ENGINE_SIGNS, Sign
from apps.diagnosis.story import STAMP, Line, Story

Act = Callable[[Story, Found, Line], None]


def counted(story: Story, match: Found, line: Line) -> None:
    """What a rule does that only votes."""


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
    {b"apiserver", b"enginecore", b"enginecore_dp0", b"worker_tp0", b"worker_tp00", b"vllmworker", b"rayworkerwrapper"}
)
_OF_REQUESTS = _PROCESS_WORDS | {b"post"}  # in the line of a request, whatever was answered


def _traceback(story: Story, match: Found, line: Line) -> None:
    """Where the last traceback began; one that came of another goes on with it."""
    if not story.marks.pop("chained", False):
        story.marks["traceback"] = line.number


def _chained(story: Story, match: Found, line: Line) -> None:
    story.marks["chained"] = True


_COMMON = (
    Rule("", "traceback", re.compile(r"Traceback \(most recent call last\)"), _traceback, 0),
    Rule("", "above", re.compile(r"During handling of the above exception|The above exception was"), _chained, 0),
)
_EXCEPTION = re.compile(
    r"(?:^|\]\s|\s)(?P<name>(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): \S"
    r"|(?:^|\] )(?:[a-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception)\s*$"
)
GENERIC = Sign("", _EXCEPTION, "exited", 0)  # an exception of unknown meaning
_NO_ERROR = re.compile(r"(?:\[[^\]]{0,60}\] ?)?(?:WARN|INFO|DEBUG)|.{0,38}WARNING")
_VLLM_STAMP = re.compile(
    r"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,120}\.py:\d{1,5}\]"
)
_SGLANG_LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:(?: [DPT]P\d+)+(?: EP\d+)?\]|\] (?:INFO|WARNING|ERROR): )"
)
_EXCEPTIONS = (b"Error", b"Exception")
# What makes a line tell something that holds no trigger.
_TELLING = (b"\x1b", b"%|", b"% Completed", b"B/s", b"Error", b"Exception", b'File "', b"pid=", b"^^^")
# The same by the rarest letter of each: one letter is found in a fraction of the time.
_TELLING_BY_LETTER = tuple(
    (letter, tuple(text for text in _TELLING if letter in text))
    for letter in (b"\x1b", b"%", b"/", b"E", b'"', b"=", b"^")
)
_JSON, _SECTION = re.compile(rb"\{\s*\""), re.compile(rb"^ +[0-9{]", re.MULTILINE)
_PATH_LINE = re.compile(rb'File "[^"]{1,400}", line \d{1,7}, in \S{1,120}$')
_SECTION_BEGINS = frozenset(b"%d" % digit for digit in range(10)) | {b"{"}
VLLM_PROCESSES = ("APIServer", "EngineCore", "VllmWorker", "Worker", "RayWorkerWrapper")


class _Search(NamedTuple):
    """How a shape is searched. `sure`: what is found there is in every line of that shape, at the same places."""

    pattern: re.Pattern[str] | None  # None: only the lines themselves tell
    sure: bool
    needles: Needles  # one of them stands in whatever the pattern matches; "" where nothing is known


@cache
def _search_for(pattern: re.Pattern[str], trigger: str) -> _Search:
    sure = not names_digits(pattern.pattern)
    searched = pattern if sure else any_digits(pattern)
    return _Search(searched, sure, (searched and needles_of(searched, known=trigger)) or ("",))


T = TypeVar("T", Rule, Sign)


class _ByWord(Mapping[bytes, Sequence[tuple[T, _Search]]]):
    """Rules or signs by their trigger words, each with how it is searched. That is found out for a word when a line holds it
    first: for all of them it takes a third of a second, which no process is to pay at its start."""

    def __init__(self, known: Mapping[bytes, Sequence[T]]) -> None:
        self._known: Mapping[bytes, Sequence[T]] = known
        self._searched: dict[bytes, Sequence[tuple[T, _Search]]] = {}

    def __getitem__(self, word: bytes) -> Sequence[tuple[T, _Search]]:
        found = self._searched.get(word)
        if found is None:
            found = tuple((each, _search_for(each.pattern, each.trigger)) for each in self._known[word])
            self._searched[word] = found
        return found

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class IdentitiesDecide(Exception):
    """What lines of this kind tell depends on the ids in them."""


Look = Callable[[re.Pattern[str], str], re.Match[str] | Unknown | None]  # how patterns are searched


def _plainly(pattern: re.Pattern[str], text: str) -> re.Match[str] | Unknown | None:
    return pattern.search(text)


def _begins_with(pattern: re.Pattern[str], text: str, ids: Veiled | None, at: int = 0) -> re.Match[str] | None:
    """What the pattern matches at `at`, whatever the ids are."""
    if ids is None:
        return pattern.match(text, at)
    found = identities.search(pattern, text, at, begins=True)
    if isinstance(found, Unknown):
        raise IdentitiesDecide
    return found


_CARRIED_TEXT = re.compile(CARRIED.pattern.decode("ascii"), re.ASCII)


def _carrier_of(ids: Veiled) -> int:
    """As lines.carrier_of, of a line without its ids."""
    line = ids.line
    if line[:1] == b"\x01":
        if b"| " in line[:256] or b"]: " in line[:256]:
            raise IdentitiesDecide
        return 0
    if line[:1].isdigit() and line[4:5] != b"-" and line.find(b" | ", 0, 104) < 0:
        return 0
    if b"\xaa" in line[:1024]:
        raise IdentitiesDecide  # bytes are read as letters here, and this one is the veil
    text = line[:1024].decode("latin-1").replace("\x01", identities.VEIL)
    found = _begins_with(_CARRIED_TEXT, text, ids)
    return 0 if found is None else found.end()


def _origin_of(text: str, ids: Veiled) -> tuple[Origin, str]:
    """As lines.origin_of, of a text without its ids."""
    at = 0
    for _ in range(MOST_PREFIXES if "(" in text else 0):
        inner = _begins_with(PREFIX, text, ids, at)
        if inner is None:
            break
        at = inner.end()
    if at == 0 and text[:1] == "[":
        _begins_with(RANK_TAG, text, ids)
    if identities.VEIL in text[:at]:
        raise IdentitiesDecide
    return origin_of(text)


# A rule or a sign, and where its groups stand; None: each line has to be searched.
Ruled = tuple[Rule, Places | None]
Signed = tuple[Sign, Places | None]


@dataclass(slots=True, eq=False)
class Shape:
    """What the lines of one shape may tell, whatever came before them."""

    nothing: bool = False  # tells at most whose it is: a process of vLLM printed it, or it names a file of an engine
    wrapped_up: bool = False  # to be freed from colours or from the JSON around it, and looked at again
    owns: bool = False  # ends like a line that is nothing but a prefix: the bar behind the next \r is of that process
    of_vllm: bool = False  # in the format of vLLM's own loggers, or of one of its processes
    of_sglang: bool = False  # in the format of SGLang's own loggers
    prefix_at: int = 0  # characters before the process prefix: what carried the line
    text_at: int = 0  # characters before the text
    bars: tuple[BarPlaces, ...] = ()
    votes: tuple[tuple[str, int], ...] = ()
    rules: tuple[Ruled, ...] = ()
    in_ray_section: tuple[Ruled, ...] = ()
    signs: tuple[Signed, ...] = ()
    unfinished: tuple[Sign, ...] = ()  # signs that begin here and may go on in the next lines
    exception: bool = False
    stamped: bool = False  # has a time stamp
    unsure: bool = (
        False  # whether only rules and signs that tell digits apart may be found: else the line tells nothing
    )
    more: bool = False  # whether there is anything beside bars and rules
    only_a_bar: bool = False  # all that it says is how far a bar is: the next frame of that bar says it again


NOTHING, _OWNS = Shape(nothing=True), Shape(nothing=True, owns=True)
_OF_A_PROCESS, _OWNS_OF_A_PROCESS = (Shape(nothing=True, of_vllm=True, owns=owns) for owns in (False, True))
_OF_SGLANG = Shape(nothing=True, votes=(("sglang", 1),))
_WRAPPED_UP = Shape(wrapped_up=True)

MOST_OF_A_KIND = 4  # kinds of lines that are told apart only by what stands between their ids


@dataclass(slots=True)
class _Uses:
    """Whether it pays to look for kinds among lines that begin alike: what people asked an engine is never said again."""

    made: int = 0  # or sought: a line may have no id
    met: int = 0  # lines of a kind that was known
    passed: int = 0

    def pays(self) -> bool:
        if self.made < 64 or self.met >= self.made:
            return True
        self.passed = (self.passed + 1) % 256
        return self.passed == 0  # what comes later may be otherwise


BEGINNING = 40  # bytes by which lines are counted together


class _Kind(NamedTuple):
    """Lines that differ in digits and ids only."""

    kept: tuple[tuple[slice, bytes], ...]  # what stands between the ids, and where
    uuids: bool
    shape: Shape | None  # None: each line has to be searched for itself
    uses: _Uses


def _of_kind(blurred: bytes, kinds: Sequence[_Kind]) -> _Kind | None:
    """Which of these a line is of. Asked for every line with an id, so it is written to be quick."""
    for kind in kinds:
        for place, text in kind.kept:
            if blurred[place] != text:
                break
        else:
            return kind
    return None


@dataclass(frozen=True)
class Book:
    """Rules and signs by their trigger words; digits of a trigger are blurred as those of the lines are."""

    rules: Mapping[bytes, Sequence[tuple[Rule, _Search]]]
    signs: Mapping[bytes, Sequence[tuple[Sign, _Search]]]
    triggers: frozenset[bytes]
    in_paths: frozenset[bytes]  # those of them that tell something in the path lines of a traceback
    # Logs repeat themselves: what was found is kept, by blurred line. Lines that were freed from what was around them are
    # apart, since they are not freed again.
    carried: dict[bytes, Shape] = field(default_factory=dict, compare=False, repr=False)
    freed: dict[bytes, Shape] = field(default_factory=dict, compare=False, repr=False)
    # The same of lines with ids, by their bytes with a 0 for every hexadecimal digit.
    carried_kinds: dict[bytes, list[_Kind]] = field(default_factory=dict, compare=False, repr=False)
    freed_kinds: dict[bytes, list[_Kind]] = field(default_factory=dict, compare=False, repr=False)
    uses: dict[bytes, _Uses] = field(default_factory=dict, compare=False, repr=False)  # by the beginning of a line
    in_uuids: tuple[bytes, ...] = ()  # triggers as they may stand within a UUID

    @classmethod
    def of(cls, rules: Iterable[Rule], signs: Iterable[Sign] = ENGINE_SIGNS) -> Book:
        by_rule: dict[bytes, list[Rule]] = {}
        by_sign: dict[bytes, list[Sign]] = {}
        rules = (*_COMMON, *rules)
        for rule in rules:
            by_rule.setdefault(shape_of(rule.trigger.encode()), []).append(rule)
        for sign in signs:
            for word in sign.trigger.split():
                by_sign.setdefault(shape_of(word.encode()), []).append(sign)
        return cls(
            _ByWord[Rule](by_rule),
            _ByWord[Sign](by_sign),
            frozenset(by_rule) | frozenset(by_sign) | _PROCESS_WORDS,
            frozenset(rule.trigger.encode() for rule in rules if rule.in_paths),
            in_uuids=tuple(b"-" + word + b"-" for word in {*by_rule, *by_sign} if re.fullmatch(rb"[0a-f]{4}", word)),
        )

    def shape(self, line: bytes, *, carried: bool = True) -> Shape:
        """What lines like this one may tell. `carried`: it may stand in what carried it to us."""
        known, blurred = self.carried if carried else self.freed, shape_of(line)
        shape = known.get(blurred)
        if shape is None:
            shape = self.unseen(line, blurred, carried=carried)
        return shape

    def unseen(self, line: bytes, blurred: bytes, *, carried: bool = True) -> Shape:
        """The same of a line whose shape is not known. `blurred`: the line with blurred digits."""
        if len(line) > LONGEST_SHAPE:
            return self.search(blurred, carried=carried)
        kinds, key = self.carried_kinds if carried else self.freed_kinds, blurred.translate(ANY_IDENTITY)
        kind = _of_kind(blurred, kinds.get(key, ()))
        if kind is None:
            if self.triggers.isdisjoint(words(blurred)) and not _may_tell(blurred):
                return self._remember(blurred, NOTHING, carried)
            kind = self._new_kind(blurred, kinds, key, carried)
        else:
            kind.uses.met += 1
        if kind is not None and kind.shape is not None and not (kind.uuids and self._in_uuid(blurred)):
            return kind.shape
        return self._remember(blurred, self.search(blurred, carried=carried), carried)

    def _in_uuid(self, blurred: bytes) -> bool:
        return any(word in blurred for word in self.in_uuids)

    def _remember(self, blurred: bytes, shape: Shape, carried: bool) -> Shape:
        known = self.carried if carried else self.freed
        if len(known) >= MOST_SHAPES:
            known.clear()
        known[blurred] = shape
        return shape

    def tell_nothing(self, lines: Sequence[bytes]) -> bool:
        """Whether the shape of each of these lines is NOTHING for sure; much cheaper than to ask for each."""
        text = b"\n".join(lines)
        return not _may_tell(text) and self.triggers.isdisjoint(words(shape_of(text)))

    def _new_kind(self, blurred: bytes, known: dict[bytes, list[_Kind]], key: bytes, carried: bool) -> _Kind | None:
        """The kind of a line that is of none that is known; None where it has no id, too many kinds look like it, or
        kinds do not pay."""
        if len(known.get(key, ())) >= MOST_OF_A_KIND:
            return None
        if len(self.uses) >= MOST_SHAPES:
            self.uses.clear()
        uses = self.uses.setdefault(key[:BEGINNING], _Uses())
        if not uses.pays():
            return None
        uses.made += 1
        ids = veiled(blurred)
        if ids is None:
            return None
        try:
            kind = _Kind(ids.kept, ids.uuids, self.search(ids.line, carried=carried, ids=ids), uses)
        except IdentitiesDecide:
            kind = _Kind(ids.kept, ids.uuids, None, uses)
        if len(known) >= MOST_SHAPES:
            known.clear()
        known.setdefault(key, []).append(kind)
        return kind

    def search(self, line: bytes, *, carried: bool = True, ids: Veiled | None = None) -> Shape:
        """Search one line; with blurred digits it stands for all of its shape. `carried`: it may stand in what carried it
        to us. `ids`: the line stands for all that have other ids. Raises IdentitiesDecide where it cannot."""
        if b"\x1b" in line or len(line) > LONGEST:
            return _WRAPPED_UP
        if ids is not None and (b"%" in line or b'File "' in line):
            raise IdentitiesDecide
        if carried and b"{" in line and speaks_json(line, carrier_of(line) if ids is None else _carrier_of(ids)):
            return _WRAPPED_UP
        last = line[-1:]
        if last == b"^" and b"^^^" in line:
            return NOTHING  # what a traceback points at
        owns = last in b") \t" and b"pid=" in line
        if b'File "' in line and _PATH_LINE.search(line) and line.rpartition(b" ")[2] not in self.in_paths:
            return _OF_SGLANG if b"/sglang/" in line else _OF_A_PROCESS if b"/vllm/" in line else NOTHING
        found = self.triggers.intersection(words(shape_of(line) if ids is None else line.replace(b"\x01", b"\xff")))
        frame = b"%" in line and (b"%|" in line or b"% Completed" in line or b"B/s" in line)
        exception = b"Error: " in line or b"Exception: " in line or (last in b"rn" and line.endswith(_EXCEPTIONS))
        spaced = line[:1] == b" " and line.lstrip(b" ")[:1] in _SECTION_BEGINS
        if ids is not None and line[:1] == b" " and line.lstrip(b" ")[:1] == b"\x01":
            # Spaced or not, by the id. That is one only where no rule for such lines is found.
            if any(_surely(identities.search(rule.pattern, ids.text)) for rule, _ in self.rules.get(b" ", ())):
                raise IdentitiesDecide
            if not _PROCESS_WORDS.isdisjoint(found):
                raise IdentitiesDecide
        told, seems = None, frame or exception or spaced
        if seems or not found <= _PROCESS_WORDS:
            told = self._told(line, carried, sorted(found), (frame, exception, spaced), ids)
        if told is None:
            if found & _PROCESS_WORDS and found <= _OF_REQUESTS and not seems:
                return _OWNS_OF_A_PROCESS if owns else _OF_A_PROCESS
            return _OWNS if owns else NOTHING
        told.owns = owns
        return told

    def _told(
        self, line: bytes, carried: bool, found: list[bytes], seems: tuple[bool, bool, bool], ids: Veiled | None
    ) -> Shape | None:
        frame, exception, spaced = seems
        if ids is None:
            carrier = carrier_of(line) if carried else 0
            uncut = line[carrier:].decode("utf-8", "replace")
            if not (frame or exception or spaced or self._may_hold(found, uncut)):
                return None
            origin, text = origin_of(uncut)
        else:
            carrier = _carrier_of(ids) if carried else 0
            uncut = identities.unveil(line[carrier:])
            origin, text = _origin_of(uncut, ids)
        look = _plainly if ids is None else identities.search
        bars = tuple(bar_places(text)) if frame else ()
        bar_word = (b"%|",) if bars else (b"%",) if frame else ()
        rules = self._rules((*bar_word, *found), text, look) if found or frame else []
        signs, unfinished = self._signs(found, text, look) if found else ([], [])
        in_section = self._rules((b" ",), text, look) if spaced else []
        exception = exception and not _begins_with(_NO_ERROR, text, ids) and _surely(look(_EXCEPTION, text))
        if not (rules or signs or unfinished or in_section or exception):
            return None
        if ids is not None and _PROCESS_WORDS.intersection(found) and not _all_sure(rules, signs, in_section):
            raise IdentitiesDecide  # what is left where none of them is found tells whose the line is
        of_sglang = text[:1] == "[" and _begins_with(_SGLANG_LINE, text, ids) is not None
        others = bool(signs or unfinished or in_section or exception)
        return Shape(
            of_vllm=(".py:" in text and _begins_with(_VLLM_STAMP, text, ids) is not None)
            or (origin is not NOBODY and origin.process.startswith(VLLM_PROCESSES)),
            of_sglang=of_sglang,
            prefix_at=carrier,
            text_at=carrier + len(uncut) - len(text),
            bars=bars,
            votes=_votes(rules, signs, of_sglang=of_sglang) if rules or signs or of_sglang else (),
            rules=tuple([(rule, places) for rule, places in rules if places is None or rule.act is not counted]),
            in_ray_section=tuple(in_section),
            signs=tuple(signs),
            unfinished=tuple(unfinished),
            exception=exception,
            stamped=":" in text and (ids is not None or STAMP.search(text, 0, 200) is not None),
            unsure=not (unfinished or exception) and not _sure(rules) and not _sure(signs) and not _sure(in_section),
            more=others,
            only_a_bar=frame and not others and all(rule.trigger in ("%", "%|") for rule, _ in rules),
        )

    def _may_hold(self, found: Iterable[bytes], text: str) -> bool:
        """Whether any rule or sign of these triggers could be found, by what must stand in it."""
        for word in found:
            for _, search in self.rules.get(word, ()):
                if search.pattern is None or any([needle in text for needle in search.needles]):
                    return True
            for sign, search in self.signs.get(word, ()):
                if search.pattern is None or (sign.wrapped and sign.wrapped in text):
                    return True
                if any([needle in text for needle in search.needles]):
                    return True
        return False

    def _rules(self, found: Iterable[bytes], text: str, look: Look) -> list[Ruled]:
        matched: list[Ruled] = []
        for word in found:
            for rule, (pattern, sure, needles) in self.rules.get(word, ()):
                if pattern is None:
                    matched.append((rule, None))
                    continue
                for needle in needles if look is _plainly else ("",):
                    if needle in text:
                        match = look(pattern, text)
                        if match is not None:
                            matched.append(
                                (rule, places_of(match) if sure and not isinstance(match, Unknown) else None)
                            )
                        break
        return matched

    def _signs(self, found: Iterable[bytes], text: str, look: Look) -> tuple[list[Signed], list[Sign]]:
        matched: list[Signed] = []
        unfinished = []
        for word in found:
            for sign, (pattern, sure, needles) in self.signs.get(word, ()):
                if pattern is None:
                    matched.append((sign, None))
                    continue
                match = None
                for needle in needles if look is _plainly else ("",):
                    if needle in text:
                        match = look(pattern, text)
                        break
                if match is UNKNOWN and sign.wrapped:
                    raise IdentitiesDecide
                if match is not None:
                    matched.append((sign, places_of(match) if sure and not isinstance(match, Unknown) else None))
                elif sign.wrapped and _surely(look(_literally(sign.wrapped), text)) and len(text) < 400:
                    unfinished.append(sign)
        return matched, unfinished


def _may_tell(text: bytes) -> bool:
    """Whether a line, or one of several, may tell something without a trigger."""
    for letter, telling in _TELLING_BY_LETTER:
        if letter in text:
            for each in telling:
                if each in text:
                    return True
    if b"{" in text and _JSON.search(text) is not None:
        return True
    return (text[:1] == b" " or b"\n " in text) and _SECTION.search(text) is not None


@cache
def _literally(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


def _surely(found: re.Match[str] | Unknown | None) -> bool:
    """Whether something was found, whatever the ids are."""
    if found is UNKNOWN:
        raise IdentitiesDecide
    return found is not None


def _all_sure(*found: Iterable[tuple[Rule | Sign, Places | None]]) -> bool:
    return all(places is not None for each in found for _, places in each)


def _sure(found: Iterable[tuple[Rule | Sign, Places | None]]) -> bool:
    """Whether any of these is found in every line of the shape."""
    return any(places is not None for _, places in found)


def _votes(rules: Iterable[Ruled], signs: Iterable[Signed], *, of_sglang: bool) -> tuple[tuple[str, int], ...]:
    """What every line of the shape votes for."""
    votes: dict[str, int] = {"sglang": 4} if of_sglang else {}
    for rule, places in rules:
        if places is not None and rule.votes:
            votes[rule.kind] = votes.get(rule.kind, 0) + rule.votes
    for sign, places in signs:
        if places is not None and sign.kind:
            votes[sign.kind] = votes.get(sign.kind, 0) + SIGN_VOTES
    return tuple(votes.items())


SIGN_VOTES = 3
