"""The old stack, the launch, the reboot."""

from __future__ import annotations

import json
import re

import asyncssh
import pytest

from tests.lab.visit import HEAD, RUN, SECOND, SERVE, Visit, cluster, until


def used(visit: Visit, node: str = HEAD) -> float:
    return float(visit.lab.state()["nodes"][node]["used_gib"])


def test_a_removed_container_comes_back_until_its_unit_is_stopped(visit: Visit) -> None:
    before = visit.out("docker inspect -f '{{.Id}}' vllm_node")
    visit.out("docker rm -f vllm_node")
    until(lambda: visit.run("docker inspect -f '{{.Id}}' vllm_node").stdout not in ("", "\n", before))
    assert visit.out("systemctl show -p NRestarts --value vllm-cluster").strip() == "1"
    visit.out("sudo -n systemctl stop vllm-cluster")
    visit.out("docker rm -f vllm_node 2>/dev/null; sleep 1.2")
    assert visit.run("docker inspect vllm_node").returncode == 1


def test_memory_follows_what_runs(visit: Visit) -> None:
    assert 103 < used(visit) < 105
    visit.out("sudo -n systemctl disable --now vllm-cluster vllm-proxy vllm-embeddings vllm-reranker")
    until(lambda: used(visit) < 10)
    before = visit.out("awk '/MemFree/ {print $2}' /proc/meminfo")
    visit.out("sync; echo 3 | sudo -n tee /proc/sys/vm/drop_caches")
    assert int(visit.out("awk '/MemFree/ {print $2}' /proc/meminfo")) > int(before) + (8 << 20)


def ask(visit: Visit, method: str, path: str, body: dict[str, object] | None = None) -> tuple[int, str]:
    async def work(connection: asyncssh.SSHClientConnection) -> bytes:
        reader, writer = await connection.open_connection("127.0.0.1", 30000)
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        return await reader.read()

    head, _, text = visit.asyncly(work).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), text.decode()


def serve(visit: Visit, arguments: str = SERVE) -> None:
    visit.out(
        f"setsid -f sh -c 'docker exec vllm-qwen35-r0 {arguments} > ~/log 2>&1; echo $? > ~/rc' >/dev/null 2>&1 </dev/null"
    )


def log(visit: Visit) -> str:
    return visit.out("cat ~/log")


def ready(visit: Visit) -> bool:
    return "Application startup complete." in log(visit)


def test_ray_shows_both_nodes_and_the_load_reaches_ready(visit: Visit) -> None:
    cluster(visit)
    status = visit.out("docker exec vllm-qwen35-r0 ray status")
    assert (
        status.startswith("======== Autoscaler status: ")
        and " 0.0/2.0 GPU\n" in status
        and "node:192.168.200.12" in status
        and "node:192.168.200.13" in status
    )
    serve(visit)
    with pytest.raises(asyncssh.ChannelOpenError):
        ask(visit, "GET", "/health")
    until(lambda: ready(visit))
    text = log(visit)
    assert (
        text.count("Completed | 39/39") == 2
        and "\rLoading safetensors checkpoint shards:   0% Completed | 0/39" in text
    )
    for word in (
        "NET/IBext_v11",
        "rocep1s0f0:1/RoCE",
        "Loading weights took",
        "Model loading took",
        "GPU KV cache size:",
        "Maximum concurrency",
        "Graph capturing finished",
        "init engine",
        "version 0.17.1rc1",
    ):
        assert word in text, word
    assert "ip=192.168.200.13)" in text
    assert "2.0/2.0 GPU (2.0 used of 2.0 reserved in placement groups)" in visit.out(
        "docker exec vllm-qwen35-r0 ray status"
    )
    assert ask(visit, "GET", "/health") == (200, "")
    assert json.loads(ask(visit, "GET", "/v1/models")[1])["data"][0]["id"] == "Qwen/Qwen3.5-122B-A10B-FP8"
    question = {
        "model": "Qwen/Qwen3.5-122B-A10B-FP8",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 50,
    }
    choice = json.loads(ask(visit, "POST", "/v1/chat/completions", question)[1])["choices"][0]
    assert (
        choice["message"]["content"] is None and choice["message"]["reasoning"] and choice["finish_reason"] == "length"
    )
    choice = json.loads(ask(visit, "POST", "/v1/chat/completions", {**question, "max_tokens": 400})[1])["choices"][0]
    assert choice["message"]["content"] and choice["finish_reason"] == "stop"
    status_code, stream = ask(visit, "POST", "/v1/chat/completions", {**question, "stream": True, "max_tokens": 5})
    assert status_code == 200 and stream.count('"reasoning"') == 5 and "data: [DONE]" in stream
    assert re.search(r"vllm:generation_tokens_total\{.*\} [1-9]", ask(visit, "GET", "/metrics")[1])
    assert ask(visit, "POST", "/v1/chat/completions", {**question, "model": "other"})[0] == 404
    assert used(visit, SECOND) > 100
    visit.out("docker rm -f vllm-qwen35-r0")
    until(lambda: used(visit) < 10)
    assert visit.out("cat ~/rc").strip() == "137"


def test_the_engine_wants_the_memory_that_it_was_promised(visit: Visit) -> None:
    visit.out(RUN.format(rank=0, ip="192.168.200.12", role="--head --port=6379"))
    until(lambda: visit.run("docker exec vllm-qwen35-r0 ray status").returncode == 0)
    done = visit.run(
        "docker exec vllm-qwen35-r0 " + SERVE.replace("--tensor-parallel-size 2", "--tensor-parallel-size 1")
    )
    assert done.returncode == 1 and re.search(
        r"ValueError: Free memory on device cuda:0 \([\d.]+/119\.68 GiB\) on startup is less than desired GPU memory utilization \(0\.85, 101\.73 GiB\)",
        done.stderr,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--port 30000", "--port 30000 --swap-room 8"), "vllm serve: error: unrecognized arguments: --swap-room 8"),
        (("--port 30000", "--port many"), "argument --port: invalid int value: 'many'"),
        (
            ("Qwen3.5-122B-A10B-FP8 --served", "Nothing --served"),
            "Invalid repository ID or local directory specified: '/models/Nothing'",
        ),
        (
            ("--tensor-parallel-size 2", "--tensor-parallel-size 3"),
            "Total number of attention heads (32) must be divisible by tensor parallel size (3).",
        ),
        (("--port 30000", "--port 8000"), "Address already in use"),
        (("--port 30000", "--port 30000 --attention-backend flashinfer"), "FLASHINFER is not valid"),
    ],
)
def test_bad_arguments_are_named(visit: Visit, change: tuple[str, str], words: str) -> None:
    visit.out(RUN.format(rank=0, ip="192.168.200.12", role="--head --port=6379"))
    until(lambda: visit.run("docker exec vllm-qwen35-r0 ray status").returncode == 0)
    done = visit.run("docker exec vllm-qwen35-r0 " + SERVE.replace(*change))
    assert done.returncode != 0 and words in done.stderr


def test_the_old_image_is_too_old(visit: Visit) -> None:
    done = visit.run("docker exec vllm_node " + SERVE)
    assert done.returncode == 1 and "does not recognize this architecture" in done.stderr


def test_a_management_address_keeps_the_placement_group_waiting(visit: Visit) -> None:
    visit.out("sudo -n systemctl disable --now vllm-cluster vllm-proxy vllm-embeddings vllm-reranker 2>/dev/null")
    visit.out(RUN.format(rank=0, ip="192.168.200.12", role="--head --port=6379"))
    visit.out(RUN.format(rank=1, ip="192.168.200.13", role="--address=192.168.200.12:6379"), SECOND)
    until(lambda: "/2.0 GPU" in visit.run("docker exec vllm-qwen35-r0 ray status").stdout)
    visit.out(
        f"setsid -f sh -c 'docker exec -e VLLM_HOST_IP=10.1.230.180 vllm-qwen35-r0 {SERVE} > ~/log 2>&1' >/dev/null 2>&1 </dev/null"
    )
    until(lambda: log(visit).count("Waiting for creating a placement group") >= 2)
    assert "'node:10.1.230.180': 0.001" in log(visit) and "0.0/2.0 GPU" in visit.out(
        "docker exec vllm-qwen35-r0 ray status"
    )


def test_reboot_brings_the_old_stack_back_and_forgets_the_rest(visit: Visit) -> None:
    visit.out(
        "sudo -n systemctl stop vllm-cluster vllm-proxy vllm-embeddings vllm-reranker; sudo -n systemctl disable vllm-proxy 2>/dev/null; echo kept > ~/kept; touch /tmp/gone; setsid -f sleep 77 >/dev/null 2>&1 </dev/null"
    )
    visit.out(RUN.format(rank=0, ip="192.168.200.12", role="--head --port=6379"))
    visit.out("docker run -d --name steady --restart unless-stopped vllm-node sleep infinity")
    boot = visit.out("cat /proc/sys/kernel/random/boot_id")
    visit.run("sudo -n reboot")
    until(lambda: visit.run("true").returncode == 255)
    until(lambda: visit.run("true").returncode == 0)
    assert visit.out("cat /proc/sys/kernel/random/boot_id") != boot
    assert float(visit.out("cut -d' ' -f1 /proc/uptime")) < 60
    assert visit.out("cat ~/kept; ls /tmp/gone 2>/dev/null || true") == "kept\n"
    assert "sleep 77" not in visit.out("ps -eo args")
    states = dict(line.split() for line in visit.out("docker ps -a --format '{{.Names}} {{.State}}'").splitlines())
    assert states == {
        "vllm_node": "running",
        "vllm_embeddings": "running",
        "reranker": "running",
        "vllm-qwen35-r0": "exited",
        "steady": "running",
    }
    assert visit.run("systemctl is-active vllm-proxy").stdout == "inactive\n"
    until(lambda: used(visit) > 100)
    assert visit.out("systemctl show -p NRestarts --value vllm-cluster vllm-embeddings").split() == ["0", "0"]
    assert visit.run("uptime").stdout.startswith(" ")


def test_native_ranks_without_ray(visit: Visit) -> None:
    visit.out(
        "sudo -n systemctl disable --now vllm-cluster vllm-proxy vllm-embeddings vllm-reranker 2>/dev/null; sleep 0.5; echo 3 | sudo -n tee /proc/sys/vm/drop_caches"
    )
    visit.out("echo 3 | sudo -n tee /proc/sys/vm/drop_caches", SECOND)
    base = (
        "docker run -d --name n{0} --network host --privileged -v /models:/models -e VLLM_HOST_IP={1} -e NCCL_SOCKET_IFNAME=enp1s0f0np0 -e NCCL_DEBUG=INFO hellohal2064/vllm-qwen3.5-gb10 vllm serve "
        "/models/Qwen3.5-122B-A10B-FP8 --port 30000 --tensor-parallel-size 2 --nnodes 2 --node-rank {0} --master-addr 192.168.200.12 --gpu-memory-utilization 0.85 {2}"
    )
    visit.out(base.format(1, "192.168.200.13", "--headless"), SECOND)
    visit.out(base.format(0, "192.168.200.12", ""))
    until(lambda: "Application startup complete" in visit.run("docker logs n0").stderr)
    assert "headless multiproc executor" in visit.run("docker logs n1", SECOND).stderr


def test_following_a_containers_log(visit: Visit) -> None:
    visit.out(
        "docker run -d --name talk vllm-node bash -c 'for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done; exit 3'"
    )
    done = visit.run(
        "docker logs -f talk; docker wait talk; docker inspect -f '{{.State.ExitCode}}' talk; docker logs --tail 1 talk"
    )
    assert done.stdout == "".join(f"line {n}\n" for n in range(1, 6)) + "3\n3\nline 5\n"


def test_the_engine_notices_that_a_rank_is_gone(visit: Visit) -> None:
    visit.lab.set(shard_s=2)
    try:
        cluster(visit)
        serve(visit)
        until(lambda: ready(visit))
        visit.out("docker rm -f vllm-qwen35-r1", SECOND)
        assert until(lambda: visit.run("cat ~/rc").stdout) == "1\n"
        assert "ActorDiedError" in log(visit) and "ip: 192.168.200.13" in log(visit)
        with pytest.raises(asyncssh.ChannelOpenError):
            ask(visit, "GET", "/health")
        until(lambda: " 0.0/1.0 GPU\n" in visit.out("docker exec vllm-qwen35-r0 ray status"))
        assert visit.out("docker inspect -f '{{.State.Status}}' vllm-qwen35-r0") == "running\n"
    finally:
        visit.lab.set(shard_s=6)
