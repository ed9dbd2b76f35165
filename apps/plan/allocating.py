"""What a deployment's body leaves open is filled in once, when it is made: it then stands in the revision like everything
else, and no later plan takes another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apps.facts.sheet import Sheet
from apps.plan.checks.ports import needed_ports, next_free
from apps.plan.engines.site import cluster_port
from apps.plan.spec import Given, Other, Spec

FIRST_PORT = 30000


def filled(
    body: Mapping[str, Any],
    *,
    name: str,
    nodes: Sequence[str],
    sheets: Mapping[str, Sheet],
    others: Sequence[Other],
) -> dict[str, Any]:
    """The body with the way to span its nodes, where it names none, as many ranks as they have GPUs, where it names no number,
    and with ports that no other deployment is meant to have on the head: the API's where none was chosen, and the ranks' meeting
    place where its usual one is another's. What can't be read as a spec comes back as it is, for the check that names the field."""
    made = {key: value for key, value in body.items() if value is not None or key not in ("tensor_parallel", "port")}
    if not made.get("cluster"):
        ray = made.get("engine", "vllm") == "vllm" and made.get("runtime", "docker") == "docker"
        made["cluster"] = "single" if len(nodes) < 2 else "ray" if ray else "native"
    if "tensor_parallel" not in made and made.get("engine") != "command":
        made["tensor_parallel"] = _gpus(nodes, sheets)
    try:
        spec = Spec.from_json({**made, "name": name, "nodes": list(nodes)})
    except (TypeError, ValueError):
        return made
    given = Given(others=tuple(others))
    head = sheets.get(nodes[0]) if nodes else None
    if "port" not in made and nodes:
        made["port"] = next_free(spec, head, given, FIRST_PORT - 1, own=False) or FIRST_PORT
    usual = cluster_port(spec)
    if nodes and usual is not None and spec.cluster_port is None and usual in _meant(others, nodes[0]):
        made["cluster_port"] = next_free(spec, head, given, usual)
    return made


def _gpus(nodes: Sequence[str], sheets: Mapping[str, Sheet]) -> int:
    """Of all nodes together; one for a node of which nothing is known or that has none."""
    return (
        sum(max(1, len(sheet.gpus.gpus) if sheet.gpus else 0) if (sheet := sheets.get(node)) else 1 for node in nodes)
        or 1
    )


def _meant(others: Sequence[Other], node: str) -> set[int]:
    return {port for other in others if other.spec for port in needed_ports(other.spec, node)}
