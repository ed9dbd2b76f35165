"""Words and the handful of ways to join them, by their exact text and by what a real shell makes of them."""

from __future__ import annotations

import doctest
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps import shell
from apps.shell import (
    Command,
    Expanded,
    Shell,
    all_of,
    any_of,
    assign,
    becoming,
    choose,
    either,
    forgiving,
    into,
    leave,
    lines,
    merged,
    pipe,
    quiet,
    say,
    script,
    when,
    words,
)

A, B = Command.of("a", "x y"), Command.of("b")


def run(piece: Command | Shell, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-s"],
        input=piece.text,
        text=True,
        capture_output=True,
        check=False,
        timeout=30,
        env={"PATH": "/usr/bin:/bin", **environment},
    )


def test_texts() -> None:
    assert pipe(A, B).text == "a 'x y' | b"
    assert all_of(A, B).text == "a 'x y' && b"
    assert any_of(A, B).text == "{ a 'x y' || b; }"
    assert lines(A, B).text == "a 'x y'\nb"
    assert into(A, "/tmp/a file").text == "a 'x y' > '/tmp/a file'"
    assert quiet(A).text == "a 'x y' >/dev/null 2>&1"
    assert merged(A).text == "a 'x y' 2>&1"
    assert forgiving(A).text == "a 'x y' || :"
    assert becoming(A).text == "exec a 'x y'"
    assert script(A, B).text == "set -eu\na 'x y'\nb"
    assert either(A, B).text == "{ a 'x y' 2>/dev/null || b 2>/dev/null; }"
    assert say("it's", error=True).text == "printf '%s\\n' 'it'\"'\"'s' >&2"
    assert when(A, B, leave(3)).text == "if a 'x y'; then\nb\nelse\nexit 3\nfi"
    assert words("a", 1, Expanded("run=", "RUN")).text == 'a 1 "run=$RUN"'
    assert A.plus("z").words == ("a", "x y", "z")


def test_doctests() -> None:
    assert doctest.testmod(shell.command).failed == 0


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0")), min_size=1))
def test_words_come_back_as_they_were(given_words: list[str]) -> None:
    assert shlex.split(Command.of(*given_words).text) == given_words


def test_what_no_argv_can_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        Command.of("a", "b\0c")
    with pytest.raises(ValueError, match="at least one"):
        Command.of()


@pytest.mark.parametrize("prefix", ['"', "$", "`", "\\", "a\nb", "a\0"])
def test_a_prefix_is_plain(prefix: str) -> None:
    with pytest.raises(ValueError, match="plain characters"):
        words("a", Expanded(prefix, "RUN"))


@pytest.mark.parametrize("name", ["", "A B", "A;b", "1A", "ä"])
def test_a_variable_is_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="not a shell variable"):
        words("a", Expanded("", name))
    with pytest.raises(ValueError, match="not a shell variable"):
        assign(name, A)


def test_an_expanded_value_is_one_word_whatever_it_holds() -> None:
    shown = run(words("printf", "<%s>", Expanded("run=", "RUN")), RUN="a b; $(id) *")
    assert shown.stdout == "<run=a b; $(id) *>"


def test_choose_takes_the_first_literal_that_matches() -> None:
    made = choose(
        "found",
        (Command.of(""), False, say("empty")),
        (Command.of("a*b"), False, say("literal star")),
        (Command.of("7/"), True, say("begins with 7/")),
        (None, True, say("other")),
    )
    for value, expected in (
        ("", "empty"),
        ("a*b", "literal star"),
        ("axb", "other"),
        ("7/3 x", "begins with 7/"),
        ("77", "other"),
    ):
        assert run(Shell(f"found={shlex.quote(value)}\n{made.text}")).stdout == f"{expected}\n"


def test_script_ends_at_the_first_failure_and_assign_survives_one() -> None:
    ended = run(script(say("one"), Command.of("false"), say("two")))
    assert (ended.stdout, ended.returncode) == ("one\n", 1)
    made = script(assign("x", Command.of("sh", "-c", "echo seen; exit 4")), Shell('printf "[%s]" "$x"'))
    assert run(made).stdout == "[]"
    made = script(assign("x", Command.of("echo", "seen")), Shell('printf "[%s]" "$x"'))
    assert run(made).stdout == "[seen]"
    assert run(script(forgiving(Command.of("false")), say("on"))).stdout == "on\n"


def test_becoming_gives_the_exit_code_of_the_command() -> None:
    assert run(script(becoming(Command.of("sh", "-c", "exit 7")))).returncode == 7
