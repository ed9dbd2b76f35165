"""Sheets of the story's two Sparks and of a plain Linux machine, by hand, from the figures of the field. Import them
from any test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apps.facts.sheet import Sheet
from apps.facts.values import (
    Address,
    Container,
    Disk,
    Docker,
    Gpu,
    Gpus,
    Hca,
    Image,
    Interface,
    Listener,
    Machine,
    Memory,
    ModelFolder,
    Privileges,
    Software,
    Unit,
)
from apps.plan.spec import Clear, Given, Spec

GIB = 1 << 30
TAKEN_AT = 1_780_000_000.0
MODEL_PATH = "/models/Qwen3.5-122B-A10B-FP8"
IMAGE = "hellohal2064/vllm-qwen3.5-gb10"
SGLANG_IMAGE = "lmsysorg/sglang:spark"
LLAMACPP_IMAGE = "ghcr.io/ggml-org/llama.cpp:server-cuda"
IMAGE_ID = "sha256:b7e0" + "5" * 58 + "91"
TOTAL = int(119.7 * GIB)

QWEN35: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 48,
        "hidden_size": 3072,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
    },
}
MODEL = ModelFolder(
    path=MODEL_PATH,
    bytes=119_010_000_000,
    shards=39,
    shards_expected=39,
    complete=True,
    config=QWEN35,
    weights_bytes=118_990_000_000,
)

SMALL = ModelFolder(
    path="/models/Qwen3-8B",
    bytes=16_400_000_000,
    shards=5,
    shards_expected=5,
    complete=True,
    config={
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
    weights_bytes=16_381_000_000,
)

GGUF_PATH = "/models/Qwen3-30B-A3B-GGUF/Qwen3-30B-A3B-Q4_K_M.gguf"
GGUF = ModelFolder(
    path="/models/Qwen3-30B-A3B-GGUF",
    bytes=68_000_000_000,
    shards=4,
    shards_expected=4,
    complete=True,
    weights_bytes=68_000_000_000,
    gguf=(
        ("Qwen3-30B-A3B-BF16-00001-of-00002.gguf", 30_000_000_000),
        ("Qwen3-30B-A3B-Q4_K_M.gguf", 18_600_000_000),
        ("Qwen3-30B-A3B-Q5_K_M-00001-of-00002.gguf", 11_000_000_000),
        ("Qwen3-30B-A3B-Q5_K_M-00002-of-00002.gguf", 10_700_000_000),
    ),
)


def _interfaces(octet: int, management: str | None) -> tuple[Interface, ...]:
    return (
        Interface(
            "enP7s7", True, 1500, 10000, True, (Address(management, 24),) if management else (), role="management"
        ),
        Interface("enp1s0f0np0", True, 9000, 200000, True, (Address(f"192.168.200.{octet}", 24),), role="fabric"),
        Interface("enP2p1s0f0np0", True, 9000, 200000, True, (Address(f"192.168.201.{octet}", 24),), role="fabric"),
        Interface("enp1s0f1np1", False, 1500, None, True, ()),
        Interface("enP2p1s0f1np1", False, 1500, None, True, ()),
        Interface("docker0", False, 1500, None, False, (Address("172.17.0.1", 16),), role="ignore"),
    )


def _hcas() -> tuple[Hca, ...]:
    return (
        Hca("rocep1s0f0", 1, "ACTIVE", "LinkUp", 200.0, "enp1s0f0np0", "Ethernet", 3),
        Hca("roceP2p1s0f0", 1, "ACTIVE", "LinkUp", 200.0, "enP2p1s0f0np0", "Ethernet", 3),
        Hca("rocep1s0f1", 1, "DOWN", "Disabled", 40.0, "enp1s0f1np1", "Ethernet"),
        Hca("roceP2p1s0f1", 1, "DOWN", "Disabled", 40.0, "enP2p1s0f1np1", "Ethernet"),
    )


def spark(
    node: str,
    octet: int,
    *,
    used_gib: float,
    management: str | None = None,
    held: tuple[Container, ...] = (),
    units: tuple[Unit, ...] = (),
    listeners: tuple[Listener, ...] = (),
) -> Sheet:
    """A Spark with the model and the image, `used_gib` of its memory in use."""
    available = TOTAL - int(used_gib * GIB)
    return Sheet(
        node=node,
        taken_at=TAKEN_AT,
        machine=Machine(
            node,
            "NVIDIA DGX Spark",
            "aarch64",
            "Ubuntu 24.04.3 LTS",
            "6.14.0-1015-nvidia",
            90000.0,
            f"boot-of-{node}",
            TAKEN_AT + 0.2,
            "none",
            "aurora",
            1000,
            "/home/aurora",
            "/bin/bash",
        ),
        memory=Memory(TOTAL, available - 2 * GIB, available, 2 * GIB, 0, 0, 0),
        gpus=Gpus("580.95.05", "13.0", (Gpu(0, "NVIDIA GB10", unified=True),)),
        disks=(Disk("/", "/dev/nvme0n1p2", "ext4", 3_900_000_000_000, 400_000_000_000, 3_300_000_000_000),),
        docker=Docker(True, "28.3.3", "28.3.3", ("nvidia", "runc")),
        containers=held,
        images=(
            Image(f"{IMAGE}:latest", IMAGE_ID, None, "arm64", 26_000_000_000),
            Image("vllm-node:latest", "sha256:" + "a" * 64, None, "arm64", 26_200_000_000),
            Image(f"{SGLANG_IMAGE}", "sha256:" + "5" * 64, None, "arm64", 24_100_000_000),
            Image(
                LLAMACPP_IMAGE, "sha256:" + "1" * 64, None, "arm64", 3_900_000_000, entrypoint=("/app/llama-server",)
            ),
        ),
        units=units,
        interfaces=_interfaces(octet, management),
        fabric=_hcas(),
        listeners=(Listener("0.0.0.0", 22), *listeners),
        models=(MODEL, SMALL, GGUF),
        software=(
            Software(f"image:{IMAGE}", {"vllm": "0.17.1rc1", "ray": "2.49.0", "torch": "2.9.1"}, "12.1a", IMAGE_ID),
            Software(f"image:{SGLANG_IMAGE}", {"sglang": "0.5.9", "torch": "2.9.1"}, "12.1a", "sha256:" + "5" * 64),
        ),
        privileges=Privileges("all", True, True, True),
        internet=management is not None,
    )


OLD_STACK = tuple(
    Container(
        name,
        f"id-{name}",
        "vllm-node:latest",
        "sha256:" + "a" * 64,
        "running",
        "Up 2 days",
        None,
        None,
        0,
        "no",
        "2026-07-01T00:00:00Z",
        pid,
        {},
        (),
        int(gib * GIB),
    )
    for name, pid, gib in (("vllm_node", 4001, 80.0), ("vllm_embeddings", 4002, 9.6), ("reranker", 4003, 8.5))
)
OLD_UNITS = (
    Unit(
        "vllm-cluster.service",
        "GLM",
        "loaded",
        "active",
        "running",
        "enabled",
        ("vllm_node",),
        "/usr/bin/docker run --rm --name vllm_node vllm-node",
        3001,
    ),
    Unit(
        "vllm-proxy.service",
        "Proxy",
        "loaded",
        "active",
        "running",
        "enabled",
        (),
        "/usr/bin/python3 /opt/vllm/proxy.py",
        3002,
    ),
    Unit(
        "vllm-embeddings.service",
        "Embeddings",
        "loaded",
        "active",
        "running",
        "enabled",
        ("vllm_embeddings",),
        "/usr/bin/docker run --rm --name vllm_embeddings vllm-node",
        3003,
    ),
    Unit(
        "vllm-reranker.service",
        "Reranker",
        "loaded",
        "active",
        "running",
        "enabled",
        ("reranker",),
        "/usr/bin/docker run --rm --name reranker vllm-node",
        3004,
    ),
)


def head(*, busy: bool = True) -> Sheet:
    """spark-1a32: 104 of 119.7 GiB in use by the old stack, or (not busy) cleared."""
    if not busy:
        return spark("spark-1a32", 12, used_gib=5.9, management="10.1.230.180")
    return spark(
        "spark-1a32",
        12,
        used_gib=104.0,
        management="10.1.230.180",
        held=OLD_STACK,
        units=OLD_UNITS,
        listeners=(Listener("0.0.0.0", 8000, 4001, "vllm"), Listener("0.0.0.0", 9000, 3002, "python3")),
    )


def second() -> Sheet:
    """spark-5be3: 17.6 GiB in use, one port Down / Disabled, no internet."""
    return spark("spark-5be3", 13, used_gib=17.6)


def pair(*, busy: bool = True) -> dict[str, Sheet]:
    return {sheet.node: sheet for sheet in (head(busy=busy), second())}


def servers(*gpus: int) -> dict[str, Sheet]:
    """The pair as machines with so many GPUs each, 80 GB of their own per GPU."""
    made = pair(busy=False)
    for (node, sheet), count in zip(list(made.items()), gpus, strict=True):
        own = tuple(Gpu(at, "NVIDIA H100 80GB HBM3", memory_total_mib=81559, memory_used_mib=0) for at in range(count))
        made[node] = replace(sheet, gpus=Gpus("580.95.05", "13.0", own))
    return made


def qwen35(**changes: Any) -> Spec:
    """The story's deployment."""
    made = Spec(
        name="qwen3.5-122b",
        model="Qwen/Qwen3.5-122B-A10B-FP8",
        model_path=MODEL_PATH,
        nodes=("spark-1a32", "spark-5be3"),
        image=IMAGE,
        container="vllm-qwen35",
        port=30000,
        tensor_parallel=2,
        gpu_memory_utilization=0.85,
        max_model_len=131072,
        reasoning_parser="qwen3",
        tool_call_parser="qwen3_coder",
    )
    return replace(made, **changes)


CONSENT = (
    *(Clear("spark-1a32", "unit", unit.name) for unit in OLD_UNITS),
    *(Clear("spark-1a32", "container", one.name) for one in OLD_STACK),
)
GIVEN = Given(deployment=7, revision=3)
CONSENTED = Given(deployment=7, revision=3, clear=CONSENT)

TINY: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}


def plain(node: str = "box") -> Sheet:
    """A Linux machine without GPU, Docker or fabric, with the tiny model: what real vLLM on the CPU runs on."""
    return Sheet(
        node=node,
        taken_at=TAKEN_AT,
        machine=Machine(
            node,
            None,
            "x86_64",
            "Debian GNU/Linux 12",
            "6.1.0",
            1000.0,
            "boot-of-box",
            TAKEN_AT,
            "kvm",
            "root",
            0,
            "/root",
            "/bin/sh",
        ),
        memory=Memory(16 * GIB, 10 * GIB, 12 * GIB, 2 * GIB, 0, 0, 0),
        gpus=Gpus(),
        disks=(Disk("/", "/dev/vda1", "ext4", 100 * GIB, 50 * GIB, 50 * GIB),),
        docker=Docker(False, problem="docker_missing"),
        containers=(),
        images=(),
        units=(),
        interfaces=(Interface("eth0", True, 1500, None, True, (Address("10.0.0.5", 24),)),),
        fabric=(),
        listeners=(),
        models=(ModelFolder("/models/tiny-qwen3", 12_000_000, 4, 4, True, TINY, 11_600_000),),
        privileges=Privileges("all", False),
    )


def tiny(**changes: Any) -> Spec:
    """Real vLLM on the CPU as a plain process."""
    made = Spec(
        name="tiny",
        model="tiny/qwen3",
        model_path="/models/tiny-qwen3",
        nodes=("box",),
        runtime="process",
        cluster="single",
        executable="/opt/venv/bin/vllm",
        served_model_name="tiny",
        port=31000,
        api_host="127.0.0.1",
        max_model_len=512,
        arguments=("--enforce-eager", "--kv-cache-memory-bytes", "33554432", "--max-num-seqs", "4"),
        environment=(("VLLM_NO_USAGE_STATS", "1"),),
    )
    return replace(made, **changes)


def sglang(**changes: Any) -> Spec:
    """The story's model on SGLang, over both Sparks."""
    made = replace(
        qwen35(),
        engine="sglang",
        cluster="native",
        image=SGLANG_IMAGE,
        container="sglang-qwen35",
        attention_backend="triton",
        gpu_memory_utilization=0.8,
    )
    return replace(made, **changes)


BF16_PATH = "/models/Qwen3.5-122B-A10B"
BF16 = replace(
    MODEL, path=BF16_PATH, bytes=244_600_000_000, weights_bytes=244_500_000_000, shards=52, shards_expected=52
)


def rtx() -> dict[str, Sheet]:
    """The x86 server of the story: four RTX PRO 6000 with memory of their own, in an LXC container without Docker, SGLang in a
    virtual environment."""
    box = plain("pro6000")
    assert box.machine
    gpus = tuple(
        Gpu(at, "NVIDIA RTX PRO 6000 Blackwell Server Edition", memory_total_mib=97887, memory_used_mib=0)
        for at in range(4)
    )
    made = replace(
        box,
        machine=replace(box.machine, os="Ubuntu 24.04.3 LTS", virtualization="lxc"),
        memory=Memory(256 * GIB, 200 * GIB, 240 * GIB, 40 * GIB, 0, 0, 0),
        gpus=Gpus("580.95.05", "13.0", gpus),
        models=(BF16, GGUF),
        software=(Software("venv:/opt/sglang", {"sglang": "0.5.9", "torch": "2.9.1", "transformers": "5.0.0"}),),
    )
    return {"pro6000": made}


MTP = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1")


def rtx_sglang(**changes: Any) -> Spec:
    """SGLang as a plain process of a virtual environment, with the model's own draft head (MTP)."""
    made = Spec(
        name="qwen3.5-122b-bf16",
        model="Qwen/Qwen3.5-122B-A10B",
        model_path=BF16_PATH,
        nodes=("pro6000",),
        engine="sglang",
        runtime="process",
        cluster="single",
        executable="/opt/sglang/bin/python3",
        tensor_parallel=4,
        gpu_memory_utilization=0.85,
        max_model_len=131072,
        attention_backend="triton",
        reasoning_parser="qwen3",
        tool_call_parser="qwen3_coder",
        arguments=(*MTP, "--speculative-num-draft-tokens", "4"),
    )
    return replace(made, **changes)


def gguf(**changes: Any) -> Spec:
    """llama.cpp's own image on one Spark."""
    made = Spec(
        name="qwen3-30b",
        model="Qwen/Qwen3-30B-A3B",
        model_path=GGUF_PATH,
        nodes=("spark-5be3",),
        engine="llamacpp",
        cluster="single",
        image=LLAMACPP_IMAGE,
        port=8080,
        max_model_len=65536,
        arguments=("--parallel", "4"),
    )
    return replace(made, **changes)
