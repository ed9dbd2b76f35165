"""Everything that changes people, links and tokens. Each writes the change and its audit entry in one transaction."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from django.contrib.auth.hashers import check_password
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import Actor
from apps.audit.tags import Outcome, Tag
from apps.doorbell.ring import ring_on_commit
from apps.people import throttling
from apps.people.access import authorize
from apps.people.models import ApiToken, SetupCode, SignInLink, User, name_key, tidy_name, validate_name
from apps.people.roles import ROLES

_Words = ParamSpec("_Words")
_Result = TypeVar("_Result")

LINK_LIFE = timedelta(days=3)
_CODE_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # nothing that is read as something else


class Refused(ValueError):
    """A wish that can't be granted: `field` names the input, the text says why, `remedy` what to do instead."""

    def __init__(self, field: str, detail: str, remedy: str) -> None:
        self.field, self.detail, self.remedy = field, detail, remedy
        super().__init__(f"{detail} {remedy}".strip())


@dataclass(frozen=True)
class NewLink:
    """A one-time link: `path` is shown once and stored nowhere."""

    person_id: int
    path: str  # /sign-in/…
    expires_in_s: int


@dataclass(frozen=True)
class NewToken:
    """An API token: `value` is shown once and stored nowhere."""

    token_id: int
    value: str
    prefix: str


def _asking(
    action: str,
) -> Callable[[Callable[Concatenate[Actor, _Words], _Result]], Callable[Concatenate[Actor, _Words], _Result]]:
    """Ask for `action` first, so that a refusal is written outside of the transaction in which the service runs."""

    def around(service: Callable[Concatenate[Actor, _Words], _Result]) -> Callable[Concatenate[Actor, _Words], _Result]:
        @wraps(service)
        def asked(actor: Actor, /, *args: _Words.args, **kwargs: _Words.kwargs) -> _Result:
            authorize(actor, action)
            with transaction.atomic():
                return service(actor, *args, **kwargs)

        return asked

    return around


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()


def _known_role(role: str) -> str:
    if role not in ROLES:
        raise Refused("role", f"There is no role {role!r}.", f"Use one of: {', '.join(ROLES)}.")
    return role


def _locked(person: int) -> User:
    """The person and all active admins, locked in one order, so that two admins can't demote each other at once."""
    list(User.objects.active_admins().order_by("pk").select_for_update())
    found = User.objects.select_for_update().filter(pk=person).first()
    if found is None:
        raise Refused("person", f"There is no person {person}.", "Reload the list of people.")
    return found


def _another_admin_stays(person: User) -> None:
    if person.role == "admin" and person.active and not User.objects.active_admins().exclude(pk=person.pk).exists():
        raise Refused("role", f"{person.name} is the last active admin.", "Make somebody else an admin first.")


def _changed(person: User) -> None:
    """End the person's sessions and sockets, and tell the pages that show people."""
    person.access_version += 1
    ring_on_commit("person", person.pk, person.access_version)


@_asking("edit_people")
def add_person(actor: Actor, name: str, role: str, *, reason: str = "") -> tuple[User, NewLink]:
    """Add a person and make the first sign-in link. Raises Refused for a bad or taken name or an unknown role."""
    return _add(actor, name, role, reason=reason)


def _add(actor: Actor, name: str, role: str, *, reason: str = "") -> tuple[User, NewLink]:
    person = User(name=_free_name(name), role=_known_role(role), created_by=actor.name)
    person.set_unusable_password()
    person.save()
    ring_on_commit("person", person.pk, person.access_version)
    record(
        actor, Tag.PERSON_ADDED, object_type="person", object_id=person.pk, object_name=person.name, reason=reason,
        after={"name": person.name, "role": person.role},
    )  # fmt: skip
    return person, _link(actor, person)


def _free_name(name: str) -> str:
    name = tidy_name(name)
    try:
        validate_name(name)
    except ValidationError as problem:
        raise Refused("name", problem.messages[0], "Choose another name.") from problem
    taken = User.objects.filter(name_key=name_key(name)).first()
    if taken is not None:
        state = "" if taken.active else ", who was deactivated and can be reactivated"
        raise Refused("name", f"There is already a person {taken.name}{state}.", "Choose another name.")
    return name


@_asking("edit_people")
def change_role(actor: Actor, person: int, role: str, *, reason: str = "") -> User:
    """Give a person another role; their sessions end. Raises Refused for the last admin."""
    _known_role(role)
    found = _locked(person)
    before = found.role
    if before == role:
        return found
    _another_admin_stays(found)
    found.role = role
    _changed(found)
    found.save()
    record(
        actor, Tag.PERSON_ROLE_CHANGED, object_type="person", object_id=found.pk, object_name=found.name, reason=reason,
        before={"role": before}, after={"role": role},
    )  # fmt: skip
    return found


@_asking("edit_people")
def deactivate(actor: Actor, person: int, *, reason: str = "") -> User:
    """End a person's access: sessions, sockets, links and the tokens they made. Raises Refused for the last admin."""
    found = _locked(person)
    if not found.active:
        return found
    _another_admin_stays(found)
    found.active = False
    _changed(found)
    found.save()
    found.links.filter(used_at=None).delete()
    tokens = [token for token in ApiToken.objects.filter(created_by=found, revoked_at=None) if token.state == "active"]
    record(
        actor, Tag.PERSON_DEACTIVATED, object_type="person", object_id=found.pk, object_name=found.name, reason=reason,
        before={"active": True}, after={"active": False, "revoked_api_tokens": len(tokens)},
    )  # fmt: skip
    for token in tokens:
        _revoke(actor, token, reason=f"made by {found.name}, who was deactivated")
    return found


@_asking("edit_people")
def reactivate(actor: Actor, person: int, *, reason: str = "") -> User:
    """Give a person access again, in the role they had."""
    found = _locked(person)
    if found.active:
        return found
    found.active = True
    _changed(found)
    found.save()
    record(
        actor, Tag.PERSON_REACTIVATED, object_type="person", object_id=found.pk, object_name=found.name, reason=reason,
        before={"active": False}, after={"active": True},
    )  # fmt: skip
    return found


@_asking("edit_people")
def new_sign_in_link(actor: Actor, person: int, *, life: timedelta = LINK_LIFE) -> NewLink:
    """A one-time link for a person; the ones before stop working."""
    found = _locked(person)
    if not found.active:
        raise Refused("person", f"{found.name} is deactivated.", "Reactivate them first.")
    return _link(actor, found, life)


def _link(actor: Actor, person: User, life: timedelta = LINK_LIFE) -> NewLink:
    value = secrets.token_urlsafe(32)
    SignInLink.objects.filter(person=person, used_at=None).delete()
    SignInLink.objects.create(person=person, sha256=_digest(value), expires_at=timezone.now() + life)
    record(
        actor, Tag.PERSON_LINK_MADE, object_type="person", object_id=person.pk, object_name=person.name,
        after={"expires_in_s": int(life.total_seconds())},
    )  # fmt: skip
    return NewLink(person_id=person.pk, path=f"/sign-in/{value}", expires_in_s=int(life.total_seconds()))


def person_of_link(value: str) -> User | None:
    """Whose link this is, while it can be used; looking does not use it up."""
    link = SignInLink.objects.select_related("person").filter(sha256=_digest(value), used_at=None).first()
    if link is None or link.expires_at <= timezone.now() or not link.person.active:
        return None
    return link.person


@transaction.atomic
def use_link(value: str, address: str) -> User | None:
    """Use a link up. None when it is unknown, used, expired or its person is deactivated; that is audited too."""
    if throttling.wait_s("link", "", address):
        return None
    person = person_of_link(value)
    won = person is not None and SignInLink.objects.filter(sha256=_digest(value), used_at=None).update(
        used_at=timezone.now()
    )
    if person is None or not won:
        throttling.failed("link", "", address)
        _refused_sign_in("", address, "the sign-in link is unknown, used or expired")
        return None
    _signed_in(person, address, "link")
    return person


def _signed_in(person: User, address: str, way: str) -> None:
    actor = Actor("person", person.pk, person.name, person.role, address)
    record(
        actor, Tag.SESSION_STARTED, object_type="person", object_id=person.pk, object_name=person.name,
        after={"by": way},
    )  # fmt: skip


def _refused_sign_in(name: str, address: str, why: str) -> None:
    # The name is what somebody typed, perhaps a password in the wrong field: only a known name is written.
    known = User.objects.filter(name_key=name_key(tidy_name(name))).first() if name else None
    actor = Actor("person", known.pk if known else None, known.name if known else "somebody", "", address)
    record(
        actor, Tag.SESSION_REFUSED, object_type="person", object_id=known.pk if known else "",
        object_name=known.name if known else "", outcome=Outcome.DENIED, reason=why,
    )  # fmt: skip


def check_sign_in(name: str, password: str, address: str) -> tuple[User | None, int]:
    """(the person, 0), or (None, seconds to wait before the next try counts).

    Takes the same time for a name that does not exist. Audited, but not for tries that come too early.
    """
    wait = throttling.wait_s("sign-in", name, address)
    if wait:
        return None, wait
    person = User.objects.filter(name_key=name_key(tidy_name(name))).first()
    encoded = person.password if person and person.active and person.has_usable_password() else None
    if encoded is None:
        User().set_password(password)  # as much work as a check
        fits = False
    else:
        fits = check_password(password, encoded)
    if person is None or not fits:
        throttling.failed("sign-in", name, address)
        _refused_sign_in(name, address, "wrong name or password")
        return None, throttling.wait_s("sign-in", name, address)
    throttling.succeeded("sign-in", name, address)
    with transaction.atomic():
        _signed_in(person, address, "password")
    return person, 0


def signed_out(actor: Actor) -> None:
    """Note that a person ended their session."""
    record(actor, Tag.SESSION_ENDED, object_type="person", object_id=actor.id or "", object_name=actor.name)


@transaction.atomic
def set_password(actor: Actor, new: str, *, current: str = "") -> User:
    """Set the actor's own password; their other sessions end. Raises Refused for a wrong current or a weak new one."""
    if actor.kind != "person" or actor.id is None:
        raise Refused("password", "Only a person has a password.", "Sign in as a person.")
    person = _locked(actor.id)
    if person.has_usable_password() and not check_password(current, person.password):
        raise Refused("current", "The current password is not right.", "Try again, or ask an admin for a new link.")
    _strong(new, person)
    had = person.has_usable_password()
    person.set_password(new)
    _changed(person)
    person.save()
    person.links.filter(used_at=None).delete()
    record(
        actor, Tag.PERSON_PASSWORD_CHANGED, object_type="person", object_id=person.pk, object_name=person.name,
        before={"password_set": had}, after={"password_set": True},
    )  # fmt: skip
    return person


def _strong(password: str, person: User) -> None:
    if len(password) > 1024:
        raise Refused("password", "A password has at most 1024 characters.", "Choose a shorter one.")
    try:
        validate_password(password, person)
    except ValidationError as problem:
        raise Refused("password", " ".join(problem.messages), "Choose another password.") from problem


@_asking("edit_tokens")
def make_token(actor: Actor, name: str, role: str, *, life: timedelta | None = None) -> NewToken:
    """A bearer token for the API. Raises Refused for a bad name or an unknown role."""
    name = tidy_name(name)
    try:
        validate_name(name)
    except ValidationError as problem:
        raise Refused("name", problem.messages[0], "Choose another name.") from problem
    value = "sw_" + secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        name=name,
        role=_known_role(role),
        sha256=_digest(value),
        prefix=value[:9],
        created_by_id=actor.id if actor.kind == "person" else None,
        expires_at=timezone.now() + life if life else None,
    )
    ring_on_commit("person", 0)
    record(
        actor, Tag.TOKEN_MADE, object_type="token", object_id=token.pk, object_name=token.name,
        after={"role": role, "prefix": token.prefix, "expires_at": token.expires_at},
    )  # fmt: skip
    return NewToken(token_id=token.pk, value=value, prefix=token.prefix)


@_asking("edit_tokens")
def revoke_token(actor: Actor, token: int, *, reason: str = "") -> ApiToken:
    """End a token at once. Revoking twice changes nothing."""
    found = ApiToken.objects.select_for_update().filter(pk=token).first()
    if found is None:
        raise Refused("token", f"There is no token {token}.", "Reload the list of tokens.")
    if found.revoked_at is None:
        _revoke(actor, found, reason=reason)
    return found


def _revoke(actor: Actor, token: ApiToken, *, reason: str) -> None:
    token.revoked_at = timezone.now()
    token.save(update_fields=["revoked_at"])
    ring_on_commit("person", 0)
    record(
        actor, Tag.TOKEN_REVOKED, object_type="token", object_id=token.pk, object_name=token.name, reason=reason,
        before={"role": token.role, "prefix": token.prefix},
    )  # fmt: skip


def setup_code() -> str | None:
    """A new one-time code that makes the first administrator; None once a person exists.

    It is to be printed and kept nowhere. The codes before it stop working.
    """
    with transaction.atomic():
        SetupCode.objects.all().delete()
        if User.objects.exists():
            return None
        code = "-".join("".join(secrets.choice(_CODE_LETTERS) for _ in range(5)) for _ in range(4))
        SetupCode.objects.create(sha256=_digest(code))
    return code


def create_first_admin(code: str, name: str, password: str, address: str) -> User:
    """Make the administrator. Raises Refused for a wrong code, a bad name, a weak password, or when people exist."""
    wait = throttling.wait_s("first-run", "", address)
    if wait:
        raise Refused("code", f"Too many wrong codes. Wait {wait} s.", "Then type the code that was printed at start.")
    if not SetupCode.objects.filter(sha256=_digest(code.strip().upper())).exists():
        throttling.failed("first-run", "", address)
        _refused_sign_in("", address, "a wrong setup code")
        raise Refused(
            "code",
            "This is not the setup code.",
            "Type the code that was printed at start; a restart prints a new one.",
        )
    with transaction.atomic():
        list(SetupCode.objects.select_for_update())
        if User.objects.exists() or not SetupCode.objects.exists():
            raise Refused("code", "The administrator exists already.", "Sign in.")
        person = User(name=_free_name(name), role="admin", created_by="first run")
        _strong(password, person)
        person.set_password(password)
        person.save()
        SetupCode.objects.all().delete()
        actor = Actor("person", person.pk, person.name, person.role, address)
        record(
            actor, Tag.PERSON_ADDED, object_type="person", object_id=person.pk, object_name=person.name,
            after={"name": person.name, "role": "admin", "by": "setup code"},
        )  # fmt: skip
        _signed_in(person, address, "setup code")
        ring_on_commit("person", person.pk, person.access_version)
    return person
