"""Lets tests with transaction=True empty the audit table afterwards, which the database otherwise refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest


@contextmanager
def unprotected_trail() -> Iterator[None]:
    """Take the triggers of the audit trail away and put them back."""
    from django.db import connection

    migration = import_module("apps.audit.migrations.0002_append_only")
    editor = SimpleNamespace(connection=connection)
    there = "audit_entry" in connection.introspection.table_names()
    if there:
        migration.backwards(None, editor)
    try:
        yield
    finally:
        if there:
            migration.backwards(None, editor)
            migration.forwards(None, editor)


@pytest.fixture(autouse=True, scope="session")
def _flush_may_empty_the_trail() -> Iterator[None]:
    from django.test import TransactionTestCase

    original = TransactionTestCase._fixture_teardown

    def teardown(case: Any) -> None:
        with unprotected_trail():
            original(case)

    TransactionTestCase._fixture_teardown = teardown
    yield
    TransactionTestCase._fixture_teardown = original
