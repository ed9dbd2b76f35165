"""Follow a stream: its lines go to the rules of a Book, and what they tell becomes a Story that can be read at any time."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from apps.diagnosis.alike import BLUR, Found, Places, places_of
from apps.diagnosis.book import GENERIC, NOTHING, SIGN_VOTES, VLLM_PROCESSES, Book, Rule, Shape
from apps.diagnosis.frames import superseded
from apps.diagnosis.lines import NOBODY, Bar, Origin, Splitter, clean, origin_of, uncarried
from apps.diagnosis.reading import Reading
from apps.diagnosis.signs import Sign
from apps.diagnosis.story import Line, Story, rank_of, tell

MOST_ORIGINS = 4096  # process prefixes that are remembered
PARTS = (256, 16)  # lines that are passed over at once; fewer where one among more tells something
FOLLOWING = 8  # lines after a sign whose text may be broken over several


class LogReader:
    """Reads one stream with a Book of rules. The result depends on the bytes alone, never on how they were cut."""

    def __init__(self, book: Book, kind: str = "") -> None:
        """`kind`: what the stream is known to be; "" lets the votes of the rules decide."""
        self._book, self._kind = book, kind
        self._splitter = Splitter()
        self._story = Story()
        self._number = 0
        self._closed = False
        self._nothing_told = False  # by most of the lines before
        self._owner = NOBODY  # of the line that a bar redraws: its prefix was printed once, before the first \r

    def feed(self, data: bytes) -> None:
        if data:
            frames = b"%|" in data or b"B/s" in data or b"%" in self._splitter.tail
            self._take(self._splitter.feed(data), frames=frames)

    def close(self) -> None:
        self._take(self._splitter.close(), frames=False)
        self._closed = True

    def reading(self) -> Reading:
        """What is known now. A bar frame that stands whole in a line that has not ended counts already."""
        story = self._story
        tail = self._splitter.tail
        if tail and not self._closed and b"%" in tail:
            raw, shape = self._shape(tail)
            if shape.bars:
                story = copy.deepcopy(story)
                take(story, shape, self._line(raw, shape, self._number + 1))
        return tell(story, self._kind, ended=self._closed)

    def _take(self, lines: Sequence[bytes], *, frames: bool) -> None:
        """Lines that tell nothing are passed over many at a time, where the last ones were such."""
        if not self._nothing_told or len(lines) < PARTS[0]:
            self._read(lines, frames=frames)
        else:
            self._pass_over(lines, PARTS, frames=frames)

    def _pass_over(self, lines: Sequence[bytes], parts: Sequence[int], *, frames: bool) -> None:
        if self._passed(lines):
            return
        if not parts or not self._nothing_told:
            self._read(lines, frames=frames)
            return
        for at in range(0, len(lines), parts[0]):
            self._pass_over(lines[at : at + parts[0]], parts[1:], frames=frames)

    def _passed(self, lines: Sequence[bytes]) -> bool:
        """Whether these lines tell nothing, and were passed over."""
        if any(lines):
            if self._story.open_sign is not None or not self._book.tell_nothing(lines):
                return False
            self._owner = NOBODY
        self._number += len(lines)
        return True

    def _read(self, lines: Sequence[bytes], *, frames: bool) -> None:
        """`frames`: there may be frames of bars among them."""
        story, book = self._story, self._book
        known, nothing = book.carried.get, NOTHING
        shapes = b"\n".join(lines).translate(BLUR).split(b"\n")
        passed = superseded(lines, shapes) if frames and len(lines) > 2 else []
        before = frozenset(passed)  # places, from 1, of frames that later ones say again
        plain: dict[int, dict[str, int]] = {}  # votes of these frames, where nothing but a bar was in them
        again: dict[int, int] = {}  # how often each of them was passed over
        first, told = self._number, 0
        for place, raw in enumerate(lines, 1):
            if not raw:
                continue
            if passed and (said := passed[place - 1]) and said in plain and story.open_sign is None:
                again[said] = again.get(said, 0) + 1
                continue
            if story.ready and _serves(raw):
                self._only_goes_on(raw)
                continue
            shape = known(shapes[place - 1]) or book.unseen(raw, shapes[place - 1])
            if shape is nothing and story.open_sign is None:
                self._owner = NOBODY
                continue
            told += 1
            if shape.wrapped_up:
                raw, shape = self._freed(raw)
            if shape.nothing:
                self._pass_by(raw, shape)
                self._owner = _only_a_prefix(raw) if shape.owns else NOBODY
                continue
            if before and shape.only_a_bar and place in before:
                measured = dict(story.votes)
                take(story, shape, self._line(raw, shape, first + place))
                if story.open_sign is None:
                    get = measured.get
                    plain[place] = {kind: n - get(kind, 0) for kind, n in story.votes.items() if n != get(kind, 0)}
            else:
                take(story, shape, self._line(raw, shape, first + place))
            if not shape.bars:
                self._owner = _only_a_prefix(raw) if shape.owns else NOBODY
        for place, times in again.items():
            for kind, votes in plain[place].items():
                story.votes[kind] += votes * times
        self._number += len(lines)
        self._nothing_told = told * 8 < len(lines)

    def _shape(self, raw: bytes) -> tuple[bytes, Shape]:
        shape = self._book.shape(raw)
        return self._freed(raw) if shape.wrapped_up else (raw, shape)

    def _freed(self, raw: bytes) -> tuple[bytes, Shape]:
        """The line without colours and the JSON around it, and its shape."""
        raw = clean(uncarried(clean(raw)))
        return raw, self._book.shape(raw, carried=False)

    def _line(self, raw: bytes, shape: Shape, number: int) -> Line:
        text, at = raw.decode("utf-8", "replace"), shape.text_at
        if not at and not shape.bars:
            return Line(number, text, NOBODY, None, (), shape.stamped)
        origin = NOBODY
        if at:
            if at != shape.prefix_at:
                origin = _origin(text[shape.prefix_at : at])
            text = text[at:]
        bars: tuple[Bar, ...] = ()
        if shape.bars:
            bars = tuple([places.read(text) for places in shape.bars])
            if origin is NOBODY:
                # A bar without a prefix of its own belongs to whoever printed the prefix before its first \r.
                origin = self._owner
        rank = None if origin is NOBODY else rank_of(self._story, origin)
        return Line(number, text, origin, rank, bars, shape.stamped)

    def _only_goes_on(self, raw: bytes) -> None:
        """A line that tells nothing by itself."""
        if self._story.open_sign is not None:
            self._go_on(raw)
        self._owner = _only_a_prefix(raw) if raw[-1:] in b") \t" and b"pid=" in raw else NOBODY

    def _pass_by(self, raw: bytes, shape: Shape) -> None:
        """A line that tells at most whose it is."""
        story = self._story
        if story.open_sign is not None:
            self._go_on(raw)
        if shape.of_vllm:
            story.marks["vllm_process"] = True
        for kind, votes in shape.votes:
            story.votes[kind] += votes

    def _go_on(self, raw: bytes) -> None:
        _go_on(self._story, origin_of(uncarried(clean(raw)).decode("utf-8", "replace"))[1])


@lru_cache(MOST_ORIGINS)
def _origin(prefix: str) -> Origin:
    return origin_of(prefix)[0]


def _serves(raw: bytes) -> bool:
    """Whether the line only says that a server which is ready serves; long logs consist of these."""
    return (
        b'" 200 OK' in raw or b"Avg generation throughput" in raw or b"Decode batch" in raw or b"Prefill batch" in raw
    )


_PREFIXES = re.compile(rb"[^(]{0,200}+(?:\([^()]{1,160}+\)[ \t]*+){1,4}+")


def _only_a_prefix(raw: bytes) -> Origin:
    """Who a line belongs to that is nothing but process prefixes; NOBODY for every other line."""
    if _PREFIXES.fullmatch(raw) is None:
        return NOBODY
    origin, rest = origin_of(uncarried(clean(raw)).decode("utf-8", "replace"))
    return origin if not rest.strip() else NOBODY


def take(story: Story, shape: Shape, line: Line) -> None:
    """What a line of this shape changes in the story."""
    match: re.Match[str] | None = None  # of the only rule, where that one had to be searched for
    if story.open_sign is not None:
        _go_on(story, line.text)
    if shape.unsure:
        if not shape.more and len(shape.rules) == 1:
            match = shape.rules[0][0].pattern.search(line.text)
            if match is None:
                return
        elif not _says_anything(shape, line.text):
            return
    for kind, votes in shape.votes:
        story.votes[kind] += votes
    if shape.of_sglang:
        story.marks["sglang"] = True
    text = line.text
    if shape.of_vllm or (line.bars and line.origin.process.startswith(VLLM_PROCESSES)):
        story.marks["vllm_process"] = True
    for rule, places in shape.rules:
        if places is None:
            if match is None:
                _search(rule, story, line)
                continue
            if rule.votes:  # they are not among those of the shape
                story.votes[rule.kind] += rule.votes
            places = places_of(match)
        try:
            rule.act(story, Found(text, places), line)
        except (ValueError, OverflowError):
            pass  # "1.2.3 GiB": figures that are none; such a line tells nothing
    if not shape.more:
        return
    if shape.in_ray_section and "ray_section" in story.marks:
        for rule, places in shape.in_ray_section:
            _apply(rule, places, story, line)
    for sign, places in shape.signs:
        _show(sign, places, story, line)
    if shape.unfinished and story.open_sign is None:
        story.open_sign = (shape.unfinished[0], line.number, line.text, line.rank, FOLLOWING)
    if shape.exception:
        story.doubt(GENERIC, line, _speaking(story, line))


def _says_anything(shape: Shape, text: str) -> bool:
    rules = [rule.pattern for rule, _ in (*shape.rules, *shape.in_ray_section)]
    signs = [sign.pattern for sign, _ in shape.signs]
    return any(pattern.search(text) for pattern in (*rules, *signs))


def _search(rule: Rule, story: Story, line: Line) -> None:
    """A rule that tells digits apart: each line has to be searched."""
    match = rule.pattern.search(line.text)
    if match is not None:
        _apply(rule, places_of(match), story, line)


def _apply(rule: Rule, places: Places | None, story: Story, line: Line) -> None:
    """A rule whose votes are not among those of the shape."""
    if places is None:
        _search(rule, story, line)
        return
    if rule.votes:
        story.votes[rule.kind] += rule.votes
    try:
        rule.act(story, Found(line.text, places), line)
    except (ValueError, OverflowError):
        return


def _show(sign: Sign, places: Places | None, story: Story, line: Line) -> None:
    if places is None:
        match = sign.pattern.search(line.text)
        if match is None:
            return
        places = places_of(match)
        if sign.kind:
            story.votes[sign.kind] += SIGN_VOTES
    if sign.strength not in story.signs:
        values = {**sign.values, **_extracted(sign, Found(line.text, places))}
        story.suspect(sign, line.number, line.text, _speaking(story, line), values, line.origin.key)


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


def _extracted(sign: Sign, found: Found) -> dict[str, Any]:
    try:
        return sign.extract(found)
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
        story.suspect(sign, number, whole, rank, {**sign.values, **_extracted(sign, Found(whole, places_of(match)))})
    elif left <= 1 or len(whole) > 4_000:
        story.open_sign = None
    else:
        story.open_sign = (sign, number, whole, rank, left - 1)
