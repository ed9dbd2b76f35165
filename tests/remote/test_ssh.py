"""The real transport against real sshd: bytes, exit codes, and each way of not getting in with its own reason."""

from __future__ import annotations

import dataclasses
import hashlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from apps.remote import ssh
from apps.remote.ssh import NotWritten, connect, fingerprint
from apps.remote.transport import AccessDenied, BadAnswer, CannotReach, ConnectionLost, KeyProblem
from apps.remote.wire import Limits
from tests.openssh import OpenSsh, free_port, make_key

QUICK = Limits(tcp_s=3, banner_s=1, handshake_s=3, auth_s=5, channel_s=3, silence_s=0.5, probe_s=0.5)


@contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A TCP server on loopback that treats every client with `answer`."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                answer(client)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()


# -- running -----------------------------------------------------------------------------------------------------------


def test_three_megabytes_on_both_outputs_at_once_arrive_exactly(openssh: OpenSsh) -> None:
    block = bytes(range(256)) * 4096 * 3
    with connect(openssh.start("node").endpoint()) as node:
        node.write_file("~/block", block)
        result = node.run('cat "$HOME/block" & cat "$HOME/block" >&2; wait')
    assert (len(result.stdout), len(result.stderr), result.exit_code) == (len(block), len(block), 0)
    assert (
        hashlib.sha256(result.stdout).digest()
        == hashlib.sha256(result.stderr).digest()
        == hashlib.sha256(block).digest()
    )


def test_script_input_and_exit_codes(openssh: OpenSsh) -> None:
    with connect(openssh.start("node").endpoint()) as node:
        assert node.run("exit 7").exit_code == 7
        assert node.run("false").exit_code == 1
        assert node.run("# nothing").exit_code == 0
        assert node.run("kill -9 $$").exit_code == 255
        assert node.run("cat; exit 3", stdin=b"a\0b\n'\"$x").stdout == b"a\0b\n'\"$x"
        assert node.run("exit 4", stdin=b"x" * 300_000).exit_code == 4
        assert node.run("cat").stdout == b""  # without input a command sees the end, not the rest of the script
        text = "".join(chr(code) for code in range(1, 0x500) if code not in (10, 39))
        assert node.run(f"printf %s '{text}'").stdout == text.encode()
        syntax = node.run("if; fi")
        assert syntax.exit_code == 2 and b"yntax error" in syntax.stderr


def test_a_noisy_login_is_not_in_the_result(openssh: OpenSsh) -> None:
    noisy = openssh.start("noisy", ForceCommand='echo Welcome; echo careful >&2; eval "$SSH_ORIGINAL_COMMAND"')
    with connect(noisy.endpoint()) as node:
        result = node.run("echo out; echo err >&2; exit 5")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 5)


def test_an_account_without_a_shell_is_denied_in_its_own_words(openssh: OpenSsh) -> None:
    closed = openssh.start("closed", ForceCommand="echo This account is currently not available.; exit 1")
    with connect(closed.endpoint()) as node, pytest.raises(AccessDenied) as caught:
        node.run("echo here")
    assert caught.value.reason == "ssh_auth"
    assert "This account is currently not available." in caught.value.evidence


def test_the_time_limit_ends_the_wait_and_the_transport_goes_on(openssh: OpenSsh) -> None:
    with connect(openssh.start("node").endpoint()) as node:
        late = node.run("echo first; sleep 20", timeout_s=0.5)
        assert (late.stdout, late.exit_code, late.ok) == (b"first\n", None, False)
        assert 0.4 < late.seconds < 10
        assert node.run("echo next").stdout == b"next\n"


def test_something_left_in_the_background_does_not_hold_the_result(openssh: OpenSsh) -> None:
    with connect(openssh.start("node").endpoint()) as node:
        result = node.run("sleep 15 & echo done; exit 2", timeout_s=14)
    assert (result.stdout, result.exit_code) == (b"done\n", 2)
    assert result.seconds < 10


def test_write_file_replaces_whole_files_with_the_mode_and_names_what_failed(openssh: OpenSsh) -> None:
    server = openssh.start("node")
    with connect(server.endpoint()) as node:
        node.write_file("~/it's here", b"\0one")
        node.write_file("~/it's here", b"\0two", mode=0o640)
        written = server.home / "it's here"
        assert written.read_bytes() == b"\0two" and written.stat().st_mode & 0o777 == 0o640
        assert [path.name for path in server.home.iterdir()] == ["it's here"]
        with pytest.raises(NotWritten, match="exited: could not write /no/such/folder/file"):
            node.write_file("/no/such/folder/file", b"x")


@pytest.mark.parametrize("most", ["10", "3"])
def test_twenty_commands_at_once_queue_for_the_sessions_of_the_server(openssh: OpenSsh, most: str) -> None:
    with connect(openssh.start("node", MaxSessions=most).endpoint()) as node, ThreadPoolExecutor(20) as threads:
        results = list(threads.map(lambda n: node.run(f"sleep 0.1; echo {n}"), range(20)))
    assert [result.stdout for result in results] == [f"{n}\n".encode() for n in range(20)]


# -- host keys ---------------------------------------------------------------------------------------------------------


def test_nothing_is_trusted_without_a_pin(openssh: OpenSsh) -> None:
    server = openssh.start("node")
    with pytest.raises(KeyProblem) as caught:
        connect(server.endpoint(host_keys=()))
    error = caught.value
    assert (error.reason, error.hop) == ("host_key_unknown", "node")
    assert error.offered == ("ssh-ed25519", fingerprint(dict(server.host_keys)["ssh-ed25519"]))
    printed = subprocess.run(["ssh-keygen", "-lf", server.folder / "host_ed25519.pub"], capture_output=True, text=True)
    assert error.offered[1] == printed.stdout.split()[1]


def test_a_changed_key_is_told_from_a_new_type(openssh: OpenSsh) -> None:
    server, other = openssh.start("node"), openssh.start("other")
    with pytest.raises(KeyProblem) as changed:
        connect(server.endpoint(host_keys=other.host_keys))
    assert changed.value.reason == "host_key_changed"
    only = openssh.start("only", kinds=("ed25519",))
    ecdsa = tuple(key for key in server.host_keys if "ecdsa" in key[0])
    with pytest.raises(KeyProblem) as new_type:
        connect(only.endpoint(host_keys=ecdsa))
    assert new_type.value.reason == "host_key_unknown"
    assert "types pinned: ecdsa-sha2-nistp256" in new_type.value.evidence


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_the_pinned_type_is_asked_for_first(openssh: OpenSsh, kind: str) -> None:
    server = openssh.start("node", kinds=("ed25519", "ecdsa", "rsa"))
    with connect(server.endpoint(kinds=(kind,))) as node:
        assert node.run("echo in").ok


# -- who we are --------------------------------------------------------------------------------------------------------


def test_wrong_keys_and_users_are_denied(openssh: OpenSsh) -> None:
    server = openssh.start("node")
    stranger = make_key(openssh.folder / "stranger")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", openssh.folder / "locked"], check=True)
    locked = (openssh.folder / "locked").read_text()
    for changes, evidence in (
        ({"private_key": stranger}, "user"),
        ({"user": "nobody-of-that-name"}, "nobody-of-that-name"),
        ({"private_key": "not a key"}, "not an ed25519"),
        ({"private_key": ""}, "not an ed25519"),
        ({"private_key": locked}, "passphrase"),
    ):
        with pytest.raises(AccessDenied) as caught:
            connect(server.endpoint(**changes))
        assert (caught.value.reason, caught.value.hop) == ("ssh_auth", "node")
        assert evidence in caught.value.evidence
        assert "PRIVATE KEY" not in str(caught.value)


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_other_kinds_of_user_keys_are_let_in(openssh: OpenSsh, kind: str) -> None:
    text = make_key(openssh.folder / kind, kind)
    server = openssh.start("node")
    (server.folder / "authorized_keys").write_text((openssh.folder / f"{kind}.pub").read_text())
    with connect(server.endpoint(private_key=text)) as node:
        assert node.run("echo in").ok


# -- not getting there -------------------------------------------------------------------------------------------------


def test_refused_and_unknown_names(openssh: OpenSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = openssh.start("node").endpoint()
    with pytest.raises(CannotReach) as refused:
        connect(dataclasses.replace(endpoint, port=free_port()))
    assert refused.value.reason == "ssh_refused" and refused.value.evidence.endswith(": Connection refused")
    with pytest.raises(CannotReach) as name:
        connect(dataclasses.replace(endpoint, address="a" * 64))
    assert name.value.reason == "dns" and "Errno" not in name.value.evidence
    with pytest.raises(CannotReach) as name:
        connect(dataclasses.replace(endpoint, address=f"{'a' * 64}.é"))
    assert (name.value.reason, name.value.evidence) == ("dns", f"{'a' * 64}.é: not a valid host name")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(CannotReach) as name:
        connect(endpoint)
    assert name.value.reason == "dns" and "Name or service not known" in name.value.evidence


def test_no_route_and_silence_on_tcp(openssh: OpenSsh) -> None:
    endpoint = openssh.start("node").endpoint()
    with pytest.raises(CannotReach) as caught:  # TCP to a multicast address is refused by our own kernel, unsent
        connect(dataclasses.replace(endpoint, address="224.0.0.1"))
    assert caught.value.reason == "no_route"
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        held = socket.create_connection(("127.0.0.1", port))  # the queue of one is full now: further handshakes wait
        with held, pytest.raises(CannotReach) as caught:
            connect(dataclasses.replace(endpoint, port=port), limits=dataclasses.replace(QUICK, tcp_s=0.5))
    assert caught.value.reason == "ssh_timeout"


@pytest.mark.parametrize(
    ("greeting", "reason", "evidence"),
    [
        (b"", "ssh_busy", "banner"),
        (b"Exceeded MaxStartups\r\n", "ssh_busy", "Exceeded MaxStartups"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not_ssh", "HTTP/1.1 400"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "ssh_busy", "key exchange"),
    ],
)
def test_doors_that_close_before_the_key_exchange(
    openssh: OpenSsh, greeting: bytes, reason: str, evidence: str
) -> None:
    endpoint = openssh.start("node").endpoint()
    with listener(lambda client: client.sendall(greeting)) as port, pytest.raises(CannotReach) as caught:
        connect(dataclasses.replace(endpoint, port=port), limits=QUICK)
    assert caught.value.reason == reason and evidence in caught.value.evidence


def test_a_banner_that_does_not_come_is_busy(openssh: OpenSsh) -> None:
    endpoint = openssh.start("node").endpoint()
    wait = threading.Event()
    with listener(lambda client: wait.wait(10) and None) as port:
        began = time.monotonic()
        with pytest.raises(CannotReach) as caught:
            connect(dataclasses.replace(endpoint, port=port), limits=QUICK)
        wait.set()
    assert caught.value.reason == "ssh_busy"
    assert time.monotonic() - began < 8


def test_max_startups_is_busy(openssh: OpenSsh) -> None:
    server = openssh.start("node", MaxStartups="1:100:1")
    with socket.create_connection(("127.0.0.1", server.port)) as first:
        first.recv(64)  # an unauthenticated connection holds the only place
        with pytest.raises(CannotReach) as caught:
            connect(server.endpoint(), limits=QUICK)
    assert caught.value.reason == "ssh_busy"


# -- losing it ---------------------------------------------------------------------------------------------------------


def test_a_frozen_server_is_found_out_in_bounded_time(openssh: OpenSsh) -> None:
    server = openssh.start("node")
    node = connect(server.endpoint(), limits=QUICK)
    node.run("true")
    server.freeze()
    began = time.monotonic()
    with pytest.raises(ConnectionLost) as caught:
        node.run("echo never", timeout_s=60)
    assert caught.value.reason == "ssh_timeout"
    assert time.monotonic() - began < 15
    assert not node.alive
    with pytest.raises(ConnectionLost):
        node.run("true")


def test_a_server_that_freezes_while_we_send_is_found_out_too(openssh: OpenSsh) -> None:
    server = openssh.start("node")
    node = connect(server.endpoint(), limits=QUICK)
    threading.Timer(0.3, server.freeze).start()
    with pytest.raises(ConnectionLost):
        node.run("sleep 1; cat >/dev/null; sleep 30", stdin=b"x" * 30_000_000, timeout_s=60)


def test_a_slow_but_living_command_is_not_taken_for_dead(openssh: OpenSsh) -> None:
    with connect(openssh.start("node").endpoint(), limits=QUICK) as node:
        assert node.run("sleep 3; echo done", timeout_s=20).stdout == b"done\n"


def test_a_cut_connection_is_told_at_once(openssh: OpenSsh) -> None:
    server = openssh.start("node")
    node = connect(server.endpoint())
    threading.Timer(0.5, server.cut).start()
    began = time.monotonic()
    with pytest.raises(ConnectionLost):
        node.run("sleep 30")
    assert time.monotonic() - began < 10


def test_closing_from_another_thread_ends_a_running_command(openssh: OpenSsh) -> None:
    node = connect(openssh.start("node").endpoint())
    threading.Timer(0.3, node.close).start()
    with pytest.raises(ConnectionLost):
        node.run("sleep 30")


def test_output_without_end_is_cut_off_and_the_transport_goes_on(
    openssh: OpenSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "LARGEST_OUTPUT", 300_000)
    with connect(openssh.start("node").endpoint()) as node:
        for script in ("yes", "yes >&2", "exec yes $(head -c 9000 /dev/zero | tr '\\0' x)"):
            with pytest.raises(BadAnswer, match="more than 300000 bytes") as caught:
                node.run(script, timeout_s=30)
            assert (caught.value.reason, caught.value.hop) == ("bad_answer", "node")
        assert node.run("head -c 200000 /dev/zero").ok
