"""Errors as problem+json (RFC 9457): what happened, which field, what to do next. No traceback ever leaves."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.request import RawPostDataException
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError

from apps.diagnosis.reasons import REASONS
from apps.diagnosis.refusal import Refused

log = logging.getLogger(__name__)
CONTENT_TYPE = "application/problem+json"
LONGEST = 2000  # characters of a text in a problem: what was sent may come back in it, but not a megabyte of it
SCHEMA = "/api/v1/openapi.json"
# Titles of what is no row of the table of reasons.
TITLES = {
    "method_not_allowed": "Not possible",
    "too_large": "Too large",
    "approval_needed": "Waits for a decision",
    "recipe_changed": "Changed in between",
    "nothing_to_do": "Nothing to do",
    "idempotency_key_reused": "Key used before",
}


def problem(
    status: int,
    reason: str,
    detail: str,
    *,
    field: str = "",
    remedy: str = "",
    evidence: str = "",
    title: str = "",
    extra: Mapping[str, Any] | None = None,
) -> JsonResponse:
    """The answer. `extra` adds members (digest, run …) and never replaces one that every problem has."""
    known = REASONS.get(reason.partition(":")[0])
    words = title or TITLES.get(reason) or (known.title if known else reason.replace("_", " ").capitalize())
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": words,
        "status": status,
        "reason": reason,
        "field": _short(field, 200) or None,
        "detail": _short(detail),
        "remedy": _short(remedy or (known.remedy if known else "")),
    }
    if evidence:
        body["evidence"] = _short(evidence)
    return JsonResponse({**(extra or {}), **body}, status=status, content_type=CONTENT_TYPE)


def _short(text: str, limit: int = LONGEST) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def of_refused(refused: Refused) -> HttpResponse:
    return problem(
        refused.status,
        refused.reason,
        refused.detail,
        field=refused.field,
        remedy=refused.remedy,
        evidence=refused.evidence,
        extra=refused.extra,
    )


def method_not_allowed(methods: Sequence[str]) -> HttpResponse:
    allowed = ", ".join(sorted(methods))
    remedy = f"{SCHEMA} lists what each address takes."
    response = problem(405, "method_not_allowed", f"Only {allowed} is possible here.", remedy=remedy)
    response.headers["Allow"] = allowed
    return response


# What pydantic found -> (what is wrong, what to do), after the field's name.
_WORDS = {
    "missing": ("is missing.", "Add it."),
    "extra_forbidden": ("is no field of this request.", "Leave it out, or correct its name."),
    "string_type": ("must be text.", "Put it in double quotes."),
    "int_type": ("must be a whole number.", "Send a number without quotes."),
    "int_parsing": ("must be a whole number.", "Send digits only."),
    "int_from_float": ("must be a whole number.", "Send it without a fraction."),
    "float_type": ("must be a number.", "Send a number without quotes."),
    "bool_type": ("must be true or false.", "Send true or false without quotes."),
    "list_type": ("must be a list.", "Put it in square brackets."),
    "dict_type": ("must be an object.", "Put it in curly brackets."),
    "model_type": ("must be an object.", "Put it in curly brackets."),
    "model_attributes_type": ("must be an object.", "Put it in curly brackets."),
}
_SEE = f"{SCHEMA} describes every field."


def of_validation(error: ValidationError) -> HttpResponse:
    """The first wrong field: its path as in `clear[0].kind`, what is wrong with it and what to send instead."""
    first = error.errors[0]
    field = _path(first["loc"])
    wrong, remedy = _WORDS.get(first["type"], ("", ""))
    if not wrong:
        message = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
        wrong = f"is wrong: {message[:1].lower()}{message[1:]}."
        remedy = "Correct it."
    if not field:
        return problem(422, "bad_input", "The body must be a JSON object.", field="body", remedy=f"Send one. {_SEE}")
    return problem(422, "bad_input", f"{_short(field, 200)} {wrong}", field=field, remedy=f"{remedy} {_SEE}")


def _path(places: Sequence[str | int]) -> str:
    """("body", "body", "clear", 0, "kind") -> "clear[0].kind"; of a query or header parameter its name."""
    inner = places[2:] if places and places[0] == "body" else places[1:]
    made = ""
    for place in inner:
        made += f"[{place}]" if isinstance(place, int) else f".{place}" if made else str(place)
    return made


def _http_error(error: HttpError) -> HttpResponse:
    cause = error.__cause__
    if isinstance(cause, Refused):  # from the parser of bodies, which ninja wraps
        return of_refused(cause)
    if isinstance(cause, RequestDataTooBig):
        return _too_large()
    reason = "malformed_json" if error.status_code == 400 else "bad_input"
    return problem(error.status_code, reason, error.message, remedy=_SEE)


def _too_large() -> HttpResponse:
    return problem(413, "too_large", "The body is larger than 2 MiB.", field="body", remedy="Send less at once.")


def _unreadable() -> HttpResponse:
    remedy = "Send it with 'Content-Type: application/json'."
    return problem(415, "unsupported_media_type", "The body is not JSON.", field="body", remedy=remedy)


def _not_found() -> HttpResponse:
    return problem(404, "not_found", "There is nothing at this address.", remedy=f"{SCHEMA} lists all addresses.")


def _internal(request: HttpRequest, error: Exception) -> HttpResponse:
    identity = getattr(request, "request_id", "")
    log.error("%s %s failed (request %s)", request.method, request.path, identity, exc_info=error)
    return problem(
        500,
        "internal",
        "sparkweb itself failed. The server's log has the details.",
        remedy=f"Report it with the number of the request: {identity}.",
        extra={"request": identity},
    )


def attach(api: NinjaAPI) -> None:
    """Let every exception of an operation become a problem. A refusal of access goes on to the middleware, which keeps
    it in the audit trail."""

    def onward(request: HttpRequest, error: Any) -> HttpResponse:
        raise error

    handlers: list[tuple[type[Exception], Any]] = [
        (Exception, _internal),
        (OperationalError, onward),  # no space, locked, gone: the site's own words for it
        (InterfaceError, onward),
        (Refused, lambda _, error: of_refused(error)),
        (ValidationError, lambda _, error: of_validation(error)),
        (HttpError, lambda _, error: _http_error(error)),
        (Http404, lambda *_: _not_found()),
        (PermissionDenied, onward),
        (RequestDataTooBig, lambda *_: _too_large()),
        (RawPostDataException, lambda *_: _unreadable()),
    ]
    for kind, answer in handlers:
        api.add_exception_handler(kind, answer)
