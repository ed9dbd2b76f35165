"""OpenSSH's own client as the visitor of pretend Sparks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh

from apps.lab import Lab

HEAD, SECOND = "spark-1a32", "spark-5be3"


class Visit:
    def __init__(self, lab: Lab, key: Path) -> None:
        self.lab, self.key = lab, key

    def options(self) -> list[str]:
        return [
            "-F",
            "none",
            "-q",
            "-i",
            str(self.key),
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "BatchMode=yes",
        ]

    def words(self, node: str) -> list[str]:
        port = self.lab.nodes[HEAD].port
        if node == HEAD:
            return ["ssh", *self.options(), "-p", str(port), "aurora@127.0.0.1"]
        jump = " ".join(["ssh", *self.options(), "-p", str(port), "-W", "192.168.200.13:22", "aurora@127.0.0.1"])
        return ["ssh", *self.options(), "-o", f"ProxyCommand={jump}", "aurora@192.168.200.13"]

    def run(
        self, script: str, node: str = HEAD, *, command: str = "/bin/sh -s", timeout_s: float = 40
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.words(node), command], input=script.encode(), capture_output=True, timeout=timeout_s
        )  # bytes, so that a carriage return stays one
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def out(self, script: str, node: str = HEAD) -> str:
        done = self.run(script, node)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, script: str, node: str = HEAD) -> Any:
        return json.loads(self.out(script, node))

    def asyncly(self, work: Callable[[asyncssh.SSHClientConnection], Any]) -> Any:
        """Run a coroutine with a connection to the head."""

        async def body() -> Any:
            async with asyncssh.connect(
                "127.0.0.1",
                self.lab.nodes[HEAD].port,
                username="aurora",
                client_keys=[str(self.key)],
                known_hosts=None,
                config=None,
            ) as connection:
                return await work(connection)

        return asyncio.run(body())


def until(check: Callable[[], Any], within_s: float = 30, every_s: float = 0.1) -> Any:
    """The first true answer; fails when none came in time."""
    end = time.monotonic() + within_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(every_s)


RUN = (
    "docker run -d --name vllm-qwen35-r{rank} --label sparkweb.rank={rank} --network host --ipc host --gpus all --device /dev/infiniband --cap-add IPC_LOCK "
    "--ulimit memlock=-1 -v /models:/models:ro -e VLLM_HOST_IP={ip} -e NCCL_DEBUG=INFO -e NCCL_SOCKET_IFNAME=enp1s0f0np0 -e NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0 "
    "hellohal2064/vllm-qwen3.5-gb10 ray start {role} --block --node-ip-address={ip}\n"
)
CLEAR = (
    "sudo -n systemctl disable --now vllm-cluster vllm-proxy vllm-embeddings vllm-reranker 2>/dev/null; sleep 0.6; "
    "sync; echo 3 | sudo -n tee /proc/sys/vm/drop_caches >/dev/null\n"
)
SERVE = (
    "vllm serve /models/Qwen3.5-122B-A10B-FP8 --served-model-name Qwen/Qwen3.5-122B-A10B-FP8 --host 0.0.0.0 --port 30000 --tensor-parallel-size 2 "
    "--distributed-executor-backend ray --gpu-memory-utilization 0.85 --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_coder"
)


def cluster(visit: Visit) -> None:
    """The ground cleared, Ray up with both nodes."""
    visit.out(CLEAR)
    visit.out("echo 3 | sudo -n tee /proc/sys/vm/drop_caches >/dev/null", SECOND)
    visit.out(RUN.format(rank=0, ip="192.168.200.12", role="--head --port=6379"))
    visit.out(RUN.format(rank=1, ip="192.168.200.13", role="--address=192.168.200.12:6379"), SECOND)
    until(lambda: "/2.0 GPU" in visit.run("docker exec vllm-qwen35-r0 ray status").stdout)
