"""Whose memory is it: a node's bar, from its newest look and its newest sheet. Reads rows, asks no node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Max
from django.utils.safestring import SafeString

from apps.diagnosis.findings.links import plug_of
from apps.inventory.models import Node, SheetRow
from apps.pages import charts
from apps.runs.models import Run

GIB = 1 << 30


@dataclass(frozen=True)
class NodeRow:
    """One node as the fleet shows it. Bytes, watts, degrees Celsius; None is unknown."""

    node: Node
    seen_at: datetime | None
    total: int | None
    used: int | None
    picture: SafeString
    parts: tuple[tuple[str, int], ...]
    kind: str  # GB10, RTX PRO 6000 …
    busy_pct: float | None
    power_w: float | None
    temperature_c: float | None
    fabric: str
    fabric_tone: str
    stale: bool


def rows(nodes: Sequence[Node]) -> list[NodeRow]:
    """Rows for these nodes, in their order, with a fixed number of queries."""
    ids = [node.pk for node in nodes]
    newest = SheetRow.objects.filter(node__in=ids).values("node").annotate(newest=Max("pk")).values("newest")
    sheets = {
        row["node_id"]: row
        for row in SheetRow.objects.filter(pk__in=newest).values(
            "node_id", "taken_at", "body__memory", "body__gpus", "body__containers", "body__fabric", "body__machine"
        )
    }
    loads = _loads(ids)
    return [_row(node, sheets.get(node.pk) or {}, loads.get(node.pk, {})) for node in nodes]


def _loads(node_ids: Iterable[int]) -> dict[int, dict[str, float]]:
    """What the engines said about their memory at the last good launch: node -> {weights, kv} in bytes a rank."""
    from apps.deployments.models import Rank

    ranks = list(Rank.objects.filter(node__in=list(node_ids)).exclude(state="gone").values_list("node_id", "run_id"))
    facts = dict(Run.objects.filter(pk__in={run for _, run in ranks}).values_list("pk", "facts"))
    made: dict[int, dict[str, float]] = {}
    for node, run in ranks:
        said = facts.get(run) or {}
        if said.get("model_gib"):
            known = made.setdefault(node, {"weights": 0.0, "kv": 0.0})
            known["weights"] += float(said["model_gib"]) * GIB
            known["kv"] += float(said.get("kv_gib") or 0.0) * GIB
    return made


def _row(node: Node, sheet: Mapping[str, Any], load: Mapping[str, float]) -> NodeRow:
    sighting = getattr(node, "sighting", None)
    fresh = sighting is not None and (not sheet or sighting.at >= sheet["taken_at"])
    body: Mapping[str, Any] = sighting.body if fresh and sighting else {}
    gpus = body.get("gpus") or (sheet.get("body__gpus") or {}).get("gpus") or []
    memory = body.get("memory") or sheet.get("body__memory") or {}
    containers = body.get("containers") if body.get("containers") is not None else sheet.get("body__containers") or []
    gpu = gpus[0] if gpus else {}
    total, used = _totals(memory, gpus)
    parts = _parts(total, used, containers or [], load)
    fabric, fabric_tone = _fabric(sheet.get("body__fabric"))
    seen_at = sighting.at if fresh and sighting else sheet.get("taken_at")
    return NodeRow(
        node=node,
        seen_at=seen_at,
        total=total,
        used=used,
        parts=parts,
        picture=charts.memory_bar(parts, total or 1, key=f"node{node.pk}"),
        kind=str(gpu.get("name") or (sheet.get("body__machine") or {}).get("model") or "").replace("NVIDIA ", ""),
        busy_pct=gpu.get("util_pct"),
        power_w=gpu.get("power_w"),
        temperature_c=gpu.get("temp_c"),
        fabric=fabric,
        fabric_tone=fabric_tone,
        stale=node.unreachable_since is not None,
    )


def _totals(memory: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """The memory that decides: the machine's own, or the discrete GPU's."""
    gpu = gpus[0] if gpus else {}
    if gpu and not gpu.get("unified") and gpu.get("memory_total_mib"):
        return int(gpu["memory_total_mib"]) << 20, int(gpu.get("memory_used_mib") or 0) << 20
    total, available = memory.get("total_bytes"), memory.get("available_bytes")
    return total, None if total is None or available is None else total - available


def _parts(
    total: int | None, used: int | None, containers: Sequence[Mapping[str, Any]], load: Mapping[str, float]
) -> tuple[tuple[str, int], ...]:
    if total is None or used is None:
        return ()
    running = [one for one in containers if one.get("state") in (None, "running", "paused", "restarting")]
    ours = sum(
        int(one.get("memory_bytes") or 0) for one in running if "sparkweb.deployment" in (one.get("labels") or {})
    )
    others = sum(
        int(one.get("memory_bytes") or 0) for one in running if "sparkweb.deployment" not in (one.get("labels") or {})
    )
    has_ours = any("sparkweb.deployment" in (one.get("labels") or {}) for one in running)
    weights, kv = int(load.get("weights", 0)) if has_ours else 0, int(load.get("kv", 0)) if has_ours else 0
    ours = min(max(ours, weights + kv), used)
    others = min(others, used - ours)
    weights = min(weights or ours, ours)
    kv = min(kv, ours - weights)
    found = (
        ("os", used - ours - others),
        ("weights", weights),
        ("graphs", ours - weights - kv),
        ("kv", kv),
        ("others", others),
        ("free", total - used),
    )
    return tuple((name, size) for name, size in found if size > 0)


def halves(ports: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Plugs of which one half is up and the other is not, as the names of the ports that are down."""
    plugs: dict[str, list[Mapping[str, Any]]] = {}
    for port in ports:
        plugs.setdefault(plug_of(str(port.get("name"))), []).append(port)
    found = []
    for its in plugs.values():
        down = tuple(str(port.get("name")) for port in its if not _up(port))
        if down and len(down) < len(its):
            found.append(down)
    return found


def _up(port: Mapping[str, Any]) -> bool:
    return str(port.get("state", "")).upper() == "ACTIVE"


def _fabric(ports: Sequence[Mapping[str, Any]] | None) -> tuple[str, str]:
    """The RDMA ports in words. A plug without a cable is no fault while another one has a link."""
    if ports is None:
        return "not known", "off"
    if not ports:
        return "none", "off"
    up = [port for port in ports if _up(port)]
    if not up:
        return "down", "bad"
    rate = max((port.get("rate_gbps") or 0) for port in up)
    words = f"{rate:.0f}G · " if rate else ""
    if halves(ports):
        return f"{words}one half down", "warn"
    return f"{words}{len(up)} port{'s' if len(up) > 1 else ''}", "ok"
