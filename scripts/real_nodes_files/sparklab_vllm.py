"""vLLM's CPU platform, but one that Ray may place on the GPUs that a node claims (`ray start --num-gpus=1`).

vLLM finds it by the entry point group vllm.platform_plugins. Without it the CPU platform refuses Ray.
"""

from typing import Any


def register() -> str:
    return "sparklab_vllm.LabCpuPlatform"


def __getattr__(name: str) -> Any:
    if name != "LabCpuPlatform":
        raise AttributeError(name)
    from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]

    members = {
        "ray_device_key": "GPU",
        "device_control_env_var": "CUDA_VISIBLE_DEVICES",
        "ray_noset_device_env_vars": ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"],
        "__module__": __name__,
    }
    globals()[name] = type(name, (CpuPlatform,), members)
    return globals()[name]
