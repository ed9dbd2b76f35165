"""The index of what can be set, each with a line on what it is for; only what this person may open."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.http import require_GET

from apps.people.access import actor_of, allow, may

# address, name, what for, the action it asks for
PLACES = (
    ("/settings/me", "My account", "Own password and sessions.", "view"),
    ("/settings/people", "People and tokens", "Who may sign in and in which role; tokens of programs.", "edit_people"),
    ("/settings/credentials", "Credentials", "SSH keys that open nodes. The private half is never shown.", "view"),
    (
        "/settings/secrets",
        "Secrets",
        "Values that plans call by name, such as a hub token. Write only.",
        "edit_credentials",
    ),
    (
        "/report",
        "State report",
        "What runs where, on which versions, what is wrong, who decided what and where every file is; as Markdown and JSON, too.",
        "view",
    ),
)


@allow("view")
@require_GET
def settings(request: HttpRequest) -> HttpResponse:
    actor = actor_of(request)
    return render(request, "pages/settings.html", {"places": [place for place in PLACES if may(actor, place[3])]})


urlpatterns = [path("settings", settings, name="settings-index")]
