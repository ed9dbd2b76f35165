"""Passwords that are given for one run: sealed, for minutes, and forgotten when the run ends at the latest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from django.utils import timezone

from apps.diagnosis.refusal import Refused
from apps.inventory import sealing
from apps.plan.provision.offers import once
from apps.runs.models import Passing, Run

CONTEXT = "runs.passing.value"
KEPT = timedelta(minutes=15)
LONGEST = 1024  # characters


def check(values: Mapping[str, str], *, wanted: tuple[str, ...]) -> dict[str, str]:
    """The passwords that are wanted, out of what was typed. Raises Refused naming the first that is missing or can't be one."""
    made = {}
    for name in wanted:
        kind, node = parts(name)
        value = values.get(name, "")
        if not value:
            raise Refused(
                "bad_input", f"The {kind} password of {node} is missing.", field=f"passwords.{node}.{kind}",
                remedy="Type it; it is used for this run only. Or leave out what needs it.",
            )  # fmt: skip
        if len(value) > LONGEST or any(ord(character) < 32 for character in value):
            raise Refused(
                "bad_input", "This is no password: it is too long or holds control characters.",
                field=f"passwords.{node}.{kind}", remedy="Type the password that you would type on the node.",
            )  # fmt: skip
        made[name] = value
    return made


def keep(run: Run, values: Mapping[str, str]) -> None:
    """In the transaction that makes the run."""
    for name, value in values.items():
        Passing.objects.create(
            run=run, name=name, sealed_value=sealing.seal(value, context=CONTEXT), until=timezone.now() + KEPT
        )


def name(kind: str, node: str) -> str:
    """How a plan calls a password. kind: sudo or login."""
    return once(kind, node)


def parts(name: str) -> tuple[str, str]:
    """(kind, node) of such a name."""
    _, kind, node = name.split(":", 2)
    return kind, node


def is_passing(name: str) -> bool:
    """Whether a secret of a plan is a password for one run."""
    return name.startswith("once:")


def value(run: Run, name: str) -> str:
    """The password; "" for a name that is none of these. Raises Refused `password_gone`."""
    if not is_passing(name):
        return ""
    found = Passing.objects.filter(run=run, name=name, until__gt=timezone.now()).first()
    if found is None:
        raise Refused(
            "password_gone", f"The password {name} of run {run.pk} is no longer there.", remedy="Start again."
        )
    return sealing.unseal(found.sealed_value, context=CONTEXT)


def forget() -> None:
    """Those whose time is over; the others go with the end of their run (settling)."""
    Passing.objects.filter(until__lte=timezone.now()).delete()
