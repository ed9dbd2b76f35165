"""What an engine's API says on its own node, by a real script against a real HTTP server, with curl, wget, bash or none of them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from apps.facts import probe
from apps.facts.serving import apis, events
from apps.facts.values import ContainerEvent, EngineApi

NONCE = "n" * 16
TOOLS = (
    "sh",
    "sed",
    "grep",
    "tail",
    "head",
    "tr",
    "cat",
    "date",
    "sleep",
    "rm",
    "mkdir",
    "mktemp",
    "mkfifo",
    "wc",
    "mv",
    "timeout",
)
METRICS = (
    b"# HELP vllm:generation_tokens_total Number of generation tokens processed.\n"
    b'vllm:generation_tokens_total{engine="0",model_name="q"} 512.0\n'
    b'vllm:generation_tokens_total{engine="1",model_name="q"} 88.0\n'
    b'vllm:num_requests_running{engine="0",model_name="q"} 2.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="q"} 1.0\npython_info 1.0\n'
)


class Engine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = {"/health": (200, b""), "/metrics": (200, METRICS), "/v1/models": (401, b'{"error":"Unauthorized"}')}
        code, body = known.get(self.path, (404, b""))
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("tool", ["curl", "wget", "bash", "none"])
def test_an_api_is_asked_with_what_the_node_has(tool: str, port: int, tmp_path: Path) -> None:
    for name in [*TOOLS, *([tool] if tool != "none" else [])]:
        found = shutil.which(name)
        if found is None and name == tool:
            pytest.skip(f"no {tool} here")
        if found is not None:
            os.symlink(found, tmp_path / name)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and never listens
        nobody = closed.getsockname()[1]
        script = probe.script(
            ["engine-api"], nonce=NONCE, extra={"apis": f"{port} 127.0.0.1 key\n{nobody} 127.0.0.1 -"}
        ).replace(":/usr/sbin:/sbin:/snap/bin", "")
        environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "http_proxy": f"http://127.0.0.1:{nobody}"}
        result = subprocess.run(["/bin/sh", "-s"], input=script.encode(), capture_output=True, env=environment)
    found = {one.port: one for one in probe.sheet_from("n", 1.0, probe.read(NONCE, result.stdout)).apis or ()}
    assert found[nobody] == EngineApi(nobody, 0, asked_by=tool)
    asked = EngineApi(port, 200, tokens=600.0, running=2.0, waiting=1.0, keyed=True, asked_by=tool)
    assert found[port] == (asked if tool != "none" else EngineApi(port, 0, asked_by="none"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@api 30000 health=200 metrics=200 models=200 by=curl\n@metric 30000 sglang:generation_tokens_total{a=\"b c\"} 7\n"
         "@metric 30000 sglang:num_running_reqs{a=\"b\"} 1.0\n@metric 30000 sglang:num_queue_reqs 0",
         (EngineApi(30000, 200, 7.0, 1.0, 0.0, False, "curl"),)),
        ("@api 8080 health=200 metrics=200 models=- by=wget\n@metric 8080 llamacpp:tokens_predicted_total 1.2e+03\n"
         "@metric 8080 llamacpp:requests_processing 0",
         (EngineApi(8080, 200, 1200.0, 0.0, None, None, "wget"),)),
        ("@api 1 health=503 metrics=000 models=403 by=bash\n@metric 1 vllm:generation_tokens_total nan\n",
         (EngineApi(1, 503, keyed=True, asked_by="bash"),)),
        ("@api 1 health=000 metrics=000 models=500 by=curl\n@metric 2 vllm:num_requests_running 4", (EngineApi(1, 0, asked_by="curl"),)),
        ("no such line\n@api x health=200", ()),
    ],
)  # fmt: skip
def test_what_the_lines_mean(text: str, found: tuple[EngineApi, ...]) -> None:
    assert apis(text) == found


def test_events_of_a_container_that_is_gone() -> None:
    rows: list[tuple[str, dict[str, str], int]] = [
        ("kill", {"signal": "15"}, 100),
        ("exec_die", {}, 100),
        ("die", {"exitCode": "143"}, 101),
        ("destroy", {}, 102),
    ]
    text = "\n".join(
        json.dumps(
            {
                "Type": "container",
                "Action": action,
                "Actor": {"ID": "9f", "Attributes": {"name": "r0", **more}},
                "time": at,
            }
        )
        for action, more, at in rows
    )
    assert events(text + "\nnonsense\n[]\n{}") == (
        ContainerEvent("r0", "kill", 100.0, signal=15),
        ContainerEvent("r0", "die", 101.0, exit_code=143),
        ContainerEvent("r0", "destroy", 102.0),
    )
