"""What somebody wants fetched, checked field by field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

HUB = "https://huggingface.co"
TOOLS = ("auto", "hf", "curl")
MOST_PATTERNS = 50
LONGEST_PATTERN = 200
MOST_STREAMS = 16
MOST_KEPT_FREE_GIB = 4096
COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_PATH = re.compile(r"/[^\x00-\x1f\x7f\\]{1,500}")
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!/ -]+")
_SECRET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
FIELDS = (
    "repo",
    "revision",
    "include",
    "exclude",
    "cache",
    "endpoint",
    "token",
    "tool",
    "folder",
    "streams",
    "keep_free_gib",
)


class BadWish(ValueError):
    """`field` says which one is wrong, `remedy` what to write instead."""

    def __init__(self, field: str, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.field, self.detail, self.remedy = field, detail, remedy


@dataclass(frozen=True)
class Wish:
    """One revision on one node. `include` and `exclude` are patterns as those of the hub's own tools: `*` matches a slash too."""

    node: str
    repo: str
    revision: str = "main"
    include: tuple[str, ...] = ()  # none: all files
    exclude: tuple[str, ...] = ()
    cache: str = ""  # the hub folder of the cache; empty: where the node's user has it
    endpoint: str = HUB
    token: str = ""  # a secret by its name
    tool: str = "auto"  # hf where it is found, else curl
    folder: str = ""  # a folder of the node that holds the files already: nothing is asked of a hub
    streams: int = 4  # files at a time
    keep_free_gib: int = 10  # that stay free on the disk

    @property
    def folder_name(self) -> str:
        """How the cache calls the folder of this model."""
        return "models--" + self.repo.replace("/", "--")

    @property
    def same(self) -> tuple[Any, ...]:
        """Two wishes with this in common want the same bytes in the same place."""
        return (self.node, self.repo, self.revision, self.include, self.exclude, self.cache, self.endpoint, self.folder)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"include": list(self.include), "exclude": list(self.exclude)}


def wish_from(node: str, body: Mapping[str, Any]) -> Wish:
    """Raises BadWish."""
    unknown = sorted(set(body) - set(FIELDS))
    if unknown:
        raise BadWish(unknown[0], f"there is no field {unknown[0]!r}", f"Use {', '.join(FIELDS)}.")
    repo = _text(body, "repo").removeprefix(f"{HUB}/").rstrip("/")
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo or repo.endswith(".git"):
        raise BadWish("repo", "the model's name is not one of a hub", "Write it as the hub does, e.g. Qwen/Qwen3-8B.")
    folder = _path(body, "folder")
    return Wish(
        node=node,
        repo=repo,
        revision=_revision(body, folder),
        include=_patterns(body, "include"),
        exclude=_patterns(body, "exclude"),
        cache=_path(body, "cache"),
        endpoint=_endpoint(body),
        token=_token(body),
        tool=_tool(body),
        folder=folder,
        streams=_number(body, "streams", Wish.streams, 1, MOST_STREAMS),
        keep_free_gib=_number(body, "keep_free_gib", Wish.keep_free_gib, 0, MOST_KEPT_FREE_GIB),
    )


def _text(body: Mapping[str, Any], name: str, default: str = "") -> str:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise BadWish(name, f"{name} must be text", "Write it as text.")
    return value.strip() or default


def _revision(body: Mapping[str, Any], folder: str) -> str:
    revision = _text(body, "revision", "" if folder else Wish.revision)
    if folder and not revision:
        raise BadWish(
            "revision",
            "a folder does not say which commit it is",
            "Write the commit's 40 digits, as the hub shows them for these files.",
        )
    if folder and not COMMIT.fullmatch(revision):
        raise BadWish("revision", "a branch can't be looked up without a hub", "Write the commit's 40 digits.")
    if not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision or revision.endswith(("/", ".lock")):
        raise BadWish("revision", "this is no branch, tag or commit", "Use e.g. main or the commit's 40 digits.")
    return revision


def _path(body: Mapping[str, Any], name: str) -> str:
    path = _text(body, name)
    if path and (not _PATH.fullmatch(path) or ".." in path.split("/")):
        raise BadWish(name, f"{name} is no absolute path", "Begin it with / and leave out `..`.")
    return path.rstrip("/")


def _patterns(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    given = body.get(name) or ()
    if isinstance(given, str):
        given = given.replace(",", "\n").splitlines()
    if not isinstance(given, Sequence) or len(given) > MOST_PATTERNS:
        raise BadWish(name, f"{name} must be a list of at most {MOST_PATTERNS} patterns", "Write one a line.")
    made = []
    for pattern in given:
        if not isinstance(pattern, str) or len(pattern) > LONGEST_PATTERN:
            raise BadWish(name, f"a pattern of {name} is no short text", "Use e.g. *.safetensors.")
        pattern = pattern.strip()
        if pattern and not _PATTERN.fullmatch(pattern):
            raise BadWish(name, f"{pattern!r} is no pattern of file names", "Use letters, digits, . _ - / and * ? [ ].")
        if pattern:
            made.append(pattern + "*" if pattern.endswith("/") else pattern)
    return tuple(dict.fromkeys(made))


def _endpoint(body: Mapping[str, Any]) -> str:
    endpoint = _text(body, "endpoint", HUB).rstrip("/")
    remedy = "Write the mirror's address, e.g. https://hub.example.org."
    try:
        parts = urlsplit(endpoint)
        parts.port  # noqa: B018 - raises for a port that is none
    except ValueError:
        raise BadWish("endpoint", "the hub's address is no address", remedy) from None
    plain = re.fullmatch(r"[A-Za-z0-9._~:/\[\]%-]+", endpoint)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not plain
        or len(endpoint) > 300
        or "@" in endpoint
    ):
        raise BadWish("endpoint", "the hub's address is no web address", remedy)
    return endpoint


def _token(body: Mapping[str, Any]) -> str:
    token = _text(body, "token")
    if token and (not _SECRET.fullmatch(token) or token.startswith("hf_")):
        raise BadWish("token", "this is no secret's name", "Keep the token under Secrets and write its name here.")
    return token


def _tool(body: Mapping[str, Any]) -> str:
    tool = _text(body, "tool", Wish.tool)
    if tool not in TOOLS:
        raise BadWish("tool", f"there is no way {tool!r} to fetch", f"Use {', '.join(TOOLS)}.")
    return tool


def _number(body: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = body.get(name)
    if value in (None, ""):
        return default
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 6:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadWish(name, f"{name} must be a number from {least} to {most}", f"Leave it out for {default}.")
    return value
