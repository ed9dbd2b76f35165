"""Lines that differ in their ids only are searched once: that is right only where the ids decide nothing."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.diagnosis import identities
from apps.diagnosis.alike import names_digits, shape_of
from apps.diagnosis.book import Book
from apps.diagnosis.explaining import BOOK, as_json, explain_all
from apps.diagnosis.identities import SHORTEST, UNKNOWN, VEIL, Unknown, search, veiled
from tests.diagnosis.test_alike import LINES, SEARCHED, each_for_itself  # noqa: F401 - a fixture

RUN = st.text("0123456789abcdef", min_size=SHORTEST, max_size=64).filter(lambda text: re.search("[a-f]", text))
GROUP = st.text("0123456789abcdef", min_size=4, max_size=4) | st.just("dead")
GROUPS = st.lists(GROUP, min_size=5, max_size=5)
UUID = GROUPS.map(lambda g: f"{g[0] * 2}-{g[1]}-{g[2]}-{g[3]}-{g[4] * 3}")
IDENTITY = RUN | UUID | st.text("0123456789abcdef", min_size=4, max_size=12).map("0x{}".format)
SENTENCES = (
    "{}: Pulling fs layer",
    "{}: Pull complete",
    " {} Extracting [====>  ]  12.3MB/1.2GB",
    "Copying blob sha256:{} done",
    "The node with node id: {} and address: 192.168.200.13 has been marked dead because",
    "(raylet) Worker {} with pid 77 exited with code 1: killed due to memory pressure (OOM), at node (ID: {}, IP: 10.0.0.1)",
    "(raylet) node {} terminated",
    " 1 node_{}",
    "Node: {}",
    "3  {}  192.168.200.13  True  ALIVE",
    "3  {}  192.168.200.13  False  DEAD",
    "CUDA error: {}",
    "undefined symbol: {}",
    "rsync error: some files {} (code 23)",
    "couldn't bind to server socket {}",
    "spark:77:78 [0] NCCL INFO comm {} rank 0 nranks 2 - Init COMPLETE",
    "exited with code {}",
    "{} | Error: {} failed: dead added ecc",
    "RuntimeError: {} {}",
    "{} RuntimeError: {}",
    "[rank0]: {} ValueError: x",
    "(EngineCore_DP0 pid=77) ERROR 11-30 10:00:00 [core.py:1] EngineCore failed to start {}",
    "(Worker_TP0 pid=77, id={} rank=1) Available KV cache memory: 3.2 GiB {}",
    "port {} GiB {} free: error, waiting for device {}",
)


def with_ids(text: str, draw: Callable[[], str]) -> str:
    return re.sub(r"\{\}", lambda _: draw(), text)


@st.composite
def alike(draw: st.DrawFn) -> list[str]:
    """Lines of few sentences, each with ids of its own that are as long as those of the others."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 5))):
        sentence = draw(st.sampled_from(SENTENCES))
        ids = [draw(IDENTITY) for _ in range(sentence.count("{}"))]
        how = draw(st.sampled_from(["{}", "{}", "raylet-1  | {}", "Nov 30 10:00:00 spark docker[7]: {}", "json"]))
        for _ in range(draw(st.integers(1, 6))):
            turn = iter([_other(each, draw) for each in ids])
            line = with_ids(sentence, lambda turn=turn: next(turn))  # type: ignore[misc]
            lines.append(json.dumps({"log": line + "\n"}) if how == "json" else how.format(line))
    return lines


def _other(identity: str, draw: Callable[..., str]) -> str:
    head, tail = ("0x", identity[2:]) if identity.startswith("0x") else ("", identity)
    return head + "".join(each if each == "-" else draw(st.sampled_from("0123456789abcdef")) for each in tail)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(alike(), st.permutations(range(6)))
def test_ever_new_ids_are_read_as_each_line_for_itself(
    each_for_itself: Callable[[bytes], object],  # noqa: F811
    lines: list[str],
    order: list[int],
) -> None:
    for table in (BOOK.carried, BOOK.freed, BOOK.carried_kinds, BOOK.freed_kinds):
        table.clear()  # type: ignore[attr-defined]
    lines = [lines[place] for place in order if place < len(lines)] + lines
    data = "\n".join(lines).encode()
    assert [as_json(reading) for reading in explain_all(data)] == each_for_itself(data)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([line for line in LINES if b"%" not in line]), st.data())
def test_what_every_pattern_finds_whatever_the_ids_are(line: bytes, data: st.DataObject) -> None:
    words = line.decode("utf-8", "replace").split(" ")
    place = data.draw(st.integers(0, len(words) - 1))
    first = data.draw(IDENTITY)
    text = " ".join([*words[:place], words[place] + "{}", *words[place + 1 :]])
    if "{}" not in text or text.count("{}") > 1:
        return
    ids = veiled(shape_of(text.replace("{}", first).encode()))
    if ids is None:
        return
    other = text.replace("{}", _other(first, data.draw))
    for pattern in SEARCHED:
        found = search(pattern, ids.text)
        if isinstance(found, Unknown) or names_digits(pattern.pattern):
            continue
        match = pattern.search(other)
        assert (found and found.regs) == (match and match.regs), pattern.pattern


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"id: (?P<id>[0-9a-f]{8}) (?P<word>\w+)", "id: ªªªªªªªª gone", [(0, 17), (4, 12), (13, 17)]),
        (r"id: \S+ gone", "id: ªªªªªªªª gone", [(0, 17)]),
        (r"code \d+", "code ªªªªªªªª", UNKNOWN),
        (r"\bdead\b", "ªªªªªªªª", None),
        (r"marked dead", "ªªªªªªªª marked dead", [(9, 20)]),
        (r"id (?!dead)\w", "id ªªªªªªªª", UNKNOWN),
        (r"id (?!beef)", "id xªªªªªªªª", [(0, 3)]),
        (r"(a)\1", "ªªªªªªªª", UNKNOWN),
        (r"[^0-9]x", "ªªªªªªªªx", UNKNOWN),
        (r"[g-z]{2}", "ªªªªªªªª", None),
        (r"(?i)ERROR: [A-F]", "error: ªªªªªªªª", UNKNOWN),
    ],
)
def test_search(pattern: str, text: str, found: object) -> None:
    match = search(re.compile(pattern), text)
    assert (match if isinstance(match, Unknown) or match is None else list(match.regs)) == found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"4f4fb700ef54: Waiting", b"\x01" * 12 + b": Waiting"),
        (b"node 00000000 of 00000000a", b"node 00000000 of " + b"\x01" * 9),
        (b"at 0x00a0 and 00a0", b"at 0x\x01\x01\x01\x01 and 00a0"),
        (
            b"0000000a-0000-a000-0000-0000000000aa",
            b"\x01" * 8 + b"-" + b"-".join([b"\x01" * 4] * 3) + b"-" + b"\x01" * 12,
        ),
    ],
)
def test_veiled(line: bytes, expected: bytes) -> None:
    ids = veiled(line)
    assert ids is not None and ids.line == expected and ids.text == expected.decode().replace("\x01", VEIL)


@pytest.mark.parametrize("line", [b"no ids", b"bytes 00000000", b"4f4fb700ef54 \x01", "4f4fb700ef54 ª".encode()])
def test_not_veiled(line: bytes) -> None:
    assert veiled(line) is None


def test_no_word_with_an_id_is_a_trigger() -> None:
    assert not [word for word in BOOK.triggers if re.search(rb"[0a-f]{8}|0x[0a-f]", word)]
    assert BOOK.in_uuids == (b"-dead-",)
    assert not [
        entry
        for table in (BOOK.rules, BOOK.signs)
        for each in table.values()
        for entry, _ in each
        if VEIL in entry.pattern.pattern
    ]


def test_lines_with_ever_new_ids_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, searched = random.Random(4), 0
    sentences = [each for each in SENTENCES[:10] if "with pid" not in each]
    lines = [with_ids(chance.choice(sentences), lambda: f"a{chance.randrange(16**11):011x}") for _ in range(4_000)]
    before = Book.search

    def counts(book: Book, line: bytes, **how: object) -> object:
        nonlocal searched
        searched += 1
        return before(book, line, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Book, "search", counts)
    explain_all("\n".join(lines).encode())
    assert searched < 200


def test_lines_that_tell_nothing_are_passed_over(each_for_itself: Callable[[bytes], object]) -> None:  # noqa: F811
    """Numbers and owners stay right beside them."""
    dull = [f"some words {number * 7919:x} zz" for number in range(3_000)]
    told = "(Worker_TP1 pid=77) \r  5% Completed | 2/39 [00:10<00:50,  1.29s/it]"
    lines = [*dull, "", *[""] * 600, told, *dull, "RuntimeError: no more", *dull]
    data = "\n".join(lines).encode()
    pieces = [data[at : at + 9_000] for at in range(0, len(data), 9_000)]
    assert [as_json(reading) for reading in explain_all(pieces)] == each_for_itself(data)


def test_bounds_keep_the_names_of_groups() -> None:
    found = [identities._bounds(pattern) for pattern in SEARCHED]
    known = [(each, pattern) for each, pattern in zip(found, SEARCHED, strict=True) if each is not None]
    assert len(known) > len(SEARCHED) * 0.9
    assert all(each.must.groupindex == each.may.groupindex == pattern.groupindex for each, pattern in known)
