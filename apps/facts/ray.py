"""`ray status` of every age."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from apps.facts.fact import Fact, fact
from apps.facts.quantities import decimal
from apps.facts.sheet import Evidence
from apps.facts.values import RayStatus

_SECTIONS = {
    "active": "active",
    "idle": "idle",
    "pending": "pending",
    "recent failures": "failures",
    "healthy": "active",
}
_RESOURCE = re.compile(
    r"^\s+([0-9.]+[KMGT]?i?B?)\s*/\s*([0-9.]+[KMGT]?i?B?)\s+(?:GiB )?(\S+)"
    r"(?:\s+\(([0-9.]+) used of ([0-9.]+) reserved in placement groups\))?"
)
_PER_NODE = re.compile(r"^Node: [0-9a-f]{8,}", re.MULTILINE)  # -v repeats the usage node by node
_LISTED = re.compile(r"^\s*\d{1,6}\s+([0-9a-f]{40,64})\s+(\S+)\s+(?:True|False)\s+(ALIVE|DEAD)\b", re.MULTILINE)
_LISTED_GPU = re.compile(r"\bGPU: ([0-9.]{1,12})\b")
_COUNTED = re.compile(r"^\s+(\d{1,6}) (\S+)")
_LAUNCHING = re.compile(
    r"^\s+(\S+?),\s+(?:(\d{1,6}) )?(launching|setting.up|pending|waiting\S*)|^\s+(\S+): \S+, (\d{1,6})? ?(launching|setting.up)"
)
_PROBLEMS = (
    (
        "no_ray_cluster",
        re.compile(
            r"Could not find any running Ray instance|Ray cluster is not found|Failed to connect to GCS|ConnectionError: [^\n]*GCS"
        ),
    ),
    (
        "ray_missing",
        re.compile(
            r"ray['\"]?: (?:command )?not found|No module named '?ray'?|exec: \"ray\": executable file not found"
        ),
    ),
    ("ray_local_instance", re.compile(r"Started a local Ray instance")),
    ("ray_version_mismatch", re.compile(r"Version mismatch: The cluster was started with")),
    ("ray_already_running", re.compile(r"Ray is trying to start at \S+?, but is already running")),
    ("ray_oom_killer", re.compile(r"killed due to memory pressure \(OOM\)|exceeds the memory usage threshold")),
    ("ray_node_dead", re.compile(r"has been marked dead|The actor died because its node has died")),
    ("ray_placement_wait", re.compile(r"Waiting for creating a placement group|Cannot provide a placement group")),
)
_MISMATCH = re.compile(
    r"cluster was started with:\s+Ray: (\S{1,40})\s+Python: (\S{1,40})\s+"
    r"This process on node (\S{1,80}) was started with:\s+Ray: (\S{1,40})\s+Python: (\S{1,40})"
)
_KILL = re.compile(
    r"Memory on the node \(IP: (?P<node>[^,\n]{1,80}),.{0,400}?was (?P<used>[\d.]{1,12})GB / (?P<total>[\d.]{1,12})GB"
    r"|memory pressure \(OOM\),.{0,120}?at node \(ID: \w+, IP: (?P<other>[^)\n]{1,80})\)"
)
_DEAD = re.compile(r"node id: \S{1,80} and address: (\S{1,80}) .{0,120}marked dead")


def status(text: str) -> RayStatus | None:
    """Counts of nodes and resources. The last status of the text, if there are several; None when there is none."""
    start = text.rfind("Autoscaler status")
    body = _PER_NODE.split(text[max(start, 0) :], maxsplit=1)[0]
    if "Node status" not in body and "Total Usage" not in body and "Usage:" not in body:
        return None
    counts: dict[str, int] = {}
    nodes: list[str] = []
    demands: list[str] = []
    resources: dict[str, tuple[str, str]] = {}
    reserved: float | None = None
    section = ""
    for line in body.splitlines():
        head = line.strip().rstrip(":").lower()
        if line and not line[0].isspace() and line.rstrip().endswith(":"):
            section = _SECTIONS.get(head, head)
            if section in {"active", "idle", "pending", "failures"}:
                counts.setdefault(section, 0)
            continue
        if not line.strip() or line.strip().startswith("(no ") or line.strip() == "(none)":
            continue
        if section in {"active", "idle"} and (found := _COUNTED.match(line)):
            counts[section] += int(found.group(1))
            nodes.append(found.group(2))
        elif section == "pending" and line[0].isspace():
            waiting = re.search(r"(\d{1,6}) (?:launching|setting)", line)
            counts[section] += int(waiting.group(1)) if waiting else 1
        elif section == "failures" and line[0].isspace():
            counts[section] += 1
        elif section.endswith("usage") and (row := _RESOURCE.match(line)):
            resources[row.group(3)] = (row.group(1), row.group(2))
            if row.group(3) == "GPU" and row.group(5):
                reserved = decimal(row.group(5))
        elif section.endswith("demands") and line[0].isspace():
            demands.append(line.strip()[:400])
    used, total = resources.get("GPU", (None, None))
    return RayStatus(
        active=counts.get("active"),
        idle=counts.get("idle"),
        pending=counts.get("pending"),
        failures=counts.get("failures"),
        gpu_used=decimal(used),
        gpu_total=decimal(total),
        gpu_in_pg=reserved,
        demands=tuple(demands[:200]),
        nodes=tuple(nodes[:1000]),
        resources=resources,
    )


def listed(text: str) -> dict[str, Any]:
    """`ray list nodes`: who lives, who died, and the GPUs of the living; {} for other text."""
    rows = list(_LISTED.finditer(text))
    if not rows:
        return {}
    ends = [row.start() for row in rows[1:]] + [len(text)]
    living = [(row, end) for row, end in zip(rows, ends, strict=True) if row.group(3) == "ALIVE"]
    gpus = [_LISTED_GPU.search(text, row.start(), end) for row, end in living]
    return {
        "active": len(living),
        "alive": len(living),
        "nodes": [row.group(2) for row, _ in living][:1000],
        "dead": [row.group(2) for row in rows if row.group(3) == "DEAD"][:1000],
        "gpu_total": sum(decimal(found.group(1)) or 0.0 for found in gpus if found),
    }


def said(text: str) -> dict[str, Any]:
    """What Ray says when something is wrong: versions that differ, workers that were killed (its GB are GiB), a dead node."""
    told: dict[str, Any] = {}
    versions = _MISMATCH.search(text)
    if versions:
        head, node = [versions.group(1), versions.group(2)], [versions.group(4), versions.group(5)]
        both = head[0] != node[0] and head[1] != node[1]
        told |= {"head": head, "node": node, "node_address": versions.group(3)}
        told["differs"] = "both" if both else "ray" if head[0] != node[0] else "python"
    kills = [
        {"node": found["node"], "used_gb": decimal(found["used"]), "total_gb": decimal(found["total"])}
        if found["node"]
        else {"node": found["other"]}
        for found in _KILL.finditer(text)
    ]
    if kills:
        told["kills"] = kills[:50]
    dead = _DEAD.search(text)
    return told | ({"dead_node": dead.group(1)} if dead else {})


def problem(evidence: Evidence) -> str | None:
    text = evidence.stderr + "\n" + evidence.stdout
    return next(
        (reason for reason, pattern in _PROBLEMS if pattern.search(text)),
        "ray_missing" if evidence.exit_code == 127 else None,
    )


def describe(evidence: Evidence) -> dict[str, Any]:
    """The names of the cases; `alive` is active and idle together."""
    found = status(evidence.stdout)
    if found is None or not found.problem:
        found = replace(found or RayStatus(), problem=problem(evidence))
    return {
        "active": found.active,
        "idle": found.idle,
        "alive": found.alive,
        "pending": found.pending,
        "failures": found.failures,
        "gpu_used": found.gpu_used,
        "gpu_total": found.gpu_total,
        "gpu_in_pg": found.gpu_in_pg,
        "demands": list(found.demands),
        "nodes": list(found.nodes),
        "resources": {name: list(pair) for name, pair in found.resources.items()},
        "problem": found.problem,
        **listed(evidence.stdout),
        **said(evidence.stdout + evidence.stderr),
    }


@fact
class RayFact(Fact):
    """The Ray cluster that this login can see; usually asked inside a container by those who know its name."""

    name = "ray"
    reads = "ray status"
    timeout_s = 15
    script = "ray status"

    @classmethod
    def parse(cls, evidence: Evidence) -> RayStatus | None:
        found = status(evidence.stdout)
        if found is not None:
            return found
        reason = problem(evidence)
        return RayStatus(problem=reason) if reason else None
