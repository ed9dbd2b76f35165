from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from apps.audit import COMMAND_LINE
from apps.people import access, services
from apps.people.models import User

PASSWORD = "a long enough one"


@pytest.fixture(autouse=True)
def _these_routes(settings: object) -> None:
    settings.ROOT_URLCONF = "tests.people.urls"
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    access._refusals.forget()


@pytest.fixture
def add(db: None) -> Callable[..., User]:
    def make(name: str, role: str = "viewer", password: str = "") -> User:
        person, _ = services.add_person(COMMAND_LINE, name, role)
        if password:
            person.set_password(password)
            person.save()
        return person

    return make


@pytest.fixture
def signed_in(add: Callable[..., User]) -> Callable[..., Client]:
    """A browser in which a new person of that role is signed in; the person is at `.person`."""

    def make(role: str, name: str = "") -> Client:
        person = add(name or f"{role} person", role)
        client = Client()
        link = services.new_sign_in_link(COMMAND_LINE, person.pk)
        assert client.post(link.path).status_code == 302
        client.person = person
        return client

    return make
