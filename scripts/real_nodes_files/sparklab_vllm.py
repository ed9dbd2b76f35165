"""vLLM's CPU platform for two nodes: one that Ray may place on the GPUs that a node claims (`ray start --num-gpus=1`).

vLLM finds it by the entry point group vllm.platform_plugins. Without it the CPU platform refuses Ray, and ranks on two
nodes take each other for neighbours: they compare names of shared memory, which are alike on both, and look for a
segment that lies on the other node (`open shm in SHMManager failed`).

SPARKLAB_SHARD_S=2 makes a shard take two seconds more, as from a slow disk: these shards are small, and all of them
would be read between two looks.
"""

import os
import time
from typing import Any


def register() -> str:
    seconds = float(os.environ.get("SPARKLAB_SHARD_S") or 0)
    if seconds:
        _slow_down(seconds)
    return "sparklab_vllm.LabCpuPlatform"


def _slow_down(seconds: float) -> None:
    """Before the loader imports it: safetensors' way to open a file."""
    import safetensors.torch  # type: ignore[import-not-found]

    opened = safetensors.torch.safe_open
    if getattr(opened, "slowed", False):
        return

    def slowed(path: Any, *words: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return opened(path, *words, **options)

    slowed.slowed = True  # type: ignore[attr-defined]
    safetensors.torch.safe_open = slowed


def _platform() -> type:
    from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]

    members = {
        "ray_device_key": "GPU",
        "device_control_env_var": "CUDA_VISIBLE_DEVICES",
        "ray_noset_device_env_vars": ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"],
        "get_device_communicator_cls": classmethod(lambda cls: "sparklab_vllm.LabCpuCommunicator"),
        "__module__": __name__,
    }
    return type("LabCpuPlatform", (CpuPlatform,), members)


def _communicator() -> type:
    import socket

    import torch.distributed  # type: ignore[import-not-found]
    from vllm.distributed.device_communicators.cpu_communicator import (  # type: ignore[import-not-found]
        CpuCommunicator,
    )

    class LabCpuCommunicator(CpuCommunicator):  # type: ignore[misc]
        def _all_group_ranks_share_shm_group_name(self) -> bool:
            hosts = [""] * self.world_size
            torch.distributed.all_gather_object(hosts, socket.gethostname(), group=self.device_group)
            return len(set(hosts)) == 1 and bool(super()._all_group_ranks_share_shm_group_name())

    return LabCpuCommunicator


MADE = {"LabCpuPlatform": _platform, "LabCpuCommunicator": _communicator}


def __getattr__(name: str) -> Any:
    if name not in MADE:
        raise AttributeError(name)
    globals()[name] = made = MADE[name]()
    return made
