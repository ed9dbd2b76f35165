"""The start scene: two Sparks as the story has them. Names, addresses, versions and sizes, no behaviour."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

GIB = 1 << 30
MEM_TOTAL_KB = 125_493_248  # 119.68 GiB
KERNEL = "6.14.0-1015-nvidia"
DRIVER = "580.95.05"
MODEL = "Qwen3.5-122B-A10B-FP8"
MODEL_BYTES = 119_000_000_000
OLD_IMAGE, NEW_IMAGE = "vllm-node:latest", "hellohal2064/vllm-qwen3.5-gb10:latest"


@dataclass(frozen=True)
class Software:
    """What is installed in an image (or on the host)."""

    vllm: str = ""
    torch: str = ""
    transformers: str = ""
    ray: str = ""
    python: str = "3.12.3"
    arch_list: str = ""
    nccl: str = ""
    other: tuple[tuple[str, str], ...] = ()

    def packages(self) -> dict[str, str]:
        named = {"vllm": self.vllm, "torch": self.torch, "transformers": self.transformers, "ray": self.ray}
        return {name: version for name, version in named.items() if version} | dict(self.other)


@dataclass(frozen=True)
class ImageSeed:
    repository: str
    tag: str
    size_bytes: int
    created: str
    software: Software = field(default_factory=Software)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ("/bin/bash",)
    environment: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.repository}:{self.tag}".encode()).hexdigest()

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(f"digest {self.repository}:{self.tag}".encode()).hexdigest()


COMMON = (
    ("flashinfer-python", "0.6.1"),
    ("huggingface-hub", "1.4.1"),
    ("numpy", "2.2.6"),
    ("safetensors", "0.7.0"),
    ("triton", "3.5.1"),
    ("fastapi", "0.128.0"),
    ("uvicorn", "0.40.0"),
    ("xgrammar", "0.1.29"),
)
OLD = Software("0.14.0rc2.dev262+g1234abcd", "2.9.1+cu130", "5.0.0rc3", "2.53.0", "3.12.3", "12.1a", "2.28.9", COMMON)
NEW = Software("0.17.1rc1.dev14+gb10", "2.10.0+cu130", "5.3.0", "2.54.0", "3.12.3", "12.1a", "2.28.9", COMMON)
SGLANG = Software(
    torch="2.9.1+cu130",
    transformers="5.2.0",
    arch_list="12.1a",
    nccl="2.28.3",
    other=(("sglang", "0.5.9"), ("sgl-kernel", "0.3.21"), *COMMON),
)
ENGINE_ENVIRONMENT = (
    "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "TORCH_CUDA_ARCH_LIST=12.1a",
    "CUDA_VERSION=13.0.2",
    "FLASHINFER_CUDA_ARCH_LIST=12.1a",
)
IMAGES = (
    ImageSeed(
        "vllm-node",
        "latest",
        26_200_000_000,
        "2026-01-19T17:02:41.118290441Z",
        OLD,
        (),
        ("/bin/bash",),
        ENGINE_ENVIRONMENT,
    ),
    ImageSeed(
        "hellohal2064/vllm-qwen3.5-gb10",
        "latest",
        21_700_000_000,
        "2026-03-11T09:41:12.50211737Z",
        NEW,
        (),
        ("/bin/bash",),
        (*ENGINE_ENVIRONMENT, "VLLM_VERSION=0.17.1rc1"),
    ),
    ImageSeed(
        "lmsysorg/sglang",
        "spark",
        24_100_000_000,
        "2026-03-02T11:20:05.402117311Z",
        SGLANG,
        (),
        ("/bin/bash",),
        (*ENGINE_ENVIRONMENT, "SGLANG_VERSION=0.5.9"),
    ),
    ImageSeed(
        "ghcr.io/ggml-org/llama.cpp",
        "server-cuda",
        3_900_000_000,
        "2026-02-27T04:12:48.118290441Z",
        Software(),
        ("/app/llama-server",),
        (),
        ("LLAMA_ARG_HOST=0.0.0.0",),
    ),
)


@dataclass(frozen=True)
class Card:
    """One network interface; an HCA name makes it a fabric port."""

    name: str
    mac: str
    address: str = ""
    prefix: int = 24
    mtu: int = 1500
    up: bool = True
    speed: int = 10000
    hca: str = ""
    disabled: bool = False
    driver: str = "r8127"
    dynamic: bool = False
    cable: bool = False


@dataclass(frozen=True)
class UnitSeed:
    name: str
    description: str
    exec_start: str
    container: str = ""
    port: int = 0
    served: str = ""
    gib: float = 0.0
    load_s: float = 60.0
    arguments: tuple[str, ...] = ()
    program: str = ""


@dataclass(frozen=True)
class NodeSeed:
    name: str
    cards: tuple[Card, ...]
    base_gib: float  # what the system itself holds
    cache_gib: float
    internet: bool
    units: tuple[UnitSeed, ...]
    serial: str
    uptime_s: float
    total_kb: int = MEM_TOTAL_KB
    kernel: str = KERNEL
    arch: str = "aarch64"
    virtualization: str = "none"
    product: str = "NVIDIA_DGX_Spark"
    gpus: int = 1
    gpu_name: str = "NVIDIA GB10"
    gpu_mib: int = 0  # of each GPU's own memory; 0: they share the machine's
    compute: str = "12.1"
    without: tuple[str, ...] = ()  # programs that it has not

    @property
    def spark(self) -> bool:
        return self.product == "NVIDIA_DGX_Spark"


def cards(number: int, management: str, host: int, *, port_one_disabled: bool) -> tuple[Card, ...]:
    mac = f"4c:bb:47:5e:1{number}"
    return (
        Card("enP7s7", f"{mac}:01", management, 24, 1500, bool(management), 10000, dynamic=True),
        Card(
            "enp1s0f0np0",
            f"{mac}:10",
            f"192.168.200.{host}",
            24,
            9000,
            True,
            200000,
            "rocep1s0f0",
            driver="mlx5_core",
            cable=True,
        ),
        Card("enp1s0f1np1", f"{mac}:11", "", 24, 1500, False, 200000, "rocep1s0f1", port_one_disabled, "mlx5_core"),
        Card(
            "enP2p1s0f0np0",
            f"{mac}:14",
            f"192.168.201.{host}",
            24,
            9000,
            True,
            200000,
            "roceP2p1s0f0",
            driver="mlx5_core",
            cable=True,
        ),
        Card("enP2p1s0f1np1", f"{mac}:15", "", 24, 1500, False, 200000, "roceP2p1s0f1", port_one_disabled, "mlx5_core"),
        Card("wlP9s9", f"{mac}:20", "", 24, 1500, False, 0, driver="mt7925e"),
    )


DOCKER_RUN = (
    "/usr/bin/docker run --rm --name {0} --gpus all --network host --ipc host -v /models:/models vllm-node "
    "vllm serve /models/{1} --served-model-name {1} --host 0.0.0.0 --port {2} --gpu-memory-utilization {3} --max-model-len 8192 --runner pooling"
)
GLM = (
    UnitSeed(
        "vllm-cluster.service",
        "vLLM cluster (GLM-4.7-Flash chat)",
        "/opt/vllm/run-cluster.sh",
        "vllm_node",
        8000,
        "GLM-4.7-Flash",
        67.0,
        240,
        (
            "vllm",
            "serve",
            "/models/GLM-4.7-Flash",
            "--served-model-name",
            "GLM-4.7-Flash",
            "--host",
            "0.0.0.0",
            "--port",
            "8000",
            "--gpu-memory-utilization",
            "0.55",
            "--max-model-len",
            "131072",
            "--tool-call-parser",
            "glm47",
            "--reasoning-parser",
            "glm45",
        ),
    ),
    UnitSeed(
        "vllm-proxy.service",
        "Proxy in front of the vLLM services",
        "/usr/bin/python3 /opt/vllm/proxy.py --listen 8080",
        "",
        8080,
        "",
        0.3,
        2,
        (),
        "python3",
    ),
    UnitSeed(
        "vllm-embeddings.service",
        "vLLM embeddings (Qwen3-Embedding-4B)",
        DOCKER_RUN.format("vllm_embeddings", "Qwen3-Embedding-4B", 8001, "0.12"),
        "vllm_embeddings",
        8001,
        "Qwen3-Embedding-4B",
        15.5,
        90,
        (
            "vllm",
            "serve",
            "/models/Qwen3-Embedding-4B",
            "--served-model-name",
            "Qwen3-Embedding-4B",
            "--host",
            "0.0.0.0",
            "--port",
            "8001",
            "--gpu-memory-utilization",
            "0.12",
            "--max-model-len",
            "8192",
            "--runner",
            "pooling",
        ),
    ),
    UnitSeed(
        "vllm-reranker.service",
        "vLLM reranker (Qwen3-Reranker-4B)",
        DOCKER_RUN.format("reranker", "Qwen3-Reranker-4B", 8002, "0.11"),
        "reranker",
        8002,
        "Qwen3-Reranker-4B",
        13.4,
        90,
        (
            "vllm",
            "serve",
            "/models/Qwen3-Reranker-4B",
            "--served-model-name",
            "Qwen3-Reranker-4B",
            "--host",
            "0.0.0.0",
            "--port",
            "8002",
            "--gpu-memory-utilization",
            "0.11",
            "--max-model-len",
            "8192",
            "--runner",
            "pooling",
        ),
    ),
)

HEAD, SECOND = "spark-1a32", "spark-5be3"
NODES = (
    NodeSeed(
        HEAD, cards(1, "10.1.230.180", 12, port_one_disabled=False), 7.8, 11.5, True, GLM, "1983924010072", 1_981_000.0
    ),
    NodeSeed(SECOND, cards(2, "", 13, port_one_disabled=True), 17.55, 31.6, False, (), "1983924010118", 1_214_500.0),
)


def bare(seed: NodeSeed) -> tuple[Card, ...]:
    """A Spark as it comes out of its box: its RoCE port down and disabled, the twin with an address that it gave itself."""
    made = []
    for card in seed.cards:
        if card.name == "enp1s0f0np0":
            card = replace(card, address="", mtu=1500, up=False, disabled=True)
        elif card.name == "enP2p1s0f0np0":
            card = replace(card, address="169.254.77.13", prefix=16, mtu=1500)
        elif card.name == "enP7s7":
            card = replace(card, address=card.address or "10.1.230.181", up=True)
        made.append(card)
    return tuple(made)


FABRIC_TOOLS = ("ibdev2netdev", "ibstat", "ibv_devices", "ibv_devinfo", "rdma", "show_gids")
PRO6000 = NodeSeed(
    "pro6000",
    (Card("eth0", "bc:24:11:5e:31:01", "10.1.230.190", speed=10000, driver="veth", dynamic=True),),
    14.0,
    22.0,
    True,
    (),
    "S511447X5A01234",
    2_811_000.0,
    total_kb=528_000_000,
    kernel="6.8.12-15-pve",
    arch="x86_64",
    virtualization="lxc",
    product="AS -4125GS-TNRT",
    gpus=4,
    gpu_name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    gpu_mib=97_887,
    compute="12.0",
    without=("docker", "netplan", "nmcli", "dmidecode", *FABRIC_TOOLS),
)  # the third machine of the story, started only when asked for
BF16, BF16_BYTES = "Qwen3.5-122B-A10B", 244_500_000_000
GGUF, GGUF_BYTES = "Qwen3-30B-A3B-GGUF/Qwen3-30B-A3B-Q4_K_M.gguf", 18_600_000_000

UNROUTABLE = {"10.1.230.190": "pro6000"}  # third machine of the story: No route to host
KNOWN_NAMES = {"spark-1a32": "192.168.200.12", "spark-5be3": "192.168.200.13", "pro6000": "10.1.230.190"}

MODEL_CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "image_token_id": 248056,
    "tie_word_embeddings": False,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 3072,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
        "full_attention_interval": 4,
        "layer_types": [("full_attention" if layer % 4 == 3 else "linear_attention") for layer in range(48)],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
    },
    "transformers_version": "5.2.0.dev0",
}
GLM_CONFIG = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "hidden_size": 2048,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 202752,
}
SMALL_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
