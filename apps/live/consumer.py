"""One socket of one page. It only reads: every change is an HTTP POST. What it owes is a cursor, not a queue."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import Error as DatabaseTrouble

from apps.deployments.models import Deployment
from apps.inventory.models import Node
from apps.live import messages
from apps.live.hub import Answer, hub
from apps.people.access import may
from apps.people.sessions import Standing, standing_of_scope, still_allowed
from apps.runs.models import Run

log = logging.getLogger(__name__)
TICK_S = 2.0  # floor under the doorbell
CHECK_S = 5.0  # session and role are looked at again this often
GAP_S = 0.1  # at most ten frames of lines a second
TAIL_LINES = 400
READ_LINES = 1000
NOT_SIGNED_IN, NOT_ALLOWED = 4401, 4403


class PageConsumer(AsyncWebsocketConsumer):
    """See apps.live.messages for what is said. Closes with 4401 (not signed in) or 4403 (no longer allowed)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.watched: frozenset[tuple[str, int]] = frozenset()
        self.standing: Standing | None = None
        self.follow: messages.Follow | None = None
        self.cursor = 0
        self.log_ended = False
        self._news: dict[tuple[str, int], int] = {}  # no larger than what is watched
        self._versions: dict[tuple[str, int], int] = {}
        self._log_due = self._check_due = self._gone = False
        self._awake = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()

    # the socket

    async def connect(self) -> None:
        self.standing = await database_sync_to_async(standing_of_scope)(self.scope)
        await self.accept()  # a close code reaches the browser only after the handshake
        if self.standing is None:
            return await self._end(NOT_SIGNED_IN, "not signed in")
        if not may(self.standing.actor, "view"):
            return await self._end(NOT_ALLOWED, "your role may not see this")
        hub().join(self)
        self._pump = asyncio.create_task(self._work(), name="viewer")

    async def disconnect(self, code: int) -> None:
        self._gone = True
        hub().leave(self)
        if self._pump is not None and self._pump is not asyncio.current_task():
            self._pump.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.standing is None:
            return
        try:
            message = messages.read(text_data or "")
        except messages.Unreadable as problem:
            return await self._say({"type": "refused", "why": str(problem)})
        match message:
            case messages.Ping():
                await self._say({"type": "pong"})
            case messages.Watch(objects):
                self.watched = objects
                self._news = {key: version for key, version in self._news.items() if key in objects}
                await self._compare_versions()
            case messages.Unfollow():
                self.follow = None
            case messages.Follow():
                self.follow, self.cursor, self.log_ended = (
                    message,
                    message.after if message.after is not None else -1,
                    False,
                )
                self._log_due = True
                self._awake.set()
            case messages.PageOf():
                await self._page(message)

    # what the hub calls

    def ring(self, kind: str, identity: int, version: int) -> None:
        if (kind, identity) in self.watched:
            self._news[(kind, identity)] = version
            self._awake.set()
        if self.follow is not None and kind in ("run", "log") and identity == self.follow.run:
            self._log_due = True
            self._awake.set()
        if kind == "person" and self.standing is not None and identity in (0, self.standing.user_id):
            self._check_due = True
            self._awake.set()

    def resync(self) -> None:
        self._log_due = True
        for key in self.watched:
            self._news.setdefault(key, 0)
        self._awake.set()

    # the pump

    async def _work(self) -> None:
        checked = looked = time.monotonic()
        try:
            while not self._gone:
                try:
                    async with asyncio.timeout(TICK_S):
                        await self._awake.wait()
                except TimeoutError:
                    pass
                self._awake.clear()
                now = time.monotonic()
                if self._check_due or now - checked >= CHECK_S:
                    self._check_due, checked = False, now
                    if not await self._still_allowed():
                        return await self._end(NOT_ALLOWED, "signed out, or the role has changed")
                tick = now - looked >= TICK_S
                if tick:
                    looked = now
                    if not hub().connected:
                        await self._compare_versions()
                await self._send_news()
                if self.follow is not None and (self._log_due or tick):
                    self._log_due = False
                    await self._send_lines(self.follow)
                await asyncio.sleep(GAP_S)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a viewer's socket failed")
            await self._end(1011, "our mistake; the page connects again")

    async def _still_allowed(self) -> bool:
        assert self.standing is not None
        try:
            return bool(await database_sync_to_async(still_allowed)(self.standing)) and may(self.standing.actor, "view")
        except DatabaseTrouble:
            return True  # the database is away for a moment; nothing can be read meanwhile either

    async def _compare_versions(self) -> None:
        """Without the doorbell: find out by looking."""
        try:
            found = await database_sync_to_async(versions_of)(self.watched)
        except DatabaseTrouble:
            return
        for key, version in found.items():
            if key in self._versions and self._versions[key] != version:
                self._news[key] = version
        self._versions = found

    async def _send_news(self) -> None:
        news, self._news = self._news, {}
        for (kind, identity), version in news.items():
            if (kind, identity) in self.watched:
                await self._say({"type": "changed", "object": kind, "id": identity, "version": version})

    async def _send_lines(self, follow: messages.Follow) -> None:
        """Everything after the cursor, in frames; each is awaited: who does not read holds up nobody but themselves."""
        try:
            if self.cursor < 0:
                await self._send_tail(follow)
            while self.follow is follow and not self._gone:
                answer = await hub().lines(
                    follow.run, after=self.cursor, limit=READ_LINES, rank=follow.rank, step=follow.step
                )
                if (
                    self.cursor > answer.total
                ):  # lines that are not there: an older backup was restored under an open page
                    await self._send_tail(follow)
                    continue
                if not answer.frames:
                    if answer.ended and not self.log_ended:
                        self.log_ended = True
                        await self._lines("lines", follow.run, answer)
                    elif answer.next > self.cursor:
                        self.cursor = answer.next
                        continue
                    return
                before = self.cursor
                await self._lines("lines", follow.run, answer)
                if self.follow is follow:
                    self.cursor = answer.next
                if self.cursor <= before:
                    return
                await asyncio.sleep(0 if answer.more else GAP_S)
        except Run.DoesNotExist:
            self.follow = None
            await self._say({"type": "refused", "why": f"there is no run {follow.run}"})
        except DatabaseTrouble as problem:
            log.warning("lines of run %s can't be read now: %s", follow.run, problem)

    async def _send_tail(self, follow: messages.Follow) -> None:
        answer = await hub().lines(follow.run, before=2**62, limit=TAIL_LINES, rank=follow.rank, step=follow.step)
        await self._lines("snapshot", follow.run, answer)
        if self.follow is follow:
            self.cursor = answer.last
            self.log_ended = False

    async def _lines(self, kind: str, run: int, answer: Answer) -> None:
        frames = answer.frames or (messages.Frame("[]", answer.next),)
        for position, frame in enumerate(frames):
            last = position == len(frames) - 1
            about = {
                "type": kind if position == 0 else "lines",
                "run": run,
                "next": answer.next if last else frame.last,
                "ended": answer.ended and last,
                "total": answer.total,
            }
            await self._send_frame(about, frame.text)

    async def _page(self, wanted: messages.PageOf) -> None:
        try:
            answer = await hub().lines(
                wanted.run,
                after=wanted.after,
                before=wanted.before,
                limit=wanted.limit,
                rank=wanted.rank,
                step=wanted.step,
            )
        except (Run.DoesNotExist, DatabaseTrouble):
            return await self._say({"type": "refused", "why": "these lines can't be read now"})
        frames = answer.frames
        text = "[]" if not frames else frames[-1].text if wanted.before is not None else frames[0].text
        about = {
            "type": "page",
            "run": wanted.run,
            "after": wanted.after,
            "before": wanted.before,
            "ended": answer.ended and len(frames) < 2,
            "total": answer.total,
        }
        await self._send_frame(about, text)

    async def _send_frame(self, about: dict[str, Any], lines: str) -> None:
        """A message whose lines are JSON already."""
        await self._put(f'{json.dumps(about, separators=(",", ":"))[:-1]},"lines":{lines}}}')

    async def _say(self, body: dict[str, Any]) -> None:
        await self._put(json.dumps(body, ensure_ascii=False, separators=(",", ":")))

    async def _put(self, text: str) -> None:
        """Waits until it could be sent: who reads slowly is sent slowly. The socket may have closed meanwhile (the server closes
        one that answers no ping for some time); whoever comes again goes on after their cursor."""
        async with self._sending:
            if self._gone:
                return
            try:
                await self.send(text_data=text)
            except (RuntimeError, OSError):  # the server's word for a closed socket
                self._gone = True

    async def _end(self, code: int, why: str) -> None:
        await self._say({"type": "closed", "why": why})
        if self._gone:
            return
        try:
            await self.close(code)
        except (RuntimeError, OSError):
            pass  # the browser has gone already


def versions_of(watched: frozenset[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The versions of what is watched, as the rows say. `fleet` is the sum of all nodes and deployments."""
    found: dict[tuple[str, int], int] = {}
    for kind, model in (("run", Run), ("deployment", Deployment), ("node", Node)):
        wanted = [identity for name, identity in watched if name == kind]
        if wanted:
            rows = model.objects.filter(pk__in=wanted).values_list("pk", "version")  # type: ignore[attr-defined]
            found |= {(kind, pk): version for pk, version in rows}
    if ("fleet", 0) in watched:
        found["fleet", 0] = sum(Node.objects.values_list("version", flat=True)) + sum(
            Deployment.objects.values_list("version", flat=True)
        )
    return found
