"""What a service raises when it will not do what was asked: a reason of the table, the field, what was seen and the way on."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """Nothing was changed. Pages show it beside the field, the API as problem+json.

    `status` is the HTTP status (409 conflict with the state of things, 422 bad input, 503 nobody there to do it);
    `extra` goes into the problem body (e.g. the new digest of plan_changed).
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        field: str = "",
        remedy: str = "",
        status: int = 422,
        evidence: str = "",
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.field, self.remedy = reason, detail, field, remedy
        self.status, self.evidence, self.extra = status, evidence, extra or {}
