"""What no text column can hold is refused before a page asks the database for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, QueryDict

from apps.pages.errors import not_found, problem


class StorableMiddleware:
    """A NUL character, which PostgreSQL refuses and SQLite does not, is called a malformed request (400); nothing is
    at an address with one.

    The API's own parser names the field, so its addresses are left to it. A session cookie with one is nobody's.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "\0" in request.COOKIES.get(settings.SESSION_COOKIE_NAME, ""):
            del request.COOKIES[settings.SESSION_COOKIE_NAME]
        if request.path.startswith("/api/"):
            return self.get_response(request)
        if "\0" in request.path:
            return not_found(request)
        return _refused(request) if _holds_nul(request.GET) else self.get_response(request)

    def process_view(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        """Forms are read only here: by now Django has looked at their size."""
        if request.method != "POST" or request.path.startswith("/api/") or not _holds_nul(request.POST):
            return None
        return _refused(request)


def _holds_nul(fields: QueryDict) -> bool:
    return any("\0" in text for name, values in fields.lists() for text in (name, *values) if isinstance(text, str))


def _refused(request: HttpRequest) -> HttpResponse:
    said = "It holds a NUL character (%00), which no name and no text here can have."
    return problem(request, 400, "That request can't be read", said, "Remove it and send it again.")
