"""A command line as people paste it -> words. Quotes and backslashes are taken away as a POSIX shell does; everything else that
a shell would do (operators, expansions, redirections) is recognised and named, never done. On text without any of those the
words are those of shlex.split, which by itself can't tell a quoted `;` from one that ends a command."""

from __future__ import annotations

import re
from dataclasses import dataclass

from apps.recipes.formats.imported import Unreadable

LONGEST = 1 << 16  # characters of one command's text
MOST_WORDS = 4000
OPERATORS = (";;", "&&", "||", "|&", ";", "|", "&", "(", ")", "\n")
_REDIRECTION = re.compile(r"[0-9]{0,3}(?:<<<|<<-|<<|<>|<&|>>|>&|>\||&>>|&>|<|>)[ \t]*(?:[0-9-](?![\w/.-]))?")
_DEFAULT = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:?-([^${}`\"'\\\n]*)\}")
_NAME = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[^{}\n]*\}|[0-9@*#?$!-])")


@dataclass(frozen=True)
class Word:
    """One word. `expands`: a shell would have put something else in its place; `text` is then as it stands there."""

    text: str
    line: int
    expands: bool = False


@dataclass(frozen=True)
class Simple:
    """Words up to an operator. `redirects`: what else stood there (2>&1, > file)."""

    words: tuple[Word, ...]
    line: int
    redirects: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)

    @property
    def shown(self) -> str:
        return " ".join((*self.texts, *self.redirects))


def split(text: str, *, first_line: int = 1) -> list[Simple]:
    """The commands of a text, in order; comments left out. `first_line`: the line where the text stands.

    Raises Unreadable: a quote that is never closed, or too long.
    """
    if len(text) > LONGEST:
        raise Unreadable(
            f"the command is longer than {LONGEST:,} characters", "Import the command alone.", line=first_line
        )
    plain = re.sub(r"\\[ \t]+(?=\r?\n)", r"\\", text).replace("\r\n", "\n").replace("\r", "\n")
    return _Splitter(plain, first_line).commands()


class _Splitter:
    def __init__(self, text: str, line: int) -> None:
        self._text, self._at, self._line = text, 0, line
        self._found: list[Simple] = []
        self._words: list[Word] = []
        self._redirects: list[str] = []
        self._count = 0
        self._begin = line

    def commands(self) -> list[Simple]:
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if char in " \t":
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._skip(2)
            elif char == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif not self._operator() and not self._redirection():
                self._word()
        self._end()
        return self._found

    def _skip(self, count: int) -> str:
        passed = self._text[self._at : self._at + count]
        self._at += count
        self._line += passed.count("\n")
        return passed

    def _end(self) -> None:
        if self._words or self._redirects:
            self._found.append(Simple(tuple(self._words), self._begin, tuple(self._redirects)))
        self._words, self._redirects = [], []

    def _operator(self) -> bool:
        found = next((mark for mark in OPERATORS if self._text.startswith(mark, self._at)), "")
        if not found or self._text.startswith("&>", self._at):
            return False
        self._skip(len(found))
        self._end()
        return True

    def _redirection(self) -> bool:
        found = _REDIRECTION.match(self._text, self._at)
        if not found:
            return False
        mark = self._skip(len(found[0])).strip()
        if not mark[-1].isdigit() or mark[-2:-1] not in "<>&":
            before = len(self._words)
            if self._at < len(self._text) and self._text[self._at] not in "\n;|&()<>":
                self._word()
                mark += self._words.pop().text if len(self._words) > before else ""
        self._redirects.append(mark)
        return True

    def _word(self) -> None:
        if not self._words and not self._redirects:
            self._begin = self._line
        line, expands = self._line, False
        parts: list[str] = []
        text = self._text
        while self._at < len(text) and text[self._at] not in " \t\n;|&()<>":
            char = text[self._at]
            if char == "'":
                parts.append(self._quoted(line))
            elif char == '"':
                part, more = self._double(line)
                parts.append(part)
                expands |= more
            elif char == "\\":
                parts.append(self._skip(2)[1:].replace("\n", ""))
            elif char in "$`":
                part, more = self._expansion()
                parts.append(part)
                expands |= more
            else:
                parts.append(self._skip(1))
        self._count += 1
        if self._count > MOST_WORDS:
            raise Unreadable(f"the command has more than {MOST_WORDS:,} words", "Import less.", line=line)
        self._words.append(Word("".join(parts), line, expands))

    def _quoted(self, line: int) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise Unreadable("a single quote is never closed", "Close it.", line=line)
        return self._skip(end + 1 - self._at)[1:-1]

    def _double(self, line: int) -> tuple[str, bool]:
        self._at += 1
        parts: list[str] = []
        expands = False
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return "".join(parts), expands
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                parts.append(self._skip(2)[1:].replace("\n", ""))
            elif char in "$`":
                part, more = self._expansion()
                parts.append(part)
                expands |= more
            else:
                parts.append(self._skip(1))
        raise Unreadable("a double quote is never closed", "Close it.", line=line)

    def _expansion(self) -> tuple[str, bool]:
        """`${NAME:-text}` is the text, since nobody here has set the name; all others are left as they stand."""
        default = _DEFAULT.match(self._text, self._at)
        if default:
            self._skip(len(default[0]))
            return default[1], False
        name = _NAME.match(self._text, self._at)
        if name:
            return self._skip(len(name[0])), True
        if self._text.startswith("$(", self._at):
            return self._skip(_closing(self._text, self._at + 1) - self._at), True
        if self._text[self._at] == "`":
            end = self._text.find("`", self._at + 1)
            return self._skip((len(self._text) if end < 0 else end + 1) - self._at), True
        return self._skip(1), False  # a dollar that stands alone


def _closing(text: str, at: int) -> int:
    """Behind the bracket that closes the one at `at`, or the end of the text."""
    depth = 0
    for place in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    return len(text)
