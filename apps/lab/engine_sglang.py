"""The pretend SGLang: what `python -m sglang.launch_server` of 0.5 checks, prints, takes and serves, rank by rank."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from apps.lab import engine_http
from apps.lab.call import Call
from apps.lab.engine_other import GIB, BadOptions, Dies, Program, live, parsed
from apps.lab.world import Container, Listener

VALUED = {
    "--model-path",
    "--tokenizer-path",
    "--served-model-name",
    "--host",
    "--port",
    "--tp-size",
    "--pp-size",
    "--dp-size",
    "--mem-fraction-static",
    "--context-length",
    "--kv-cache-dtype",
    "--attention-backend",
    "--reasoning-parser",
    "--tool-call-parser",
    "--dist-init-addr",
    "--nnodes",
    "--node-rank",
    "--quantization",
    "--dtype",
    "--load-format",
    "--max-running-requests",
    "--chunked-prefill-size",
    "--cuda-graph-max-bs",
    "--speculative-algorithm",
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
    "--watchdog-timeout",
    "--api-key",
    "--log-level",
    "--mamba-scheduler-strategy",
    "--dist-timeout",
    "--chat-template",
}
FLAGS = {
    "--trust-remote-code",
    "--enable-metrics",
    "--disable-cuda-graph",
    "--enable-dp-attention",
    "--disable-radix-cache",
    "--is-embedding",
    "--skip-server-warmup",
    "--disable-custom-all-reduce",
    "--enable-mixed-chunk",
}
ALIASES = {"--model": "--model-path", "--tp": "--tp-size", "--tensor-parallel-size": "--tp-size", "--pp": "--pp-size"}
USAGE = "usage: launch_server.py [-h] --model-path MODEL_PATH [--tokenizer-path TOKENIZER_PATH] [--port PORT] ...\n"
WATCHDOG_S = 300
GRAPHS = (32, 16, 8, 4, 2, 1)


@dataclass
class Meeting:
    """The ranks that look for each other at one address."""

    members: dict[int, Rank] = field(default_factory=dict)
    loaded: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)


MEETINGS: dict[tuple[int, str], Meeting] = {}  # by world and address


class Server(engine_http.Server):
    """SGLang's routes: health is 503 until the warm-up is done; what a model thinks is `reasoning_content`."""

    thought = "reasoning_content"
    owner = "sglang"

    def listening(self) -> bool:
        return True

    def health(self) -> tuple[str, bytes, str]:
        if self.engine.hung or not self.engine.ready:
            return "503 Service Unavailable", b"", "text/plain"
        return "200 OK", b"", "text/plain"

    def metrics(self) -> str:
        engine = self.engine
        if not engine.options.get("--enable-metrics"):
            return ""
        label = f'{{model_name="{engine.served[0]}"}}'
        rows = (
            ("num_running_reqs", "gauge", float(engine.active)),
            ("num_queue_reqs", "gauge", 0.0),
            ("token_usage", "gauge", min(1.0, engine.active * 0.004)),
            ("prompt_tokens_total", "counter", engine.counters["prompt"]),
            ("generation_tokens_total", "counter", engine.counters["generated"]),
            ("num_requests_total", "counter", engine.counters["requests"]),
        )
        return "".join(
            f"# HELP sglang:{name} {name.replace('_', ' ')}.\n# TYPE sglang:{name} {kind}\nsglang:{name}{label} {value}\n"
            for name, kind, value in rows
        )


@dataclass
class Rank(Program):
    """One node's process: the head with the API, or a node after it."""

    name: str = "sglang"

    @property
    def served(self) -> list[str]:
        return [str(self.options.get("--served-model-name") or self.model)]

    def whole(self, name: str, default: int) -> int:
        value = str(self.options.get(name, default))
        return int(value) if value.isdigit() else default

    @property
    def tp(self) -> int:
        return self.whole("--tp-size", 1)

    @property
    def number(self) -> int:
        return self.whole("--node-rank", 0)

    @property
    def nodes(self) -> int:
        return self.whole("--nnodes", 1)

    @property
    def local(self) -> list[int]:
        """Tensor-parallel ranks on this node."""
        each = max(1, self.tp // self.nodes)
        return list(range(self.number * each, self.number * each + each))

    @property
    def meeting(self) -> Meeting:
        return MEETINGS.setdefault((id(self.world), str(self.options.get("--dist-init-addr", id(self)))), Meeting())

    def stamp(self, tp: int | None = None) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.node.now()))
        return f"[{moment}]" if tp is None else f"[{moment} TP{tp}]"

    async def say(self, text: str, tp: int | None = None) -> None:
        await self.call.err(f"{self.stamp(tp)} {text}\n")

    async def all(self, text: str) -> None:
        for tp in self.local:
            await self.say(text, tp)

    async def api(self, text: str) -> None:
        await self.say(text)

    def last_words_in(self, phase: str) -> tuple[str, ...]:
        head = f"{self.stamp(self.local[0])} Scheduler hit an exception: Traceback (most recent call last):"
        if phase in ("loading", "starting"):
            words = (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 288.00 MiB. GPU 0 has a total capacity of "
                "119.68 GiB of which 101.88 MiB is free. Of the allocated memory 61.96 GiB is allocated by PyTorch."
            )
        elif phase == "nccl":
            words = (
                "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote "
                "process exited or there was a network error, NCCL version 2.28.3"
            )
        else:
            words = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
        last = f"{self.stamp()} Received sigquit from a child process. It usually means the child failed."
        return (head, words, last)

    # the course of a start

    async def run(self) -> None:
        await self.banner()
        await self.check()
        await self.phase("starting")
        await self.pause(9)
        await self.meet()
        await self.load()
        await self.cache()
        await self.graphs()
        if self.number:
            await self.without_api()
        else:
            await self.open()

    async def banner(self) -> None:
        await self.pause(6)
        shown = ", ".join(
            f"{name.lstrip('-').replace('-', '_')}={_python(value)}"
            for name, value in {"--model-path": self.model, **self.options}.items()
        )
        await self.say(f"server_args=ServerArgs({shown})")

    async def check(self) -> None:
        folder = self.file(self.model) if self.model.startswith("/") else None
        if folder is None or not folder.is_dir():
            raise Dies(
                "Traceback (most recent call last):",
                "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
                "cached files.",
            )
        self.read_config(folder)
        inner = self.config.get("text_config", self.config)
        self.max_len = self.whole("--context-length", int(inner.get("max_position_embeddings", 32768)))
        heads = int(inner.get("num_attention_heads", 32))
        if heads % self.tp:
            raise Dies("Traceback (most recent call last):", f"AssertionError: {heads} is not divisible by {self.tp}")
        backend = str(self.options.get("--attention-backend", ""))
        if "layer_types" in inner and backend not in ("triton", "trtllm_mha"):
            raise Dies(
                "Traceback (most recent call last):",
                "AssertionError: triton or trtllm_mha backend are the only supported backends on Blackwell GPUs for hybrid GDN "
                "models, use --attention-backend triton or --attention-backend trtllm_mha to specify the backend.",
            )
        if self.whole("--port", 30000) in self.node.listeners:
            raise Dies(
                f"[Errno 98] error while attempting to bind on address ('0.0.0.0', {self.whole('--port', 30000)}): address already in use"
            )
        files = sorted(folder.glob("*.safetensors"))
        self.shards, self.bytes = len(files), sum(path.stat().st_size for path in files)
        if not files:
            raise Dies("RuntimeError: Cannot find any model weights with `" + self.model + "`")
        if self.tp > self.nodes * len(self.node.gpu_numbers):
            raise Dies("RuntimeError: CUDA error: invalid device ordinal")
        self.gpus = self.node.gpu_numbers[: len(self.local)]

    async def meet(self) -> None:
        """Init torch distributed: of several nodes, all must be there, and each must say an address that the others reach."""
        await self.all("Init torch distributed begin.")
        await self.phase("nccl")
        if self.nodes > 1:
            if not self.number:
                address, _, port = str(self.options["--dist-init-addr"]).rpartition(":")
                self.node.listeners[int(port)] = made = Listener(
                    address, int(port), self.name, self.program_process.pid if self.program_process else 0
                )
                made.container = self.container.id if self.container else ""
            self.meeting.members[self.number] = self
            while len(self.meeting.members) < self.nodes:
                await self.pause(1)
            await self.say("sglang is using nccl==2.28.3", self.local[0])
            await self.network()
            await self.say("CustomAllreduce is disabled because this process group spans across nodes.", self.local[0])
            if not all(one.environment("SGLANG_HOST_IP") == one.node.fabric for one in self.meeting.members.values()):
                await self.pause(WATCHDOG_S)
                raise Dies(f"{self.stamp()} Rank {self.number} scheduler died (exit code: -9)")
        await self.pause(2)
        await self.all("Init torch distributed ends. mem usage=0.28 GB")
        if self.nodes == 1:
            self.meeting.members[0] = self

    async def network(self) -> None:
        """NCCL's own lines, where they were asked for."""
        if self.environment("NCCL_DEBUG").upper() != "INFO":
            return
        cards = {card.name: card for card in self.node.cards}
        name = self.environment("NCCL_SOCKET_IFNAME").lstrip("=")
        card = cards.get(name)
        head = f"{self.node.name}:211:211 [0] NCCL "
        if card is None or not card.up:
            raise Dies(f"{head}WARN Bootstrap : no socket interface found", "ncclInternalError: Internal check failed.")
        asked = [one for one in self.environment("NCCL_IB_HCA").split(",") if one]
        active = [one for one in self.node.cards if one.hca and one.up and (not asked or one.hca in asked)]
        allowed = self.container is None or "/dev/infiniband" in " ".join(self.container.devices)
        rdma = bool(active) and allowed
        listed = " ".join(f"[{number}]{one.hca}:1/RoCE" for number, one in enumerate(active))
        lines = [f"INFO Bootstrap: Using {card.name}:{card.address}<0>", "INFO NCCL version 2.28.3+cuda13.0"]
        if rdma:
            lines += [f"INFO NET/IB : Using {listed} [RO]; OOB {card.name}:{card.address}<0>", "INFO Using network IB"]
        else:
            lines += ["INFO NET/IB : No device found.", "INFO Using network Socket"]
        way, other = ("NET/IB/0" if rdma else "NET/Socket/0"), 1 - self.number
        lines += [
            f"INFO Channel 00/0 : {other}[0] -> {self.number}[0] [receive] via {way}",
            f"INFO ncclCommInitRank comm 0x55f5be32f460 rank {self.number} nranks {self.tp} cudaDev 0 nvmlDev 0 busId f01000 "
            "commId 0x4e2671c9674e940d - Init COMPLETE",
        ]
        for line in lines:
            await self.call.err(f"{head}{line}\n")

    @property
    def weights_gib(self) -> float:
        return float(self.bytes) / GIB / self.tp * 1.012

    async def load(self) -> None:
        before = self.free_gib
        self.before = before
        await self.all(f"Load weight begin. avail mem={before:.2f} GB")
        if self.weights_gib > before:
            raise Dies(
                f"{self.stamp(self.local[0])} Scheduler hit an exception: Traceback (most recent call last):",
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of "
                f"{self.total_gib:.2f} GiB of which {before:.2f} GiB is free.",
            )
        began = time.monotonic()
        each = self.world.shard_s * (
            float(self.node.faults.get("slow-rank") or 2) if "slow-rank" in self.node.faults else 1.0
        )
        for number in range(self.shards + 1):
            if number:
                due = began + number * each / self.world.factor
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self.take(1.5 + self.weights_gib * number / self.shards)
                self.node.read_files(float(self.bytes) / GIB / self.shards)
            if number == max(1, self.shards // 3):
                await self.phase("loading")
            elapsed = (time.monotonic() - began) * self.world.factor
            await self.call.err(f"\r{_bar(number, self.shards, elapsed)}\n")
        await self.call.err("\n")
        kind = self.config.get("architectures", ["?"])[0]
        for tp in self.local:
            await self.say(
                f"Load weight end. type={kind}, dtype=torch.bfloat16, avail mem={before - self.weights_gib:.2f} GB, "
                f"mem usage={self.weights_gib:.2f} GB.",
                tp,
            )
        self.meeting.loaded.add(self.number)
        while len(self.meeting.loaded) < self.nodes and not self.meeting.left:
            await self.pause(1)

    def token_bytes(self) -> float:
        inner = self.config.get("text_config", self.config)
        layers = [kind for kind in inner.get("layer_types", []) if kind == "full_attention"] or [""] * int(
            inner.get("num_hidden_layers", 32)
        )
        heads = max(1, int(inner.get("num_key_value_heads", 8)) // self.tp)
        return 4.0 * len(layers) * heads * int(inner.get("head_dim", 128))

    async def cache(self) -> None:
        share = float(self.options.get("--mem-fraction-static", 0.85))
        kv = self.before * share - self.weights_gib
        if kv <= 0:
            raise Dies(
                f"{self.stamp(self.local[0])} Scheduler hit an exception: Traceback (most recent call last):",
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
                "",
                f"{self.stamp()} Received sigquit from a child process. It usually means the child failed.",
            )
        self.kv_tokens = int(kv * GIB / self.token_bytes())
        self.take(self.weights_gib + kv)
        await self.pause(4)
        half = kv / 2
        await self.all(
            f"KV Cache is allocated. #tokens: {self.kv_tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB"
        )
        self.left = self.before - self.weights_gib - kv
        await self.all(f"Memory pool end. avail mem={self.left:.2f} GB")

    async def graphs(self) -> None:
        if not self.options.get("--disable-cuda-graph"):
            await self.phase("graphs")
            await self.all(
                f"Capture cuda graph begin. This can take up to several minutes. avail mem={self.left:.2f} GB"
            )
            total, began = len(GRAPHS), time.monotonic()
            for number, size in enumerate(GRAPHS, start=1):
                await self.pause(6)
                elapsed = (time.monotonic() - began) * self.world.factor
                filled = number * 10 // total
                await self.call.err(
                    f"\rCapturing batches (bs={size} avail_mem={self.left:.2f} GB): {number * 100 // total:3d}%|"
                    f"{'█' * filled}{' ' * (10 - filled)}| {number}/{total} [00:{int(elapsed) % 60:02d}<00:00,  "
                    f"{elapsed / number:.2f}s/it]"
                )
            await self.call.err("\n")
            await self.all(
                f"Capture cuda graph end. Time elapsed: {6.0 * total:.2f} s. mem usage=0.41 GB. avail mem={self.left:.2f} GB."
            )
        await self.say(
            f"max_total_num_tokens={self.kv_tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            f"max_running_requests=2048, context_len={self.max_len}, available_gpu_mem={self.left:.2f} GB",
            self.local[0],
        )

    async def open(self) -> None:
        await self.phase("ready")
        port = self.whole("--port", 30000)
        if port in self.node.listeners:
            raise Dies(
                f"[Errno 98] error while attempting to bind on address ('0.0.0.0', {port}): address already in use"
            )
        await self.say("INFO:     Started server process [1]")
        await self.say("INFO:     Waiting for application startup.")
        await self.say("INFO:     Application startup complete.")
        host = str(self.options.get("--host", "127.0.0.1"))
        await self.say(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        self.listen(port, Server(self).serve, host)
        await self.pause(8)  # the warm-up, during which it is not healthy
        await self.say('INFO:     127.0.0.1:50390 - "POST /generate HTTP/1.1" 200 OK')
        self.ready = True
        await self.say("The server is fired up and ready to roll!")
        while not self.meeting.left:
            await asyncio.sleep(0.1)
        raise Dies(
            f"{self.stamp()} Received sigquit from a child process. It usually means the child failed.", code=131
        )

    async def without_api(self) -> None:
        """A node after the first answers health checks and lives with the head."""
        port = self.whole("--port", 30000)
        host = str(self.options.get("--host", "127.0.0.1"))
        self.listen(port, Server(self).serve, host)
        self.ready = True
        await self.say(f"Dummy health check server is running at http://{host}:{port}/health")
        while not self.meeting.left:
            await asyncio.sleep(0.1)
        raise Dies(
            f"{self.stamp()} Received sigquit from a child process. It usually means the child failed.", code=131
        )

    async def stop(self) -> None:
        self.meeting.left.add(self.number)
        MEETINGS.pop((id(self.world), str(self.options.get("--dist-init-addr", id(self)))), None)
        await super().stop()


def _python(value: Any) -> str:
    text = str(value)
    return text if value is True or text.replace(".", "", 1).isdigit() else repr(text)


def _bar(number: int, total: int, elapsed: float) -> str:
    def clock(seconds: float) -> str:
        return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"

    pace = elapsed / number if number else 0.0
    left, rate = (clock(pace * (total - number)), f"{pace:5.2f}s/it") if number else ("?", "?it/s")
    return f"Loading safetensors checkpoint shards: {number * 100 // total:3d}% Completed | {number}/{total} [{clock(elapsed)}<{left}, {rate}]"


async def serve(call: Call, container: Container | None, words: list[str]) -> int:
    """`sglang.launch_server` from beginning to end: its exit code."""
    try:
        options, unknown = parsed(words, VALUED, FLAGS, ALIASES)
        if unknown:
            raise BadOptions(f"unrecognized arguments: {' '.join(unknown)}")
        if "--model-path" not in options:
            raise BadOptions("the following arguments are required: --model-path/--model")
    except BadOptions as error:
        await call.err(f"{USAGE}launch_server.py: error: {error}\n")
        return 2
    rank = Rank(call.node, call, container, str(options.pop("--model-path")), options)
    title = f"python3 -m sglang.launch_server --model-path {rank.model} --port {options.get('--port', 30000)}"
    return await live(rank, title[:200], rank.run)
