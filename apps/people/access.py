"""The one function that says no, and the marks by which every route says what it asks for."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar, cast

from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest

from apps.audit import record
from apps.audit.actor import Actor
from apps.audit.tags import Outcome, Tag
from apps.people.roles import ACTIONS, allows, roles_that_may

PUBLIC = "public"  # the mark of a route that asks for nothing: sign-in, health
_View = TypeVar("_View", bound=Callable[..., Any])


# AccessProblem(PermissionDenied)
# ├── NotSignedIn    nobody is there: sign in (401)
# └── Denied         somebody is there whose role may not (403); `.record()` writes the refusal once
class AccessProblem(PermissionDenied):
    status = 403


class NotSignedIn(AccessProblem):
    """No person and no token. Pages redirect to the sign-in, the API answers 401."""

    status = 401

    def __init__(self) -> None:
        super().__init__("Sign in first.")


class Denied(AccessProblem):
    """`actor` may not do `action`. Its text is a sentence for that person."""

    def __init__(self, actor: Actor, action: str, obj: object | None = None, detail: str = "") -> None:
        self.actor, self.action, self.obj = actor, action, obj
        self.recorded = False
        super().__init__(detail or f"Your role, {actor.role}, may not {ACTIONS.get(action, action)}.")

    @property
    def remedy(self) -> str:
        """What to do next, for the same person."""
        roles = roles_that_may(self.action)
        if not roles:
            return "Nobody may do this here."
        return f"Ask somebody with the role {' or '.join(roles)}, or ask an admin for that role."

    def record(self) -> None:
        """Write the refusal to the audit trail, once. Call it outside of the transaction that is rolled back."""
        if self.recorded:
            return
        self.recorded = True
        passed, unwritten = _refusals.admit(self.actor, self.action)
        if passed:
            _write_refusal(self, unwritten)


class _Refusals:
    """Lets through a few refusals per actor and action a minute, so that a loop can't flood the trail. Thread safe."""

    WINDOW_S = 60.0
    WRITTEN = 5
    REMEMBERED = 4096

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()

    def admit(self, actor: Actor, action: str) -> tuple[bool, int]:
        """(whether to write this one, how many were left out in the window before)."""
        key = (actor.kind, actor.id, actor.name, actor.address if actor.id is None else "", action)
        now = time.monotonic()
        with self._lock:
            began, count = self._seen.pop(key, (now, 0))
            unwritten = 0
            if now - began >= self.WINDOW_S:
                unwritten, began, count = max(0, count - self.WRITTEN), now, 0
            self._seen[key] = (began, count + 1)
            while len(self._seen) > self.REMEMBERED:
                self._seen.popitem(last=False)
        return count < self.WRITTEN, unwritten

    def forget(self) -> None:
        with self._lock:
            self._seen.clear()


_refusals = _Refusals()


def _write_refusal(denied: Denied, unwritten: int) -> None:
    obj = denied.obj
    after: dict[str, Any] = {"asked_for": denied.action}
    if unwritten:
        after["refusals_not_written_before"] = unwritten
    record(
        denied.actor,
        Tag.ACCESS_DENIED,
        object_type="" if obj is None else type(obj).__name__.lower(),
        object_id="" if obj is None else getattr(obj, "pk", ""),
        object_name="" if obj is None else str(getattr(obj, "name", obj)),
        outcome=Outcome.DENIED,
        reason=str(denied),
        after=after,
    )


def refuse_token(name: str, token_id: int | None, address: str) -> None:
    """Write that a token was refused: an unknown one, or a known one that is revoked or expired."""
    actor = Actor("token", token_id, name or "unknown token", "", address)
    passed, unwritten = _refusals.admit(actor, Tag.TOKEN_REFUSED)
    if passed:
        record(
            actor,
            Tag.TOKEN_REFUSED,
            object_type="token",
            object_id=token_id or "",
            object_name=name,
            outcome=Outcome.DENIED,
            after={"refusals_not_written_before": unwritten} if unwritten else None,
        )


def inside_transaction() -> bool:
    """Whether the caller opened a transaction (the one around a test case does not count)."""
    return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def authorize(actor: Actor | None, action: str, obj: object | None = None) -> None:
    """Return when `actor` may do `action` (on `obj`), else raise NotSignedIn or Denied.

    A refusal is written to the audit trail in its own transaction: at once, or, inside the caller's transaction (which
    the exception rolls back), by whoever catches it with `Denied.record()`; the middleware does that for every request.
    Our own robots and the command line act under what a person set, so they pass for every action that exists.
    """
    if actor is None:
        raise NotSignedIn
    if action in ACTIONS and (actor.kind in ("system", "robot") or allows(actor.role, action)):
        return
    denied = Denied(actor, action, obj)
    if not inside_transaction():
        denied.record()
    raise denied


def may(actor: Actor | None, action: str) -> bool:
    """For pages that show or hide a button; says nothing to the audit trail. The act itself calls authorize()."""
    return actor is not None and action in ACTIONS and (actor.kind in ("system", "robot") or allows(actor.role, action))


def allow(action: str, **by_method: str) -> Callable[[_View], _View]:
    """Mark a view with the action it asks for, other methods with others: `@allow("view", post="launch")`.

    `@allow("view")` alone is for reading: a POST is answered with 405 unless the mark names it (`post="view"`).
    The middleware asks authorize() for it before the view runs, and refuses every view without a mark. Below
    `@router.get(…)` of the API it works the same. Raises ValueError for an action that is not in the table.
    """
    marks = {"": action, **{method.upper(): name for method, name in by_method.items()}}
    for name in marks.values():
        if name != PUBLIC and name not in ACTIONS:
            raise ValueError(f"no such action: {name!r}; the table is in apps/people/roles.py")

    def mark(view: _View) -> _View:
        view.required_action = action  # type: ignore[attr-defined]
        view.required_actions = marks  # type: ignore[attr-defined]
        return view

    return mark


def public(view: _View) -> _View:
    """Mark a view that asks for nothing."""
    return allow(PUBLIC)(view)


def _api_operation(view: Callable[..., Any], method: str) -> Callable[..., Any] | None:
    """The function of the API that answers `method`, when `view` is one of django-ninja's wrappers."""
    for cell in getattr(view, "__closure__", None) or ():
        operations = getattr(cell.cell_contents, "operations", None)
        if not operations:
            continue
        for operation in operations:
            if method in operation.methods:
                return cast("Callable[..., Any]", operation.view_func)
        return cast("Callable[..., Any]", operations[0].view_func)  # it will answer 405, to those who may see it
    return None


def action_of(view: Callable[..., Any], method: str) -> str | None:
    """The action that `view` asks for when called with `method`; None for a view without a mark."""
    for candidate in (view, _api_operation(view, method)):
        marks = getattr(candidate, "required_actions", None)
        if marks:
            return cast("str", marks.get(method) or marks.get("GET" if method == "HEAD" else "") or marks[""])
    return None


def covers(view: Callable[..., Any], method: str) -> bool:
    """Whether the mark of a page speaks of `method`. What the API declares is covered by its own mark.

    Reading never allows writing: `@allow("view")` alone covers no POST, and a mark that names some methods covers no
    other writing ones.
    """
    marks = getattr(view, "required_actions", None)
    if not marks or method in ("GET", "HEAD", "OPTIONS", "TRACE") or method in marks:
        return True
    return len(marks) == 1 and marks[""] != "view"


def actor_of(request: HttpRequest) -> Actor:
    """Who sent this request. Raises NotSignedIn."""
    actor: Actor | None = getattr(request, "actor", None)
    if actor is None:
        raise NotSignedIn
    return actor


def short_hash(key: str | None) -> str:
    """What may be shown of a session key."""
    return hashlib.sha256(key.encode()).hexdigest()[:12] if key else ""
