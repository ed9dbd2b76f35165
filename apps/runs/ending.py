"""Whether this worker's process is about to end. Then nobody begins anything, and what is at hand is left to the next worker.

An orderly end is as harmless to a run as a kill: whatever fails because the interpreter winds down is no fault of the run.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

_asked = threading.Event()


def ask() -> None:
    """The process was told to end. Also from a signal handler: it only says so."""
    _asked.set()


def asked() -> bool:
    return _asked.is_set()


def has_begun() -> bool:
    """Asked for, or under way without anybody having asked: the main thread has ended, and the interpreter starts no more work."""
    if asked():
        return True
    trial = ThreadPoolExecutor(1)
    try:
        trial.submit(int)
    except RuntimeError:
        return True
    finally:
        trial.shutdown(wait=False)
    return False
