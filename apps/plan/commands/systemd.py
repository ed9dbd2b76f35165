"""systemctl, through sudo without a password unless the user is root."""

from __future__ import annotations

from collections.abc import Sequence

from apps.shell import Command, Shell, becoming


def as_root(root: bool, *command: str) -> Command:
    return Command.of(*(() if root else ("sudo", "-n")), *command)


def stop(units: Sequence[str], *, root: bool) -> Command:
    return as_root(root, "systemctl", "stop", *units)


def disable(units: Sequence[str], *, root: bool) -> Command:
    return as_root(root, "systemctl", "disable", *units)


def enable(units: Sequence[str], *, root: bool) -> Command:
    return as_root(root, "systemctl", "enable", *units)


def start(units: Sequence[str], *, root: bool) -> Command:
    return as_root(root, "systemctl", "start", *units)


def are_active(units: Sequence[str]) -> Command:
    """One word a unit, in their order; its exit code says whether all are."""
    return Command.of("systemctl", "is-active", *units)


def journal(unit: str) -> Command:
    """What a unit printed last, and what it prints from now on."""
    return Command.of("journalctl", "--unit", unit, "--output", "cat", "--lines", "500", "--follow")


def follow(unit: str) -> Shell:
    return becoming(journal(unit))
