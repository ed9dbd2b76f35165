"""Numbers as tools print them. Unknown is None, never 0."""

from __future__ import annotations

import math
import re

GIB = 1024**3
MIB = 1024**2

_NOTHING = {
    "",
    "-",
    "--",
    "n/a",
    "na",
    "none",
    "<none>",
    "null",
    "unknown",
    "not supported",
    "not available",
    "unknown error",
    "err!",
    "unknown!",
    "insufficient permissions",
    "gpu is lost",
    "gpu requires reset",
    "no permissions",
    "deprecated",
}
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(?:[.,][0-9]{1,12})?")
_SIZE = re.compile(r"([0-9]{1,20}(?:[.,][0-9]{1,6})?)\s*([KMGTPEkmgtpe]?)(i?)([Bb]?)\Z")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}


def unknown(text: str) -> bool:
    """Whether a tool's cell says that it has no value: N/A, [N/A], Not Supported, [Unknown Error], ERR!, empty."""
    return text.strip().strip("[]").strip().lower() in _NOTHING


def decimal(text: str | None) -> float | None:
    """The first number of a cell, whatever unit follows: `11.17 W`, `8,6`. None when there is none."""
    if text is None or unknown(text):
        return None
    found = _NUMBER.match(text.strip())
    if not found:
        return None
    value = float(found.group().replace(",", "."))
    return value if math.isfinite(value) else None


def whole(text: str | None) -> int | None:
    """The first whole number of a cell: `41C`, `98 %`, `143771MiB`. A cut one (`13186...`) is None."""
    if text is None or "..." in text or "…" in text:
        return None
    value = decimal(text)
    return None if value is None else int(value)


def size(text: str | None, *, base: int = 1024) -> int | None:
    """Bytes of `121Gi`, `8,6Mi`, `18.5GB`, `3.6T`, `0B`.

    `GiB` and `Gi` are powers of 1024, `GB` of 1000, a bare `G` of `base`.
    """
    if text is None:
        return None
    found = _SIZE.match(text.strip())
    if not found:
        return None
    number, prefix, binary, byte = found.groups()
    each = 1024 if binary else (1000 if byte and prefix else base)
    power: int = each ** _POWERS[prefix.lower()]
    return round(float(number.replace(",", ".")) * power)


def gib(count: int | None, *, digits: int = 2) -> float | None:
    """Bytes as GiB, rounded."""
    return None if count is None else round(count / GIB, digits)
