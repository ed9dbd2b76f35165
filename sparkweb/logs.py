"""What the log leaves out: where in the code a server that is away was missed. That is no fault of ours, and it repeats."""

from __future__ import annotations

import logging
import sqlite3
import sys

LOCKED = "database is locked"  # SQLite's words, after settings.DATABASES' timeout
AWAY = ("08", "57P")  # classes of SQLSTATE: no connection; the server is stopped, started or in recovery


class AwayInOneLine(logging.Filter):
    """A database or Redis that is away makes one line of a record, instead of a traceback each time it is asked."""

    def filter(self, record: logging.LogRecord) -> bool:
        failure = away(record.exc_info[1] if record.exc_info else None)
        if failure is not None:
            said = str(failure).strip().splitlines()
            record.msg = (
                f"{record.getMessage().splitlines()[0]} ({type(failure).__name__}: {said[0] if said else 'away'})"
            )
            record.args, record.exc_info, record.exc_text = None, None, None
        return True


def away(failure: BaseException | None) -> BaseException | None:
    """The failure to reach PostgreSQL or Redis, or to write into a SQLite that another process holds, that is behind this one;
    None when there is another cause."""
    psycopg, redis = sys.modules.get("psycopg"), sys.modules.get("redis")  # no failure is of what nobody has imported
    while failure is not None:
        of_psycopg = psycopg is not None and isinstance(failure, psycopg.OperationalError)
        if of_psycopg and (getattr(failure, "sqlstate", None) or "08").startswith(AWAY):
            return failure
        of_redis = redis is not None and isinstance(failure, redis.ConnectionError | redis.TimeoutError)
        if of_redis:
            return failure
        if isinstance(failure, sqlite3.OperationalError) and str(failure) == LOCKED:
            return failure
        # Beat raises its own error without naming the cause; of anybody else's, what was handled before tells nothing.
        failure = failure.__cause__ or (failure.__context__ if type(failure).__name__ == "SchedulingError" else None)
    return None
