"""Follows the logs of engines for as long as they serve, after the run that launched them has ended.

The same streams, the same offsets in the same file on the node, the same recorder under the same kind of lease: a line more of an
engine is a line more of the run that started it. Each look is one round trip a node; nothing waits in a worker between looks.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import close_old_connections
from django.db.models import Q
from django.db.models.functions import Now

from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.remote.jobs import NodeJobs
from apps.remote.transport import Endpoint, JobLook, RemoteError
from apps.runs import leases, passing
from apps.runs.models import Run
from apps.runs.recorder import LeaseLost, Recorder
from apps.runs.working import AWAY, pool

log = logging.getLogger(__name__)
LOOK_LIMIT = 1 << 20  # bytes of one log in one look
LOOK_S = 10.0
WITHIN_S = 15.0  # of one call: a loud engine is read on by the next
LEASE_S = 45.0  # no look takes longer
LATEST_S = 60.0  # between two looks at a node that does not answer
_away: dict[str, tuple[float, float]] = {}  # node -> when it may be asked again (monotonic s), pause before that (s)
_at_work = threading.Lock()
_threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="follow")


@dataclass(frozen=True)
class Followed:
    """One engine's log: the step that started it, and how far it was read."""

    recorder: Recorder
    key: str
    job_id: str
    offset: int


def follow() -> None:
    """One look at the log of every engine that serves; on while there is more than one look takes, for WITHIN_S at most."""
    if not _at_work.acquire(blocking=False):
        return
    held: list[Recorder] = []
    try:
        held += [recorder for run in serving() if (recorder := _claimed(run)) is not None]
        until = time.monotonic() + WITHIN_S
        while _look(held) and time.monotonic() < until:
            pass
    except AWAY:
        log.warning("the engines' logs wait: the database can't be used now", exc_info=True)
        close_old_connections()
    finally:
        _at_work.release()
        for recorder in held:
            _let_go(recorder)


def serving() -> list[Run]:
    """Runs that started an engine whose log has no end yet; also failed ones of which some services came up and were left."""
    found = Run.objects.filter(
        Q(state=Run.State.SUCCEEDED) | Q(state=Run.State.FAILED, outcome__has_key="left"),
        story__in=("launch", "relaunch", "adopt"),
        streams__name="output",
        streams__ended=False,
        streams__step__kind="serve",
        streams__step__job_id__gt="",
    )
    return list(found.distinct().order_by("pk"))


def _claimed(run: Run) -> Recorder | None:
    """None when another worker follows it just now."""
    token = secrets.token_hex(16)
    until = Now() + timedelta(seconds=LEASE_S)
    if not Run.objects.filter(leases.nobodys(), pk=run.pk).update(lease_token=token, lease_until=until):
        return None
    return Recorder(run, token, secrets=_masked(run))


def _let_go(recorder: Recorder) -> None:
    try:
        recorder.ring_owed()
        Run.objects.filter(pk=recorder.run_id, lease_token=recorder.token).update(lease_token="", lease_until=None)
    except AWAY:
        close_old_connections()  # the lease is left to its end


def _masked(run: Run) -> tuple[bytes, ...]:
    """The values of the secrets that the plan names, as far as they are still known."""
    steps = (step for stage in run.plan.get("stages", ()) for step in stage["steps"])
    names = {secret["name"] for step in steps for secret in step.get("secrets", ())}
    values = []
    for name in sorted(name for name in names if not passing.is_passing(name)):
        with suppress(Refused):  # removed since; what looks like a secret is masked all the same
            values.append(inventory.secret_value(name).encode())
    return tuple(values)


def _look(held: list[Recorder]) -> bool:
    """One round trip to every node; True when some log has more than one look takes."""
    by_node: dict[str, list[Followed]] = {}
    now = time.monotonic()
    for recorder in tuple(held):
        try:
            for node, one in _followed(recorder):
                if _away.get(node, (0.0, 0.0))[0] <= now:
                    by_node.setdefault(node, []).append(one)
        except LeaseLost:
            held.remove(recorder)
    doors = _doors(list(by_node))
    looks = {node: _threads.submit(_ask, doors.get(node), found) for node, found in by_node.items()}
    behind = False
    for node, look in looks.items():
        answer = look.result()
        if answer is None:
            _later(node)
            continue
        _away.pop(node, None)
        for one, seen in zip(by_node[node], answer, strict=True):
            try:
                behind = _take(one, seen) or behind
            except LeaseLost:
                log.info("the engine log of run %s went to another worker", one.recorder.run_id)
                held[:] = [recorder for recorder in held if recorder is not one.recorder]
    return behind


def _followed(recorder: Recorder) -> Iterator[tuple[str, Followed]]:
    """By node, the logs of a run that have no end yet. That of a node which was removed ends here."""
    for key, step in recorder.rows.items():
        if step.kind != "serve" or not step.job_id or recorder.drained(key):
            continue
        if step.node is None:
            recorder.befell(key, "log_gone")
            recorder.output(key, offset=recorder.position(key), data=b"", ended=True)
        else:
            yield step.node.name, Followed(recorder, key, step.job_id, recorder.position(key))


def _doors(nodes: Sequence[str]) -> dict[str, Endpoint]:
    """Those that may be opened; a node whose host key waits for somebody is none."""
    doors = {}
    for node in Node.objects.filter(name__in=nodes).select_related("credential", "jump"):
        with suppress(Refused):
            doors[node.name] = inventory.endpoint(node)
    return doors


def _ask(door: Endpoint | None, found: Sequence[Followed]) -> list[JobLook] | None:
    """In a thread of its own, without the database. None when the node does not answer: the watch says so, and why."""
    if door is None:
        return None
    try:
        jobs = NodeJobs(pool().get(door), timeout_s=LOOK_S)
        return jobs.look([(one.job_id, one.offset) for one in found], limit=LOOK_LIMIT)
    except RemoteError as trouble:
        log.info("no look at the engine log on %s: %s", door.name, trouble.reason)
        return None


def _later(node: str) -> None:
    pause = min(LATEST_S, 2 * _away.get(node, (0.0, settings.FOLLOW_PERIOD_S))[1])
    _away[node] = (time.monotonic() + pause, pause)


def _take(one: Followed, seen: JobLook) -> bool:
    """Store what came. True when a full look came, so there is more."""
    shrunk = seen.note == "log_shrunk" and seen.state != "running"
    gone = seen.state == "missing" or shrunk or (seen.note == "log_gone" and not seen.size)
    befell = "log_gone" if gone else seen.note
    if befell:
        one.recorder.befell(one.key, befell)
    if befell == "log_shrunk":
        return True  # from the file's new beginning
    whole = one.offset + len(seen.data) >= seen.size
    ended = gone or (seen.state in ("exited", "lost") and whole)
    if seen.data or ended:
        one.recorder.output(one.key, offset=one.offset, data=seen.data, ended=ended)
    return len(seen.data) == LOOK_LIMIT
