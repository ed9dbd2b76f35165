"""Provision on real machines: sudo, visudo, sshd, groups, veth links by `ip` and by systemd-networkd, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apps.facts.sheet import Sheet
from apps.inventory import services as inventory
from apps.runs import provisioning
from apps.runs.models import Passing, Run
from tests.real.conftest import ADMIN, HEAD, SECOND, Cluster, ended, text_of, waited

pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True)]
RAIL, NETWORK = "enP2p1s0f0np0", "lab-rail"
PASSWORD = "correct horse"
HOSTS = {HEAD: 12, SECOND: 13}
PASSWORDS = {f"once:sudo:{SECOND}": PASSWORD}
FABRIC = [{"node": name, "interface": RAIL, "address": f"192.168.101.{host}/24"} for name, host in HOSTS.items()]
SETTLED = "find /etc /var/lib/systemd/linger /var/lib/sparkweb -type f ! -name '*-' -exec sha256sum {} + 2>/dev/null | sort -k 2"
TWIN = """
old=$(ip -o -4 addr show | awk -v wanted="$1" '{ split($4, part, "/"); if (part[1] == wanted) print $2 }')
ip link set "$old" down; ip addr flush dev "$old"; ip link set "$old" name "$2"; ip link set "$2" mtu 1500
"""
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


def shell(cluster: Cluster, name: str, text: str, *words: str, check: bool = True) -> str:
    return cluster.real.inside(name, "sh", "-c", text, "sh", *words, check=check)


@pytest.fixture
def rail(cluster: Cluster) -> Iterator[Cluster]:
    """A second link between both nodes, down and without an address."""
    docker = cluster.real.docker
    docker(
        "network", "create", "--internal", "--subnet", "10.77.2.0/24",
        "--opt", "com.docker.network.driver.mtu=9000", NETWORK,
    )  # fmt: skip
    try:
        for name, host in HOSTS.items():
            docker("network", "connect", f"--ip=10.77.2.{host}", NETWORK, name)
            shell(cluster, name, TWIN, f"10.77.2.{host}", RAIL)
        shell(cluster, SECOND, BARE, PASSWORD)
        cluster.known()
        yield cluster
    finally:
        for name in HOSTS:
            shell(cluster, name, AGAIN, check=False)
            docker("network", "disconnect", "--force", NETWORK, name, check=False)
        docker("network", "rm", NETWORK, check=False)


def link_of(sheet: Sheet) -> tuple[Any, ...]:
    one = next(one for one in sheet.interfaces or () if one.name == RAIL)
    return one.up, one.mtu, [f"{a.ip}/{a.prefix}" for a in one.addresses if a.family == "inet"]


def done(cluster: Cluster, wish: dict[str, Any], **passwords: str) -> Run:
    made = provisioning.preview(wish)
    given = passwords or {name: PASSWORDS[name] for name in made.passwords}
    run = provisioning.start(ADMIN, wish, digest=made.plan.digest, reason="a test", passwords=given)
    return ended(run, 240)


def restored(*names: str, **more: Any) -> Run:
    made = provisioning.preview_restore(names, **more)
    given = {name: PASSWORDS[name] for name in made.passwords}
    run = provisioning.start_restore(ADMIN, names, digest=made.plan.digest, reason="a test", passwords=given, **more)
    return ended(run, 240)


@pytest.mark.parametrize("owner", ["ip", "networkd"])
def test_a_bare_node_is_made_ready_and_put_back(rail: Cluster, owner: str) -> None:
    if owner == "networkd":
        for name in HOSTS:
            file = f"printf '[Match]\\nName={RAIL}\\n[Network]\\nLinkLocalAddressing=no\\n' >/etc/systemd/network/40-rail.network"
            shell(
                rail,
                name,
                f"mkdir -p /etc/systemd/network; {file}; systemctl unmask systemd-networkd; systemctl start systemd-networkd",
            )
            waited(
                lambda at=name: (
                    "configur" in shell(rail, at, f"networkctl --no-legend list {RAIL} | tail -1", check=False)
                ),
                30,
            )
        rail.known()
    before = {name: shell(rail, name, SETTLED) for name in HOSTS}
    stood = {name: link_of(inventory.latest_sheet(node)) for name, node in ((HEAD, rail.head), (SECOND, rail.second))}
    ticks = {
        HEAD: ["fabric", "measure"],
        SECOND: ["docker", "linger", "limits", "folders", "sudoers", "fabric", "measure"],
    }
    wish = {"nodes": [HEAD, SECOND], "ticks": ticks, "fabric": FABRIC, "units": {}, "models": "/srv/models"}

    run = done(rail, wish)
    text = text_of(run)
    assert run.state == "succeeded", (run.reason, run.evidence, text[-4000:])
    assert "8972 bytes reach 192.168.101.12 undivided" in text and "8972 bytes reach 192.168.101.13 undivided" in text
    assert "Gb/s over one TCP connection" in text and PASSWORD not in text
    sheet = inventory.latest_sheet(rail.second)
    assert link_of(sheet) == (True, 9000, ["192.168.101.13/24"])
    assert link_of(inventory.latest_sheet(rail.head)) == (True, 9000, ["192.168.101.12/24"])
    assert sheet.docker.problem is None and sheet.privileges.docker_group and sheet.privileges.linger
    assert (sheet.privileges.sudo, sheet.privileges.drop_caches) == ("some", True)
    assert shell(rail, SECOND, "su - spark -c 'echo 3 | sudo -n /usr/bin/tee /proc/sys/vm/drop_caches'").strip() == "3"
    link = f"sudo -n /usr/sbin/ip link set dev {RAIL} mtu 9000"
    shell(rail, SECOND, f"su - spark -c '{link}'")
    assert "refused" in shell(rail, SECOND, "su - spark -c 'sudo -n /usr/bin/id || echo refused'")

    again = provisioning.preview(wish)
    left = [step for stage in again.plan.stages for step in stage.steps if step.kind not in ("note", "probe")]
    assert {step.key.split(".")[1] for step in left} <= {"measure", "folders"}, [step.key for step in left]

    back = restored(HEAD, SECOND)
    assert back.state == "succeeded", (back.reason, back.evidence, text_of(back)[-4000:])
    assert {name: shell(rail, name, SETTLED) for name in HOSTS} == before
    assert link_of(inventory.latest_sheet(rail.second)) == stood[SECOND]
    assert link_of(inventory.latest_sheet(rail.head)) == stood[HEAD]


def test_the_node_puts_its_network_back_alone_when_the_way_to_it_is_cut(rail: Cluster) -> None:
    stood = link_of(inventory.latest_sheet(rail.head))
    cut = "until grep -q armed /var/lib/sparkweb/fabric 2>/dev/null; do sleep 0.05; done; iptables -I INPUT -p tcp --dport 22 -j DROP"
    shell(rail, HEAD, f"setsid sh -c '{cut}' </dev/null >/dev/null 2>&1 &")
    wish = {"nodes": [HEAD], "ticks": {HEAD: ["fabric"]}, "fabric": FABRIC[:1], "units": {}, "revert_s": 10}
    made = provisioning.preview(wish)
    run = provisioning.start(ADMIN, wish, digest=made.plan.digest, reason="cut off", passwords={})
    waited(lambda: shell(rail, HEAD, "cat /var/lib/sparkweb/fabric", check=False).strip() == "reverted", 90)
    shell(rail, HEAD, "iptables -F INPUT")
    run = ended(run, 240)
    assert (run.state, run.reason) == ("failed", "fabric_reverted"), (run.reason, run.evidence, text_of(run)[-3000:])
    rail.known()
    assert link_of(inventory.latest_sheet(rail.head)) == stood
    assert restored(HEAD).state == "succeeded"


def test_the_first_key_comes_in_with_a_password(rail: Cluster) -> None:
    shell(rail, SECOND, "echo 'PasswordAuthentication yes' >/etc/ssh/sshd_config.d/50-lab.conf; systemctl reload ssh")
    key = inventory.make_credential(ADMIN, name="first key")
    before = shell(rail, SECOND, "cat /home/spark/.ssh/authorized_keys")
    type(rail.second).objects.filter(pk=rail.second.pk).update(credential=key)
    wish = {"nodes": [SECOND], "key": [SECOND]}
    wrong = done(rail, wish, **{f"once:login:{SECOND}": "wrong"})
    assert (wrong.state, wrong.reason) == ("failed", "ssh_auth")
    right = done(rail, wish, **{f"once:login:{SECOND}": PASSWORD})
    assert right.state == "succeeded", (right.reason, right.evidence)
    assert PASSWORD not in text_of(right) and not Passing.objects.exists()
    assert shell(rail, SECOND, "cat /home/spark/.ssh/authorized_keys") == before + key.public_key + "\n"
    back = restored(SECOND, with_key=True)
    assert back.state == "succeeded", (back.reason, back.evidence)
    assert shell(rail, SECOND, "cat /home/spark/.ssh/authorized_keys") == before


def test_a_wrong_sudo_password_changes_nothing(rail: Cluster) -> None:
    before = shell(rail, SECOND, SETTLED)
    wish = {"nodes": [SECOND], "ticks": {SECOND: ["docker", "limits", "sudoers"]}, "fabric": [], "units": {}}
    run = done(rail, wish, **{f"once:sudo:{SECOND}": "not it"})
    assert (run.state, run.reason) == ("failed", "sudo_denied"), (run.reason, run.evidence)
    assert shell(rail, SECOND, SETTLED) == before
