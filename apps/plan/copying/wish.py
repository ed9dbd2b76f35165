"""What is to be copied, from where to where. A model folder is its path; the last node of a chain is the last of `targets`."""

from __future__ import annotations

import re
from dataclasses import dataclass

PATH = re.compile(r"/[^\x00-\x1f\x7f\"\\]{1,500}")
REVISION = re.compile(r"/snapshots/([0-9a-f]{40})$")
MOST_TARGETS = 32


class BadPath(ValueError):
    """This folder can't be copied, verified or removed by its name."""


@dataclass(frozen=True)
class Place:
    """How the node before it in the chain reaches a node."""

    node: str
    user: str
    address: str
    port: int = 22
    keys: tuple[str, ...] = ()  # pinned host keys as `TYPE BASE64`
    fabric: bool = True


@dataclass(frozen=True)
class Wish:
    path: str
    source: Place
    targets: tuple[Place, ...]
    streams: int = 4  # of one hop, at most
    keep_free: int = 10 << 30  # bytes of the target's disk that stay free

    def __post_init__(self) -> None:
        check_path(self.path)


def check_path(path: str) -> str:
    """Raises BadPath for a path that is not absolute and plain, or that is no deeper than one folder."""
    parts = path.split("/")[1:]
    if not PATH.fullmatch(path) or len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
        raise BadPath(path)
    return path


def revision_of(path: str) -> str:
    """The commit, where the folder is a snapshot of a hub's cache."""
    found = REVISION.search(path)
    return found[1] if found else ""
