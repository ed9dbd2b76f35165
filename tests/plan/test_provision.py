"""The provision story by its printed text, its addresses, its refusals, and its scripts run by a real shell."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.facts.sheet import Sheet
from apps.facts.values import Address, Docker, Folder, Hca, Interface, Privileges, Setup
from apps.plan.printing import story
from apps.plan.provision import scripts, texts
from apps.plan.provision.addressing import suggest
from apps.plan.provision.network import is_so
from apps.plan.provision.wish import MENDS, OFFERS, BadWish, Wish, wish_from
from apps.plan.step import Plan, Step
from apps.plan.stories import restore
from apps.plan.stories.provision import passwords, provision, suggested
from tests.plan.sheets import pair
from tests.plan.test_stories import same_as_golden

HEAD, SECOND = "spark-1a32", "spark-5be3"
ALL = tuple((node, offer.name) for node in (HEAD, SECOND) for offer in OFFERS)


def bare(sheet: Sheet, owner: str = "") -> Sheet:
    """The second Spark as it comes out of its box."""
    links = {
        "enp1s0f0np0": {"up": False, "mtu": 1500, "addresses": ()},
        "enP2p1s0f0np0": {"mtu": 1500, "addresses": (Address("169.254.77.13", 16, link_local=True),)},
    }
    interfaces = tuple(replace(one, **links.get(one.name, {})) for one in sheet.interfaces or ())
    ports = tuple(
        replace(hca, state="DOWN", physical_state="Disabled") if hca.netdev == "enp1s0f0np0" else hca
        for hca in sheet.fabric or ()
    )
    return replace(
        sheet,
        interfaces=interfaces,
        fabric=ports,
        docker=Docker(present=False, problem="docker_denied"),
        privileges=Privileges(sudo="password", docker_group=False, linger=False, remove_ipc=True, memlock_bytes=8 << 20),
        setup=Setup(
            owners={name: owner for name in links if owner}, ntp=False, docker_members=(), lingers=False,
            tools=("visudo", "nvidia-ctk", "python3"),
        ),
    )  # fmt: skip


def ready(sheet: Sheet) -> Sheet:
    """A node on which nothing is missing."""
    user, home = sheet.machine.user or "", sheet.machine.home or ""  # type: ignore[union-attr]
    content = texts.limits(user)
    return replace(
        sheet,
        setup=Setup(
            ntp=True, docker_members=(user,), lingers=True, files={texts.LIMITS_FILE: hashlib.sha256(content.encode()).hexdigest()},
            folders=(Folder("/models", user), Folder(f"{home}/.cache/huggingface", user)),
        ),
    )  # fmt: skip


def sheets(owner: str = "") -> dict[str, Sheet]:
    both = pair()
    return {HEAD: ready(both[HEAD]), SECOND: bare(both[SECOND], owner)}


def planned(known: dict[str, Sheet], **changes: Any) -> Plan:
    wish = Wish(nodes=(HEAD, SECOND), ticks=suggested(known), places=suggest(known))
    return provision(replace(wish, **changes), known)


def undone(plan: Plan) -> Plan:
    found = [{**step.undo, "code": "c0de"} for stage in plan.stages for step in stage.steps if step.undo]
    unique = {(one["node"], one["provision"]): one for one in reversed(found)}
    return restore(list(unique.values()), (HEAD, SECOND), sheets())


STORIES: dict[str, Callable[[], Plan]] = {
    "provision-bare": lambda: planned(sheets("netplan"), units=((SECOND, "vllm-cluster.service"),)),
    "provision-ready": lambda: planned({HEAD: ready(pair()[HEAD]), SECOND: ready(pair()[SECOND])}),
    "provision-everything": lambda: planned(
        sheets(), ticks=ALL, hosts=((HEAD, "ssh-ed25519 AAAAhead"), (SECOND, "ssh-ed25519 AAAAsecond"))
    ),
    "provision-key": lambda: planned(
        {}, ticks=(), key=(HEAD, SECOND), public_keys=((HEAD, "ssh-ed25519 AAAA k"), (SECOND, "ssh-ed25519 AAAA k"))
    ),
    "provision-restore": lambda: undone(planned(sheets("netplan"), ticks=ALL)),
}


def steps_of(plan: Plan) -> list[Step]:
    return [step for stage in plan.stages for step in stage.steps]


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    plan = STORIES[name]()
    same_as_golden(f"{name}.txt", story(plan))
    assert Plan.from_json(plan.to_json()) == plan
    assert len({step.key for step in steps_of(plan)}) == len(steps_of(plan))


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_every_script_and_what_runs_inside_is_shell(name: str, shell: str) -> None:
    for step in steps_of(STORIES[name]()):
        for text in filter(None, (step.script, *(step.commands if step.kind == "job" else ()))):
            if "python3 bandwidth.py" not in text:
                subprocess.run([shell, "-n"], input=text.encode(), check=True, capture_output=True)


def test_on_a_ready_node_nothing_is_done_and_each_step_says_why() -> None:
    plan = STORIES["provision-ready"]()
    assert {step.kind for step in steps_of(plan)} == {"note"}
    assert all(step.why.startswith("nothing to do, because ") for step in steps_of(plan))
    assert passwords(plan) == ()


def test_a_password_is_a_name_in_the_plan_and_asked_for_before_anything_changes() -> None:
    plan = STORIES["provision-bare"]()
    assert passwords(plan) == (f"once:sudo:{SECOND}",)
    assert next(step.key for step in steps_of(plan) if step.kind == "job") == f"provision.sudo.{SECOND}"
    assert [problem.name for problem in plan.problems] == ["sudo_password"]


@pytest.mark.parametrize("owner", ["netplan", "networkmanager", "networkd", ""])
def test_each_interface_is_changed_by_what_owns_it(owner: str) -> None:
    step = next(step for step in steps_of(planned(sheets(owner))) if step.key == f"provision.fabric.{SECOND}")
    assert f"enp1s0f0np0 192.168.200.11/24 {owner or 'ip'}" in step.commands[0]
    assert step.undo == {"node": SECOND, "provision": "fabric", "values": {"state": scripts.NETWORK_STATE}}


def test_all_must_answer_before_any_keeps_its_new_network() -> None:
    names = [stage.name for stage in planned(sheets()).stages]
    assert names.index("Fabric") < names.index("All answer") < names.index("Keep") < names.index("Full packets")


def test_the_way_to_a_node_is_never_made_its_fabric() -> None:
    known = sheets()
    wish = wish_from(
        {"nodes": [HEAD], "fabric": [{"node": HEAD, "interface": "enP7s7", "address": "192.168.100.1/24"}]}
    )
    plan = provision(replace(wish, ticks=((HEAD, "fabric"),)), known)
    assert "is the way to" in plan.refused[0].title


def test_without_sudo_every_root_step_says_so() -> None:
    known = sheets()
    known[SECOND] = replace(known[SECOND], privileges=replace(known[SECOND].privileges, sudo="none"))
    plan = planned(known)
    assert not [
        step for step in steps_of(plan) if step.node == SECOND and step.kind == "job" and "as root" in step.commands[0]
    ]
    assert [problem.severity for problem in plan.problems] == ["warn"]


def test_what_a_login_may_do_must_be_known_before_anything_is_changed() -> None:
    known = sheets()
    known[SECOND] = replace(known[SECOND], privileges=None)
    assert [(problem.name, problem.node) for problem in planned(known).refused] == [("unreadable", SECOND)]


def test_every_finding_that_is_said_to_be_mended_exists() -> None:
    from apps.diagnosis.findings.table import TABLE

    assert set(MENDS) <= set(TABLE)


# Addresses


def test_what_is_there_is_kept_and_the_other_end_joins_it() -> None:
    found = {(one.node, one.interface): f"{one.address}/{one.prefix}" for one in suggest(sheets())}
    assert found == {
        (HEAD, "enp1s0f0np0"): "192.168.200.12/24",
        (HEAD, "enP2p1s0f0np0"): "192.168.201.12/24",
        (SECOND, "enp1s0f0np0"): "192.168.200.11/24",
        (SECOND, "enP2p1s0f0np0"): "192.168.201.11/24",
    }


def test_many_new_nodes_get_one_subnet_a_rail_and_an_address_each() -> None:
    template = bare(pair()[SECOND])
    known = {f"n{number:02d}": replace(template, node=f"n{number:02d}") for number in range(40)}
    made = suggest(known)
    assert len({one.address for one in made}) == len(made) == 80
    assert {one.address.rsplit(".", 1)[0] for one in made} == {"192.168.100", "192.168.101"}
    assert all(not is_so(known[one.node], one, 9000) for one in made)


def test_twins_in_one_subnet_are_taken_apart() -> None:
    sheet = pair()[HEAD]
    twins = tuple(
        replace(one, addresses=(Address(f"192.168.200.{number}", 24),)) if one.name.endswith("f0np0") else one
        for number, one in enumerate(sheet.interfaces or (), start=10)
    )
    networks = {one.address.rsplit(".", 1)[0] for one in suggest({HEAD: replace(sheet, interfaces=twins)})}
    assert len(networks) == 2


def test_a_node_without_rdma_has_its_named_fabric_or_none() -> None:
    links = (Interface("eth0", up=True, role="management"), Interface("fab0", up=True, role="fabric"))
    assert [one.interface for one in suggest({"n": Sheet("n", 0.0, interfaces=links, fabric=())})] == ["fab0"]
    assert suggest({"n": Sheet("n", 0.0, interfaces=links[:1], fabric=(Hca("mlx5_0"),))}) == ()
    assert suggest({"n": Sheet("n", 0.0)}) == ()


# Wishes from outside


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"nodes": []}, "nodes"),
        ({"nodes": "n"}, "nodes"),
        ({"nodes": ["n", "n"]}, "nodes"),
        ({"nodes": ["a b"]}, "nodes[0]"),
        ({"ticks": []}, ""),
        ({"ticks": [1]}, "ticks"),
        ({"ticks": {"n": "docker"}}, "ticks.n"),
        ({"key": ["other"]}, "key[0]"),
        ({"fabric": [{"node": "n", "interface": "x" * 16, "address": "10.0.0.1"}]}, "fabric[0].interface"),
        ({"fabric": [{"node": "n", "interface": "e0", "address": "$(id)"}]}, "fabric[0].address"),
        ({"fabric": [{"node": "n", "interface": "e0", "address": "10.0.0.0/24"}]}, "fabric[0].address"),
        ({"fabric": [{"node": "n", "interface": "e0", "address": "169.254.1.1/16"}]}, "fabric[0].address"),
        ({"fabric": [{"node": "n", "interface": "e0", "address": "10.0.0.1", "up": 1}]}, "fabric[0]"),
        (
            {"fabric": [{"node": "n", "interface": f"e{n}", "address": f"10.0.0.{n}"} for n in (1, 2)]},
            "fabric",
        ),  # twins in one subnet
        ({"units": {"n": ["x; rm -rf /"]}}, "units.n[0]"),
        ({"models": "models"}, "models"),
        ({"models": "/a/../../etc"}, "models"),
        ({"mtu": 90000}, "mtu"),
        ({"mtu": True}, "mtu"),
        ({"clock_mhz": "2400"}, "clock_mhz"),
        ({"internet": "other"}, "internet"),
    ],
)
def test_a_bad_wish_names_its_field(changes: dict[str, Any], field: str) -> None:
    body = {"nodes": ["n"], **changes}
    if not field:
        wish_from(body)
        return
    with pytest.raises(BadWish) as refused:
        wish_from(body)
    assert refused.value.field == field and refused.value.remedy


# Files and scripts


def test_the_sudoers_file_allows_exactly_what_plans_use() -> None:
    import re

    text = texts.sudoers("aurora", units=["vllm-cluster.service", "a.b"], interfaces=["enp1s0f0np0"])
    commands = text.replace("\\\n", " ").partition("NOPASSWD: ")[2].strip().split(", ")
    assert commands[0].split() == ["/usr/bin/tee", "/proc/sys/vm/drop_caches"]

    def allows(line: str) -> bool:
        program, _, arguments = line.partition(" ")
        return any(
            one.strip().partition(" ")[0] == program
            and (one.strip().partition(" ")[2] == arguments or bool(re.match(one.strip().partition(" ")[2], arguments)))
            for one in commands
        )

    assert allows("/usr/bin/systemctl stop vllm-cluster.service") and allows(
        "/usr/bin/systemctl stop vllm-cluster a.b.service"
    )
    assert allows("/usr/sbin/ip link set dev enp1s0f0np0 up mtu 9000")
    assert allows("/usr/sbin/ip addr replace 192.168.200.11/24 dev enp1s0f0np0")
    for line in (
        "/usr/bin/systemctl stop sshd", "/usr/bin/systemctl stop aXb", "/usr/bin/systemctl edit vllm-cluster",
        "/usr/bin/systemctl stop vllm-cluster sshd", "/usr/bin/systemctl stop vllm-cluster --root=/x",
        "/usr/sbin/ip link set dev eth0 down", "/usr/sbin/ip link set dev enp1s0f0np0 up netns 1",
    ):  # fmt: skip
        assert not allows(line), line
    assert not set(":=,\\") & set("".join(commands))  # these would have to be escaped
    assert "." not in texts.sudoers_file("a.b").rsplit("/", 1)[-1]


def run(text: str, code: str = "c0de", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", text, "sparkweb", code],
        capture_output=True, text=True, env={"PATH": os.environ["PATH"], **environment}, check=False,
    )  # fmt: skip


def tree(root: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(root)): (path.stat().st_mode & 0o777, path.read_bytes() if path.is_file() else None)
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("old", [None, b"", b"no newline at the end", b"\x00\xff binary\n"])
def test_a_file_is_put_back_byte_for_byte(tmp_path: Path, old: bytes | None) -> None:
    file, base = tmp_path / "etc/limits.d/60.conf", tmp_path / "var/lib/sparkweb"
    base.parent.mkdir(parents=True)
    if old is not None:
        file.parent.mkdir(parents=True)
        file.write_bytes(old)
        file.chmod(0o640)
    before = tree(tmp_path)
    values = {"file": str(file), "content": "new\ncontent 'quoted' $HOME\n"}
    whole = scripts.body("limits", scripts.LIMITS, values, base=str(base))
    assert run(whole).returncode == 0
    assert file.read_text() == values["content"] and file.stat().st_mode & 0o777 == 0o644
    again = run(whole, code="another")
    assert again.stdout.startswith("nothing to do, because") and not (base / "undo/another.limits").exists()
    back = scripts.back_body("limits", "c0de", {}, base=str(base))
    done = run(back)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree(tmp_path) == before
    assert run(back).stdout.startswith("nothing to do, because no change was recorded")


def test_what_somebody_changed_since_stays(tmp_path: Path) -> None:
    file, base = tmp_path / "60.conf", tmp_path / "sparkweb"
    file.write_text("old\n")
    run(scripts.body("limits", scripts.LIMITS, {"file": str(file), "content": "new\n"}, base=str(base)))
    file.write_text("mine\n")
    done = run(scripts.back_body("limits", "c0de", {}, base=str(base)))
    assert done.returncode == 1 and "sparkweb: changed_since: " in done.stdout
    assert file.read_text() == "mine\n" and (base / "undo/c0de.limits/files/1.old").read_text() == "old\n"


@pytest.mark.parametrize("old", [None, b"", b"ssh-rsa BBBB mine", b"ssh-rsa BBBB mine\n"])
def test_the_key_goes_in_once_and_comes_out_alone(tmp_path: Path, old: bytes | None) -> None:
    line, file = "ssh-ed25519 AAAAC3Nz sparkweb:sparks", tmp_path / ".ssh/authorized_keys"
    if old is not None:
        file.parent.mkdir()
        file.write_bytes(old)
    for _ in range(2):
        assert run(scripts.key_script(line), HOME=str(tmp_path)).returncode == 0
    assert file.read_text().splitlines().count(line) == 1
    assert not old or file.read_bytes().startswith(old.rstrip(b"\n") + b"\n")
    assert run(scripts.key_back(line), HOME=str(tmp_path)).returncode == 0
    assert file.read_bytes() == (old.rstrip(b"\n") + b"\n" if old else b"")


def test_the_bandwidth_program_measures_over_real_sockets() -> None:
    import socket
    import sys

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    serve = subprocess.Popen(
        [sys.executable, "-c", scripts.BANDWIDTH, "serve", "127.0.0.1", port, "1"], stdout=subprocess.PIPE, text=True
    )
    sent = subprocess.run(
        [sys.executable, "-c", scripts.BANDWIDTH, "send", "127.0.0.1", port, "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert sent.returncode == 0 and "Gb/s over one TCP connection" in sent.stdout
    assert serve.communicate(timeout=20)[0] == "served 1\n"


# The network, with the real ip(8) in a network namespace of its own

LINK = """
mount -t sysfs sysfs /sys; ip link add fab0 type veth peer name fab1; ip link set fab1 up mtu 9000; ip link set fab0 up
ip addr add 169.254.7.7/16 scope link dev fab0
show() { ip -o link show dev fab0 | sed 's/.*<\\(.*\\)> mtu \\([0-9]*\\).*/\\1 \\2/'; ip -o -4 addr show dev fab0 | sed 's/.* inet \\([^ ]*\\).*/\\1/'; }
until_says() { left=100; until [ "$(cat "$state" 2>/dev/null)" = "$1" ] || [ $left = 0 ]; do sleep 0.1; left=$((left - 1)); done; }
"""


def in_namespace(tmp_path: Path, revert_s: int, script: str) -> list[str]:
    base, state = str(tmp_path / "sparkweb"), str(tmp_path / "sparkweb/fabric")
    values = {
        "links": "fab0 192.168.101.12/24 ip", "mtu": "9000", "revert_s": str(revert_s), "state": state, "netplan": "",
        "watch": scripts.WATCH.strip(),
    }  # fmt: skip
    bodies = {
        "change": scripts.body("fabric", scripts.FABRIC, values, base=base),
        "keep": scripts.body("fabric", scripts.FABRIC_KEEP, {"state": state}, base=base),
        "back": scripts.back_body("fabric", "c0de", {"state": state}, after=scripts.FABRIC_BACK, base=base),
    }
    for name, text in bodies.items():
        (tmp_path / name).write_text(text)
    given = f"state={state}\n{LINK}\ncd {tmp_path}\n{script}"
    done = subprocess.run(["unshare", "-n", "-m", "sh", "-c", given], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "permitted" in done.stderr:
        pytest.skip(f"no network namespace here: {done.stderr.strip()[:80]}")
    assert not (tmp_path / "sparkweb").exists(), done.stdout + done.stderr
    return done.stdout.splitlines()


BEFORE, AFTER = ["UP,LOWER_UP 1500", "169.254.7.7/16"], ["UP,LOWER_UP 9000", "192.168.101.12/24"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_real_link_goes_back_by_itself_or_stays_when_told(tmp_path: Path) -> None:
    quiet = ">/dev/null 2>&1"
    alone = in_namespace(
        tmp_path, 2, f"sh change c0de {quiet}; show; until_says reverted; show; sh keep c0de | head -1; sh back {quiet}"
    )
    assert [one.replace("BROADCAST,MULTICAST,", "") for one in alone[:4]] == AFTER + BEFORE
    assert alone[4].startswith("sparkweb: fabric_reverted: ")
    told = in_namespace(
        tmp_path, 2, f"sh change c0de {quiet}; sh keep c0de; sleep 3; show; sh change c1de; sh back {quiet}; show"
    )
    assert told[0] == "the new network stays" and told[3].startswith("nothing to do, because every link is up")
    assert [one.replace("BROADCAST,MULTICAST,", "") for one in (*told[1:3], *told[4:])] == AFTER + BEFORE
