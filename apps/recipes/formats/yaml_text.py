"""YAML of strangers, read with care: no tags, no bombs of aliases, no key twice, bounded in depth and size, and every value
with its line. Values are those of YAML 1.1 as PyYAML reads it, which is what both families of recipes are read with; only
numbers in base sixty (12:30) and dates stay the text that they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from apps.recipes.formats.imported import Unreadable

try:
    from yaml import CSafeLoader as Reader  # libyaml
except ImportError:  # a build without libyaml
    from yaml import SafeLoader as Reader  # type: ignore[assignment]

DEEPEST = 32
MOST_VALUES = 20_000  # with every alias written out
_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"yes|Yes|YES|true|True|TRUE|on|On|ON")
_FALSE = re.compile(r"no|No|NO|false|False|FALSE|off|Off|OFF")
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9_]{0,40})")
_FRACTION = re.compile(r"[-+]?(?:[0-9][0-9_]{0,40}\.[0-9_]{0,40}|\.[0-9][0-9_]{0,40})(?:[eE][-+][0-9]{1,3})?")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "!"}


@dataclass(frozen=True)
class Document:
    """A text that was read. `lines`: the path of each value (services.vllm.command[2]) -> the line where it begins; of a
    block text the line of its first character."""

    value: Any
    lines: dict[str, int]

    def line(self, path: str) -> int:
        """The line of a value, or of the nearest thing around it; 0 when nothing is known."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return 0


@dataclass
class _Value:
    """A value as it stands in the text, before aliases are written out."""

    kind: str  # scalar, sequence, mapping
    line: int
    text: str = ""
    plain: bool = False
    items: tuple[Any, ...] = ()


def load(text: str) -> Document:
    """Raises Unreadable with the line."""
    made = _Composer(text).document()
    lines: dict[str, int] = {}
    value = _Builder(lines).build(made, "", 0) if made is not None else None
    return Document(value, lines)


class _Composer:
    def __init__(self, text: str) -> None:
        self._events = _events(text)
        self._anchors: dict[str, _Value | None] = {}

    def document(self) -> _Value | None:
        for event in self._events:
            if isinstance(event, StreamStartEvent | DocumentStartEvent):
                continue
            if isinstance(event, StreamEndEvent | DocumentEndEvent):
                return None
            made = self._value(event, 1)
            self._end()
            return made
        return None

    def _end(self) -> None:
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                raise Unreadable("a second document begins", "Import one at a time.", line=_line(event))

    def _value(self, event: Event, depth: int) -> _Value:
        line = _line(event)
        if depth > DEEPEST:
            raise Unreadable(f"it is nested deeper than {DEEPEST} levels", "Write it flatter.", line=line)
        if isinstance(event, AliasEvent):
            known = self._anchors.get(event.anchor or "")
            if known is None:
                raise Unreadable(
                    f"*{(event.anchor or '')[:40]} stands for nothing that is complete", "Write it out.", line=line
                )
            return known
        _check_tag(event, line)
        anchor = event.anchor if isinstance(event, NodeEvent) else None
        if anchor:
            self._anchors[anchor] = None  # not complete: it may not stand within itself
        made = self._filled(event, line, depth)
        if anchor:
            self._anchors[anchor] = made
        return made

    def _filled(self, event: Event, line: int, depth: int) -> _Value:
        if isinstance(event, ScalarEvent):
            block = event.style in ("|", ">")
            return _Value("scalar", line + block, event.value, event.style in (None, ""))
        items: list[Any] = []
        mapping = isinstance(event, MappingStartEvent)
        for inner in self._events:
            if isinstance(inner, SequenceEndEvent | MappingEndEvent):
                break
            first = self._value(inner, depth + 1)
            items.append((first, self._value(next(self._events), depth + 1)) if mapping else first)
        return _Value("mapping" if mapping else "sequence", line, items=tuple(items))


def _events(text: str) -> Iterator[Event]:
    try:
        yield from yaml.parse(text, Loader=Reader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        raise Unreadable(
            f"this is no YAML: {(problem.problem or 'something is wrong')[:200]}",
            "Correct it; a text with a colon or a brace belongs between quotes.",
            line=mark.line + 1 if mark else 0,
        ) from None
    except yaml.reader.ReaderError as problem:
        place = problem.position if isinstance(problem.position, int) else 0
        raise Unreadable(
            "a character is there that no YAML may hold",
            "Remove control characters.",
            line=text.count("\n", 0, place) + 1,
        ) from None
    except (UnicodeError, RecursionError):
        raise Unreadable("a character is there that no YAML may hold", "Save it as UTF-8.") from None


def _line(event: Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _check_tag(event: Event, line: int) -> None:
    tag = event.tag if isinstance(event, ScalarEvent | SequenceStartEvent | MappingStartEvent) else None
    if tag is None or tag in _TAGS or (isinstance(event, CollectionStartEvent) and event.implicit):
        return
    shown = tag.replace("tag:yaml.org,2002:", "!!")[:60]
    raise Unreadable(f"the tag {shown} is not read", "Write a plain text, number, list or mapping.", line=line)


class _Builder:
    """Plain Python values of what was composed, with every alias written out and counted."""

    def __init__(self, lines: dict[str, int]) -> None:
        self._lines, self._count = lines, 0

    def build(self, value: _Value, path: str, depth: int) -> Any:
        self._count += 1
        if self._count > MOST_VALUES or depth > DEEPEST * 2:
            raise Unreadable(f"it holds more than {MOST_VALUES} values", "Import less at once.", line=value.line)
        self._lines.setdefault(path, value.line)
        if value.kind == "scalar":
            return _scalar(value)
        if value.kind == "sequence":
            return [self.build(one, f"{path}[{place}]", depth + 1) for place, one in enumerate(value.items)]
        return self._mapping(value, path, depth)

    def _mapping(self, value: _Value, path: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for name, inner in value.items:
            key = self._key(name)
            if key == "<<" and name.plain:
                merged = {**self._merged(inner, path, depth), **merged}
                continue
            if key in made:
                raise Unreadable(f"{key[:60]} is given twice", "Keep one of them.", line=name.line, field=key[:60])
            made[key] = self.build(inner, f"{path}.{key}" if path else key, depth + 1)
        return {**merged, **made}

    def _key(self, name: _Value) -> str:
        if name.kind != "scalar":
            raise Unreadable("a key must be one word", "Put braces in a value between quotes.", line=name.line)
        _scalar(name)
        return name.text

    def _merged(self, inner: _Value, path: str, depth: int) -> dict[str, Any]:
        parts = inner.items if inner.kind == "sequence" else (inner,)
        made: dict[str, Any] = {}
        for part in reversed(parts):
            built = self.build(part, path, depth + 1)
            if not isinstance(built, dict):
                raise Unreadable("<< takes a mapping", "Name one with *.", line=inner.line)
            made.update(built)
        return made


def _scalar(value: _Value) -> Any:
    text = value.text
    if _UNSTORABLE.search(text):
        raise Unreadable("a text holds a NUL character or half a character", "Remove it.", line=value.line)
    if not value.plain:
        return text
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _WHOLE.fullmatch(text):
        return int(text.replace("_", ""))
    if _FRACTION.fullmatch(text):
        number = float(text.replace("_", ""))
        return text if number in (float("inf"), float("-inf")) else number
    return text


class _Writer(yaml.SafeDumper):
    """Block style, in the order given; texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    several = "\n" in text and not any(line.endswith((" ", "\t")) for line in text.split("\n"))
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style="|" if several else None)


_Writer.add_representer(str, _text)


def dump(value: Any) -> str:
    """Plain values as YAML that `load` reads back the same. Ends with a newline."""
    return str(
        yaml.dump(value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100, default_flow_style=False)
    )
