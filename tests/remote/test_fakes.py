"""The two pretended transports do what the protocol says, so that tests of other rooms may lean on them."""

from __future__ import annotations

import pytest

from apps.remote.printer import Printer
from apps.remote.recorded import Asked, Recorded
from apps.remote.transport import CannotReach, HttpAnswer, HttpFailed, Result, Transport


def test_recorded_answers_in_order_and_remembers() -> None:
    node = Recorded("spark")
    first, second = Result(b"1", b"", 0), Result(b"2", b"", 0)
    node.on("docker ps", first, second).on("fail", CannotReach("no_route", hop="spark"))
    node.on("echo", lambda script, stdin: Result(stdin, b"", 0))
    node.on_http("GET .*/v1/models", HttpFailed("refused"), HttpAnswer(200, {}, b"{}"))
    assert [node.run("docker ps -a").stdout for _ in range(3)] == [b"1", b"2", b"2"]
    assert node.run("echo", stdin=b"in").stdout == b"in"
    with pytest.raises(CannotReach):
        node.run("fail")
    with pytest.raises(AssertionError, match="rm -rf"):
        node.run("rm -rf /")
    with pytest.raises(HttpFailed):
        node.http("GET", "http://x:1/v1/models")
    assert node.http("GET", "http://x:1/v1/models").status == 200
    node.write_file("/a", b"b", mode=0o644)
    assert node.files == {"/a": b"b"} and node.asked[-1] == Asked("write", "/a", b"b", 0o644)
    assert node.scripts[0] == "docker ps -a"


def test_printer_collects() -> None:
    printer = Printer("spark")
    transport: Transport = printer
    assert transport.run("docker ps").ok
    transport.write_file("/a", b"b")
    assert transport.http("GET", "http://x:1/").status == 200
    assert transport.open_tunnel("x", 1).recv(1) == b""
    assert str(printer) == "# spark\ndocker ps"
