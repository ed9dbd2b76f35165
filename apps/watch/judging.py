"""From what was seen to what it means: the state of a deployment since its last good launch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from apps.facts.values import Container, ContainerEvent, EngineApi, GpuProcess, Interface, Listener, Unit

GIB = 1 << 30
FROM_OUTSIDE = (137, 143)  # exit codes of docker kill and docker stop
SURE = 2  # looks that must agree before an alarm, where one look could be wrong


@dataclass(frozen=True)
class RankWanted:
    number: int
    node: str
    container: str  # "" for a plain process
    boot_id: str  # of the node when it was launched
    job_id: str = (
        ""  # where the engine is a detached job of ours: a plain process, or `vllm serve` beside Ray's container
    )
    service: str = ""  # whose rank it is
    label: str = ""  # what people call that service
    unit: str = ""  # where it was found as a unit's own process
    healthy: bool = False  # Docker's own health check of its container is believed


@dataclass(frozen=True)
class NodeSeen:
    """One look at a node; `reason` is set when it did not answer."""

    node: str
    at: float  # unix seconds
    reason: str = ""
    evidence: str = ""
    hop: str = ""  # whose door it was that did not answer: the node's own, or its jump host's
    boot_id: str = ""
    uptime_s: float | None = None
    containers: tuple[Container, ...] | None = None
    units: tuple[Unit, ...] | None = None
    processes: tuple[GpuProcess, ...] = ()
    job_states: Mapping[str, str] | None = None  # job id -> state, of the detached jobs that are engines
    memory: Mapping[str, Any] | None = None
    gpus: Sequence[Mapping[str, Any]] = ()
    driver: str | None = None
    gpu_problem: str = ""  # the line that proves that the GPU can't be used
    docker_problem: str = ""  # likewise, of Docker
    apis: tuple[EngineApi, ...] | None = None
    events: tuple[ContainerEvent, ...] = ()  # of containers that are missed
    listeners: tuple[Listener, ...] | None = None
    interfaces: tuple[Interface, ...] | None = None
    fabric: frozenset[str] = frozenset()  # names of its fabric interfaces, by the last sheet


@dataclass(frozen=True)
class Conclusion:
    state: str  # serving, degraded, lost, unreachable
    reason: str | None
    evidence: str
    sure: bool = True  # False: one more look before it is believed
    services: Mapping[str, Conclusion] = field(default_factory=dict)  # of a deployment of several, each one's own
    left: bool = False  # some of its ranks are up still, although it does not serve

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"state": self.state, "reason": self.reason, "evidence": self.evidence}
        said |= {"left": True} if self.left else {}
        return said | (
            {"services": {name: one.to_json() for name, one in self.services.items()}} if self.services else {}
        )


def judge(ranks: Sequence[RankWanted], seen: Mapping[str, NodeSeen]) -> Conclusion:
    """The worst thing that is true of all services together. Where some serve and others do not, it is degraded and the evidence
    names both."""
    by_service: dict[str, list[RankWanted]] = {}
    for rank in ranks:
        by_service.setdefault(rank.service, []).append(rank)
    if len(by_service) < 2:
        return _judge_one(ranks, seen, ranks)
    each = {service: _judge_one(own, seen, ranks) for service, own in by_service.items()}
    labels = {service: own[0].label or service for service, own in by_service.items()}
    return replace(_together(ranks, seen, each, labels), services=each)


def _together(
    ranks: Sequence[RankWanted], seen: Mapping[str, NodeSeen], each: Mapping[str, Conclusion], labels: Mapping[str, str]
) -> Conclusion:
    states = {one.state for one in each.values()}
    if len(states) == 1 and states <= {"serving", "unreachable"}:
        return next(iter(each.values()))
    if states == {"lost"}:
        return _judge_one(ranks, seen, ranks)
    wrong = {service: one for service, one in each.items() if one.state in ("lost", "degraded")}
    if not wrong:
        return next(one for one in each.values() if one.state == "unreachable")
    serving = [labels[service] for service, one in each.items() if one.state == "serving"]
    said = [f"{labels[service]}: {one.evidence}" for service, one in wrong.items()]
    if serving:
        said.append(f"{listed(serving)} {'serves' if len(serving) == 1 else 'serve'} on.")
    reasons = {one.reason for one in wrong.values()}
    reason = "busy_or_hung" if reasons == {"busy_or_hung"} else "rank_lost"
    return Conclusion("degraded", reason, " ".join(said), sure=all(one.sure for one in wrong.values()))


def _judge_one(ranks: Sequence[RankWanted], seen: Mapping[str, NodeSeen], everyone: Sequence[RankWanted]) -> Conclusion:
    """Of one service, by fixed priority: rebooted or replaced, vanished, a lost rank, unreachable, unhealthy, serving."""
    gone = [rank for rank in ranks if _gone(rank, seen.get(rank.node))]
    rebooted = [rank for rank in gone if _rebooted(rank, seen[rank.node])]
    if rebooted:
        return replace(_after_reboot(ranks, rebooted, seen, everyone), left=len(gone) < len(ranks))
    if gone:
        return replace(_without_reboot(ranks, gone, seen, everyone), left=len(gone) < len(ranks))
    away = [seen[rank.node] for rank in ranks if rank.node in seen and seen[rank.node].reason]
    if away:
        return Conclusion("unreachable", away[0].reason, _out_of_sight(away), sure=False)
    sick = [
        rank for rank in ranks if rank.healthy and rank.node in seen and _health(rank, seen[rank.node]) == "unhealthy"
    ]
    if sick:
        return Conclusion(
            "degraded", "busy_or_hung", f"Docker's health check calls {_containers(sick)} unhealthy.", sure=False
        )
    return Conclusion("serving", None, "")


def _out_of_sight(away: Sequence[NodeSeen]) -> str:
    """A node that did not answer and one that is only hidden behind its jump host are different troubles."""
    first = away[0]
    evidence = first.evidence.strip()[:200] or first.reason
    hidden = sorted({one.node for one in away if one.hop and one.hop != one.node})
    silent = sorted({one.node for one in away} - set(hidden))
    if hidden and not silent:
        hops = listed(sorted({one.hop for one in away}))
        are = "is" if len(hidden) == 1 else "are"
        return f"{listed(hidden)} {are} out of sight: the jump host {hops} did not let us through: {evidence}."
    return f"{listed(sorted({one.node for one in away}))} did not answer: {evidence}."


def _health(rank: RankWanted, node: NodeSeen) -> str:
    return next((c.health or "" for c in node.containers or () if c.name == rank.container), "")


def _gone(rank: RankWanted, node: NodeSeen | None) -> bool:
    if node is None or node.reason:
        return False
    if rank.job_id and (node.job_states or {}).get(rank.job_id) in ("exited", "lost", "missing"):
        return True  # over Ray the container stays up without the engine
    if rank.unit and not rank.container:
        return node.units is not None and not any(
            unit.name == rank.unit and unit.active in ("active", "reloading") for unit in node.units
        )
    return bool(rank.container) and node.containers is not None and not _stands(rank, node)


def _stands(rank: RankWanted, node: NodeSeen) -> bool:
    """Whether its container is up."""
    return any(c.name == rank.container and c.state in ("running", "paused") for c in node.containers or ())


def _rebooted(rank: RankWanted, node: NodeSeen) -> bool:
    return bool(rank.boot_id and node.boot_id and rank.boot_id != node.boot_id)


def _after_reboot(
    ranks: Sequence[RankWanted],
    rebooted: Sequence[RankWanted],
    seen: Mapping[str, NodeSeen],
    everyone: Sequence[RankWanted],
) -> Conclusion:
    nodes = sorted({rank.node for rank in rebooted}, key=[rank.node for rank in ranks].index)
    everybody = len({rank.node for rank in ranks})
    who = (
        "Both nodes" if len(nodes) == everybody == 2 else "All nodes" if len(nodes) == everybody > 2 else listed(nodes)
    )
    uptimes = [seen[name].uptime_s for name in nodes]
    known = [uptime for uptime in uptimes if uptime is not None]
    when = f" {_ago(max(known))}" if known else ""
    replaced = [sentence for name in nodes if (sentence := _replacement(seen[name], everyone))]
    if replaced:
        return Conclusion("lost", "replaced", f"{who} rebooted{when}. {' '.join(replaced)}")
    return Conclusion("lost", "rebooted", f"{who} rebooted{when}; {_containers(rebooted)} did not come back.")


def _without_reboot(
    ranks: Sequence[RankWanted],
    gone: Sequence[RankWanted],
    seen: Mapping[str, NodeSeen],
    everyone: Sequence[RankWanted],
) -> Conclusion:
    replaced = [
        sentence
        for name in sorted({r.node for r in gone})
        if (sentence := _replacement(seen[name], everyone, need_unit=True))
    ]
    emptied = [rank for rank in gone if _stands(rank, seen[rank.node])]
    if len(gone) == len(ranks) and not emptied:
        if replaced:
            return Conclusion(
                "lost", "replaced", f"{_containers(gone)} gone without a reboot. {' '.join(replaced)}", sure=False
            )
        told = "".join(f" {one}" for rank in gone if (one := _told_by_docker(rank, seen[rank.node])))
        ends = "; ".join(end for rank in gone if (end := _end_of(rank, seen[rank.node], rank.container)))
        told += f" How they ended: {ends}." if ends else ""
        return Conclusion("lost", "vanished", f"{_containers(gone)} gone without a reboot.{told}", sure=False)
    away = [rank for rank in gone if rank not in emptied]
    said = [f"{_numbered(away)} {'is' if len(away) == 1 else 'are'} gone{_how(away, seen)}"] if away else []
    said += [f"the engine of {_numbered([rank])} ended, its container is still up" for rank in emptied]
    return Conclusion("degraded", "rank_lost", f"{listed(said)}; one dead rank is a dead service.", sure=False)


def _how(ranks: Sequence[RankWanted], seen: Mapping[str, NodeSeen]) -> str:
    """` (its container was stopped or killed from outside, exit code 137)`: of one rank, by its container or what Docker tells."""
    if len(ranks) != 1 or not ranks[0].container:
        return ""
    end = _end_of(ranks[0], seen[ranks[0].node], "its container")
    told = end or _told_by_docker(ranks[0], seen[ranks[0].node]).rstrip(".")
    return f" ({told})" if told else ""


def _end_of(rank: RankWanted, node: NodeSeen, subject: str) -> str:
    """How the rank's container, called `subject`, ended; empty when it is not there to tell."""
    found = next((c for c in node.containers or () if c.name == rank.container), None) if rank.container else None
    if found is None or found.state not in ("exited", "dead") or found.exit_code is None:
        return ""
    if found.exit_code in FROM_OUTSIDE:
        return f"{subject} was stopped or killed from outside, exit code {found.exit_code}"
    return f"{'Ray in ' if rank.job_id else ''}{subject} ended with exit code {found.exit_code}"


def _told_by_docker(rank: RankWanted, node: NodeSeen) -> str:
    """What `docker events` remembers of a container that is gone. Docker does not say which person it was."""
    mine = [one for one in node.events if one.name == rank.container]
    signal = next((one.signal for one in mine if one.action == "kill" and one.signal), None)
    died = next((one for one in mine if one.action == "die"), None)
    removed = next((one for one in mine if one.action == "destroy"), None)
    killed = any(one.action == "oom" for one in mine)
    said = []
    if killed:
        said.append("it ran out of memory")
    if signal is not None:
        said.append(f"somebody had it stopped with signal {signal}")
    if died is not None:
        code = "" if died.exit_code is None else f" with exit code {died.exit_code}"
        said.append(
            f"it ended{code} at {_clock(died.at)}" if signal is None else f"it ended at {_clock(died.at)}{code}"
        )
    if removed is not None:
        said.append(f"it was removed at {_clock(removed.at)}")
    return f"Docker on {node.node} tells of {rank.container}: {listed(said)}." if said else ""


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")


def _numbered(ranks: Sequence[RankWanted]) -> str:
    return listed([f"rank {rank.number} on {rank.node}" for rank in ranks])


def _replacement(node: NodeSeen, ranks: Sequence[RankWanted], *, need_unit: bool = False) -> str:
    """One sentence on what runs there instead, and who started it."""
    ours = {rank.container for rank in ranks}
    others = [c for c in node.containers or () if c.state == "running" and c.name not in ours]
    if not others:
        return ""
    starters = [u for u in node.units or () if u.active == "active" and set(u.containers) & {c.name for c in others}]
    if need_unit and not starters:
        return ""
    # One unit may start others through dependencies: named is what its own commands name.
    started = [c.name for c in others if any(c.name in unit.containers for unit in starters)]
    alone = [c.name for c in others if c.name not in started]
    said = [f"{listed(sorted(unit.name for unit in starters))} started {listed(started)}"] if started else []
    if alone:
        runs = "runs" if len(alone) == 1 else "run"
        said.append(f"{listed(alone)} {runs} there {'too' if started else 'now'}")
    by = listed(said)
    held = sum((process.mib or 0) for process in node.processes) / 1024
    memory = f", holding {held:.0f} GiB" if held >= 1 else ""
    return f"On {node.node}, {by}{memory}."


def _containers(ranks: Sequence[RankWanted]) -> str:
    return listed([f"{rank.container or rank.unit or 'the engine process'} on {rank.node}" for rank in ranks])


def listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _ago(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s ago"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.1f} h ago"


def booted_at(seen: NodeSeen) -> datetime | None:
    return None if seen.uptime_s is None else datetime.fromtimestamp(seen.at - seen.uptime_s, UTC)
