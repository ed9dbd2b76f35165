"""Lines that differ in digits only are searched once: that is right only where no pattern tells digits apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.diagnosis import following, frames, lines
from apps.diagnosis.alike import Found, any_digits, blurred, names_digits, places_of, shape_of
from apps.diagnosis.book import Book
from apps.diagnosis.explaining import BOOK, as_json, explain_all
from apps.diagnosis.lines import bars
from apps.diagnosis.needles import needles_of

LOGS = [path.read_bytes() for path in sorted((Path(__file__).parent.parent / "cases").glob("*/input.*"))]
SAID = [path.read_bytes() for path in sorted((Path(__file__).parent / "said").glob("*.txt"))]
LINES = sorted({line for log in (*LOGS, *SAID) for line in re.split(rb"[\r\n]+", log) if 0 < len(line) < 400})
SEARCHED = sorted(
    {entry.pattern for table in (BOOK.rules, BOOK.signs) for entries in table.values() for entry, _ in entries},
    key=lambda pattern: pattern.pattern,
)
OTHERS = [pattern for pattern in (*vars(lines).values(), *vars(frames).values()) if isinstance(pattern, re.Pattern)]
# Of those that only names, figures and rates are looked at with: none of them decides where a line is cut.
FREE = {lines._TAG, lines._RANK, lines.RANK_TAG, lines._ANSI}


def other_digits(text: str, digits: str) -> str:
    """The text with these digits in place of its own."""
    turn = iter(digits * (len(text) // max(len(digits), 1) + 1))
    return re.sub("[0-9]", lambda _: next(turn), text)


DIGITS = st.text("0123456789", min_size=1, max_size=12)


@st.composite
def matched(draw: st.DrawFn) -> tuple[re.Pattern[str], str]:
    pattern = draw(st.sampled_from(SEARCHED))
    return pattern, draw(st.from_regex(pattern))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(matched(), DIGITS)
def test_what_every_pattern_finds(found: tuple[re.Pattern[str], str], digits: str) -> None:
    pattern, text = found
    match = pattern.search(text)
    assert match is not None
    known = re.findall(r"[a-z]+", pattern.pattern.lower())
    assert any(needle in text for needle in needles_of(pattern, known=" ".join(known[:2])) or ("",))
    assert any(needle in text for needle in needles_of(pattern) or ("",))
    looser = any_digits(pattern)
    if names_digits(pattern.pattern):
        assert looser is None or looser.search(blurred(text))
        return
    again = pattern.search(other_digits(text, digits))
    assert again is not None and again.regs == match.regs


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(LINES), st.sampled_from(SEARCHED), DIGITS)
def test_no_pattern_tells_digits_apart_unnoticed(line: bytes, pattern: re.Pattern[str], digits: str) -> None:
    text = line.decode("utf-8", "replace")
    other = other_digits(text, digits)
    first, second = pattern.search(text), pattern.search(other)
    if not names_digits(pattern.pattern):
        assert (first and first.regs) == (second and second.regs)
    elif first is not None:
        looser = any_digits(pattern)
        assert looser is None or looser.search(blurred(other))


def test_what_cuts_lines_tells_no_digits_apart() -> None:
    source = [each.pattern.decode() if isinstance(each.pattern, bytes) else each.pattern for each in OTHERS]
    assert not [text for text, each in zip(source, OTHERS, strict=True) if each not in FREE and names_digits(text)]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"took (?P<s>[\d.]+) s", False),
        (r"[0-9a-f]{12,40}", False),
        (r"x{2}\d{1,3}", False),
        (r"\[Errno 98\]", True),
        (r"[ 0-3]\d", True),
        (r"\{2}", True),
        (r"(a)\1", True),
        (r"\u2588", True),
    ],
)
def test_names_digits(pattern: str, names: bool) -> None:
    assert names_digits(pattern) is names


@pytest.mark.parametrize(
    ("pattern", "needles"),
    [
        (r"NVRM: Xid \(.{1,40}\): (?P<xid>\d+)", ("NVRM: Xid (",)),
        (r"a|bcd", ("a", "bcd")),
        (r"a|\d", ()),
        (r"(?:abc|def)gh?", ("abc", "def")),
        (r"(?:abc|def)?g", ("g",)),
        (r"(?i)abc", ()),
        (r"abc*dxe+f", ("dxe",)),
        (r"[a\]b]cd\u2588efg\s{1,8}h", ("efg",)),
        (r"ab{2}cde", ("cde",)),
        (r"x(?P<a>yw(z|zz)k)v{0,3}", ("yw",)),
        (r"^(?!.*abcdef)gh(?<!yyyy)", ("gh",)),
        (r"\(raylet\).{0,200}(?:ended|marked dead|GCS.{0,40}unreachable)", ("(raylet)",)),
        (r"(\.service): (?:Failed with|A process of)", ("Failed with", "A process of")),
    ],
)
def test_needles_of(pattern: str, needles: tuple[str, ...]) -> None:
    assert needles_of(re.compile(pattern)) == needles


def test_what_is_known_need_not_be_looked_for() -> None:
    pattern = re.compile(r"\(raylet\).{0,200}(?:ended|marked dead|GCS.{0,40}unreachable)")
    assert needles_of(pattern, known="raylet") == ("ended", "marked dead", "unreachable")


def test_signs_that_may_be_broken_over_lines_tell_no_digits_apart() -> None:
    broken = [sign for signs in BOOK.signs.values() for sign, _ in signs if sign.wrapped]
    assert broken and not [sign.wrapped for sign in broken if names_digits(sign.pattern.pattern + sign.wrapped)]


def test_any_digits() -> None:
    assert any_digits(re.compile(r"Errno (?:98|13)[1-4]{2}")).pattern == r"Errno (?:\d\d|\d\d)[\d]{2}"  # type: ignore[union-attr]
    assert any_digits(re.compile(r"port (?!65535)\d+")) is None


def test_found_is_read_as_a_match_is() -> None:
    text = "took 12 s"
    match = re.search(r"took (?P<s>\d+)(?P<none>x)?", text)
    assert match is not None
    found = Found(text, places_of(match))
    assert found.groupdict() == match.groupdict() and (found["s"], found["none"]) == ("12", None)


MIXED = st.lists(
    st.tuples(st.sampled_from(LINES), DIGITS, st.sampled_from(["", "own", "own", "json", "journald", "colour"])),
    max_size=40,
)


def written(line: bytes, digits: str, how: str) -> bytes:
    if how != "own":
        line = other_digits(line.decode("utf-8", "surrogateescape"), digits).encode("utf-8", "surrogateescape")
    if how == "json":
        return b'{"log":"' + line.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'\\n","stream":"stderr"}'
    if how == "journald":
        return b"Nov 30 10:00:00 spark-1a32 docker[77]: " + line
    return b"\x1b[0;36m" + line + b"\x1b[0m" if how == "colour" else line


@pytest.fixture(scope="module")
def each_for_itself() -> Iterator[Any]:
    """Searches every line anew and reads every frame."""

    def read(data: bytes) -> list[dict[str, Any]]:
        remembered = dict(BOOK.carried)
        BOOK.carried.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Book, "shape", Book.search)
            patch.setattr(Book, "unseen", lambda book, line, _: book.search(line))
            patch.setattr(Book, "tell_nothing", lambda book, lines: False)
            patch.setattr(following, "_origin", lambda prefix: lines.origin_of(prefix)[0])
            patch.setattr(following, "superseded", lambda lines, shapes: [])
            found = [as_json(reading) for reading in explain_all(data)]
        assert not BOOK.carried
        BOOK.carried.update(remembered)
        return found

    yield read


@settings(max_examples=150, deadline=None)
@given(MIXED, st.sampled_from([b"\n", b"\r", b"\r\n"]), st.lists(st.integers(0, 9000), max_size=4))
def test_the_same_as_each_line_for_itself(
    each_for_itself: Any, picked: list[tuple[bytes, str, str]], end: bytes, cuts: list[int]
) -> None:
    data = end.join([written(*each) for each in picked])
    expected = each_for_itself(data)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    assert [as_json(reading) for reading in explain_all([data[a:b] for a, b in pairwise(edges)])] == expected


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([line for line in LINES if b"%" in line]), DIGITS)
def test_bars_of_one_shape_stand_at_the_same_places(line: bytes, digits: str) -> None:
    text = line.decode("utf-8", "replace")
    other = other_digits(text, digits)
    assert [places.read(other) for places in lines.bar_places(text)] == list(bars(other))
    assert frames.frame_of(shape_of(line)) is None or frames.frame_of(other.encode()) is not None
