"""One warm connection per endpoint: reused, shared as a jump, replaced when dead, closed when idle, never forked."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from apps.remote.pool import Pool
from apps.remote.transport import CannotReach
from apps.remote.wire import Limits
from tests.openssh import OpenSsh, free_port


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(limits=Limits(silence_s=0.5, probe_s=0.5, tcp_s=3, banner_s=2))
    yield made
    made.close()


def test_many_threads_share_one_connection_and_one_jump(openssh: OpenSsh, pool: Pool) -> None:
    jump, left, right = (openssh.start(name) for name in ("jump", "left", "right"))
    ways = [left.endpoint(via=jump.endpoint()), right.endpoint(via=jump.endpoint()), jump.endpoint()]
    with ThreadPoolExecutor(12) as threads:
        got = list(threads.map(pool.get, ways * 4))
    assert len({id(transport) for transport in got}) == 3 == len(pool)
    assert pool.get(ways[0]).parent is pool.get(ways[1]).parent is pool.get(ways[2])
    assert all(transport.run("echo in").ok for transport in got[:3])


def test_a_dead_connection_is_replaced(openssh: OpenSsh, pool: Pool) -> None:
    server, jump = openssh.start("node"), openssh.start("jump")
    endpoint = server.endpoint(via=jump.endpoint())
    first = pool.get(endpoint)
    jump.cut()
    deadline = time.monotonic() + 10
    while first.alive and time.monotonic() < deadline:
        time.sleep(0.02)
    second = pool.get(endpoint)
    assert second is not first and second.run("echo in").ok


def test_a_silent_connection_is_asked_before_it_is_given(openssh: OpenSsh, pool: Pool) -> None:
    server = openssh.start("node")
    first = pool.get(server.endpoint())
    for pid in server.children():
        os.kill(pid, 19)  # only the session freezes, the listener still answers
    time.sleep(0.6)
    second = pool.get(server.endpoint())
    assert second is not first and second.run("echo in").ok


def test_failure_is_shared_and_does_not_stick(openssh: OpenSsh, pool: Pool) -> None:
    port = free_port()
    server = openssh.start("node")
    nowhere = server.endpoint(port=port)
    with pytest.raises(CannotReach):
        pool.get(nowhere)
    again = openssh.start("node", port=port)
    assert pool.get(again.endpoint()).run("echo in").ok
    assert len(pool) == 1


def test_idle_connections_close_but_not_the_jump_of_a_busy_one(openssh: OpenSsh) -> None:
    jump, node = openssh.start("jump"), openssh.start("node")
    pool = Pool(idle_s=0.3)
    try:
        inner = pool.get(node.endpoint(via=jump.endpoint()))
        time.sleep(0.4)
        inner.last_used = time.monotonic()
        pool.close_idle()
        assert len(pool) == 2
        inner.last_used = 0
        pool.close_idle()
        assert not inner.alive and len(pool) == 1
        pool.close_idle()
        assert len(pool) == 0
    finally:
        pool.close()


def test_a_changed_endpoint_is_a_new_connection_and_the_old_one_goes(openssh: OpenSsh) -> None:
    server = openssh.start("node")
    pool = Pool(grace_s=0.3)
    try:
        first = pool.get(server.endpoint())
        changed = dataclasses.replace(server.endpoint(), host_keys=server.host_keys[:1])
        second = pool.get(changed)
        assert second is not first and second.alive
        assert first.run("echo in").ok, "somebody who was given it just before may use it"
        time.sleep(0.4)
        assert pool.get(changed) is second and not first.alive
    finally:
        pool.close()


def test_a_login_is_renewed_under_those_who_use_it(openssh: OpenSsh) -> None:
    """Many threads, one of which renews all the time: nobody's command is cut off."""
    jump, node = openssh.start("jump"), openssh.start("node")
    pool = Pool(grace_s=0.2)
    failed: list[BaseException] = []
    until = time.monotonic() + 4

    def work(number: int) -> None:
        endpoint, login = node.endpoint(via=jump.endpoint()), 0
        while time.monotonic() < until:
            try:
                assert pool.get(endpoint).run("echo in").ok
                if number == 0:
                    pool.renew(endpoint if login % 2 else jump.endpoint())
                    login += 1
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
    finally:
        pool.close()


def test_an_end_behind_a_dead_jump_host_is_no_error(openssh: OpenSsh, pool: Pool) -> None:
    jump, node = openssh.start("jump"), openssh.start("node")
    inner = pool.get(node.endpoint(via=jump.endpoint()))
    tunnel = inner.open_tunnel("127.0.0.1", node.port)
    parent = pool.get(jump.endpoint())
    parent.close()
    tunnel.close()
    inner.close()
    assert not inner.alive
    assert pool.get(node.endpoint(via=jump.endpoint())).run("echo in").ok


def test_a_fork_starts_empty_and_leaves_the_parents_connection_alone(openssh: OpenSsh, pool: Pool) -> None:
    endpoint = openssh.start("node").endpoint()
    transport = pool.get(endpoint)
    child = os.fork()
    if child == 0:  # whatever happens, the child must not return into pytest
        code = 1
        try:
            fresh = pool.get(endpoint)
            code = 0 if fresh is not transport and fresh.run("echo in").ok and not transport.alive else 2
            fresh.close()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert pool.get(endpoint) is transport and transport.run("echo in").ok
