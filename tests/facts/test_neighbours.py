"""Neighbours of the handed cases: other versions, orders, units, languages, missing and extra fields."""

from __future__ import annotations

import json

import pytest

from apps.facts import disk, docker, fabric, gpu, memory, network, probe, systemd
from apps.facts.machine import MachineFact
from apps.facts.privileges import PrivilegesFact
from apps.facts.quantities import decimal, size, unknown, whole
from apps.facts.sheet import Evidence, Sheet
from apps.facts.software import found_in
from apps.facts.values import Container, Docker, GpuProcess, Hca


@pytest.mark.parametrize(
    "cell", ["N/A", "[N/A]", "[Not Supported]", "Not Supported", "[Unknown Error]", "ERR!", "", "[GPU is lost]", "-"]
)
def test_unknown_is_none_and_never_zero(cell: str) -> None:
    assert unknown(cell) and whole(cell) is None and decimal(cell) is None


@pytest.mark.parametrize(("cell", "count"), [
    ("121Gi", 121 * 1024**3), ("8,6Mi", 9017754), ("18.5GB", 18_500_000_000), ("3.6T", 3958241859994), ("0B", 0), ("12kB", 12_000), ("512", 512), ("x", None), ("1e3", None),
])  # fmt: skip
def test_sizes(cell: str, count: int | None) -> None:
    assert size(cell) == count


def test_the_table_of_a_driver_from_2019() -> None:
    text = """Mon Jan  7 10:00:00 2019
| NVIDIA-SMI 410.79       Driver Version: 410.79       CUDA Version: 10.0     |
|   0  Tesla V100-SXM2...  Off  | 00000000:00:1E.0 Off |                    0 |
| N/A   37C    P0    40W / 300W |   1024MiB / 16130MiB |      3%      Default |
+-------------------------------+----------------------+----------------------+
| Processes:                                                       GPU Memory |
|    0      1234      C   /usr/bin/python3 train.py --a b             1013MiB |
"""
    found = gpu.from_table(Evidence(text))
    assert found is not None and found.driver == "410.79"
    assert (found.gpus[0].memory_used_mib, found.gpus[0].memory_total_mib, found.gpus[0].power_cap_w) == (
        1024,
        16130,
        300,
    )
    assert found.processes == (GpuProcess(pid=1234, name="/usr/bin/python3 train.py --a b", mib=1013, type="C", gpu=0),)


def test_a_gpu_that_answers_errors_is_there_with_unknown_values() -> None:
    text = """| NVIDIA-SMI 580.95.05  Driver Version: 580.95.05  CUDA Version: 13.0 |
|   0  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:61:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!             ERR! /  ERR! |   92676MiB /  97887MiB |    ERR!      Default |
"""
    (one,) = gpu.from_table(Evidence(text)).gpus  # type: ignore[union-attr]
    assert (one.temp_c, one.power_w, one.util_pct, one.memory_total_mib, one.unified) == (
        None,
        None,
        None,
        97887,
        False,
    )


@pytest.mark.parametrize(("out", "err", "code", "reason"), [
    ("Unable to determine the device handle for GPU0000:65:00.0: GPU is lost.  Reboot the system to recover this GPU\n", "", 15, "gpu_lost"),
    ("Unable to determine the device handle for GPU3: 0000:B1:00.0: Unknown Error\n", "", 255, "gpu_lost"),
    ("", "sh: 1: nvidia-smi: not found\n", 127, "no_driver"), ("", "fish: Unknown command: nvidia-smi\n", 127, "no_driver"),
    ("Failed to initialize NVML: Unknown Error\n", "", 255, "gpu_failed"), ("No devices found.\n", "", 6, "no_gpu"),
])  # fmt: skip
def test_how_nvidia_smi_fails(out: str, err: str, code: int, reason: str) -> None:
    found = gpu.from_table(Evidence(out, err, code))
    assert found is not None and found.problem == reason and found.gpus == () and found.evidence


def test_the_query_fills_the_table_and_processes_know_their_container() -> None:
    identity = "a" * 64
    sections = {
        "gpu": Evidence(
            "| NVIDIA-SMI 580.95.05  Driver Version: 580.95.05  CUDA Version: 13.0 |\n"
            "|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |\n"
            "| N/A   41C    P8              4W /  N/A  | Not Supported          |      0%      Default |\n"
            "Processes:\n|    0   N/A  N/A            2790      C   VLLM::EngineCore   68608MiB |\n", "", 0),
        "gpu-query": Evidence("index, name, uuid, memory.total [MiB], power.draw [W], clocks.current.sm [MHz]\n0, NVIDIA GB10, GPU-1, [N/A], 4.73 W, 208 MHz\n", "", 0),
        "gpu-processes": Evidence(f"2790, VLLM::EngineCore, 68608, GPU-1\n@owner 2790 0::/system.slice/docker-{identity}.scope\n31, python, [N/A], GPU-1\n@owner 31 0::/system.slice/vllm.service\n", "", 0),
        "containers": Evidence(json.dumps({"Names": "vllm_node", "ID": identity, "State": "running", "Status": "Up 3 weeks", "Image": "vllm-node"}) + "\n", "", 0),
    }  # fmt: skip
    sheet = probe.sheet_from("a", 1.0, sections)
    assert sheet.gpus is not None and sheet.containers is not None
    (one,) = sheet.gpus.gpus
    assert (one.power_w, one.clock_mhz, one.unified, one.temp_c, one.memory_total_mib) == (4.73, 208, True, 41, None)
    assert [(each.pid, each.container, each.unit, each.mib) for each in sheet.gpus.processes] == [
        (2790, "vllm_node", None, 68608),
        (31, None, "vllm.service", None),
    ]
    assert sheet.containers[0].memory_bytes == 68608 * 1024**2


@pytest.mark.parametrize("text", [
    "              total        used        free      shared  buff/cache   available\nMem:      127535084    110490000     1234567      187392    16114420    14386092\nSwap:     33554428     3440008    30114420\n",
    "              total        used        free      shared  buff/cache   available\nMem:         124546      107900        1205         183       15736       14048\nSwap:         32767        3359       29408\n",
    "               общая        занято        свободно      общая  буф./врем.   доступно\nПам:           121Gi       107Gi       1,2Gi       183Mi        15Gi        13Gi\nПодкачка:       31Gi       3,3Gi        28Gi\n",
])  # fmt: skip
def test_free_in_any_unit_and_language(text: str) -> None:
    found = memory.from_free(text)
    assert found is not None and found.total_bytes and found.available_bytes and found.swap_total_bytes
    assert 121 <= found.total_bytes / 1024**3 < 122 and 13 <= found.available_bytes / 1024**3 < 14
    assert 31 <= found.swap_total_bytes / 1024**3 <= 32


def test_ten_gibibytes_free_of_a_server_without_a_gpu_in_memory_are_not_unified() -> None:
    text = "MemTotal: 264000000 kB\nMemFree: 10000000 kB\nMemAvailable: 200000000 kB\nBuffers: 0 kB\nCached: 190000000 kB\nAnonPages: 60000000 kB\nSlab: 3000000 kB\n"
    found = memory.from_meminfo(text)
    assert found is not None and memory.describe(found)["unified"] is None and memory.describe(found)["state"] == "ok"


@pytest.mark.parametrize(("header", "row"), [
    ("Filesystem     1B-blocks         Used    Available Capacity Mounted on", "/dev/nvme0n1p2 3936818806784 856480010287 2883497856158 23% /"),
    ("Filesystem     Type 1B-blocks         Used    Available Capacity Mounted on", "/dev/nvme0n1p2 ext4 3936818806784 856480010287 2883497856158 23% /"),
    ("Dateisystem    1024-Blöcke    Benutzt  Verfügbar Kapazität Eingehängt auf", "/dev/nvme0n1p2 3844549616 836406260 2815915875 23% /"),
    ("Sys. de fichiers blocs de 1024 Utilisé Disponible Capacité Monté sur", "/dev/nvme0n1p2 3844549616 836406260 2815915875 23% /"),
    ("Filesystem 1K-blocks Used Available Use% Mounted on", "/dev/nvme0n1p2 3844549616 836406260 2815915875 23% /"),
])  # fmt: skip
def test_df_counts_blocks_of_its_header(header: str, row: str) -> None:
    (root,) = disk.disks(disk.rows(header + "\n" + row + "\n"))
    assert root.mount == "/" and root.size_bytes is not None and abs(root.size_bytes - 3936818806784) < 1024


def test_df_with_blanks_a_broken_line_and_pseudo_file_systems() -> None:
    text = """Filesystem 1024-blocks Used Available Capacity Mounted on
overlay 100 50 50 50% /var/lib/docker/overlay2/x/merged
/dev/mapper/ubuntu--vg-a--very--long--name
                 1000 400 600 40% /srv/my models
//nas/share one 2000 - - - /mnt/nas
"""
    found = {each.mount: each for each in disk.disks(disk.rows(text))}
    assert set(found) == {"/srv/my models", "/mnt/nas"}
    assert found["/srv/my models"].available_bytes == 600 * 1024 and found["/mnt/nas"].available_bytes is None


def test_docker_inspect_has_the_last_word_over_docker_ps() -> None:
    identity = "b" * 64
    ps = {
        "Names": "sgl",
        "ID": identity[:12],
        "State": "restarting",
        "Status": "Restarting (1) 22 seconds ago",
        "Image": "lmsysorg/sglang:spark",
        "Labels": "a=1,2,sparkweb.run=7,note=x, y",
        "Ports": "",
    }
    inspect = [{"Id": identity, "Name": "/sgl", "Image": "sha256:1", "RestartCount": 9, "Path": "python3", "Args": ["-m", "sglang.launch_server"],
                "State": {"Status": "restarting", "ExitCode": 1, "OOMKilled": False, "Pid": 0, "StartedAt": "2026-11-30T08:10:00.1Z", "FinishedAt": "0001-01-01T00:00:00Z", "Health": {"Status": "unhealthy"}},
                "Config": {"Image": "lmsysorg/sglang:spark", "Labels": {"a": "1,2", "sparkweb.run": "7", "note": "x, y"}}, "HostConfig": {"NetworkMode": "host", "RestartPolicy": {"Name": "always"}}}]  # fmt: skip
    (one,) = docker.joined(
        docker.containers_from_ps(json.dumps(ps)), docker.containers_from_inspect(json.dumps(inspect, indent=4))
    )
    assert one == Container(
        name="sgl", id=identity, image="lmsysorg/sglang:spark", image_id="sha256:1", state="restarting", status="Restarting (1) 22 seconds ago", health="unhealthy", exit_code=1, restarts=9, restart_policy="always",
        started_at="2026-11-30T08:10:00.1Z", pid=None, labels={"a": "1,2", "sparkweb.run": "7", "note": "x, y"}, oom_killed=False, command="python3 -m sglang.launch_server", network="host",
    )  # fmt: skip


def test_labels_with_commas_in_their_values() -> None:
    assert docker.labels_of("description=vLLM, nightly, arm64,com.docker.compose.project=llm,empty=") == {
        "description": "vLLM, nightly, arm64",
        "com.docker.compose.project": "llm",
        "empty": "",
    }
    assert docker.labels_of("") == {} and docker.labels_of(None) == {}


def test_a_running_container_has_no_exit_code() -> None:
    (one,) = docker.containers_from_inspect(
        json.dumps([{"Name": "/x", "State": {"Status": "running", "ExitCode": 0, "Pid": 5}}])
    )
    assert one.exit_code is None and one.pid == 5


def test_no_containers_is_an_empty_list_and_no_docker_is_unknown() -> None:
    version = Evidence('{"Client":{"Version":"28.3.3"},"Server":{"Version":"28.3.3"}}', "", 0)
    assert probe.sheet_from("a", 0.0, {"docker": version, "containers": Evidence("\n", "", 0)}).containers == ()
    denied = Evidence(
        '{"Client":{"Version":"28.3.3"},"Server":null}',
        "permission denied while trying to connect to the Docker daemon socket",
        1,
    )
    sheet = probe.sheet_from(
        "a",
        0.0,
        {
            "docker": denied,
            "containers": Evidence("\n", "permission denied while trying to connect to the docker API at unix:///x", 1),
        },
    )
    assert sheet.containers is None and sheet.docker == Docker(
        present=True, client_version="28.3.3", problem="docker_denied", evidence=denied.stderr
    )
    missing = Evidence("", "sh: 1: docker: not found", 127)
    assert probe.sheet_from("a", 0.0, {"docker": missing}).docker == Docker(
        present=False, problem="docker_missing", evidence=missing.stderr
    )


@pytest.mark.parametrize(("commands", "script", "names"), [
    (["/usr/bin/docker run --rm --name vllm_node --gpus all img vllm serve --name x"], "", ("vllm_node",)),
    (["/usr/bin/docker start -a vllm_embeddings reranker"], "", ("vllm_embeddings", "reranker")),
    (["/bin/bash -c 'docker start one && docker start two'"], "", ("one", "two")),
    (["/opt/run.sh"], "#!/bin/bash\nNAME=\"vllm_node\"\n# docker run --name comment\ndocker rm -f old\ndocker run -d \\\n  --name=${NAME} \\\n  img\n", ("vllm_node",)),
    (["/opt/run.sh"], "docker run --name \"${CONTAINER:-spark_vllm}\" img", ("spark_vllm",)),
    (["/opt/run.sh"], "docker run --name $UNKNOWN img\ndocker exec inner docker start x\n", ()),
    (["docker compose up"], "services:\n  a:\n    container_name: web-ui\n    image: x\n", ("web-ui",)),
    (["docker stop gone", "docker start -t 5 kept >/dev/null 2>&1"], "", ("kept",)),
])  # fmt: skip
def test_which_containers_a_unit_starts(commands: list[str], script: str, names: tuple[str, ...]) -> None:
    assert systemd.started_containers(commands, script) == names


def test_units_in_any_order_of_properties_with_their_scripts() -> None:
    shown = """MainPID=44
ExecStart={ path=/opt/run.sh ; argv[]=/opt/run.sh --api-key secret ; ignore_errors=no ; pid=1 }
Id=vllm-cluster.service
FragmentPath=/etc/systemd/system/vllm-cluster.service
UnitFileState=enabled

Id=ssh.service
FragmentPath=/usr/lib/systemd/system/ssh.service

@file vllm-cluster.service\t/opt/run.sh
|#!/bin/sh
|
|docker run --name vllm_node img
"""
    listed = systemd.from_list_units(
        "ssh.service loaded active running OpenBSD Secure Shell server\nvllm-cluster.service loaded active running vLLM\n"
    )
    found = {
        unit.name: unit
        for unit in systemd.joined(
            listed, {"off.service": "disabled", "x@.service": "enabled"}, *systemd.from_show(shown)
        )
    }
    assert set(found) == {"ssh.service", "vllm-cluster.service", "off.service"}
    cluster = found["vllm-cluster.service"]
    assert (cluster.containers, cluster.enabled, cluster.vendor, cluster.pid, cluster.active) == (
        ("vllm_node",),
        "enabled",
        False,
        44,
        "active",
    )
    assert (
        "secret" not in (cluster.exec_start or "")
        and found["ssh.service"].vendor is True
        and found["off.service"].active is None
    )
    assert systemd.matters(cluster) and not systemd.matters(found["ssh.service"])


def test_where_systemd_does_not_run_there_are_no_units() -> None:
    sections = {
        "units": Evidence("", "System has not been booted with systemd as init system (PID 1). Can't operate.", 1),
        "unit-files": Evidence("a.service enabled enabled\n", "", 0),
    }
    assert probe.sheet_from("a", 0.0, sections).units == ()


def test_ip_without_json() -> None:
    oneline = "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n2: enP7s7    inet 10.1.230.180/24 brd 10.1.230.255 scope global enP7s7\\ \n2: enP7s7    inet6 fe80::1/64 scope link \\ \n"
    long = "2: enP7s7: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP group default qlen 1000\n    link/ether 4c:bb:47:5e:11:01 brd ff:ff:ff:ff:ff:ff\n    inet 10.1.230.180/24 brd 10.1.230.255 scope global enP7s7\n"
    for text in (oneline, long):
        (one,) = [each for each in network.addresses(text) if each.name == "enP7s7"]
        assert one.addresses[0].ip == "10.1.230.180" and one.addresses[0].prefix == 24
    assert network.addresses(long)[0].up is True and network.addresses(long)[0].mtu == 1500


def test_fabric_is_what_belongs_to_an_rdma_device_whatever_its_name() -> None:
    text = json.dumps([
        {"ifname": "ens5f0np0", "operstate": "UP", "addr_info": [{"family": "inet", "local": "10.9.0.1", "prefixlen": 24}]},
        {"ifname": "eth0", "operstate": "UP", "addr_info": [{"family": "inet", "local": "10.8.0.1", "prefixlen": 24}]},
        {"ifname": "ens6", "operstate": "UP", "addr_info": [{"family": "inet", "local": "10.7.0.1", "prefixlen": 24}]},
    ])  # fmt: skip
    found = network.joined(
        network.addresses(text),
        {"eth0": {"device": "1", "speed": "100000"}, "ens6": {"device": "1", "speed": "-1"}},
        [Hca("mlx5_2", netdev="eth0"), Hca("mlx5_0", netdev="ens6")],
        "default via 10.7.0.254 dev ens6 metric 100\n",
    )
    roles = {each.name: each.role for each in found}
    assert roles == {"ens5f0np0": "management", "eth0": "fabric", "ens6": "management"}
    assert {each.name: each.speed_mbps for each in found} == {"ens5f0np0": None, "eth0": 100_000, "ens6": None}
    chosen = network.management(found)
    assert chosen is not None and chosen.name == "ens6"


def test_listeners_of_ss_and_netstat() -> None:
    ss = 'LISTEN 0 4096 0.0.0.0:8000 0.0.0.0:* users:(("vllm",pid=44,fd=3))\nLISTEN 0 4096 [::]:22 [::]:*\nLISTEN 0 511 *:8080 *:*\nLISTEN 0 4096 127.0.0.53%lo:53 0.0.0.0:*\n'
    assert [(each.address, each.port, each.pid, each.program) for each in network.listeners(ss)] == [
        ("0.0.0.0", 8000, 44, "vllm"),
        ("::", 22, None, None),
        ("*", 8080, None, None),
        ("127.0.0.53", 53, None, None),
    ]
    netstat = "Proto Recv-Q Send-Q Local Address Foreign Address State PID/Program name\ntcp 0 0 0.0.0.0:8000 0.0.0.0:* LISTEN 44/vllm\ntcp6 0 0 :::22 :::* LISTEN -\n"
    assert [(each.address, each.port, each.pid) for each in network.listeners(netstat)] == [
        ("0.0.0.0", 8000, 44),
        ("::", 22, None),
    ]


def test_sysfs_ports_with_their_gid() -> None:
    text = (
        "@port rocep1s0f0 1\tstate=4: ACTIVE\tphys_state=5: LinkUp\trate=200 Gb/sec (4X HDR)\tlink_layer=Ethernet\tnetdev=enp1s0f0np0\t"
        "gids=1/fe80:0000:0000:0000:4ebb:47ff:fe5e:1110;3/0000:0000:0000:0000:0000:ffff:a9fe:0001;5/0000:0000:0000:0000:0000:ffff:c0a8:c80c;\n"
        "@port rocep1s0f1 1\tstate=1: DOWN\tphys_state=3: Disabled\trate=40 Gb/sec (4X QDR)\tlink_layer=Ethernet\tnetdev=\tgids=\n"
    )
    up, down = fabric.hcas(text)
    assert up == Hca("rocep1s0f0", 1, "ACTIVE", "LinkUp", 200.0, "enp1s0f0np0", "Ethernet", 5)
    assert (down.active, down.rate_gbps, down.gid_index) == (False, None, None)
    both = fabric.joined([down], fabric.from_ibdev2netdev("rocep1s0f1 port 1 ==> enp1s0f1np1 (Down)\n"))
    assert len(both) == 1 and both[0].netdev == "enp1s0f1np1"


@pytest.mark.parametrize(("listing", "scope", "drops"), [
    ("User aurora may run the following commands on spark:\n    (ALL) NOPASSWD: ALL", "all", True), ("    (ALL : ALL) NOPASSWD: SETENV: ALL", "all", True),
    ("    (root) NOPASSWD: /usr/bin/tee /proc/sys/vm/drop_caches", "some", True), ("    (root) NOPASSWD: /usr/bin/systemctl", "some", False),
    ("sudo: a password is required", "password", False), ("Sorry, user op may not run sudo on x.", "none", False), ("sh: 1: sudo: not found", None, None),
])  # fmt: skip
def test_sudo_scope(listing: str, scope: str | None, drops: bool | None) -> None:
    rows = (
        "uid\t1000\ngroups\top docker\n"
        + "".join(f"sudo\t{line}\n" for line in listing.splitlines())
        + "linger\tno\nremove_ipc\tb true\nmemlock_kib\tunlimited\n"
    )
    found = PrivilegesFact.parse(Evidence(rows, "", 0))
    assert found is not None and (found.docker_group, found.linger, found.remove_ipc, found.memlock_bytes) == (
        True,
        False,
        True,
        -1,
    )
    assert found.sudo == (scope or "none") and found.drop_caches == (drops or False)


def test_machine_rows_with_noise_and_placeholders() -> None:
    text = 'Welcome to DGX OS\nhostname\tspark-1a32\nproduct\tNVIDIA_DGX_Spark\nos\tPRETTY_NAME="Ubuntu 24.04.3 LTS"\nos\tBAD=\'\nuptime\t1981002.82 1.0\nboot_id\t251e80d7-3810-4317-8294-3bf91a948976\nclock\t1796038443.80\n'
    found = MachineFact.parse(Evidence(text, "", 0))
    assert found is not None
    assert (found.hostname, found.model, found.os, found.uptime_s, found.clock_unix_s) == (
        "spark-1a32",
        "NVIDIA DGX Spark",
        "Ubuntu 24.04.3 LTS",
        1981002.82,
        1796038443.8,
    )
    assert found.boot_id == "251e80d7-3810-4317-8294-3bf91a948976" and found.kernel is None
    assert MachineFact.parse(Evidence("product\tSystem Product Name\n")).model is None  # type: ignore[union-attr]


def test_software_of_containers_and_environments() -> None:
    text = "@in container:vllm_node\tsha256:1\nvllm==0.14.0rc2.dev262+g1\nnvidia-nccl-cu13==2.28.3\nenv TORCH_CUDA_ARCH_LIST=12.1a\n@in container:web\tsha256:2\n@in venv:/opt/sgl\nsgl_kernel==0.3\nsglang==0.5.4\n"
    first, second = found_in(text)
    assert (first.where, first.versions, first.cuda_arch_list, first.image_id) == (
        "container:vllm_node",
        {"vllm": "0.14.0rc2.dev262+g1", "nccl": "2.28.3"},
        "12.1a",
        "sha256:1",
    )
    assert second.versions == {"sgl-kernel": "0.3", "sglang": "0.5.4"} and second.image_id is None


def test_internet_is_false_without_a_default_route_and_unknown_with_one() -> None:
    for text, known in (
        ("192.168.200.0/24 dev enp1s0f0np0 scope link\n", False),
        ("default via 10.1.230.1 dev enP7s7\n", None),
    ):
        sections = {"routes": Evidence(text, "", 0), "internet": Evidence("not asked\n", "", 0)}
        assert probe.sheet_from("a", 0.0, sections).internet is known
    asked = {
        "routes": Evidence("default via 1.1.1.1 dev e\n", "", 0),
        "internet": Evidence("000\n", "curl: (28) timed out", 28),
    }
    assert probe.sheet_from("a", 0.0, asked).internet is False


def test_a_sheet_of_an_older_version_is_read() -> None:
    body = Sheet(node="a", taken_at=1.0).to_json()
    del body["killed"]
    assert Sheet.from_json(body | {"gone": 1, "taken_at": 1}) == Sheet(node="a", taken_at=1.0)
    with pytest.raises(TypeError):
        Sheet.from_json(body | {"disks": "x"})


def test_a_gpu_process_whose_cgroup_is_hidden_is_found_by_docker_top() -> None:
    identity = "c" * 64
    sections = {
        "gpu-query": Evidence("index, name\n0, NVIDIA GB10\n", "", 0),
        "gpu-processes": Evidence(f"48, VLLM::EngineCore, 68608, GPU-1\n9, python, 5, GPU-1\n@owner 48 0::/\n@owner 44 0::/docker/{identity}\n@owner 48 0::/docker/{identity}\n", "", 0),
        "container-details": Evidence(json.dumps([{"Id": identity, "Name": "/vllm_node", "State": {"Status": "running", "Pid": 44}}]), "", 0),
    }  # fmt: skip
    sheet = probe.sheet_from("a", 0.0, sections)
    assert sheet.gpus is not None and [each.container for each in sheet.gpus.processes] == ["vllm_node", None]
    assert sheet.containers is not None and sheet.containers[0].memory_bytes == 68608 * 1024**2
