"""What an importer makes of a text: the body, what was kept aside, and what waits for an approval."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from apps.diagnosis.masking import MASK, mask_text

LARGEST_TEXT = 1 << 20  # bytes of a recipe's text
MAIN = -1  # place of the main service; 0, 1, … are those of `services`
NOWHERE = -2  # place of what was held for a service that is not in the body any more

# What a held item is, and what it would mean to do as it says.
KINDS = {
    "hook": "Commands that run beside the engine, on the node or in its container.",
    "mod": "A script that changes the image's files as root before the engine starts.",
    "builder": "Builds an image, or installs packages, on the node.",
    "shell": "Shell text around the engine's command. Only plain words are ever run.",
    "command": "A program of the recipe's own choice instead of a known engine.",
    "program": "A program at a path of the recipe's own choice, run on the node itself.",
    "privileged": "The container may do on the node whatever root may.",
    "capability": "Rights of the kernel beyond those of an ordinary container.",
    "security": "Changes what keeps a container apart from its node.",
    "device": "Gives the container a device of the node.",
    "user": "Runs the container as another user.",
    "volume": "Shows a folder of the node to the container.",
    "ipc": "Shares memory between processes with others on the node.",
    "executor": "Starts the engine by another way than Docker.",
    "path": "A folder of the node, chosen by the recipe.",
    "option": "A further option for docker, whose effect nobody here has judged.",
    "trust": "Runs Python code that comes with the model, or from a module that is named here.",
    "reach": "Opens files to whoever asks the API, takes options from a file that nobody here has seen, or sends data elsewhere.",
    "node": "A value that differs from node to node. sparkweb takes it from each node's own facts; this would overrule that.",
    "environment": "A variable that makes programs load code, or send data, somewhere else.",
}


class Unreadable(Exception):
    """The text is no recipe that can be read: the line (0 where there is none), what is wrong, and the way on."""

    def __init__(self, message: str, remedy: str, *, line: int = 0, field: str = "") -> None:
        super().__init__(message)
        self.message, self.remedy, self.line, self.field = message, remedy, line, field


@dataclass(frozen=True)
class Note:
    """Something that a person should know. `path`: where in the text, as in executor_config.shm_size."""

    path: str
    message: str
    remedy: str = ""
    line: int = 0


@dataclass(frozen=True)
class Held:
    """Something that is not taken over before it was decided. `takes`: what the body gets when it is: lists are extended,
    everything else replaces; empty where sparkweb has no place for it and will never do it."""

    key: str  # q1, q2, … in the order of the text
    kind: str  # of KINDS
    path: str
    text: str  # as it stands in the recipe, secrets masked
    line: int = 0
    takes: dict[str, Any] = field(default_factory=dict)
    place: int = MAIN
    at: int = -1  # where in the list that is extended; -1: at its end


@dataclass(frozen=True)
class Imported:
    """A recipe that was read. `body`: Spec fields without name and nodes. `lines`: field of the body -> line of the text."""

    family: str
    name: str
    description: str
    body: dict[str, Any]
    world_size: int
    extra: dict[str, Any]  # what the text says beyond the body, by its path there
    held: tuple[Held, ...]
    notes: tuple[Note, ...]
    source: str  # the text, secrets masked
    lines: dict[str, int]


class Draft:
    """What an importer has gathered so far. One per text; `finish` makes the frozen result."""

    def __init__(self, family: str, text: str) -> None:
        self.family, self.text = family, text
        self.name = self.description = ""
        self.body: dict[str, Any] = {}
        self.world_size = 1
        self.extra: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self._held: list[Held] = []
        self._notes: list[Note] = []
        self._secrets: list[tuple[str, int]] = []  # value, line

    def hold(
        self,
        kind: str,
        path: str,
        text: str,
        *,
        line: int = 0,
        takes: dict[str, Any] | None = None,
        place: int = MAIN,
        at: int = -1,
    ) -> None:
        self._held.append(Held("", kind, path, text, line, takes or {}, place, at))

    @property
    def held(self) -> tuple[Held, ...]:
        return tuple(self._held)

    def overruled(self, fields: Sequence[str]) -> None:
        """These fields of the body are given anew: what was held to fill them is forgotten."""
        self._held = [
            one
            for one in self._held
            if not one.takes
            or not (
                (one.place != MAIN and "services" in fields) or (one.place == MAIN and set(one.takes) <= set(fields))
            )
        ]

    def note(self, path: str, message: str, remedy: str = "", *, line: int = 0) -> None:
        said = Note(path, message, remedy, line)
        if said not in self._notes:
            self._notes.append(said)

    def keep(self, path: str, value: Any) -> None:
        """Remember what has no place in the body. What stands at a path several times becomes a list."""
        if path in self.extra and self.extra[path] != value:
            before = self.extra[path]
            value = [*(before if isinstance(before, list) else [before]), value]
        self.extra[path] = value

    def hide(self, value: str, line: int = 0) -> None:
        """A secret's value: it is masked in everything that is kept of the text."""
        if value and value != MASK.decode():
            self._secrets.append((value, line))

    def finish(self) -> Imported:
        self._drop_what_hides_one()
        secrets = [value.encode("utf-8", "surrogatepass") for value, _ in self._secrets]

        def masked(value: Any) -> Any:
            if isinstance(value, str):
                return mask_text(self._plainly(value), secrets)
            if isinstance(value, dict):
                return {masked(key): masked(inner) for key, inner in value.items()}
            return [masked(inner) for inner in value] if isinstance(value, list | tuple) else value

        held = tuple(
            replace(
                one,
                key=f"q{number}",
                path=masked(one.path)[:LONGEST_PATH],
                text=masked(one.text)[:LONGEST_SHOWN],
                takes=masked(one.takes),
            )
            for number, one in enumerate(self._held, 1)
        )
        notes = tuple(Note(masked(one.path), masked(one.message), one.remedy, one.line) for one in self._notes)
        return Imported(
            self.family,
            masked(self.name)[:120],
            masked(self.description)[:4000],
            self._masked_body(self.body, masked),
            self.world_size,
            masked(self.extra),
            held,
            notes,
            mask_text(self._short_secrets_out(), secrets),
            dict(self.lines),
        )

    def _masked_body(self, body: Mapping[str, Any], masked: Callable[[Any], Any]) -> dict[str, Any]:
        """A field that is one value keeps what is somebody's secret too: `--api-key vllm` does not change the engine."""
        values = {value for value, _ in self._secrets}
        made: dict[str, Any] = {}
        for name, value in body.items():
            if name == "services":
                made[name] = [self._masked_body(one, masked) for one in value]
            else:
                made[name] = mask_text(value) if isinstance(value, str) and value in values else masked(value)
        return made

    def _drop_what_hides_one(self) -> None:
        """A secret that stands in the text in another way (quoted in pieces, escaped, over several lines) can't be masked there."""
        if all(value in self.text for value, _ in self._secrets):
            return
        self.text = ""
        self.note(
            "text",
            "The text was not kept: a secret stands in it in a way that can't be masked.",
            "Keep it elsewhere, or write the secret in one piece and import it again.",
        )

    def _plainly(self, text: str) -> str:
        """Secrets too short to be looked for in running text are masked where they are all of a text."""
        return MASK.decode() if any(text == value for value, _ in self._secrets) else text

    def _short_secrets_out(self) -> str:
        """The text, with each secret masked on its own line: `mask` leaves alone what is shorter than six bytes."""
        lines = self.text.split("\n")
        for value, line in self._secrets:
            if 0 < line <= len(lines) and "\n" not in value:
                before, mark, after = lines[line - 1].rpartition(value)
                lines[line - 1] = f"{before}{MASK.decode()}{after}" if mark else lines[line - 1]
        return "\n".join(lines)


LONGEST_SHOWN, LONGEST_PATH = 20_000, 200  # characters of a held item


def taken(body: Mapping[str, Any], items: Iterable[Held]) -> dict[str, Any]:
    """The body with what held items bring: lists are extended, everything else replaces."""
    made = {**body, "services": [dict(one) for one in body.get("services", ())]}
    for item in items:
        if item.place != MAIN and not 0 <= item.place < len(made["services"]):
            continue
        part = made if item.place == MAIN else made["services"][item.place]
        for name, value in item.takes.items():
            part[name] = _inserted(part.get(name, ()), value, item.at) if isinstance(value, list) else value
    if not made["services"]:
        del made["services"]
    return made


def _inserted(there: Sequence[Any], more: Sequence[Any], at: int) -> list[Any]:
    place = len(there) if at < 0 else min(at, len(there))
    return [*there[:place], *more, *there[place:]]
