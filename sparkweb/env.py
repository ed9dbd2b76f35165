"""Settings from the environment and from files in VAR. Fails loudly at start, naming the variable."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from django.core.exceptions import ImproperlyConfigured

BASE = Path(__file__).resolve().parent.parent


def text(name: str, default: str = "") -> str:
    """The value of NAME, or of the file that NAME_FILE points to (how compose hands over secrets)."""
    path = os.environ.get(f"{name}_FILE")
    if path:
        try:
            return Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
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


def whole(name: str, default: int, *, least: int = 0) -> int:
    value = os.environ.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 16) or int(value) < least:
        raise ImproperlyConfigured(f"{name}={value!r} is not a whole number from {least} on")
    return int(value)


def port(name: str, default: int) -> int:
    value = os.environ.get(name, "").strip() or str(default)
    if not value.isascii() or not value.isdecimal() or not 1 <= int(value) <= 65535:
        raise ImproperlyConfigured(f"{name}={value!r} is not a port (1 to 65535)")
    return int(value)


def url(name: str, password_name: str) -> str:
    """The address in NAME, with the password from PASSWORD_NAME (or its _FILE) put in where the address has none.

    So an address can stand in the open and the password in a file of its own.
    """
    given, password = text(name), text(password_name)
    if not given or not password:
        return given
    parts = urlsplit(given)
    if parts.password is not None:
        raise ImproperlyConfigured(f"{name} holds a password and {password_name} is set too: give one of them")
    user, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}"))


def words(name: str, default: str = "") -> list[str]:
    return [word.strip() for word in os.environ.get(name, default).split(",") if word.strip()]


def var() -> Path:
    """The folder of all state (database, keys, logs, sockets)."""
    return Path(os.environ.get("VAR") or BASE / "var").absolute()


def made_var() -> Path:
    folder = var()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as problem:
        raise ImproperlyConfigured(f"VAR={folder} can't be made: {problem.strerror}") from None
    return folder


def command() -> str:
    """How manage.py is called here, as a person would type it in the installation's folder: `.venv/bin/python manage.py`."""
    python = Path(sys.executable)
    return f"{python.relative_to(BASE) if python.is_relative_to(BASE) else python.name} manage.py"


def kept_private(path: Path) -> Path:
    """`path` of a SQLite file that only we may read: sessions are in it. SQLite gives its helpers (-wal, -shm) the same rights.

    Where that can't be set (another owner, a read-only place) it is left to whoever uses the file to complain.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            if each.exists() and each.stat().st_mode & 0o077:
                each.chmod(0o600)
    return path


def kept_secret(name: str, variable: str, length: int = 48) -> str:
    """A secret from the environment, else from VAR/keys/NAME, made there (0600) at the first start."""
    given = text(variable)
    if given:
        return given
    folder = var() / "keys"
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_kept(path)
    except OSError as problem:
        raise ImproperlyConfigured(
            f"{path} can't be made ({problem.strerror}): give {variable}_FILE, or let this user write VAR={var()}"
        ) from None
    with os.fdopen(handle, "w") as file:
        value = secrets.token_urlsafe(length)
        file.write(value)
    return value


def _read_kept(path: Path) -> str:
    try:
        value = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ImproperlyConfigured(f"{path} can't be read: {problem}") from None
    if not value:
        raise ImproperlyConfigured(f"{path} is empty: restore it from your backup")
    return value
