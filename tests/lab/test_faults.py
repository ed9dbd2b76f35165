"""Each fault that a test or a person can switch on."""

from __future__ import annotations

import socket
import subprocess
import time

import pytest

from apps.lab import LabError
from apps.lab.world import FAULTS
from tests.lab.test_story import log, ready, serve
from tests.lab.visit import HEAD, RUN, SECOND, Visit, cluster, until


def banner(port: int, wait_s: float) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as line:
        try:
            return line.recv(64)
        except TimeoutError:
            return b""


def test_cut_ends_what_is_open_and_refuses_for_a_while(visit: Visit) -> None:
    with subprocess.Popen([*visit.words(HEAD), "sleep 30"], stdin=subprocess.DEVNULL) as open_one:
        time.sleep(1)
        visit.lab.fault(HEAD, "cut", 1.5)
        assert open_one.wait(5) == 255
    with pytest.raises(ConnectionRefusedError):
        banner(visit.lab.nodes[HEAD].port, 1)
    until(lambda: visit.run("true").returncode == 0, within_s=15)


def test_freeze_is_silent_and_thaws(visit: Visit) -> None:
    port = visit.lab.nodes[HEAD].port
    visit.lab.fault(HEAD, "freeze", 2)
    assert banner(port, 1) == b""
    assert banner(port, 20).startswith(b"SSH-2.0-")
    assert visit.out("echo back") == "back\n"


def test_slow_banner(visit: Visit) -> None:
    visit.lab.fault(HEAD, "slow-banner", 1.5)
    assert banner(visit.lab.nodes[HEAD].port, 0.7) == b""
    assert banner(visit.lab.nodes[HEAD].port, 20).startswith(b"SSH-2.0-")


def test_changed_host_key(visit: Visit) -> None:
    scan = ["ssh-keyscan", "-t", "ed25519", "-p", str(visit.lab.nodes[HEAD].port), "127.0.0.1"]
    before = subprocess.run(scan, capture_output=True, text=True).stdout
    visit.lab.fault(HEAD, "host-key-changed")
    assert subprocess.run(scan, capture_output=True, text=True).stdout not in ("", before)
    visit.lab.clear(HEAD)
    assert subprocess.run(scan, capture_output=True, text=True).stdout == before


def test_disk_full(visit: Visit) -> None:
    visit.lab.fault(HEAD, "disk-full")
    assert visit.out("df -P / | tail -1").split()[4] == "100%"
    assert "no space left on device" in visit.run("docker run -d vllm-node sleep 1").stderr


def test_clock_off(visit: Visit) -> None:
    assert abs(float(visit.out("date +%s.%N")) - time.time()) < 5
    visit.lab.fault(HEAD, "clock-off", 300)
    assert 290 < float(visit.out("date +%s.%N")) - time.time() < 310
    assert visit.out("timedatectl show -p NTPSynchronized --value") == "no\n"


def test_banner_before_any_output(visit: Visit) -> None:
    visit.lab.fault(HEAD, "banner")
    said = visit.out("echo data")
    assert said.startswith("Welcome to NVIDIA DGX Spark") and said.endswith("data\n")


def test_a_stopped_unit_is_revived(visit: Visit) -> None:
    visit.lab.fault(HEAD, "unit-revives", "vllm-reranker")
    visit.out("sudo -n systemctl stop vllm-reranker")
    until(lambda: visit.run("systemctl is-active vllm-reranker").stdout == "active\n")
    until(lambda: visit.run("docker inspect reranker").returncode == 0)


def test_ray_worker_cannot_join(visit: Visit) -> None:
    visit.lab.fault(SECOND, "ray-no-join")
    visit.out(RUN.format(rank=0, ip="192.168.200.12", role="--head --port=6379"))
    visit.out(RUN.format(rank=1, ip="192.168.200.13", role="--address=192.168.200.12:6379"), SECOND)
    until(
        lambda: (
            visit.out("docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' vllm-qwen35-r1", SECOND)
            == "exited 1\n"
        )
    )
    assert (
        "Failed to connect to GCS at address 192.168.200.12:6379"
        in visit.run("docker logs vllm-qwen35-r1", SECOND).stderr
    )
    assert " 0.0/1.0 GPU\n" in visit.out("docker exec vllm-qwen35-r0 ray status")


def test_wrong_interface(visit: Visit) -> None:
    visit.lab.fault(HEAD, "wrong-interface")
    visit.out(RUN.format(rank=0, ip="192.168.200.12", role="--head --port=6379"))
    assert "node:10.1.230.180" in until(lambda: visit.run("docker exec vllm-qwen35-r0 ray status").stdout)


@pytest.mark.parametrize(
    ("phase", "words"),
    [("nccl", "ncclRemoteError"), ("loading", "torch.OutOfMemoryError"), ("graphs", "illegal memory access")],
)
def test_engine_dies(visit: Visit, phase: str, words: str) -> None:
    visit.lab.fault(HEAD, f"engine-dies:{phase}")
    cluster(visit)
    serve(visit)
    assert until(lambda: visit.run("cat ~/rc").stdout) == "1\n"
    assert words in log(visit) and "Engine core initialization failed" in log(visit)


def test_engine_hangs_and_goes_on_when_cleared(visit: Visit) -> None:
    visit.lab.fault(HEAD, "engine-hangs", "compiling")
    cluster(visit)
    serve(visit)
    until(lambda: "Model loading took" in log(visit))
    time.sleep(1)
    size = len(log(visit))
    time.sleep(0.5)
    assert len(log(visit)) == size and not ready(visit)
    visit.lab.clear(HEAD)
    until(lambda: ready(visit))


def test_out_of_memory_leaves_its_trace_in_the_kernel_log(visit: Visit) -> None:
    visit.lab.fault(SECOND, "oom")
    cluster(visit)
    serve(visit)
    assert until(lambda: visit.run("cat ~/rc").stdout) == "1\n"
    assert "ActorDiedError" in log(visit)
    assert "Out of memory: Killed process" in visit.out("sudo -n dmesg", SECOND) and "Out of memory" in visit.out(
        "journalctl -k --no-pager", SECOND
    )


def test_slow_rank_and_doubled_bars(visit: Visit) -> None:
    visit.lab.fault(SECOND, "slow-rank", 1.5)
    visit.lab.fault(HEAD, "duplicates")
    cluster(visit)
    serve(visit)
    until(lambda: ready(visit))
    text = log(visit)
    assert text.count("Completed | 39/39") == 4
    ends = [text.rindex("39/39", 0, text.rindex("39/39")), text.rindex("39/39")]
    assert "ip=192.168.200.13" in text[text.rindex("\n", 0, ends[1]) : ends[1]]


def test_unknown_faults_and_nodes_are_named(visit: Visit) -> None:
    with pytest.raises(LabError, match="melt"):
        visit.lab.fault(HEAD, "melt")
    with pytest.raises(LabError, match="spark-zzzz"):
        visit.lab.fault("spark-zzzz", "cut")
    assert {
        "cut",
        "freeze",
        "slow-banner",
        "host-key-changed",
        "disk-full",
        "oom",
        "ray-no-join",
        "wrong-interface",
        "unit-revives",
        "clock-off",
        "banner",
    } <= set(FAULTS)


@pytest.mark.parametrize(("shards", "order"), [(7, "10"), (161, "01")])
def test_other_shard_counts_and_rank_order(visit: Visit, shards: int, order: str) -> None:
    visit.lab.set(shards=shards, rank_order=order, shard_s=100 / shards)
    try:
        cluster(visit)
        serve(visit)
        until(lambda: ready(visit))
        assert log(visit).count(f"Completed | {shards}/{shards} ") == 2
    finally:
        visit.lab.set(shards=39, rank_order="01", shard_s=6)
