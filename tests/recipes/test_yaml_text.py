"""YAML of strangers: what is refused, with its line, and what comes back as it was."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.recipes.formats.imported import Unreadable
from apps.recipes.formats.yaml_text import dump, load

REFUSED = {
    "tag": ("a: 1\nb: !!python/object/apply:os.system [id]\n", 2, "tag"),
    "own tag": ("a: !x 1\n", 1, "tag"),
    "binary": ("a: !!binary aGk=\n", 1, "tag"),
    "twice": ("a: 1\nb: 2\na: 3\n", 3, "twice"),
    "twice inside": ("x:\n  a: 1\n  'a': 3\n", 3, "twice"),
    "broken": ("a: [1\nb: 2\n", 2, "no YAML"),
    "tab": ("a:\n\tb: 1\n", 2, "no YAML"),
    "alias of nothing": ("a: *b\n", 1, "stands for nothing"),
    "within itself": ("a: &a\n  b: *a\n", 2, "stands for nothing"),
    "two documents": ("a: 1\n---\nb: 2\n", 2, "second document"),
    "key is a list": ("? [a, b]\n: 1\n", 1, "key"),
    "control": ("a: 1\nb: \x07\n", 2, "character"),
    "escaped NUL": ('a: "\\0"\n', 1, "NUL"),
    "half a character": ('a: 1\nb: "\\ud83d"\n', 2, "NUL|no YAML|character"),
    "merge of a text": ("a:\n  <<: x\n", 2, "<<"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_line(name: str) -> None:
    text, line, words = REFUSED[name]
    with pytest.raises(Unreadable, match=words) as caught:
        load(text)
    assert caught.value.line == line
    assert caught.value.remedy


def test_a_bomb_of_aliases_is_not_written_out() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for number in range(1, 12):
        text += f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]\n"
    with pytest.raises(Unreadable, match="more than 20000 values"):
        load(text)


@pytest.mark.parametrize(
    "text", ["[" * 500_000, "{a: " * 100_000, "- " * 300_000, "a:\n" + "".join(" " * n + "a:\n" for n in range(1, 900))]
)
def test_depth_is_bounded_at_once(text: str) -> None:
    with pytest.raises(Unreadable):
        load(text)


def test_a_megabyte_is_read_or_refused_without_waiting_long() -> None:
    for text in (
        "a: " + "x" * 1_000_000,
        "\n".join(f"k{n}: v" for n in range(90_000)),
        "a: |\n" + "  line\n" * 150_000,
    ):
        began = time.process_time()
        try:
            load(text)
        except Unreadable as problem:
            assert "20000 values" in problem.message
        assert time.process_time() - began < 30


def test_values_are_those_of_both_families() -> None:
    text = "a: yes\nb: 08\nc: 1:30\nd: 1e3\ne: 0.85\nf: 2026-11-30\ng: ~\nh: 1_000\ni: .inf\nj: 'no'\nk: 0x1f\nl: |\n  two\n  lines\n"
    assert load(text).value == {
        "a": True, "b": "08", "c": "1:30", "d": "1e3", "e": 0.85, "f": "2026-11-30", "g": None, "h": 1000,
        "i": ".inf", "j": "no", "k": "0x1f", "l": "two\nlines\n",
    }  # fmt: skip


def test_merges_and_aliases_that_end() -> None:
    text = "x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\nz: [*x, *x]\n"
    assert load(text).value["y"] == {"a": 1, "b": 3}
    assert load(text).value["z"] == [{"a": 1, "b": 2}] * 2


def test_every_value_has_its_line() -> None:
    made = load("a:\n  - b: 1\n    c: |\n      text\n  - d\ne: {f: 2}\n")
    assert {path: made.lines[path] for path in ("a", "a[0]", "a[0].b", "a[0].c", "a[1]", "e.f")} == {
        "a": 2, "a[0]": 2, "a[0].b": 2, "a[0].c": 4, "a[1]": 5, "e.f": 6,
    }  # fmt: skip
    assert made.line("e.f.g.h") == 6 and made.line("nowhere") == 0


STORABLE = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"), max_size=30)
VALUES: Any = st.recursive(
    st.one_of(STORABLE, st.integers(-(10**15), 10**15), st.booleans(), st.none(), st.floats(0.001, 1000)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(STORABLE, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_what_is_written_is_read_the_same(value: Any) -> None:
    again = load(dump(value)).value
    assert again == value
    assert yaml.safe_load(dump(value)) == value
