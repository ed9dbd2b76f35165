"""Who acts, as plain values, so that the audit trail outlives the people in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Actor:
    kind: str  # person, token, robot, system
    id: int | None
    name: str
    role: str  # viewer operator editor admin auditor; "system" for our own processes
    address: str = ""  # of the client, as far as it can be trusted
    session: str = ""  # a short hash, never the key


def robot(name: str) -> Actor:
    """A part of sparkweb that acts under a policy which a person set, e.g. robot("watch")."""
    return Actor(kind="robot", id=None, name=name, role="system")


COMMAND_LINE = Actor(kind="system", id=None, name="command line", role="system")
