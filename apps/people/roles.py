"""Who may do what: one table, pure. Everything that is not in it is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, BinaryIO, TextIO

# What each action means, in the words of a refusal: "your role may not …".
ACTIONS: dict[str, str] = {
    "view": "see fleet, nodes, deployments, runs and the audit trail",
    "export_audit": "export the audit trail",
    "probe": "probe nodes",
    "plan": "preview a plan",
    "launch": "launch a deployment",
    "relaunch": "relaunch a deployment",
    "cancel": "cancel a run",
    "stop": "stop a deployment",
    "test": "test a deployment",
    "benchmark": "benchmark a deployment",
    "edit_nodes": "add or change nodes",
    "edit_recipes": "add or change recipes",
    "approve_recipes": "approve what an imported recipe would run or widen",
    "edit_deployments": "add or change deployments",
    "clear": "clear services that are in the way",
    "provision": "provision nodes, models and images",
    "edit_people": "add people or change their roles",
    "edit_credentials": "add or change credentials",
    "edit_host_keys": "confirm or replace host keys",
    "edit_policies": "change policies",
    "edit_tokens": "make or revoke API tokens",
}

_VIEWER = frozenset({"view"})
_OPERATOR = _VIEWER | {"probe", "plan", "launch", "relaunch", "cancel", "stop", "test", "benchmark"}
_EDITOR = _OPERATOR | {"edit_nodes", "edit_recipes", "edit_deployments", "clear", "provision"}
_ADMIN = _EDITOR | {
    "approve_recipes",
    "edit_people",
    "edit_credentials",
    "edit_host_keys",
    "edit_policies",
    "edit_tokens",
    "export_audit",
}

ROLES: dict[str, frozenset[str]] = {
    "viewer": _VIEWER,
    "auditor": _VIEWER | {"export_audit"},
    "operator": _OPERATOR,
    "editor": _EDITOR,
    "admin": _ADMIN,
}


def allows(role: str, action: str) -> bool:
    """Whether `role` may do `action`; an unknown role or action is a no."""
    return action in ACTIONS and action in ROLES.get(role, frozenset())


def actions_of(role: str) -> list[str]:
    """What `role` may do, in the order of the table; nothing for an unknown role."""
    return [action for action in ACTIONS if allows(role, action)]


def roles_that_may(action: str) -> list[str]:
    """The roles that may do `action`, the least powerful first."""
    return [role for role in ROLES if allows(role, action)]


def as_json() -> dict[str, Any]:
    """The whole table: `{"roles": {role: [action, …]}, "actions": {action: sentence}}`."""
    return {
        "roles": {role: actions_of(role) for role in ROLES},
        "actions": dict(ACTIONS),
    }


def _as_text() -> str:
    width = max(len(action) for action in ACTIONS)
    lines = [" " * width + "  " + "  ".join(ROLES)]
    for action in ACTIONS:
        marks = "  ".join(("yes" if allows(role, action) else "-").center(len(role)) for role in ROLES)
        lines.append(f"{action.ljust(width)}  {marks}".rstrip())
    return "\n".join(lines)


def main(arguments: Sequence[str], stdin: BinaryIO, stdout: TextIO) -> int:
    """`manage.py roles [--json]`. Reads nothing; 0, or 2 for an unknown argument."""
    if list(arguments) == ["--json"]:
        stdout.write(json.dumps(as_json()) + "\n")
        return 0
    if not arguments:
        stdout.write(_as_text() + "\n")
        return 0
    stdout.write(f"roles: unknown argument {arguments[0]!r}; use: manage.py roles [--json]\n")
    return 2
