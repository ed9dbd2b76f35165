"""Warm connections: one per endpoint and process, a jump host's shared by all nodes behind it.

A pool is never used across a fork: a child that finds its parent's pool lets go of the connections without a word on
them and starts empty. Threads of one process share it freely.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from apps.remote import hops
from apps.remote.ssh import ParamikoTransport, connect
from apps.remote.transport import Endpoint, RemoteError
from apps.remote.wire import Limits

Connect = Callable[..., ParamikoTransport]


class Pool:
    """`get(endpoint)` gives a living transport. Callers don't close what they got; `close()` ends all."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        idle_s: float = 300.0,
        grace_s: float = 5.0,  # between `get` and the first command over what it gave
        connect: Connect = connect,
    ) -> None:
        self._limits, self._idle_s, self._grace_s, self._connect = limits or Limits(), idle_s, grace_s, connect
        self._start_empty()

    def get(self, endpoint: Endpoint) -> ParamikoTransport:
        """The warm transport, or a new one when there is none or it died. Raises RemoteError.

        Several callers of one endpoint share one attempt and its failure; different endpoints don't wait for each
        other. A connection that was silent for longer than the limit is asked for a sign of life first.
        """
        self._mind_forks()
        self.close_idle()
        with self._lock:
            future = self._warm.get(endpoint)
            mine = future is None or _dead(future)
            if future is None or mine:
                dead = future
                future = self._warm[endpoint] = Future()
        if not mine:
            return self._checked(endpoint, future)
        try:
            if dead is not None and dead.exception() is None:
                dead.result().close()
            future.set_result(self._new(endpoint))
        except BaseException as error:
            with self._lock:
                if self._warm.get(endpoint) is future:
                    del self._warm[endpoint]
            future.set_exception(error)
            raise
        self._drop_predecessors(endpoint)
        return future.result()

    def renew(self, endpoint: Endpoint) -> None:
        """Let the next `get` log in anew, e.g. because groups changed. The connection that is warm now is closed when nobody
        has used it for a while and nothing runs through it."""
        self._mind_forks()
        with self._lock:
            future = self._warm.get(endpoint)
            if future is not None and _usable(future):
                self._retire(endpoint)
        self.close_idle()

    def close_idle(self) -> None:
        """Close connections that nobody used for `idle_s`, or retired ones that nobody uses any more, unless another one
        runs through them."""
        with self._lock:
            ready = [(endpoint, future.result()) for endpoint, future in self._warm.items() if _usable(future)]
            parents = {id(one.parent) for one in (*(transport for _, transport in ready), *self._retired)}
            now = time.monotonic()
            idle = [
                (endpoint, transport)
                for endpoint, transport in ready
                if id(transport) not in parents and not transport.busy and now - transport.last_used > self._idle_s
            ]
            for endpoint, _ in idle:
                del self._warm[endpoint]
            done = [
                one
                for one, since in self._retired.items()
                if id(one) not in parents and not one.busy and now - max(since, one.last_used) > self._grace_s
            ]
            for transport in done:
                del self._retired[transport]
        for transport in (*(transport for _, transport in idle), *done):
            transport.close()

    def close(self) -> None:
        """End all connections, inner ones before those they run through."""
        if self._process != os.getpid():
            self._mind_forks()
            return
        with self._lock:
            all_of_them = [*self._retired, *(future.result() for future in self._warm.values() if _usable(future))]
            self._warm.clear()
            self._retired.clear()
        for transport in sorted(all_of_them, key=lambda each: len(hops.chain(each.endpoint)), reverse=True):
            transport.close()

    def __len__(self) -> int:
        return sum(1 for future in list(self._warm.values()) if _usable(future) and future.result().alive)

    def _new(self, endpoint: Endpoint) -> ParamikoTransport:
        parent = None
        if endpoint.via is not None:
            try:
                parent = self.get(endpoint.via)
            except RemoteError as error:
                raise hops.jump_failure(error) from error
        return self._connect(endpoint, parent=parent, limits=self._limits)

    def _checked(self, endpoint: Endpoint, future: Future[ParamikoTransport]) -> ParamikoTransport:
        """Somebody else's connection, asked whether it lives when it was silent for long."""
        transport = future.result(timeout=600)
        if transport.silent_s < self._limits.silence_s or transport.probe():
            return transport
        transport.close()
        return self.get(endpoint)

    def _drop_predecessors(self, endpoint: Endpoint) -> None:
        """A node whose key, pins, way or login changed is a new endpoint: the old connection is retired."""
        with self._lock:
            for key in [key for key in self._warm if key.name == endpoint.name and key != endpoint]:
                if _usable(self._warm[key]):
                    self._retire(key)
        self.close_idle()

    def _retire(self, endpoint: Endpoint) -> None:
        self._retired[self._warm.pop(endpoint).result()] = time.monotonic()

    def _start_empty(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._warm: dict[Endpoint, Future[ParamikoTransport]] = {}
        self._retired: dict[ParamikoTransport, float] = {}  # since, monotonic seconds

    def _mind_forks(self) -> None:
        if self._process == os.getpid():
            return
        inherited = [*self._retired, *(future.result() for future in self._warm.values() if _usable(future))]
        self._start_empty()
        for transport in inherited:
            transport.abandon()


def _usable(future: Future[ParamikoTransport]) -> bool:
    return future.done() and future.exception() is None


def _dead(future: Future[ParamikoTransport]) -> bool:
    return future.done() and (future.exception() is not None or not future.result().alive)
