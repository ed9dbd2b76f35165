"""What the facts of one or more nodes mean for a deployment, worst first. Pure: the same sheets, the same findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from apps.diagnosis.findings import engines, fabric, group, login, machine, memory, services, software
from apps.diagnosis.findings.finding import Finding, worst_first
from apps.diagnosis.findings.software import Wanted
from apps.diagnosis.findings.table import BAD, NOTE, SEVERITIES, TABLE, WARN, Known
from apps.facts.sheet import Sheet

__all__ = ["BAD", "NOTE", "SEVERITIES", "TABLE", "WARN", "Finding", "Known", "findings"]


def findings(
    sheets: Mapping[str, Sheet],
    *,
    spec: Mapping[str, Any] | None = None,
    clock_offsets_s: Mapping[str, float] | None = None,
) -> tuple[Finding, ...]:
    """Everything of these nodes that a deployment would stumble over, worst first. Never raises for any sheet.

    `sheets`: by the node's name. `spec`: a deployment's spec or a recipe's body, as plain values (image, model_path,
    runtime, cluster, engine, executable, nodes; all may be missing): then only its nodes, image and model count.
    `clock_offsets_s`: how far a node's clock is ahead of ours, measured better than the sheet can tell.
    """
    wanted = _wanted(spec)
    known = [sheets[name] for name in sorted(sheets) if not (wanted and wanted.nodes) or name in wanted.nodes]
    return worst_first(_all(known, wanted, clock_offsets_s or {}))


def _all(known: list[Sheet], wanted: Wanted | None, offsets: Mapping[str, float]) -> Iterator[Finding]:
    runtime = wanted.runtime if wanted else None
    for sheet in known:
        yield from machine.of_node(sheet, offset_s=offsets.get(sheet.node))
        yield from login.of_node(sheet, runtime=runtime)
        yield from memory.of_node(sheet)
        yield from services.of_node(sheet, runtime=runtime)
        yield from engines.of_node(sheet)
        yield from software.of_node(sheet, wanted)
        yield from fabric.of_node(sheet)
    yield from fabric.between(known, wanted=wanted is not None)
    yield from group.between(known, wanted)


def _wanted(spec: Mapping[str, Any] | None) -> Wanted | None:
    if spec is None:
        return None
    names = ("image", "model_path", "runtime", "cluster", "engine", "executable")
    text = {name: value for name in names if isinstance(value := spec.get(name), str)}
    nodes = spec.get("nodes")
    return Wanted(**text, nodes=tuple(map(str, nodes)) if isinstance(nodes, list | tuple) else ())
