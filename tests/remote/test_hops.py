"""Doors behind doors: chains of any depth, and whose fault it is when one does not open."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import asyncssh
import pytest

from apps.remote import hostkeys
from apps.remote.ssh import connect
from apps.remote.transport import AccessDenied, CannotReach, ConnectionLost, Endpoint, KeyProblem
from apps.remote.wire import Limits
from tests.openssh import OpenSsh, free_port, make_key


class _Refusing(asyncssh.SSHServer):
    """Lets everybody in and refuses every forwarding with the given words."""

    def __init__(self, code: int, text: str) -> None:
        self._refusal = asyncssh.ChannelOpenError(code, text)

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_requested(self, *_: object) -> bool:
        raise self._refusal


@contextmanager
def refusing_jump(openssh: OpenSsh, code: int, text: str) -> Iterator[Endpoint]:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    key = asyncssh.generate_private_key("ssh-ed25519")

    async def listen() -> asyncssh.SSHAcceptor:
        return await asyncssh.create_server(lambda: _Refusing(code, text), "127.0.0.1", 0, server_host_keys=[key])

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    kind, base64 = key.export_public_key().decode().split()[:2]
    try:
        yield Endpoint("jump", "127.0.0.1", server.get_port(), "me", openssh.private_key, ((kind, base64),))
    finally:
        loop.call_soon_threadsafe(server.close)


QUICK = Limits(tcp_s=3, banner_s=2, channel_s=3, silence_s=0.5, probe_s=0.5)


def test_three_doors_in_a_row(openssh: OpenSsh) -> None:
    first, second, third = (openssh.start(name) for name in ("first", "second", "third"))
    endpoint = third.endpoint(via=second.endpoint(via=first.endpoint()))
    with connect(endpoint) as node:
        assert node.run('echo "$HOME"').stdout.decode().strip() == str(third.home)
        jump = node.parent
        assert jump is not None and jump.parent is not None and jump.parent.alive
    assert not node.alive and not jump.alive and not jump.parent.alive


def test_what_the_jump_host_says_about_the_target_is_the_targets_reason(openssh: OpenSsh) -> None:
    jump, target = openssh.start("jump").endpoint(), openssh.start("target").endpoint()
    behind = dataclasses.replace(target, via=jump)
    with pytest.raises(CannotReach) as refused:
        connect(dataclasses.replace(behind, port=free_port()))
    assert (refused.value.reason, refused.value.hop) == ("ssh_refused", "target")
    with pytest.raises(CannotReach) as unsaid:  # multicast: refused by the jump host's kernel; sshd does not say why
        connect(dataclasses.replace(behind, address="224.0.0.1"))
    assert (unsaid.value.reason, unsaid.value.hop) == ("jump_refused", "jump")


@pytest.mark.parametrize(
    ("code", "text", "reason", "hop"),
    [
        (asyncssh.OPEN_CONNECT_FAILED, "No route to host", "no_route", "target"),
        (asyncssh.OPEN_CONNECT_FAILED, "Connection timed out", "ssh_timeout", "target"),
        (asyncssh.OPEN_CONNECT_FAILED, "Name or service not known", "dns", "target"),
        (asyncssh.OPEN_CONNECT_FAILED, "Connection refused", "ssh_refused", "target"),
        (asyncssh.OPEN_CONNECT_FAILED, "open failed", "jump_refused", "jump"),
        (asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "No route to host", "jump_refused", "jump"),
    ],
)
def test_the_words_of_a_jump_host_decide(openssh: OpenSsh, code: int, text: str, reason: str, hop: str) -> None:
    target = openssh.start("target")
    with refusing_jump(openssh, code, text) as jump, pytest.raises(CannotReach) as caught:
        connect(target.endpoint(via=jump))
    assert (caught.value.reason, caught.value.hop) == (reason, hop)
    assert text in caught.value.evidence


def test_a_jump_host_that_forbids_forwarding(openssh: OpenSsh) -> None:
    jump = openssh.start("jump", AllowTcpForwarding="no").endpoint()
    with pytest.raises(CannotReach) as caught:
        connect(openssh.start("target").endpoint(via=jump))
    assert (caught.value.reason, caught.value.hop) == ("jump_refused", "jump")


def test_a_jump_host_that_is_not_there_keeps_the_inner_reason(openssh: OpenSsh) -> None:
    jump = openssh.start("jump").endpoint(port=free_port())
    target = openssh.start("target").endpoint(via=jump)
    for behind in (target, dataclasses.replace(target, name="farther", via=target)):
        with pytest.raises(CannotReach) as caught:
            connect(behind)
        assert (caught.value.reason, caught.value.hop) == ("jump_unreachable", "jump")
        assert "ssh_refused" in caught.value.evidence


def test_wrong_keys_at_the_jump_host_stay_wrong_keys(openssh: OpenSsh) -> None:
    server, target = openssh.start("jump"), openssh.start("target")
    stranger = make_key(openssh.folder / "stranger")
    with pytest.raises(AccessDenied) as denied:
        connect(target.endpoint(via=server.endpoint(private_key=stranger)))
    assert (denied.value.reason, denied.value.hop) == ("ssh_auth", "jump")
    with pytest.raises(KeyProblem) as unknown:
        connect(target.endpoint(via=server.endpoint(host_keys=())))
    assert (unknown.value.reason, unknown.value.hop) == ("host_key_unknown", "jump")


def test_both_doors_are_checked(openssh: OpenSsh) -> None:
    jump, target = openssh.start("jump"), openssh.start("target")
    with pytest.raises(KeyProblem) as caught:  # the jump host's keys don't open the target
        connect(target.endpoint(via=jump.endpoint(), host_keys=jump.host_keys))
    assert (caught.value.reason, caught.value.hop) == ("host_key_changed", "target")


def test_a_frozen_jump_host_is_named(openssh: OpenSsh) -> None:
    jump = openssh.start("jump")
    node = connect(openssh.start("target").endpoint(via=jump.endpoint()), limits=QUICK)
    threading.Timer(0.2, jump.freeze).start()
    with pytest.raises(ConnectionLost) as caught:
        node.run("sleep 50")
    assert "jump" in caught.value.evidence


def test_a_frozen_jump_host_is_unreachable_for_new_connections(openssh: OpenSsh) -> None:
    jump = openssh.start("jump")
    target = openssh.start("target").endpoint(via=jump.endpoint())
    parent = connect(jump.endpoint(), limits=QUICK)
    jump.freeze()
    with pytest.raises(CannotReach) as caught:
        connect(target, parent=parent, limits=QUICK)
    assert (caught.value.reason, caught.value.hop) == ("jump_unreachable", "jump")


def test_a_ring_of_jump_hosts_is_refused() -> None:
    endpoint = Endpoint("end", "127.0.0.1", 1, "me", "")
    for number in range(20):
        endpoint = Endpoint(f"hop{number}", "127.0.0.1", 1, "me", "", via=endpoint)
    with pytest.raises(ValueError, match="more than 16"):
        connect(endpoint)


# -- scanning and checking ---------------------------------------------------------------------------------------------


def test_scan_finds_all_types_through_a_pinned_jump_host(openssh: OpenSsh) -> None:
    jump, target = openssh.start("jump"), openssh.start("target", kinds=("ed25519", "ecdsa", "rsa"))
    last = target.endpoint(host_keys=(), private_key="")
    expected = {(kind, text) for kind, text in target.host_keys}
    for asked in ([jump.endpoint(), last], dataclasses.replace(last, via=jump.endpoint())):
        found = hostkeys.scan(asked)
        assert {(key.type, key.base64) for key in found} == expected
        assert all(key.hop == "target" and key.sha256 == hostkeys.fingerprint(key.base64) for key in found)
    assert len(hostkeys.scan(openssh.start("one", kinds=("ed25519",)).endpoint(host_keys=(), private_key=""))) == 1


def test_scan_does_not_pass_an_unpinned_jump_host(openssh: OpenSsh) -> None:
    jump, target = openssh.start("jump"), openssh.start("target")
    with pytest.raises(KeyProblem) as caught:
        hostkeys.scan([jump.endpoint(host_keys=()), target.endpoint()])
    assert caught.value.hop == "jump"


def test_check_tells_each_step_up_to_the_first_that_failed(openssh: OpenSsh) -> None:
    server, jump = openssh.start("node"), openssh.start("jump")

    def told(endpoint: Endpoint) -> list[tuple[str, bool, str | None]]:
        return [(step.step, step.ok, step.reason) for step in hostkeys.check(endpoint)]

    fine = [("dns", True, None), ("tcp", True, None), ("host_key", True, None), ("auth", True, None)]
    assert told(server.endpoint()) == [*fine, ("shell", True, None)]
    assert told(server.endpoint(via=jump.endpoint())) == [("jump", True, None), *fine[1:], ("shell", True, None)]
    assert told(server.endpoint(address="a" * 64)) == [("dns", False, "dns")]
    assert told(server.endpoint(port=free_port())) == [fine[0], ("tcp", False, "ssh_refused")]
    assert told(server.endpoint(host_keys=())) == [*fine[:2], ("host_key", False, "host_key_unknown")]
    assert told(server.endpoint(user="nobody-here")) == [*fine[:3], ("auth", False, "ssh_auth")]
    dead = jump.endpoint(port=free_port())
    assert told(server.endpoint(via=dead)) == [("jump", False, "jump_unreachable")]
    closed = openssh.start("closed", ForceCommand="exit 1")
    assert told(closed.endpoint()) == [*fine, ("shell", False, "ssh_auth")]
