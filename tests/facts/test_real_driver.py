"""What a real NVIDIA driver answered: two H200 on driver 580.159.04, one process holding memory on both.

Taken with the product's own probe on 2026-11-30; only the ids of the GPUs are changed.
"""

from __future__ import annotations

from apps.facts import gpu
from apps.facts.sheet import Evidence

TABLE = """\
Mon Nov 30 14:11:35 2026       
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H200                    On  |   00000000:00:06.0 Off |                    0 |
| N/A   36C    P0            119W /  700W |    3599MiB / 143771MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H200                    On  |   00000000:00:07.0 Off |                    0 |
| N/A   34C    P0            119W /  700W |    3599MiB / 143771MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A             869      C   python3                                3590MiB |
|    1   N/A  N/A             869      C   python3                                3590MiB |
+-----------------------------------------------------------------------------------------+
"""  # noqa: W291 - as printed
QUERY = """\
index, name, uuid, pci.bus_id, memory.total [MiB], memory.used [MiB], utilization.gpu [%], temperature.gpu, power.draw [W], power.limit [W], clocks.current.sm [MHz], mig.mode.current, driver_version
0, NVIDIA H200, GPU-0a0a0a0a-f844-5663-2e96-1fbc00000001, 00000000:00:06.0, 143771 MiB, 3599 MiB, 0 %, 36, 119.17 W, 700.00 W, 1980 MHz, Disabled, 580.159.04
1, NVIDIA H200, GPU-0b0b0b0b-748c-2558-f70d-87a000000002, 00000000:00:07.0, 143771 MiB, 3599 MiB, 0 %, 34, 119.50 W, 700.00 W, 1980 MHz, Disabled, 580.159.04
"""
PROCESSES = """\
869, python3, 3590, GPU-0a0a0a0a-f844-5663-2e96-1fbc00000001
869, python3, 3590, GPU-0b0b0b0b-748c-2558-f70d-87a000000002
"""


def answered(text: str) -> Evidence:
    return Evidence(stdout=text, stderr="", exit_code=0)


def test_two_gpus_of_their_own_memory_and_who_holds_it() -> None:
    whole = gpu.joined(
        gpu.from_table(answered(TABLE)), gpu.from_query(answered(QUERY)), gpu.from_processes(answered(PROCESSES))
    )
    assert whole is not None and whole.problem is None
    assert (whole.driver, whole.cuda) == ("580.159.04", "13.0")
    assert [(one.index, one.name, one.unified, one.mig) for one in whole.gpus] == [
        (0, "NVIDIA H200", False, "Disabled"),
        (1, "NVIDIA H200", False, "Disabled"),
    ]
    assert [(one.memory_total_mib, one.memory_used_mib) for one in whole.gpus] == [(143771, 3599), (143771, 3599)]
    assert [(one.power_w, one.power_cap_w, one.clock_mhz) for one in whole.gpus] == [
        (119.17, 700.0, 1980),
        (119.5, 700.0, 1980),
    ]
    assert [(one.pid, one.name, one.mib, one.gpu) for one in whole.processes] == [
        (869, "python3", 3590, 0),
        (869, "python3", 3590, 1),
    ]
