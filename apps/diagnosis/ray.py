"""`ray status` and what Ray says when something is wrong. Ray's "GB" are GiB."""

from __future__ import annotations

import re
from typing import Any

from apps.diagnosis.alike import Found
from apps.diagnosis.book import Act, Rule
from apps.diagnosis.signs import EFFECT, Sign
from apps.diagnosis.story import Line, Story

_SECTIONS = {
    "Active": "active",
    "Healthy": "active",
    "Idle": "idle",
    "Pending": "pending",
    "Recent failures": "failures",
    "Total Usage": "usage",
    "Usage": "usage",
    "Demands": "demands",
    "Pending Demands": "demands",
    "From request_resources": "requests",
    "Total Demands": "demands",
}
MOST_DEMANDS = 50


def _rule(trigger: str, pattern: str, act: Act, votes: int = 2) -> Rule:
    return Rule("ray", trigger, re.compile(pattern), act, votes)


def _begins(story: Story, match: Found, line: Line) -> None:
    story.fact(active=0, pending=0, failures=0, demands=[])
    story.marks["ray_section"] = ""
    story.milestone("ray_status", line)


def _section(story: Story, match: Found, line: Line) -> None:
    if "ray_section" in story.marks:
        name = _SECTIONS[match["name"]]
        story.marks["ray_section"] = name
        if name == "idle":
            story.first(idle=0)


def _one_node(story: Story, match: Found, line: Line) -> None:
    if "ray_section" in story.marks:
        story.marks["ray_section"] = "node"


def _nodes(story: Story, match: Found, line: Line) -> None:
    section = story.marks.get("ray_section")
    if section in ("active", "idle"):
        story.facts[section] = story.facts.get(section, 0) + int(match["count"])


def _launching(story: Story, match: Found, line: Line) -> None:
    if story.marks.get("ray_section") == "pending":
        story.fact(pending=story.facts.get("pending", 0) + int(match["count"] or 1))


def _failure(story: Story, match: Found, line: Line) -> None:
    if story.marks.get("ray_section") == "failures":
        story.fact(failures=story.facts.get("failures", 0) + 1)


def _gpu(story: Story, match: Found, line: Line) -> None:
    if story.marks.get("ray_section") != "usage":
        return  # -v repeats the usage node by node
    values: dict[str, Any] = {"gpu_used": float(match["used"]), "gpu_total": float(match["total"])}
    if match["inside"]:
        values["gpu_in_pg"] = float(match["inside"])
    story.fact(**values)
    story.fact(
        gpu_free=values["gpu_total"] - values["gpu_used"],
        alive=story.facts.get("active", 0) + story.facts.get("idle", 0),
    )


def _demand(story: Story, match: Found, line: Line) -> None:
    demands = story.facts.setdefault("demands", [])
    if story.marks.get("ray_section") == "demands" and len(demands) < MOST_DEMANDS:
        demands.append({"shape": match["shape"], "count": int(match["count"])})


def _versions(story: Story, match: Found, line: Line) -> None:
    """Two pairs follow a version mismatch: the cluster's, then this process's."""
    if "ray_pairs" not in story.marks:
        return
    side = story.marks["ray_pairs"]
    pair = story.facts.setdefault(side, [])
    if len(pair) < 2:
        pair.append(match["version"])
    head, node = story.facts.get("head", []), story.facts.get("node", [])
    if len(head) == 2 and len(node) == 2:
        story.fact(
            differs="both" if head[0] != node[0] and head[1] != node[1] else "ray" if head[0] != node[0] else "python"
        )


def _mismatch(story: Story, match: Found, line: Line) -> None:
    story.marks["ray_pairs"] = "head"


def _this_process(story: Story, match: Found, line: Line) -> None:
    if "ray_pairs" in story.marks:
        story.marks["ray_pairs"] = "node"
        story.fact(node_address=match["node"])


def _kill(story: Story, match: Found, line: Line) -> None:
    kills = story.facts.setdefault("kills", [])
    found = match.groupdict()
    if len(kills) < MOST_DEMANDS:
        kill: dict[str, Any] = {"node": found["node"]}
        if found.get("used"):
            kill.update(used_gb=float(found["used"]), total_gb=float(found["total"]))
        kills.append(kill)


def _small_shm(story: Story, match: Found, line: Line) -> None:
    story.warn(
        "shm_small", "Shared memory is too small for Ray's object store, which uses the disk", line, severity="warning"
    )


def _list_begins(story: Story, match: Found, line: Line) -> None:
    story.fact(active=0, alive=0, dead=[])
    story.milestone("ray_nodes", line)


def _listed_node(story: Story, match: Found, line: Line) -> None:
    """`ray list nodes`: one row a node."""
    if match["state"] == "ALIVE":
        story.fact(active=story.facts.get("active", 0) + 1, alive=story.facts.get("alive", 0) + 1)
    elif len(story.facts.get("dead", [])) < MOST_DEMANDS:
        story.fact(dead=[*story.facts.get("dead", []), match["address"]])


def _listed_gpu(story: Story, match: Found, line: Line) -> None:
    if "dead" in story.facts:
        story.fact(gpu_total=story.facts.get("gpu_total", 0.0) + float(match["count"]))


def _joined(story: Story, match: Found, line: Line) -> None:
    story.milestone("ray_started", line)


RULES: tuple[Rule, ...] = (
    _rule("autoscaler", r"=+ Autoscaler status: ", _begins, 8),
    *(
        _rule(trigger, r"^(?P<name>" + re.escape(name) + r"):\s*$", _section, 1)
        for trigger, name in (
            ("active", "Active"),
            ("healthy", "Healthy"),
            ("idle", "Idle"),
            ("pending", "Pending"),
            ("failures", "Recent failures"),
            ("usage", "Total Usage"),
            ("usage", "Usage"),
            ("demands", "Pending Demands"),
            ("demands", "Demands"),
            ("demands", "Total Demands"),
            ("request_resources", "From request_resources"),
        )
    ),
    Rule("ray", " ", re.compile(r"^\s+(?P<count>\d{1,6}) (?P<name>[\w.:-]+)\s*$"), _nodes, 0),
    *(
        _rule(
            trigger,
            r"^\s+(?:\S+: )?\S+?[,:] (?:(?P<count>\d+) )?(?:" + state + r")\b",
            _launching,
        )
        for trigger, state in (
            ("launching", "launching"),
            ("setting", "setting-up"),
            ("waiting", "waiting-for-ssh"),
            ("uninitialized", "uninitialized"),
        )
    ),
    _rule("ip", r"^\s+\S+: \S+ \(ip: \S+\)", _failure),
    _rule(
        "gpu",
        r"^\s+(?P<used>[\d.]+)/(?P<total>[\d.]+) GPU(?: \((?P<inside>[\d.]+) used of [\d.]+ reserved in placement "
        r"groups\))?",
        _gpu,
    ),
    Rule("ray", " ", re.compile(r"^\s+(?P<shape>\{.{1,300}\}.*?): (?P<count>\d+)\+? (?:pending|from)"), _demand, 1),
    _rule("node", r"^Node: [0-9a-f]{8,}", _one_node, 1),
    _rule("mismatch", r"Version mismatch: The cluster was started with", _mismatch, 5),
    _rule("ray", r"^\s+Ray: (?P<version>\S+)", _versions),
    _rule("python", r"^\s+Python: (?P<version>\S+)", _versions),
    _rule("node", r"This process on node (?P<node>\S+) was started with", _this_process),
    _rule(
        "threshold",
        r"Memory on the node \(IP: (?P<node>[^,]+),.{0,400}?was (?P<used>[\d.]+)GB / (?P<total>[\d.]+)GB",
        _kill,
        5,
    ),
    _rule(
        "pressure", r"killed due to memory pressure \(OOM\),.{0,120}at node \(ID: \w+, IP: (?P<node>[^)]+)\)", _kill, 5
    ),
    _rule("ray", r"Ray runtime started\.", _joined, 4),
    _rule(
        "store",
        r"The object store is using /tmp instead of /dev/shm because /dev/shm has only (?P<shm_bytes>\d+) bytes",
        _small_shm,
    ),
    _rule("list", r"^=+ List: ", _list_begins, 5),
    *(
        _rule(
            state.lower(),
            r"^\s*\d+\s+[0-9a-f]{40,64}\s+(?P<address>\S+)\s+(?:True|False)\s+(?P<state>" + state + r")\b",
            _listed_node,
        )
        for state in ("ALIVE", "DEAD")
    ),
    _rule("gpu", r"^\s+GPU: (?P<count>[\d.]+)(?:\s|$)", _listed_gpu, 0),
    _rule("local", r"Local node IP: (?P<ip>\S+)", lambda story, match, line: story.fact(node_ip=match["ip"]), 2),
)

SIGNS: tuple[Sign, ...] = (
    Sign(
        "raylet",
        re.compile(r"\(raylet\).{0,200}?(?:terminated|marked dead|GCS.{0,40}unreachable)"),
        "ray_node_dead",
        EFFECT,
        kind="ray",
    ),
)
