"""`{name}` in a command -> its value. Never str.format, whose fields may walk through attributes of what they are given."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from apps.recipes.formats.imported import Unreadable

_ALL = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}|[{}]")
_FIELD = re.compile(r"(?<!\{)\{([A-Za-z_][A-Za-z0-9_]*)\}")
PASSES = 8
LONGEST = 1 << 18  # characters; a value may name others, and they more


def text_of(value: Any) -> str:
    """A default as Python writes it into a command; lists and mappings as JSON, since nothing else would be read back."""
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def filled_once(command: str, values: Mapping[str, Any], *, line: int = 0) -> str:
    """One pass, doubled braces are single ones (the rules of eugr's recipes). Raises Unreadable for a name without value or
    a brace that stands alone."""

    count = _Counter(line)

    def put(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        where = line + command.count("\n", 0, found.start())
        if found[1] is None:
            raise Unreadable(
                f"the command has a single {found[0]}", "Double a brace that is meant as one: {{ and }}.", line=where
            )
        if found[1] not in values:
            raise Unreadable(
                f"{{{found[1][:60]}}} has no value", "Give it one under defaults.", line=where, field=found[1][:60]
            )
        return count.passed(text_of(values[found[1]]))

    return _ALL.sub(put, count.passed(command))


def filled_again(command: str, values: Mapping[str, Any], *, line: int = 0) -> tuple[str, list[str]]:
    """Passes until nothing changes (the rules of sparkrun's recipes): names without value stay, and doubled braces are single
    ones only where `{{` stands in the text. Also returns the names that had no value. Raises Unreadable for values that name
    each other without end."""
    text, doubled = command, "{{" in command
    for _ in range(PASSES):
        before, count = text, _Counter(line)
        text = _FIELD.sub(partial(_known, values=values, count=count), count.passed(text))
        if text == before:
            break
    else:
        raise Unreadable("values under defaults name each other without end", "Write them out.", line=line)
    missing = sorted({name for name in _FIELD.findall(text)})
    return (text.replace("{{", "{").replace("}}", "}") if doubled else text), missing


def _known(found: re.Match[str], *, values: Mapping[str, Any], count: _Counter) -> str:
    return count.passed(text_of(values[found[1]])) if found[1] in values else found[0]


class _Counter:
    """Stops a text that grows beyond all bounds, before it is there."""

    def __init__(self, line: int) -> None:
        self._line, self._left = line, LONGEST

    def passed(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise Unreadable("the command is too long with its values put in", "Write it out.", line=self._line)
        return text


def doubled(word: str) -> str:
    """A word for a command with placeholders: its own braces doubled."""
    return word.replace("{", "{{").replace("}", "}}")
