"""The part of Go's templates that people use with docker --format."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

PIECES = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.S)


class TemplateError(Exception):
    pass


def go_json(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain(value: Any) -> str:
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + " ".join(plain(item) for item in value) + "]"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{plain(item)}" for key, item in sorted(value.items())) + "]"
    return str(value)


class Template:
    def __init__(self, text: str) -> None:
        text = text.replace("\\t", "\t").replace("\\n", "\n")
        self.parts: list[tuple[str, str]] = []
        position = 0
        for found in PIECES.finditer(text):
            if found.start() > position:
                self.parts.append(("text", text[position : found.start()]))
            self.parts.append(("do", found.group(1)))
            position = found.end()
        if position < len(text):
            self.parts.append(("text", text[position:]))

    def render(self, value: Any) -> str:
        """Raises TemplateError in Go's words."""
        out: list[str] = []
        self._run(0, value, {"$": value}, out)
        return "".join(out)

    def _run(self, at: int, dot: Any, names: dict[str, Any], out: list[str]) -> int:
        while at < len(self.parts):
            kind, body = self.parts[at]
            if kind == "text":
                out.append(body)
            elif body in ("end", "else") or body.startswith("else "):
                return at
            elif body.startswith(("range ", "if ", "with ")):
                at = self._block(at, body, dot, names, out)
            elif re.match(r"\$\w+\s*:=", body):
                name, _, expression = body.partition(":=")
                names[name.strip()] = self._value(expression.strip(), dot, names)
            elif not body.startswith("/*"):
                out.append(plain(self._value(body, dot, names)))
            at += 1
        return at

    def _block(self, at: int, body: str, dot: Any, names: dict[str, Any], out: list[str]) -> int:
        word, _, expression = body.partition(" ")
        variables: list[str] = []
        if ":=" in expression:
            left, _, expression = expression.partition(":=")
            variables = [name.strip() for name in left.split(",")]
        value = self._value(expression.strip(), dot, names)
        items: list[tuple[Any, Any]]
        if word == "range":
            items = list(value.items()) if isinstance(value, dict) else list(enumerate(value or []))
        else:
            items = [(0, value)] if value not in (None, False, "", 0, [], {}) else []
        end = at + 1
        for key, item in items:
            inner = dict(names)
            if len(variables) == 2:
                inner[variables[0]], inner[variables[1]] = key, item
            elif variables:
                inner[variables[0]] = item
            end = self._run(at + 1, dot if word == "if" else item, inner, out)
        if not items:
            end = self._run(at + 1, dot, dict(names), [])
        if end < len(self.parts) and self.parts[end][1].startswith("else"):
            end = self._run(end + 1, dot, dict(names), out if not items else [])
        return end

    def _value(self, expression: str, dot: Any, names: dict[str, Any]) -> Any:
        stages = [stage.strip() for stage in expression.split("|")]
        value = self._call(stages[0], dot, names, [])
        for stage in stages[1:]:
            value = self._call(stage, dot, names, [value])
        return value

    def _call(self, expression: str, dot: Any, names: dict[str, Any], piped: list[Any]) -> Any:
        inner = re.search(r"\(([^()]*)\)", expression)
        while inner:
            key = f"$_{len(names)}"
            names[key] = self._value(inner.group(1), dot, names)
            expression = expression[: inner.start()] + key + expression[inner.end() :]
            inner = re.search(r"\(([^()]*)\)", expression)
        words = re.findall(r'"(?:[^"\\]|\\.)*"|`[^`]*`|\S+', expression)
        if not words:
            raise TemplateError("template parsing error: missing value for command")
        functions = {
            "json",
            "index",
            "join",
            "println",
            "print",
            "printf",
            "len",
            "upper",
            "lower",
            "title",
            "eq",
            "ne",
            "not",
            "and",
            "or",
            "slice",
            "truncate",
            "split",
        }
        if words[0] not in functions:
            return self._word(words[0], dot, names)
        given = [self._word(word, dot, names) for word in words[1:]] + piped
        return self._function(words[0], given)

    def _function(self, name: str, given: list[Any]) -> Any:
        if name == "json":
            return go_json(given[0])
        if name == "index":
            value = given[0]
            for key in given[1:]:
                value = (value or {}).get(key, "") if isinstance(value, dict) or value is None else value[key]
            return value
        if name == "join":
            return str(given[1]).join(plain(item) for item in given[0] or [])
        if name == "println":
            return " ".join(plain(item) for item in given) + "\n"
        if name == "print":
            return "".join(plain(item) for item in given)
        if name == "printf":
            return re.sub(r"%[-\d.]*[svdq]", lambda _: plain(given.pop(1)) if len(given) > 1 else "", str(given[0]))
        if name == "len":
            return len(given[0] or [])
        if name in ("upper", "lower", "title"):
            return getattr(str(given[0]), name)()
        if name in ("eq", "ne"):
            return (given[0] in given[1:]) == (name == "eq")
        if name == "not":
            return not given[0]
        if name in ("and", "or"):
            values = [item for item in given if bool(item) == (name == "or")]
            return values[0] if values else given[-1]
        if name == "split":
            return str(given[0]).split(str(given[1]))
        if name in ("slice", "truncate"):
            return str(given[0])[: int(given[-1])]
        raise TemplateError(f'template parsing error: function "{name}" not defined')

    def _word(self, word: str, dot: Any, names: dict[str, Any]) -> Any:
        if word[0] == '"':
            return json.loads(word)
        if word[0] == "`":
            return word[1:-1]
        if word.lstrip("-").isdigit():
            return int(word)
        if word in ("true", "false"):
            return word == "true"
        if word == ".":
            return dot
        base, path = dot, word
        if word.startswith("$"):
            name, _, path = word.partition(".")
            base, path = names.get(name), "." + path if path else ""
        for part in [part for part in path.split(".") if part]:
            if isinstance(base, dict):
                if part not in base:
                    raise TemplateError(f'template: :1:2: executing "" at <{word}>: map has no entry for key "{part}"')
                base = base[part]
            else:
                raise TemplateError(
                    f'template: :1:2: executing "" at <{word}>: can\'t evaluate field {part} in type interface {{}}'
                )
        return base


__all__ = ["Template", "TemplateError", "go_json", "shlex"]
