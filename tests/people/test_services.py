import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

from apps.audit import COMMAND_LINE, Actor
from apps.audit.models import Entry
from apps.audit.verifying import verify
from apps.people import services
from apps.people.access import Denied
from apps.people.models import ApiToken, User, name_key, tidy_name, validate_name
from apps.people.roles import ROLES, allows
from tests.people.conftest import PASSWORD

Add = Callable[..., User]


def actor(person: User) -> Actor:
    return Actor("person", person.pk, person.name, person.role, "127.0.0.1")


class TestNames:
    @pytest.mark.parametrize(
        "name",
        ["A", "Ana", "Ñandú", "李小龍", "Ольга", "علي", "O'Brien-Smith", "op1", "a.b_c", "x@y", "ﬁ", "नमस्ते", "x" * 64],
    )
    def test_letters_of_any_script(self, name: str) -> None:
        validate_name(tidy_name(name))

    @pytest.mark.parametrize(
        "name",
        [
            "",
            " ",
            "x" * 65,
            "<script>",
            "a\tb\0",
            "a\u202eb",
            "a\u200bb",
            "-a",
            "@all",
            "a;b",
            'a"b',
            "🤖",
            "a/b",
            "\u0301a",
        ],
    )
    def test_everything_else_is_refused(self, name: str) -> None:
        with pytest.raises(ValidationError):
            validate_name(tidy_name(name))

    def test_one_normal_form(self) -> None:
        assert tidy_name("  A\u006e\u0303a \n b ") == "A\u00f1a b"
        assert name_key("ANA") == name_key("ana") == name_key("ａｎａ")


@pytest.mark.django_db
class TestPeople:
    def test_add(self) -> None:
        person, link = services.add_person(COMMAND_LINE, " Ana  María ", "operator")
        assert (person.name, person.role, person.active, person.created_by) == (
            "Ana María",
            "operator",
            True,
            "command line",
        )
        assert not person.has_usable_password()
        assert link.path.startswith("/sign-in/")
        entries = list(Entry.objects.all())
        assert [entry.action for entry in entries] == ["person:added", "person:link_made"]
        assert entries[0].after == {"name": "Ana María", "role": "operator"}

    @pytest.mark.parametrize(
        ("name", "role", "field"),
        [
            ("ana", "viewer", "name"),
            ("ANA ", "viewer", "name"),
            ("<b>", "viewer", "name"),
            ("", "viewer", "name"),
            ("Bo", "root", "role"),
            ("Bo", "", "role"),
            ("Bo", "Admin", "role"),
        ],
    )
    def test_a_bad_wish_names_the_field_and_changes_nothing(self, name: str, role: str, field: str) -> None:
        services.add_person(COMMAND_LINE, "Ana", "admin")
        before = Entry.objects.count()
        with pytest.raises(services.Refused) as caught:
            services.add_person(COMMAND_LINE, name, role)
        assert caught.value.field == field and caught.value.detail and caught.value.remedy
        assert (User.objects.count(), Entry.objects.count()) == (1, before)

    def test_the_database_knows_no_other_roles(self) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            User.objects.create(name="X", role="root")

    def test_change_role(self, add: Add) -> None:
        person = add("Bo")
        services.change_role(COMMAND_LINE, person.pk, "editor", reason="new job")
        changed = User.objects.get(pk=person.pk)
        assert (changed.role, changed.access_version) == ("editor", person.access_version + 1)
        entry = Entry.objects.last()
        assert (entry.action, entry.reason) == ("person:role_changed", "new job")
        assert (entry.before, entry.after) == ({"role": "viewer"}, {"role": "editor"})

    def test_no_change_is_no_entry(self, add: Add) -> None:
        person = add("Bo")
        before = Entry.objects.count()
        services.change_role(COMMAND_LINE, person.pk, "viewer")
        services.reactivate(COMMAND_LINE, person.pk)
        services.deactivate(COMMAND_LINE, person.pk)
        services.deactivate(COMMAND_LINE, person.pk)
        assert Entry.objects.count() == before + 1

    @pytest.mark.parametrize("act", [lambda a, p: services.change_role(a, p, "editor"), services.deactivate])
    def test_the_last_active_admin_stays(self, add: Add, act: Callable) -> None:
        ana = add("Ana", "admin")
        gone = add("Gone", "admin")
        services.deactivate(actor(ana), gone.pk)
        with pytest.raises(services.Refused, match="last active admin"):
            act(actor(ana), ana.pk)
        with pytest.raises(services.Refused, match="last active admin"):
            act(COMMAND_LINE, ana.pk)
        add("Bo", "admin")
        act(actor(ana), ana.pk)
        assert User.objects.active_admins().count() == 1

    def test_nobody_there(self) -> None:
        for act in (services.deactivate, services.reactivate, services.new_sign_in_link):
            with pytest.raises(services.Refused, match="no person 99"):
                act(COMMAND_LINE, 99)

    @pytest.mark.parametrize("role", [role for role in ROLES if not allows(role, "edit_people")])
    def test_only_an_admin(self, add: Add, role: str) -> None:
        person, somebody = add("Per", role), add("Bo")
        for act in (
            lambda who: services.add_person(who, "New", "admin"),
            lambda who: services.change_role(who, person.pk, "admin"),
            lambda who: services.deactivate(who, somebody.pk),
            lambda who: services.reactivate(who, somebody.pk),
            lambda who: services.new_sign_in_link(who, somebody.pk),
            lambda who: services.make_token(who, "t", "admin"),
            lambda who: services.revoke_token(who, 1),
        ):
            with pytest.raises(Denied):
                act(actor(person))
        assert User.objects.count() == 2 and ApiToken.objects.count() == 0
        assert Entry.objects.filter(action="access:denied", outcome="denied").count() > 0

    def test_deactivation_revokes_the_tokens_they_made(self, add: Add) -> None:
        add("Root", "admin")
        ana = add("Ana", "admin")
        mine = services.make_token(actor(ana), "mine", "operator")
        other = services.make_token(COMMAND_LINE, "other", "operator")
        services.deactivate(COMMAND_LINE, ana.pk)
        assert ApiToken.objects.get(pk=mine.token_id).state == "revoked"
        assert ApiToken.objects.get(pk=other.token_id).state == "active"
        assert Entry.objects.last().action == "token:revoked"


@pytest.mark.django_db
class TestPasswords:
    def test_own_password(self, add: Add) -> None:
        ana = add("Ana", "admin")
        services.set_password(actor(ana), PASSWORD)
        assert services.check_sign_in("Ana", PASSWORD, "a")[0] == ana
        with pytest.raises(services.Refused) as caught:
            services.set_password(actor(ana), "another long one", current="wrong")
        assert caught.value.field == "current"
        services.set_password(actor(ana), "another long one", current=PASSWORD)
        assert services.check_sign_in("Ana", PASSWORD, "a")[0] is None
        assert Entry.objects.filter(action="person:password_changed").count() == 2

    @pytest.mark.parametrize("new", ["", "short", "1234567890", "x" * 1025])
    def test_a_weak_one_is_refused(self, add: Add, new: str) -> None:
        with pytest.raises(services.Refused) as caught:
            services.set_password(actor(add("Ana", "admin")), new)
        assert caught.value.field == "password"

    def test_a_token_has_none(self) -> None:
        with pytest.raises(services.Refused):
            services.set_password(Actor("token", 1, "t", "admin"), PASSWORD)

    def test_none_is_written_down(self, add: Add) -> None:
        ana = add("Ana", "admin")
        services.set_password(actor(ana), PASSWORD)
        token = services.make_token(actor(ana), "t", "admin")
        trail = repr([entry.as_json() for entry in Entry.objects.all()])
        assert PASSWORD not in trail and token.value not in trail
        assert token.value not in repr(list(ApiToken.objects.values()))


@pytest.mark.django_db
class TestTokens:
    def test_make_and_revoke(self, add: Add) -> None:
        ana = add("Ana", "admin")
        made = services.make_token(actor(ana), "ci", "operator", life=timedelta(days=2))
        token = ApiToken.objects.get()
        assert made.value.startswith(token.prefix) and len(token.prefix) < 12
        assert (token.created_by, token.role, token.state) == (ana, "operator", "active")
        services.revoke_token(actor(ana), token.pk, reason="leaked")
        services.revoke_token(actor(ana), token.pk)
        assert ApiToken.objects.get().state == "revoked"
        assert [entry.action for entry in Entry.objects.all()][-2:] == ["token:made", "token:revoked"]
        with pytest.raises(services.Refused):
            services.revoke_token(actor(ana), 999)

    @pytest.mark.parametrize(("name", "role"), [("", "viewer"), ("<x>", "viewer"), ("ci", "root")])
    def test_bad_wishes(self, name: str, role: str) -> None:
        with pytest.raises(services.Refused):
            services.make_token(COMMAND_LINE, name, role)


def command(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
class TestCommands:
    def test_person_add_prints_only_the_link(self, settings: object) -> None:
        printed = command("person", "add", "Ana", "--role", "admin").strip()
        assert printed.startswith(f"{settings.ORIGINS[0]}/sign-in/") and "\n" not in printed
        assert services.person_of_link(printed.rpartition("/")[2]).name == "Ana"

    def test_the_others(self, add: Add) -> None:
        add("Ana", "admin")
        add("Bo")
        assert "/sign-in/" in command("person", "link", "bo")
        assert command("person", "role", "Bo", "operator").strip() == "Bo is operator now."
        assert "deactivated" in command("person", "deactivate", "Bo")
        assert [json.loads(line)["active"] for line in command("person", "list", "--json").splitlines()] == [
            True,
            False,
        ]
        assert "active again" in command("person", "reactivate", "Bo")
        assert "operator  active       Bo" in command("person", "list")

    @pytest.mark.parametrize(
        "words",
        [
            ["person", "add", "<b>", "--role", "admin"],
            ["person", "add", "Ana", "--role", "root"],
            ["person", "link", "Nobody"],
            ["person", "deactivate", "Ana"],
            ["person", "add", "ana", "--role", "viewer"],
            ["person"],
            ["token", "t", "--role", "root"],
            ["token", "", "--role", "viewer"],
            ["token", "t", "--role", "viewer", "--days", "-1"],
        ],
    )
    def test_bad_words_are_an_error_in_one_sentence(self, add: Add, words: list[str]) -> None:
        add("Ana", "admin")
        with pytest.raises(CommandError):
            command(*words)

    def test_token_prints_only_the_token(self) -> None:
        printed = command("token", "ci", "--role", "operator")
        assert printed.startswith("sw_") and len(printed.split()) == 1
        assert ApiToken.objects.get().sha256 == services._digest(printed.strip())


@pytest.mark.django_db
def test_the_trail_of_all_this_is_whole(add: Add) -> None:
    add("Ana", "admin", PASSWORD)
    services.check_sign_in("Ana", "wrong", "a")
    services.check_sign_in("Ana", PASSWORD, "a")
    assert verify()["ok"]
