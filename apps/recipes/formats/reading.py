"""What the readers of YAML recipes share: fields by name with their line, and the commands of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apps.diagnosis.masking import MASK
from apps.recipes.formats import vllm_serve
from apps.recipes.formats.command_text import Simple
from apps.recipes.formats.imported import MAIN, Draft, Unreadable
from apps.recipes.formats.screening import is_masked
from apps.recipes.formats.yaml_text import Document


class Fields:
    """The keys of a mapping. Each reader raises Unreadable with the line where a value is of another kind."""

    def __init__(self, document: Document, value: Any = None, path: str = "") -> None:
        self.document, self.path = document, path
        self.value: dict[str, Any] = document.value if value is None else value

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def line(self, key: str) -> int:
        return self.document.line(self.at(key))

    def text(self, key: str) -> str:
        """A text, number or boolean as text; "" where it is not given."""
        value = self.value.get(key)
        if isinstance(value, list | dict) and not is_masked(value):
            raise self._wrong(key, "a text", f"Write {key}: some text.")
        return self.as_text(value)

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.value.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(key, "a mapping", f"Write the names below {key}, each with a colon.")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; one text counts as a list of one."""
        value = self.value.get(key)
        if value is None or value == "":
            return []
        if isinstance(value, dict):
            raise self._wrong(key, "a list", f"Begin each line below {key} with a dash.")
        return value if isinstance(value, list) else [value]

    def true(self, key: str) -> bool:
        return self.value.get(key) in (True, "true", "True", "yes", 1)

    def whole(self, key: str) -> int | None:
        value = self.value.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10_000 else None

    @staticmethod
    def as_text(value: Any) -> str:
        """A value as Python writes it into text, which is what both families do."""
        if is_masked(value):
            return MASK.decode()
        return "" if value is None else str(value)

    def _wrong(self, key: str, kind: str, remedy: str) -> Unreadable:
        return Unreadable(f"{self.at(key)[:100]} must be {kind}", remedy, line=self.line(key), field=self.at(key)[:100])


def base_line(document: Document, path: str) -> int:
    return document.line(path) or 1


def take_commands(
    draft: Draft, body: dict[str, Any], commands: Sequence[Simple], *, path: str, fields: Fields, place: int = MAIN
) -> None:
    """The engine among the commands of a recipe; all others are held. Raises Unreadable when there is none at all."""
    line, exported, others = vllm_serve.find(commands)
    if line is None:
        programs = [(made, one) for one in others if (made := vllm_serve.engine_line(one)) is not None]
        if not programs:
            raise Unreadable(
                "the command is missing", "Write the line that starts the engine.", line=fields.line(path), field=path
            )
        line = programs[-1][0]
        others = tuple(one for one in others if one is not programs[-1][1])
    for one in others:
        draft.hold("shell", path, one.shown, line=one.line, place=place)
    for word in (*exported, *line.environment):
        name, _, value = word.text.partition("=")
        vllm_serve.take_variable(draft, body, name, value, path=path, line=word.line, expands=word.expands)
    vllm_serve.take(draft, body, line, path=path, place=place)
