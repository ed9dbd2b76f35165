"""A command is a tuple of words. It is quoted here and nowhere else, so a field's value can never become shell
grammar."""

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
    """One command a line, each run whatever the one before returned (use `set -e` through `all_of` where that
    matters)."""
    return Shell("\n".join(piece.text for piece in pieces))


def into(piece: Piece, path: str) -> Shell:
    """`a > path`."""
    return Shell(f"{piece.text} > {shlex.quote(path)}")


def quiet(piece: Piece) -> Shell:
    """The command with both outputs thrown away."""
    return Shell(f"{piece.text} >/dev/null 2>&1")


@dataclass(frozen=True)
class Expanded:
    """A word that ends in one shell variable: `prefix` literally, then the variable's value. For constants that the
    executor exports (SPARKWEB_RUN); never for a field of a spec.

    >>> str(words("echo", Expanded("run=", "SPARKWEB_RUN")))
    'echo "run=$SPARKWEB_RUN"'
    """

    prefix: str
    variable: str

    @property
    def text(self) -> str:
        """Raises ValueError for a variable that is no plain name or a prefix that double quotes can't carry
        literally."""
        if not self.variable.isidentifier() or not self.variable.isascii():
            raise ValueError(f"not a shell variable: {self.variable!r}")
        if any(char in self.prefix for char in '"$`\\\n\0'):
            raise ValueError(f"a prefix of plain characters is needed, not {self.prefix!r}")
        return f'"{self.prefix}${self.variable}"'


def words(*parts: str | int | float | Expanded) -> Shell:
    """A command some of whose words end in a shell variable; all others are quoted as `Command.of` does."""
    return Shell(" ".join(part.text if isinstance(part, Expanded) else Command.of(part).text for part in parts))


def script(*pieces: Piece) -> Shell:
    """One command a line under `set -eu`: the first that fails ends the script with its exit code."""
    return Shell("\n".join(("set -eu", *(piece.text for piece in pieces))))


def assign(variable: str, piece: Piece) -> Shell:
    """`variable=$(piece 2>/dev/null) || variable=`: the output of a question, empty where it could not be answered."""
    if not variable.isidentifier() or not variable.isascii():
        raise ValueError(f"not a shell variable: {variable!r}")
    return Shell(f"{variable}=$({piece.text} 2>/dev/null) || {variable}=")


def when(condition: Piece, then: Piece, otherwise: Piece | None = None) -> Shell:
    """`if condition; then …; else …; fi`."""
    tail = "" if otherwise is None else f"\nelse\n{otherwise.text}"
    return Shell(f"if {condition.text}; then\n{then.text}{tail}\nfi")


def choose(variable: str, *cases: tuple[Piece | None, bool, Piece]) -> Shell:
    """`case $variable in`: each case is (literal, more, what): the literal as a quoted word (None for anything),
    whether more may follow it, and what to run. A literal is given as a Command of one word or as
    `words(Expanded(…))`."""
    made = []
    for literal, more, what in cases:
        pattern = "*" if literal is None else literal.text + ("*" if more else "")
        made.append(f"{pattern})\n{what.text}\n;;")
    return Shell("\n".join((f'case "${variable}" in', *made, "esac")))


def say(text: str, *, error: bool = False) -> Shell:
    """Print one line; on standard error when `error`."""
    return Shell(Command.of("printf", "%s\\n", text).text + (" >&2" if error else ""))


def leave(code: int) -> Shell:
    """End the script with an exit code (0..255)."""
    return Shell(f"exit {int(code)}")


def forgiving(piece: Piece) -> Shell:
    """The command, whatever it returns."""
    return Shell(f"{piece.text} || :")


def either(*pieces: Piece) -> Shell:
    """The output of the first that succeeds, the others' complaints thrown away."""
    return Shell("{ " + " || ".join(f"{piece.text} 2>/dev/null" for piece in pieces) + "; }")


def becoming(piece: Piece) -> Shell:
    """`exec piece`: the shell becomes the command, so that signals and the exit code are its own."""
    return Shell(f"exec {piece.text}")


def merged(piece: Piece) -> Shell:
    """Standard error into standard output."""
    return Shell(f"{piece.text} 2>&1")
