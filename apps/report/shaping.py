"""What is known, as a report: plain JSON values, secrets masked. Pure; the same `Known`, the same report.

Times are ISO 8601 in UTC, ages seconds, sizes bytes; unknown is None. `left_out` says in sentences what did not find room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from apps.diagnosis.findings import findings
from apps.diagnosis.findings.finding import Finding
from apps.diagnosis.masking import mask_text
from apps.diagnosis.reasons import REASONS
from apps.facts.sheet import Sheet
from apps.report import files
from apps.report.known import Decision, Known, KnownDeployment, KnownNode, Launched

FORMAT, VERSION = "sparkweb-report", 1
OWN_WORDS = ("means", "remedy")  # out of our tables: they may speak of --api-key
OLD_S = 86_400  # facts older than this are an open problem
TROUBLE = ("failed", "lost", "degraded", "unreachable")
GIB = 1 << 30
MOST_CLEARED = 20
MOST_NAMED = 5  # findings of one kind of which the sentence is kept


def report(known: Known) -> dict[str, Any]:
    """The whole report."""
    sheets = {node.name: node.sheet for node in known.nodes if node.sheet is not None}
    found = _findings(known, sheets)
    body = {
        "format": FORMAT,
        "version": VERSION,
        "made": _time(known.made),
        "scope": "deployment" if known.name else "fleet",
        "name": known.name or None,
        "summary": _summary(known),
        "deployments": [_deployment(one, known, sheets) for one in known.deployments],
        "nodes": [_node(one, known.made) for one in known.nodes],
        "problems": [*_problems(known), *_grouped(one for one in found if one.severity == "bad")],
        "limitations": [
            *(limit for one in known.deployments for limit in _limits(one)),
            *_grouped(one for one in found if one.severity != "bad"),
        ],
        "decisions": None if known.decisions is None else [_decision(one) for one in known.decisions],
        "left_out": list(_left_out(known)),
    }
    made = masked(body)
    assert isinstance(made, dict)
    return made


def masked(value: Any) -> Any:
    """The value with whatever looks like a secret masked in all its text. Sheets, specs and the trail are masked when they are
    made; this is for what those did not know to be one."""
    if isinstance(value, str):
        return mask_text(value) if len(value) > 5 else value
    if isinstance(value, dict):
        return {key: each if key in OWN_WORDS else masked(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    return value


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _summary(known: Known) -> list[str]:
    """What one reads first."""
    if known.name:
        one = known.deployments[0]
        words = [f"{one.name} is {one.state}{f': {_title(one.reason).lower()}' if one.reason else ''}."]
        return words + ([one.evidence] if one.evidence else [])
    states = Counter(one.state for one in known.deployments)
    away = [node.name for node in known.nodes if node.unreachable_since]
    more = f" ({len(known.deployments)} of them below)" if known.deployment_count > len(known.deployments) else ""
    said = [
        f"{known.deployment_count} deployments{more}: {_counted(states)}."
        if known.deployments
        else "There is no deployment yet."
    ]
    nodes = f"{known.node_count} node{'s' if known.node_count != 1 else ''}"
    silent = f"; {', '.join(away[:MOST_NAMED])} can't be reached" if away else ""
    said.append(f"{nodes}{silent}." if known.node_count else "There is no node yet.")
    return said


# Deployments


def _deployment(one: KnownDeployment, known: Known, sheets: Mapping[str, Sheet]) -> dict[str, Any]:
    launched = one.good or (one.last if one.last and one.last.state == "succeeded" else None)
    return {
        "id": one.id,
        "name": one.name,
        "url": f"/deployments/{one.id}",
        "state": one.state,
        "reason": one.reason or None,
        "said": one.evidence or None,
        "since": _time(one.since),
        "served_at": _time(one.served_at),
        "made_at": _time(one.created_at),
        "made_by": one.created_by or None,
        "recipe": one.recipe or None,
        "adopted": one.adopted,
        "nodes": list(one.body.get("nodes", ())),
        "services": list(_services(one, sheets, launched)),
        "ranks": [
            {
                "rank": rank.number,
                "service": rank.service or None,
                "node": rank.node,
                "state": rank.state,
                "container": rank.container or None,
                "unit": rank.unit or None,
                "job": rank.job or None,
                "revision": rank.revision,
                "run": rank.run,
            }
            for rank in one.ranks
        ],
        "revision": {
            "running": one.running,
            "newest": one.revisions[0].number if one.revisions else None,
            "history": [
                {"number": each.number, "made": _time(each.at), "by": each.by or None, "reason": each.reason or None}
                for each in one.revisions
            ],
        },
        "launch": _launch(launched),
        "settings": [
            {key: setting.get(key) for key in ("name", "effective", "yours", "source", "reason", "nodes")}
            for setting in (launched.settings if launched else ())
            if setting.get("reason")
        ],
        "benchmarks": [
            {
                "id": each.id,
                "name": each.name,
                "made": each.made or None,
                "good": each.good,
                "levels": [
                    {"concurrency": at, "aggregate_tok_s": total, "ttft_s": first} for at, total, first in each.levels
                ],
                "against": each.against or None,
                "worse": list(each.worse),
            }
            for each in one.benchmarks
        ],
        "flags": [{"words": words, "said": said, "since": since or None} for words, said, since in one.flags],
        "when_lost": {"policy": one.policy, "other_ranks": one.on_rank_lost, "robot": one.robot or None},
        "may_be_cleared": list(one.consents),
        "active_run": one.active_run,
    }


def _services(one: KnownDeployment, sheets: Mapping[str, Sheet], launched: Launched | None) -> Iterator[dict[str, Any]]:
    states = {row["service"]: row for row in one.services}
    answers = {each.service: each for each in one.answers}
    for body in (one.body, *one.body.get("services", ())):
        name = str(body.get("service") or "")
        reached = answers.get(name)
        nodes = list(body.get("nodes") or one.body.get("nodes", ()))
        yield {
            "service": name or None,
            "kind": body.get("kind") or "chat",
            "state": states.get(name, {}).get("state", one.state),
            "model": body.get("model"),
            "model_path": body.get("model_path") or None,
            "served_as": body.get("served_model_name") or body.get("model"),
            "engine": body.get("engine"),
            "runtime": body.get("runtime"),
            "cluster": body.get("cluster"),
            "image": body.get("image") or None,
            "executable": body.get("executable") or None,
            "tensor_parallel": body.get("tensor_parallel"),
            "gpu_memory_utilization": body.get("gpu_memory_utilization"),
            "max_model_len": body.get("max_model_len"),
            "port": body.get("port"),
            "arguments": " ".join(map(str, body.get("arguments") or ())) or None,
            "environment": [f"{pair[0]}={pair[1]}" for pair in body.get("environment") or () if len(pair) == 2],
            "secrets": [str(each.get("name", "")) for each in body.get("secrets") or () if isinstance(each, dict)],
            "nodes": nodes,
            "endpoint": None
            if reached is None
            else {
                "url": reached.url,
                "node": reached.node,
                "tunnel": reached.tunnel or None,
                "why": reached.why or None,
            },
            "versions": _versions(body, [sheets[node] for node in nodes if node in sheets], launched, name),
            "proof": _proof(launched, name),
        }


def _versions(body: Mapping[str, Any], sheets: Sequence[Sheet], launched: Launched | None, name: str) -> dict[str, Any]:
    """Of the engine as it said itself, and of what its image holds by the nodes' sheets."""
    found: dict[str, Any] = {}
    image = str(body.get("image") or "")
    for sheet in sheets:
        ids = {each.id for each in sheet.images or () if each.ref == image and each.id}
        for software in sheet.software or ():
            if image and (software.where == f"image:{image}" or (software.image_id and software.image_id in ids)):
                found |= {key: value for key, value in software.versions.items() if key not in found}
    if launched and not name and launched.facts.get("version"):
        found[str(body.get("engine") or "engine")] = launched.facts["version"]
    return dict(sorted(found.items()))


def _proof(launched: Launched | None, name: str) -> dict[str, Any] | None:
    """What the first real request showed."""
    said = (launched.outcome.get(f"smoke:{name}" if name else "smoke") or {}) if launched else {}
    return {key: said[key] for key in ("verdict", "said", "detail", "warning", "seconds") if said.get(key)} or None


def _launch(launched: Launched | None) -> dict[str, Any] | None:
    """The last launch that served."""
    if launched is None:
        return None
    told = {
        key: launched.facts[key] for key in ("version", "transport", "kv_tokens", "kv_gib") if launched.facts.get(key)
    }
    return {
        "run": launched.id,
        "story": launched.story,
        "by": launched.by,
        "reason": launched.why or None,
        "ended": _time(launched.ended_at),
        "said": told,
    }


# Nodes


def _node(one: KnownNode, made: datetime) -> dict[str, Any]:
    sheet = one.sheet
    return {
        "id": one.id,
        "name": one.name,
        "url": f"/nodes/{one.id}",
        "state": "unreachable" if one.unreachable_since else one.state,
        "address": one.address,
        "port": one.port,
        "user": one.user,
        "via": one.via or None,
        "seen_at": _time(one.seen_at),
        "unreachable_since": _time(one.unreachable_since),
        "facts": None
        if sheet is None
        else {
            "taken_at": _time(datetime.fromtimestamp(sheet.taken_at, UTC)),
            "age_s": max(0, round(made.timestamp() - sheet.taken_at)),
            "rows": [{"name": name, "value": value} for name, value in _facts(sheet) if value],
        },
        "files": files.of_node(one),
        "jobs": {"shown": len(one.jobs), "all": one.job_count},
    }


def _facts(sheet: Sheet) -> Iterator[tuple[str, str]]:
    """What matters of a machine, in words; what was not read is left out."""
    machine, memory, gpus = sheet.machine, sheet.memory, sheet.gpus
    if machine:
        yield "Machine", " · ".join(filter(None, (machine.model, machine.arch)))
        yield "System", " · ".join(filter(None, (machine.os, machine.kernel and f"kernel {machine.kernel}")))
        yield "Boot id", machine.boot_id or ""
    if memory and memory.total_bytes is not None:
        free = "" if memory.available_bytes is None else f", {memory.available_bytes / GIB:.1f} GiB available"
        yield "Memory", f"{memory.total_bytes / GIB:.1f} GiB{free}"
    if gpus:
        names = Counter(gpu.name or "unknown" for gpu in gpus.gpus)
        yield "GPU", ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items())
        yield "Driver", " · ".join(filter(None, (gpus.driver, gpus.cuda and f"CUDA {gpus.cuda}")))
    if sheet.docker:
        yield "Docker", sheet.docker.server_version or ("not installed" if not sheet.docker.present else "")
    root = next((disk for disk in sheet.disks or () if disk.mount == "/"), None)
    if root and root.available_bytes is not None:
        yield "Disk /", f"{root.available_bytes / GIB:.0f} GiB free of {(root.size_bytes or 0) / GIB:.0f} GiB"
    addresses = [
        f"{one.ip} ({interface.name})"
        for interface in sheet.interfaces or ()
        if interface.role == "fabric"
        for one in interface.addresses
        if one.family == "inet"
    ]
    yield "Fabric", ", ".join(addresses)
    if sheet.internet is not None:
        yield "Internet", "yes" if sheet.internet else "no"


# What is wrong


def _findings(known: Known, sheets: Mapping[str, Sheet]) -> list[Finding]:
    """Of one deployment what matters for its spec, of a fleet what is wrong with each of its nodes by itself."""
    if known.name:
        return list(findings(sheets, spec=known.deployments[0].body))
    return [one for name in sorted(sheets) for one in findings({name: sheets[name]})]


def _grouped(found: Iterable[Finding]) -> list[dict[str, Any]]:
    """One row a kind of finding, with all nodes that it is about and the first of its sentences."""
    rows: dict[str, dict[str, Any]] = {}
    for one in found:
        row = rows.setdefault(
            one.name,
            {
                "what": one.name,
                "severity": one.severity,
                "title": one.title,
                "deployment": None,
                "nodes": [],
                "said": [],
                "means": one.meaning,
                "remedy": one.remedy,
            },
        )
        row["nodes"] += [node for node in one.nodes if node not in row["nodes"]]
        if len(row["said"]) < MOST_NAMED and one.sentence not in row["said"]:
            row["said"].append(one.sentence)
    return list(rows.values())


def _row(
    what: str, title: str, said: str, *, severity: str, remedy: str = "", deployment: str | None = None, node: str = ""
) -> dict[str, Any]:
    return {
        "what": what,
        "severity": severity,
        "title": title,
        "deployment": deployment,
        "nodes": [node] if node else [],
        "said": [said] if said else [],
        "means": "",
        "remedy": remedy,
    }


def _title(reason: str) -> str:
    known = REASONS.get(reason.partition(":")[0])
    return known.title if known else reason.replace("_", " ").capitalize()


def _remedy(reason: str) -> str:
    known = REASONS.get(reason.partition(":")[0])
    return known.remedy if known else ""


def _problems(known: Known) -> Iterator[dict[str, Any]]:
    for alarm in known.alarms:
        yield _row("alarm", "The control plane itself", alarm, severity="bad")
    for one in known.deployments:
        yield from _of_deployment(one)
    for node in known.nodes:
        yield from _of_node(node, known.made)
    for name in dict.fromkeys(name for name, _ in known.cleared):
        things = [what for node_name, what in known.cleared if node_name == name]
        more = f" and {len(things) - MOST_CLEARED} more" if len(things) > MOST_CLEARED else ""
        yield _row(
            "cleared",
            f"Services of before wait on {name}",
            f"Stopped by our runs and not put back: {', '.join(things[:MOST_CLEARED])}{more}.",
            severity="note",
            remedy="Restore previous services puts them back.",
            node=name,
        )


def _of_deployment(one: KnownDeployment) -> Iterator[dict[str, Any]]:
    if one.state in TROUBLE:
        title = f"{one.name} is {one.state}" + (f": {_title(one.reason).lower()}" if one.reason else "")
        yield _row(
            one.reason or one.state,
            title,
            one.evidence,
            severity="bad",
            remedy=_remedy(one.reason),
            deployment=one.name,
        )
    elif one.last and one.last.state in ("failed", "interrupted"):
        title = f"The last {one.last.story} of {one.name} {one.last.state}, run {one.last.id}"
        reason = one.last.reason
        yield _row(
            reason or "failed", title, one.last.evidence, severity="warn", remedy=_remedy(reason), deployment=one.name
        )
    for words, said, _ in one.flags:
        yield _row("flag", f"{one.name} is {words}", said, severity="warn", deployment=one.name)
    newest = one.benchmarks[0] if one.benchmarks else None
    if newest and newest.worse:
        said = f"{newest.name} against {newest.against}: {'; '.join(newest.worse)}."
        yield _row("slower", f"{one.name} is slower than it was", said, severity="warn", deployment=one.name)
    if one.robot and one.state in TROUBLE:
        yield _row("robot", f"What the robot does about {one.name}", one.robot, severity="note", deployment=one.name)
    if one.running is not None and one.revisions and one.running != one.revisions[0].number:
        said = f"Revision {one.running} runs, {one.revisions[0].number} is wanted."
        yield _row(
            "not_newest",
            f"{one.name} runs an older revision",
            said,
            severity="note",
            remedy="Relaunch it to bring the newest up.",
            deployment=one.name,
        )


def _of_node(node: KnownNode, made: datetime) -> Iterator[dict[str, Any]]:
    if node.unreachable_since:
        yield _row(
            node.unreachable_reason or "unreachable",
            f"{node.name} can't be reached: {_title(node.unreachable_reason).lower()}",
            f"{node.unreachable_evidence} Since {_time(node.unreachable_since)}.".strip(),
            severity="bad",
            remedy=_remedy(node.unreachable_reason),
            node=node.name,
        )
    if node.state == "stopped":
        said = "Its host key changed; nothing is done there until an admin settles it."
        yield _row("host_key_changed", f"{node.name} is stopped", said, severity="bad", node=node.name)
    if node.state == "unconfirmed":
        said = "Nobody has confirmed its host key yet."
        yield _row("unconfirmed", f"{node.name} is not confirmed", said, severity="warn", node=node.name)
    if node.sheet is None:
        yield _row(
            "no_facts",
            f"Nothing is known of {node.name}",
            "It has never been probed.",
            severity="warn",
            remedy="Probe it.",
            node=node.name,
        )
        return
    age = made.timestamp() - node.sheet.taken_at
    if age > OLD_S:
        said = f"They are {age / 86_400:.0f} days old: what stands here may no longer be so."
        yield _row(
            "old_facts",
            f"The facts of {node.name} are old",
            said,
            severity="warn",
            remedy="Probe it again.",
            node=node.name,
        )
    machine = node.sheet.machine
    if machine and machine.boot_id and node.boot_id and machine.boot_id != node.boot_id:
        said = "What stands here of its containers, units and memory is of before."
        yield _row(
            "rebooted",
            f"{node.name} was rebooted after its facts were taken",
            said,
            severity="warn",
            remedy="Probe it again.",
            node=node.name,
        )


def _limits(one: KnownDeployment) -> Iterator[dict[str, Any]]:
    """What a deployment does not do, by how it was made."""
    if one.adopted:
        said = "It is watched as it was found; what brings it back is its own unit or restart policy."
        yield _row(
            "adopted",
            f"{one.name} is not ours to change",
            said,
            severity="note",
            remedy="Take it over to stop and launch it from here.",
            deployment=one.name,
        )
    elif one.policy == "manual" and one.state in ("serving", "degraded"):
        said = "No robot relaunches it: after a reboot it stays away until a person presses Relaunch."
        yield _row("manual", f"{one.name} does not come back by itself", said, severity="note", deployment=one.name)
    for each in one.answers:
        if each.tunnel:
            of = f"{one.name}, {each.service}" if each.service else one.name
            yield _row(
                "behind_a_tunnel",
                f"The API of {of} is reached on {each.node} only",
                f"{each.why[:1].upper()}{each.why[1:]}. From elsewhere: {each.tunnel}",
                severity="note",
                deployment=one.name,
            )


# The rest


def _decision(one: Decision) -> dict[str, Any]:
    return {
        "entry": one.entry,
        "time": _time(one.at),
        "by": one.by,
        "role": one.role or None,
        "act": one.act,
        "object": {"type": one.object_type, "id": one.object_id, "name": one.object_name},
        "outcome": one.outcome,
        "reason": one.reason,
        "run": one.run,
    }


def _left_out(known: Known) -> Iterator[str]:
    if known.deployment_count > len(known.deployments):
        yield (
            f"{known.deployment_count - len(known.deployments)} of {known.deployment_count} deployments: those in trouble "
            "come first, each has a report of its own."
        )
    if known.node_count > len(known.nodes):
        yield (
            f"{known.node_count - len(known.nodes)} of {known.node_count} nodes: those that can't be reached or are used come "
            "first; the report of a deployment has all of its nodes."
        )
    if known.decisions is None:
        yield "Decisions: they come from the audit trail, which your role does not show."
    elif known.decision_count > len(known.decisions):
        yield (
            f"{known.decision_count - len(known.decisions)} older decisions of {known.decision_count}: the audit trail has all."
        )
    for one in known.deployments:
        if one.revision_count > len(one.revisions):
            yield f"{one.revision_count - len(one.revisions)} older revisions of {one.name}."
