"""One slice of work on one run in a worker: claim the lease, renew it from a thread of its own, execute, hand back."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections, connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from apps.deployments.models import Deployment
from apps.diagnosis.findings.links import rails_to
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Credential, Node
from apps.plan.step import Plan
from apps.remote import hostkeys
from apps.remote.jobs import NodeJobs
from apps.remote.nodelock import Holding, NodeLock
from apps.remote.pool import Pool
from apps.remote.ssh import connect
from apps.remote.transport import Endpoint, Jobs, RemoteError, Transport
from apps.runs import ending, foreign, leases, line, passing, services, settling
from apps.runs.executor import BESIDE, CancelAsked, Executor
from apps.runs.models import ACTIVE, Run, Step
from apps.runs.recorder import LeaseLost, Recorder

log = logging.getLogger(__name__)
AWAY = (OperationalError, InterfaceError)  # restarted, failed over, full or locked: no fault of a run
OWNER = f"{socket.gethostname()}:{os.getpid()}"
_pool: Pool | None = None
_pool_lock = threading.Lock()


def pool() -> Pool:
    """The warm transports of this worker process."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = Pool()
        return _pool


class NodeDoors:
    """Doors for the executor: endpoints are read once a slice, in the executor's thread."""

    def __init__(self, nodes: list[str], holding: Holding) -> None:
        self.holding = holding
        self.refused: dict[str, RemoteError] = {}
        self.endpoints: dict[str, Endpoint] = {}
        for node in Node.objects.filter(name__in=nodes).select_related("credential", "jump"):
            try:
                self.endpoints[node.name] = inventory.endpoint(node)
            except Refused as problem:
                self.refused[node.name] = RemoteError(problem.reason, hop=node.name, evidence=problem.detail)

    def transport(self, node: str) -> Transport:
        if node in self.refused:
            raise self.refused[node]
        if node not in self.endpoints:
            raise RemoteError("internal", hop=node, evidence="the node is not in the inventory any more")
        return pool().get(self.endpoints[node])

    def jobs(self, node: str) -> Jobs:
        return NodeJobs(self.transport(node), largest_log=settings.LOG_NODE_BYTES)

    def opened_with(self, node: str, password: str) -> Transport:
        if node in self.refused:
            raise self.refused[node]
        return connect(replace(self.endpoints[node], password=password))

    def hold(self, node: str) -> None:
        NodeLock(self.transport(node)).hold(self.holding)

    def let_go(self, node: str) -> None:
        NodeLock(self.transport(node)).let_go(self.holding)

    def renew(self, node: str) -> None:
        if node in self.endpoints:
            try:
                inventory.log_in_anew(node)
            finally:
                connection.close()  # of this node's thread, which ends with the round
            pool().renew(self.endpoints[node])
            self.endpoints[node] = replace(self.endpoints[node], login=self.endpoints[node].login + 1)


def _holding(run: Run) -> Holding:
    what = f"{run.story} of {run.deployment.name}" if run.deployment else run.story
    return Holding(foreign.installation(), run.code, f"{what}, run {run.pk} of {run.actor_name}, {settings.ORIGINS[0]}")


def claim(run_id: int) -> str | None:
    """The token of a fresh lease, or None when somebody else holds the run or it is over. The database's clock decides: those of
    workers on several machines may differ."""
    token = secrets.token_hex(16)
    changed = Run.objects.filter(leases.nobodys(), pk=run_id, state__in=ACTIVE).update(
        lease_token=token,
        lease_owner=OWNER,
        lease_until=Now() + timedelta(seconds=settings.LEASE_S),
        lease_serial=F("lease_serial") + 1,
    )
    return token if changed else None


def release_dead() -> int:
    """At the start of a worker: leases of worker processes of this machine that are gone end now instead of running out.

    Harmless when wrong: an owner that lives after all keeps its token until somebody claims the run, and then loses it.
    """
    released = 0
    for owner in set(Run.objects.filter(state__in=ACTIVE, lease_until__gt=Now()).values_list("lease_owner", flat=True)):
        host, _, pid = owner.rpartition(":")
        if host == socket.gethostname() and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            released += Run.objects.filter(lease_owner=owner).update(lease_until=Now())
    return released


class Lease:
    """Keeps a claimed lease alive from its own thread and database connection; does not wait on SSH."""

    def __init__(self, run_id: int, token: str) -> None:
        self.run_id, self.token = run_id, token
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease-{run_id}", daemon=True)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        try:
            Run.objects.filter(pk=self.run_id, lease_token=self.token).update(lease_token="", lease_until=None)
        except AWAY:
            log.warning("the lease of run %s is left to its end", self.run_id, exc_info=True)
            close_old_connections()

    def _renew(self) -> None:
        while not self._stop.wait(settings.LEASE_S / 3):
            try:
                until = Now() + timedelta(seconds=settings.LEASE_S)
                if not Run.objects.filter(pk=self.run_id, lease_token=self.token).update(lease_until=until):
                    break
            except Exception:
                log.warning("lease of run %s could not be renewed", self.run_id, exc_info=True)
                close_old_connections()
        connection.close()


def slice_of(run_id: int) -> str:
    """Work on the run for settings.SLICE_S. Returns "again", "done", "later" (when somebody finds it) or "not ours"."""
    if ending.asked():
        return "later"
    token = claim(run_id)
    if token is None:
        return "not ours"
    with Lease(run_id, token):
        run = Run.objects.select_related("deployment", "revision").get(pk=run_id)
        try:
            if line.waits(run):
                return {"waits": "later", "on": "again"}.get(services.take_turn(run, token), "done")
            if run.story == "scan":
                _scan(run)
                return "done"
            return "done" if _execute(run, token) else "again"
        except LeaseLost:
            log.warning("run %s went to another worker", run_id)
            return "not ours"
        except AWAY:
            # As when a worker is killed: what was begun on nodes goes on there, and the reaper wakes the run.
            log.warning("run %s waits: the database can't be used now", run_id, exc_info=True)
            close_old_connections()
            return "later"
        except Exception as bug:
            if ending.has_begun():
                log.warning("run %s is left to the next worker: this one ends", run_id)
                return "later"
            log.exception("run %s met a bug of ours", run_id)
            _internal(run_id, token, bug)
            _give_back(run)
            return "done"


def _internal(run_id: int, token: str, bug: Exception) -> None:
    where = traceback.extract_tb(bug.__traceback__)[-1]
    with transaction.atomic():
        run = Run.objects.select_for_update().filter(pk=run_id, lease_token=token).first()
        if run is not None and not run.ended:
            settling.finish(
                run,
                Run.State.FAILED,
                reason="internal",
                evidence=f"{type(bug).__name__} in {Path(where.filename).name}:{where.lineno}: {bug}",
            )


def _give_back(run: Run) -> None:
    """What a run holds on its nodes keeps others out; that it met a bug of ours is no reason for that."""
    nodes = list(run.plan.get("nodes", ()))
    if run.story in BESIDE or not nodes:
        return
    doors = NodeDoors(nodes, _holding(run))

    def let_go(node: str) -> None:
        with suppress(RemoteError):
            doors.let_go(node)

    with ThreadPoolExecutor(min(16, len(nodes)), thread_name_prefix="give-back") as threads:
        list(threads.map(let_go, nodes))


def _environment_of(run: Run) -> tuple[tuple[bytes, ...], dict[str, Mapping[str, str]]]:
    """(values to mask, variables by step key). Raises Refused when a secret is missing, unless the run is only to be cleaned up."""
    values: dict[str, str] = {}
    by_step: dict[str, Mapping[str, str]] = {}
    done = set(run.steps.filter(state=Step.State.SUCCEEDED).values_list("key", flat=True))
    for stage in Plan.from_json(run.plan).stages:
        for step in stage.steps:
            variables = {"SPARKWEB_RUN": str(run.pk), "SPARKWEB_CODE": run.code}
            for secret in step.secrets:
                if step.key in done and passing.is_passing(secret.name):
                    continue  # used, and perhaps forgotten already
                if secret.name not in values:
                    try:
                        values[secret.name] = passing.value(run, secret.name) or inventory.secret_value(secret.name)
                    except Refused:
                        if run.cancel_asked_at is None:
                            raise
                        continue
                variables[secret.variable] = values[secret.name]
            by_step[step.key] = variables
    return tuple(value.encode() for value in values.values()), by_step


class _Kept:
    """An executor between two slices of the same worker, with what it has in memory: readers, pauses, half-read lines."""

    def __init__(self, executor: Executor, recorder: Recorder, serial: int) -> None:
        self.executor, self.recorder, self.serial = executor, recorder, serial


_kept: dict[int, _Kept] = {}
_kept_lock = threading.Lock()


def _executor_for(run: Run, token: str) -> _Kept:
    """The one of our last slice if nobody else claimed the run since, else a fresh one. Raises Refused for a missing secret."""
    with _kept_lock:
        known = _kept.pop(run.pk, None)
    plan = Plan.from_json(run.plan)
    doors = NodeDoors(list(plan.nodes), _holding(run))
    if known is not None and known.serial + 1 == run.lease_serial:
        known.recorder.token, known.serial, known.executor.doors = token, run.lease_serial, doors
        return known
    if known is not None:
        known.executor.close()
    masked, variables = _environment_of(run)
    recorder = Recorder(run, token, secrets=masked)
    executor = Executor(
        plan,
        recorder,
        doors,
        run_id=run.pk,
        code=run.code,
        environment_of=lambda step: variables[step.key],
        model_paths=_model_paths(plan),
        peers=_peers(plan),
    )
    return _Kept(executor, recorder, run.lease_serial)


def _execute(run: Run, token: str) -> bool:
    try:
        kept = _executor_for(run, token)
    except Refused as problem:
        try:
            Recorder(run, token).end(Run.State.FAILED, reason=problem.reason, evidence=problem.detail)
        except CancelAsked:
            return False  # the next slice does it
        return True
    done = True  # also when something is raised: what is in memory can't be trusted then
    try:
        done = kept.executor.work(time.monotonic() + settings.SLICE_S, leave=ending.asked)
    finally:
        if done:
            kept.executor.close()
        else:
            with _kept_lock:
                _kept[run.pk] = kept
    return done


def _model_paths(plan: Plan) -> dict[str, list[str]]:
    """The model folders that deployments over these nodes name, by node."""
    found: dict[str, set[str]] = {name: set() for name in plan.nodes}
    for deployment in Deployment.objects.filter(archived_at=None):
        spec = deployment.revision.spec
        for name in set(spec.nodes) & set(found):
            if spec.model_path:
                found[name].add(spec.model_path)
    return {name: sorted(paths) for name, paths in found.items()}


MOST_PEERS = 16  # pings of one probe


def _peers(plan: Plan) -> dict[str, list[str]]:
    """Fabric addresses of the plan's other nodes that share a subnet with a node, by the newest sheets; none for the
    first probe of a node, or where the plan has one node alone."""
    rows = Node.objects.filter(name__in=plan.nodes) if len(plan.nodes) > 1 else ()
    sheets = [sheet for row in rows if (sheet := inventory.latest_sheet(row)) is not None]
    return {
        sheet.node: [f"{interface} {address}" for interface, address in rails_to(sheet, sheets)[:MOST_PEERS]]
        for sheet in sheets
    }


def _scan(run: Run) -> None:
    """Which host keys does a door show? Changes nothing on the way."""
    asked = run.parameters
    if run.cancel_asked_at is not None:
        return _end_scan(run, Run.State.CANCELLED)
    try:
        if "node" in asked:
            node = Node.objects.get(pk=asked["node"])
            target = Endpoint(
                node.name,
                node.address,
                node.port,
                node.user,
                "",
                via=inventory.endpoint(node.jump) if node.jump else None,
            )
        else:
            jump = Node.objects.filter(pk=asked["jump"]).first() if asked["jump"] else None
            key = inventory.private_key(Credential.objects.get(pk=asked["credential"]))
            target = Endpoint(
                asked["name"],
                asked["address"],
                asked["port"],
                asked["user"],
                key,
                via=inventory.endpoint(jump) if jump else None,
            )
        found = [
            {"hop": key.hop, "type": key.type, "base64": key.base64, "sha256": key.sha256.rstrip("=")}
            for key in hostkeys.scan(target)
        ]
    except RemoteError as trouble:
        _end_scan(run, Run.State.FAILED, reason=trouble.reason, evidence=f"{trouble.hop}: {trouble.evidence}")
        return
    except Refused as problem:
        _end_scan(run, Run.State.FAILED, reason=problem.reason, evidence=problem.detail)
        return
    if "node" in asked:
        inventory.keys_offered(Node.objects.get(pk=asked["node"]), found)
    Run.objects.filter(pk=run.pk).update(outcome={"host_keys": found})
    _end_scan(run, Run.State.SUCCEEDED)


def _end_scan(run: Run, state: str, *, reason: str | None = None, evidence: str = "") -> None:
    """A cancel that was accepted is the end, also of a look that was over by then."""
    with transaction.atomic():
        run = Run.objects.select_for_update().get(pk=run.pk)
        if run.cancel_asked_at is not None:
            state, reason, evidence = Run.State.CANCELLED, "cancelled", ""
        if not run.ended:
            settling.finish(run, state, reason=reason, evidence=evidence)
