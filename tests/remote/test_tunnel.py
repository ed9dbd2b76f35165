"""HTTP to a server that only the node sees, through a real jump host: whole answers, streams, and honest failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from apps.remote import tunnel
from apps.remote.ssh import ParamikoTransport, connect
from apps.remote.transport import CannotReach, ConnectionLost, HttpFailed
from apps.remote.wire import Limits
from tests.openssh import OpenSsh, free_port


class Engine(BaseHTTPRequestHandler):
    """Answers in each of the ways that HTTP knows to end a body, and in some that it doesn't."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(body[::-1], "201 Created")

    def do_GET(self) -> None:
        if self.path.startswith("/whole"):
            return self.answer(b"x" * 1_000_000, "200 OK")
        if self.path == "/head":
            return self.answer(self.headers["Host"].encode() + b" " + self.headers["Authorization"].encode(), "200 OK")
        if self.path == "/missing":
            return self.answer(b'{"error": "no such model"}', "404 Not Found")
        if self.path == "/chunked":
            return self.events(chunked=True)
        if self.path == "/closed":
            return self.events(chunked=False)
        if self.path == "/short":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
        elif self.path == "/half-chunk":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nonly this")
        elif self.path == "/nonsense":
            self.wfile.write(b"nonsense\r\n\r\n")
        elif self.path == "/slow":
            time.sleep(3)
        self.close_connection = True

    def answer(self, body: bytes, status: str) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def events(self, *, chunked: bool) -> None:
        kind = "Transfer-Encoding: chunked" if chunked else "Connection: close"
        self.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{kind}\r\n\r\n".encode())
        for number in range(5):
            event = f"data: {number}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event) if chunked else event)
            self.server.gate.acquire(timeout=5)  # type: ignore[attr-defined]
        if chunked:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True


@pytest.fixture
def engine() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.daemon_threads = True
    server.gate = threading.Semaphore(0)  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def node(openssh: OpenSsh) -> Iterator[ParamikoTransport]:
    jump = openssh.start("jump", kinds=("ed25519",))
    with connect(openssh.start("node", kinds=("ed25519",)).endpoint(via=jump.endpoint())) as transport:
        yield transport


def url(engine: ThreadingHTTPServer, path: str) -> str:
    return f"http://127.0.0.1:{engine.server_port}{path}"


def test_whole_answers(node: ParamikoTransport, engine: ThreadingHTTPServer) -> None:
    whole = node.http("GET", url(engine, "/whole?a=b"))
    assert (whole.status, len(whole.body), whole.headers["content-type"]) == (200, 1_000_000, "application/json")
    assert node.http("POST", url(engine, "/"), body=b"abc").body == b"cba"
    assert node.http("GET", url(engine, "/missing")).status == 404
    head = node.http("GET", url(engine, "/head"), headers={"Authorization": "Bearer x"})
    assert head.body == f"127.0.0.1:{engine.server_port} Bearer x".encode()
    engine.gate.release(20)  # type: ignore[attr-defined]
    for path in ("/chunked", "/closed"):
        assert node.http("GET", url(engine, path)).body.count(b"data:") == 5


@pytest.mark.parametrize("path", ["/chunked", "/closed"])
def test_events_arrive_one_by_one_as_they_are_sent(
    node: ParamikoTransport,
    engine: ThreadingHTTPServer,
    path: str,
) -> None:
    with tunnel.stream(node, "GET", url(engine, path)) as answer:
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        seen = []
        for piece in answer:  # the server sends the next one only when this one was read
            seen.append(piece)
            engine.gate.release()  # type: ignore[attr-defined]
    assert seen == [f"data: {number}\n\n".encode() for number in range(5)]


def test_a_stream_of_known_length(node: ParamikoTransport, engine: ThreadingHTTPServer) -> None:
    with tunnel.stream(node, "GET", url(engine, "/whole")) as answer:
        assert sum(len(piece) for piece in answer) == 1_000_000


def test_a_silent_stream_times_out(node: ParamikoTransport, engine: ThreadingHTTPServer) -> None:
    with tunnel.stream(node, "GET", url(engine, "/chunked"), idle_s=0.5) as answer, pytest.raises(HttpFailed) as caught:
        list(answer)
    assert caught.value.reason == "timeout"


def test_failures_are_told_apart(node: ParamikoTransport, engine: ThreadingHTTPServer) -> None:
    def reason(address: str, timeout_s: float = 10) -> str:
        with pytest.raises(HttpFailed) as caught:
            node.http("GET", address, timeout_s=timeout_s)
        assert caught.value.evidence
        return caught.value.reason

    assert reason(f"http://127.0.0.1:{free_port()}/") == "refused"
    assert reason(url(engine, "/slow"), 0.5) == "timeout"
    for path in ("/short", "/half-chunk", "/nonsense", "/nothing"):
        assert reason(url(engine, path)) == "broken", path
    for path in ("/short", "/half-chunk"):
        with tunnel.stream(node, "GET", url(engine, path)) as answer, pytest.raises(HttpFailed) as caught:
            list(answer)
        assert caught.value.reason == "broken"
    for bad in ("https://127.0.0.1/", "http://", "file:///etc/passwd", "http://u:p@127.0.0.1/", "/path", "http://a:x/"):
        with pytest.raises(ValueError, match="http://HOST:PORT/PATH"):
            node.http("GET", bad)


def test_an_answer_without_end_is_refused(
    node: ParamikoTransport,
    engine: ThreadingHTTPServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tunnel, "LARGEST_BODY", 1000)
    with pytest.raises(HttpFailed, match="larger than 1000"):
        node.http("GET", url(engine, "/whole"))


def test_raw_tunnels(node: ParamikoTransport, engine: ThreadingHTTPServer) -> None:
    with node.open_tunnel("127.0.0.1", engine.server_port) as stream:
        stream.sendall(b"GET /missing HTTP/1.0\r\n\r\n")
        stream.settimeout(5)
        assert stream.recv(12) == b"HTTP/1.1 404"
        assert node.busy
    assert not node.busy
    with pytest.raises(CannotReach) as caught:
        node.open_tunnel("127.0.0.1", free_port())
    assert caught.value.reason == "ssh_refused"


def test_a_lost_connection_is_not_blamed_on_the_engine(openssh: OpenSsh, engine: ThreadingHTTPServer) -> None:
    server = openssh.start("lost", kinds=("ed25519",))
    node = connect(server.endpoint(), limits=Limits(silence_s=0.5, probe_s=0.5))
    threading.Timer(0.3, server.cut).start()
    with pytest.raises(ConnectionLost):
        node.http("GET", url(engine, "/slow"))
