"""Anything with an OpenAI-compatible server: the deployment's further arguments are the whole command. One node."""

from __future__ import annotations

from collections.abc import Sequence

from apps.plan.engines import ranks
from apps.plan.engines.argument import Argument, Variable, with_own
from apps.plan.engines.site import Site
from apps.plan.spec import Given, Spec
from apps.plan.step import Stage
from apps.shell import Command


def arguments(spec: Spec) -> tuple[Argument, ...]:
    """The words as they were written: nothing is added, and nothing is known of them."""
    return (Argument(spec.arguments[0], spec.arguments, "yours"),) if spec.arguments else ()


def command(spec: Spec, place: Site, master: str) -> Command:
    return Command.of(*spec.arguments)


def variables(spec: Spec, site: Site) -> tuple[Variable, ...]:
    return with_own(spec, ())


COMMAND = ranks.Engine(
    name="command",
    title="The command",
    follows="",
    command=command,
    arguments=lambda spec, rank, master: arguments(spec),
    variables=variables,
)


def stages(spec: Spec, places: Sequence[Site], given: Given) -> tuple[Stage, ...]:
    """Start the command, wait until its API names the model, prove it."""
    return ranks.stages(COMMAND, spec, places, given)
