from collections.abc import Callable
from datetime import timedelta

import pytest
import time_machine
from django.conf import settings
from django.test import Client
from django.utils import timezone

from apps.audit import COMMAND_LINE
from apps.audit.models import Entry
from apps.people import services, sessions, throttling
from apps.people.models import SetupCode, SignInLink, Throttle, User
from tests.people.conftest import PASSWORD

SignedIn = Callable[..., Client]
Add = Callable[..., User]


def standing(client: Client) -> sessions.Standing | None:
    """Who a socket of this browser would belong to."""
    cookie = f"other=1; {settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
    return sessions.standing_of_scope({"headers": [(b"cookie", cookie.encode())], "client": ("127.0.0.1", 1)})


class TestPassword:
    def test_the_right_one_signs_in_and_goes_on(self, add: Add) -> None:
        add("Ana", "admin", PASSWORD)
        client = Client()
        response = client.post("/sign-in", {"name": "  aNA ", "password": PASSWORD, "next": "/who"})
        assert response.headers["Location"] == "/who"
        assert client.get("/who").json()["name"] == "Ana"
        assert Entry.objects.last().action == "session:started"

    @pytest.mark.parametrize(
        "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", "/sign-out"]
    )
    def test_it_never_goes_to_another_site(self, add: Add, target: str) -> None:
        add("Ana", "admin", PASSWORD)
        response = Client().post("/sign-in", {"name": "Ana", "password": PASSWORD, "next": target})
        assert response.headers["Location"] == "/"

    def test_wrong_name_wrong_password_no_password_and_deactivated_look_the_same(self, add: Add) -> None:
        add("Ana", "admin", PASSWORD)
        add("Bo", "viewer")
        services.deactivate(COMMAND_LINE, add("Cy", "viewer", PASSWORD).pk)
        pages = set()
        for name, password in [
            ("Ana", "wrong"),
            ("Nobody", "wrong"),
            ("Bo", ""),
            ("Bo", "!"),
            ("Cy", PASSWORD),
            ("", ""),
        ]:
            response = Client().post("/sign-in", {"name": name, "password": password})
            assert response.status_code == 403
            pages.add(response.content.decode().split('role="alert"')[1].split("</div>")[0])
        assert len(pages) == 1

    def test_what_was_typed_as_a_name_is_not_kept(self, add: Add) -> None:
        add("Ana", "admin", PASSWORD)
        Client().post("/sign-in", {"name": "my-secret-password", "password": "x"})
        assert "my-secret-password" not in repr([entry.as_json() for entry in Entry.objects.all()])

    def test_guessing_is_slowed_down_per_name_and_address(self, add: Add) -> None:
        add("Ana", "admin", PASSWORD)
        add("Bo", "viewer", PASSWORD)
        with time_machine.travel(timezone.now(), tick=False) as clock:
            statuses = [Client().post("/sign-in", {"name": "Ana", "password": str(n)}).status_code for n in range(8)]
            assert statuses == [403, 403, 403, 403, 429, 429, 429, 429]
            response = Client().post("/sign-in", {"name": "Ana", "password": PASSWORD})
            assert (response.status_code, response.headers["Retry-After"]) == (429, "2")
            assert Entry.objects.filter(action="session:refused").count() == 5
            assert Client().post("/sign-in", {"name": "Bo", "password": PASSWORD}).status_code == 302
            other = Client(REMOTE_ADDR="10.9.9.9").post("/sign-in", {"name": "Ana", "password": PASSWORD})
            assert other.status_code == 302
            clock.shift(3)
            assert Client().post("/sign-in", {"name": "Ana", "password": "x"}).headers["Retry-After"] == "4"
            clock.shift(5)
            assert Client().post("/sign-in", {"name": "Ana", "password": PASSWORD}).status_code == 302
            assert throttling.wait_s("sign-in", "Ana", "127.0.0.1") == 0

    def test_a_forwarded_address_is_not_believed(self, add: Add) -> None:
        add("Ana", "admin", PASSWORD)
        for n in range(6):
            response = Client().post("/sign-in", {"name": "Ana", "password": "x"}, HTTP_X_FORWARDED_FOR=f"10.0.0.{n}")
        assert response.status_code == 429

    def test_the_wait_is_bounded_and_forgotten(self, db: None) -> None:
        with time_machine.travel(timezone.now(), tick=False) as clock:
            for _ in range(40):
                throttling.failed("sign-in", "Ana", "a")
            assert throttling.wait_s("sign-in", "Ana", "a") == 900
            clock.shift(3700)
            throttling.failed("sign-in", "Bo", "b")
            assert Throttle.objects.count() == 2
            assert throttling.wait_s("sign-in", "Ana", "a") == 0

    def test_many_names_from_one_address_are_slowed_down_too(self, db: None) -> None:
        for n in range(31):
            throttling.failed("sign-in", f"name {n}", "a")
        assert throttling.wait_s("sign-in", "another", "a") > 0
        assert throttling.wait_s("sign-in", "another", "b") == 0

    def test_the_form_needs_its_csrf_token(self, add: Add) -> None:
        add("Ana", "admin", PASSWORD)
        client = Client(enforce_csrf_checks=True)
        assert client.post("/sign-in", {"name": "Ana", "password": PASSWORD}).status_code == 403

    def test_signing_in_gives_a_new_session_key(self, add: Add) -> None:
        add("Ana", "admin", PASSWORD)
        client = Client()
        client.cookies[settings.SESSION_COOKIE_NAME] = "planted0planted0planted0planted0"
        client.post("/sign-in", {"name": "Ana", "password": PASSWORD})
        assert client.cookies[settings.SESSION_COOKIE_NAME].value != "planted0planted0planted0planted0"


class TestLink:
    def test_looking_does_not_use_it_up(self, add: Add) -> None:
        path = services.new_sign_in_link(COMMAND_LINE, add("Ana", "admin").pk).path
        for _ in range(3):
            preview = Client().get(path)
            assert preview.status_code == 200 and "Sign in as" in preview.content.decode()
            assert Client().head(path).status_code in (200, 405)
        client = Client()
        assert client.post(path).status_code == 302
        assert client.get("/who").json()["name"] == "Ana"

    def test_it_works_once(self, add: Add) -> None:
        path = services.new_sign_in_link(COMMAND_LINE, add("Ana", "admin").pk).path
        assert Client().post(path).status_code == 302
        second = Client()
        assert second.post(path).status_code == 404
        assert second.get(path).status_code == 404
        assert second.get("/who").status_code == 302
        assert Entry.objects.last().action == "session:refused"

    def test_an_expired_one_does_not_work(self, add: Add) -> None:
        path = services.new_sign_in_link(COMMAND_LINE, add("Ana", "admin").pk).path
        with time_machine.travel(timezone.now() + services.LINK_LIFE + timedelta(seconds=1)):
            assert Client().get(path).status_code == 404
            assert Client().post(path).status_code == 404

    def test_a_newer_one_replaces_it(self, add: Add) -> None:
        person = add("Ana", "admin")
        old = services.new_sign_in_link(COMMAND_LINE, person.pk).path
        new = services.new_sign_in_link(COMMAND_LINE, person.pk).path
        assert Client().post(old).status_code == 404
        assert Client().post(new).status_code == 302

    @pytest.mark.parametrize("path", ["/sign-in/wrong", "/sign-in/" + "x" * 3000, "/sign-in/%00", "/sign-in/<script>"])
    def test_a_made_up_one_does_not_work(self, add: Add, path: str) -> None:
        add("Ana", "admin")
        assert Client().get(path).status_code == 404
        assert Client().post(path).status_code == 404

    def test_a_deactivated_person_can_not_use_theirs(self, add: Add) -> None:
        add("Ana", "admin")
        person = add("Bo")
        path = services.new_sign_in_link(COMMAND_LINE, person.pk).path
        services.deactivate(COMMAND_LINE, person.pk)
        assert Client().post(path).status_code == 404
        services.reactivate(COMMAND_LINE, person.pk)
        assert Client().post(path).status_code == 404

    def test_in_a_browser_of_somebody_else_it_replaces_that_session(self, signed_in: SignedIn, add: Add) -> None:
        client = signed_in("admin", "Ana")
        old = standing(client)
        path = services.new_sign_in_link(COMMAND_LINE, add("Bo").pk).path
        assert "Already signed in" in client.get(path).content.decode()
        client.post(path)
        assert client.get("/who").json()["name"] == "Bo"
        assert not sessions.still_allowed(old)

    def test_only_a_hash_is_kept(self, add: Add) -> None:
        path = services.new_sign_in_link(COMMAND_LINE, add("Ana", "admin").pk).path
        value = path.removeprefix("/sign-in/")
        assert value not in repr(list(SignInLink.objects.values()))
        assert value not in repr([entry.as_json() for entry in Entry.objects.all()])

    def test_guessing_links_is_slowed_down(self, add: Add) -> None:
        add("Ana", "admin")
        with time_machine.travel(timezone.now(), tick=False):  # on a busy machine thirty of them outlast the first wait
            for n in range(30):
                Client().post(f"/sign-in/wrong{n}")
        assert Entry.objects.filter(action="session:refused").count() == 5


class TestEnds:
    def test_sign_out(self, signed_in: SignedIn) -> None:
        client = signed_in("viewer")
        before = standing(client)
        assert sessions.still_allowed(before)
        assert client.get("/sign-out").status_code == 405
        assert client.post("/sign-out").headers["Location"] == "/sign-in"
        assert not sessions.still_allowed(before)
        assert client.get("/who").status_code == 302
        assert Entry.objects.last().action == "session:ended"

    @pytest.mark.parametrize("act", ["deactivate", "change_role"])
    def test_deactivation_and_a_new_role_end_it_at_once(self, signed_in: SignedIn, act: str) -> None:
        client = signed_in("operator")
        before = standing(client)
        assert before.actor.role == "operator" and sessions.still_allowed(before)
        more = {"role": "editor"} if act == "change_role" else {}
        getattr(services, act)(COMMAND_LINE, client.person.pk, **more)
        assert not sessions.still_allowed(before)
        assert standing(client) is None
        assert client.get("/who").status_code == 302

    def test_a_new_password_ends_the_others_only(self, signed_in: SignedIn) -> None:
        here = signed_in("viewer")
        there = Client()
        there.post(services.new_sign_in_link(COMMAND_LINE, here.person.pk).path)
        words = {"new": PASSWORD, "again": PASSWORD}
        assert here.post("/settings/me", words).status_code == 302
        assert here.get("/who").status_code == 200
        assert there.get("/who").status_code == 302

    def test_idle_for_eight_hours(self, signed_in: SignedIn) -> None:
        client = signed_in("viewer")
        before, start = standing(client), timezone.now()
        with time_machine.travel(start + timedelta(hours=7, minutes=55)):
            assert client.get("/who").status_code == 200
        with time_machine.travel(start + timedelta(hours=15)):
            assert client.get("/who").status_code == 200
        with time_machine.travel(start + timedelta(hours=23, minutes=5)):
            assert not sessions.still_allowed(before)
            assert client.get("/who").status_code == 302

    def test_what_a_page_fetches_by_itself_keeps_nothing_open(self, signed_in: SignedIn) -> None:
        client = signed_in("viewer")
        start = timezone.now()
        for hours in (4, 7.9):
            with time_machine.travel(start + timedelta(hours=hours)):
                assert client.get("/who", HTTP_HX_REQUEST="true").status_code == 200
                assert client.get("/api/v1/who").status_code == 200
        with time_machine.travel(start + timedelta(hours=8.1)):
            assert client.get("/who").status_code == 302

    def test_seven_days_at_most(self, signed_in: SignedIn) -> None:
        client = signed_in("viewer")
        start = timezone.now()
        for hours in range(7, 7 * 24, 7):
            with time_machine.travel(start + timedelta(hours=hours)):
                assert client.get("/who").status_code == 200
        with time_machine.travel(start + timedelta(days=7, seconds=5)):
            assert client.get("/who").status_code == 302

    @pytest.mark.parametrize(
        "headers", [[], [(b"cookie", b"\xff\xfe=;;")], [(b"cookie", b"a=b; sparkweb_8000=nonsense")]]
    )
    def test_a_socket_without_a_session_is_nobodys(self, db: None, headers: list) -> None:
        assert sessions.standing_of_scope({"headers": headers, "client": None}) is None

    @pytest.mark.parametrize("other", ['prefs={"a":1,"b":[2]}', "x=a b c", "=;;", "k\u00e9y=v", "sparkweb_9=[("])
    def test_an_odd_cookie_of_another_program_hides_nothing(self, signed_in: SignedIn, other: str) -> None:
        client = signed_in("viewer")
        ours = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
        headers = [(b"cookie", f"{other}; {ours}".encode("latin-1"))]
        assert sessions.standing_of_scope({"headers": headers, "client": None}) is not None

    @pytest.mark.parametrize("address", ["http://[::1", "http://[x]/", "\x01", "//[", "nonsense"])
    def test_an_address_that_is_none_still_leads_to_the_sign_in(self, add: Callable[..., User], address: str) -> None:
        add("ana")
        answer = Client().get("/who", headers={"HX-Request": "true", "HX-Current-URL": address})
        assert (answer.status_code, answer.headers["HX-Redirect"][:8]) == (401, "/sign-in")

    def test_last_seen_is_noted(self, signed_in: SignedIn) -> None:
        client = signed_in("viewer")
        with time_machine.travel(timezone.now() + timedelta(hours=1)):
            client.get("/who")
        assert User.objects.get(pk=client.person.pk).last_seen_at > timezone.now() + timedelta(minutes=50)


class TestFirstRun:
    def test_nothing_else_is_reachable(self, db: None) -> None:
        for path in ("/", "/sign-in", "/audit", "/settings/people", "/nowhere", "/first-run-x", "/who"):
            response = Client().get(path)
            assert (response.status_code, response.headers["Location"]) == (302, "/first-run"), path
        assert Client().get("/api/v1/who").status_code == 401
        assert Client().get("/healthz").status_code == 200
        assert Client().get("/first-run").status_code == 200
        page = Client().get("/first-run").content.decode()
        assert "the line that begins with “First run”" in page and "docker compose logs migrate" in page

    def test_the_code_makes_the_admin_once(self, db: None) -> None:
        code = services.setup_code()
        client = Client()
        words = {"code": f" {code.lower()} ", "name": "Ana", "password": PASSWORD}
        assert client.post("/first-run", words).headers["Location"] == "/"
        assert client.get("/who").json()["role"] == "admin"
        assert Client().post("/first-run", words).headers["Location"] == "/"
        assert Client().get("/first-run").headers["Location"] == "/"
        assert User.objects.count() == 1
        assert services.setup_code() is None
        assert [entry.action for entry in Entry.objects.all()] == ["person:added", "session:started"]

    def test_only_the_newest_code_works_and_only_its_hash_is_kept(self, db: None) -> None:
        old, new = services.setup_code(), services.setup_code()
        assert new not in repr(list(SetupCode.objects.values()))
        with pytest.raises(services.Refused):
            services.create_first_admin(old, "Ana", PASSWORD, "")
        assert services.create_first_admin(new, "Ana", PASSWORD, "").role == "admin"

    @pytest.mark.parametrize(
        ("field", "change"),
        [
            ("code", {"code": "wrong"}),
            ("code", {"code": ""}),
            ("name", {"name": "<b>"}),
            ("name", {"name": ""}),
            ("password", {"password": "short"}),
            ("password", {"password": ""}),
            ("password", {"password": "password1234"}),
        ],
    )
    def test_bad_input_names_the_field_and_keeps_the_code(self, db: None, field: str, change: dict) -> None:
        code = services.setup_code()
        response = Client().post("/first-run", {"code": code, "name": "Ana", "password": PASSWORD, **change})
        assert response.status_code == 422
        assert f'id="field-{field}"' in response.content.decode()
        assert response.context["error"]["field"] == field
        assert not User.objects.exists()
        assert Client().post("/first-run", {"code": code, "name": "Ana", "password": PASSWORD}).status_code == 302

    def test_guessing_codes_is_slowed_down(self, db: None) -> None:
        code = services.setup_code()
        for _ in range(6):
            Client().post("/first-run", {"code": "WRONG", "name": "Ana", "password": PASSWORD})
        response = Client().post("/first-run", {"code": code, "name": "Ana", "password": PASSWORD})
        assert response.status_code == 422 and "Too many" in response.content.decode()
        tried = [(one.action, one.outcome, one.actor_name, one.reason) for one in Entry.objects.all()]
        assert tried and set(tried) == {("session:refused", "denied", "somebody", "a wrong setup code")}
        assert len(tried) <= 6 and "WRONG" not in repr(list(Entry.objects.values()))

    def test_without_a_printed_code_nothing_works(self, db: None) -> None:
        assert Client().post("/first-run", {"code": "", "name": "Ana", "password": PASSWORD}).status_code == 422
