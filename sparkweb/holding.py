"""One stack per VAR: who holds it, which processes belong to it, and how they are ended, also after a kill -9 of their parent."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import IO

MARK = "SPARKWEB_STACK"  # in the environment of every process that a stack starts: the VAR it belongs to
POLITE_S = 10.0  # between SIGTERM and SIGKILL for leftovers
_held: IO[str] | None = None  # open as long as this process lives; the kernel gives the lock back, whatever ends it


class CannotStart(Exception):
    """Something is missing or taken; the text names it and the way on."""


def hold(var: Path) -> None:
    """Make this process the only one that runs a stack on `var`, and mark whatever it will start. Raises CannotStart."""
    global _held
    path = var / "run" / "holder"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = path.open("a+")
    except OSError as problem:
        raise CannotStart(f"VAR={var} can't be used: {problem.strerror}. Choose another folder with VAR=…") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        raise CannotStart(
            f"{var} is in use by another sparkweb (process {holder}). Stop that one, or choose another folder with VAR=…"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    _held = file
    os.environ[MARK] = str(var)


def processes_of(var: Path) -> list[int]:
    """Ids of all processes of this user that a stack on `var` started, the pretend Sparks' own among them; not this one."""
    exact = f"{MARK}={var}".encode()
    pretend = f"LAB_NODE={var.resolve()}/lab/".encode()
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        try:
            words = (place / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or is somebody else's
            continue
        if any(word == exact or word.startswith(pretend) for word in words):
            found.append(int(place.name))
    return found


def end_processes(var: Path, *, polite_s: float = POLITE_S) -> None:
    """End what a stack on `var` left running: asked first, killed after `polite_s`. Raises CannotStart when something stays."""
    asked = time.monotonic()
    _signal(processes_of(var), signal.SIGTERM if polite_s > 0 else signal.SIGKILL)
    while left := processes_of(var):
        waited = time.monotonic() - asked
        if waited > polite_s + 10:
            raise CannotStart(f"processes of an older start on {var} do not end: {', '.join(map(str, left))}")
        if waited > polite_s:
            _signal(left, signal.SIGKILL)
        time.sleep(0.1)


def _signal(ids: list[int], number: signal.Signals) -> None:
    for process in ids:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


def interruptible() -> None:
    """Ctrl-C, SIGTERM and a closed terminal all raise KeyboardInterrupt, once: what ends the stack is not interrupted itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
