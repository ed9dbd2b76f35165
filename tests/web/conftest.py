from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from apps.people import access
from apps.people.models import User
from apps.runs import heartbeat
from tests.web import seed as story


@pytest.fixture(autouse=True)
def _calm(settings: object) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    access._refusals.forget()


def browser_of(person: User) -> Client:
    """A browser in which that person is signed in."""
    client = Client()
    client.force_login(person)
    session = client.session
    session.update({"access_version": person.access_version, "began": time.time(), "seen": time.time()})
    session.save()
    return client


@pytest.fixture(scope="module")
def rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[story.Seeded]:
    """The story, made once for a module; what a test changes is rolled back after it, the rest after the module."""
    with django_db_blocker.unblock():
        around = transaction.atomic()
        around._from_testcase = True
        with around:
            yield story.seed()
            transaction.set_rollback(True)


@pytest.fixture
def seeded(rows: story.Seeded, db: None) -> story.Seeded:
    heartbeat.beat("worker 1", timezone.now())
    made = copy.copy(rows)
    for name in ("head", "second", "away", "serving", "lost", "failed", "draft", "loading", "failed_run"):
        row = getattr(rows, name)
        setattr(made, name, type(row).objects.get(pk=row.pk))
    return made


@pytest.fixture
def signed_in(db: None) -> Callable[[str], Client]:
    """signed_in("operator") is a browser of somebody with that role."""

    def make(role: str) -> Client:
        person, _ = User.objects.get_or_create(role=role, defaults={"name": f"{role} person"})
        return browser_of(person)

    return make
