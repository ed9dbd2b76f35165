"""What docker and podman print for people: tables of `ps` and `images`, `version` and `info`. JSON is read in docker.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_GAP = re.compile(r" {2,}|\t")
_PS = re.compile(r"^CONTAINER ID\s{2,}IMAGE\b.*$", re.MULTILINE)
_IMAGES = re.compile(r"^(?:REPOSITORY\s{2,}TAG\b.*|IMAGE\s{2,}ID\s{2,}DISK USAGE\b.*)$", re.MULTILINE)
_STATUS = re.compile(r"(?:Up (?:\d|Less|About|an? )|Exited \(|Restarting \(|Created$|Dead$|Removal In Progress|Up$)")
_FIELDS = re.compile(r"[|;\t]| {2,}")
_PS_KEYS = {
    "CONTAINER ID": "ID",
    "IMAGE": "Image",
    "COMMAND": "Command",
    "STATUS": "Status",
    "PORTS": "Ports",
    "NAMES": "Names",
    "NETWORKS": "Networks",
    "STATE": "State",
}
_IMAGE_KEYS = {
    "REPOSITORY": "Repository",
    "TAG": "Tag",
    "IMAGE ID": "ID",
    "ID": "ID",
    "DIGEST": "Digest",
    "CREATED": "CreatedSince",
    "SIZE": "Size",
    "DISK USAGE": "Size",
    "IMAGE": "Image",
}
MOST_ROWS = 5_000


def lists_containers(text: str) -> bool:
    """Whether this is the table of `docker ps`, be it empty."""
    return _PS.search(text) is not None


def containers(text: str) -> Iterator[dict[str, Any]]:
    """Rows of the `docker ps` table with the keys of its JSON; else lines of an own format that hold a name and a status."""
    header = _PS.search(text)
    if header is not None:
        yield from _rows(text, header, _PS_KEYS)
        return
    for line in text.splitlines()[:MOST_ROWS]:
        row = _own_format(line)
        if row is not None:
            yield row


def images(text: str) -> Iterator[dict[str, Any]]:
    """Rows of the `docker images` table, also of the one that docker 29 brought (IMAGE, DISK USAGE, CONTENT SIZE)."""
    header = _IMAGES.search(text)
    if header is None:
        return
    for row in _rows(text, header, _IMAGE_KEYS):
        if "Image" in row and "Repository" not in row:
            repository, _, tag = row.pop("Image").lstrip("├─└│ ").rpartition(":")
            row |= {"Repository": repository or "<none>", "Tag": tag or "<none>"}
        yield row


def _rows(text: str, header: re.Match[str], keys: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Cells under their heads: a column begins where its name does, and ends where the next one begins."""
    names = [name.strip() for name in _GAP.split(header.group().rstrip()) if name.strip()]
    starts = [header.group().index(name) for name in names]
    for line in text[header.end() :].splitlines()[1 : MOST_ROWS + 1]:
        if not line.strip():
            break
        ends = [*starts[1:], len(line)]
        cells = {name: line[at:end].strip() for name, at, end in zip(names, starts, ends, strict=True)}
        yield {keys[name]: cell for name, cell in cells.items() if name in keys}


def _own_format(line: str) -> dict[str, Any] | None:
    """`--format '{{.Names}}|{{.Status}}'` with any separator: the status is known by its words, the image by its slash."""
    if len(line) > 2_000:
        return None
    cells = [cell.strip() for cell in _FIELDS.split(line) if cell.strip()]
    status = next((cell for cell in cells if _STATUS.match(cell)), None)
    if status is None or len(cells) < 2:
        return None
    others = [cell for cell in cells if cell != status]
    row: dict[str, Any] = {"Status": status}
    for cell in others:
        if re.fullmatch(r"[0-9a-f]{12}|[0-9a-f]{64}", cell):
            row.setdefault("ID", cell)
        elif "->" in cell:
            row.setdefault("Ports", cell)
        elif re.fullmatch(r"[\w.-]+(?::\d+)?(?:/[\w.-]+)+(?::[\w.-]+)?|[\w.-]+:[\w.-]+", cell):
            row.setdefault("Image", cell)
        elif re.fullmatch(r"[A-Za-z0-9][\w.-]*", cell):
            row.setdefault("Names", cell)
    return row if "Names" in row else None


_VERSION = re.compile(
    r"^(?P<part>Client|Server)\b[^\n]*\n(?:(?!(?:Client|Server)\b).*\n){0,4}?\s+Version:\s+(?P<version>\S+)",
    re.MULTILINE,
)
_SHORT = re.compile(r"^(?P<tool>Docker|podman) version (?P<version>\d[\w.+-]*)", re.MULTILINE)
_INFO = {
    "Server Version": "ServerVersion",
    "Storage Driver": "Driver",
    "Cgroup Driver": "CgroupDriver",
    "Cgroup Version": "CgroupVersion",
    "Docker Root Dir": "DockerRootDir",
    "Default Runtime": "DefaultRuntime",
    "Architecture": "Architecture",
}


def versions(text: str) -> dict[str, str]:
    """client_version and server_version of `docker version` and `docker --version`, as far as they stand there."""
    found = {f"{each['part'].lower()}_version": each["version"] for each in _VERSION.finditer(text)}
    short = _SHORT.search(text)
    return found or ({"client_version": short["version"]} if short else {})


def info(text: str) -> dict[str, Any]:
    """`docker info` as people see it, with the keys of its JSON; {} for any other text."""
    found: dict[str, Any] = {}
    for line in text.splitlines()[:400]:
        name, colon, value = line.strip().partition(":")
        if colon and name in _INFO and value.strip():
            found.setdefault(_INFO[name], value.strip())
        elif colon and name == "Runtimes":
            found["Runtimes"] = {each: {} for each in value.split()}
    return found if "ServerVersion" in found else {}
