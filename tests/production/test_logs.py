"""Servers that are away are one line in the log; everything else keeps its traceback."""

from __future__ import annotations

import logging
import sqlite3

import kombu.exceptions
import psycopg
import pytest
import redis
from celery.beat import SchedulingError
from celery.exceptions import reraise
from django.db import OperationalError

from sparkweb.logs import AwayInOneLine


def shown(failure: BaseException) -> str:
    record = logging.LogRecord(
        "a", logging.ERROR, "f", 1, "asked %s\nfor more", ("somebody",), (type(failure), failure, None)
    )
    assert AwayInOneLine().filter(record)
    return logging.Formatter().format(record)


def caused(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


def while_handling(outer: Exception, inner: Exception) -> Exception:
    outer.__context__ = inner
    return outer


def met_by_beat(outer: Exception, inner: Exception) -> Exception:
    """As celery.beat tells that a task could not be sent."""
    try:
        try:
            raise outer from inner
        except Exception as met:
            reraise(SchedulingError, SchedulingError(f"Couldn't apply scheduled task: {met}"), met.__traceback__)
    except SchedulingError as told:
        return told
    raise AssertionError


def test_a_database_that_another_process_holds_is_one_line() -> None:
    said = shown(caused(OperationalError("database is locked"), sqlite3.OperationalError("database is locked")))
    assert said == "asked somebody (OperationalError: database is locked)"


@pytest.mark.parametrize(
    "failure",
    [
        caused(OperationalError("x"), psycopg.OperationalError("connection failed: refused\nIs the server running?")),
        caused(
            RuntimeError("x"), caused(OperationalError("x"), psycopg.errors.AdminShutdown("connection failed: stop"))
        ),
        psycopg.errors.CannotConnectNow("connection failed: starting up"),
        caused(OSError("x"), redis.ConnectionError("connection failed: Error 111")),
        met_by_beat(kombu.exceptions.OperationalError("x"), redis.ConnectionError("connection failed: Error 111")),
    ],
)
def test_away_is_one_line(failure: Exception) -> None:
    said = shown(failure)
    assert "\n" not in said and said.startswith("asked somebody (") and "connection failed: " in said


@pytest.mark.parametrize(
    "failure",
    [
        OperationalError("no such table: runs_run"),
        caused(OperationalError("x"), psycopg.errors.DiskFull("no space")),
        caused(OperationalError("x"), psycopg.errors.DeadlockDetected("deadlock")),
        redis.ResponseError("unknown command"),
        while_handling(KeyError("x"), redis.ConnectionError("connection failed: Error 111")),
        met_by_beat(KeyError("x"), ValueError("connection failed")),
        KeyError("x"),
    ],
)
def test_what_is_not_away_keeps_all_of_it(failure: Exception) -> None:
    said = shown(failure)
    assert said.startswith("asked somebody\nfor more\n") and type(failure).__name__ in said.splitlines()[-1]


def test_it_stands_before_the_console() -> None:
    handlers = [handler for handler in logging.getLogger().handlers if type(handler) is logging.StreamHandler]
    assert any(isinstance(one, AwayInOneLine) for handler in handlers for one in handler.filters)
