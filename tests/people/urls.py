"""The pages of this room and a few routes that only these tests have."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from apps.audit import record
from apps.pages import audit, people, signin
from apps.people.access import actor_of, allow, authorize, public


@allow("view")
def home(request: HttpRequest) -> HttpResponse:
    return HttpResponse("home")


@allow("view", post="launch")
def deployment(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"method": request.method})


def unmarked(request: HttpRequest) -> HttpResponse:
    return HttpResponse("never")


@allow("view")
def asks_inside(request: HttpRequest) -> HttpResponse:
    from django.db import transaction

    with transaction.atomic():
        record(actor_of(request), "node:added")
        authorize(actor_of(request), "edit_nodes")
    return HttpResponse("done")


@allow("view")
def who(request: HttpRequest) -> HttpResponse:
    actor = actor_of(request)
    return JsonResponse({"kind": actor.kind, "name": actor.name, "role": actor.role, "address": actor.address})


@public
def healthz(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [
    path("", home),
    path("healthz", healthz),
    path("deployment", deployment),
    path("unmarked", unmarked),
    path("asks-inside", asks_inside),
    path("who", who),
    path("api/v1/who", who),
    path("api/v1/deployment", deployment),
    path("api/v1/unmarked", unmarked),
    *signin.urlpatterns,
    *people.urlpatterns,
    *audit.urlpatterns,
]
