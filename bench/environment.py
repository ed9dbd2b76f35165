"""The environment that pyinfra and ansible live in: apart from ours, in a cache folder, installed by hash."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.measure import CannotMeasure, say

BASE = Path(__file__).resolve().parent.parent
LOCK = BASE / "requirements-bench.lock"


def folder_from(environment: Mapping[str, str]) -> Path:
    """$SPARKWEB_CACHE/bench-venv, else $VAR/bench-venv, else var/bench-venv."""
    root = environment.get("SPARKWEB_CACHE") or environment.get("VAR") or str(BASE / "var")
    return Path(root).absolute() / "bench-venv"


def ready(folder: Path | None = None) -> Path:
    """The folder of programs (`bin`) of the environment, made when it is missing or the lock changed.

    Raises CannotMeasure with pip's last words when it can't be made.
    """
    folder = folder or folder_from(os.environ)
    stamp = folder / "installed.lock"
    with contextlib.suppress(OSError):
        if stamp.read_bytes() == LOCK.read_bytes():
            return folder / "bin"
    say(f"installing {LOCK.name} (a minute)")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    try:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([*pip, "--no-compile", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)])
    except (OSError, subprocess.SubprocessError) as error:
        words = str(getattr(error, "stderr", "") or error).strip().splitlines()
        told = " / ".join(line for line in words if not line.startswith("WARNING"))[-400:]
        raise CannotMeasure(f"{LOCK.name} could not be installed: {told}") from error
    stamp.write_bytes(LOCK.read_bytes())
    return folder / "bin"


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=600)
