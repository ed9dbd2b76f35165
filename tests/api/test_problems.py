"""Every error is problem+json that says what, where and what next, whatever was sent."""

from __future__ import annotations

import time

import pytest
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.test import Client

from apps.api import credentials as credentials_room
from apps.api import nodes as nodes_room
from apps.audit.models import Entry
from apps.people.models import User
from tests.api.conftest import Answer, Program

pytestmark = pytest.mark.django_db
MEMBERS = {"type", "title", "status", "reason", "field", "detail", "remedy"}
NODE = {"name": "spark-1", "address": "spark-1", "port": 22, "user": "aurora", "credential": 1}


def is_problem(answer: Answer, status: int, reason: str | None = None, field: str | None = None) -> None:
    assert answer.status == status, answer
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert set(answer.body) >= MEMBERS
    assert answer.body["status"] == status
    assert answer.body["title"] and answer.body["detail"] and answer.body["remedy"], answer.body
    assert "Traceback" not in str(answer.body)
    if reason:
        assert answer.body["reason"] == reason, answer.body
    if field:
        assert answer.body["field"] == field, answer.body


@pytest.mark.parametrize(
    "raw", [b"{", b"{]", b"nonsense", b'{"name": NaN}', b"\xff\xfe\xfa", b"[" * 100_000, b'{"a": 1} x', b"1" * 5000]
)
def test_malformed_json(admin: Program, raw: bytes) -> None:
    is_problem(admin.send("POST", "nodes", raw=raw), 400, "malformed_json", "body")


@pytest.mark.parametrize("raw", [b"[]", b"3", b'"text"', b"null", b"true", b""])
def test_a_body_that_is_no_object(admin: Program, raw: bytes) -> None:
    is_problem(admin.send("POST", "nodes", raw=raw), 422, "bad_input", "body")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_another_media_type(admin: Program, kind: str) -> None:
    is_problem(admin.send("POST", "nodes", raw=b"{}", content_type=kind), 415, "unsupported_media_type")


class TestBrowser:
    """A session is as good as a token, but a cookie is sent by any page, so writing asks for the token of forms."""

    def test_it_reads(self, db: None) -> None:
        assert browser().get("/api/v1/nodes").status_code == 200

    def test_it_writes_with_the_token_of_forms_only(self, db: None) -> None:
        client = browser(enforce_csrf_checks=True)
        response = client.post("/api/v1/credentials", {"name": "x"}, content_type="application/json")
        assert response.status_code == 403
        assert response.headers["Content-Type"] == "application/problem+json"
        client.cookies[settings.CSRF_COOKIE_NAME] = "a" * 32
        response = client.post(
            "/api/v1/credentials", {"name": "x"}, content_type="application/json", headers={"X-CSRFToken": "a" * 32}
        )
        assert response.status_code == 201

    def test_a_form_of_files(self, db: None) -> None:
        """The check for the form's token reads the stream before us."""
        response = browser().post("/api/v1/nodes", {"name": "x"})
        assert response.status_code == 415
        assert response.headers["Content-Type"] == "application/problem+json"


def browser(**words: bool) -> Client:
    person = User.objects.create(name="Ada", role="admin")
    client = Client(raise_request_exception=False, **words)
    client.force_login(person)
    session = client.session
    session.update({"access_version": person.access_version, "began": time.time(), "seen": time.time()})
    session.save()
    return client


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"port": "22"}, "port"),
        ({"port": 22.5}, "port"),
        ({"port": 0}, "port"),
        ({"port": 10**30}, "port"),
        ({"port": True}, "port"),
        ({"port": None}, "port"),
        ({"name": 3}, "name"),
        ({"name": None}, "name"),
        ({"name": "x" * 1_000_000}, "name"),
        ({"name": "nul\0"}, "name"),
        ({"address": ["a"]}, "address"),
        ({"credential": None}, "credential"),
        ({"credential": True}, "credential"),
        ({"credential": 1.5}, "credential"),
        ({"credential": {"id": 1}}, "credential"),
        ({"credential": ""}, "credential"),
        ({"credential": "nobody's"}, "credential"),
        ({"credential": 10**40}, "credential"),
        ({"credential": -1}, "credential"),
        ({"credential": "x" * 1_000_000}, "credential"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_wrong_fields_are_named(admin: Program, changes: dict[str, object], field: str) -> None:
    is_problem(admin.post("nodes", {**NODE, **changes}), 422, "bad_input", field)


@pytest.mark.parametrize("field", ["name", "address", "user", "credential"])
def test_missing_fields_are_named(admin: Program, field: str) -> None:
    answer = admin.post("nodes", {name: value for name, value in NODE.items() if name != field})
    is_problem(answer, 422, "bad_input", field)
    assert "missing" in answer.body["detail"]


def test_half_a_surrogate_pair(admin: Program) -> None:
    is_problem(admin.send("POST", "credentials", raw=rb'{"name": "\ud800"}'), 422, "bad_input", "name")
    is_problem(admin.send("POST", "credentials", raw=rb'{"\ud800": "x"}'), 422, "bad_input")


def test_an_infinite_number_deep_inside(admin: Program) -> None:
    body = b'{"name": "a", "nodes": ["n"], "spec": {"os_floor_gib": 1e999}}'
    is_problem(admin.send("POST", "deployments", raw=body), 422, "bad_input", "spec.os_floor_gib")


def test_too_large(admin: Program) -> None:
    is_problem(admin.send("POST", "credentials", raw=b'{"name": "' + b"x" * 3_000_000 + b'"}'), 413, "too_large")


def test_what_was_sent_does_not_come_back_whole(admin: Program) -> None:
    answer = admin.post("deployments", {"name": "ok", "nodes": ["x" * 255] * 64, "spec": {"model": "m"}})
    is_problem(answer, 422, "bad_input")
    assert len(str(answer.body)) < 4000
    answer = admin.post("nodes", {**NODE, "k" * 500_000: 1})
    is_problem(answer, 422, "bad_input")
    assert len(str(answer.body)) < 4000


def test_nobody(program: object) -> None:
    answer = Program().get("nodes")
    is_problem(answer, 401, "not_signed_in")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    is_problem(Program("sw_wrong").get("nodes"), 401, "not_signed_in")


def test_denied_is_in_the_trail(program: object) -> None:
    answer = program("viewer").post("nodes", NODE)  # type: ignore[operator]
    is_problem(answer, 403, "denied")
    entry = Entry.objects.latest("id")
    assert (entry.action, entry.actor_name, entry.outcome) == ("access:denied", "viewer program", "denied")


@pytest.mark.parametrize("identity", ["99", "0", "9" * 19, "9" * 400])
@pytest.mark.parametrize("kind", ["nodes", "deployments", "runs"])
def test_unknown_ids(admin: Program, kind: str, identity: str) -> None:
    is_problem(admin.get(f"{kind}/{identity}"), 404, "not_found")


def test_unknown_addresses(admin: Program) -> None:
    for path in ("nodes/x", "nothing", "nodes/1/nothing", "recipes/nothing", "recipes/%00", "nodes/"):
        is_problem(admin.get(path), 404)


def test_wrong_methods(admin: Program) -> None:
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = admin.send(method, "nodes", {})
        is_problem(answer, 405, "method_not_allowed")
        assert answer.headers["Allow"] == "GET, POST"
    is_problem(admin.send("DELETE", "audit"), 405, "method_not_allowed")
    is_problem(admin.send("POST", "openapi.json", {}), 405)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("after=x", "after"),
        ("after=-1", "after"),
        ("after=" + "9" * 30, "after"),
        ("limit=0", "limit"),
        ("limit=-5", "limit"),
        ("limit=many", "limit"),
        ("name=%00", "name"),
        ("name=" + "x" * 5000, "name"),
    ],
)
def test_wrong_parameters_are_named(admin: Program, query: str, field: str) -> None:
    is_problem(admin.get(f"nodes?{query}"), 422, "bad_input", field)


def test_our_own_fault_has_no_traceback(admin: Program, monkeypatch: pytest.MonkeyPatch, caplog: object) -> None:
    def broken() -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(nodes_room, "_rows", broken)
    answer = admin.get("nodes")
    is_problem(answer, 500, "internal")
    assert "secret detail" not in str(answer.body)
    assert answer.body["request"] == answer.headers["X-Request-Id"]
    assert "a secret detail" in caplog.text  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    ["<script>alert(1)</script>", "'; DROP TABLE audit_entry; --", "\x1b[31m", "\u202e", "../../etc/passwd", "$(id)"],
)
def test_hostile_text_is_only_text(admin: Program, text: str) -> None:
    for path, body in (
        ("nodes", {**NODE, "name": text}),
        ("deployments", {"name": text, "nodes": [text]}),
        ("deployments", {"name": "ok", "nodes": [text], "recipe": text}),
    ):
        is_problem(admin.post(path, body), 422, "bad_input")
    assert admin.get("nodes").body["nodes"] == []


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_a_database_that_is_full_or_away_says_so(
    admin: Program, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise kind("database or disk is full")

    monkeypatch.setattr(credentials_room.services, "make_credential", full)
    is_problem(admin.post("credentials", {"name": "k"}), 503, "database")
    page = admin.client.get("/healthz")
    assert page.status_code == 200
