"""Settings: people and their roles, API tokens, and what a person may change about themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from apps.people import services, sessions
from apps.people.access import actor_of, allow
from apps.people.models import ApiToken, User, name_key
from apps.people.roles import ROLES

ABOUT_ROLE = {
    "viewer": "sees everything, changes nothing",
    "auditor": "a viewer who may export the audit trail",
    "operator": "a viewer who also probes, and who launches, relaunches, stops and tests the deployments that an editor made",
    "editor": "an operator who also makes and changes deployments, nodes and recipes, and agrees to what a launch may clear",
    "admin": "an editor who also changes people, credentials, host keys, policies, tokens; may export the audit trail",
}
PAGE = 100


def _error(title: str, refusal: services.Refused) -> dict[str, str]:
    return {"title": title, "field": refusal.field, "detail": refusal.detail, "remedy": refusal.remedy}


def _link_words(link: services.NewLink) -> dict[str, Any]:
    return {
        "url": f"{settings.ORIGINS[0]}{link.path}",
        "person": User.objects.get(pk=link.person_id),
        "ends": timezone.now() + timedelta(seconds=link.expires_in_s),
    }


def _roles() -> list[dict[str, str]]:
    return [{"name": role, "about": ABOUT_ROLE[role]} for role in ROLES]


def _people(request: HttpRequest, status: int = 200, **more: Any) -> HttpResponse:
    """The list of people and tokens, with what a form has to say."""
    wanted = request.GET.get("find", "").strip()
    people = User.objects.filter(name_key__contains=name_key(wanted)) if wanted else User.objects.all()
    context = {
        "section": "people",
        "page": Paginator(people.order_by("-active", "name_key"), PAGE).get_page(request.GET.get("page")),
        "find": wanted,
        "roles": _roles(),
        "tokens": ApiToken.objects.select_related("created_by").order_by("-revoked_at", "name"),
        "values": {},
        **more,
    }
    return render(request, "pages/people.html", context, status=status)


@allow("edit_people")
@require_http_methods(["GET", "POST"])
def people(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return _people(request)
    name, role = request.POST.get("name", ""), request.POST.get("role", "")
    try:
        _, link = services.add_person(actor_of(request), name, role)
    except services.Refused as refusal:
        values = {"name": name[:200], "role": role}
        return _people(request, 422, error=_error("Nobody was added", refusal), values=values)
    return _people(request, link=_link_words(link))


def _person(request: HttpRequest, person: User, status: int = 200, **more: Any) -> HttpResponse:
    tokens = [token for token in person.tokens.filter(revoked_at=None) if token.state == "active"]
    context = {"section": "person", "who": person, "roles": _roles(), "live_tokens": tokens, **more}
    return render(request, "pages/people.html", context, status=status)


@allow("edit_people")
@require_http_methods(["GET", "POST"])
def person(request: HttpRequest, person_id: int) -> HttpResponse:
    """One person: role, link, deactivation. A POST names what to do in `do`."""
    found = User.objects.filter(pk=person_id).first()
    if found is None:
        raise Http404
    if request.method == "GET":
        return _person(request, found)
    actor, reason, wish = actor_of(request), request.POST.get("reason", ""), request.POST.get("do", "")
    try:
        if wish == "link":
            return _person(request, found, link=_link_words(services.new_sign_in_link(actor, person_id)))
        if wish == "role":
            changed = services.change_role(actor, person_id, request.POST.get("role", ""), reason=reason)
            messages.success(request, f"{changed.name} is {changed.role} now.")
        elif wish == "deactivate":
            services.deactivate(actor, person_id, reason=reason)
            messages.success(request, f"{found.name} is deactivated; their sessions are over.")
        elif wish == "reactivate":
            services.reactivate(actor, person_id, reason=reason)
            messages.success(request, f"{found.name} is active again.")
        else:
            raise services.Refused("do", f"There is nothing called {wish[:40]!r} to do.", "Use the page's buttons.")
    except services.Refused as refusal:
        return _person(request, found, 422, error=_error("Nothing was changed", refusal))
    return redirect("person", person_id)


@allow("edit_tokens")
@require_POST
def tokens(request: HttpRequest) -> HttpResponse:
    name, role, days = (request.POST.get(field, "") for field in ("token_name", "token_role", "token_days"))
    try:
        made = services.make_token(actor_of(request), name, role, life=_life(days))
    except services.Refused as refusal:
        error = _error("No token was made", refusal)
        error["field"] = f"token_{refusal.field}"
        values = {"token_name": name[:200], "token_role": role, "token_days": days[:20]}
        return _people(request, 422, error=error, values=values)
    return _people(request, token={"name": name, "role": role, "value": made.value})


def _life(days: str) -> timedelta | None:
    if not days.strip():
        return None
    if not days.strip().isdecimal() or not 1 <= int(days.strip()[:9]) <= 3650:
        raise services.Refused("days", f"{days[:20]!r} is not a number of days.", "Give 1 to 3650, or nothing.")
    return timedelta(days=int(days))


@allow("edit_tokens")
@require_POST
def revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    try:
        token = services.revoke_token(actor_of(request), token_id, reason=request.POST.get("reason", ""))
    except services.Refused as refusal:
        return _people(request, 404, error=_error("Nothing was changed", refusal))
    messages.success(request, f"The token {token.name} does not work any more.")
    return redirect("people")


@allow("view", post="view")
@sensitive_post_parameters("new", "again", "current")
@require_http_methods(["GET", "POST"])
def me(request: HttpRequest) -> HttpResponse:
    actor = actor_of(request)
    found = User.objects.filter(pk=actor.id or 0).first() if actor.kind == "person" else None
    context: dict[str, Any] = {"section": "me", "who": found, "about_role": ABOUT_ROLE.get(actor.role, "")}
    if request.method == "GET" or found is None:
        return render(request, "pages/people.html", context)
    new = request.POST.get("new", "")
    try:
        if new != request.POST.get("again", ""):
            raise services.Refused("again", "The two new passwords differ.", "Type the same twice.")
        changed = services.set_password(actor, new, current=request.POST.get("current", ""))
    except services.Refused as refusal:
        error = _error("The password was not changed", refusal)
        error["field"] = "new" if refusal.field == "password" else refusal.field
        return render(request, "pages/people.html", {**context, "error": error}, status=422)
    sessions.begin(request, changed)
    messages.success(request, "The password is set. Your other sessions are over.")
    return redirect("me")


urlpatterns = [
    path("settings/people", people, name="people"),
    path("settings/people/<int:person_id>", person, name="person"),
    path("settings/tokens", tokens, name="tokens"),
    path("settings/tokens/<int:token_id>/revoke", revoke, name="revoke-token"),
    path("settings/me", me, name="me"),
]
