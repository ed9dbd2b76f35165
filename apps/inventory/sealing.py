"""Secrets at rest: AES-256-GCM under a fresh key each, that key wrapped by the installation's key, which is not in the database."""

from __future__ import annotations

import base64
import hashlib
import json
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings


class SealBroken(Exception):
    """The sealed value can't be opened: another installation's key, or somebody changed the row."""


def _wrapping_key() -> bytes:
    return hashlib.sha256(b"sparkweb sealing v1\0" + settings.SPARKWEB_KEY.encode()).digest()


def seal(value: str, *, context: str) -> str:
    """Seal text. `context` (table and field) is bound in, so that a sealed value can't be moved to another field."""
    data_key, nonce, wrap_nonce = os.urandom(32), os.urandom(12), os.urandom(12)
    body = {
        "v": 1,
        "wrapped": AESGCM(_wrapping_key()).encrypt(wrap_nonce, data_key, context.encode()),
        "wrap_nonce": wrap_nonce,
        "nonce": nonce,
        "data": AESGCM(data_key).encrypt(nonce, value.encode(), context.encode()),
    }
    return json.dumps({k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in body.items()})


def unseal(sealed: str, *, context: str) -> str:
    """The text again. Raises SealBroken."""
    try:
        body = json.loads(sealed)
        part = {k: base64.b64decode(v) for k, v in body.items() if isinstance(v, str)}
        data_key = AESGCM(_wrapping_key()).decrypt(part["wrap_nonce"], part["wrapped"], context.encode())
        return AESGCM(data_key).decrypt(part["nonce"], part["data"], context.encode()).decode()
    except (ValueError, KeyError, TypeError, InvalidTag) as problem:
        raise SealBroken(f"{context} can't be opened with this installation's key") from problem
