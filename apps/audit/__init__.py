"""Who wanted what, and what came of it: append-only, hash-chained entries, written in the transaction of the act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from apps.audit.actor import COMMAND_LINE, Actor, robot

if TYPE_CHECKING:
    from apps.audit.models import Entry

__all__ = ["COMMAND_LINE", "Actor", "record", "robot"]


def record(
    actor: Actor,
    action: str,
    *,
    object_type: str = "",
    object_id: object = "",
    object_name: str = "",
    outcome: str = "done",
    reason: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    run: object | None = None,
) -> Entry:
    """Write one entry, in the caller's transaction when there is one.

    `action` is a word of apps.audit.tags.Tag; `outcome` is requested, done, failed or denied; `run` is a run or its id.
    Call it last in a transaction: on PostgreSQL the chain's lock is held from here to the commit.
    Values under names like password, secret or token are withheld. Raises ValueError for an unknown action or outcome.
    """
    # Imported late: this package is imported before Django's models are ready.
    from apps.audit.recording import write

    return write(
        actor,
        action,
        object_type=object_type,
        object_id=object_id,
        object_name=object_name,
        outcome=outcome,
        reason=reason,
        before=before,
        after=after,
        run=run,
    )
