"""Keeps secrets out of entries: values under telling names are withheld, the rest is masked by pattern."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

from apps.diagnosis.masking import mask_text

WITHHELD = "[withheld]"

# Names whose text is never stored. A public key, a host key's fingerprint or a count of tokens is no secret.
_TELLING = re.compile(
    r"(?:^|[_\-. ])(?:password|passwd|passphrase|secret|token|private[_\-]?key|api[_\-]?key|secret[_\-]?key|key|cookie"
    r"|authorization)(?:s|[_\-]?values?)?$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"(?:public|host|key_type|sort|object|idempotency)[_\-]?keys?$", re.IGNORECASE)

_OUR_TOKENS = re.compile(r"\bsw_[A-Za-z0-9_\-]{20,}")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")  # PostgreSQL refuses NUL; lone surrogates are no UTF-8


def clean(text: str, limit: int | None = None) -> str:
    """`text` as it may be stored: without secrets of a known shape and without characters a database refuses."""
    text = _UNSTORABLE.sub("\ufffd", text)
    text = _OUR_TOKENS.sub("[masked]", mask_text(text))
    if limit is not None and len(text) > limit:
        return text[: limit - 1] + "…"
    return text


def is_telling(name: str) -> bool:
    """Whether a value under this name would be a secret."""
    return bool(_TELLING.search(name)) and not _HARMLESS.search(name)


def withheld(value: Any, name: str = "") -> Any:
    """A copy of `value` as plain JSON, in which nothing is secret. Whether a secret is set or empty still shows."""
    if isinstance(value, Mapping):
        return {clean(str(key)): withheld(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [withheld(item, name) for item in items]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    text = repr(value) if isinstance(value, bytes) else str(value)
    if text and is_telling(name):
        return WITHHELD
    return clean(text)


def canonical(value: Any) -> str:
    """The one way in which a value is written as JSON here, so that equal values have equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=True)
