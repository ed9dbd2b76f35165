"""What a node says of itself, in both ways of leading paths elsewhere."""

from __future__ import annotations

import json
import platform
import re
import socket
import time
from pathlib import Path

import pytest

from apps.lab import Lab
from tests.lab.visit import HEAD, SECOND, Visit


@pytest.fixture(params=["started", "rewritten"])
def either(request: pytest.FixtureRequest, key: Path) -> Visit:
    lab: Lab = request.getfixturevalue(request.param)
    return Visit(lab, key)


def test_paths_of_the_machine_are_the_nodes(either: Visit) -> None:
    said = either.out(
        "cat /proc/meminfo; echo ==; cat /proc/sys/kernel/random/boot_id; echo ==; cat /proc/uptime; echo ==; ls /sys/class/infiniband; echo ==; "
        "cat /sys/class/net/enp1s0f0np0/mtu; echo ==; head -1 /etc/os-release; echo ==; grep btime /proc/stat; date +%s; echo ==; ls /models"
    ).split("==\n")
    total = int(re.search(r"MemTotal: +(\d+) kB", said[0])[1])  # type: ignore[index]
    available = int(re.search(r"MemAvailable: +(\d+) kB", said[0])[1])  # type: ignore[index]
    assert round(total / (1 << 20)) == 120 and round((total - available) / (1 << 20)) == 104
    assert said[1].strip() != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert float(said[2].split()[0]) > 1_900_000
    assert said[3].split() == ["roceP2p1s0f0", "roceP2p1s0f1", "rocep1s0f0", "rocep1s0f1"]
    assert said[4].strip() == "9000"
    assert "Ubuntu 24.04" in said[5]
    btime, now = int(said[6].split()[1]), int(said[6].split()[2])
    assert abs(now - time.time()) < 5 and abs((now - btime) - float(said[2].split()[0])) < 5
    assert "Qwen3.5-122B-A10B-FP8" in said[7].split()


def test_literals_in_what_is_uploaded_and_kept_are_led_elsewhere_too(either: Visit) -> None:
    script = "printf 'head -1 /proc/meminfo; cat /proc/uptime\\n' > ~/later.sh; wc -c < ~/later.sh; grep -c /proc/meminfo ~/later.sh; sh ~/later.sh; cat ~/later.sh; echo http://h/v1/models"
    lines = either.out(script).splitlines()
    assert lines[0] == "40" and lines[1] == "1" and "125493248" in lines[2]
    assert lines[4] == "head -1 /proc/meminfo; cat /proc/uptime"  # reads back as it was written
    assert lines[5] == "http://h/v1/models"


def test_nothing_of_this_machine_shows(either: Visit) -> None:
    said = either.out(
        "uname -a; uname -n; hostname; hostname -I; lsb_release -d; hostnamectl; nproc; id; whoami; lscpu; free -g; df -h /; uptime; ps -ef; sudo -n dmesg; "
        "cat /proc/meminfo /etc/os-release; python3 -c 'import platform,os;print(platform.uname(), os.cpu_count())'"
    )
    assert platform.release() not in said
    assert "x86_64" not in said or platform.machine() != "x86_64"
    assert socket.gethostname() == "spark-1a32" or not re.search(rf"\b{re.escape(socket.gethostname())}\b", said)
    assert "pytest" not in said and "asyncssh" not in said
    assert "aarch64" in said and "uid=1000(aurora)" in said


@pytest.mark.parametrize("program", ["gcc", "strace", "lshw", "apachectl", "git"])
def test_a_program_that_a_node_has_not_is_not_found(either: Visit, program: str) -> None:
    done = either.run(f"{program} --version")
    assert done.returncode == 127 and "not found" in done.stderr


def test_commands_on_the_line_and_exit_codes(either: Visit) -> None:
    done = either.run("", command="head -1 /proc/meminfo; exit 7")
    assert done.returncode == 7 and "125493248" in done.stdout


def test_second_node_through_the_first(either: Visit) -> None:
    said = either.out(
        "hostname; ip -j addr; echo; ibstat; free -b | sed -n 2p; curl -sS -m 2 https://huggingface.co || true", SECOND
    )
    assert said.startswith("spark-5be3\n")
    addresses = [
        info["local"]
        for entry in json.loads(said.splitlines()[1])
        for info in entry.get("addr_info", [])
        if info["family"] == "inet"
    ]
    assert "192.168.200.13" in addresses and not any(address.startswith("10.1.") for address in addresses)
    assert "Physical state: Disabled" in said


def test_gpu_tools(look: Visit) -> None:
    table = look.out("nvidia-smi")
    assert (
        "Driver Version: 580.95.05" in table
        and "CUDA Version: 13.0" in table
        and "Not Supported" in table
        and "VLLM::EngineCore" in table
    )
    row = (
        look.out("nvidia-smi --query-gpu=name,memory.total,utilization.gpu,power.limit --format=csv,noheader,nounits")
        .strip()
        .split(", ")
    )
    assert row == ["NVIDIA GB10", "[N/A]", "0", "[N/A]"]
    bad = look.run("nvidia-smi --query-gpu=memory.unified --format=csv")
    assert bad.returncode == 2 and 'Field "memory.unified" is not a valid field to query.' in bad.stdout + bad.stderr


def test_docker_and_units_agree(look: Visit) -> None:
    rows = [json.loads(line) for line in look.out("docker ps -a --no-trunc --format '{{json .}}'").splitlines()]
    assert {row["Names"] for row in rows} == {"vllm_node", "vllm_embeddings", "reranker"} and all(
        row["State"] == "running" for row in rows
    )
    body = look.json("docker inspect vllm_node")[0]
    assert (
        body["State"]["Status"] == "running"
        and body["HostConfig"]["NetworkMode"] == "host"
        and body["State"]["Pid"] > 1
    )
    assert (
        look.out(
            "docker inspect -f '{{.State.Status}} {{index .Config.Cmd 0}} {{range .Mounts}}{{.Source}},{{end}}' vllm_node"
        )
        == "running vllm /models,\n"
    )
    assert look.out("docker image inspect vllm-node --format '{{.Size}} {{.Architecture}}'") == "26200000000 arm64\n"
    assert look.run("docker inspect nobody").stderr == "Error: No such object: nobody\n"
    assert (
        look.out("systemctl is-active vllm-cluster vllm-proxy vllm-embeddings vllm-reranker").split() == ["active"] * 4
    )
    refused = look.run("systemctl stop vllm-cluster")
    assert refused.returncode == 1 and "Interactive authentication required" in refused.stderr
    assert "vllm==0.14.0rc2.dev262" in look.out("docker exec vllm_node pip freeze")
    pull = look.run("docker pull ubuntu", SECOND)
    assert pull.returncode == 1 and "Error response from daemon" in pull.stderr


def test_python_inside_an_image_knows_its_packages(look: Visit) -> None:
    asked = """docker exec -i vllm_node python3 - <<'E'
import importlib.metadata
from importlib.metadata import PackageNotFoundError, distributions, version
print(version("vllm"), version("Huggingface_hub") == importlib.metadata.version("huggingface-hub"), len(list(distributions())) > 3)
try:
    version("sglang")
except PackageNotFoundError as error:
    print("none", isinstance(error, ImportError))
print(importlib.metadata.EntryPoint("a", "b:c", "d").module, version("ray") != "", importlib.metadata.version is version)
E
"""
    assert look.out(asked).splitlines() == ["0.14.0rc2.dev262+g1234abcd True True", "none True", "b True True"]


def test_forty_stand_ins_are_quick(look: Visit) -> None:
    began = time.monotonic()
    look.out(
        "for i in 1 2 3 4 5 6 7 8 9 10; do nvidia-smi; docker ps -a; systemctl is-active docker; ip -j addr; done >/dev/null"
    )
    assert (
        time.monotonic() - began < 15
    )  # under half a second on an idle machine; the limit only catches another order of magnitude


def test_a_head_that_is_not_asked_for_is_not_shown(look: Visit) -> None:
    assert look.lab.nodes[HEAD].addresses[0] == "10.1.230.180"
