"""Bodies of requests: strict JSON, with nothing in it that a database would refuse."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, cast

from django.http import HttpRequest
from ninja.parser import Parser

from apps.diagnosis.refusal import Refused

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")  # PostgreSQL refuses NUL; lone surrogates are no UTF-8


class StrictParser(Parser):
    """Raises Refused: 415 for another media type, 400 for what is no JSON, 422 for what nobody can store."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        kind = request.content_type or ""
        if kind not in ("", "application/json") and not kind.endswith("+json"):
            raise Refused(
                "unsupported_media_type",
                f"The body is {kind[:80]}, not JSON.",
                status=415,
                remedy="Send it with 'Content-Type: application/json'.",
            )
        value = _parsed(request.body)
        refuse_unstorable(value)
        return cast("dict[str, Any]", value)


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_no_number)
    except json.JSONDecodeError as problem:
        detail = f"{problem.msg} at line {problem.lineno}, column {problem.colno}."
    except RecursionError:
        detail = "It is nested too deeply."
    except ValueError as problem:  # no UTF-8, NaN, a number of thousands of digits
        detail = f"{str(problem)[:200]}."
    remedy = "Correct it and send it again."
    raise Refused("malformed_json", f"The body is no JSON: {detail}", status=400, field="body", remedy=remedy)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def refuse_unstorable(value: Any) -> None:
    """Raises Refused naming the first place that holds NUL, half a surrogate pair or an infinite number."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, str) and _UNSTORABLE.search(item):
            raise _unstorable(path, "It holds a NUL character or half a surrogate pair.", "Send text without them.")
        if isinstance(item, float) and item in (float("inf"), float("-inf")):
            raise _unstorable(path, "The number is too large.", "Send a smaller one.")
        if isinstance(item, dict):
            for key, inner in item.items():
                if _UNSTORABLE.search(key):
                    raise _unstorable(path, "A name holds a NUL character or half a surrogate pair.", "Correct it.")
                waiting.append((f"{path}.{key[:80]}" if path else key[:80], inner))
        elif isinstance(item, list):
            waiting.extend((f"{path}[{place}]", inner) for place, inner in enumerate(item))


def _unstorable(path: str, detail: str, remedy: str) -> Refused:
    return Refused("bad_input", detail, field=path or "body", remedy=remedy)
