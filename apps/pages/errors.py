"""The pages for what went wrong: what happened, what to do, and never a traceback."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from typing import Any

from django.db import Error, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string

HOME = ("/", "To the fleet")
log = logging.getLogger(__name__)


def problem(
    request: HttpRequest, status: int, title: str, detail: str, remedy: str = "", way_on: tuple[str, str] = HOME
) -> HttpResponse:
    """An error page; for API paths the same as problem+json, for a piece of a page (htmx) a banner."""
    if request.path.startswith("/api/"):
        body = {
            "type": "about:blank",
            "title": title,
            "status": status,
            "reason": None,
            "field": None,
            "detail": detail,
            "remedy": remedy,
        }
        return JsonResponse(body, status=status, content_type="application/problem+json")
    if request.headers.get("HX-Request"):
        refused = {"title": title, "detail": detail, "remedy": remedy}
        return HttpResponse(render_to_string("parts/refused.html", {"error": refused}), status=status)
    context: dict[str, Any] = {"title": title, "detail": detail, "remedy": remedy, "way_on": way_on}
    if getattr(request, "actor", None) is not None:  # who is signed in keeps the way to the other pages
        context["layout"] = "base.html"
    return render(request, "pages/error.html", context, status=status)


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return problem(
        request, 400, "That request can't be read", "Something in it is malformed.", "Go back and try again."
    )


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    said = str(exception) if exception and str(exception) else "Your role does not allow this."
    return problem(request, 403, "Not allowed", said, "An admin can change your role under Settings, People.")


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return problem(
        request,
        404,
        "Nothing here",
        "This page or object does not exist, or was removed.",
        "What happened to removed objects stands in the audit trail.",
    )


@dataclass(frozen=True)
class Failure:
    """What the page for a failure of ours says."""

    status: int
    reason: str
    title: str
    detail: str
    remedy: str


OURS = Failure(
    500,
    "internal",
    "That is our mistake",
    "The page could not be made. Nothing was changed by looking at it.",
    "The server's log has the details.",
)
NO_DATABASE = Failure(
    503,
    "database",
    "The database can't be used now",
    "It is full, locked, or does not answer. Nothing of what was asked for has happened.",
    "Free space where the database is and see that it runs (/readyz says what fails); then send it again.",
)


def _is_away(failure: BaseException | None) -> bool:
    """Not there, full, locked, or (a standby after a failover) only to be read."""
    read_only = isinstance(failure, Error) and getattr(failure.__cause__, "sqlstate", None) == "25006"
    return read_only or isinstance(failure, OperationalError | InterfaceError)


def server_error(request: HttpRequest) -> HttpResponse:
    """Must work when anything else does not: no database, no context processors."""
    said = NO_DATABASE if _is_away(sys.exc_info()[1]) else OURS
    if request.path.startswith("/api/"):
        body = json.dumps({"type": "about:blank", "field": None, **asdict(said)})
        return HttpResponse(body, status=said.status, content_type="application/problem+json")
    context = {"title": said.title, "detail": said.detail, "remedy": said.remedy, "way_on": HOME}
    return HttpResponse(render_to_string("pages/error.html", context), status=said.status)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    log.info("refused a form from another page: %s", reason)
    return problem(
        request,
        403,
        "The form was too old",
        "It did not carry the token of this session, so nothing was done.",
        "Go back, reload the page and send it again. If it happens each time, open the site at a configured address.",
    )
