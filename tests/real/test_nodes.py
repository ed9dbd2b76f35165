"""The main job on two real nodes: real systemd, sshd, Docker, Ray and vLLM, through the product's own services."""

from __future__ import annotations

import threading

import pytest

from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan.step import Plan
from apps.runs import queries, services, working
from apps.runs.models import Run
from apps.watch import looking
from scripts.real_nodes import FABRIC
from tests.real import stack
from tests.real.conftest import ADMIN, HEAD, PORT, SECOND, Cluster, ended, full, text_of, waited

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]


def stops(plan: Plan) -> list[tuple[str, str, str]]:
    return [(problem.name, problem.node, problem.title) for problem in plan.problems if problem.severity == "stop"]


def looked(deployment: Deployment) -> tuple[str, str | None, str]:
    looking.look()
    deployment.refresh_from_db()
    return deployment.state, deployment.reason, deployment.evidence


def becomes(deployment: Deployment, state: str, reason: str | None, seconds: float = 90.0) -> str:
    """Looks until the watch says so; returns its evidence."""
    seen: list[tuple[str, str | None, str]] = []

    def said() -> bool:
        seen.append(looked(deployment))
        return seen[-1][:2] == (state, reason)

    try:
        waited(said, seconds)
    except AssertionError:
        raise AssertionError(f"never {state} {reason}: {list(dict.fromkeys(seen))}") from None
    return seen[-1][2]


def stopped(cluster: Cluster, deployment: Deployment) -> None:
    run = ended(cluster.start(deployment, story="stop"), 180)
    assert run.state == "succeeded", (run.reason, run.evidence, text_of(run))
    for name in (HEAD, SECOND):
        left = cluster.real.inside(name, "docker", "ps", "-aq", "--filter", "label=sparkweb.deployment")
        assert left == "", name


def test_both_nodes_tell_what_they_are(cluster: Cluster) -> None:
    for row, name, part in ((cluster.head, HEAD, "11"), (cluster.second, SECOND, "12")):
        sheet = inventory.latest_sheet(row)
        assert sheet is not None and sheet.machine is not None and sheet.memory is not None
        assert sheet.machine.boot_id == cluster.real.boot_id(name)
        assert sheet.machine.hostname == name and sheet.machine.user == "spark"
        assert sheet.docker is not None and sheet.docker.present and sheet.docker.server_version
        assert sheet.gpus is not None and [gpu.name for gpu in sheet.gpus.gpus] == ["NVIDIA GB10"]
        assert sheet.gpus.gpus[0].unified and sheet.gpus.gpus[0].memory_total_mib is None
        assert [(hca.name, hca.state, hca.netdev) for hca in sheet.fabric or ()] == [
            ("rocep1s0f0", "ACTIVE", "enp1s0f0np0"),
            ("rocep1s0f1", "DOWN", None),
        ]
        fabric = next(one for one in sheet.interfaces or () if one.name == "enp1s0f0np0")
        assert (fabric.role, fabric.mtu, fabric.up) == ("fabric", 9000, True)
        assert [address.ip for address in fabric.addresses if address.family == "inet"] == [f"{FABRIC}.{part}"]
        model = next(one for one in sheet.models or () if one.path == "/models/tiny-qwen3")
        assert (model.shards, model.complete) == (4, True)
        assert sheet.privileges is not None and sheet.privileges.sudo == "all", sheet.privileges
        assert any(unit.name == "docker.service" and unit.active == "active" for unit in sheet.units or ())
        assert sheet.internet in (None, False)


def test_the_main_job_over_ray(cluster: Cluster) -> None:
    """An old stack is cleared, the model serves over Ray, a worker dies in a stream, both reboot, relaunch, stop."""
    stack.install(cluster.real, HEAD, port=PORT)
    waited(lambda: stack.running(cluster.real, HEAD), 60)
    cluster.known()
    deployment = cluster.deployment()
    plan = services.preview(ADMIN, deployment)
    assert stops(plan) == [], plan.problems
    clear = cluster.clears(deployment)
    assert ("unit", "vllm-cluster.service") in {(one.kind, one.name) for one in clear}, "\n".join(
        map(str, plan.problems)
    )
    run = cluster.launched(deployment, clear=clear)
    _prove(run, "ray")
    assert becomes(deployment, "serving", None) == ""

    answered = _stream_while(cluster, lambda: cluster.real.inside(SECOND, "docker", "kill", "sparkweb-tiny-r1"))
    assert 'finish_reason":"stop' not in answered
    evidence = becomes(deployment, "degraded", "rank_lost")
    assert f"rank 1 on {SECOND}" in evidence

    boots = {name: cluster.real.boot_id(name) for name in (HEAD, SECOND)}
    for name in (SECOND, HEAD):
        cluster.real.inside(name, "systemctl", "reboot", check=False)
    for name, boot in boots.items():
        cluster.real.wait_until_up(name, other_than=boot)
    waited(lambda: stack.running(cluster.real, HEAD), 90)
    evidence = becomes(deployment, "lost", "replaced")
    assert "Both nodes rebooted" in evidence and "vllm-cluster.service" in evidence

    cluster.known()
    again = cluster.launched(deployment, story="relaunch", clear=cluster.clears(deployment, story="relaunch"))
    _prove(again, "ray")
    stopped(cluster, deployment)


def _prove(run: Run, cluster: str) -> None:
    """That what ran was real: shards of a file, every rank in the cluster, one completion."""
    text = text_of(run)
    assert "Loading safetensors checkpoint shards" in text and "4/4" in text
    assert "Application startup complete" in text
    assert run.outcome["smoke"]["verdict"] == "passed", run.outcome
    assert {(row["rank"], row["done"], row["total"]) for row in queries.rank_progress(run)} >= {(0, 4, 4)}
    if cluster == "ray":
        assert f"0.0/2.0 GPU: {FABRIC}.11, {FABRIC}.12" in text


def _stream_while(cluster: Cluster, act) -> str:
    """What a client reads of a long answer, while `act` happens after its first words."""
    body = '{"model": "tiny-qwen3", "stream": true, "max_tokens": 400, "ignore_eos": true, "messages": [{"role": "user", "content": "hello"}]}'
    words = ["curl", "-sSN", "-m", "120", "-H", "Content-Type: application/json", "-d", body]
    got: list[str] = []
    said = threading.Thread(
        target=lambda: got.append(
            cluster.real.inside(HEAD, *words, f"http://127.0.0.1:{PORT}/v1/chat/completions", check=False)
        )
    )
    said.start()
    said.join(2.0)
    act()
    said.join(150)
    assert got, "the client still waits"
    return got[0]


def test_native_ranks_and_what_befalls_them(cluster: Cluster) -> None:
    """Without Ray: cut off by dropped packets, sshd frozen, Docker restarted under the engine."""
    deployment = cluster.deployment(cluster="native")
    assert stops(services.preview(ADMIN, deployment)) == []
    _prove(cluster.launched(deployment), "native")
    assert becomes(deployment, "serving", None) == ""

    cluster.real.inside(SECOND, "iptables", "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "DROP")
    evidence = becomes(deployment, "unreachable", "ssh_timeout", 150)
    assert SECOND in evidence
    cluster.real.inside(SECOND, "iptables", "-F", "INPUT")
    assert becomes(deployment, "serving", None, 150) == ""

    cluster.real.inside(HEAD, "pkill", "-STOP", "-x", "sshd")
    evidence = becomes(deployment, "unreachable", "ssh_busy", 150)  # the kernel accepts, nobody answers
    assert HEAD in evidence
    cluster.real.inside(HEAD, "pkill", "-CONT", "-x", "sshd")
    assert becomes(deployment, "serving", None, 150) == ""

    cluster.real.inside(SECOND, "systemctl", "restart", "docker")
    assert SECOND in becomes(deployment, "degraded", "rank_lost", 120)
    stopped(cluster, deployment)


def test_engine_that_ends_inside_a_living_container_is_not_serving(cluster: Cluster) -> None:
    """Over Ray the engine is a process beside the container's first: the container stays up without it."""
    deployment = cluster.deployment()
    cluster.launched(deployment)
    cluster.real.inside(HEAD, "docker", "exec", "sparkweb-tiny-r0", "pkill", "-KILL", "-f", "vllm serve")
    waited(lambda: looked(deployment)[0] != "serving", 60)
    assert deployment.state in ("degraded", "lost"), (deployment.state, deployment.reason, deployment.evidence)


def test_an_image_without_ray_is_named(cluster: Cluster) -> None:
    cluster.real.inside(HEAD, "sh", "-c", "docker import /srv/sparklab/engine.tar sparklab/plain:1")
    cluster.real.copy_image("sparklab/plain:1")
    cluster.known()
    deployment = cluster.deployment(image="sparklab/plain:1")
    run = ended(cluster.start(deployment), 180)
    assert run.state == "failed" and run.reason not in (None, "internal"), (run.reason, run.evidence)
    assert "ray" in run.evidence, (run.reason, run.evidence, text_of(run)[-3000:])


def test_a_replaced_host_key_stops_the_node(cluster: Cluster) -> None:
    keep = "cd /etc/ssh && mkdir -p /root/keys && cp -p ssh_host_* /root/keys/"
    fresh = "rm -f ssh_host_*_key* && ssh-keygen -A >/dev/null && systemctl restart ssh"
    cluster.real.inside(SECOND, "sh", "-ec", f"{keep}; {fresh}")
    working.pool().close()
    try:
        run = ended(services.probe(ADMIN, [cluster.second]), 90)
        assert (run.state, run.reason) == ("failed", "host_key_changed"), (run.state, run.reason, run.evidence)
        assert Node.objects.get(pk=cluster.second.pk).state != Node.State.READY
        again = ended(services.probe(ADMIN, [cluster.second]), 90)
        assert again.state == "failed" and again.reason in ("host_key_changed", "host_key_unknown"), again.reason
        with pytest.raises(Refused):
            cluster.start(cluster.deployment())
    finally:
        cluster.real.inside(SECOND, "sh", "-ec", "cp -p /root/keys/* /etc/ssh/ && systemctl restart ssh")


@full
def test_ready_but_broken_is_never_serving(cluster: Cluster) -> None:
    """Pipeline parallel on this engine: /health says 200 and the first completion kills it."""
    deployment = cluster.deployment(tensor_parallel=1, arguments=[*cluster.arguments, "--pipeline-parallel-size", "2"])
    plan = services.preview(ADMIN, deployment)
    assert stops(plan) == [], plan.problems
    run = ended(cluster.start(deployment), 400)
    deployment.refresh_from_db()
    assert run.state == "failed" and deployment.state == "failed", (run.reason, run.evidence, text_of(run)[-3000:])
    assert run.reason in ("smoke_failed", "exited", "rank_lost"), (run.reason, run.evidence)


@full
def test_a_wrong_interface_is_named(cluster: Cluster) -> None:
    deployment = cluster.deployment(
        cluster="native", environment=sorted({**cluster.environment, "GLOO_SOCKET_IFNAME": "enp9s9"}.items())
    )
    run = ended(cluster.start(deployment), 400)
    assert run.state == "failed" and run.reason not in (None, "internal"), (run.reason, run.evidence)
    assert "enp9s9" in run.evidence or "enp9s9" in text_of(run), (run.reason, run.evidence)


def test_a_closed_pipe_to_docker_is_no_answer(cluster: Cluster) -> None:
    """Docker stopped on a node is called that, not `not installed`."""
    cluster.real.inside(SECOND, "systemctl", "stop", "docker.socket", "docker.service")
    try:
        cluster.probe()
        found = stops(services.preview(ADMIN, cluster.deployment()))
        assert ("docker_down", SECOND) in {(name, node) for name, node, _ in found}, found
    finally:
        cluster.real.inside(SECOND, "systemctl", "start", "docker.socket", "docker.service")
