"""Which format a text has, told from the text itself; and its reading from the first byte to what waits for an approval."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from apps.recipes.formats import (
    command_text,
    compose,
    concealing,
    docker_run,
    eugr,
    own,
    screening,
    sparkrun,
    vllm_serve,
    yaml_text,
)
from apps.recipes.formats.imported import LARGEST_TEXT, Draft, Imported, Unreadable
from apps.recipes.formats.yaml_text import Document

FAMILIES = ("sparkweb", "eugr", "sparkrun", "docker run", "compose", "command")
READERS: dict[str, Callable[[Document, str], Draft]] = {
    "sparkweb": own.read,
    "eugr": eugr.read,
    "sparkrun": sparkrun.read,
    "compose": compose.read,
}
CARRIED = {"eugr": "sparkweb", "sparkrun": "metadata.sparkweb", "compose": "x-sparkweb"}
_DOCKER = re.compile(
    r"(?m)^[ \t]*(?:[$#][ \t]+)?(?:sudo[ \t]+)?(?:docker|podman|nvidia-docker)[ \t]+(?:container[ \t]+)?run\b"
)
_COMMAND = re.compile(
    r"(?m)^[ \t]*(?:\$[ \t]+)?(?:export[ \t]|exec[ \t]|env[ \t]|nohup[ \t]|uv[ \t]+run[ \t]|[A-Za-z_][A-Za-z0-9_]*=\S*[ \t]+)*"
    r"(?:\S*/)?(?:vllm[ \t]+serve|sglang[ \t]+serve|llama-server\b|python(?:3(?:\.[0-9]+)?)?[ \t]+(?:-u[ \t]+)?-m[ \t])"
)
UNREADABLE = re.compile(r"[\x00\ud800-\udfff]")


def read(text: str, *, family: str = "") -> Imported:
    """Raises Unreadable: too large, of no known format, or wrong at some line. Never runs, fetches or opens anything."""
    text = unfenced(checked(text))
    chosen = family or recognised(text)
    if chosen not in FAMILIES:
        raise Unreadable(f"{chosen[:40]!r} is no format", f"Choose one of {', '.join(FAMILIES)}.", field="family")
    document: Document | None = None
    if chosen == "docker run":
        draft = docker_run.read(typed(text))
    elif chosen == "command":
        draft = vllm_serve.read(typed(text))
    else:
        document = mapping(text)
        draft = READERS[chosen](document, text)
        if chosen in CARRIED:
            own.take_carried(draft, document, CARRIED[chosen])
    screening.screen(draft)
    concealing.conceal(draft, document)
    return draft.finish()


def checked(text: str) -> str:
    """The text without byte order mark, its line ends as \\n. Raises Unreadable."""
    text = text.removeprefix("\ufeff")
    if len(text) > LARGEST_TEXT or len(text.encode("utf-8", "replace")) > LARGEST_TEXT:
        raise Unreadable("the text is larger than 1 MB", "Import one recipe at a time.", field="text")
    bad = UNREADABLE.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        raise Unreadable(
            "a NUL character or half a character stands in it", "Save it as UTF-8.", line=line, field="text"
        )
    if not text.strip():
        raise Unreadable("there is no text", "Paste a recipe, or choose a file.", field="text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def unfenced(text: str) -> str:
    """Without the ``` around a block that was copied out of a page; lines keep their numbers."""
    if not text.lstrip().startswith("```"):
        return text
    return re.sub(r"(?m)^[ \t]*```.*$", "", text)


def typed(text: str) -> str:
    """A command as a POSIX shell takes it: what goes on in the next line may end with ^ (cmd) or ` (PowerShell), and pages are
    copied with spaces that are none."""
    return re.sub(r"(?m)(?<=[ \t])[`^][ \t]*$", r"\\", text.replace("\u00a0", " "))


def recognised(text: str) -> str:
    """The family. Raises Unreadable where none fits."""
    if _DOCKER.search(text) and not re.search(r"(?m)^(?:services|command|container|spec)[ \t]*:", text):
        return "docker run"
    if _COMMAND.search(text) and not re.search(r"(?m)^[A-Za-z_]+[ \t]*:(?:[ \t]|$)", text):
        return "command"
    try:
        found = _of_yaml(mapping(text).value)
    except Unreadable:
        found = _of_commands(text)
        if not found:
            raise
    found = found or _of_commands(text)
    if found:
        return found
    raise Unreadable(
        "no known format was recognised",
        "Known are recipes of eugr (recipe_version 1: container, command) and sparkrun (recipe_version 2: model, runtime), "
        "a compose file, a docker run line, the line that starts vllm, sglang or llama-server, and sparkweb's own.",
        line=1,
        field="text",
    )


def _of_yaml(value: dict[str, Any]) -> str:
    if "spec" in value and ("sparkweb" in value or "recipe_version" not in value):
        return "sparkweb"
    if isinstance(value.get("services"), dict):
        return "compose"
    version = str(value.get("recipe_version", ""))
    if "sparkrun_version" in value or "runtime" in value or version.startswith("2"):
        return "sparkrun"
    if "command" in value and "container" in value and version[:1] in ("", "1"):
        return "eugr"
    return "sparkrun" if "model" in value and ("defaults" in value or "command" in value) else ""


def _of_commands(text: str) -> str:
    """Of a script whose first words tell nothing: `cd models && sudo docker run …`."""
    try:
        commands = command_text.split(typed(text))
    except Unreadable:
        return ""
    if any(docker_run.words_after_run(one) is not None for one in commands):
        return "docker run"
    found, _, _ = vllm_serve.find(commands)
    return "command" if found is not None else ""


def mapping(text: str) -> Document:
    """The text as YAML with names. Raises Unreadable."""
    document = yaml_text.load(text)
    if not isinstance(document.value, dict):
        raise Unreadable(
            "no known format was recognised",
            "Paste a whole recipe, a compose file, or the line that starts the engine.",
            line=1,
            field="text",
        )
    return document
