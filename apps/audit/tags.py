"""The words of the audit trail: `thing:what_happened_to_it`. Kept for ever; never rename one that was written."""

from __future__ import annotations

import re
from enum import StrEnum

GRAMMAR = re.compile(r"[a-z][a-z_]*:[a-z][a-z_]*")


class Outcome(StrEnum):
    REQUESTED = "requested"
    DONE = "done"
    FAILED = "failed"
    DENIED = "denied"


class Tag(StrEnum):
    """The common tags, in one place so that they can be filtered by. A room may write others of the same grammar."""

    ACCESS_DENIED = "access:denied"

    SESSION_STARTED = "session:started"
    SESSION_REFUSED = "session:refused"
    SESSION_ENDED = "session:ended"

    PERSON_ADDED = "person:added"
    PERSON_ROLE_CHANGED = "person:role_changed"
    PERSON_DEACTIVATED = "person:deactivated"
    PERSON_REACTIVATED = "person:reactivated"
    PERSON_LINK_MADE = "person:link_made"
    PERSON_PASSWORD_CHANGED = "person:password_changed"  # noqa: S105 - a tag
    TOKEN_MADE = "token:made"  # noqa: S105 - a tag
    TOKEN_REVOKED = "token:revoked"  # noqa: S105 - a tag
    TOKEN_REFUSED = "token:refused"  # noqa: S105 - a tag

    AUDIT_EXPORTED = "audit:exported"

    CREDENTIAL_ADDED = "credential:added"
    CREDENTIAL_CHANGED = "credential:changed"
    CREDENTIAL_REMOVED = "credential:removed"

    NODE_ADDED = "node:added"
    NODE_CHANGED = "node:changed"
    NODE_REMOVED = "node:removed"
    NODE_CONFIRMED = "node:confirmed"
    NODE_PROBED = "node:probed"
    HOST_KEY_CONFIRMED = "host_key:confirmed"
    HOST_KEY_MISMATCH = "host_key:mismatch"

    RECIPE_ADDED = "recipe:added"
    RECIPE_CHANGED = "recipe:changed"
    RECIPE_REMOVED = "recipe:removed"

    DEPLOYMENT_ADDED = "deployment:added"
    DEPLOYMENT_POLICY = "deployment:policy"  # what a robot does when it is lost
    DEPLOYMENT_ADOPT = "deployment:adopt"
    DEPLOYMENT_ADOPTED = "deployment:adopted"
    DEPLOYMENT_TAKEN_OVER = "deployment:taken_over"
    DEPLOYMENT_CHANGED = "deployment:changed"
    DEPLOYMENT_REMOVED = "deployment:removed"
    DEPLOYMENT_PLANNED = "deployment:planned"
    DEPLOYMENT_LAUNCHED = "deployment:launched"
    DEPLOYMENT_RELAUNCHED = "deployment:relaunched"
    DEPLOYMENT_STOPPED = "deployment:stopped"
    DEPLOYMENT_RESTORED = "deployment:restored"
    DEPLOYMENT_TESTED = "deployment:tested"
    DEPLOYMENT_CLEARED = "deployment:cleared"
    DEPLOYMENT_REPLACED = "deployment:replaced"

    RUN_STARTED = "run:started"
    RUN_CANCELLED = "run:cancelled"
    RUN_FINISHED = "run:finished"


def checked(action: str) -> str:
    """`action` itself when it follows the grammar. Raises ValueError otherwise."""
    if not GRAMMAR.fullmatch(action) or len(action) > 64:
        raise ValueError(f"audit action {action!r}: write it like deployment:relaunched")
    return str(action)
