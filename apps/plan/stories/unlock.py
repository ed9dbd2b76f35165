"""Remove from one node the locks that other installations of sparkweb left there and don't mind any more."""

from __future__ import annotations

from apps.plan.step import Plan, Stage, Step


def unlock(node: str, *, script: str) -> Plan:
    """One job. `script` is remote.nodelock.removal of this installation; it leaves alone whatever shows signs of life."""
    step = Step(
        key=f"unlock.others.{node}",
        node=node,
        title=f"Remove the locks that other installations left on {node}",
        kind="job",
        script=script,
        commands=(
            "rm -f FILE || sudo -n rm -f -- FILE  # each lock of another installation that is silent for minutes",
        ),
        within_s=60.0,
        why="runs that change something are refused beside them; a living installation's lock stays",
    )
    return Plan("unlock", 0, 0, (node,), (Stage("Remove locks", "clearing", (step,)),))
