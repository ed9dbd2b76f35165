"""Sign in by password or one-time link, the first run, sign out."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from apps.people import services, sessions
from apps.people.access import allow, public
from apps.people.models import User


def _way_on(request: HttpRequest) -> str:
    """Where the person wanted to go; never to another site."""
    wanted = request.POST.get("next") or request.GET.get("next") or "/"
    inside = wanted.startswith("/") and url_has_allowed_host_and_scheme(wanted, allowed_hosts=None)
    return wanted if inside and not wanted.startswith(("/sign-", "/first-run")) else "/"


@public
@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        if getattr(request, "actor", None) is not None:
            return redirect(_way_on(request))
        return render(request, "pages/signin.html", {"next": _way_on(request)})
    name, password = request.POST.get("name", ""), request.POST.get("password", "")
    address = sessions.client_address(request.META)
    person, wait_s = services.check_sign_in(name[:200], password[:2000], address)
    if person is not None:
        sessions.begin(request, person)
        return redirect(_way_on(request))
    error = {
        "title": "Not signed in",
        "field": "",
        "detail": "Name and password do not belong together, or the person may not sign in.",
        "remedy": f"Wait {wait_s} s before the next try." if wait_s else "An admin can make a new sign-in link.",
    }
    context = {"error": error, "name": name[:64], "next": _way_on(request)}
    response = render(request, "pages/signin.html", context, status=429 if wait_s else 403)
    if wait_s:
        response.headers["Retry-After"] = str(wait_s)
    return response


@public
@require_http_methods(["GET", "POST"])
def sign_in_link(request: HttpRequest, value: str) -> HttpResponse:
    """A GET only shows a button: programs that preview links must not use them up."""
    if request.method == "POST":
        person = services.use_link(value, sessions.client_address(request.META))
        if person is not None:
            sessions.begin(request, person)
            return redirect("/")
    else:
        person = services.person_of_link(value)
    context = {"who": person, "now": getattr(request, "actor", None)}
    return render(request, "pages/sign_in_link.html", context, status=200 if person else 404)


@public
@sensitive_post_parameters("password", "code")
@require_http_methods(["GET", "POST"])
def first_run(request: HttpRequest) -> HttpResponse:
    if User.objects.exists():
        return redirect("/")
    values = {"name": request.POST.get("name", "")[:200], "code": request.POST.get("code", "")[:100]}
    if request.method == "GET":
        return render(request, "pages/first_run.html", {"values": values})
    try:
        person = services.create_first_admin(
            values["code"], values["name"], request.POST.get("password", ""), sessions.client_address(request.META)
        )
    except services.Refused as refusal:
        error = {
            "title": "Nobody was added",
            "field": refusal.field,
            "detail": refusal.detail,
            "remedy": refusal.remedy,
        }
        return render(request, "pages/first_run.html", {"values": values, "error": error}, status=422)
    sessions.begin(request, person)
    return redirect("/")


@allow("view", post="view")
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    services.signed_out(request.actor)  # type: ignore[attr-defined]
    sessions.end(request)
    return redirect("/sign-in")


urlpatterns = [
    path("sign-in", sign_in, name="sign-in"),
    path("sign-in/<str:value>", sign_in_link, name="sign-in-link"),
    path("sign-out", sign_out, name="sign-out"),
    path("first-run", first_run, name="first-run"),
]
