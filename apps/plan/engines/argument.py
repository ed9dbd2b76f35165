"""Options and variables of an engine's command line: who wanted each, what is passed on, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from apps.plan.options import canonical, group
from apps.plan.spec import Spec


@dataclass(frozen=True)
class Argument:
    """One option of the engine's command line and who wanted it.

    `effective`: the words that are passed, empty when it is dropped. `source`: spec (a field of the deployment), ours
    (needed for the way it is started), default (ours unless a further argument says otherwise), yours (a further
    argument). `yours`: what was asked for where it differs. `reason`: why."""

    flag: str
    effective: tuple[str, ...]
    source: str
    reason: str = ""
    yours: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variable:
    """One variable of the engine's environment. `yours`: what was asked for; it wins over ours."""

    name: str
    value: str
    source: str = "ours"  # ours, yours
    reason: str = ""
    ours: str = ""  # what it would have been, where yours wins


def merged(
    spec: Spec,
    fixed: Sequence[Argument],
    *,
    refused: Callable[[Spec, str], str] = lambda spec, flag: "",
) -> tuple[Argument, ...]:
    """The fixed options with what a person's further arguments say about them, then the other further arguments. `refused`:
    why a further argument can't be passed on; empty when it can."""
    groups = group(spec.arguments)
    asked = {canonical(flag, spec.engine): words for flag, words in groups}
    made = []
    for argument in fixed:
        yours = asked.get(argument.flag)
        if yours is None or yours == argument.effective:
            made.append(argument)
        elif argument.source == "default":
            instead = f"instead of ours, {' '.join(argument.effective)}: {argument.reason}"
            made.append(Argument(argument.flag, yours, "yours", instead, yours))
        else:
            reason = argument.reason or "the deployment's own field wins over a further argument"
            made.append(replace(argument, reason=reason, yours=yours))
    held = {argument.flag for argument in fixed}
    for flag, words in groups:
        option = canonical(flag, spec.engine)
        if option in held:
            continue
        why = refused(spec, option)
        made.append(Argument(option, () if why else words, "yours", why, words if why else ()))
    return tuple(made)


def of_fields(wanted: Sequence[tuple[str, str | None, str]]) -> list[Argument]:
    """(option, value, reason) rows of the spec's own fields; those without a value are left out."""
    return [Argument(flag, (flag, value), "spec", reason) for flag, value, reason in wanted if value is not None]


def number(value: float | int | None) -> str | None:
    return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def with_own(spec: Spec, ours: Sequence[Variable]) -> tuple[Variable, ...]:
    """Our variables, and a person's own, which win."""
    own = dict(spec.environment)
    made = [
        replace(one, value=own[one.name], source="yours", ours=one.value)
        if one.name in own and own[one.name] != one.value
        else one
        for one in ours
    ]
    named = {one.name for one in ours}
    return (*made, *(Variable(name, value, "yours") for name, value in own.items() if name not in named))
