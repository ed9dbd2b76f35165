"""Looks at every node in parallel with one small script each, and writes what it means. Runs in a worker, driven by beat."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import asdict, replace
from datetime import UTC, datetime

from django.db import transaction
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import robot
from apps.deployments import state as deployment_state
from apps.deployments.models import Deployment, Rank
from apps.diagnosis.refusal import Refused
from apps.doorbell.ring import ring_on_commit
from apps.facts import docker, probe
from apps.facts.sheet import Sheet, plain
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.remote.jobs import NodeJobs
from apps.remote.transport import Endpoint, RemoteError
from apps.runs import services as runs
from apps.runs.models import ACTIVE, LOOKS_ON, Run, at_work
from apps.runs.settling import newest_attempt
from apps.runs.working import pool
from apps.watch import asking, braking, history, relaunching
from apps.watch.asking import Asked
from apps.watch.flagging import flagged
from apps.watch.judging import SURE, Conclusion, NodeSeen, RankWanted, booted_at, judge
from apps.watch.models import Followed, Point, Sighting

log = logging.getLogger(__name__)
LOOK_TIMEOUT_S = 12.0
PATIENCE_S = LOOK_TIMEOUT_S + 20  # with the time that a connection may take; whoever is later did not answer
WATCH = robot("watch")
MOST_THREADS = 512  # one a node: those that hang must not make others wait. Threads are made only as they are needed
_looking: set[str] = set()  # names of nodes that a look is still stuck on: no pile-up
_lock = threading.Lock()
_threads = ThreadPoolExecutor(max_workers=MOST_THREADS, thread_name_prefix="watch")


def look() -> None:
    """One look at all nodes that may be looked at; each deployment is judged as soon as its nodes have answered."""
    _Cycle(list(Node.objects.filter(state=Node.State.READY).select_related("credential", "jump"))).play()


class _Cycle:
    """Nodes that hang hold up nobody: what others say is kept and judged as it comes in. Nodes that did not answer are held back
    until it is clear that it is not the whole fleet, which would be our own network's doing."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.known = {node.name for node in nodes if node.last_seen_at is not None and node.unreachable_since is None}
        self.seen: dict[str, NodeSeen] = {}  # what may be judged
        self.silent: dict[Node, NodeSeen] = {}  # did not answer; held back
        self.stuck: set[str] = set()  # an earlier look still waits for them
        self.failed: set[str] = set()  # names of all that did not answer at their own door
        self.hidden: set[str] = set()  # of those, that a jump host or something else explains
        self.waiting: dict[Future[NodeSeen], Node] = {}
        self.points: list[Point] = []
        self.to_consider: dict[int, None] = {}
        self.braked = braking.current() is not None
        self.booted = dict(Sighting.objects.values_list("node_id", "boot_id"))
        self.starters: Mapping[int, asking.Known] = {}
        self.of_nodes: dict[int, set[str]] = {}  # deployment -> its nodes
        self.containers: dict[str, list[str]] = {}  # of ours, by node
        for deployment, node, container in Rank.objects.values_list("deployment_id", "node__name", "container"):
            self.of_nodes.setdefault(deployment, set()).add(node)
            if container:
                self.containers.setdefault(node, []).append(container)

    def play(self) -> None:
        self._ask()
        self.starters = asking.known_of(list(self.nodes))
        judged: set[int] = set()
        for some in self._answers():
            for node, found in some:
                self._take(node, found)
            if not self._may_be_ours():
                self._let_go()
            open_yet = {node.name for node in (*self.waiting.values(), *self.silent)}
            ready = {one for one, names in self.of_nodes.items() if one not in judged and names.isdisjoint(open_yet)}
            if ready:
                judged |= ready
                judge_all(self.seen, only=ready, act=self._later)
            if not self._may_be_ours() and not self.braked:
                self._act()
        self._settle()
        left = set(self.of_nodes) - judged
        if left:
            judge_all(self.seen, only=left, act=self._later)
        if not self.braked:
            self._act()
        history.keep(self.points)

    def _ask(self) -> None:
        asked, doors = asking.what_to_ask(), inventory.endpoints(self.nodes)
        for node in self.nodes:
            if node.name not in doors:
                continue
            with _lock:
                if node.name in _looking:
                    self.stuck.add(node.name)
                    continue
                _looking.add(node.name)
            self.waiting[_threads.submit(_look_at, doors[node.name], asked.get(node.name, Asked()))] = node

    def _answers(self) -> Iterator[list[tuple[Node, NodeSeen]]]:
        """Whatever came in since the last time; at the end those that did not."""
        until = time.monotonic() + PATIENCE_S
        while self.waiting:
            done, _ = wait_for(self.waiting, timeout=max(0.0, until - time.monotonic()), return_when=FIRST_COMPLETED)
            late = not done
            some = []
            for future in list(self.waiting) if late else done:
                node = self.waiting.pop(future)
                try:
                    some.append((node, _late(node) if late and not future.done() else future.result()))
                except Exception:  # what one node says must not end the watch over the others
                    log.exception("the look at %s broke", node.name)
            yield some

    def _take(self, node: Node, found: NodeSeen) -> None:
        if found.reason:
            self.silent[node] = found
            own = found.hop in ("", node.name) and found.reason in braking.OF_THE_NETWORK
            (self.failed if own else self.hidden).add(node.name)
            return
        known = self.starters.get(node.pk)
        if known is not None:
            units = tuple(
                replace(u, containers=u.containers or known.starts.get(u.name, ())) for u in found.units or ()
            )
            found = replace(found, units=None if found.units is None else units, fabric=known.fabric)
        self._keep(node, found)

    def _keep(self, node: Node, found: NodeSeen) -> None:
        try:
            missed = [name for name in self.containers.get(node.name, ()) if not _runs(name, found)]
            _keep(node, found, missed=missed)
            if not found.reason:
                self.points.append(history.point(node, found))
            self._mark(node, found)
        except Exception:
            log.exception("the look at %s could not be kept", node.name)
            return
        self.seen[node.name] = found

    def _mark(self, node: Node, found: NodeSeen) -> None:
        before = self.booted.get(node.pk)
        if found.reason and node.unreachable_since is None:
            history.mark([node.pk], "unreachable", found.reason)
        elif not found.reason and node.unreachable_since is not None:
            history.mark([node.pk], "reachable")
        if found.boot_id and before and before != found.boot_id:
            history.mark([node.pk], "rebooted", at=booted_at(found))

    def _may_be_ours(self) -> bool:
        """Whether the nodes that are not heard yet could still make it the whole fleet's silence."""
        waiting = {node.name for node in self.waiting.values()}
        known = self.known - self.hidden
        return braking.likely_ours(len(known & (self.failed | waiting)), len(known))

    def _let_go(self) -> None:
        """Nodes that did not answer are what they look like."""
        for node, found in self.silent.items():
            self._keep(node, found)
        self.silent.clear()

    def _settle(self) -> None:
        """All have answered or not: our own network, or theirs?"""
        known = self.known - self.hidden
        silent = known & self.failed
        if braking.likely_ours(len(silent), len(known)):
            braking.hold(silent, len(known))
            self.braked = True
            for node in [node for node in self.silent if node.name in silent]:
                del self.silent[node]
        elif self.braked and not braking.likely_ours(len(known & (self.failed | self.stuck)), len(known)):
            braking.release()
            self.braked = False
        self._let_go()

    def _later(self, deployment_id: int) -> None:
        self.to_consider[deployment_id] = None

    def _act(self) -> None:
        for one in list(self.to_consider):
            del self.to_consider[one]
            relaunching.consider(one)


def _runs(container: str, seen: NodeSeen) -> bool:
    return seen.containers is None or any(c.name == container and c.state == "running" for c in seen.containers)


def _late(node: Node) -> NodeSeen:
    evidence = f"{node.name}: no answer to the look within {PATIENCE_S:.0f} s"
    return NodeSeen(node.name, time.time(), reason="ssh_timeout", evidence=evidence, hop=node.name)


def _look_at(door: Endpoint, asked: Asked) -> NodeSeen:
    """In a thread of its own; touches no database."""
    at = time.time()
    try:
        transport = pool().get(door)
        nonce = secrets.token_hex(12)
        script = probe.script(probe.WATCH, nonce=nonce, extra=asked.extra)
        result = transport.run(script, timeout_s=LOOK_TIMEOUT_S)
        sheet = probe.sheet_from(door.name, at, probe.read(nonce, result.stdout))
        states = None
        if asked.jobs:
            looks = NodeJobs(transport).look([(job_id, 0) for job_id in asked.jobs], limit=0)
            states = {one.id: one.state for one in looks}
    except RemoteError as trouble:
        evidence = f"{trouble.hop}: {trouble.evidence}"
        return NodeSeen(door.name, at, reason=trouble.reason, evidence=evidence, hop=trouble.hop)
    finally:
        with _lock:
            _looking.discard(door.name)
    if sheet.machine is None:
        evidence = f"{door.name}: no answer to the look within {LOOK_TIMEOUT_S:.0f} s"
        return NodeSeen(door.name, at, reason="ssh_timeout", evidence=evidence, hop=door.name)
    return _seen(sheet, states)


def _seen(sheet: Sheet, states: Mapping[str, str] | None) -> NodeSeen:
    gpus, machine = sheet.gpus, sheet.machine
    listing = sheet.evidence.get("containers")
    trouble = docker.problem(listing) if listing is not None and sheet.containers is None else None
    return NodeSeen(
        sheet.node,
        sheet.taken_at,
        boot_id=(machine.boot_id if machine else None) or "",
        uptime_s=machine.uptime_s if machine else None,
        containers=sheet.containers,
        units=sheet.units,
        processes=gpus.processes if gpus else (),
        job_states=states,
        memory=asdict(sheet.memory) if sheet.memory else None,
        gpus=[asdict(gpu) for gpu in gpus.gpus] if gpus else [],
        driver=gpus.driver if gpus else None,
        gpu_problem=(gpus.evidence or "") if gpus and gpus.problem == "driver_mismatch" else "",
        docker_problem=trouble[1] if trouble and trouble[0] in ("docker_down", "docker_denied") else "",
        apis=sheet.apis,
        events=sheet.events or (),
        listeners=sheet.listeners,
        interfaces=sheet.interfaces,
    )


def _keep(node: Node, seen: NodeSeen, *, missed: Sequence[str] = ()) -> None:
    """Store a look; rings only the node and the fleet."""
    with transaction.atomic():
        if seen.reason:
            hop = seen.hop or seen.evidence.partition(":")[0]
            inventory.not_reached(node, reason=seen.reason, evidence=seen.evidence, hop=hop)
            return
        body = {
            "memory": seen.memory,
            "gpus": seen.gpus,
            "containers": plain(seen.containers or ()),
            "units": plain(seen.units or ()),
            "held_mib": sum(process.mib or 0 for process in seen.processes),
            "apis": plain(seen.apis or ()),
            "missed": list(missed),
            "links": {one.name: one.up for one in seen.interfaces or () if one.role != "ignore"},
        }
        fields = {
            "at": datetime.fromtimestamp(seen.at, UTC),
            "boot_id": seen.boot_id,
            "booted_at": booted_at(seen),
            "body": body,
        }
        if not Sighting.objects.filter(node=node).update(**fields):
            Sighting.objects.update_or_create(node=node, defaults=fields)
        inventory.seen(node, boot_id=seen.boot_id)


def judge_all(
    seen: Mapping[str, NodeSeen], *, only: Collection[int] | None = None, act: Callable[[int], None] | None = None
) -> None:
    """Conclude for every deployment (of `only`) that was launched well and that no run is working on. `act` is told of each that is
    lost or degraded; without it a robot acts at once."""
    rows = Deployment.objects.filter(archived_at=None, **({} if only is None else {"pk__in": only}))
    at_work_now = Run.objects.filter(state__in=ACTIVE, deployment__isnull=False).exclude(story__in=LOOKS_ON)
    active = set(at_work_now.values_list("deployment_id", flat=True))
    for deployment in rows.prefetch_related("ranks__node", "ranks__revision").select_related("followed"):
        ranks = asking.wanted_of(deployment)
        attempt = None if deployment.pk in active else newest_attempt(deployment)
        if (
            not ranks
            or attempt is None
            or attempt.story == "stop"
            or (attempt.state != "succeeded" and not attempt.kept)
        ):
            _flag(deployment, {})
            continue
        if not any(rank.node in seen for rank in ranks):
            continue
        found = judge(ranks, seen)
        _flag(deployment, _flags_of(deployment, ranks, seen) if found.state != "lost" else {})
        if found.state == "serving" and not all(rank.node in seen for rank in ranks):
            continue  # an earlier look still waits for a node: that is no proof that it answers
        if _serves_on(deployment, found):
            continue
        _conclude(deployment.pk, found)
        if found.state in ("lost", "degraded"):
            (act or relaunching.consider)(deployment.pk)


def _flags_of(deployment: Deployment, ranks: Sequence[RankWanted], seen: Mapping[str, NodeSeen]) -> Mapping[str, str]:
    """What is true beside the state; what the next look needs is kept."""
    followed: Followed | None = getattr(deployment, "followed", None)
    before = followed.body if followed is not None else {}
    found = flagged(
        ranks,
        asking.services_of(deployment),
        seen,
        asking.plans_of(deployment),
        before,
        launched=asking.launched(deployment),
        as_found=bool(deployment.found),
    )
    if found.kept != before:
        Followed.objects.update_or_create(deployment=deployment, defaults={"body": found.kept})
    return found.flags


def _flag(deployment: Deployment, flags: Mapping[str, str]) -> None:
    """Say it, with an entry in the trail for each that comes or goes."""
    with transaction.atomic():
        for name, evidence in deployment_state.flag(deployment, flags):
            record(
                WATCH,
                f"deployment:{name}" if evidence else f"deployment:{name}_over",
                object_type="deployment",
                object_id=str(deployment.pk),
                object_name=deployment.name,
                outcome="done",
                after={"evidence": evidence} if evidence else {},
            )
            ring_on_commit("audit", 0)


def _conclude(deployment_id: int, found: Conclusion) -> None:
    with transaction.atomic():
        deployment = Deployment.objects.select_for_update().get(pk=deployment_id)
        if at_work(deployment).exists():
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
            history.mark(
                list(deployment.ranks.values_list("node_id", flat=True).distinct().order_by()),
                found.state,
                f"{deployment.name}: {(found.reason or found.state).replace('_', ' ')}",
            )
            if found.state == "lost":
                _ask_for_facts(deployment)


def _serves_on(deployment: Deployment, found: Conclusion) -> bool:
    """It serves as it did at the look before, and nothing else is suspected: nobody is rung for it. A run that began meanwhile has
    made it another state."""
    before = {name: value for name, value in deployment.observed.items() if name != "looks"}
    if found.state != "serving" or deployment.state != "serving" or before != found.to_json():
        return False
    return bool(Deployment.objects.filter(pk=deployment.pk, state="serving").update(served_at=timezone.now()))


def _ask_for_facts(deployment: Deployment) -> None:
    """What the sheets say is over, after a reboot above all: the plan of a relaunch shall be made from what is there now."""
    nodes = Node.objects.filter(ranks__deployment=deployment, state=Node.State.READY, unreachable_since=None).distinct()
    try:
        runs.probe(WATCH, list(nodes))
    except Refused as no:
        log.info("no fresh facts for %s: %s", deployment.name, no.detail)
