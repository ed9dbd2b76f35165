"""Words of a command line: the shell's where it is plain, named where it is not, never run."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.recipes.formats import command_text, placeholders
from apps.recipes.formats.imported import Unreadable


def words(text: str) -> list[str]:
    return [word for one in command_text.split(text) for word in one.texts]


PLAIN = st.text(st.sampled_from(list("ab '\"\\{}=-/#é")), max_size=25)


@settings(max_examples=400, deadline=None)
@given(PLAIN)
def test_plain_text_is_split_as_shlex_does(text: str) -> None:
    try:
        expected: list[str] | None = shlex.split(text, comments=False)
    except ValueError:
        expected = None
    if re.search(r"(^|[^\\\S'\"]|\s)#", text) or text.endswith("\\") or re.search(r"\\\s", text):
        return  # comments, and a backslash in front of blanks that end a pasted line: more lenient on purpose
    if expected is None:
        with pytest.raises(Unreadable):
            command_text.split(text)
    else:
        assert words(text) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), max_size=12),
        min_size=1,
        max_size=5,
    )
)
def test_quoted_words_come_back(given_words: list[str]) -> None:
    found = command_text.split(shlex.join(given_words))
    if given_words != [""] * len(given_words) or found:
        assert [word for one in found for word in one.texts] == given_words
        assert not any(word.expands for one in found for word in one.words)
        assert len(found) == 1 and not found[0].redirects


CASES = {
    "a; b && c || d | e & f": ["a", "b", "c", "d", "e", "f"],
    "a \\\n  b \\   \n c": ["a b c"],
    "a # not this\nb": ["a", "b"],
    "a ';' '|' \"&&\"": ["a ; | &&"],
    "(a)": ["a"],
    "a\r\nb": ["a", "b"],
}


@pytest.mark.parametrize("text", CASES)
def test_where_a_command_ends(text: str) -> None:
    assert [" ".join(one.texts) for one in command_text.split(text)] == CASES[text]


@pytest.mark.parametrize(
    ("text", "word", "expands"),
    [
        ("$HOME", "$HOME", True),
        ('"a$B"', "a$B", True),
        ("${A:-8000}", "8000", False),
        ("${A:?must}", "${A:?must}", True),
        ("$(id; echo 'a b')", "$(id; echo 'a b')", True),
        ("`id`", "`id`", True),
        ("'$HOME'", "$HOME", False),
        ("\\$HOME", "$HOME", False),
        ("$", "$", False),
        ("a$", "a$", False),
        ("$(never closed", "$(never closed", True),
    ],
)
def test_expansions_are_named_not_done(text: str, word: str, expands: bool) -> None:
    one = command_text.split(text)[0].words[0]
    assert (one.text, one.expands) == (word, expands)


@pytest.mark.parametrize(
    ("text", "redirects"),
    [
        ("a 2>&1", ("2>&1",)),
        ("a > b", (">b",)),
        ("a &>/dev/null", ("&>/dev/null",)),
        ("a < b 2>c", ("<b", "2>c")),
        ("a >>'x y'", (">>x y",)),
    ],
)
def test_redirections(text: str, redirects: tuple[str, ...]) -> None:
    (one,) = command_text.split(text)
    assert one.texts == ("a",) and one.redirects == redirects


@pytest.mark.parametrize("text", ["'a", '"a', "a\n'b", "x" * (command_text.LONGEST + 1), "a " * 5000])
def test_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        command_text.split(text)


def test_lines() -> None:
    found = command_text.split("a \\\n b\n\nc 'x\ny' d", first_line=10)
    assert [(word.text, word.line) for one in found for word in one.words] == [
        ("a", 10), ("b", 11), ("c", 13), ("x\ny", 13), ("d", 14),
    ]  # fmt: skip


# Placeholders

SAFE = st.dictionaries(
    st.sampled_from(["port", "host", "a_1"]), st.one_of(st.integers(), st.text("xy{} ", max_size=5)), min_size=3
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["{port}", "{host}", "{a_1}", "{{", "}}", " ", "x", '"']), max_size=12).map("".join), SAFE
)
def test_one_pass_is_what_python_formats(text: str, values: dict[str, object]) -> None:
    try:
        expected = text.format(**values)
    except (ValueError, KeyError, IndexError):
        return
    assert placeholders.filled_once(text, values) == expected


@pytest.mark.parametrize(
    "text", ["{port.__class__}", "{port[0]}", "{port!r}", "{port:>99999999}", "{0}", "{}", "{missing}", "{", "}"]
)
def test_nothing_else_is_a_field(text: str) -> None:
    with pytest.raises(Unreadable) as caught:
        placeholders.filled_once("a\n" + text, {"port": 1}, line=5)
    assert caught.value.line == 6


def test_again_and_again() -> None:
    assert placeholders.filled_again("{a} {b.c} {x}", {"a": "{b}", "b": "1"}) == ("1 {b.c} {x}", ["x"])
    assert placeholders.filled_again('{"j": {"k": 1}} {a}', {"a": 2}) == ('{"j": {"k": 1}} 2', [])
    assert placeholders.filled_again('{{"j": {{"k": {a}}}}}', {"a": 2}) == ('{"j": {"k": 2}}', [])
    with pytest.raises(Unreadable):
        placeholders.filled_again("{a}", {"a": "{b}", "b": "{a}x"})
    with pytest.raises(Unreadable):
        placeholders.filled_again("{a}", {"a": "{b}{b}{b}" * 2000, "b": "{c}" * 500, "c": "x" * 500})
