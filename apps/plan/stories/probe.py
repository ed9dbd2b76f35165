"""Ask every node everything again."""

from __future__ import annotations

from collections.abc import Sequence

from apps.plan.step import Plan, Stage, Step


def probe(nodes: Sequence[str]) -> Plan:
    """One step of kind `probe` per node; nothing on a node is changed."""
    steps = tuple(
        Step(
            key=f"probe.sheet.{node}",
            node=node,
            title=f"Ask {node} what is there",
            kind="probe",
            gate={"name": "sheet", "fresh": True},  # groups that somebody changed by hand count from the next login on
            within_s=60.0,
            why="one script, one round trip; changes nothing",
        )
        for node in nodes
    )
    return Plan("probe", 0, 0, tuple(nodes), (Stage("Probe", "preflight", steps),) if steps else ())
