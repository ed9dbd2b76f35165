import json
import re
from collections.abc import Callable

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client

from apps.audit import COMMAND_LINE, Actor, record
from apps.audit.models import Entry
from apps.people import services
from apps.people.models import ApiToken, User, name_key
from apps.people.roles import ROLES, allows
from tests.flushing import unprotected_trail
from tests.people.conftest import PASSWORD

SignedIn = Callable[..., Client]
EVIL = "<script>alert(1)</script>"

# route, method -> the action it asks for
ROUTES = {
    ("/settings/me", "get"): "view",
    ("/settings/me", "post"): "view",
    ("/settings/people", "get"): "edit_people",
    ("/settings/people", "post"): "edit_people",
    ("/settings/people/1", "get"): "edit_people",
    ("/settings/people/1", "post"): "edit_people",
    ("/settings/tokens", "post"): "edit_tokens",
    ("/settings/tokens/1/revoke", "post"): "edit_tokens",
    ("/audit", "get"): "view",
    ("/audit/1", "get"): "view",
    ("/audit/export", "get"): "export_audit",
    ("/sign-out", "post"): "view",
}


@pytest.mark.parametrize("role", [*ROLES, ""])
def test_each_route_with_each_role(signed_in: SignedIn, role: str) -> None:
    for (path, method), action in ROUTES.items():
        client = signed_in(role, f"{role} {path.replace('/', ' ')} {method}") if role else Client()
        if not role and not User.objects.exists():
            signed_in("admin")
        status = getattr(client, method)(path).status_code
        if not role:
            assert status == 302, (path, method)
        elif allows(role, action):
            assert status not in (401, 403, 500), (path, method, status)
        else:
            assert status == 403, (path, method)


class TestPeoplePage:
    def test_add_shows_the_link_once(self, signed_in: SignedIn) -> None:
        client = signed_in("admin")
        page = client.post("/settings/people", {"name": "Bo", "role": "operator"}).content.decode()
        link = re.search(r"http://[^<\s]+/sign-in/[\w-]{20,}", page)[0]
        assert link not in client.get("/settings/people").content.decode()
        browser = Client()
        browser.post("/" + link.split("/", 3)[3])
        assert browser.get("/who").json()["role"] == "operator"

    @pytest.mark.parametrize(
        ("words", "field"), [({"name": EVIL, "role": "viewer"}, "name"), ({"name": "Bo"}, "role"), ({}, "role")]
    )
    def test_bad_input(self, signed_in: SignedIn, words: dict, field: str) -> None:
        client = signed_in("admin")
        response = client.post("/settings/people", words)
        assert response.status_code == 422
        assert response.context["error"]["field"] in (field, "name")
        assert EVIL not in response.content.decode()
        assert User.objects.count() == 1

    def test_role_link_deactivate_reactivate(self, signed_in: SignedIn) -> None:
        client, bo = signed_in("admin"), signed_in("viewer", "Bo")
        path = f"/settings/people/{bo.person.pk}"
        assert client.post(path, {"do": "role", "role": "editor", "reason": "new job"}).status_code == 302
        assert Entry.objects.last().reason == "new job"
        assert bo.get("/who").status_code == 302
        assert "/sign-in/" in client.post(path, {"do": "link"}).content.decode()
        assert "now" in client.get(path).content.decode()
        client.post(path, {"do": "deactivate"})
        assert "Reactivate Bo" in client.get(path).content.decode()
        client.post(path, {"do": "reactivate"})
        assert User.objects.get(name="Bo").active

    @pytest.mark.parametrize(
        "words", [{}, {"do": "fly"}, {"do": EVIL}, {"do": "role", "role": "root"}, {"do": "role"}, {"do": "deactivate"}]
    )
    def test_a_bad_wish_for_the_last_admin(self, signed_in: SignedIn, words: dict) -> None:
        client = signed_in("admin")
        response = client.post(f"/settings/people/{client.person.pk}", words)
        assert response.status_code == 422
        assert EVIL not in response.content.decode()
        assert client.get("/who").json()["role"] == "admin"

    def test_nobody_there(self, signed_in: SignedIn) -> None:
        client = signed_in("admin")
        assert client.get("/settings/people/99").status_code == 404
        assert client.get("/settings/people/99999999999999999999999").status_code == 404
        assert client.post("/settings/tokens/99/revoke").status_code == 404

    def test_tokens(self, signed_in: SignedIn) -> None:
        client = signed_in("admin")
        page = client.post(
            "/settings/tokens", {"token_name": "ci", "token_role": "viewer", "token_days": "30"}
        ).content.decode()
        value = re.search(r"sw_[\w-]{30,}", page)[0]
        assert value not in client.get("/settings/people").content.decode()
        assert Client().get("/api/v1/who", HTTP_AUTHORIZATION=f"Bearer {value}").json()["role"] == "viewer"
        client.post(f"/settings/tokens/{ApiToken.objects.get().pk}/revoke", {"reason": "leaked"})
        assert Client().get("/api/v1/who", HTTP_AUTHORIZATION=f"Bearer {value}").status_code == 401

    @pytest.mark.parametrize(
        ("words", "field"),
        [
            ({}, "token_name"),
            ({"token_name": "ci"}, "token_role"),
            ({"token_name": "ci", "token_role": "viewer", "token_days": "x"}, "token_days"),
            ({"token_name": "ci", "token_role": "viewer", "token_days": "²"}, "token_days"),
            ({"token_name": "ci", "token_role": "viewer", "token_days": "9" * 40}, "token_days"),
        ],
    )
    def test_bad_tokens(self, signed_in: SignedIn, words: dict, field: str) -> None:
        response = signed_in("admin").post("/settings/tokens", words)
        assert (response.status_code, response.context["error"]["field"]) == (422, field)
        assert ApiToken.objects.count() == 0

    def test_own_password(self, signed_in: SignedIn) -> None:
        client = signed_in("viewer")
        for words, field in [
            ({"new": PASSWORD, "again": "other"}, "again"),
            ({"new": "short", "again": "short"}, "new"),
            ({}, "new"),
        ]:
            response = client.post("/settings/me", words)
            assert (response.status_code, response.context["error"]["field"]) == (422, field)
        assert client.post("/settings/me", {"new": PASSWORD, "again": PASSWORD}).status_code == 302
        again = client.post("/settings/me", {"new": PASSWORD, "again": PASSWORD, "current": "wrong"})
        assert again.context["error"]["field"] == "current"
        assert PASSWORD not in again.content.decode()

    def test_names_are_text(self, signed_in: SignedIn) -> None:
        client = signed_in("admin")
        User.objects.bulk_create([User(name=EVIL, name_key=name_key(EVIL), role="viewer")])
        evil = User.objects.get(name=EVIL)
        ApiToken.objects.create(name=EVIL, role="viewer", sha256="x", prefix="sw_", created_by=evil)
        record(Actor("person", 1, EVIL, "admin", EVIL), "node:added", object_name=EVIL, reason=EVIL, after={EVIL: EVIL})
        entry = Entry.objects.last()
        for path in (
            "/settings/people",
            f"/settings/people/{evil.pk}",
            "/audit",
            f"/audit/{entry.id}",
            f"/audit?actor={EVIL}",
        ):
            page = client.get(path).content.decode()
            assert EVIL not in page and "&lt;script&gt;" in page, path

    def test_a_thousand_people_and_long_names(
        self, signed_in: SignedIn, django_assert_max_num_queries: Callable
    ) -> None:
        client = signed_in("admin")
        User.objects.bulk_create(
            [
                User(name=name, name_key=name_key(name), role="viewer")
                for name in (f"{'W' * 58}{n:04}" for n in range(1000))
            ]
        )
        with django_assert_max_num_queries(14):
            page = client.get("/settings/people").content.decode()
        assert page.count('href="/settings/people/') <= 102
        assert "1,001" in page
        assert f"{'W' * 58}0999" in client.get("/settings/people?page=11").content.decode()
        assert f"{'W' * 58}0500" in client.get("/settings/people?find=w0500").content.decode()
        assert "Nobody is called that" in client.get("/settings/people?find=zzz").content.decode()
        assert client.get("/settings/people?page=nonsense").status_code == 200


class TestAuditPage:
    @pytest.fixture
    def client(self, signed_in: SignedIn) -> Client:
        return signed_in("auditor")

    def fill(self, count: int) -> None:
        for n in range(count):
            record(
                COMMAND_LINE,
                "node:changed",
                object_type="node",
                object_id=n,
                object_name=f"spark-{n:03}",
                before={"n": 0},
                after={"n": n},
            )

    def test_paging_by_cursor(self, client: Client) -> None:
        self.fill(120)
        seen: list[str] = []
        path = "/audit?action=node:changed"
        while path:
            page = client.get(path).content.decode()
            seen += re.findall(r"spark-\d{3}", page)
            older = re.search(r'href="([^"]*)" rel="next"', page)
            path = older[1].replace("&amp;", "&") if older else ""
        assert seen == [f"spark-{n:03}" for n in reversed(range(120))]

    def test_filters_and_an_empty_result(self, client: Client) -> None:
        self.fill(3)
        page = client.get("/audit?object=node:1").content.decode()
        assert re.findall(r"spark-\d{3}", page) == ["spark-001"]
        assert "Nothing matches" in client.get("/audit?actor=zzz").content.decode()
        assert client.get("/audit?before=nonsense&before=9999999999999999999999").status_code == 200
        assert client.get("/audit?object=person:99999999999999999999999999").status_code == 200
        assert client.get("/audit?actor=person:9999999999999999999").status_code == 200

    @pytest.mark.parametrize("since", ["yesterday", "2026-13-01", EVIL, "9" * 300])
    def test_a_bad_time_names_field_and_remedy(self, client: Client, since: str) -> None:
        response = client.get("/audit", {"since": since})
        assert response.status_code == 400
        assert response.context["error"]["field"] == "since"
        assert "Write it like 2026-11-30" in response.content.decode() and EVIL not in response.content.decode()

    def test_times(self, client: Client) -> None:
        self.fill(1)
        assert "spark-000" in client.get("/audit?since=2020-01-01").content.decode()
        assert "spark-000" not in client.get("/audit?until=2020-01-01T10:00Z").content.decode()

    def test_an_entry_with_its_change(self, client: Client) -> None:
        before = {"role": "viewer", "same": 1, "gone": [1, 2], "deep": {"a": None}}
        after = {"role": "editor", "same": 1, "new": True, "deep": {"a": 2}}
        entry = record(COMMAND_LINE, "person:role_changed", before=before, after=after, reason="new job", run=7)
        page = client.get(f"/audit/{entry.id}").content.decode()
        for piece in (
            "<del>viewer</del>",
            "<ins>editor</ins>",
            "<del>1, 2</del>",
            "<ins>yes</ins>",
            "<del>none</del>",
            "new job",
            "/runs/7",
            entry.hash,
        ):
            assert piece in page
        assert client.get("/audit/99999").status_code == 404
        assert client.get("/audit/99999999999999999999999999").status_code == 404

    def test_the_badge_tells_a_broken_chain(self, client: Client) -> None:
        from django.db import connection

        self.fill(5)
        assert "chain whole" in client.get("/audit").content.decode()
        assert "entries were checked" in client.get("/audit?check=all").content.decode()
        with unprotected_trail(), connection.cursor() as cursor:
            cursor.execute("UPDATE audit_entry SET reason = 'x' WHERE seq = 4")
        for path in ("/audit", "/audit?check=all"):
            assert "chain broken" in client.get(path).content.decode()
        assert "does not match its hash" in client.get("/audit/4").content.decode()

    def test_export_is_complete_and_audited(self, client: Client) -> None:
        self.fill(60)
        response = client.get("/audit/export?format=jsonl&action=node:changed")
        assert "attachment" in response.headers["Content-Disposition"]
        lines = [json.loads(line) for line in response.getvalue().decode().splitlines()]
        assert len(lines) == 60 and lines[0]["id"] < lines[-1]["id"]
        entry = Entry.objects.last()
        assert (entry.action, entry.actor_name) == ("audit:exported", "auditor person")
        assert entry.after["filters"] == {"action": "node:changed"} and entry.after["entries"] == 60
        assert client.get("/audit/export").getvalue().decode().startswith("seq,time,")
        assert client.get("/audit/export?format=xml").status_code == 400
        assert client.get("/audit/export?since=x").status_code == 400

    def test_an_asgi_server_streams_it_too(self, client: Client) -> None:
        self.fill(1200)
        browser = AsyncClient()
        browser.cookies = client.cookies

        async def fetch() -> list[bytes]:
            response = await browser.get("/audit/export?format=jsonl&action=node:changed")
            return [chunk async for chunk in response.streaming_content]

        chunks = async_to_sync(fetch)()
        assert len(chunks) == 3
        assert len(b"".join(chunks).splitlines()) == 1200

    def test_who_may_not_export_sees_no_button(self, signed_in: SignedIn) -> None:
        assert "/audit/export" not in signed_in("operator").get("/audit").content.decode()
        assert "/audit/export" in signed_in("admin").get("/audit").content.decode()

    def test_many_entries_cost_few_queries(self, client: Client, django_assert_max_num_queries: Callable) -> None:
        self.fill(200)
        with django_assert_max_num_queries(14):
            client.get("/audit")


def test_pages_have_no_inline_code(signed_in: SignedIn) -> None:
    client = signed_in("admin")
    services.make_token(COMMAND_LINE, "ci", "viewer")
    for path in ("/settings/people", "/settings/me", "/audit", "/audit/1", f"/settings/people/{client.person.pk}"):
        response = client.get(path)
        page = response.content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", page), path
        assert "script-src 'self'" in response.headers["Content-Security-Policy"]
    for path in ("/sign-in", "/sign-in/nonsense"):
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", Client().get(path).content.decode())
