"""Logs in which no two lines are the same and nearly each means something: entry `number` of a log, by kind."""

from __future__ import annotations

from collections.abc import Callable

Family = Callable[[int], str]


def _figure(number: int, most: int, salt: int = 0) -> int:
    """0 to `most` - 1, scattered, the same in every run."""
    return (number * 2_654_435_761 + salt * 40_503_077 + (number >> 7) * 97) % 4_294_967_291 % most


def _real(number: int, most: int, digits: int, salt: int = 0) -> str:
    return f"{_figure(number, most * 10**digits, salt) / 10**digits:.{digits}f}"


def _time(number: int) -> str:
    second = number // 20
    return f"11-{1 + second // 86_400 % 28:02d} {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def _started(number: int) -> str:
    n = number
    return (
        f"Loading weights took {_real(n, 900, 2)} seconds",
        f"Model loading took {_real(n, 60, 4)} GiB memory and {_real(n, 900, 6, 1)} seconds",
        f"Available KV cache memory: {_real(n, 40, 2)} GiB",
        f"GPU KV cache size: {_figure(n, 9)},{100 + _figure(n, 899, 1)},{100 + _figure(n, 899, 2)} tokens",
        f"Maximum concurrency for 131,072 tokens per request: {_real(n, 40, 2)}x",
        f"Graph capturing finished in {10 + _figure(n, 80)} secs, took {_real(n, 3, 2, 1)} GiB",
        f"init engine (profile, create kv cache, warmup model) took {_real(n, 100, 2)} seconds",
        f"Dynamo bytecode transform time: {_real(n, 20, 2)} s",
        f"torch.compile takes {_real(n, 60, 2)} s in total",
        f"Using max model len {1000 + _figure(n, 99_000)}",
    )[n % 10]


def _stamped(number: int) -> str:
    return f"INFO {_time(number)} [gpu_model_runner.py:{1 + _figure(number, 3000, 5)}] {_started(number)}"


def vllm_start(number: int) -> str:
    return f"(Worker_TP{number % 2} pid={300 + number % 2}) {_stamped(number)}\n"


def shard_bars(number: int) -> str:
    done = number // 2 % 40
    return (
        f"\r(Worker_TP{number % 2} pid={300 + number % 2}) Loading safetensors checkpoint shards: "
        f"{done * 100 // 39:3d}% Completed | {done}/39 [00:{10 + _figure(number, 50)}<00:{10 + _figure(number, 50, 1)},"
        f"  {_real(number, 9, 2)}s/it]"
    )


def ray_workers(number: int) -> str:
    return f"(RayWorkerWrapper pid={100 + _figure(number, 2300)}, ip=192.168.200.13) {_stamped(number)}\n"


def raylet(number: int) -> str:
    identity = f"{_figure(number, 2**32 - 5):08x}{_figure(number, 2**32 - 5, 1):08x}"
    said = (
        f"The node with node id: {identity} and address: 192.168.200.13 and node name: 192.168.200.13 has been marked dead"
        " because the detector has missed too many heartbeats from it.",
        f"Worker {identity} with pid {_figure(number, 9999)} exited with code 1: killed due to memory pressure (OOM)",
        f"Object store current usage {identity} / 9 GB. Failed to connect to GCS at address 192.168.200.12:6379",
    )[number % 3]
    return (
        f"[2026-{_time(number)},{_figure(number, 999):03d} E 41 41] (raylet) node_manager.cc:{number % 3000}: {said}\n"
    )


def ray_status(number: int) -> str:
    first, second = (f"node_{_figure(number, 2**32 - 5, salt):08x}{number:08x}" for salt in (0, 1))
    return (
        f"======== Autoscaler status: 2026-{_time(number)}.{_figure(number, 999_999):06d} ========\nNode status\n{'-' * 63}\n"
        f"Active:\n 1 {first}\n 1 {second}\nPending:\n (no pending nodes)\nRecent failures:\n (no failures)\n\nResources\n"
        f"{'-' * 63}\nUsage:\n {_real(number, 40, 1)}/40.0 CPU\n {_real(number, 2, 1)}/2.0 GPU (2.0 used of 2.0 reserved in "
        f"placement groups)\n 0B/{_real(number, 200, 2)}GiB memory\n 0B/{_real(number, 9, 2)}GiB object_store_memory\n\n"
        "Demands:\n (no resource demands)\n"
    )


def nccl(number: int) -> str:
    n, peer = number, number % 2
    said = (
        f"Channel {n % 16:02d}/{_figure(n, 16):02d} : {peer}[0] -> {1 - peer}[0] [send] via NET/IB/{_figure(n, 4)}/GDRDMA",
        f"NET/IB: Made virtual device [{n % 4}] name=rocep1s0f{peer} speed=200000 ndevs={_figure(n, 4)}",
        f"comm 0x55d{_figure(n, 99_999)} rank {peer} nranks 2 cudaDev 0 busId f01000 commId 0x8 - Init COMPLETE",
        "Using network IB",
        f"NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.200.{1 + n % 250}<0>",
    )[n % 5]
    return f"spark-1a32:{100 + _figure(n, 9899)}:{100 + _figure(n, 9899, 1)} [0] NCCL INFO {said}\n"


def kernel(number: int) -> str:
    n = number
    said = (
        f"Out of memory: Killed process {1 + _figure(n, 99_998)} (VLLM::Worker) total-vm:{_figure(n, 10**9, 1)}kB, "
        f"anon-rss:{_figure(n, 10**9, 2)}kB, file-rss:0kB",
        f"NVRM: Xid (PCI:000f:01:00): {1 + _figure(n, 154)}, pid={_figure(n, 99_999, 1)}, name=VLLM, Ch {n % 99}",
        f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=docker-{_figure(n, 99_999)}.scope,mems_allowed=0,"
        f"global_oom,task_memcg=/,task=VLLM,pid={_figure(n, 99_999, 2)}",
    )[n % 3]
    return f"[{n}.{100_000 + _figure(n, 899_999)}] {said}\n"


def journald(number: int) -> str:
    clock = _time(number)[6:]
    return f"Nov 30 {clock} spark-1a32 docker[{100 + _figure(number, 9899)}]: {vllm_start(number)}"


def rsync_files(number: int) -> str:
    return (
        f"model-{number:05d}-of-99999.safetensors\n{1 + _figure(number, 10**10):>15,} 100%  {_real(number, 300, 2)}MB/s"
        f"    0:00:{10 + _figure(number, 50)} (xfr#{number}, to-chk={_figure(number, 99_999, 1)}/99999)\n"
    )


def downloads(number: int) -> str:
    done = number % 1000
    return (
        f"\rmodel-{number % 13:05d}-of-00039.safetensors: {done // 10:3d}%|{'█' * (done // 100):<10}| {done / 200:.2f}G/5.00G "
        f"[00:{10 + _figure(number, 50)}<00:{10 + _figure(number, 50, 1)}, {_real(number, 300, 1)}MB/s]"
    )


def _identity(number: int, digits: int) -> str:
    return "".join(f"{_figure(number, 2**32 - 5, salt):08x}" for salt in range((digits + 7) // 8))[:digits]


_STATES = ("Pulling fs layer", "Waiting", "Verifying Checksum", "Download complete", "Pull complete", "Already exists")


def docker_pull(number: int) -> str:
    return f"{_identity(number, 12)}: {_STATES[number % 6]}\n"


def compose_pull(number: int) -> str:
    return f" {_identity(number, 12)} Extracting [=====>     ]  {_real(number, 500, 2)}MB/1.2GB\n"


def podman_pull(number: int) -> str:
    return f"Copying blob sha256:{_identity(number, 64)} done\n"


def nothing_said(number: int) -> str:
    """Short lines, none like another, that mean nothing."""
    return "".join(chr(0x4E00 + _figure(number, 20_000, salt)) for salt in range(8)) + "\n"


_SYLLABLES = ("ka", "lo", "mi", "ren", "tu", "sha", "po", "vel", "in", "gor", "ex", "da", "quo", "ni", "ble", "st")


_AS_LETTERS = str.maketrans("0123456789", "bcdfghjklm")


def _word(number: int, salt: int) -> str:
    return "".join(_SYLLABLES[_figure(number, 16, 4 * salt + part)] for part in range(1 + _figure(number, 4, salt)))


def _sentence(number: int, words: int) -> str:
    told = [_word(number, salt) for salt in range(words)]
    told[_figure(number, words)] = ("error", "memory", "model", "cuda", "worker", "timeout", "connection", "failed")[
        number % 8
    ]
    return " ".join(told)


def words(number: int) -> str:
    """Sentences that mean nothing, with words in them that others begin with."""
    return f"{_sentence(number, 12)} {str(number).translate(_AS_LETTERS)}\n"


def asked(number: int) -> str:
    """An engine that writes down what it is asked."""
    return (
        f"(APIServer pid=7) INFO {_time(number)} [logger.py:39] Received request chatcmpl-{_identity(number, 32)}: prompt: "
        f"'{_sentence(number, 40)}', params: SamplingParams(n=1, temperature=0.7, max_tokens=512), prompt_token_ids: None, "
        f"lora_request: None.\n(APIServer pid=7) INFO:     127.0.0.1:{30_000 + _figure(number, 30_000)} - "
        '"POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    )


def errors(number: int) -> str:
    """Errors of which none says what another says."""
    return f"(EngineCore pid=9) ERROR {_time(number)} [core.py:{1 + _figure(number, 900)}] ValueError: {_sentence(number, 8)}\n"


def blank(number: int) -> str:
    return "\r" * 1000


FAMILIES: dict[str, Family] = {
    "vllm_start": vllm_start,
    "shard_bars": shard_bars,
    "ray_workers": ray_workers,
    "raylet": raylet,
    "ray_status": ray_status,
    "nccl": nccl,
    "kernel": kernel,
    "journald": journald,
    "rsync_files": rsync_files,
    "downloads": downloads,
    "docker_pull": docker_pull,
    "compose_pull": compose_pull,
    "podman_pull": podman_pull,
    "asked": asked,
    "errors": errors,
    "words": words,
    "nothing_said": nothing_said,
    "blank": blank,
}
