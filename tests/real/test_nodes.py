"""The main job on two real nodes: systemd, sshd, Docker, Ray and vLLM, through the API of a running product.

What changes by itself is told by the watch, which beat drives; nothing here calls it.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable

import pytest

from scripts.real_nodes import FABRIC
from tests.real import stack
from tests.real.conftest import full
from tests.real.product import ARGUMENTS, ENVIRONMENT, HEAD, NAME, PORT, SECOND, Declined, Json, Product, waited

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
WHOLE = 'finish_reason":"length'  # of an answer that came to its end


def prove(product: Product, run: Json, cluster: str) -> None:
    """That what ran was real: shards of a file, every rank in the cluster, one completion."""
    text = product.text(run["id"])
    assert "Loading safetensors checkpoint shards" in text and "4/4" in text
    assert "Application startup complete" in text
    assert run["outcome"]["smoke"]["verdict"] == "passed", run["outcome"]
    assert {(row["rank"], row["done"], row["total"]) for row in run["ranks"]} >= {(0, 4, 4)}, run["ranks"]
    if cluster == "ray":
        assert f"0.0/2.0 GPU: {FABRIC}.11, {FABRIC}.12" in text


def cut_off(product: Product, act: Callable[[], object]) -> str:
    """What a client reads last, who streams one long answer after the other until `act` has cut one off."""
    body = {"model": NAME, "stream": True, "max_tokens": 400, "ignore_eos": True}
    body |= {"messages": [{"role": "user", "content": "hello"}]}
    ask = 'curl -sSN -m 120 -o /tmp/streamed -H \'Content-Type: application/json\' -d "$1" "$2"'
    again = f"while rm -f /tmp/streamed; {ask} && grep -q {shlex.quote(WHOLE)} /tmp/streamed; do :; done"
    words = ["sh", "-c", again, "sh", json.dumps(body), f"http://127.0.0.1:{PORT}/v1/chat/completions"]
    inside = product.nodes.inside
    client = threading.Thread(target=lambda: inside(HEAD, *words, check=False))
    client.start()
    waited(lambda: '"delta":{"content"' in inside(HEAD, "cat", "/tmp/streamed", check=False), 60)
    act()
    client.join(180)
    assert not client.is_alive(), "the client still waits"
    return inside(HEAD, "cat", "/tmp/streamed", check=False)


def test_both_nodes_tell_what_they_are(product: Product) -> None:
    for name, part in ((HEAD, "11"), (SECOND, "12")):
        sheet = product.node(name)["sheet"]
        assert sheet["machine"]["boot_id"] == product.nodes.boot_id(name)
        assert (sheet["machine"]["hostname"], sheet["machine"]["user"]) == (name, "spark")
        assert sheet["docker"]["present"] and sheet["docker"]["server_version"]
        [gpu] = sheet["gpus"]["gpus"]
        assert (gpu["name"], gpu["unified"], gpu["memory_total_mib"]) == ("NVIDIA GB10", True, None)
        assert [(hca["name"], hca["state"], hca["netdev"]) for hca in sheet["fabric"]] == [
            ("rocep1s0f0", "ACTIVE", "enp1s0f0np0"),
            ("rocep1s0f1", "DOWN", None),
        ]
        card = next(one for one in sheet["interfaces"] if one["name"] == "enp1s0f0np0")
        assert (card["role"], card["mtu"], card["up"]) == ("fabric", 9000, True)
        assert [one["ip"] for one in card["addresses"] if one["family"] == "inet"] == [f"{FABRIC}.{part}"]
        model = next(one for one in sheet["models"] if one["path"] == "/models/tiny-qwen3")
        assert (model["shards"], model["complete"]) == (4, True)
        assert sheet["privileges"]["sudo"] == "all"
        assert any(unit["name"] == "docker.service" and unit["active"] == "active" for unit in sheet["units"])
        assert sheet["internet"] in (None, False)


def test_the_main_job_over_ray(product: Product) -> None:
    """An old stack is cleared, the model serves over Ray, a worker dies in a stream, both reboot, an operator brings it back;
    then the engine ends inside its living container."""
    nodes = product.nodes
    stack.install(nodes, HEAD, port=PORT)
    waited(lambda: stack.running(nodes, HEAD), 60)
    product.know()
    tiny = product.deployment("tiny")
    assert product.stops(tiny) == []
    with pytest.raises(Declined) as refused:
        product.begin(tiny)
    assert refused.value.problem["remedy"], "the port is held, and nobody agreed to anything"
    clear = product.clearing(tiny)
    assert ("unit", "vllm-cluster.service") in {(one["kind"], one["name"]) for one in clear}, product.plan(tiny)
    prove(product, product.launch(tiny, clear=clear), "ray")
    product.becomes(tiny, "serving")
    proven_and_measured(product, tiny)

    worker = product.container(tiny, 1)
    answer = cut_off(product, lambda: nodes.inside(SECOND, "docker", "kill", worker))
    assert WHOLE not in answer, answer[-2000:]
    assert f"rank 1 on {SECOND} is gone" in product.becomes(tiny, "degraded", "rank_lost")

    boots = {name: nodes.boot_id(name) for name in (SECOND, HEAD)}
    for name in boots:
        nodes.inside(name, "systemctl", "reboot", check=False)
    for name, boot in boots.items():
        nodes.wait_until_up(name, other_than=boot)
    waited(lambda: stack.running(nodes, HEAD), 90)
    waited(
        lambda: "vllm-cluster.service" in product.becomes(tiny, "lost", "replaced"), 60
    )  # its units start one by one
    assert "Both nodes rebooted" in product.becomes(tiny, "lost", "replaced")

    product.know()
    clear = product.clearing(tiny, "relaunch")
    prove(product, product.launch(tiny, "relaunch", clear, role="operator"), "ray")
    product.becomes(tiny, "serving")

    head = product.container(tiny, 0)  # over Ray the engine is a process beside the container's first
    nodes.inside(HEAD, "docker", "exec", head, "pkill", "-KILL", "-f", "vllm serve")
    evidence = product.becomes(tiny, "degraded", "rank_lost")
    assert f"the engine of rank 0 on {HEAD} ended, its container is still up" in evidence
    product.stop(tiny)


def proven_and_measured(product: Product, deployment: int) -> None:
    """A smoke test and a small benchmark of the engine that serves."""
    product.succeeded(product.ask(f"deployments/{deployment}/test", {}, role="operator")["run"], 120)
    told = product.ask(f"deployments/{deployment}/tests")["tests"][0]["answers"]
    asked = {one["ask"]: one for one in told}
    assert set(asked) >= {"models", "", "streamed"} and {one["verdict"] for one in told} == {"passed"}
    assert asked["streamed"]["values"]["ttft_s"] > 0 and asked["streamed"]["values"]["usage"]["completion_tokens"] > 1
    small = {"levels": [1, 2], "prompt_tokens": 16, "output_tokens": 8, "requests_per_level": 4, "reason": "small"}
    product.succeeded(product.ask(f"deployments/{deployment}/benchmark", small, role="operator")["run"], 180)
    result = product.ask(f"benchmarks?deployment={deployment}")["benchmarks"][0]["result"]
    assert [(one["concurrency"], one["requests"], one["errors"]) for one in result["levels"]] == [(1, 4, 0), (2, 4, 0)]
    assert all(one["output_tokens"] == 32 and one["aggregate_tok_s"] > 0 for one in result["levels"]), result["levels"]
    assert result["engine_metrics"]["after"]["vllm:generation_tokens_total"] > 64


def test_native_ranks_and_what_befalls_them(product: Product) -> None:
    """Without Ray: cut off by dropped packets, sshd frozen, Docker restarted under the engine."""
    inside = product.nodes.inside
    native = product.deployment("native", cluster="native")
    assert product.stops(native) == []
    prove(product, product.launch(native), "native")
    product.becomes(native, "serving")

    inside(SECOND, "iptables", "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "DROP")
    assert SECOND in product.becomes(native, "unreachable", "ssh_timeout")
    inside(SECOND, "iptables", "-F", "INPUT")
    product.becomes(native, "serving")

    inside(HEAD, "pkill", "-STOP", "-x", "sshd")
    assert HEAD in product.becomes(native, "unreachable", "ssh_busy")  # the kernel accepts, nobody answers
    inside(HEAD, "pkill", "-CONT", "-x", "sshd")
    product.becomes(native, "serving")

    inside(SECOND, "systemctl", "restart", "docker")
    assert SECOND in product.becomes(native, "degraded", "rank_lost")
    product.stop(native)


def test_an_image_without_ray_is_named(product: Product) -> None:
    product.nodes.inside(HEAD, "sh", "-c", "docker import /srv/sparklab/engine.tar sparklab/plain:1")
    product.nodes.copy_image("sparklab/plain:1")
    product.know()
    run = product.failed(product.begin(product.deployment("plain", image="sparklab/plain:1")), 240)
    assert "ray" in run["evidence"], (run["reason"], run["evidence"], product.text(run["id"])[-3000:])


def test_a_stopped_docker_is_not_called_missing(product: Product) -> None:
    product.nodes.inside(SECOND, "systemctl", "stop", "docker.socket", "docker.service")
    product.probe(SECOND)
    assert product.stops(product.deployment("undocked")) == [("docker_down", SECOND)]


def test_a_replaced_host_key_stops_the_node_until_an_admin_pins_it(product: Product) -> None:
    node, path = product.nodes.second, f"nodes/{product.ids[SECOND]}"
    fresh = "rm -f /etc/ssh/ssh_host_*_key* && ssh-keygen -A >/dev/null && systemctl restart ssh && pkill -f '[s]shd: spark'"
    deployment = product.deployment("replaced")
    product.nodes.inside(SECOND, "sh", "-c", fresh, check=False)
    assert product.failed(product.ask(f"{path}/probe", {})["run"], 90)["reason"] == "host_key_changed"
    waited(lambda: product.node(SECOND)["state"] == "stopped", 30)
    for act in (lambda: product.begin(deployment), lambda: product.probe(SECOND)):
        with pytest.raises(Declined) as refused:
            act()
        assert refused.value.problem["remedy"]
    product.succeeded(product.ask(f"{path}/scan", {})["run"], 90)
    known = {key.sha256 for key in product.nodes.host_keys(SECOND)} - {key.sha256 for key in node.host_keys}
    shown = {key["sha256"] for key in product.node(SECOND)["host_keys"]} & known
    assert shown
    body = {"sha256": min(shown), "reason": "its disk was replaced"}
    with pytest.raises(Declined):
        product.ask(f"{path}/repin", body, role="operator")
    assert product.ask(f"{path}/repin", body)["state"] == "ready"
    assert product.probe(SECOND)["state"] == "succeeded"


@full
def test_serve_alone_ray_alone_and_the_container_have_three_names(product: Product) -> None:
    """Each killed in the middle of a load; the second try that starts by itself is the next one's."""
    ends, name = product.deployment("ends", container="ends"), "ends-r0"
    serve, ray = ("pkill", "-KILL", "-f", "vllm serve"), ("pkill", "-KILL", "-x", "gcs_server")

    def killed(run: int, *command: str) -> Json:
        """The run at its end, without a second try of it."""
        waited(lambda: "serve.engine" in (text := product.text(run)) and "Initializing a V1" in text, 300)
        product.nodes.inside(HEAD, "docker", *command)
        waited(lambda: product.ask(f"runs/{run}")["ended_at"], 120, lambda: product.text(run)[-3000:])
        return dict(product.ask(f"runs/{run}"))

    first = killed(product.begin(ends), "exec", name, *serve)
    assert first["reason"] == "exited" and "Serve ended with 137" in first["evidence"], first["evidence"]
    second = killed(first["second_try"], "exec", name, *ray)
    assert second["reason"] == "ray_ended" and f"Ray in {name} on {HEAD} ended with" in second["evidence"], second
    third = killed(product.begin(ends, "relaunch"), "kill", name)
    assert third["reason"] == "container_killed" and "exit code 137" in third["evidence"], third
    assert product.state(ends)["reason"] == "container_killed"


@full
def test_ready_but_broken_is_never_serving(product: Product) -> None:
    """Pipeline parallel on this engine: /health says 200 and the first completion kills it."""
    arguments = [*ARGUMENTS, "--pipeline-parallel-size", "2"]
    broken = product.deployment("broken", tensor_parallel=1, arguments=arguments)
    assert product.stops(broken) == []
    run = product.failed(product.begin(broken), 420)
    assert run["reason"] in ("smoke_failed", "exited", "rank_lost"), (run["reason"], run["evidence"])
    assert product.state(broken)["state"] == "failed"


@full
def test_a_wrong_interface_is_named(product: Product) -> None:
    wrong = product.deployment("wrong", cluster="native", environment={**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "enp9s9"})
    run = product.failed(product.begin(wrong), 420)
    assert "enp9s9" in run["evidence"] + product.text(run["id"]), (run["reason"], run["evidence"])
