from collections.abc import Callable

import pytest
import time_machine
from django.db import transaction
from django.test import Client
from ninja import NinjaAPI

from apps.audit import COMMAND_LINE, Actor, robot
from apps.audit.models import Entry
from apps.people import access, services
from apps.people.access import (
    PUBLIC,
    Denied,
    NotSignedIn,
    _Refusals,
    action_of,
    allow,
    authorize,
    covers,
    inside_transaction,
    may,
    public,
)
from apps.people.models import User
from apps.people.roles import ACTIONS, ROLES, allows

SignedIn = Callable[..., Client]


def person(role: str, number: int = 1) -> Actor:
    return Actor("person", number, f"{role} {number}", role, "127.0.0.1")


@pytest.mark.django_db
class TestAuthorize:
    @pytest.mark.parametrize("role", list(ROLES))
    def test_it_is_the_table(self, role: str) -> None:
        for action in ACTIONS:
            assert may(person(role), action) == allows(role, action)
            if allows(role, action):
                authorize(person(role), action)
            else:
                with pytest.raises(Denied):
                    authorize(person(role), action)

    def test_nobody_must_sign_in(self) -> None:
        with pytest.raises(NotSignedIn):
            authorize(None, "view")
        assert not may(None, "view")

    @pytest.mark.parametrize("actor", [COMMAND_LINE, robot("watch")])
    def test_our_own_processes_pass_for_what_exists(self, actor: Actor) -> None:
        authorize(actor, "relaunch")
        with pytest.raises(Denied):
            authorize(actor, "fly")

    @pytest.mark.parametrize("kind", ["person", "token"])
    def test_a_person_or_token_can_not_claim_to_be_the_system(self, kind: str) -> None:
        with pytest.raises(Denied):
            authorize(Actor(kind, 1, "x", "system"), "view")

    def test_a_refusal_is_an_entry_with_the_object(self) -> None:
        node = User.objects.create(name="A", role="viewer")
        with pytest.raises(Denied) as caught:
            authorize(person("viewer"), "launch", node)
        entry = Entry.objects.get(action="access:denied")
        assert (entry.outcome, entry.actor_name, entry.actor_role) == ("denied", "viewer 1", "viewer")
        assert (entry.object_type, entry.object_id, entry.object_name) == ("user", str(node.pk), "A")
        assert entry.after == {"asked_for": "launch"}
        assert str(caught.value) == "Your role, viewer, may not launch a deployment."
        assert caught.value.remedy.startswith("Ask somebody with the role operator or editor or admin")

    def test_a_loop_can_not_flood_the_trail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(access.time, "monotonic", lambda: 1000.0)
        for _ in range(200):
            with pytest.raises(Denied):
                authorize(person("viewer"), "launch")
        assert Entry.objects.count() == 5
        with pytest.raises(Denied):
            authorize(person("viewer"), "stop")
        with pytest.raises(Denied):
            authorize(person("viewer", 2), "launch")
        assert Entry.objects.count() == 7
        monkeypatch.setattr(access.time, "monotonic", lambda: 1061.0)
        with pytest.raises(Denied):
            authorize(person("viewer"), "launch")
        assert Entry.objects.last().after == {"asked_for": "launch", "refusals_not_written_before": 195}

    def test_memory_of_refusals_is_bounded(self) -> None:
        refusals = _Refusals()
        for number in range(refusals.REMEMBERED + 50):
            refusals.admit(person("viewer", number), "launch")
        assert len(refusals._seen) == refusals.REMEMBERED

    def test_inside_a_transaction_it_is_left_to_who_catches_it(self) -> None:
        assert not inside_transaction()
        with pytest.raises(Denied) as caught, transaction.atomic():
            assert inside_transaction()
            authorize(person("viewer"), "launch")
        assert Entry.objects.count() == 0
        caught.value.record()
        caught.value.record()
        assert Entry.objects.count() == 1


def test_marks_name_an_action_of_the_table() -> None:
    with pytest.raises(ValueError, match="fly"):
        allow("fly")
    with pytest.raises(ValueError, match="fly"):
        allow("view", post="fly")


def test_the_mark_by_method() -> None:
    @allow("view", post="launch")
    def view() -> None: ...

    assert [action_of(view, method) for method in ("GET", "HEAD", "POST", "OPTIONS")] == [
        "view",
        "view",
        "launch",
        "view",
    ]
    assert action_of(public(lambda: None), "GET") == PUBLIC
    assert action_of(lambda: None, "GET") is None


def test_reading_never_allows_writing() -> None:
    reads, sends, edits = (
        allow("view")(lambda: None),
        allow("view", post="launch")(lambda: None),
        allow("stop")(lambda: None),
    )
    assert [covers(reads, method) for method in ("GET", "HEAD", "POST", "PUT", "BREW")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [covers(sends, method) for method in ("GET", "POST", "DELETE")] == [True, True, False]
    assert covers(edits, "POST")


def test_marks_below_the_routes_of_the_api() -> None:
    api = NinjaAPI(urls_namespace="marks", openapi_url=None)

    @api.get("/nodes")
    @allow("view")
    def nodes(request): ...

    @api.post("/nodes")
    @allow("edit_nodes")
    def add_node(request): ...

    @api.get("/open")
    def unmarked(request): ...

    views = {str(pattern.pattern): pattern.callback for pattern in api.urls[0]}
    assert action_of(views["nodes"], "GET") == "view"
    assert action_of(views["nodes"], "POST") == "edit_nodes"
    assert action_of(views["nodes"], "DELETE") == "view"  # answered with 405, to those who may see it
    assert action_of(views["open"], "GET") is None


class TestRoutes:
    def test_without_sign_in_a_page_redirects_and_comes_back(self, add: Callable) -> None:
        add("Ana", "admin")
        response = Client().get("/audit?actor=x")
        assert response.status_code == 302
        assert response.headers["Location"] == "/sign-in?next=/audit%3Factor%3Dx"
        assert Client().post("/deployment").headers["Location"] == "/sign-in"

    def test_a_fragment_makes_htmx_load_the_sign_in_page(self, add: Callable) -> None:
        add("Ana", "admin")
        response = Client().get("/who", HTTP_HX_REQUEST="true", HTTP_HX_CURRENT_URL="http://testserver/runs/4?x=1")
        assert (response.status_code, response.headers["HX-Redirect"]) == (401, "/sign-in?next=/runs/4")

    def test_the_api_answers_401_as_a_problem(self, add: Callable) -> None:
        add("Ana", "admin")
        response = Client().get("/api/v1/who")
        assert response.status_code == 401
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.headers["WWW-Authenticate"].startswith("Bearer")
        assert set(response.json()) == {"type", "title", "status", "reason", "field", "detail", "remedy"}

    def test_a_view_without_a_mark_is_refused_for_everybody(self, signed_in: SignedIn) -> None:
        for role in ROLES:
            client = signed_in(role)
            assert client.get("/unmarked").status_code == 403
            assert client.get("/api/v1/unmarked").status_code == 403
        token = services.make_token(COMMAND_LINE, "t", "admin").value
        assert Client().get("/api/v1/unmarked", HTTP_AUTHORIZATION=f"Bearer {token}").status_code == 403

    def test_what_a_mark_does_not_name_can_not_be_sent(self, signed_in: SignedIn) -> None:
        client = signed_in("admin")
        assert client.post("/who").status_code == 405
        assert client.delete("/deployment").status_code == 405
        assert client.post("/api/v1/who").status_code == 405
        assert Client().post("/who").status_code == 302

    def test_a_refused_page_says_who_may_and_is_audited(self, signed_in: SignedIn) -> None:
        client = signed_in("viewer")
        response = client.post("/deployment")
        assert response.status_code == 403
        assert "may not launch a deployment" in response.content.decode()
        assert client.get("/deployment").status_code == 200
        entry = Entry.objects.get(action="access:denied")
        assert entry.request_id == response.headers["X-Request-Id"]
        assert entry.address == "127.0.0.1" and entry.session

    def test_a_refusal_inside_a_transaction_is_audited_and_undoes_the_act(self, signed_in: SignedIn) -> None:
        client = signed_in("viewer")
        assert client.get("/asks-inside").status_code == 403
        assert Entry.objects.filter(action="access:denied").count() == 1
        assert not Entry.objects.filter(action="node:added").exists()

    def test_health_is_open_and_answers_carry_a_request_id(self, add: Callable) -> None:
        add("Ana", "admin")
        assert Client().get("/healthz", HTTP_X_REQUEST_ID="my-own-id-123").headers["X-Request-Id"] == "my-own-id-123"
        odd = Client().get("/healthz", HTTP_X_REQUEST_ID="<script>")
        assert odd.status_code == 200 and len(odd.headers["X-Request-Id"]) == 32
        assert odd.headers["Cache-Control"] == "no-store"


class TestTokens:
    def call(self, value: str, path: str = "/api/v1/who", **more: str):
        return Client().get(path, HTTP_AUTHORIZATION=value, **more)

    def test_a_token_acts_in_its_role(self, db: None) -> None:
        value = services.make_token(COMMAND_LINE, "ci", "operator").value
        assert self.call(f"Bearer {value}").json() == {
            "kind": "token",
            "name": "ci",
            "role": "operator",
            "address": "127.0.0.1",
        }
        post = Client(enforce_csrf_checks=True).post("/api/v1/deployment", HTTP_AUTHORIZATION=f"bearer {value}")
        assert post.status_code != 401

    def test_a_viewer_token_may_not_launch(self, db: None) -> None:
        value = services.make_token(COMMAND_LINE, "ci", "viewer").value
        response = Client().post("/api/v1/deployment", HTTP_AUTHORIZATION=f"Bearer {value}")
        assert (response.status_code, response.json()["reason"]) == (403, "denied")
        assert "operator" in response.json()["remedy"]

    @pytest.mark.parametrize(
        "value", ["", "Bearer", "Bearer ", "Bearer nonsense", "Basic YTpi", "Bearer \xff\xfe", "x" * 5000]
    )
    def test_nonsense_is_401(self, add: Callable, value: str) -> None:
        add("Ana", "admin")
        assert self.call(value).status_code == 401

    def test_revoked_and_expired_tokens_are_401_and_audited(self, add: Callable) -> None:
        from datetime import timedelta

        add("Ana", "admin")
        token = services.make_token(COMMAND_LINE, "ci", "viewer", life=timedelta(days=1))
        other = services.make_token(COMMAND_LINE, "old", "viewer", life=timedelta(days=1))
        services.revoke_token(COMMAND_LINE, token.token_id)
        assert self.call(f"Bearer {token.value}").status_code == 401
        with time_machine.travel(timedelta(days=2) + __import__("datetime").datetime.now(), tick=False):
            assert self.call(f"Bearer {other.value}").status_code == 401
        assert Entry.objects.filter(action="token:refused").count() == 2

    def test_a_flood_of_wrong_tokens_does_not_flood_the_trail(self, add: Callable) -> None:
        add("Ana", "admin")
        for number in range(50):
            self.call(f"Bearer wrong{number}")
        assert Entry.objects.filter(action="token:refused").count() == 5

    def test_pages_take_no_token(self, add: Callable) -> None:
        add("Ana", "admin")
        value = services.make_token(COMMAND_LINE, "ci", "admin").value
        assert self.call(f"Bearer {value}", path="/who").status_code == 302

    def test_a_wrong_token_is_not_saved_by_a_cookie(self, signed_in: SignedIn) -> None:
        client = signed_in("admin")
        assert client.get("/api/v1/who").json()["kind"] == "person"
        assert client.get("/api/v1/who", HTTP_AUTHORIZATION="Bearer wrong").status_code == 401

    def test_a_cookie_alone_writes_nothing_through_the_api(self, signed_in: SignedIn) -> None:
        client = signed_in("admin")
        strict = Client(enforce_csrf_checks=True)
        strict.cookies = client.cookies
        assert strict.post("/api/v1/deployment").status_code == 403
