"""A plan as a shell script that needs nothing of sparkweb: `sh plan.sh STAGE NODE` does one stage's part on one node."""

from __future__ import annotations

from apps.plan import printing
from apps.plan.step import Plan


def write(plan: Plan) -> str:
    """The whole plan. What only a control plane can do (looking again, asking the API) stands in it as comments."""
    return printing.script(plan)
