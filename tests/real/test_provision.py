"""Provision on real machines, through the API: sudo, visudo, sshd, groups, veth links by `ip` and by systemd-networkd, and the
way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.conftest import full
from tests.real.product import HEAD, SECOND, Json, Product, waited

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
RAIL = "enP2p1s0f0np0"
PASSWORD = "correct horse"
HOSTS = {HEAD: 12, SECOND: 13}
DONE_S = 300.0
FABRIC = [{"node": name, "interface": RAIL, "address": f"192.168.101.{host}/24"} for name, host in HOSTS.items()]
SETTLED = "find /etc /var/lib/systemd/linger /var/lib/sparkweb -type f ! -name '*-' -exec sha256sum {} + 2>/dev/null | sort -k 2"
DOWN = 'ip link set dev "$1" down mtu 1500; ip addr flush dev "$1"'
# Nothing of what a run would make: not in the group docker, and sudo asks.
BARE = """
gpasswd -d spark docker 2>/dev/null; printf 'spark:%s\\n' "$1" | chpasswd
echo 'spark ALL=(ALL) ALL' >/etc/sudoers.d/spark; chmod 440 /etc/sudoers.d/spark
"""
AGAIN = """
usermod -aG docker spark; echo 'spark ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/spark; chmod 440 /etc/sudoers.d/spark
systemctl stop systemd-networkd.socket systemd-networkd 2>/dev/null; systemctl mask systemd-networkd
rm -f /etc/systemd/network/*.network /etc/ssh/sshd_config.d/50-lab.conf; systemctl reload ssh; rm -rf /var/lib/sparkweb
iptables -F INPUT; loginctl disable-linger spark 2>/dev/null; rm -f /etc/security/limits.d/60-sparkweb.conf /etc/sudoers.d/sparkweb-spark
:
"""
NETWORKD = """
mkdir -p /etc/systemd/network
printf '[Match]\\nName=%s\\n[Network]\\nLinkLocalAddressing=no\\n' "$1" >/etc/systemd/network/40-rail.network
systemctl unmask systemd-networkd; systemctl start systemd-networkd
"""


def shell(product: Product, name: str, text: str, *words: str, check: bool = True) -> str:
    return product.nodes.inside(name, "sh", "-c", text, "sh", *words, check=check)


@pytest.fixture(scope="module")
def cable(enrolled: Product) -> Iterator[Product]:
    """A second link between both nodes, once for all: the overlay over /sys/class does not see a card that comes again."""
    enrolled.nodes.plug(RAIL)
    yield enrolled
    enrolled.nodes.unplug(RAIL)


@pytest.fixture
def rail(cable: Product, product: Product) -> Iterator[Product]:
    """That link down and without an address; the second node is bare."""
    for name in HOSTS:
        shell(product, name, DOWN, RAIL)
    try:
        shell(product, SECOND, BARE, PASSWORD)
        product.know()
        yield product
    finally:
        for name in HOSTS:
            shell(product, name, AGAIN, check=False)


def sheet_of(product: Product, name: str) -> Json:
    return dict(product.node(name)["sheet"])


def link_of(product: Product, name: str) -> tuple[Any, ...]:
    one = next(one for one in sheet_of(product, name)["interfaces"] if one["name"] == RAIL)
    return one["up"], one["mtu"], [f"{a['ip']}/{a['prefix']}" for a in one["addresses"] if a["family"] == "inet"]


def begun(product: Product, story: str, wish: Json, password: str = PASSWORD) -> int:
    """The run's id; the password answers whatever the plan asks for."""
    plan = product.ask(f"nodes/{story}/plan", wish)
    asked: dict[str, dict[str, str]] = {}
    for one in plan["passwords"]:
        asked.setdefault(one["node"], {})[one["kind"]] = password
    body = {**wish, "digest": plan["digest"], "reason": "a test", "passwords": asked}
    return int(product.ask(f"nodes/{story}/start", body)["run"])


def restored(product: Product, *names: str, **more: Any) -> None:
    product.succeeded(begun(product, "restore", {"nodes": list(names), **more}), DONE_S)


@pytest.mark.parametrize("owner", ["ip", "networkd"])
def test_a_bare_node_is_made_ready_and_put_back(rail: Product, owner: str) -> None:
    if owner == "networkd":
        for name in HOSTS:
            shell(rail, name, NETWORKD, RAIL)
            waited(
                lambda at=name: "configur" in shell(rail, at, f"networkctl --no-legend list {RAIL}", check=False), 60
            )
        rail.know()
    before = {name: shell(rail, name, SETTLED) for name in HOSTS}
    stood = {name: link_of(rail, name) for name in HOSTS}
    assert sheet_of(rail, SECOND)["setup"]["owners"].get(RAIL, "ip") == owner
    ticks = {
        HEAD: ["fabric", "measure"],
        SECOND: ["docker", "linger", "limits", "folders", "sudoers", "fabric", "measure"],
    }
    wish = {"nodes": [HEAD, SECOND], "ticks": ticks, "fabric": FABRIC, "units": {}, "models": "/srv/models"}

    run = begun(rail, "provision", wish)
    rail.succeeded(run, DONE_S)
    text = rail.text(run)
    assert "8972 bytes reach 192.168.101.12 undivided" in text and "8972 bytes reach 192.168.101.13 undivided" in text
    assert "Gb/s over one TCP connection" in text and PASSWORD not in text
    assert {name: link_of(rail, name) for name in HOSTS} == {
        name: (True, 9000, [f"192.168.101.{host}/24"]) for name, host in HOSTS.items()
    }
    sheet = dict(rail.node(SECOND, evidence=True)["sheet"])
    assert sheet["docker"]["problem"] is None, {
        name: (part["stdout"][-400:], part["stderr"][-400:])
        for name, part in sheet["evidence"].items()
        if name in ("docker", "privileges")
    }
    assert sheet["privileges"]["docker_group"] and sheet["privileges"]["linger"]
    assert (sheet["privileges"]["sudo"], sheet["privileges"]["drop_caches"]) == ("some", True)
    drop = "echo 3 | sudo -n /usr/bin/tee /proc/sys/vm/drop_caches"
    assert shell(rail, SECOND, f"su - spark -c '{drop}'").strip() == "3"
    shell(rail, SECOND, f"su - spark -c 'sudo -n /usr/sbin/ip link set dev {RAIL} mtu 9000'")
    assert "refused" in shell(rail, SECOND, "su - spark -c 'sudo -n /usr/bin/id || echo refused'")

    again = rail.ask("nodes/provision/plan", wish)
    steps = [step for stage in again["stages"] for node in stage["nodes"] for step in node["steps"]]
    left = {step["key"].split(".")[1] for step in steps if step["kind"] == "job"}
    assert left <= {"measure", "folders", "sudo"}, left  # a folder of one's own choice is looked at on the node

    restored(rail, HEAD, SECOND)
    assert {name: shell(rail, name, SETTLED) for name in HOSTS} == before
    assert {name: link_of(rail, name) for name in HOSTS} == stood


def test_the_node_puts_its_network_back_alone_when_the_way_to_it_is_cut(rail: Product) -> None:
    stood = link_of(rail, HEAD)
    armed = "until grep -q armed /var/lib/sparkweb/fabric 2>/dev/null; do sleep 0.05; done"
    cut = f"{armed}; iptables -I INPUT -p tcp --dport 22 -j DROP"
    shell(rail, HEAD, f"setsid sh -c '{cut}' </dev/null >/dev/null 2>&1 &")
    wish = {"nodes": [HEAD], "ticks": {HEAD: ["fabric"]}, "fabric": FABRIC[:1], "units": {}, "revert_s": 10}
    run = begun(rail, "provision", wish)
    waited(lambda: shell(rail, HEAD, "cat /var/lib/sparkweb/fabric", check=False).strip() == "reverted", 180)
    shell(rail, HEAD, "iptables -F INPUT")
    assert rail.failed(run, DONE_S)["reason"] == "fabric_reverted"
    rail.know()
    assert link_of(rail, HEAD) == stood
    restored(rail, HEAD)


@full
def test_the_first_key_comes_in_with_a_password(rail: Product) -> None:
    shell(rail, SECOND, "echo 'PasswordAuthentication yes' >/etc/ssh/sshd_config.d/50-lab.conf; systemctl reload ssh")
    name, door = "spark-2-new", rail.nodes.second
    public = rail.ask("credentials", {"name": "first key"})["public_key"]
    body = {"name": name, "address": door.address, "port": door.port, "user": door.user}
    rail.ids[name] = rail.ask("nodes", {**body, "credential": "first key", "jump": HEAD})["id"]
    offered = next(key["sha256"] for key in rail.node(name)["host_keys"] if key["hop"] == name)
    rail.ask(f"nodes/{rail.ids[name]}/confirm", {"sha256": offered})
    before = shell(rail, SECOND, "cat /home/spark/.ssh/authorized_keys")
    wish = {"nodes": [name], "key": [name]}
    assert rail.failed(begun(rail, "provision", wish, "a wrong one"), DONE_S)["reason"] == "ssh_auth"
    run = begun(rail, "provision", wish)
    rail.succeeded(run, DONE_S)
    assert PASSWORD not in rail.text(run)
    assert shell(rail, SECOND, "cat /home/spark/.ssh/authorized_keys") == before + public + "\n"
    assert sheet_of(rail, name)["machine"]["user"] == "spark"
    restored(rail, name, with_key=True)
    assert shell(rail, SECOND, "cat /home/spark/.ssh/authorized_keys") == before


@full
def test_a_wrong_sudo_password_changes_nothing(rail: Product) -> None:
    before = shell(rail, SECOND, SETTLED)
    wish = {"nodes": [SECOND], "ticks": {SECOND: ["docker", "limits", "sudoers"]}, "fabric": [], "units": {}}
    assert rail.failed(begun(rail, "provision", wish, "not it"), DONE_S)["reason"] == "sudo_denied"
    assert shell(rail, SECOND, SETTLED) == before
