"""Tear down whole what is left of a deployment on all of its nodes, then launch it."""

from __future__ import annotations

from collections.abc import Mapping

from apps.facts.sheet import Sheet
from apps.plan.spec import Given, Spec
from apps.plan.step import Plan
from apps.plan.stories.launch import start


def relaunch(spec: Spec, sheets: Mapping[str, Sheet], *, given: Given = Given()) -> Plan:  # noqa: B008  # frozen
    """As `launch`, after removing everything that carries this deployment's label. If the very revision is healthy
    already, the steps are notes that say so; `given.healthy=False` (the watch knows better) relaunches it anyway."""
    return start("relaunch", spec, sheets, given)
