"""Each finding with a sheet that has it and a neighbour that has not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.diagnosis.findings import SEVERITIES, TABLE, Finding, findings
from apps.diagnosis.findings.links import rails_to
from apps.facts.sheet import Evidence, Sheet
from apps.facts.values import (
    Address,
    BootJob,
    Checkout,
    Container,
    Disk,
    Docker,
    EngineProcess,
    Gpu,
    GpuError,
    GpuProcess,
    Gpus,
    Hca,
    Image,
    Killed,
    Launcher,
    Listener,
    Memory,
    MigInstance,
    Privileges,
    RailPing,
    Software,
    SshServer,
    Starts,
    TimeSync,
    Unit,
)
from tests.plan import sheets as made

GIB = 1 << 30
SPARK = made.spark("spark-1", 12, used_gib=6.0, management="10.0.0.1")
OTHER = made.spark("spark-2", 13, used_gib=6.0, management="10.0.0.2")
DOCS = Path(__file__).resolve().parents[3] / "docs" / "findings.md"
VLLM = Software("image:old", {"vllm": "0.14.0rc2", "torch": "2.9.1"}, "12.1a", "sha256:old")
OLD_IMAGE = Image("old:latest", "sha256:old", None, "arm64")


def one(**changes: Any) -> dict[str, Sheet]:
    """A Spark with other facts."""
    return {"spark-1": replace(SPARK, **changes)}


def two(**changes: Any) -> dict[str, Sheet]:
    """Two Sparks, the second with other facts."""
    return {"spark-1": SPARK, "spark-2": replace(OTHER, **changes)}


def gpus(**changes: Any) -> Gpus:
    assert SPARK.gpus is not None
    return replace(SPARK.gpus, **changes)


def machine(**changes: Any) -> Any:
    assert SPARK.machine is not None
    return replace(SPARK.machine, **changes)


def memory(**changes: Any) -> Memory:
    assert SPARK.memory is not None
    return replace(SPARK.memory, **changes)


def hcas(*states: str | None, rate: float = 200.0) -> tuple[Hca, ...]:
    """The four ports of a Spark, in the order of the first cable's twins and the second's."""
    ports = SPARK.fabric or ()
    return tuple(
        replace(port, state=state, rate_gbps=rate if state == "ACTIVE" else None)
        for port, state in zip(ports, states, strict=True)
    )


def links(**by_name: dict[str, Any]) -> Any:
    return tuple(replace(each, **by_name.get(each.name, {})) for each in SPARK.interfaces or ())


def vllm(name: str = "vllm_node", **more: Any) -> Container:
    fields: dict[str, Any] = {"state": "running", "pid": 41, "image": "vllm-node", "memory_bytes": 80 * GIB, **more}
    return Container(name, "id", **fields)


UNIT = Unit("vllm-cluster.service", active="active", enabled="enabled", containers=("vllm_node",), vendor=False)
SPEC = {"image": "old:latest", "model_path": made.MODEL_PATH, "runtime": "docker", "cluster": "ray"}
FABRIC = ("enp1s0f0np0", "enP2p1s0f0np0")
H200 = Gpu(0, "NVIDIA H200", "00000000:00:06.0", memory_total_mib=143771)
PROCESS = EngineProcess(
    4242,
    Starts("vllm", "Qwen/Qwen3-8B", port=8000),
    user="bob",
    command="/home/bob/venv/bin/python3 /home/bob/venv/bin/vllm serve Qwen/Qwen3-8B",
    gpu_bytes=92 * GIB,
    venv="/home/bob/venv",
    ports=(8000,),
)
SSHD = SshServer("9.6p1", 10, 10, 100, "yes", "any", source="sshd -T")
USER_UNIT = Unit(
    "llama.service", active="active", enabled="enabled", exec_start="/usr/bin/llama-server -m a.gguf", vendor=False
)
SCRIPT = Launcher("/home/bob/run.sh", (Starts("vllm", "a/b", image="vllm-node", port=8000),))
RAIL = RailPing("enp1s0f0np0", "192.168.200.13", 9000, "ok")
PROCESS_SPEC = {"runtime": "process", "executable": "/opt/venv/bin/vllm"}

# name -> sheets (and spec) that have the finding, and the nearest ones that have not
CASES: dict[str, tuple[Any, Any]] = {
    "gpu_lost": (one(gpus=gpus(problem="gpu_lost", evidence="GPU is lost")), one()),
    "driver_mismatch": (one(gpus=Gpus(problem="driver_mismatch")), one(gpus=gpus(library="580.95.05"))),
    "driver_not_running": (one(gpus=Gpus(problem="driver_not_running")), one()),
    "gpu_failed": (one(gpus=Gpus(problem="something_new")), one(gpus=gpus(problem="bad_query_field"))),
    "gpu_denied": (one(gpus=Gpus(problem="gpu_denied")), one()),
    "gpu_missing": (
        one(gpus=Gpus("580.95.05", gpus=(H200,), on_bus=("0000:00:06.0", "0000:00:07.0"))),
        one(
            gpus=Gpus("580.95.05", gpus=(H200,), on_bus=("0000:00:06.0", "0000:00:07.0")),
            machine=machine(virtualization="lxc"),
        ),
    ),
    "mig_on": (
        one(gpus=gpus(gpus=(replace(H200, mig="Enabled", instances=(MigInstance(1, profile="3g.71gb"),)),))),
        one(gpus=gpus(gpus=(replace(H200, mig="Disabled"),))),
    ),
    "gpus_mixed": (
        one(gpus=gpus(gpus=(H200, Gpu(1, "NVIDIA L40S", memory_total_mib=46068)))),
        one(gpus=gpus(gpus=(H200, replace(H200, index=1)))),
    ),
    "gpu_memory_unknown": (
        one(gpus=gpus(gpus=(replace(H200, memory_total_mib=None),))),
        one(gpus=gpus(gpus=(replace(H200, memory_total_mib=None, unified=True),))),
    ),
    "gpu_errors": (
        one(gpu_errors=(GpuError(79, "0000:01:00", 1, "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."),)),
        one(gpu_errors=()),
    ),
    "ssh_forwarding_off": (
        one(ssh_server=replace(SSHD, tcp_forwarding="no")),
        one(ssh_server=replace(SSHD, tcp_forwarding="local")),
    ),
    "ssh_limits_low": (
        one(ssh_server=replace(SSHD, max_sessions=1)),
        one(ssh_server=replace(SSHD, max_sessions=None, startups_begin=None)),
    ),
    "engine_process": (one(processes=(PROCESS,)), one(processes=(replace(PROCESS, container="vllm_node"),))),
    "user_units_restart": (
        one(user_units=(USER_UNIT,)),
        one(user_units=(replace(USER_UNIT, active="inactive", enabled="disabled"),)),
    ),
    "boot_jobs_start": (
        one(boot_jobs=(BootJob("crontab", "/home/bob/run.sh", "bob", (Starts("vllm", "a/b"),)),)),
        one(boot_jobs=(BootJob("/etc/cron.d/sync", "/usr/bin/rsync -a /a /b", "root"),)),
    ),
    "launchers_found": (
        one(launchers=(SCRIPT,), checkouts=()),
        one(launchers=(SCRIPT,), checkouts=(), units=(replace(UNIT, exec_start="/home/bob/run.sh"),)),
    ),
    "fabric_blocked": (
        one(rails=(replace(RAIL, result="too_long", mtu_bytes=1500),)),
        one(rails=(RAIL,)),
    ),
    "fabric_silent": (one(rails=(replace(RAIL, result="no_answer"),)), one(rails=(replace(RAIL, result=None),))),
    "clock_unsynchronized": (
        one(time_sync=TimeSync(synchronized=False, ntp=False)),
        one(time_sync=TimeSync(synchronized=False, service="chrony")),
    ),
    "docker_snap": (
        one(docker=Docker(True, "28.1", root="/var/snap/docker/common/var-lib-docker", snap=True)),
        one(docker=Docker(True, "28.1", root="/var/lib/docker", snap=False)),
    ),
    "cdi_stale": (
        one(docker=Docker(True, "28.1", cdi_missing=("/usr/lib/libcuda.so.570.1",))),
        one(docker=Docker(True, "28.1", cdi_missing=())),
    ),
    "limits_low": (
        (one(privileges=Privileges("all", open_files=1024, memlock_bytes=8 << 20)), PROCESS_SPEC),
        (one(privileges=Privileges("all", open_files=1024, memlock_bytes=8 << 20)), SPEC),
    ),
    "cma_empty": (
        one(memory=memory(cma_total_bytes=0), machine=machine(kernel="7.0.0-1019-nvidia")),
        one(memory=memory(cma_total_bytes=None), machine=machine(kernel="7.0.0-1019-nvidia")),
    ),
    "image_arch": (
        (one(images=(replace(OLD_IMAGE, arch="amd64"),), software=(VLLM,)), SPEC),
        (one(images=(replace(OLD_IMAGE, arch=None),), software=(VLLM,)), SPEC),
    ),
    "driver_too_old": (
        (one(images=(replace(OLD_IMAGE, env={"NVIDIA_REQUIRE_CUDA": "cuda>=13.1"}),)), SPEC),
        (one(images=(replace(OLD_IMAGE, env={"NVIDIA_REQUIRE_CUDA": "cuda>=13.0 driver>=470,driver<471"}),)), SPEC),
    ),
    "ray_missing": (
        (one(images=(OLD_IMAGE,), software=(VLLM,)), SPEC),
        (one(images=(OLD_IMAGE,), software=(VLLM,)), SPEC | {"cluster": "native"}),
    ),
    "docker_down": (one(docker=Docker(True, problem="docker_down")), one(docker=None)),
    "docker_denied": (one(docker=Docker(True, problem="docker_denied")), one()),
    "docker_missing": (
        one(docker=Docker(False)),
        (one(docker=Docker(False)), PROCESS_SPEC),
    ),
    "toolkit_missing": (one(docker=Docker(True, runtimes=("runc",))), one(docker=Docker(True, runtimes=()))),
    "disk_full": (one(disks=(Disk("/", available_bytes=GIB),)), one(disks=(Disk("/", available_bytes=None),))),
    "disk_low": (
        one(disks=(Disk("/models", size_bytes=900 * GIB, available_bytes=9 * GIB),)),
        one(disks=(Disk("/dev/shm", size_bytes=60 * GIB, available_bytes=9 * GIB),)),
    ),
    "fabric_not_shared": (
        two(
            interfaces=links(enp1s0f0np0={"addresses": (Address("192.168.9.2", 24),)}, enP2p1s0f0np0={"addresses": ()})
        ),
        two(),
    ),
    "fabric_down": (one(fabric=hcas(*["DOWN"] * 4)), one(fabric=hcas(None, None, "DOWN", "DOWN"))),
    "fabric_half_up": (
        one(fabric=hcas("ACTIVE", "DOWN", "DOWN", "DOWN")),
        one(fabric=hcas("ACTIVE", None, "DOWN", "DOWN")),
    ),
    "fabric_port_unused": (one(), one(fabric=hcas("ACTIVE", "ACTIVE", None, None))),
    "twins_in_same_subnet": (
        one(interfaces=links(enP2p1s0f0np0={"addresses": (Address("192.168.200.9", 24),)})),
        one(),
    ),
    "twin_without_address": (
        one(interfaces=links(enP2p1s0f0np0={"addresses": ()})),
        one(interfaces=links(enp1s0f0np0={"addresses": ()}, enP2p1s0f0np0={"addresses": ()})),
    ),
    "fabric_mtu": (one(interfaces=links(enp1s0f0np0={"mtu": 1500})), one(interfaces=links(enp1s0f0np0={"mtu": None}))),
    "fabric_mtu_unequal": (
        two(
            interfaces=tuple(
                replace(each, mtu=1500) if each.name in FABRIC else each for each in OTHER.interfaces or ()
            )
        ),
        two(),
    ),
    "fabric_link_local": (
        one(
            interfaces=links(enp1s0f0np0={"addresses": (Address("169.254.3.4", 16),)}, enP2p1s0f0np0={"addresses": ()})
        ),
        one(interfaces=links(enp1s0f0np0={"addresses": (Address("169.254.3.4", 16),)})),
    ),
    "fabric_slow": (
        one(fabric=hcas("ACTIVE", "ACTIVE", "DOWN", "DOWN", rate=40.0)),
        one(fabric=hcas("ACTIVE", "ACTIVE", "DOWN", "DOWN", rate=100.0)),
    ),
    "fabric_speed_unequal": (two(fabric=hcas("ACTIVE", "ACTIVE", "DOWN", "DOWN", rate=100.0)), two()),
    "no_rdma": (one(fabric=()), one(fabric=None)),
    "ib_tools_absent": (
        one(evidence={"fabric-tools": Evidence("", "", 0)}),
        one(evidence={"fabric-tools": Evidence("", "", None, True)}),
    ),
    "memory_held": (
        one(containers=(vllm(),)),
        one(containers=(vllm(memory_bytes=None, image="busybox", name="box"),)),
    ),
    "memory_ours": (one(containers=(vllm(labels={"sparkweb.deployment": "3"}),)), one(containers=(vllm(),))),
    "units_restart": (
        one(containers=(vllm(),), units=(UNIT,)),
        one(units=(Unit("cron.service", active="active", enabled="enabled", vendor=True),)),
    ),
    "memory_critical": (
        one(memory=memory(available_bytes=2 * GIB)),
        one(memory=memory(available_bytes=None)),
    ),
    "killed_for_memory": (one(killed=(Killed("global", "python3", 4, line="Out of memory: Killed"),)), one(killed=())),
    "oomd_killed": (one(killed=(Killed("oomd", unit="session-3.scope"),)), one(killed=None)),
    "swap_in_use": (
        one(memory=memory(swap_total_bytes=16 * GIB, swap_free_bytes=2 * GIB)),
        one(memory=memory(swap_total_bytes=16 * GIB, swap_free_bytes=None)),
    ),
    "unequal_memory": (two(memory=memory(total_bytes=60 * GIB)), two(memory=memory(total_bytes=None))),
    "driver_differs": (two(gpus=gpus(driver="570.1")), two(gpus=gpus(driver=None))),
    "image_differs": (
        two(images=tuple(replace(each, id="sha256:new") for each in OTHER.images or ()), software=()),
        two(images=None),
    ),
    "versions_differ": (
        two(software=(replace((OTHER.software or ())[0], versions={"vllm": "0.17.0", "ray": "2.49.0"}),)),
        two(software=(replace((OTHER.software or ())[0], versions={"vllm": "0.17.1rc1"}),)),
    ),
    "image_too_old": (one(software=(VLLM,)), one(software=(replace(VLLM, versions={"vllm": "0.17.1rc1"}),))),
    "image_gpu_code": (
        one(software=(replace(VLLM, cuda_arch_list="9.0;12.0a"),)),
        one(software=(replace(VLLM, cuda_arch_list="9.0 12.0"),)),
    ),
    "model_incomplete": (
        one(models=(replace(made.MODEL, complete=False, shards=38),)),
        one(models=(replace(made.MODEL, complete=None, shards=38),)),
    ),
    "exposed": (
        one(containers=(vllm(ports=("0.0.0.0:8000->8000/tcp",)),), listeners=(Listener("0.0.0.0", 8000),)),
        one(
            containers=(vllm(command="vllm serve m --port 8000 --api-key ***"),), listeners=(Listener("0.0.0.0", 8000),)
        ),
    ),
    "ray_dashboard_open": (one(listeners=(Listener("::", 8265),)), one(listeners=(Listener("127.0.0.1", 8265),))),
    "container_restarting": (
        one(containers=(vllm(state="restarting", restarts=14, exit_code=1),)),
        one(containers=(vllm(restarts=2),)),
    ),
    "container_unhealthy": (
        one(containers=(vllm(health="unhealthy"),)),
        one(containers=(vllm(health="unhealthy", state="exited"),)),
    ),
    "container_killed": (
        one(containers=(vllm(state="exited", oom_killed=True, exit_code=137),)),
        one(containers=(vllm(state="exited", oom_killed=None, exit_code=137),)),
    ),
    "unit_failed": (
        one(units=(replace(UNIT, active="failed", enabled=None),)),
        one(units=(replace(UNIT, active=None),)),
    ),
    "remove_ipc": (
        one(privileges=Privileges("all", linger=False, remove_ipc=True)),
        one(privileges=Privileges("all", linger=None, remove_ipc=True)),
    ),
    "clock_skew": (
        one(machine=machine(clock_unix_s=made.TAKEN_AT - 95)),
        one(machine=machine(clock_unix_s=None)),
    ),
    "temperature_high": (one(gpus=gpus(gpus=(Gpu(0, "NVIDIA GB10", temp_c=91),))), one()),
    "no_driver": (one(gpus=Gpus(problem="no_driver")), one(gpus=None)),
    "unreadable": (one(gpus=None), one()),
    "no_gpu": (one(gpus=Gpus()), one()),
    "sudo_password": (one(privileges=Privileges("password")), one(privileges=Privileges("some"))),
    "no_internet": (one(internet=False), one(internet=None)),
    "inside_a_container": (one(machine=machine(virtualization="lxc")), one(machine=machine(virtualization="kvm"))),
}


def read(case: Any) -> dict[str, Finding]:
    sheets, spec = case if isinstance(case, tuple) else (case, None)
    return {finding.name: finding for finding in findings(sheets, spec=spec)}


@pytest.mark.parametrize("name", TABLE)
def test_a_sheet_that_has_it_and_a_neighbour_that_has_not(name: str) -> None:
    has, has_not = CASES[name]
    found = read(has).get(name)
    assert found is not None
    assert name not in read(has_not)
    assert found.nodes and found.sentence and found.meaning and found.remedy
    assert "None" not in f"{found.sentence} {found.meaning} {found.remedy} {found.evidence}"
    assert SEVERITIES.index(found.severity) >= SEVERITIES.index(TABLE[name].severity)


def test_a_plain_spark_has_nothing_but_an_unused_port() -> None:
    assert [finding.name for finding in findings({"spark-1": SPARK})] == ["fabric_port_unused"]


def test_nothing_is_known_of_an_empty_sheet() -> None:
    (finding,) = findings({"node": Sheet("node", 1.0)})
    assert finding.name == "unreadable"
    assert finding.sentence == "machine, memory, gpus, docker and interfaces of node could not be read"


def test_a_plain_process_is_told_as_a_person_would() -> None:
    worker = EngineProcess(4300, Starts("vllm"), parent=4242, user="bob", command="VLLM::EngineCore", gpu_bytes=4 * GIB)
    (found,) = [each for each in findings(one(processes=(PROCESS, worker))) if each.name == "engine_process"]
    assert found.sentence == (
        "vllm runs on spark-1 as a plain process of bob (pid 4242, port 8000, 96.0 GiB, from /home/bob/venv)"
    )
    assert found.remedy == "Ask bob. `kill 4242` ends it (as bob or root)."
    assert found.evidence.startswith("4242 /home/bob/venv/bin/python3")
    assert found.values["models"] == ["Qwen/Qwen3-8B"]


def test_a_process_of_our_own_deployment_is_kept() -> None:
    assert "engine_process" not in read(one(processes=(replace(PROCESS, run="17"),)))


def test_a_plain_process_that_listens_everywhere_is_exposed() -> None:
    for listener in (Listener("0.0.0.0", 8000, 4242, "python3"), Listener("0.0.0.0", 8000)):
        found = read(one(processes=(PROCESS,), containers=(), listeners=(listener,)))
        assert found["exposed"].sentence.startswith("Port 8000 (vllm process 4242)")


def test_memory_is_held_by_a_process_with_a_name() -> None:
    held = gpus(processes=(GpuProcess(4242, "python3", 92 * 1024, "C", 0),))
    assert (
        "vllm process 4242 of bob" in read(one(gpus=held, processes=(PROCESS,), containers=()))["memory_held"].sentence
    )


def test_what_a_users_own_units_bring_back_says_when() -> None:
    unit = replace(USER_UNIT, containers=("llama",))
    at_boot = one(user_units=(unit,), privileges=Privileges("all", linger=True, remove_ipc=False))
    at_login = one(user_units=(unit,), privileges=Privileges("all", linger=False, remove_ipc=False))
    assert "at every boot (its user lingers)" in read(at_boot)["user_units_restart"].meaning
    assert "when its user logs in" in read(at_login)["user_units_restart"].meaning


def test_what_a_launcher_would_start_is_the_evidence() -> None:
    kit = Checkout(
        "/home/bob/spark-vllm-docker", "https://github.com/eugr/spark-vllm-docker.git", "main", "f" * 40, changed=2
    )
    found = read(one(launchers=(SCRIPT,), checkouts=(kit,)))["launchers_found"]
    assert found.sentence == "spark-vllm-docker and /home/bob/run.sh on spark-1 can start engines without sparkweb"
    assert "ffffffffffff, 2 files changed" in found.evidence
    assert "/home/bob/run.sh starts vllm: model a/b, image vllm-node, port 8000" in found.evidence


def test_a_programs_own_xid_is_a_note() -> None:
    assert read(one(gpu_errors=(GpuError(31, "0000:01:00"),)))["gpu_errors"].severity == "note"
    assert (
        read(one(gpu_errors=(GpuError(31, "0000:01:00"), GpuError(79, "0000:01:00"))))["gpu_errors"].severity == "warn"
    )


def test_rails_are_those_of_a_common_subnet() -> None:
    assert set(rails_to(SPARK, [SPARK, OTHER])) == {
        ("enp1s0f0np0", "192.168.200.13"),
        ("enP2p1s0f0np0", "192.168.201.13"),
    }


def test_worst_first() -> None:
    found = findings(made.pair() | one(gpus=Gpus(problem="gpu_lost"), killed=(Killed("oomd", unit="a.scope"),)))
    severities = [SEVERITIES.index(finding.severity) for finding in found]
    assert severities == sorted(severities)
    assert found[0].name == "gpu_lost"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (one(machine=machine(clock_unix_s=made.TAKEN_AT - 95)), "The clock of spark-1 is 95 s behind"),
        (one(machine=machine(clock_unix_s=made.TAKEN_AT + 86400 * 30)), "The clock of spark-1 is 30 days ahead"),
        (
            one(containers=(vllm(state="restarting", restarts=None),)),
            "vllm_node on spark-1 restarts again and again",
        ),
        (
            one(models=(replace(made.MODEL, complete=False, shards=None, shards_expected=None),)),
            f"{made.MODEL_PATH} on spark-1 is incomplete",
        ),
    ],
)
def test_no_figure_where_none_is_known(change: dict[str, Sheet], sentence: str) -> None:
    assert sentence in [finding.sentence for finding in findings(change)]


def test_a_clock_measured_elsewhere_counts_more() -> None:
    assert "clock_skew" in {one.name for one in findings({"spark-1": SPARK}, clock_offsets_s={"spark-1": -61.0})}


def test_what_nobody_asked_for_is_a_note() -> None:
    sheets = one(images=(replace(OLD_IMAGE, arch="amd64"),), software=(VLLM,))
    assert read(sheets)["image_arch"].severity == "note"
    assert read((sheets, SPEC))["image_arch"].severity == "bad"


def too_old(sheets: Any, **how: Any) -> list[tuple[str, str]]:
    return [(one.severity, one.sentence) for one in findings(sheets, **how) if one.name == "image_too_old"]


def test_an_old_image_counts_where_nothing_newer_is_there() -> None:
    new = replace(VLLM, where="image:new", versions={"vllm": "0.17.1"}, image_id="sha256:new")
    assert [severity for severity, _ in too_old(one(software=(VLLM,)))] == ["warn"]
    assert too_old(one(software=(VLLM, new))) == []
    assert len(too_old(one(images=(OLD_IMAGE,), software=(VLLM, new)), spec=SPEC)) == 1  # a recipe asks for it


def test_a_container_counts_for_the_model_that_it_was_told_to_serve() -> None:
    inside = tuple(replace(VLLM, where=f"container:{name}") for name in ("chat", "embed", "rank"))
    model = made.MODEL.path
    told = (
        Container("chat", state="running", command=f"vllm serve {model} --port 8000"),
        Container("embed", state="running", command="vllm serve /models/embedder"),
        Container("rank", state="running", command="ray start --block"),
    )
    name = "Qwen3.5-122B-A10B-FP8"
    assert too_old(one(software=inside, containers=told)) == [
        ("warn", f"vLLM 0.14.0rc2 in container chat on spark-1 is too old for {name}")
    ]
    process = EngineProcess(7, Starts("vllm", model), container="rank")
    assert too_old(one(software=inside, containers=told[1:], processes=(process,))) == [
        ("warn", f"vLLM 0.14.0rc2 in container rank on spark-1 is too old for {name}")
    ]


def test_what_is_old_for_the_same_models_is_told_once() -> None:
    other = replace(VLLM, where="image:older", versions={"vllm": "0.11.0"}, image_id="sha256:older")
    again = replace(VLLM, where="venv:/opt/vllm", image_id=None)
    assert too_old(one(software=(VLLM, other, again))) == [
        (
            "warn",
            "vLLM 0.14.0rc2 in image old and /opt/vllm and vLLM 0.11.0 in image older on spark-1 are too old for "
            "Qwen3.5-122B-A10B-FP8",
        )
    ]
    inside = replace(VLLM, where="container:embed")
    ((_, sentence),) = too_old(one(images=(OLD_IMAGE,), software=(VLLM, inside)), spec=SPEC)
    assert "in image old:latest on" in sentence and "embed" not in sentence


def test_only_the_nodes_of_the_spec() -> None:
    spec = {"nodes": ["spark-5be3"]}
    assert {node for finding in findings(made.pair(), spec=spec) for node in finding.nodes} == {"spark-5be3"}


def test_estimated_memory_says_so() -> None:
    sheet = replace(made.head(), containers=tuple(replace(each, memory_bytes=None) for each in made.OLD_STACK))
    (held,) = [finding for finding in findings({sheet.node: sheet}) if finding.name == "memory_held"]
    assert held.sentence.startswith("About ")
    assert "about" in held.meaning


def rows_of(text: str) -> list[tuple[str, ...]]:
    return [
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in text.splitlines()
        if line.startswith("| `")
    ]


def test_the_document_lists_exactly_the_table() -> None:
    written = rows_of(DOCS.read_text())
    assert written == [
        (f"`{known.name}`", known.severity, known.title, known.meaning, known.remedy) for known in TABLE.values()
    ]


def test_the_table_speaks_in_sentences() -> None:
    words: Callable[[str], bool] = lambda text: bool(re.search(r"[.!)]$", text)) and "|" not in text  # noqa: E731
    for known in TABLE.values():
        assert words(known.meaning), known.name
        assert words(known.remedy), known.name
        assert not known.title.endswith(".")
