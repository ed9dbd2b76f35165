"""MIG devices and lost GPUs, Xids, full frames, memory by cgroup: field formats and their neighbours."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from apps.diagnosis.findings import findings
from apps.facts import docker, gpu, memory, network, probe
from apps.facts.sheet import Evidence, Sheet
from apps.facts.values import Container, Gpus, MemoryOwner

NONCE = "n0nce4thehardware"

MIG_LIST = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/13/0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaaaaaa-d268-c3f3-1b07-005d5ae1dc3f)
@pci 0000:36:00.0 nvidia
@pci 0000:3b:00.0 nvidia
@pci 0000:86:00.0 vfio-pci
"""


def test_mig_devices_have_a_profile_and_a_uuid() -> None:
    found = gpu.from_list(MIG_LIST)
    assert found is not None and found.on_bus == ("0000:36:00.0", "0000:3b:00.0")
    first, second = found.gpus
    assert [(each.device, each.profile) for each in first.instances] == [(0, "3g.20gb"), (1, "1g.5gb+me")]
    assert first.instances[0].uuid == "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
    assert (first.mig, second.mig, second.instances) == ("Enabled", None, ())


def test_the_tables_instances_are_named_by_the_list() -> None:
    case = Path(__file__).resolve().parent.parent / "cases/009-mig-a100-two-instances"
    text = next(case.glob("input*")).read_text()
    table = gpu.from_table(Evidence(text, "", 0))
    assert table is not None
    whole = gpu.joined(table, None, None, gpu.from_list(MIG_LIST))
    assert whole is not None and whole.on_bus == ("0000:36:00.0", "0000:3b:00.0")
    named = {each.device: each.profile for each in whole.gpus[0].instances}
    assert named.get(0) == "3g.20gb" and all(each.gi >= 0 for each in whole.gpus[0].instances)
    assert whole.gpus[0].uuid == "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"


def test_a_real_h200_is_the_one_on_its_bus() -> None:
    """Driver 580.159.04 on a virtual machine; the id changed."""
    listed = gpu.from_list(
        "GPU 0: NVIDIA H200 (UUID: GPU-0a0a0a0a-c90b-d34f-63e6-c04d00000001)\n@pci 0000:00:06.0 nvidia\n"
    )
    query = gpu.from_query(Evidence("index, name, uuid, pci.bus_id\n0, NVIDIA H200, [N/A], 00000000:00:06.0\n", "", 0))
    whole = gpu.joined(None, query, None, listed)
    assert whole is not None and whole.gpus[0].uuid == "GPU-0a0a0a0a-c90b-d34f-63e6-c04d00000001"
    sheet = Sheet("a", 1.0, gpus=whole)
    assert "gpu_missing" not in {one.name for one in findings({"a": sheet})}
    lost = Sheet("a", 1.0, gpus=replace(whole, on_bus=("0000:00:06.0", "0000:00:07.0")))
    (missing,) = [one for one in findings({"a": lost}) if one.name == "gpu_missing"]
    assert missing.values["lost"] == ["0000:00:07.0"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Unable to determine the device handle for gpu 0000:B1:00.0: Unknown Error\n", "gpu_lost"),
        ("No devices found.\n", "no_gpu"),
        ("GPU 0: NVIDIA GB10 (UUID: GPU-1)\n", None),
    ],
)
def test_how_the_list_fails(text: str, problem: str | None) -> None:
    found = gpu.from_list(text)
    assert found is not None and found.problem == problem


def test_one_of_four_rows_that_answers_nothing_is_lost_not_zero() -> None:
    row = "{0}, NVIDIA H200, GPU-{0}, 00000000:0{0}:00.0, 143771 MiB, 4 MiB, 0 %, 30, 70.1 W, 700.00 W"
    lost = "3, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]"
    header = "index, name, uuid, pci.bus_id, memory.total [MiB], memory.used [MiB], utilization.gpu [%], temperature.gpu, power.draw [W], power.limit [W]"
    found = gpu.from_query(Evidence("\n".join([header, *(row.format(n) for n in range(3)), lost]) + "\n", "", 0))
    assert found is not None and found.problem == "gpu_lost" and len(found.gpus) == 4
    assert (found.gpus[3].name, found.gpus[3].memory_total_mib, found.gpus[3].temp_c) == (None, None, None)


XIDS = """\
[Mon Nov 30 10:00:00 2026] NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS
[Mon Nov 30 10:00:01 2026] NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=python3, Ch 00000009, intr 00000000. MMU Fault: ENGINE GRAPHICS
Nov 30 10:00:02 spark kernel: NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 1234.5] NVRM: Xid (0000:02:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
[ 1234.6] NVRM: loading NVIDIA UNIX Open Kernel Module
"""


def test_each_xid_once_with_its_count() -> None:
    assert [(each.bus_id, each.code, each.count) for each in gpu.xids(XIDS)] == [
        ("0000:01:00", 31, 2),
        ("000f:01:00", 79, 1),
        ("0000:02:00", 154, 1),
    ]
    assert gpu.GpuErrorsFact.parse(Evidence("unreadable\n", "", 0)) is None
    assert gpu.GpuErrorsFact.parse(Evidence("", "", 0)) == ()


def test_the_probe_takes_them_from_the_log_that_it_reads_anyway() -> None:
    both = XIDS + "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task=python3,pid=42,uid=0\n"
    sheet = probe.sheet_from("a", 1.0, {"killed": Evidence(both, "", 0)})
    assert [each.code for each in sheet.gpu_errors or ()] == [31, 79, 154]
    assert [each.process for each in sheet.killed or ()] == ["python3"]
    unread = probe.sheet_from("a", 1.0, {"killed": Evidence("unreadable\n", "", 0)})
    assert unread.gpu_errors is None and unread.killed is None


HEAD = "PING 192.168.200.13 (192.168.200.13) from 192.168.200.12 enp1s0f0np0: 8972(9000) bytes of data.\n"
SMALL = "@small\nPING 192.168.200.13 (192.168.200.13) 56(84) bytes of data.\n64 bytes from 192.168.200.13: icmp_seq=1 ttl=64 time=0.1 ms\n\n--- x ping statistics ---\n1 packets transmitted, 1 received, 0% packet loss, time 0ms\n"
NONE = "\n--- 192.168.200.13 ping statistics ---\n2 packets transmitted, 0 received, 100% packet loss, time 1021ms\n\n"


@pytest.mark.parametrize(
    ("body", "result", "mtu"),
    [
        (HEAD + "8980 bytes from 192.168.200.13: icmp_seq=1 ttl=64 time=0.091 ms\n\n--- x ping statistics ---\n2 packets transmitted, 2 received, 0% packet loss, time 301ms\nrtt min/avg/max/mdev = 0.088/0.089/0.091/0.001 ms\n", "ok", None),
        (HEAD + "ping: local error: message too long, mtu=1500\nping: local error: message too long, mtu=1500\n\n--- x ping statistics ---\n2 packets transmitted, 0 received, +2 errors, 100% packet loss, time 1027ms\n\n" + SMALL, "too_long", 1500),
        (HEAD + "ping: sendmsg: Message too long\n" + NONE + SMALL, "too_long", None),
        (HEAD + "From 192.168.200.1 icmp_seq=1 Frag needed and DF set (mtu = 1500)\n" + NONE + SMALL, "too_long", 1500),
        (HEAD + NONE + SMALL, "too_long", None),
        (HEAD + NONE + "@small\n" + HEAD.replace("8972(9000)", "56(84)") + NONE, "no_answer", None),
        (HEAD + "From 192.168.200.12 icmp_seq=1 Destination Host Unreachable\n" + NONE + "@small\n" + NONE, "unreachable", None),
        ("ping: connect: Network is unreachable\n@small\nping: connect: Network is unreachable\n", "unreachable", None),
        ("ping: unknown iface: eth9\n@small\nping: unknown iface: eth9\n", "no_interface", None),
        ("ping: invalid option -- 'M'\nBusyBox v1.36.1 multi-call binary.\n@small\nping: permission denied (are you root?)\n", "no_ping", None),
        ("sh: 1: ping: not found\n@small\nsh: 1: ping: not found\n", "no_ping", None),
        ("", None, None),
    ],
)  # fmt: skip
def test_a_full_frame_on_a_rail(body: str, result: str | None, mtu: int | None) -> None:
    (found,) = network.rails("@rail enp1s0f0np0 192.168.200.13\n" + body)
    assert (found.interface, found.peer, found.result, found.mtu_bytes) == (
        "enp1s0f0np0",
        "192.168.200.13",
        result,
        mtu,
    )
    assert found.frame_bytes == (9000 if body.startswith("PING") else None)
    assert (found.rtt_ms is not None) == (result == "ok")
    assert result is None or found.evidence


def test_a_pasted_ping_is_a_rail_of_unknown_interface() -> None:
    (found,) = network.rails(HEAD + NONE)
    assert (found.interface, found.peer, found.frame_bytes, found.result) == ("", "192.168.200.13", 9000, "no_answer")


def test_rails_are_asked_only_where_the_peers_are_known() -> None:
    done = subprocess.run(
        ["/bin/sh", "-s"], input=probe.script(["rails"], nonce=NONCE).encode(), capture_output=True, timeout=60
    )
    assert probe.sheet_from("here", 0.0, probe.read(NONCE, done.stdout)).rails is None
    text = probe.script(["rails"], nonce=NONCE, extra={"peers": "lo 127.0.0.1\nnone0 127.0.0.2"})
    done = subprocess.run(["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60)
    found = probe.sheet_from("here", 0.0, probe.read(NONCE, done.stdout)).rails or ()
    assert {(one.interface, one.peer) for one in found} == {("lo", "127.0.0.1"), ("none0", "127.0.0.2")}


@pytest.mark.parametrize(
    ("text", "known"),
    [("unreadable\n", False), ("", True), ("unreadable\nsystemd-oomd[1]: Killed /a/b.scope due to x\n", True)],
)
def test_a_kernel_log_that_can_not_be_read_is_no_good_news(text: str, known: bool) -> None:
    assert (memory.KilledFact.parse(Evidence(text, "", 0)) is not None) == known


def test_memory_by_owner_largest_first() -> None:
    text = (
        "system.slice/docker.service/memory.current:1048576\n"
        "system.slice/docker-" + "a" * 64 + ".scope/memory.current:96000000000\n"
        "user.slice/user-1000.slice/memory.current:2097152\n"
        "user.slice/user-1000.slice/memory.swap.current:4096\n"
        "grep: system.slice/x/memory.current: Permission denied\n"
    )
    assert memory.owners(text) == (
        MemoryOwner("docker-" + "a" * 64 + ".scope", 96000000000),
        MemoryOwner("user-1000.slice", 2097152, 4096),
        MemoryOwner("docker.service", 1048576),
    )
    assert memory.owners("system.slice/cron.service/memory.usage_in_bytes:512\n") == (MemoryOwner("cron.service", 512),)


def test_a_containers_idle_file_pages_do_not_count() -> None:
    groups = docker.ContainerMemoryFact.parse(
        Evidence("aa\t100\t30\t5\nbb\t100\t\t\ncc\t10\t99\t\ndd\t\t\t\nee\n", "", 0)
    )
    assert groups == {"aa": (70, 5), "bb": (100, None), "cc": (0, None)}
    (joined,) = docker.joined((Container("a", "aa"),), (), (), groups)
    assert (joined.memory_bytes, joined.swap_bytes) == (70, 5)
    (unknown,) = docker.joined((Container("z", "zz"),), (), (), groups)
    assert (unknown.memory_bytes, unknown.swap_bytes) == (None, None)


def test_the_cgroups_of_a_machine(tmp_path: Path) -> None:
    group = tmp_path / "system.slice/docker-{}.scope".format("a" * 64)
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.stat").write_text("anon 10\nfile 990\ninactive_file 400\nactive_file 590\n")
    (group / "memory.swap.current").write_text("7\n")
    text = probe.script(["container-memory", "memory-owners"], nonce=NONCE).replace("/sys/fs/cgroup", str(tmp_path))
    done = subprocess.run(["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60)
    sections = probe.read(NONCE, done.stdout)
    assert docker.ContainerMemoryFact.parse(sections["container-memory"]) == {"a" * 64: (600, 7)}
    assert probe.sheet_from("here", 0.0, sections).owners == (MemoryOwner("docker-" + "a" * 64 + ".scope", 1000, 7),)


def test_a_limit_of_a_container_is_told_and_none_is_not_zero() -> None:
    body = (
        '[{"Name": "/a", "Id": "1", "State": {"Status": "running"}, "HostConfig": {"Memory": %s, "ShmSize": 67108864}}]'
    )
    (limited,) = docker.containers_from_inspect(body % 118111600640)
    (free,) = docker.containers_from_inspect(body % 0)
    assert (limited.memory_limit_bytes, limited.shm_bytes, free.memory_limit_bytes) == (110 << 30, 64 << 20, None)


def test_a_sheet_with_all_of_it_keeps_gpus_without_a_table() -> None:
    sections = {
        "gpu-query": Evidence("index, name, uuid\n0, NVIDIA A100-SXM4-40GB, GPU-1\n", "", 0),
        "gpu-list": Evidence(MIG_LIST, "", 0),
    }
    gpus = probe.sheet_from("a", 1.0, sections).gpus
    assert isinstance(gpus, Gpus) and len(gpus.gpus[0].instances) == 2 and gpus.gpus[0].uuid == "GPU-1"


def test_what_cdi_names_and_the_node_has_not(tmp_path: Path) -> None:
    there = tmp_path / "libcuda.so.580"
    there.write_text("")
    (tmp_path / "nvidia.yaml").write_text(
        "cdiVersion: 0.5.0\ncontainerEdits:\n  mounts:\n"
        f"  - containerPath: /usr/lib/libcuda.so.580\n    hostPath: {there}\n    options: [ro]\n"
        "  - hostPath: /usr/lib/gone/libcuda.so.570\n    containerPath: /usr/lib/libcuda.so.570\n"
    )
    (tmp_path / "other.json").write_text('{"mounts": [\n  {\n    "hostPath": "/usr/lib/gone/b",\n    "x": 1\n  }\n]}\n')
    text = probe.script(["cdi", "docker"], nonce=NONCE).replace("/etc/cdi", str(tmp_path))
    done = subprocess.run(["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60)
    sections = probe.read(NONCE, done.stdout)
    missing = {"/usr/lib/gone/libcuda.so.570", "/usr/lib/gone/b"}
    assert missing <= set(docker.CdiFact.parse(sections["cdi"]) or ())
    assert str(there) not in sections["cdi"].stdout
    assert docker.cdi("") is None and docker.cdi("@cdi /etc/cdi/nvidia.yaml\n") == ()
