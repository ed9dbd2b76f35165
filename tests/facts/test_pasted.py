"""Outputs that people paste beside the ones that the probe asks for: older tools, other options, tables instead of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.facts import parsing


def told(fact: str, text: str) -> Any:
    return parsing.parsed(fact, text)


# Memory and disk

WIDE = """               total        used        free      shared     buffers       cache   available
Mem:        24684092     1891912    10578548        8856      678736    11900716    22792180
Swap:              0           0           0
"""
LOW_AND_HIGH = """               total        used        free      shared  buff/cache   available
Mem:        24684092     1891912    10578548        8856    12579728    22792180
Low:        24684092    14105544    10578548
High:              0           0           0
Swap:        8388604     4194304     4194300
"""
OLD = """             total       used       free     shared    buffers     cached
Mem:      65974612   33123456   32851156       1234     345678   20123456
-/+ buffers/cache:   12654322   53320290
Swap:      8388604          0    8388604
"""
FRENCH = """              total       utilisé      libre     partagé tamp/cache   disponible
Mem :          121Gi        12Gi        80Gi       8,6Mi        29Gi       108Gi
Partition d'échange :   15Gi          0B        15Gi
"""
CHINESE = """              总计         已用        空闲      共享    缓冲/缓存    可用
内存：       121Gi       12Gi       80Gi       8.6Mi       29Gi       108Gi
交换：       15Gi          0B       15Gi
"""


@pytest.mark.parametrize(
    ("text", "available", "swap"),
    [(WIDE, 21.74, 0.0), (LOW_AND_HIGH, 21.74, 8.0), (OLD, 50.85, 8.0), (FRENCH, 108.0, 15.0), (CHINESE, 108.0, 15.0)],
    ids=["-w", "-l", "before 3.3.10", "French", "Chinese"],
)
def test_free_of_every_age(text: str, available: float, swap: float) -> None:
    found = told("memory", text)
    assert (found["available_gib"], found["swap_total_gib"]) == (available, swap)


@pytest.mark.parametrize(
    ("text", "size"),
    [("138412032\t/hub/a\n71303168\t/hub/b\n", 138412032 * 1024), ("141733920771\t/hub/a\n5\t/hub/b\n", 141733920771)],
    ids=["du -s", "du -sb"],
)
def test_du_counts_blocks_or_bytes(text: str, size: int) -> None:
    assert told("disk", text)["folders"][0] == {"path": "/hub/a", "bytes": size}


# GPUs

APPS = "gpu_uuid, pid, used_gpu_memory [MiB]\nGPU-1, 123, 500 MiB\n"


def test_a_query_without_header_takes_its_columns_from_the_command() -> None:
    command = "nvidia-smi --query-gpu=index,memory.used,memory.total,utilization.gpu --format=csv,noheader,nounits"
    asked = {"command": command, "rc": 0, "stdout": "0, 100, 24576, 3\n1, [N/A], [N/A], 9\n", "stderr": ""}
    first, second = told("gpu-query", json.dumps(asked))["gpus"]
    assert (first["memory_used_mib"], first["memory_total_mib"], first["util_pct"]) == (100, 24576, 3)
    assert (second["memory_used_mib"], second["unified"], second["util_pct"]) == (None, True, 9)


def test_what_a_cell_says_by_its_own_shape() -> None:
    (gpu,) = told("gpu-query", "NVIDIA RTX A6000, 550.54.14, 49140 MiB, 12 MiB, 3 %, 25.11 W\n")["gpus"]
    assert (gpu["memory_total_mib"], gpu["memory_used_mib"], gpu["util_pct"], gpu["power_w"]) == (49140, 12, 3, 25.11)
    assert told("gpu-query", "0, NVIDIA GB10, [N/A], [N/A], 0, 40\n")["gpus"][0]["util_pct"] is None
    (named,) = told("gpu-query", "index, name, uuid\n0, Name, with comma, GPU-1\n")["gpus"]
    assert named["name"] == "Name, with comma"


def test_compute_processes_in_any_order_of_columns() -> None:
    (process,) = told("gpu-processes", APPS)["gpu_processes"]
    assert (process["pid"], process["mib"]) == (123, 500)


@pytest.mark.parametrize(
    "text",
    ["zsh:1: command not found: nvidia-smi\n", "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n"],
)
def test_no_driver_in_other_words(text: str) -> None:
    assert told("gpu", text)["problem"] == "no_driver"


def test_the_list_with_mig_devices() -> None:
    text = "GPU 0: NVIDIA A100 (UUID: GPU-a)\n  MIG 3g.40gb     Device  0: (UUID: MIG-b)\nGPU 1: NVIDIA A100 (UUID: GPU-c)\n"
    first, second = told("gpu", text)["gpus"]
    assert [(each["gi"], each["profile"], each["uuid"]) for each in first["instances"]] == [(None, "3g.40gb", "MIG-b")]
    assert second["uuid"] == "GPU-c" and not second["instances"]


# Docker and podman

PS = """CONTAINER ID   IMAGE                      COMMAND                  CREATED          STATUS                       PORTS                                         NAMES
3eaf743d09a3   vllm/vllm-openai:v0.11.0   "vllm serve Qwen/Qw…"    7 minutes ago    Up 7 minutes (healthy)       0.0.0.0:8000->8000/tcp, [::]:8000->8000/tcp   vllm-head
5ddedd5dba5c   vllm-node                  "/bin/bash -c 'ray s…"   8 minutes ago    Exited (137) 3 minutes ago                                                 vllm_node
"""
IMAGES = """REPOSITORY         TAG       IMAGE ID       CREATED        SIZE
vllm-node          20260912  48d3bcd24603   3 days ago     18.5GB
<none>             <none>    9c173b3620b4   2 weeks ago    18.1GB
"""
IMAGES_29 = """IMAGE                       ID             DISK USAGE   CONTENT SIZE   EXTRA
vllm/vllm-openai:v0.11.0    48d3bcd24603       24.9GB         9.21GB    U
"""
PODMAN = [
    {
        "Command": ["vllm", "serve", "--api-key", "not-to-be-seen"],
        "Id": "abc123",
        "Image": "docker.io/vllm/vllm-openai:v0.11.0",
        "Names": ["vllm"],
        "Ports": [{"host_ip": "", "container_port": 8000, "host_port": 8000, "protocol": "tcp"}],
        "State": "exited",
        "Status": "Exited (137) 2 minutes ago",
    }
]
INSPECT = [
    {
        "Id": "abc",
        "Path": "vllm",
        "Args": ["serve", "x", "--api-key", "not-to-be-seen"],
        "State": {"Status": "created", "OOMKilled": False, "ExitCode": 128, "Error": "no device driver"},
        "Image": "sha256:aa",
        "Name": "/vllm-head",
        "RestartCount": 4,
        "HostConfig": {"NetworkMode": "host", "ShmSize": 67108864},
        "Config": {"Image": "vllm/vllm-openai", "Labels": {}},
    }
]


def test_the_table_of_docker_ps() -> None:
    first, second = told("docker", PS)["containers"]
    assert (first["name"], first["state"], first["health"]) == ("vllm-head", "running", "healthy")
    assert first["ports"] == ["0.0.0.0:8000->8000/tcp", "[::]:8000->8000/tcp"]
    assert (second["name"], second["state"], second["exit_code"]) == ("vllm_node", "exited", 137)
    assert told("docker", PS.splitlines()[0] + "\n")["containers"] == []


@pytest.mark.parametrize("separator", ["|", "\t", ";", "   "])
def test_ps_in_an_own_format(separator: str) -> None:
    (found,) = told("docker", separator.join(["vllm-head", "vllm/vllm-openai:v1", "Exited (1) 3 minutes ago"]))[
        "containers"
    ]
    assert (found["name"], found["image"], found["exit_code"]) == ("vllm-head", "vllm/vllm-openai:v1", 1)


@pytest.mark.parametrize(
    ("text", "ref", "size"),
    [(IMAGES, "vllm-node:20260912", "18.5GB"), (IMAGES_29, "vllm/vllm-openai:v0.11.0", "24.9GB")],
)
def test_tables_of_images(text: str, ref: str, size: str) -> None:
    images = told("docker", text)["images"]
    assert (images[0]["ref"], images[0]["size"]) == (ref, size)
    assert [image["dangling"] for image in images[1:]] == [True] * (len(images) - 1)


def test_podman_lists_names_and_words() -> None:
    text = json.dumps(PODMAN)
    (found,) = told("containers", text)["containers"]
    assert (found["name"], found["exit_code"], found["ports"]) == ("vllm", 137, ["0.0.0.0:8000->8000/tcp"])
    assert "not-to-be-seen" not in json.dumps(told("containers", text))


def test_a_whole_inspect() -> None:
    found = told("container-details", json.dumps(INSPECT))
    (container,) = found["containers"]
    assert (container["name"], container["state"], container["image"]) == ("vllm-head", "created", "vllm/vllm-openai")
    assert (container["restarts"], container["shm_bytes"], container["error"]) == (4, 67108864, "no device driver")
    assert "not-to-be-seen" not in json.dumps(found)


@pytest.mark.parametrize(
    ("text", "problem", "reason"),
    [
        (
            "docker: Error response from daemon: unresolvable CDI devices nvidia.com/gpu=all",
            "toolkit_missing",
            "toolkit_missing",
        ),
        (
            'Conflict. The container name "/a" is already in use by container "b".',
            "container_name_in_use",
            "foreign_container",
        ),
        ("Bind for 0.0.0.0:8000 failed: port is already allocated", "port_in_use", "port_busy"),
        ("exec /usr/bin/bash: exec format error", "exec_format_error", "image_arch"),
        ("write /var/lib/docker/tmp/x: no space left on device", "no_space_left", "disk_full"),
        ("Error response from daemon: No such container: a", "no_such_container", "vanished"),
    ],
)
def test_why_docker_would_not(text: str, problem: str, reason: str) -> None:
    found = told("docker", text + "\n")
    assert (found["problem"], found["reason"]) == (problem, reason)


def test_docker_about_itself() -> None:
    info = "Server:\n Server Version: 28.3.3\n Runtimes: io.containerd.runc.v2 nvidia runc\n Docker Root Dir: /var/lib/docker\n"
    found = told("docker-info", info)
    assert (found["server_version"], found["gpu_runtime"], found["snap"]) == ("28.3.3", True, False)
    assert told("docker", "Docker version 28.3.3, build 980b856\n")["client_version"] == "28.3.3"


# systemd

STATUS = """● vllm.service - vLLM OpenAI server
     Loaded: loaded (/etc/systemd/system/vllm.service; enabled; preset: enabled)
     Active: activating (auto-restart) (Result: exit-code) since Mon 2026-09-14 21:10:02 CEST; 3s ago
    Process: 12345 ExecStart=/usr/bin/docker run --rm --name vllm-head vllm/vllm-openai (code=exited, status=1/FAILURE)
"""


def test_systemctl_status() -> None:
    found = told("systemd", STATUS)
    (unit,) = found["units"]
    assert found["restarting"] == ["vllm.service"]
    assert (unit["enabled"], unit["result"], unit["containers"]) == ("enabled", "exit-code", ["vllm-head"])


def test_units_in_json_and_units_that_are_not() -> None:
    rows = [{"unit": "vllm.service", "load": "loaded", "active": "failed", "sub": "failed", "description": "vLLM"}]
    assert told("systemd", json.dumps(rows))["failed"] == ["vllm.service"]
    assert told("systemd", "Unit vllm.service could not be found.\n")["not_found"] == ["vllm.service"]


def test_unit_files_with_templates() -> None:
    units = told("systemd", "vllm@.service  disabled  enabled\nray.service  enabled-runtime  enabled\n")["units"]
    assert {unit["name"]: unit["enabled"] for unit in units} == {
        "vllm@.service": "disabled",
        "ray.service": "enabled-runtime",
    }


# Network

GIDS = """DEV	PORT	INDEX	GID					IPv4  		VER	DEV
rocep1s0f1	1	1	fe80:0000:0000:0000:4ebb:47ff:fe5e:1a11			v2	enp1s0f1np1
rocep1s0f1	1	2	0000:0000:0000:0000:0000:ffff:c0a8:640a	192.168.100.10  	v1	enp1s0f1np1
rocep1s0f1	1	3	0000:0000:0000:0000:0000:ffff:c0a8:640a	192.168.100.10  	v2	enp1s0f1np1
"""
WIDE_IBDEV = "0000:01:00.0 rocep1s0f0 (MT4129 - P4242) ConnectX-7 fw 28.45.4028 port 1 (ACTIVE) ==> enp1s0f0np0 (Up)\n"
DEVINFO = "hca_id:\trocep1s0f0\n\tphys_port_cnt:\t1\n\t\tport:\t1\n\t\t\tstate:\t\tPORT_ACTIVE (4)\n\t\t\tlink_layer:\tEthernet\n"
RDMA_JSON = (
    '[{"ifindex":0,"ifname":"rocep1s0f0","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":"enp1s0f0np0"}]'
)


def test_the_gid_for_roce() -> None:
    (hca,) = told("fabric", GIDS)["hcas"]
    assert (hca["gid_index"], hca["netdev"], hca["active"]) == (3, "enp1s0f1np1", None)


@pytest.mark.parametrize("text", [WIDE_IBDEV, DEVINFO, RDMA_JSON], ids=["ibdev2netdev -v", "ibv_devinfo", "rdma -j"])
def test_other_tools_for_rdma(text: str) -> None:
    assert told("fabric-tools", text)["up"] == ["rocep1s0f0"]


def test_brief_addresses() -> None:
    found = told("network", "enP7s7  UP  192.0.2.21/24 fe80::1/64\nenP2p1s0f1np1  DOWN\ndocker0  DOWN  172.17.0.1/16\n")
    assert found["mgmt"] == {"if": "enP7s7", "ip": "192.0.2.21"} and found["ignore"] == ["docker0"]
    assert [each["ip"] for each in found["interfaces"]] == ["192.0.2.21", None, "172.17.0.1"]


def test_routes_in_json() -> None:
    rows = [{"dst": "default", "dev": "enP7s7", "protocol": "dhcp", "metric": 100}]
    rows += [
        {"dst": "10.0.1.0/24", "dev": dev, "protocol": "kernel", "scope": "link"}
        for dev in ("enp1s0f1np1", "enP2p1s0f1np1")
    ]
    found = told("network", json.dumps(rows))
    assert (found["default"], found["problem"], found["subnet"]) == (["enP7s7"], "twins_same_subnet", "10.0.1.0/24")


# Ray

VERBOSE = """======== Autoscaler status: 2026-07-06 00:44:31.102938 ========
Node status
---------------------------------------------------------------
Active:
 1 node_b148
 1 node_24db
Resources
---------------------------------------------------------------
Total Usage:
 2.0/2.0 GPU (2.0 used of 2.0 reserved in placement groups)
Pending Demands:
 (no resource demands)

Node: b148a61d30541c43
 Usage:
  1.0/1.0 GPU
"""
NODES = """======== List: 2026-07-16 08:21:02.000118 ========
    NODE_ID                                                   NODE_IP        IS_HEAD_NODE    STATE    RESOURCES_TOTAL
 0  24db8b8b0f3112598b6f42448ec97920435e1e9d9582ac2b9ef80734  10.100.184.2   False           DEAD     CPU: 20.0
 1  b148a61d30541c439733aa6f2b1cdf1d9426d6be2f41159083cb92b2  10.100.184.1   True            ALIVE    CPU: 20.0
                                                                                                      GPU: 1.0
"""


def test_a_verbose_status_counts_once() -> None:
    found = told("ray", VERBOSE)
    assert (found["alive"], found["gpu_total"], found["demands"]) == (2, 2.0, [])


def test_a_list_of_nodes() -> None:
    found = told("ray", NODES)
    assert (found["alive"], found["dead"], found["gpu_total"]) == (1, ["10.100.184.2"], 1.0)
