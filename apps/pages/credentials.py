"""SSH keys and named secrets. What is secret goes in here and never comes out again."""

from __future__ import annotations

from django.contrib import messages
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from apps.diagnosis.refusal import Refused
from apps.inventory import services
from apps.inventory.models import Credential, Secret
from apps.pages.refusing import Error, error_of
from apps.people.access import actor_of, allow

MOST_UPLOADED = 64 * 1024  # bytes


@sensitive_post_parameters("private_key", "passphrase")
@allow("view", post="edit_credentials")
@require_http_methods(["GET", "POST"])
def credentials(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return _credentials(request)
    name = request.POST.get("name", "")
    try:
        text = request.POST.get("private_key", "")
        file = request.FILES.get("file")
        if file is not None:
            text = file.read(MOST_UPLOADED).decode("utf-8", "replace")
        if request.POST.get("how") == "upload" and not text.strip():
            raise Refused(
                "bad_input",
                "There is no key.",
                field="private_key",
                remedy="Choose the file of a private key, or paste it.",
            )
        made = services.make_credential(
            actor_of(request),
            name=name,
            private_key=text if request.POST.get("how") == "upload" else "",
            passphrase=request.POST.get("passphrase", ""),
        )
    except Refused as refused:
        return _credentials(request, name, error_of(refused), request.POST.get("how", "generate"))
    messages.success(request, f"{made.name} is there. Put its public half on the nodes that it shall open.")
    return redirect("/settings/credentials")


def _credentials(
    request: HttpRequest, name: str = "", error: Error | None = None, how: str = "generate"
) -> HttpResponse:
    found = Credential.objects.annotate(used=Count("nodes")).order_by("name")
    return render(
        request,
        "pages/credentials.html",
        {"credentials": found, "name": name, "error": error, "how": how},
        status=error.status if error else 200,
    )


@sensitive_post_parameters("value")
@allow("edit_credentials")
@require_http_methods(["GET", "POST"])
def secrets(request: HttpRequest) -> HttpResponse:
    error, name = None, ""
    if request.method == "POST":
        name = request.POST.get("name", "")
        try:
            kept = services.keep_secret(actor_of(request), name=name, value=request.POST.get("value", ""))
            messages.success(request, f"The secret {kept.name} is kept.")
            return redirect("/settings/secrets")
        except Refused as refused:
            error = error_of(refused)
    return render(
        request,
        "pages/secrets.html",
        {"secrets": Secret.objects.order_by("name"), "name": name, "error": error},
        status=error.status if error else 200,
    )


urlpatterns = [
    path("settings/credentials", credentials, name="credentials"),
    path("settings/secrets", secrets, name="secrets"),
]
