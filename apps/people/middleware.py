"""Between the session and the views: who asks, whether the route lets them, and how a refusal looks."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.shortcuts import render
from django.utils import timezone

from apps.audit.actor import Actor
from apps.audit.context import request_id
from apps.people.access import PUBLIC, Denied, NotSignedIn, action_of, authorize, covers, refuse_token
from apps.people.models import ApiToken, User
from apps.people.sessions import client_address, standing_of

API = "/api/"
_BEFORE_ANYBODY = ("/first-run", "/static/", "/healthz", "/readyz")  # reachable while no person exists
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_LAST_USED = timedelta(seconds=60)


class ActorMiddleware:
    """Sets request.actor and request.request_id; refuses every view that is not marked or not allowed."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-Id", "")
        identity = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        request.request_id = identity  # type: ignore[attr-defined]
        before = request_id.set(identity)
        try:
            response = self._answer(request)
        finally:
            request_id.reset(before)
        response.headers["X-Request-Id"] = identity
        if not request.path.startswith("/static/"):
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _answer(self, request: HttpRequest) -> HttpResponse:
        request.actor = None  # type: ignore[attr-defined]
        request.standing = None  # type: ignore[attr-defined]
        is_api = request.path.startswith(API)
        authorization = request.headers.get("Authorization", "")
        if is_api and authorization:
            request.actor = _token_actor(authorization, client_address(request.META))  # type: ignore[attr-defined]
        else:
            standing = standing_of(request)
            request.standing = standing  # type: ignore[attr-defined]
            request.actor = standing.actor if standing else None  # type: ignore[attr-defined]
        if request.actor is None and _nobody_exists(request.path):  # type: ignore[attr-defined]
            return _go(request, "/first-run") if not is_api else _problem(NotSignedIn())
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], arguments: tuple[Any, ...], words: dict[str, Any]
    ) -> HttpResponse | None:
        action = _mark(request, view)
        if action == PUBLIC:
            return None
        actor: Actor | None = request.actor  # type: ignore[attr-defined]
        try:
            if action is None:
                authorize(actor, "unmarked_route")
            else:
                authorize(actor, action)
        except PermissionDenied as refusal:
            return self.process_exception(request, refusal)
        if not covers(view, request.method or "GET"):
            return _not_covered(request)
        if request.path.startswith(API) and actor and actor.kind == "person":
            # The API's own views are exempt from CSRF for the sake of tokens; a cookie is not.
            return CsrfViewMiddleware(lambda _: HttpResponse()).process_view(request, _not_exempt, (), {})
        return None

    def process_exception(self, request: HttpRequest, problem: Exception) -> HttpResponse | None:
        if not isinstance(problem, PermissionDenied):
            return None
        if isinstance(problem, Denied):
            problem.record()
        if request.path.startswith(API):
            return _problem(problem)
        if isinstance(problem, NotSignedIn):
            return _go(request, "/sign-in")
        words = {
            "detail": str(problem) or "This is not allowed.",
            "remedy": getattr(problem, "remedy", "Ask an admin."),
        }
        return render(request, "pages/denied.html", words, status=403)


def _not_exempt(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def _not_covered(request: HttpRequest) -> HttpResponse:
    """405: the address exists and may be read, but nothing can be sent to it in this way."""
    words = f"{request.method} is not possible here."
    if not request.path.startswith(API):
        return HttpResponse(words, status=405, content_type="text/plain; charset=utf-8", headers={"Allow": "GET, HEAD"})
    return _problem_json(
        405, "Not possible", "method_not_allowed", words, "Use one of the methods in /api/v1/openapi.json."
    )


def _mark(request: HttpRequest, view: Callable[..., Any]) -> str | None:
    match = request.resolver_match
    if match is not None and match.url_name in ("openapi-json", "openapi-view") and request.path.startswith(API):
        return "view"  # views that django-ninja makes itself and nobody can mark
    return action_of(view, request.method or "GET")


def _nobody_exists(path: str) -> bool:
    if any(path == open_path or path.startswith(open_path.rstrip("/") + "/") for open_path in _BEFORE_ANYBODY):
        return False
    return not User.objects.exists()


def _token_actor(authorization: str, address: str) -> Actor | None:
    """Whose bearer token this is; None for an unknown, revoked or expired one."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "bearer" or not value.strip():
        return None
    digest = hashlib.sha256(value.strip().encode()).hexdigest()
    token = ApiToken.objects.filter(sha256=digest).first()
    if token is None or token.state != "active":
        refuse_token(token.name if token else "", token.pk if token else None, address)
        return None
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > _LAST_USED:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return Actor("token", token.pk, token.name, token.role, address, token.prefix)


def _problem_json(status: int, title: str, reason: str, detail: str, remedy: str) -> JsonResponse:
    """RFC 9457, with the fields that every error of the API has."""
    body = {"type": "about:blank", "title": title, "status": status, "reason": reason, "field": None}
    body |= {"detail": detail, "remedy": remedy}
    return JsonResponse(body, status=status, content_type="application/problem+json")


def _problem(problem: PermissionDenied) -> JsonResponse:
    """A refusal, for programs."""
    signed_in = not isinstance(problem, NotSignedIn)
    status = 403 if signed_in else 401
    if signed_in:
        remedy = getattr(problem, "remedy", "Ask an admin.")
    else:
        remedy = f"Send 'Authorization: Bearer …' with a token from: {settings.COMMAND} token NAME --role operator"
    title, reason = ("Not allowed", "denied") if signed_in else ("Not signed in", "not_signed_in")
    response = _problem_json(status, title, reason, str(problem) or "This is not allowed.", remedy)
    if not signed_in:
        response.headers["WWW-Authenticate"] = 'Bearer realm="sparkweb"'
    return response


def _path_of(address: str) -> str:
    """The path of an address that a browser sent; / when it is none."""
    try:
        return urlsplit(address).path or "/"
    except ValueError:
        return "/"


def _go(request: HttpRequest, path: str) -> HttpResponse:
    """To another page. htmx would follow a redirect inside a fragment, so it is told to load the page instead."""
    is_fragment = request.headers.get("HX-Request") == "true"
    here = request.get_full_path() if request.method in ("GET", "HEAD") else "/"
    if is_fragment:
        here = _path_of(request.headers.get("HX-Current-URL", ""))
    target = path if path == "/first-run" or here == "/" else f"{path}?next={quote(here, safe='/')}"
    if is_fragment:
        return HttpResponse(status=401, headers={"HX-Redirect": target})
    return HttpResponseRedirect(target)
