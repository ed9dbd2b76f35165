"""Looks at every node in parallel with one small script each, and writes what it means. Runs in a worker, driven by beat."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import asdict, replace
from datetime import UTC, datetime

from django.db import transaction

from apps.audit import record
from apps.audit.actor import robot
from apps.deployments import state as deployment_state
from apps.deployments.models import Deployment, Rank
from apps.diagnosis.refusal import Refused
from apps.doorbell.ring import ring_on_commit
from apps.facts import probe
from apps.facts.sheet import plain
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.remote.jobs import NodeJobs
from apps.remote.transport import Endpoint, RemoteError
from apps.runs import services as runs
from apps.runs.models import ACTIVE
from apps.runs.settling import newest_attempt
from apps.runs.working import pool
from apps.watch import relaunching
from apps.watch.judging import SURE, Conclusion, NodeSeen, RankWanted, booted_at, judge
from apps.watch.models import Sighting

log = logging.getLogger(__name__)
LOOK_TIMEOUT_S = 12.0
PATIENCE_S = LOOK_TIMEOUT_S + 20  # with the time that a connection may take; whoever is later did not answer
WATCH = robot("watch")
_looking: set[str] = set()  # names of nodes that a look is still stuck on: no pile-up
_lock = threading.Lock()
_threads = ThreadPoolExecutor(max_workers=64, thread_name_prefix="watch")


def look() -> None:
    """One look at all nodes that may be looked at; then every deployment is judged."""
    nodes = list(Node.objects.filter(state=Node.State.READY).select_related("credential", "jump"))
    ranks: dict[str, list[Rank]] = {}
    for rank in Rank.objects.select_related("node"):
        ranks.setdefault(rank.node.name, []).append(rank)
    futures = {}
    for node in nodes:
        with _lock:
            if node.name in _looking:
                continue
            _looking.add(node.name)
        try:
            door = inventory.endpoint(node)
        except Refused:
            with _lock:
                _looking.discard(node.name)
            continue
        jobs = [rank.job_id for rank in ranks.get(node.name, []) if rank.job_id]
        futures[node.pk] = _threads.submit(_look_at, door, jobs)
    wait_for(futures.values(), timeout=PATIENCE_S)
    seen: dict[str, NodeSeen] = {}
    for node in nodes:
        future = futures.get(node.pk)
        if future is not None:
            try:
                found = _with_starters(node, future.result()) if future.done() else _late(node)
                _keep(node, found)
            except Exception:  # what one node says must not end the watch over the others
                log.exception("the look at %s could not be kept", node.name)
                continue
            seen[node.name] = found
    judge_all(seen)


def _late(node: Node) -> NodeSeen:
    evidence = f"{node.name}: no answer to the look within {PATIENCE_S:.0f} s"
    return NodeSeen(node.name, time.time(), reason="ssh_timeout", evidence=evidence)


def _look_at(door: Endpoint, jobs: Sequence[str]) -> NodeSeen:
    """In a thread of its own; touches no database."""
    at = time.time()
    try:
        transport = pool().get(door)
        nonce = secrets.token_hex(12)
        result = transport.run(probe.script(probe.WATCH, nonce=nonce), timeout_s=LOOK_TIMEOUT_S)
        sheet = probe.sheet_from(door.name, at, probe.read(nonce, result.stdout))
        states = None
        if jobs:
            looks = NodeJobs(transport).look([(job_id, 0) for job_id in jobs], limit=0)
            states = {one.id: one.state for one in looks}
    except RemoteError as trouble:
        return NodeSeen(door.name, at, reason=trouble.reason, evidence=f"{trouble.hop}: {trouble.evidence}")
    finally:
        with _lock:
            _looking.discard(door.name)
    if sheet.machine is None:
        return NodeSeen(
            door.name,
            at,
            reason="ssh_timeout",
            evidence=f"{door.name}: no answer to the look within {LOOK_TIMEOUT_S:.0f} s",
        )
    return NodeSeen(
        door.name,
        at,
        boot_id=sheet.machine.boot_id or "",
        uptime_s=sheet.machine.uptime_s,
        containers=sheet.containers,
        units=sheet.units,
        processes=sheet.gpus.processes if sheet.gpus else (),
        job_states=states,
        memory=asdict(sheet.memory) if sheet.memory else None,
        gpus=[asdict(gpu) for gpu in sheet.gpus.gpus] if sheet.gpus else [],
    )


def _with_starters(node: Node, seen: NodeSeen) -> NodeSeen:
    """The cheap look does not read unit files: which container a unit starts is taken from the last whole sheet."""
    sheet = inventory.latest_sheet(node)
    if seen.units is None or sheet is None or sheet.units is None:
        return seen
    known = {unit.name: unit.containers for unit in sheet.units if unit.containers}
    return replace(seen, units=tuple(replace(u, containers=u.containers or known.get(u.name, ())) for u in seen.units))


def _keep(node: Node, seen: NodeSeen) -> None:
    """Store a look; rings only the node and the fleet."""
    with transaction.atomic():
        if seen.reason:
            inventory.not_reached(node, reason=seen.reason, evidence=seen.evidence, hop=seen.evidence.partition(":")[0])
            return
        body = {
            "memory": seen.memory,
            "gpus": seen.gpus,
            "containers": plain(seen.containers or ()),
            "units": plain(seen.units or ()),
            "held_mib": sum(process.mib or 0 for process in seen.processes),
        }
        Sighting.objects.update_or_create(
            node=node,
            defaults={
                "at": datetime.fromtimestamp(seen.at, UTC),
                "boot_id": seen.boot_id,
                "booted_at": booted_at(seen),
                "body": body,
            },
        )
        inventory.seen(node, boot_id=seen.boot_id)


def judge_all(seen: Mapping[str, NodeSeen]) -> None:
    """Conclude for every deployment that was launched well and that no run is working on."""
    for deployment in Deployment.objects.filter(archived_at=None).prefetch_related("ranks__node", "ranks__revision"):
        ranks = wanted_of(deployment)
        if not ranks or deployment.runs.filter(state__in=ACTIVE).exists() or not any(r.node in seen for r in ranks):
            continue
        attempt = newest_attempt(deployment)
        if attempt is None or attempt.story == "stop" or (attempt.state != "succeeded" and not attempt.kept):
            continue
        found = judge(ranks, seen)
        if found.state == "serving" and not all(rank.node in seen for rank in ranks):
            continue  # an earlier look still waits for a node: that is no proof that it answers
        _conclude(deployment.pk, found)
        if found.state in ("lost", "degraded"):
            relaunching.consider(deployment.pk)


def wanted_of(deployment: Deployment) -> list[RankWanted]:
    """The ranks of the last good launch, each with its service's name for people."""
    rows = list(deployment.ranks.all())
    labels = {one.service: one.label for one in rows[0].revision.spec.each} if rows else {}
    return [
        RankWanted(
            row.number,
            row.node.name,
            row.container,
            row.boot_id,
            row.job_id,
            service=row.service,
            label=labels.get(row.service, row.service),
            unit=row.unit,
            healthy=bool(deployment.found),
        )
        for row in rows
    ]


def _conclude(deployment_id: int, found: Conclusion) -> None:
    with transaction.atomic():
        deployment = Deployment.objects.select_for_update().get(pk=deployment_id)
        if deployment.runs.filter(state__in=ACTIVE).exists():
            return
        before = deployment.observed
        same = (before.get("suspect") or {}).get("state") == found.state and (before.get("suspect") or {}).get(
            "reason"
        ) == found.reason
        looks = before.get("looks", 1) + 1 if same else 1
        suspect = {**found.to_json(), "looks": looks}
        changed = (before.get("state"), before.get("reason")) != (found.state, found.reason)
        if found.state != "serving" and changed and not found.sure and looks < SURE:
            kept = {**before, "suspect": found.to_json(), "looks": looks}
            Deployment.objects.filter(pk=deployment_id).update(
                observed=kept
                if before.get("state")
                else {"state": "serving", "reason": None, "evidence": "", "suspect": found.to_json(), "looks": looks}
            )
            return
        previous = (deployment.state, deployment.reason)
        deployment = deployment_state.observe(
            deployment, {**found.to_json(), "looks": suspect["looks"]}, newest_attempt(deployment)
        )
        if (deployment.state, deployment.reason) != previous and deployment.state != "serving":
            record(
                WATCH,
                f"deployment:{found.state}",
                object_type="deployment",
                object_id=str(deployment.pk),
                object_name=deployment.name,
                outcome="done",
                after={"state": found.state, "reason": found.reason, "evidence": found.evidence},
            )
            ring_on_commit("audit", 0)
            if found.state == "lost":
                _ask_for_facts(deployment)


def _ask_for_facts(deployment: Deployment) -> None:
    """What the sheets say is over, after a reboot above all: the plan of a relaunch shall be made from what is there now."""
    nodes = Node.objects.filter(ranks__deployment=deployment, state=Node.State.READY, unreachable_since=None).distinct()
    try:
        runs.probe(WATCH, list(nodes))
    except Refused as no:
        log.info("no fresh facts for %s: %s", deployment.name, no.detail)
