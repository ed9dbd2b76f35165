"""A command is a tuple of words. It is quoted here and nowhere else, so a field's value can never become shell grammar."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Secret:
    """A secret by name: the environment variable that carries it and the name it is stored under. Never the value.

    The executor uploads the value as a 0600 file beside the job and the job reads it into its environment, so that
    `docker run -e HF_TOKEN` (no value) and child processes inherit it without it ever standing in argv.
    """

    variable: str
    name: str


@dataclass(frozen=True)
class Shell:
    """Finished POSIX shell text, made only by the functions of this module."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Command:
    """One command as words, e.g. `Command.of("docker", "rm", "-f", name)`.

    >>> str(Command.of("echo", "a b"))
    "echo 'a b'"
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, *words: str | int | float) -> Command:
        """Make a command. Raises ValueError for a word with a NUL byte, which no argv can carry."""
        made = tuple(str(word) for word in words)
        if not made:
            raise ValueError("a command needs at least one word")
        if any("\0" in word for word in made):
            raise ValueError("a command word holds a NUL byte")
        return cls(made)

    def plus(self, *words: str | int | float) -> Command:
        """The same command with more words."""
        return Command.of(*self.words, *words)

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    def __str__(self) -> str:
        return self.text


Piece = Command | Shell


def pipe(*pieces: Piece) -> Shell:
    """`a | b | c`."""
    return Shell(" | ".join(piece.text for piece in pieces))


def all_of(*pieces: Piece) -> Shell:
    """`a && b && c`: stops at the first failure."""
    return Shell(" && ".join(piece.text for piece in pieces))


def any_of(*pieces: Piece) -> Shell:
    """`{ a || b; }`: the first that succeeds."""
    return Shell("{ " + " || ".join(piece.text for piece in pieces) + "; }")


def lines(*pieces: Piece) -> Shell:
    """One command a line, each run whatever the one before returned (use `set -e` through `all_of` where that matters)."""
    return Shell("\n".join(piece.text for piece in pieces))


def into(piece: Piece, path: str) -> Shell:
    """`a > path`."""
    return Shell(f"{piece.text} > {shlex.quote(path)}")


def quiet(piece: Piece) -> Shell:
    """The command with both outputs thrown away."""
    return Shell(f"{piece.text} >/dev/null 2>&1")
