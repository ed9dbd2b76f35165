"""Nothing of the nodes leaves the machine: no way out of their network, and no packet for it on the host's interfaces."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from scripts.real_nodes import FABRIC, HEAD, MANAGEMENT, SECOND, USER, Nodes

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
# Documentation networks and the nodes' own prefixes: nobody answers there, so nobody is disturbed.
ELSEWHERE = ("192.0.2.1", "198.51.100.1", "203.0.113.1")


def test_a_node_has_no_way_out(nodes: Nodes) -> None:
    for name in (HEAD, SECOND):
        assert nodes.inside(name, "ip", "route", "show", "default") == ""
        for address in ELSEWHERE:
            said = nodes.inside(name, "sh", "-c", f"ip route get {address} 2>&1; true")
            assert "unreachable" in said, (name, address, said)
            ping = nodes.inside(name, "sh", "-c", f"ping -c1 -W1 {address} 2>&1; true")
            assert "Network is unreachable" in ping, ping


def test_the_nodes_network_has_no_uplink(nodes: Nodes) -> None:
    """Interfaces of the namespace are loopback, two bridges and their ports; nothing routes."""
    shown = nodes._in_namespace("ip", "-o", "link", "show").splitlines()
    names = sorted(line.split(": ")[1].partition("@")[0] for line in shown)
    assert [name for name in names if not name.startswith("veth")] == ["lab-fabric", "lab-mgmt", "lo"]
    assert all("master lab-" in line for line in shown if ": veth" in line)
    assert nodes._in_namespace("ip", "route", "show", "default") == ""
    assert nodes._in_namespace("ip", "-4", "-o", "address", "show", "dev", "lab-fabric") == ""


def test_the_host_knows_neither_the_networks_nor_their_neighbours(nodes: Nodes) -> None:
    routes = nodes._run("ip", "route")
    assert MANAGEMENT not in routes and FABRIC not in routes
    assert "lab-" not in nodes._run("ip", "-o", "link")


def test_no_packet_of_the_nodes_passes_an_interface_of_the_host(nodes: Nodes) -> None:
    """A raw socket on every interface of the host sees whatever passes; the nodes talk to each other meanwhile."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)) as watch:
        watch.settimeout(0.2)
        nodes.inside(HEAD, "ping", "-c3", "-i0.2", "-W2", f"{FABRIC}.12")
        nodes.inside(SECOND, "ping", "-c3", "-i0.2", "-W2", f"{FABRIC}.11")
        nodes.inside(SECOND, "sh", "-c", f"ping -c1 -W1 {MANAGEMENT}.11; true")
        prefixes = [bytes(map(int, prefix.split("."))) for prefix in (MANAGEMENT, FABRIC)]
        seen = 0
        try:
            while seen < 20000:
                frame = watch.recv(2048)
                seen += 1
                source, target = frame[26:29], frame[30:33]
                assert frame[12:14] != b"\x08\x00" or not {source, target} & set(prefixes), frame[:40].hex()
        except TimeoutError:
            pass


def test_only_the_head_can_be_reached_from_here_and_only_by_loopback(nodes: Nodes) -> None:
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    port = f":{nodes.port:04X}"
    listening = [row.split()[1] for row in rows if row.split()[3] == "0A" and row.split()[1].endswith(port)]
    assert listening == [f"0100007F{port}"]
    with socket.create_connection(("127.0.0.1", nodes.port), timeout=20) as door:
        assert door.recv(64).startswith(b"SSH-2.0-OpenSSH")


def test_nodes_differ_where_two_machines_would(nodes: Nodes) -> None:
    keys = [{key.sha256 for key in nodes.host_keys(name)} for name in (HEAD, SECOND)]
    assert all(len(found) == 3 for found in keys) and not keys[0] & keys[1]
    assert nodes.boot_id(HEAD) != nodes.boot_id(SECOND)
    machine = [nodes.inside(name, "cat", "/etc/machine-id") for name in (HEAD, SECOND)]
    assert machine[0] != machine[1]
    assert nodes.inside(HEAD, "su", USER, "-c", "sudo -n id -u").strip() == "0"


def test_registry_answers_the_head(nodes: Nodes) -> None:
    """A real push, a real pull, and a real `manifest unknown`."""
    nodes.inside(HEAD, "sh", "-c", "printf 'x' >/tmp/x && tar -C /tmp -c x | docker import - registry.lab:5000/small:1")
    nodes.inside(HEAD, "docker", "push", "-q", "registry.lab:5000/small:1")
    nodes.inside(HEAD, "docker", "rmi", "registry.lab:5000/small:1")
    nodes.inside(HEAD, "docker", "pull", "-q", "registry.lab:5000/small:1")
    said = nodes.inside(HEAD, "sh", "-c", "docker pull registry.lab:5000/small:2 2>&1; true")
    assert "manifest for registry.lab:5000/small:2 not found: manifest unknown" in said
    nodes.inside(HEAD, "docker", "rmi", "registry.lab:5000/small:1")


def test_hub_serves_the_model(nodes: Nodes) -> None:
    base = "http://hub.lab:8080"
    described = nodes.inside(HEAD, "curl", "-sS", "-m", "20", f"{base}/api/models/lab/tiny-qwen3")
    assert '"model-00001-of-00004.safetensors"' in described
    file = f"{base}/lab/tiny-qwen3/resolve/main/config.json"
    part = nodes.inside(HEAD, "sh", "-c", f"curl -sS -m 20 -r 0-9 {file}; curl -sS -m 20 {file} | head -c 10")
    assert part[:10] == part[10:20]
