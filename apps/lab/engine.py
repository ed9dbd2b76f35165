"""The pretend engine: what `vllm serve` of 0.17.1 checks, prints, takes and serves, at its pace divided by the factor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

from apps.lab import engine_http, ray, runtime
from apps.lab.call import Call
from apps.lab.ray import RayListener, log_stamp
from apps.lab.world import Container, Node, Process, RayNode

FLAGS_WITHOUT_VALUE = {
    "--trust-remote-code",
    "--enforce-eager",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--enable-chunked-prefill",
    "--enable-auto-tool-choice",
    "--async-scheduling",
    "--headless",
    "--language-model-only",
    "--disable-log-stats",
    "--enable-log-requests",
    "--disable-log-requests",
    "--enable-expert-parallel",
    "--disable-uvicorn-access-log",
    "--enable-reasoning",
    "--disable-custom-all-reduce",
    "--skip-mm-profiling",
    "--no-enable-log-requests",
}
FLAGS_WITH_VALUE = {
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--tensor-parallel-size",
    "-tp",
    "--pipeline-parallel-size",
    "-pp",
    "--data-parallel-size",
    "--gpu-memory-utilization",
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--distributed-executor-backend",
    "--reasoning-parser",
    "--tool-call-parser",
    "--attention-backend",
    "--kv-cache-dtype",
    "--dtype",
    "--load-format",
    "--quantization",
    "--tokenizer",
    "--chat-template",
    "--nnodes",
    "-n",
    "--node-rank",
    "-r",
    "--master-addr",
    "--master-port",
    "--speculative-config",
    "--compilation-config",
    "--limit-mm-per-prompt",
    "--api-key",
    "--seed",
    "--kv-cache-memory-bytes",
    "--block-size",
    "--moe-backend",
    "--generation-config",
    "--override-generation-config",
    "--hf-overrides",
    "--tokenizer-mode",
    "--safetensors-load-strategy",
    "--runner",
    "--revision",
    "--download-dir",
    "--mm-encoder-tp-mode",
    "--uvicorn-log-level",
    "--root-path",
    "--swap-space",
    "--cpu-offload-gb",
    "--task",
    "--max-seq-len-to-capture",
    "--hf-config-path",
}
LONG = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-n": "--nnodes", "-r": "--node-rank"}
PHASES = ("starting", "nccl", "loading", "compiling", "graphs", "ready")


class BadArguments(Exception):
    pass


def parse(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The model and the options of `vllm serve`. Raises BadArguments in argparse's words."""
    model = ""
    options: dict[str, Any] = {}
    unknown: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        name = name.replace("_", "-")
        if name in FLAGS_WITHOUT_VALUE:
            options[name] = True
        elif name in FLAGS_WITH_VALUE:
            if not equals:
                if not rest:
                    raise BadArguments(f"argument {name}: expected one argument")
                value = rest.pop(0)
            options[LONG.get(name, name)] = value
        elif word.startswith("-"):
            unknown.append(word)
            if rest and not rest[0].startswith("-"):
                unknown.append(rest.pop(0))
        elif not model:
            model = word
        else:
            unknown.append(word)
    if unknown:
        raise BadArguments(f"unrecognized arguments: {' '.join(unknown)}")
    for name in ("--port", "--tensor-parallel-size", "--max-num-seqs", "--nnodes", "--node-rank"):
        if name in options and not str(options[name]).isdigit():
            raise BadArguments(
                f"argument {name}{'/-tp' if 'tensor' in name else ''}: invalid int value: '{options[name]}'"
            )
    if "--gpu-memory-utilization" in options:
        try:
            float(options["--gpu-memory-utilization"])
        except ValueError:
            raise BadArguments(
                f"argument --gpu-memory-utilization: invalid float value: '{options['--gpu-memory-utilization']}'"
            ) from None
    return str(options.get("--model") or model), options


class Died(Exception):
    """The engine ends: `lines` are its last words, from the engine core."""

    def __init__(self, *lines: str, code: int = 1, who: str = "") -> None:
        super().__init__(lines[-1] if lines else "")
        self.lines, self.code, self.who = lines, code, who


@dataclass
class Rank:
    number: int
    node: Node
    container: Container
    pid: int = 0
    process: Process | None = None
    gib: float = 0.0
    prefix: str = ""


@dataclass
class Engine:
    node: Node
    container: Container
    call: Call
    model: str
    options: dict[str, Any]
    ready_at_once: bool = False
    ranks: list[Rank] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    ready: bool = False
    hung: bool = False
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    death: Died | None = None
    created: float = field(default_factory=time.time)
    config: dict[str, Any] = field(default_factory=dict)
    active: int = 0
    counters: dict[str, float] = field(default_factory=lambda: {"prompt": 0.0, "generated": 0.0, "requests": 0.0})
    kv_tokens: int = 0
    max_len: int = 0
    api_pid: int = 1
    core_pid: int = 0

    # names and figures

    @property
    def served(self) -> list[str]:
        return str(self.options.get("--served-model-name") or self.model).split(",")

    @property
    def port(self) -> int:
        return int(self.options.get("--port", 8000))

    @property
    def tensor_parallel(self) -> int:
        return int(self.options.get("--tensor-parallel-size", 1))

    @property
    def utilization(self) -> float:
        return float(self.options.get("--gpu-memory-utilization", 0.9))

    @property
    def backend(self) -> str:
        return str(
            self.options.get(
                "--distributed-executor-backend",
                "mp" if self.tensor_parallel == 1 or "--nnodes" in self.options else "ray",
            )
        )

    @property
    def world(self) -> Any:
        return self.node.world

    @property
    def core(self) -> str:
        return f"(EngineCore_DP0 pid={self.core_pid}) "

    async def api(self, text: str) -> None:
        await self.call.err(f"(APIServer pid={self.api_pid}) {text}\n")

    async def info(self, where: str, text: str, *, prefix: str | None = None, level: str = "INFO") -> None:
        await self.call.err(
            f"{self.core if prefix is None else prefix}{level} {log_stamp(self.node)} [{where}] {text}\n"
        )

    async def pause(self, seconds: float) -> None:
        if not self.ready_at_once:
            await self.world.pause(seconds)

    async def phase(self, name: str) -> None:
        """Play the faults that are set on this phase."""
        for rank in self.ranks or [Rank(0, self.node, self.container)]:
            wanted = rank.node.faults.get("engine-dies")
            if wanted is not None and (wanted or "loading") == name:
                raise Died(*dying(name, rank), who=rank.prefix)
            wanted = rank.node.faults.get("engine-hangs")
            if wanted is not None and (wanted or "loading") == name:
                self.hung = True
                while rank.node.faults.get("engine-hangs") is not None:
                    await asyncio.sleep(0.1)
                self.hung = False

    # the course of a start

    async def run(self) -> None:
        self.container.engines.append(self)
        # the API server's and the engine core's processes
        api = await runtime.puppet(
            self.node,
            f"/usr/bin/python3 /usr/local/bin/vllm serve {self.model} --port {self.port}"[:200],
            container=self.container.name,
        )
        core = await runtime.puppet(self.node, "VLLM::EngineCore", container=self.container.name)
        self.processes += [api, core]
        native = "--nnodes" in self.options
        self.api_pid = (
            1
            if self.container.pid and self.call.sink is not None and self.call.pid == self.container.pid
            else api.pid % 100000
        )
        self.core_pid = core.pid % 100000
        api.on_death = lambda: self.die(Died(code=137))  # whoever is killed says nothing more
        core.on_death = lambda: self.die(
            Died(
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}"
            )
        )
        await self.banner()
        await self.checks()
        await self.phase("starting")
        await self.pause(9)
        await self.info(
            "core.py:101",
            f"Initializing a V1 LLM engine (v{self.version}) with config: model='{self.model}', speculative_config=None, tokenizer='{self.model}', skip_tokenizer_init=False, "
            f"tokenizer_mode=auto, revision=None, dtype=torch.bfloat16, max_seq_len={self.max_len}, download_dir=None, load_format=auto, tensor_parallel_size={self.tensor_parallel}, "
            f"pipeline_parallel_size=1, data_parallel_size=1, quantization={'fp8' if 'quantization_config' in self.config else None}, enforce_eager={bool(self.options.get('--enforce-eager'))}, "
            f"kv_cache_dtype={self.options.get('--kv-cache-dtype', 'auto')}, device_config=cuda, served_model_name={self.served[0]}",
        )
        await self.place(native)
        await self.reach()
        await self.load()
        await self.compile()
        await self.cache()
        await self.graphs()
        await self.open()

    @property
    def version(self) -> str:
        return self.container.image.software.vllm.split("+")[0].split(".dev")[0]

    async def banner(self) -> None:
        logo = (
            "",
            "       █     █     █▄   ▄█",
            f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {self.version}",
            f"  █▄█▀ █     █     █     █  model   {self.model}",
            "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
            "",
        )
        await self.pause(6)
        for line in logo:
            await self.api(f"INFO {log_stamp(self.node)} [utils.py:297] {line}")
        shown: dict[str, Any] = {"model_tag": self.model, "model": self.model}
        for name, value in self.options.items():
            key = name.lstrip("-").replace("-", "_")
            if key == "served_model_name" or key == "api_key":
                value = [value]
            elif isinstance(value, str) and re.fullmatch(r"\d+", value):
                value = int(value)
            elif isinstance(value, str) and re.fullmatch(r"\d*\.\d+", value):
                value = float(value)
            shown[key] = value
        await self.api(f"INFO {log_stamp(self.node)} [utils.py:233] non-default args: {shown!r}")

    async def checks(self) -> None:
        """What a real one refuses before it starts."""
        machine = self.node.machine
        assert machine is not None
        folder = machine.inside(self.host_path(self.model)) if self.model.startswith("/") else None
        if folder is None or not folder.is_dir():
            if self.model.startswith("/"):
                raise Died(
                    f"huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{self.model}'. Use `repo_type` argument if needed.",
                    f"ValueError: Invalid repository ID or local directory specified: '{self.model}'.\nPlease verify the following requirements:\n1. Provide a valid Hugging Face repository ID.\n"
                    "2. Specify a local directory that contains a recognized configuration file.\n   - For Hugging Face models: ensure the presence of a 'config.json'.",
                    who="api",
                )
            raise Died(
                "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.\nCheck your internet connection or see how to run the library in offline mode at "
                "'https://huggingface.co/docs/transformers/installation#offline-mode'.",
                who="api",
            )
        try:
            self.config = json.loads((folder / "config.json").read_text())
        except (OSError, ValueError):
            raise Died(
                f"ValueError: Invalid repository ID or local directory specified: '{self.model}'.\nPlease verify the following requirements:\n2. Specify a local directory that contains a recognized configuration file.\n   - For Hugging Face models: ensure the presence of a 'config.json'.",
                who="api",
            ) from None
        inner = self.config.get("text_config", self.config)
        self.max_len = (
            int(self.options.get("--max-model-len") or inner.get("max_position_embeddings", 32768))
            if str(self.options.get("--max-model-len", "1")).isdigit()
            else int(inner.get("max_position_embeddings", 32768))
        )
        architecture = self.config.get("architectures", ["?"])[0]
        if architecture.startswith("Qwen3_5") and self.version.startswith(("0.14", "0.13", "0.12")):
            raise Died(
                f"ValueError: The checkpoint you are trying to load has model type `{self.config['model_type']}` but Transformers does not recognize this architecture. This could be because of an issue with the checkpoint, "
                "or because your version of Transformers is out of date.",
                who="api",
            )
        heads = int(inner.get("num_attention_heads", 32))
        if heads % self.tensor_parallel:
            raise Died(
                f"ValueError: Total number of attention heads ({heads}) must be divisible by tensor parallel size ({self.tensor_parallel}).",
                who="api",
            )
        if not self.ready_at_once:
            await self.api(f"INFO {log_stamp(self.node)} [model.py:549] Resolved architecture: {architecture}")
            await self.api(f"INFO {log_stamp(self.node)} [model.py:1678] Using max model len {self.max_len}")
        if str(self.options.get("--attention-backend", "")).lower() == "flashinfer" and "layer_types" in inner:
            raise Died(
                "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. Reason: ['block_size not supported']",
                who="core",
            )
        if self.port in self.node.listeners:
            raise Died(
                '  File "/usr/local/lib/python3.12/dist-packages/vllm/entrypoints/openai/api_server.py", line 1012, in create_server_socket',
                "    sock.bind(addr)",
                "OSError: [Errno 98] Address already in use",
                who="api",
            )
        wanted_shards = [path.name for path in folder.glob("*.safetensors")]
        index = folder / "model.safetensors.index.json"
        missing = []
        if index.exists():
            with contextlib.suppress(ValueError):
                missing = sorted(set(json.loads(index.read_text()).get("weight_map", {}).values()) - set(wanted_shards))
        self.missing = missing
        self.shards = len(wanted_shards)
        self.bytes = sum((folder / name).stat().st_size for name in wanted_shards)
        if not wanted_shards:
            raise Died(f"RuntimeError: Cannot find any model weights with `{self.model}`", who="core")

    def host_path(self, path: str) -> str:
        """Where a path inside the container lies on the node."""
        for source, target, _ in self.container.mounts:
            if path == target or path.startswith(target.rstrip("/") + "/"):
                return source.rstrip("/") + path[len(target.rstrip("/")) :]
        return path if not self.container.mounts or self.ready_at_once else "/nonexistent" + path

    async def place(self, native: bool) -> None:
        """Where the ranks go: this node, the Ray cluster's nodes, or the ones that native ranks came from."""
        if self.tensor_parallel == 1:
            self.ranks = [Rank(0, self.node, self.container)]
            return
        if native:
            await self.rendezvous()
            return
        if self.backend != "ray":
            raise Died(
                f"RuntimeError: World size ({self.tensor_parallel}) is larger than the number of available GPUs (1) in this node. If this is intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.\n"
                "- multiprocessing, set '--nnodes' appropriately.",
                who="core",
            )
        member = self.container.ray
        if member is None:
            await self.call.err(f"{ray.stamp(self.node)}\tINFO worker.py:2014 -- Started a local Ray instance.\n")
            cluster = [RayNode("0" * 56, self.node.addresses[0], self.node, self.container, head=True)]
        else:
            await self.call.err(
                f"{self.core}{ray.stamp(self.node)}\tINFO worker.py:1821 -- Connecting to existing Ray cluster at address: {member.cluster[0].address}:6379...\n"
            )
            await self.call.err(
                f"{self.core}{ray.stamp(self.node)}\tINFO worker.py:2003 -- Connected to Ray cluster. View the dashboard at http://127.0.0.1:8265 \n"
            )
            cluster = member.cluster
        mine = (
            self.call.environment.get("VLLM_HOST_IP")
            or self.container.environment.get("VLLM_HOST_IP")
            or (member.address if member else self.node.addresses[0])
        )
        waited = 10
        warned = False
        while len([m for m in cluster if m.gpus_used == 0]) < self.tensor_parallel or mine not in [
            m.address for m in cluster
        ]:
            if not warned and len(cluster) < self.tensor_parallel:
                warned = True
                await self.info(
                    "ray_utils.py:352",
                    f"Tensor parallel size ({self.tensor_parallel}) exceeds available GPUs ({len(cluster)}). This may result in Ray placement group allocation failures. Consider reducing tensor_parallel_size to "
                    f"{len(cluster)} or less, or ensure your Ray cluster has {self.tensor_parallel} GPUs available.",
                    level="WARNING",
                )
            others = "".join(", {'GPU': 1.0}" for _ in range(self.tensor_parallel - 1))
            await self.pause(waited)
            await self.info(
                "ray_utils.py:464",
                f"Waiting for creating a placement group of specs for {waited} seconds. specs=[{{'node:{mine}': 0.001, 'GPU': 1.0}}{others}]. Check `ray status` and `ray list nodes` to see if you have enough resources, "
                "and make sure the IP addresses used by ray cluster are the same as VLLM_HOST_IP environment variable specified in each node if you are running on a multi-node.",
            )
            waited *= 2
            if waited > 1800:
                raise Died(
                    "ValueError: Cannot provide a placement group of placement_group_specs within 1800 seconds. See `ray status` and `ray list nodes` to make sure the cluster has enough resources.",
                    who="core",
                )
        chosen = sorted(cluster, key=lambda m: not m.head)[: self.tensor_parallel]
        order = self.world.rank_order
        if order == "10" and len(chosen) == 2:
            chosen = [chosen[0], chosen[1]]
        for number, m in enumerate(chosen):
            m.gpus_used, m.placement = 1.0, 1.0
            self.ranks.append(Rank(number, m.node, m.container))
        await self.info("ray_env.py:66", "RAY_NON_CARRY_OVER_ENV_VARS from config: set()")
        await self.info(
            "ray_env.py:69",
            "Copying the following environment variables to workers: ['VLLM_HOST_IP', 'NCCL_SOCKET_IFNAME', 'NCCL_IB_HCA', 'NCCL_DEBUG']",
        )

    async def rendezvous(self) -> None:
        """--nnodes: rank 0 waits for the headless ranks."""
        wanted = int(self.options["--nnodes"])
        self.ranks = [Rank(0, self.node, self.container)]
        address, port = (
            str(self.options.get("--master-addr", "127.0.0.1")),
            int(self.options.get("--master-port", 29501)),
        )
        self.node.listeners[port] = RayListener(address, port, "vllm", self.processes[0].pid, None, self.container.id)
        waited = 0.0
        while len(self.ranks) < wanted:
            for node in self.world.nodes.values():
                for container in node.containers.values():
                    for other in container.engines:
                        if (
                            other is not self
                            and other.options.get("--headless")
                            and str(other.options.get("--master-addr")) == address
                            and int(other.options.get("--master-port", 29501)) == port
                            and all(rank.container is not container for rank in self.ranks)
                        ):
                            self.ranks.append(Rank(int(other.options.get("--node-rank", 1)), node, container))
                            other.ranks = self.ranks
            await self.pause(2)
            waited += 2
            if waited > 600:
                raise Died(
                    f"torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. {len(self.ranks)}/{wanted} clients joined.",
                    who="core",
                )
        self.ranks.sort(key=lambda rank: rank.number)

    async def reach(self) -> None:
        """Workers, memory check, NCCL."""
        for rank in self.ranks:
            title = (
                "ray::RayWorkerWrapper.execute_method"
                if self.backend == "ray" and self.tensor_parallel > 1
                else ("VLLM::Worker_TP" + str(rank.number) if self.tensor_parallel > 1 else "VLLM::EngineCore")
            )
            if self.tensor_parallel == 1:
                rank.process = self.processes[1]
            else:
                rank.process = await runtime.puppet(rank.node, title, container=rank.container.name)
                self.processes.append(rank.process)
                rank.process.on_death = lambda rank=rank: self.die(
                    Died(
                        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: RayWorkerWrapper\n"
                        f"\tpid: {rank.pid}\n\tip: {self.address(rank)}\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. "
                        "End of file. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly.",
                        who="core",
                    )
                )
            rank.pid = rank.process.pid % 100000
            local = rank.node is self.node
            if self.backend == "ray" and self.tensor_parallel > 1:
                rank.prefix = (
                    f"{self.core}(RayWorkerWrapper pid={rank.pid}{'' if local else f', ip={self.address(rank)}'}) "
                )
            elif self.tensor_parallel > 1:
                rank.prefix = f"(Worker_TP{rank.number} pid={rank.pid}) "
            else:
                rank.prefix = self.core
        await self.pause(8)
        for rank in self.ranks:
            kept = "lab.unit" in self.container.labels  # the old stack has always come up by itself, page cache or not
            free = rank.node.available_gib if kept else rank.node.engine_free_gib
            total = rank.node.total_gib
            if not self.ready_at_once and free < total * self.utilization:
                await self.trace(
                    rank,
                    '  File "/usr/local/lib/python3.12/dist-packages/vllm/v1/worker/gpu_worker.py", line 283, in init_device',
                    "    self.requested_memory = request_memory(init_snapshot, self.cache_config)",
                    "                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
                )
                raise Died(
                    f"ValueError: Free memory on device cuda:0 ({free:.2f}/{total:.2f} GiB) on startup is less than desired GPU memory utilization ({self.utilization:g}, {total * self.utilization:.2f} GiB). "
                    "Decrease GPU memory utilization or reduce GPU memory used by other processes.",
                    who=rank.prefix,
                )
            self.take(rank, 2.1)
        await self.phase("nccl")
        if self.tensor_parallel > 1:
            await self.nccl()
            for rank in self.ranks:
                await self.info(
                    "parallel_state.py:1735",
                    f"rank {rank.number} in world size {len(self.ranks)} is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank {rank.number}, EP rank N/A, EPLB rank N/A",
                    prefix=rank.prefix,
                )

    def address(self, rank: Rank) -> str:
        return rank.container.ray.address if rank.container.ray else rank.node.fabric

    async def trace(self, rank: Rank, *lines: str) -> None:
        for line in lines:
            await self.call.err(f"{rank.prefix}{line}\n")

    def environment_of(self, rank: Rank, name: str) -> str:
        own = rank.container.environment.get(name, "")
        return (
            self.call.environment.get(name, own)
            if rank.node is self.node
            else own or self.call.environment.get(name, "")
        )

    async def nccl(self) -> None:
        await self.info(
            "parallel_state.py:1588",
            f"world_size={len(self.ranks)} rank=0 local_rank=0 distributed_init_method=tcp://{self.address(self.ranks[0])}:41213 backend=nccl",
            prefix=self.ranks[0].prefix,
        )
        await self.info("pynccl.py:111", "vLLM is using nccl==2.28.9", prefix=self.ranks[0].prefix)
        await self.pause(3)
        for rank in self.ranks:
            interface, hcas = (
                self.environment_of(rank, "NCCL_SOCKET_IFNAME").lstrip("="),
                [
                    word.split(":")[0]
                    for word in self.environment_of(rank, "NCCL_IB_HCA").lstrip("=").split(",")
                    if word
                ],
            )
            cards = {card.name: card for card in rank.node.cards}
            names = [name for name in interface.split(",") if name] or [
                next(card.name for card in rank.node.cards if card.address)
            ]
            card = next(
                (cards[name] for name in names if name in cards and cards[name].up and cards[name].address), None
            )
            head = f"{rank.node.name}:{rank.pid}:{rank.pid} [0] NCCL "
            say = rank.prefix + head
            if card is None:
                await self.call.err(f"{say}WARN Bootstrap : no socket interface found\n")
                raise Died(
                    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, internal error - please report this issue to the NCCL developers, NCCL version 2.28.9",
                    "ncclInternalError: Internal check failed.",
                    "Last error:",
                    "Bootstrap : no socket interface found",
                    who=rank.prefix,
                )
            verbose = self.environment_of(rank, "NCCL_DEBUG").upper() in ("INFO", "TRACE")
            active = [
                c
                for c in rank.node.cards
                if c.hca and c.up and (not hcas or any(c.hca.startswith(name.lstrip("^")) for name in hcas))
            ]
            allowed = "/dev/infiniband" in " ".join(rank.container.devices) or rank.container.privileged
            rdma = bool(active) and allowed and self.environment_of(rank, "NCCL_IB_DISABLE") != "1"
            if verbose:
                listed = " ".join(f"[{n}]{c.hca}:1/RoCE" for n, c in enumerate(active))
                lines = [f"INFO NCCL_SOCKET_IFNAME set by environment to {interface}"] if interface else []
                lines += [
                    f"INFO Bootstrap: Using {card.name}:{card.address}<0>",
                    "INFO cudaDriverVersion 13000",
                    "INFO NCCL version 2.28.9+cuda13.0",
                    "INFO NET/Plugin: Loaded net plugin IBext_v11 (v11)"
                    if rdma
                    else "INFO NET/Plugin: Could not find: libnccl-net.so",
                ]
                if hcas:
                    lines.append(f"INFO NCCL_IB_HCA set to {','.join(hcas)}")
                if rdma:
                    lines += [
                        f"INFO NET/IBext_v11 : Using {listed} [RO]; OOB {card.name}:{card.address}<0>",
                        "INFO Initialized NET plugin IBext_v11",
                        "INFO Assigned NET plugin IBext_v11 to comm",
                        "INFO Using network IBext_v11",
                    ]
                else:
                    lines += [
                        "INFO NET/IB : No device found.",
                        f"INFO NET/Socket : Using [0]{card.name}:{card.address}<0>",
                        "INFO Initialized NET plugin Socket",
                        "INFO Using network Socket",
                    ]
                other = 1 - rank.number
                way = "NET/IBext_v11" if rdma else "NET/Socket"
                for channel in range(2 if len(active) > 1 or not rdma else 1):
                    lines.append(
                        f"INFO Channel {channel:02d}/0 : {other}[0] -> {rank.number}[0] [receive] via {way}/{channel if rdma else 0}"
                    )
                lines.append(
                    f"INFO ncclCommInitRank comm 0x26bafab0 rank {rank.number} nranks {len(self.ranks)} cudaDev 0 nvmlDev 0 busId f01000 commId 0x27da8d0f99f5ca84 - Init COMPLETE"
                )
                for line in lines:
                    await self.call.err(f"{say}{line}\n")

    def take(self, rank: Rank, gib: float) -> None:
        rank.gib = gib
        rank.node.claim(f"engine {id(self)} {rank.number}", gib, at_once=self.ready_at_once)
        if rank.process is not None:
            rank.process.gpu_mib = int(gib * 1024)

    async def load(self) -> None:
        if self.ready_at_once:
            for rank in self.ranks:
                self.take(rank, self.target(rank))
            return
        for rank in self.ranks:
            await self.info("gpu_model_runner.py:4281", f"Starting to load model {self.model}...", prefix=rank.prefix)
        await self.pause(5)
        await self.info(
            "cuda.py:274",
            "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN']",
            prefix=self.ranks[0].prefix,
        )
        began = self.world_time()
        if self.missing:
            await self.phase("loading")
            raise Died(
                f"ValueError: Following weights were not initialized from checkpoint: {{'{self.missing[0]}'}}",
                who=self.ranks[0].prefix,
            )
        bars = [asyncio.create_task(self.bar(rank)) for rank in self.ordered()]
        try:
            await asyncio.gather(*bars)
        finally:  # when one rank dies, the other must not go on taking memory
            for bar in bars:
                bar.cancel()
            await asyncio.gather(*bars, return_exceptions=True)
        weights = self.bytes / (1 << 30) / len(self.ranks)
        for rank in self.ranks:
            took = (self.world_time() - began) * self.world.factor
            await self.info(
                "default_loader.py:293", f"Loading weights took {took - 1.2:.2f} seconds", prefix=rank.prefix
            )
            await self.info(
                "gpu_model_runner.py:4364",
                f"Model loading took {weights * 1.012:.2f} GiB memory and {took:.6f} seconds",
                prefix=rank.prefix,
            )

    def ordered(self) -> list[Rank]:
        return list(reversed(self.ranks)) if self.world.rank_order == "10" else self.ranks

    def world_time(self) -> float:
        return time.monotonic()

    async def bar(self, rank: Rank) -> None:
        """vLLM's shard bar: a frame per shard, begun with a carriage return and ended with a newline as its bar format has it."""
        each = self.world.shard_s * (
            float(rank.node.faults.get("slow-rank") or 2) if "slow-rank" in rank.node.faults else 1.0
        )
        if len(self.ranks) > 1 and rank.number:
            each *= 1.015
        began = time.monotonic()
        gib = self.bytes / (1 << 30) / len(self.ranks)
        await self.frame(rank, 0, 0.0, 0.0)
        for number in range(1, self.shards + 1):
            due = began + number * each / self.world.factor
            wobble = 1 + 0.06 * (self.world.random.random() - 0.5)
            await asyncio.sleep(max(0.0, (due - time.monotonic()) * wobble))
            self.take(rank, 2.1 + gib * number / self.shards)
            rank.node.read_files(self.bytes / (1 << 30) / self.shards)
            if number == max(1, self.shards // 3):
                await self.phase("loading")
                if "oom" in rank.node.faults:
                    await self.out_of_memory(rank)
            elapsed = (time.monotonic() - began) * self.world.factor
            await self.frame(rank, number, elapsed, elapsed / number)

    async def frame(self, rank: Rank, number: int, elapsed: float, pace: float) -> None:
        total = self.shards

        def clock(seconds: float) -> str:
            minutes, rest = divmod(int(seconds), 60)
            hours, minutes = divmod(minutes, 60)
            return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"

        rate = "?it/s" if not number else f"{pace:5.2f}s/it" if pace >= 1 else f"{1 / max(pace, 1e-6):5.2f}it/s"
        left = "?" if not number else clock(pace * (total - number))
        text = f"Loading safetensors checkpoint shards: {number * 100 // total:3d}% Completed | {number}/{total} [{clock(elapsed)}<{left}, {rate}]"
        repeat = 2 if "duplicates" in self.node.faults else 1
        for _ in range(repeat):
            await self.call.err(f"{rank.prefix}\r{text}\n")
        if number == total:
            await self.call.err(f"{rank.prefix}\n")

    async def out_of_memory(self, rank: Rank) -> None:
        rank.node.kernel(
            "ray::RayWorkerW invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0"
        )
        rank.node.kernel(
            f"Out of memory: Killed process {rank.pid} (ray::RayWorkerW) total-vm:221184000kB, anon-rss:5242880kB, file-rss:1024kB, shmem-rss:0kB, UID:0 pgtables:41216kB oom_score_adj:0"
        )
        if rank.process is not None:
            rank.process.on_death = None
            runtime.end_process(rank.node, rank.process)
        raise Died(
            f"ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: RayWorkerWrapper\n\tpid: {rank.pid}\n\tip: {self.address(rank)}\nThe actor is dead because its worker process has died. "
            "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, "
            "(2) ray stop --force was called, or (3) the worker crashed unexpectedly.",
            who="core",
        )

    async def compile(self) -> None:
        if self.ready_at_once or self.options.get("--enforce-eager"):
            return
        await self.phase("compiling")
        for rank in self.ranks:
            await self.info(
                "backends.py:1052",
                f"Using cache directory: /root/.cache/vllm/torch_compile_cache/4b3d6a/rank_{rank.number}_0/backbone for vLLM's torch.compile",
                prefix=rank.prefix,
            )
        await self.pause(14)
        for rank in self.ranks:
            await self.info(
                "backends.py:1112",
                f"Dynamo bytecode transform time: {13.4 + rank.number * 0.3:.2f} s",
                prefix=rank.prefix,
            )
        await self.pause(32)
        for rank in self.ranks:
            await self.info(
                "backends.py:391",
                f"Compiling a graph for compile range (1, 8192) takes {31.2 + rank.number * 0.4:.2f} s",
                prefix=rank.prefix,
            )
            await self.info(
                "monitor.py:48", f"torch.compile took {45.3 + rank.number * 0.7:.2f} s in total", prefix=rank.prefix
            )

    def kv_gib(self) -> float:
        if "--kv-cache-memory-bytes" in self.options and str(self.options["--kv-cache-memory-bytes"]).isdigit():
            return int(self.options["--kv-cache-memory-bytes"]) / (1 << 30)
        weights = self.bytes / (1 << 30) / max(1, len(self.ranks)) * 1.012
        return float(self.node.total_gib) * self.utilization - weights - (5.4 if weights > 20 else 1.5)

    def token_bytes(self) -> float:
        inner = self.config.get("text_config", self.config)
        if "kv_lora_rank" in inner:  # a latent, the same on every rank
            return 2.0 * int(inner["num_hidden_layers"]) * (int(inner["kv_lora_rank"]) + int(inner["qk_rope_head_dim"]))
        layers = [kind for kind in inner.get("layer_types", []) if kind == "full_attention"] or [""] * int(
            inner.get("num_hidden_layers", 32)
        )
        heads, size = (
            max(1, int(inner.get("num_key_value_heads", 8)) // self.tensor_parallel),
            int(inner.get("head_dim", 128)),
        )
        width = 1 if str(self.options.get("--kv-cache-dtype", "auto")).startswith("fp8") else 2
        return 2.0 * len(layers) * heads * size * width

    def target(self, rank: Rank) -> float:
        seeded = next(
            (
                unit.seed.gib
                for unit in self.node.units.values()
                if unit.seed and unit.seed.container == self.container.name
            ),
            0.0,
        )
        return seeded or rank.node.total_gib * self.utilization - 2.0

    async def cache(self) -> None:
        kv = self.kv_gib()
        self.kv_tokens = max(0, int(kv * (1 << 30) / self.token_bytes())) // 16 * 16
        if self.ready_at_once:
            return
        await self.pause(20)
        for rank in self.ranks:
            await self.info(
                "gpu_worker.py:424", f"Available KV cache memory: {kv - rank.number * 0.06:.2f} GiB", prefix=rank.prefix
            )
        if kv <= 0:
            raise Died(
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
                who="core",
            )
        need = self.max_len * self.token_bytes() / (1 << 30)
        if need > kv:
            raise Died(
                f"ValueError: To serve at least one request with the models's max seq len ({self.max_len}), ({need:.2f} GiB KV cache is needed, which is larger than the available KV cache memory ({kv:.2f} GiB). "
                f"Based on the available memory, the estimated maximum model length is {self.kv_tokens}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
                who="core",
            )
        await self.info("kv_cache_utils.py:1314", f"GPU KV cache size: {self.kv_tokens:,} tokens")
        await self.info(
            "kv_cache_utils.py:1319",
            f"Maximum concurrency for {self.max_len:,} tokens per request: {self.kv_tokens / max(1, self.max_len):.2f}x",
        )
        for rank in self.ranks:
            self.take(rank, self.target(rank))
        await self.pause(6)

    async def graphs(self) -> None:
        if self.ready_at_once or self.options.get("--enforce-eager"):
            await self.finish_init()
            return
        await self.phase("graphs")
        first = self.ranks[0]
        for title, total, seconds in (
            ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)", 51, 22.0),
            ("Capturing CUDA graphs (decode, FULL)", 35, 14.0),
        ):
            began = time.monotonic()
            steps = sorted({0, *(round(total * part / 12) for part in range(13))})
            await self.call.err(first.prefix)
            for number in steps:
                if number:
                    await self.pause(seconds / 12)
                elapsed = (time.monotonic() - began) * self.world.factor
                filled = number * 10 // total
                bar = "█" * filled + " " * (10 - filled)
                rate = f"{number / elapsed:.2f}it/s" if elapsed > 0 and number else "?it/s"
                left = f"00:{int(elapsed / number * (total - number)) % 60:02d}" if number else "?"
                await self.call.err(
                    f"\r{title}: {number * 100 // total:3d}%|{bar}| {number}/{total} [00:{int(elapsed) % 60:02d}<{left}, {rate}]"
                )
            await self.call.err("\n")
        for rank in self.ranks:
            await self.info(
                "gpu_model_runner.py:5246",
                f"Graph capturing finished in {36 + rank.number} secs, took 1.2{rank.number} GiB",
                prefix=rank.prefix,
            )
        await self.finish_init()

    async def finish_init(self) -> None:
        if not self.ready_at_once:
            await self.info("core.py:272", "init engine (profile, create kv cache, warmup model) took 114.62 seconds")

    async def open(self) -> None:
        if self.port in self.node.listeners:
            raise Died("OSError: [Errno 98] Address already in use", who="api")
        await self.phase("ready")
        if not self.ready_at_once:
            await self.pause(4)
            await self.api(f"INFO {log_stamp(self.node)} [api_server.py:1272] Supported tasks: ['generate']")
            await self.api(
                f"INFO {log_stamp(self.node)} [api_server.py:1346] Starting vLLM API server 0 on http://{self.options.get('--host', '0.0.0.0')}:{self.port}"
            )
            for method, path in (
                ("GET", "/health"),
                ("GET", "/v1/models"),
                ("POST", "/v1/chat/completions"),
                ("POST", "/v1/completions"),
                ("GET", "/metrics"),
            ):
                await self.api(f"INFO {log_stamp(self.node)} [launcher.py:46] Route: {path}, Methods: {method}")
            await self.api(f"INFO:     Started server process [{self.api_pid}]")
            await self.api("INFO:     Waiting for application startup.")
        self.node.listeners[self.port] = RayListener(
            str(self.options.get("--host", "0.0.0.0")),
            self.port,
            "vllm",
            self.processes[0].pid,
            engine_http.Server(self).serve,
            self.container.id,
        )
        await self.api("INFO:     Application startup complete.")
        self.ready = True

    # the end

    def die(self, death: Died) -> None:
        if self.death is None:
            self.death = death
        self.dead.set()

    async def stop(self) -> None:
        """Give back memory, ports and processes."""
        self.ready = False
        self.dead.set()
        listener = self.node.listeners.get(self.port)
        if (
            listener is not None
            and getattr(listener, "container", "") == self.container.id
            and listener.program == "vllm"
        ):
            del self.node.listeners[self.port]
        for rank in self.ranks:
            rank.node.release(f"engine {id(self)} {rank.number}")
            if rank.container.ray is not None:
                rank.container.ray.gpus_used = rank.container.ray.placement = 0.0
        for process in self.processes:
            for node in self.world.nodes.values():
                if node.processes.get(process.pid) is process:
                    runtime.end_process(node, process)
        self.processes.clear()
        for node in {rank.node for rank in self.ranks}:
            node.busy = any(e.active for c in node.containers.values() for e in c.engines)


def dying(name: str, rank: Rank) -> tuple[str, ...]:
    if name == "starting":
        return ("RuntimeError: Failed to initialize NVML: Unknown Error",)
    if name == "nccl":
        return (
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote process exited or there was a network error, NCCL version 2.28.9",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "Last error:",
            f"socketPollConnect: connect to {rank.node.fabric}<41213> returned No route to host, exceeded error retry count after 35 attempts",
        )
    if name == "loading":
        return (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 288.00 MiB. GPU 0 has a total capacity of 119.68 GiB of which 101.88 MiB is free. Of the allocated memory 61.96 GiB is allocated by PyTorch, and 27.11 MiB is reserved by "
            "PyTorch but unallocated.",
        )
    if name == "compiling":
        return (
            "torch._inductor.exc.InductorError: NoTritonConfigsError: No valid triton configs. PTXASError: PTXAS error: Internal Triton PTX codegen error",
            "`ptxas` stderr:",
            "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        )
    return ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered",)


async def headless(engine: Engine) -> int:
    """A rank > 0 of a native group: no API; it lives with rank 0."""
    options = engine.options
    engine.container.engines.append(engine)
    await engine.call.err(
        f"INFO {log_stamp(engine.node)} [serve.py:181] Launching vLLM (v{engine.version}) headless multiproc executor, with head node address {options.get('--master-addr')}:{options.get('--master-port', 29501)} for torch.distributed process group.\n"
    )
    while not engine.ranks:
        await asyncio.sleep(0.05)
        if engine.dead.is_set():
            return 1
    head = engine.ranks[0].container
    while head.running and any(e.options.get("--nnodes") for e in head.engines) and not engine.dead.is_set():
        await asyncio.sleep(0.1)
    return 0


async def serve(call: Call, container: Container, words: list[str], *, ready: bool = False) -> int:
    """`vllm serve …` from beginning to end: its exit code."""
    if words[:1] != ["serve"]:
        await call.err("usage: vllm [-h] [-v] {chat,complete,serve,launch,bench,collect-env,run-batch} ...\n")
        return 2
    try:
        model, options = parse(words[1:])
    except BadArguments as error:
        await call.err(f"usage: vllm serve [model_tag] [options]\nvllm serve: error: {error}\n")
        return 2
    engine = Engine(call.node, container, call, model or "Qwen/Qwen3-0.6B", options, ready)
    if options.get("--headless"):
        return await headless(engine)
    work = asyncio.create_task(engine.run())
    dead = asyncio.create_task(engine.dead.wait())
    try:
        await asyncio.wait([work, dead], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            await dead
        if engine.death is not None:
            raise engine.death
        return 0
    except Died as death:
        await last_words(engine, death)
        return death.code
    finally:
        for task in (work, dead):
            task.cancel()
        await asyncio.gather(work, dead, return_exceptions=True)
        await engine.stop()
        if engine in container.engines:
            container.engines.remove(engine)


async def last_words(engine: Engine, death: Died) -> None:
    if not death.lines:
        return
    prefix = {"api": f"(APIServer pid={engine.api_pid}) ", "core": engine.core, "": engine.core}.get(
        death.who, death.who
    )
    if death.who != "api":
        await engine.call.err(
            f"{prefix}ERROR {log_stamp(engine.node)} [core.py:935] EngineCore failed to start.\n{prefix}ERROR {log_stamp(engine.node)} [core.py:935] Traceback (most recent call last):\n"
        )
    else:
        await engine.call.err(f"{prefix}Traceback (most recent call last):\n")
    for line in "\n".join(death.lines).split("\n"):
        stamp = f"ERROR {log_stamp(engine.node)} [core.py:935] " if death.who != "api" else ""
        await engine.call.err(f"{prefix}{stamp}{line}\n")
    if death.who != "api":
        await engine.call.err(
            f"(APIServer pid={engine.api_pid}) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore_DP0': 1}}\n"
        )
