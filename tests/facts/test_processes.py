"""Processes of inference stacks: by the texts of several `ps`, and by real processes of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.facts import probe
from apps.facts.commands import asked_for, engine_of
from apps.facts.processes import joined, listed
from apps.facts.values import Container, EngineProcess, GpuProcess, Gpus, Listener, Starts

NONCE = "n0nce4theprocesses"


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("/home/bob/venv/bin/python3 /home/bob/venv/bin/vllm serve Qwen/Qwen3-8B", "vllm"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("python -m sglang.launch_server --model-path /m", "sglang"),
        ("python3.12 -u -X faulthandler -m sglang.launch_server", "sglang"),
        ("VLLM::EngineCore", "vllm"),
        ("VLLM::Worker_TP0", "vllm"),
        ("sglang::scheduler_TP1", "sglang"),
        ("ray::RayWorkerWrapper", "ray"),
        ("/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/ray", "ray"),
        ("/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp", "ray"),
        ("/usr/bin/python3 /x/ray/dashboard/dashboard.py --host=127.0.0.1", "ray"),
        ("/usr/bin/python3 /usr/local/bin/ray start --head --block", "ray"),
        ("./build/bin/llama-server -m /models/a.gguf", "llama.cpp"),
        ("/usr/local/bin/ollama serve", "ollama"),
        ("torchrun --nproc-per-node 8 serve.py", "torchrun"),
        ("python -m torch.distributed.run serve.py", "torchrun"),
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve serve m", "trt-llm"),
        ("text-generation-launcher --model-id m", "tgi"),
        ("env CUDA_VISIBLE_DEVICES=0 nohup numactl --cpunodebind 0 vllm serve m", "vllm"),
        ("tail -f /var/log/vllm.log", None),
        ("vim vllm.md", None),
        ("grep vllm", None),
        ("docker run --rm vllm/vllm-openai --model m", None),
        ("bash /opt/vllm/run-cluster.sh", None),
        ("python3 /opt/vllm/proxy.py --listen 8080", None),
        ("python3 -c import vllm", None),
        ("ollama run qwen3", None),
        ("vllm bench serve --model m", None),
        ("ray status", None),
        ("raygun --port 1", None),
        ("ssh spark-2 vllm serve m", None),
        ("", None),
    ],
)
def test_the_program_counts_and_not_its_arguments(command: str, engine: str | None) -> None:
    assert engine_of(command.split()) == engine


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        ("vllm serve a/b --port 8000 -tp 2 --served-model-name c", Starts("vllm", "a/b", "c", 8000, 2)),
        ("vllm serve --model a/b --tensor-parallel-size=4", Starts("vllm", "a/b", None, None, 4)),
        ("python3 -m vllm.entrypoints.openai.api_server --model=/m --port=9", Starts("vllm", "/m", None, 9)),
        ("python3 -m sglang.launch_server --model-path /m --tp 2", Starts("sglang", "/m", None, None, 2)),
        ("llama-server -m /a.gguf --port 8080 --alias x", Starts("llama.cpp", "/a.gguf", "x", 8080)),
        ("llama-server -hf ggml-org/gpt-oss-120b-GGUF", Starts("llama.cpp", "ggml-org/gpt-oss-120b-GGUF")),
        ("vllm serve $MODEL --port $PORT", Starts("vllm")),
        ("vllm serve --port", Starts("vllm")),
        ("ray start --head --port=6379", Starts("ray", port=6379)),
    ],
)
def test_what_a_command_line_asks_for(command: str, starts: Starts) -> None:
    assert asked_for(command.split()) == starts


OURS = """\
@now 1796048732
    PID    PPID USER                             ELAPSED   RSS COMMAND
   4242       1 bob                                86400 9012345 /home/bob/venv/bin/python3 /home/bob/venv/bin/vllm serve Qwen/Qwen3-8B --api-key sk-abcdefghijklmnopqrstuv --port 8000
   4300    4242 bob                                86390 31457280 VLLM::EngineCore
   5000       1 root                                 12 1024 tail -f vllm.log
@of 4242\tcgroup\t0::/user.slice/user-1000.slice/user@1000.service/app.slice/qwen.service
@of 4242\tfolder\t/home/bob
@of 4300\tcgroup\t0::/system.slice/docker-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.scope
"""


def test_our_own_columns() -> None:
    first, second = listed(OURS)
    assert first == EngineProcess(
        4242,
        Starts("vllm", "Qwen/Qwen3-8B", None, 8000),
        parent=1,
        user="bob",
        command="/home/bob/venv/bin/python3 /home/bob/venv/bin/vllm serve Qwen/Qwen3-8B --api-key *** --port 8000",
        started_unix_s=1796048732.0 - 86400,
        resident_bytes=9012345 * 1024,
        venv="/home/bob/venv",
        folder="/home/bob",
        unit="qwen.service",
    )
    assert (second.container, second.unit, second.parent) == ("a" * 64, None, 4242)


@pytest.mark.parametrize(
    "text",
    [
        # procps 4.0.2: ps -ef
        "UID          PID    PPID  C STIME TTY          TIME CMD\nbob         4242       1  0 10:50 ?        00:00:17 vllm serve m --port 8000\n",
        # procps 4.0.2: ps aux, and its forest
        "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\nbob         4242  0.1  0.0  48636 18568 ?        SLl  10:50   0:17 vllm serve m --port 8000\n",
        "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\nbob         4242  0.1  0.0  48636 18568 ?        SLl  10:50   0:17  \\_ vllm serve m --port 8000\n",
        # busybox with all its columns
        "PID   PPID  USER     ELAPSED RSS  COMMAND\n 4242     1 bob       1d02h 18m  vllm serve m --port 8000\n",
    ],
    ids=["ef", "aux", "forest", "busybox"],
)
def test_other_columns(text: str) -> None:
    (found,) = listed(text)
    assert (found.pid, found.user, found.starts) == (4242, "bob", Starts("vllm", "m", None, 8000))
    assert found.resident_bytes in {None, 18568 * 1024, 18 << 20} and found.started_unix_s is None


@pytest.mark.parametrize(("age", "seconds"), [("90", 90), ("01:30", 90), ("02:00:00", 7200), ("3-00:00:01", 259201)])
def test_ages(age: str, seconds: int) -> None:
    (found,) = listed(f"@now 1000000\nPID PPID USER ELAPSED RSS COMMAND\n1 0 a {age} 5 vllm serve m\n")
    assert found.started_unix_s == 1000000 - seconds


def test_what_the_other_facts_know_of_a_process() -> None:
    identity = "b" * 64
    processes = (
        EngineProcess(10, Starts("vllm"), parent=1),
        EngineProcess(11, Starts("vllm"), parent=10),
        EngineProcess(12, Starts("vllm"), parent=1, container=identity),
        EngineProcess(13, Starts("ray"), parent=1, unit="ray.service"),
        EngineProcess(14, Starts("ray"), parent=1, unit="user.service"),
    )
    gpus = Gpus(processes=(GpuProcess(11, mib=100, gpu=0), GpuProcess(11, mib=50, gpu=1)))
    found = joined(
        processes,
        (Listener("0.0.0.0", 8000, 10), Listener("::", 8000, 10), Listener("127.0.0.1", 9, 13)),
        gpus,
        (Container("first", "a" * 64, pid=10), Container("second", identity)),
        {14: identity},
    )
    assert [(one.pid, one.container, one.unit, one.ports, one.gpu_bytes) for one in found] == [
        (10, "first", None, (8000,), None),
        (11, "first", None, (), 150 << 20),
        (12, "second", None, (), None),
        (13, None, "ray.service", (9,), None),
        (14, "second", None, (), None),
    ]
    assert all(one.kept for one in found)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program called vllm that listens, in something that looks like a virtual environment."""
    place = tmp_path / "venv/bin"
    place.mkdir(parents=True)
    (place / "python3").symlink_to(os.path.realpath(sys.executable))
    (place / "vllm").write_text(
        "import socket, sys, time\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "print(server.getsockname()[1], flush=True)\ntime.sleep(120)\n"
    )
    words = [
        str(place / "python3"),
        str(place / "vllm"),
        "serve",
        "a/b c",
        "--api-key",
        "s3cr3t-of-the-test",
        "-tp",
        "2",
    ]
    child = subprocess.Popen(
        words,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env={**os.environ, "VIRTUAL_ENV": str(tmp_path / "venv"), "SPARKWEB_RUN": "17", "SECRET": "s3cr3t-too"},
    )
    yield child
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


@pytest.mark.skipif(shutil.which("ps") is None or shutil.which("ss") is None, reason="no procps or iproute2")
def test_a_real_process(engine: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert engine.stdout is not None
    port = int(engine.stdout.readline())
    text = probe.script(["processes", "listeners"], nonce=NONCE)
    done = subprocess.run(["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60)
    assert b"s3cr3t" not in done.stdout
    sheet = probe.sheet_from("here", 0.0, probe.read(NONCE, done.stdout))
    (found,) = [one for one in sheet.processes or () if one.pid == engine.pid]
    assert found.starts == Starts("vllm", "a/b", None, None, 2)  # ps does not say where a word ends
    assert (found.venv, found.folder, found.ports) == (str(tmp_path / "venv"), str(tmp_path), (port,))
    assert (found.run, found.kept) == ("17", True)
    assert found.parent == os.getpid() and found.resident_bytes and found.resident_bytes > 1 << 20
    assert found.started_unix_s is not None and abs(found.started_unix_s - time.time()) < 60
    assert "--api-key ***" in (found.command or "")


# A Ray cluster of two nodes and vLLM 0.32 on it, by procps 4.0.2 of the machine on which both nodes were containers; the folder is
# changed and the longest lines are cut.
RAY = """\
@now 1796052400
  PID  PPID USER                             ELAPSED   RSS COMMAND
11322 11301 root                                 139 153604 /opt/engine/venv/bin/python /opt/engine/venv/bin/ray start --head --block --node-ip-address=10.77.1.11 --port=6379 --num-gpus=1 --object-store-memory=1073741824 --include-dashboard=false
11504 11484 root                                 137 153280 /opt/engine/venv/bin/python /opt/engine/venv/bin/ray start --block --address=10.77.1.11:6379 --node-ip-address=10.77.1.12 --num-gpus=1 --object-store-memory=1073741824
11538 11322 root                                 137 52884 /opt/engine/venv/lib/python3.11/site-packages/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray/session_2026-11-30_15-22-18_633471_1/logs
11573 11322 root                                 137 87256 /opt/engine/venv/bin/python -u /opt/engine/venv/lib/python3.11/site-packages/ray/autoscaler/_private/monitor.py --logs-dir=/tmp/ray/session_2026-11-30_15-22-18_633471_1/logs
11574 11322 root                                 137 93748 /opt/engine/venv/bin/python -m ray.util.client.server --address=10.77.1.11:6379 --host=10.77.1.11 --port=10001 --mode=proxy
11575 11322 root                                 137 116060 /opt/engine/venv/bin/python /opt/engine/venv/lib/python3.11/site-packages/ray/dashboard/dashboard.py --host=127.0.0.1 --port=8265 --port-retries=0
12256 11322 root                                 130 82676 /opt/engine/venv/bin/python -u /opt/engine/venv/lib/python3.11/site-packages/ray/_private/log_monitor.py --gcs-address=10.77.1.11:6379
12260 11322 root                                 130 31732 /opt/engine/venv/lib/python3.11/site-packages/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/ray/session_2026-11-30_15-22-18_633471_1/sockets/raylet
12295 12260 root                                 129 113308 ray::DashboardAgent
12297 12260 root                                 129 87832 ray::RuntimeEnvAgent
12712 12260 root                                 125 83492 ray::IDLE
13021 11504 root                                 123 29932 /opt/engine/venv/lib/python3.11/site-packages/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/ray/session_2026-11-30_15-22-18_633471_1/sockets/raylet
14737 11301 root                                 107 570856 /opt/engine/venv/bin/python /opt/engine/venv/bin/vllm serve /models/tiny-qwen3 --served-model-name tiny-qwen3 --host 0.0.0.0 --port 30000 --tensor-parallel-size 2 --max-model-len 512 --distributed-executor-backend ray --enforce-eager --kv-cache-memory-bytes 33554432 --max-num-seqs 4
17314 14737 root                                  78 12692 /opt/engine/venv/bin/python -c from multiprocessing.resource_tracker import main;main(31)
17315 14737 root                                  78 562208 VLLM::EngineCore
17708 12260 root                                  67 605456 ray::RayWorkerProc.initialize_worker
18073 17708 root                                  51 12752 /opt/engine/venv/bin/python -c from multiprocessing.resource_tracker import main;main(73)
32190 31445 root                                 238 20560 /srv/site/.venv/bin/python -IS /srv/site/hub.py 10.77.0.1 8080 /opt/engine/models
"""


def test_a_real_ray_cluster_with_vllm_on_it() -> None:
    found = {one.pid: one for one in listed(RAY)}
    assert {one.starts.engine for pid, one in found.items() if pid not in {14737, 17315}} == {"ray"}
    assert set(found) == {int(line.split()[0]) for line in RAY.splitlines()[2:]} - {17314, 18073, 32190}
    assert found[14737].starts == Starts("vllm", "/models/tiny-qwen3", "tiny-qwen3", 30000, 2)
    assert (found[14737].venv, found[17315].parent) == ("/opt/engine/venv", 14737)
    assert (found[11322].starts.port, found[11504].starts.port) == (6379, None)
    roots = [one.pid for one in found.values() if one.parent not in found]
    assert roots == [11322, 11504, 14737]
