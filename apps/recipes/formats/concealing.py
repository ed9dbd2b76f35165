"""Finds the secrets of an imported text that no reader came across: under keys that are only kept, in commands that are held, in
comments. Their values are told to the draft, which masks them in everything that is kept."""

from __future__ import annotations

import re
from typing import Any

from apps.diagnosis.open_secrets import in_line, in_words, is_telling, is_value
from apps.recipes.formats import command_text
from apps.recipes.formats.command_text import Simple
from apps.recipes.formats.imported import Draft, Unreadable
from apps.recipes.formats.yaml_text import Document

DEEPEST = 3  # commands within words of commands
# Of our own words: a variable -> the name of a secret, which is no secret.
_NAMES = re.compile(r"(?:.*\.)?spec(?:\.services\[\d+\])?\.secrets")
_COMMENT = re.compile(r"(?:^|[ \t])#(.*)")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"(?P<name>[\w.\-]+)['\"]?[ =:]{1,4}['\"]?\$\{?(?P<refers>[A-Za-z_]\w*)")


def conceal(draft: Draft, document: Document | None = None) -> None:
    """Call it once, when everything was read. `document`: of a text that is YAML."""
    if document is None:
        _text(draft, draft.text, 1)
        return
    _value(draft, document, document.value, "")
    for number, line in enumerate(draft.text.split("\n"), 1):
        comment = _COMMENT.search(line)
        for value in in_line(comment[1]) if comment else ():
            draft.hide(value, number)


def _value(draft: Draft, document: Document, value: Any, path: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _member(draft, document, key, inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        words = [str(one) for one in value if isinstance(one, str | int | float)]
        for found in in_words(words) if len(words) == len(value) else ():
            draft.hide(found, document.line(path))
        for place, inner in enumerate(value):
            _value(draft, document, inner, f"{path}[{place}]")
    elif isinstance(value, str):
        _text(draft, value, document.line(path) or 1)


def _member(draft: Draft, document: Document, key: str, value: Any, path: str) -> None:
    if _NAMES.fullmatch(path):
        return
    held = value if isinstance(value, list) else [value]
    content = key == "content" and path.startswith("secrets.")  # of a secret in a compose file
    if (is_telling(key) or content) and not any(isinstance(one, list | dict) for one in held):
        for one in held:
            if one is not None and not isinstance(one, bool) and is_value(str(one)):
                draft.hide(str(one), document.line(path))
        return
    _value(draft, document, value, path)


def _text(draft: Draft, text: str, line: int, depth: int = 0) -> None:
    """Running text, read as commands where it can be."""
    if depth > DEEPEST or not re.search(r"[=:]|-\S", text):
        return
    try:
        commands = command_text.split(text, first_line=line)
    except Unreadable:
        commands = []
    if not commands:
        for number, one in enumerate(text.split("\n"), line):
            for value in in_line(one):
                draft.hide(value, number)
        return
    _referred(draft, text, commands)
    for place, command in enumerate(commands):
        for value in in_words(command.texts):
            draft.hide(value, command.line)
        if "--password-stdin" in command.texts and place and commands[place - 1].texts[:1] in (("echo",), ("printf",)):
            draft.hide(commands[place - 1].texts[-1], command.line)
        for word in command.words:
            if re.search(r"\s", word.text):
                _text(draft, word.text, word.line, depth + 1)
    for number, one in enumerate(text.split("\n"), line):
        comment = _COMMENT.search(one)
        for value in in_line(comment[1]) if comment else ():
            draft.hide(value, number)


def _referred(draft: Draft, text: str, commands: list[Simple]) -> None:
    """`TOK=…` and later `HF_TOKEN=$TOK`."""
    assigned = {
        found[1]: (found[2], word.line)
        for command in commands
        for word in command.words
        if (found := _ASSIGNED.fullmatch(word.text))
    }
    for found in _REFERENCE.finditer(text) if assigned and "$" in text else ():
        if is_telling(found["name"].lstrip("-")) and found["refers"] in assigned:
            value, line = assigned[found["refers"]]
            if is_value(value):
                draft.hide(value, line)
