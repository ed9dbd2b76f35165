from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from django.test import Client

from apps.people import access
from apps.people.models import User
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


@pytest.fixture
def seeded(db: None) -> story.Seeded:
    return story.seed()


@pytest.fixture
def signed_in(db: None) -> Callable[[str], Client]:
    """signed_in("operator") is a browser of somebody with that role."""

    def make(role: str) -> Client:
        person, _ = User.objects.get_or_create(role=role, defaults={"name": f"{role} person"})
        return browser_of(person)

    return make
