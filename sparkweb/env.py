"""Settings from the environment and from files in VAR. Fails loudly at start, naming the variable."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

BASE = Path(__file__).resolve().parent.parent


def text(name: str, default: str = "") -> str:
    """The value of NAME, or of the file that NAME_FILE points to (how compose hands over secrets)."""
    path = os.environ.get(f"{name}_FILE")
    if path:
        try:
            return Path(path).read_text().strip()
        except OSError as problem:
            raise ImproperlyConfigured(f"{name}_FILE={path} can't be read: {problem}") from problem
    return os.environ.get(name, default)


def flag(name: str, default: bool = False) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in ("", "0", "no", "false", "off"):
        return default if value == "" else False
    if value in ("1", "yes", "true", "on"):
        return True
    raise ImproperlyConfigured(f"{name}={value!r}: use 1 or 0")


def seconds(name: str, default: float, *, least: float = 0.0) -> float:
    value = os.environ.get(name, "")
    if not value:
        return default
    try:
        number = float(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value!r} is not a number of seconds") from None
    if number < least:
        raise ImproperlyConfigured(f"{name}={value!r}: at least {least} s")
    return number


def words(name: str, default: str = "") -> list[str]:
    return [word.strip() for word in os.environ.get(name, default).split(",") if word.strip()]


def var() -> Path:
    """The folder of all state (database, keys, logs, sockets)."""
    return Path(os.environ.get("VAR") or BASE / "var").absolute()


def kept_secret(name: str, variable: str, length: int = 48) -> str:
    """A secret from the environment, else from VAR/keys/NAME, made there (0600) at the first start."""
    given = text(variable)
    if given:
        return given
    folder = var() / "keys"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / name
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        value = path.read_text().strip()
        if not value:
            raise ImproperlyConfigured(f"{path} is empty: restore it from your backup") from None
        return value
    with os.fdopen(handle, "w") as file:
        value = secrets.token_urlsafe(length)
        file.write(value)
    return value
