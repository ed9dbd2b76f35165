"""Which request is being answered, so that entries of one request can be found together."""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("audit_request_id", default="")
