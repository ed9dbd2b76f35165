"""Sessions of people: who is behind a cookie, for requests and for sockets, and until when."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import login, logout
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, parse_cookie
from django.utils import timezone

from apps.audit.actor import Actor
from apps.people.access import short_hash
from apps.people.models import User

IDLE_S = 8 * 3600  # without a page opened or anything done
ABSOLUTE_S = 7 * 24 * 3600
_TOUCH_S = 60  # "last seen" is this exact, so that not every request writes
BACKEND = "django.contrib.auth.backends.ModelBackend"


@dataclass(frozen=True)
class Standing:
    """A signed-in person at one moment; enough to ask later whether it still holds."""

    actor: Actor
    user_id: int
    access_version: int
    session_key: str


def client_address(meta: dict[str, Any]) -> str:
    """The peer's address. Headers of proxies are not read here: anybody can write them. The server puts the address that
    a proxy tells in its place when PROXIES names that proxy."""
    return str(meta.get("REMOTE_ADDR", ""))[:64]


def _standing(session: SessionBase, address: str) -> tuple[Standing, User] | None:
    try:
        user_id, version = int(session["_auth_user_id"]), int(session["access_version"])
        began, seen = float(session["began"]), float(session["seen"])
    except (KeyError, TypeError, ValueError):
        return None
    now = time.time()
    if now - began > ABSOLUTE_S or now - seen > IDLE_S or not session.session_key:
        return None
    user = User.objects.filter(pk=user_id, active=True, access_version=version).first()
    if user is None:
        return None
    actor = Actor("person", user.pk, user.name, user.role, address, short_hash(session.session_key))
    return Standing(actor, user.pk, version, session.session_key), user


def standing_of(request: HttpRequest) -> Standing | None:
    """Who is behind this request's session cookie; ends a session that no longer counts."""
    session: SessionBase = request.session
    if not request.COOKIES.get(settings.SESSION_COOKIE_NAME):
        return None
    found = _standing(session, client_address(request.META))
    if found is None:
        if "_auth_user_id" in session:
            session.flush()
        return None
    standing, user = found
    if _is_act(request):
        _touch(session, user)
    return standing


def _is_act(request: HttpRequest) -> bool:
    """Whether a person did something. What a page fetches by itself must not keep a session open for ever."""
    by_itself = request.headers.get("HX-Request") == "true" or request.path.startswith("/api/")
    return request.method not in ("GET", "HEAD") or not by_itself


def _touch(session: SessionBase, user: User) -> None:
    now = time.time()
    if now - float(session["seen"]) >= _TOUCH_S:
        session["seen"] = now
    if user.last_seen_at is None or timezone.now() - user.last_seen_at > timedelta(seconds=_TOUCH_S):
        User.objects.filter(pk=user.pk).update(last_seen_at=timezone.now())


def begin(request: HttpRequest, user: User) -> Standing:
    """Sign `user` in under a new session key; whoever was signed in in this browser is signed out."""
    if request.session.get("_auth_user_id") not in (None, str(user.pk)):
        request.session.flush()
    login(request, user, backend=BACKEND)
    request.session["access_version"] = user.access_version
    request.session["began"] = request.session["seen"] = time.time()
    request.session.set_expiry(ABSOLUTE_S)
    if not request.session.session_key:
        request.session.save()
    User.objects.filter(pk=user.pk).update(last_seen_at=timezone.now())
    key = request.session.session_key or ""
    actor = Actor("person", user.pk, user.name, user.role, client_address(request.META), short_hash(key))
    return Standing(actor, user.pk, user.access_version, key)


def end(request: HttpRequest) -> None:
    """Forget this browser's session."""
    logout(request)


def standing_of_scope(scope: dict[str, Any]) -> Standing | None:
    """Who opens this socket, from the cookie in an ASGI scope. Reads the database: call it from a thread."""
    header = b"; ".join(value for name, value in scope.get("headers", []) if name.lower() == b"cookie")
    # As Django reads it for pages: an odd cookie of another program on this host must not hide ours.
    key = parse_cookie(header.decode("latin-1")).get(settings.SESSION_COOKIE_NAME)
    if not key:
        return None
    session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    client = scope.get("client") or ("", 0)
    found = _standing(session, str(client[0])[:64])
    return found[0] if found else None


def still_allowed(standing: Standing) -> bool:
    """Whether the person may go on: active, same role, session neither ended nor too old. For sockets, every few s."""
    session = import_module(settings.SESSION_ENGINE).SessionStore(standing.session_key)
    found = _standing(session, standing.actor.address)
    return found is not None and (found[0].user_id, found[0].access_version) == (
        standing.user_id,
        standing.access_version,
    )
