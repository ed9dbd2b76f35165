"""Walks every address with every role. A route without a mark fails here, as does one that says less than it does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from apps.audit.models import Entry
from apps.people import access
from apps.people.models import User, name_key
from apps.people.roles import ROLES, allows

# Open to everybody, on purpose. Adding one is a decision, so it is written down here a second time.
OPEN = {"/sign-in", "/sign-in/x", "/first-run", "/healthz", "/readyz"}
# What a viewer may send: about themselves only, or something that changes nothing.
VIEWERS_MAY_SEND = {"/sign-out", "/settings/me", "/api/v1/explain", "/explain"}
MADE_BY_NINJA = {"openapi-json", "openapi-view"}
UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
SAMPLES = {"int": "99999999", "str": "x", "slug": "x", "uuid": "00000000-0000-4000-8000-000000000000", "path": "x"}


@dataclass(frozen=True)
class Route:
    path: str
    view: Callable[..., Any]
    name: str

    @property
    def is_api(self) -> bool:
        return self.path.startswith("/api/")

    def action(self, method: str) -> str | None:
        return "view" if self.name in MADE_BY_NINJA and self.is_api else access.action_of(self.view, method)

    def methods(self) -> list[str]:
        """Those that the API names; of a page, where nobody names them, the two that a browser sends."""
        for cell in getattr(self.view, "__closure__", None) or ():
            operations = getattr(cell.cell_contents, "operations", None)
            if operations:
                return sorted({method for operation in operations for method in operation.methods})
        return ["GET"] if self.name in MADE_BY_NINJA else ["GET", "POST"]


def sample(route: str) -> str:
    def value(match: re.Match[str]) -> str:
        return SAMPLES.get((match[1] or "str:").rstrip(":"), "99999999")

    return re.sub(r"<(\w+:)?\w+>", value, route)


def walk(patterns: list[Any], prefix: str = "/") -> Iterator[Route]:
    for entry in patterns:
        path = prefix + sample(str(entry.pattern).lstrip("^").rstrip("$"))
        if isinstance(entry, URLResolver):
            yield from walk(entry.url_patterns, path)
        elif isinstance(entry, URLPattern):
            yield Route(path, entry.callback, entry.name or "")


ROUTES = list(walk(get_resolver().url_patterns))


def browser(role: str) -> Client:
    person, _ = User.objects.get_or_create(name=f"{role} person", defaults={"role": role, "name_key": name_key(role)})
    client = Client(raise_request_exception=False)
    client.force_login(person)
    session = client.session
    session.update({"access_version": person.access_version, "began": time.time(), "seen": time.time()})
    session.save()
    return client


def send(client: Client, method: str, path: str) -> Any:
    return client.generic(method, path, data="{}" if path.startswith("/api/") else "", content_type="application/json")


@pytest.fixture(autouse=True)
def _somebody_exists(db: None) -> None:
    User.objects.create(name="Root", role="admin")
    access._refusals.forget()


def test_there_are_routes_and_no_two_of_one_address() -> None:
    paths = [route.path for route in ROUTES]
    assert len(paths) > 10
    assert sorted(paths) == sorted(set(paths))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_it_says_what_it_asks_for(route: Route) -> None:
    for method in route.methods():
        action = route.action(method)
        assert action, f"{method} {route.path} has no mark: put @allow(…) or @public above the view"
        assert (action == access.PUBLIC) == (route.path in OPEN), f"{method} {route.path} is open to everybody"


@pytest.mark.parametrize("route", [route for route in ROUTES if route.path not in OPEN], ids=lambda route: route.path)
def test_nobody_gets_in_without_signing_in(route: Route) -> None:
    for method in route.methods():
        response = send(Client(raise_request_exception=False), method, route.path)
        if route.is_api:
            assert response.status_code == 401, (method, route.path)
            assert response.headers["Content-Type"] == "application/problem+json"
        else:
            assert response.status_code == 302, (method, route.path)
            assert response.headers["Location"].startswith("/sign-in")


@pytest.mark.parametrize("route", [route for route in ROUTES if route.path not in OPEN], ids=lambda route: route.path)
def test_each_role_gets_what_its_role_allows(route: Route) -> None:
    for role in ROLES:
        client = browser(role)
        for method in route.methods():
            if route.path == "/sign-out":
                client = browser(role)
            response = send(client, method, route.path)
            what = (role, method, route.path, response.status_code)
            assert response.status_code < 500 or response.status_code == 503, what
            if not allows(role, route.action(method) or ""):
                assert response.status_code == 403, what
                assert Entry.objects.order_by("-id").first().action == "access:denied", what
            else:
                assert response.status_code != 401, what
                assert role != "admin" or response.status_code != 403, what


@pytest.mark.parametrize("role", ["viewer", "auditor"])
@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.path not in OPEN | VIEWERS_MAY_SEND], ids=lambda route: route.path
)
def test_a_viewer_sends_nothing(route: Route, role: str) -> None:
    client = browser(role)
    for method in route.methods() if route.is_api else UNSAFE:
        if method in UNSAFE:
            assert send(client, method, route.path).status_code in (403, 405), (method, route.path)
    assert set(Entry.objects.values_list("action", flat=True)) <= {"access:denied"}
