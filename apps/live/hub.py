"""One per process: a single subscription to the doorbell for all sockets, and reads of lines shared between viewers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import redis.asyncio as aioredis
from channels.db import database_sync_to_async
from django.conf import settings
from redis.exceptions import RedisError

from apps.doorbell.ring import CHANNEL
from apps.live.messages import Frame, in_frames
from apps.runs import lines as runs_lines
from apps.runs.models import Run

log = logging.getLogger(__name__)
BACK_OFF_S = (0.2, 0.5, 1, 2, 5)
SHARED_S = 2.0  # a read of the same lines by several viewers within this time is one read
SHARED_BYTES = 8 * 1024 * 1024  # all reads that are kept


class Viewer(Protocol):
    """An open socket, as the hub sees it."""

    watched: frozenset[tuple[str, int]]

    def ring(self, kind: str, identity: int, version: int) -> None:
        """There is news. Must return at once."""

    def resync(self) -> None:
        """Rings may have been missed: look at everything again."""


@dataclass(frozen=True)
class Answer:
    """Lines as every viewer is sent them. `next`: the cursor behind them; `ended`: nothing will come after it."""

    frames: tuple[Frame, ...]
    next: int
    last: int  # the number of the last line; 0 without any
    more: bool  # there are others behind them already
    ended: bool
    total: int
    size: int  # bytes, about


Key = tuple[int, int | None, int | None, int, int | None, str | None]  # run, after, before, limit, rank, step


class Hub:
    """Lives as long as its event loop. Starts listening with the first viewer, stops with the last."""

    def __init__(self) -> None:
        self.viewers: set[Viewer] = set()
        self.connected = False
        self._listener: asyncio.Task[None] | None = None
        self._reads: OrderedDict[Key, tuple[float, asyncio.Task[Answer]]] = OrderedDict()

    def join(self, viewer: Viewer) -> None:
        self.viewers.add(viewer)
        if self._listener is None or self._listener.done():
            self._listener = asyncio.get_running_loop().create_task(self._listen(), name="doorbell")

    def leave(self, viewer: Viewer) -> None:
        self.viewers.discard(viewer)
        if not self.viewers and self._listener is not None:
            listener, self._listener = (
                self._listener,
                None,
            )  # it looks at this too: libraries have swallowed cancellations
            listener.cancel()
            self.connected = False
            self._reads.clear()

    async def _listen(self) -> None:
        failures = 0
        while self._listener is asyncio.current_task():
            client = aioredis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2, health_check_interval=15)
            try:
                subscription = client.pubsub(ignore_subscribe_messages=True)
                await subscription.subscribe(CHANNEL)
                self.connected, failures = True, 0
                self._resync_all()  # what rang while nobody listened
                while self._listener is asyncio.current_task():
                    message = await subscription.get_message(timeout=5)
                    if message is not None:
                        self._deliver(message.get("data"))
            except asyncio.CancelledError:
                raise
            except (
                Exception
            ) as problem:  # whatever it is, the ear must not fall off: viewers look by themselves meanwhile
                if self._listener is not asyncio.current_task():
                    return
                self.connected = False
                if failures == 0:
                    log.warning("the doorbell can't be heard, viewers look every few seconds: %r", problem)
                await asyncio.sleep(BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)])
                failures += 1
            finally:
                try:
                    await asyncio.shield(client.aclose())  # type: ignore[attr-defined]  # the stubs are older
                except (RedisError, OSError, asyncio.CancelledError):
                    pass

    def _resync_all(self) -> None:
        self._reads.clear()
        for viewer in tuple(self.viewers):
            viewer.resync()

    def _deliver(self, data: object) -> None:
        try:
            body = json.loads(data if isinstance(data, bytes | str) else "")
            kind, identity, version = str(body["object"]), int(body["id"]), int(body.get("version") or 0)
        except (ValueError, KeyError, TypeError):
            log.warning("a ring that can't be read: %.120r", data)
            return
        if kind in ("run", "log"):
            self._forget(identity)
        for viewer in tuple(self.viewers):
            viewer.ring(kind, identity, version)

    def _forget(self, run: int) -> None:
        """Answers that say "nothing yet". Those with lines stay true, and who reads the same one stands at the same place after."""
        for key, (_, task) in list(self._reads.items()):
            kept = task.done() and _good(task) and task.result().frames and key[2] is None
            if key[0] == run and not kept:
                del self._reads[key]

    async def lines(
        self,
        run: int,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int = 1000,
        rank: int | None = None,
        step: str | None = None,
    ) -> Answer:
        """runs.lines.lines, read once for all viewers that stand at the same place. Raises Run.DoesNotExist."""
        key: Key = (run, after, before, limit, rank, step)
        found = self._reads.get(key)
        now = time.monotonic()
        if found is None or now - found[0] > SHARED_S or (found[1].done() and not _good(found[1])):
            task = asyncio.get_running_loop().create_task(_read(key))
            task.add_done_callback(_seen)
            task.add_done_callback(lambda _: self._shrink(time.monotonic()))  # only now is its size known
            self._reads.pop(key, None)
            self._reads[key] = found = (now, task)
            self._shrink(now)
        return await asyncio.shield(found[1])

    def _shrink(self, now: float) -> None:
        """Old reads go, and the oldest of too many; the newest stays."""
        size = 0
        for key, (at, task) in list(reversed(self._reads.items()))[1:]:
            size += task.result().size if task.done() and _good(task) else 0
            if now - at > SHARED_S or size > SHARED_BYTES:
                del self._reads[key]


def _good(task: asyncio.Task[Answer]) -> bool:
    return not task.cancelled() and task.exception() is None


def _seen(task: asyncio.Task[Answer]) -> None:
    """Take the exception of a read whose viewers have all left, so that asyncio does not complain about it."""
    if not task.cancelled():
        task.exception()


@database_sync_to_async
def _read(key: Key) -> Answer:
    run_id, after, before, limit, rank, step = key
    run = Run.objects.get(pk=run_id)
    answer = runs_lines.lines(run, after=after or 0, before=before, limit=limit, rank=rank, step=step)
    lines = answer["lines"]
    frames = tuple(in_frames(lines))
    return Answer(
        frames,
        int(answer["next"]),
        int(lines[-1]["n"]) if lines else 0,
        bool(answer["more"]),
        bool(answer["ended"] and not answer["serving"]),
        run.next_line - 1,
        sum(len(frame.text) for frame in frames),
    )


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub()
    return _hubs[loop]
