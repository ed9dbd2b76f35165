"""The signs of failure in the output of engines and their tools: one table of patterns, each with the reason it proves.

`strength` decides which line is shown as the cause: ROOT names what went wrong, EFFECT follows from something else,
ECHO says
only that something failed. Of the strongest ones the first in the output wins. SUSPECT is an exception of unknown
meaning; it
is shown only when something else proves that the program failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ROOT, EFFECT, ECHO, SUSPECT = 3, 2, 1, 0
Values = dict[str, Any]
Extract = Callable[[re.Match[str]], Values]


def _nothing(_: re.Match[str]) -> Values:
    return {}


def _numbers(match: re.Match[str]) -> Values:
    """Every named group as a number where it is one."""
    return {name: number(value) for name, value in match.groupdict().items() if value is not None}


def number(text: str) -> Any:
    """int or float where the text is one ("1,470,588" too), else the text."""
    plain = text.replace(",", "").rstrip(".")
    try:
        return int(plain)
    except ValueError:
        pass
    try:
        return float(plain)
    except ValueError:
        return text


@dataclass(frozen=True)
class Sign:
    """`trigger`: words in lower case without punctuation, one for each alternative of the pattern; only lines that hold
    one of them are searched."""

    trigger: str
    pattern: re.Pattern[str]
    reason: str
    strength: int = ROOT
    cause: str = ""  # the name in `facts.cause`; "" = the reason
    kind: str = ""  # votes for this kind of output
    extract: Extract = _nothing
    wrapped: str = ""  # how a message begins that may be broken over lines at any letter
    values: Mapping[str, Any] = field(default_factory=dict)


def _sign(trigger: str, pattern: str, reason: str, strength: int = ROOT, **more: Any) -> Sign:
    return Sign(trigger, re.compile(pattern), reason, strength, **more)


def _tried(match: re.Match[str]) -> Values:
    size = float(match["tried"]) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[match["unit"]]
    made: Values = {"tried_mib": int(size) if size == int(size) else round(size, 2)}
    if match["total"]:
        made["total_gib"] = float(match["total"])
        free = float(match["free"]) * {"KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1}[match["free_unit"]]
        made["free_gib"] = round(free, 3)
    return made


def _cuda_of(match: re.Match[str]) -> Values:
    found = int(match["found"])
    return {"driver_cuda": f"{found // 1000}.{found % 1000 // 10}"}


_SIGNALS = {-6: "SIGABRT", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM", -7: "SIGBUS", -4: "SIGILL"}


def exit_codes(match: re.Match[str]) -> Values:
    """The braces of \"Failed core proc(s)\": exit codes by process, signals by name."""
    codes = {name: int(code) for name, code in re.findall(r"'([^']{1,80})': (-?\d{1,6})", match["codes"])}
    return {"exit_codes": {name: _SIGNALS.get(code, code) for name, code in codes.items()}}


def _port(match: re.Match[str]) -> Values:
    return {"host": match["host"], "port": int(match["port"]), "cause": f"port_in_use:{int(match['port'])}"}


def _unknown_flag(match: re.Match[str]) -> Values:
    return {"argument": match["flag"], "cause": f"unknown_argument:{match['flag']}"}


def _first_flag(match: re.Match[str]) -> Values:
    return {"argument": match["flag"]}


_GIB = r"(?P<{0}>[\d.]+)"

ENGINE_SIGNS: tuple[Sign, ...] = (
    # Memory
    _sign(
        "desired",
        r"Free memory on device ?(?:\S+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired "
        r"GPU memory "
        r"utilization \((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)",
        "free_below_requested",
        kind="vllm",
        extract=_numbers,
    ),
    _sign(
        "serve",
        r"[Tt]o serve at least one request with (?:the models?(?:'s)?s? )?max seq len \((?P<max_len>\d+)\),? "
        r"\(?(?P<need_gib>[\d.]+) GiB KV cache is "
        r"needed, which is larger than the available KV cache memory \((?P<have_gib>[\d.]+) GiB\)"
        r"(?:\. Based on the available memory,? the estimated maximum model length is (?P<suggest>\d+))?",
        "kv_too_small",
        kind="vllm",
        extract=_numbers,
        wrapped="serve at least one request",
    ),
    _sign(
        "max",
        r"model's max seq len \((?P<max_len>\d+)\) is larger than the maximum number of tokens that can be stored in "
        r"KV cache \((?P<suggest>\d+)\)",
        "kv_too_small",
        kind="vllm",
        extract=_numbers,
        wrapped="is larger than the max",
    ),
    _sign("blocks", r"No available memory for the cache blocks", "kv_too_small", kind="vllm"),
    _sign(
        "outofmemoryerror",
        r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError: (?!CUDA out of memory\. Tried)",
        "oom_gpu",
        cause="cuda_oom",
    ),
    _sign(
        "tried",
        r"(?:CUDA|HIP) out of memory\. Tried to allocate (?P<tried>[\d.]+) (?P<unit>[KMG]iB)(?:[.,]? \(?GPU "
        r"\d+[^;.]{0,40}?(?:has a total capacity of|;) "
        r"(?P<total>[\d.]+) GiB (?:of which|total capacity;[^;]*;) (?P<free>[\d.]+) (?P<free_unit>[KMG]iB)(?: "
        r"is)? free)?",
        "oom_gpu",
        cause="cuda_oom",
        extract=_tried,
    ),
    _sign("nv_err_no_memory", r"NV_ERR_NO_MEMORY", "oom_gpu", EFFECT, cause="cuda_oom"),
    _sign(
        "cuda cuda_error_out_of_memory",
        r"CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY",
        "oom_gpu",
        cause="cuda_oom",
    ),
    _sign(
        "fraction",
        r"RuntimeError: Not enough memory\. Please try to increase --mem-fraction-static|Please try (?:increasing|to "
        r"increase) --mem-fraction-static",
        "kv_too_small",
        cause="increase_mem_fraction",
        kind="sglang",
    ),
    _sign(
        "capture",
        r"Capture (?:CUDA|cuda) graph failed: (?:CUDA|HIP) out of memory",
        "oom_gpu",
        cause="decrease_mem_fraction",
        kind="sglang",
    ),
    _sign(
        "killed",
        r"Out of memory: Killed process (?P<pid>\d+) \((?P<process>[^)]+)\)",
        "oom_host",
        kind="kernel",
        extract=_numbers,
        values={"cause": "oom_killed"},
    ),
    _sign(
        "killed",
        r"Memory cgroup out of memory: Killed process (?P<pid>\d+) \((?P<process>[^)]+)\)",
        "oom_host",
        kind="kernel",
        extract=_numbers,
    ),
    _sign(
        "bus shm",
        r"Bus error(?: \(core dumped\))?.*(?:shared memory|shm)|insufficient shared memory \(shm\)",
        "shm_too_small",
    ),
    _sign(
        "shared",
        r"Error while creating shared memory segment (?P<path>/dev/shm/\S+)",
        "shm_too_small",
        extract=_numbers,
    ),
    _sign("shm", r"No space left on device.{0,80}/dev/shm|/dev/shm.{0,200}No space left on device", "shm_too_small"),
    # The hub and the model's files
    _sign(
        "gated",
        r"You are trying to access a gated repo|Cannot access gated repo for url",
        "hub_gated",
        EFFECT,
        cause="needs_license",
        kind="hf",
    ),
    _sign("401", r"401 Client Error\. \(Request ID", "hub_auth", cause="needs_token", kind="hf"),
    _sign(
        "403",
        r"403 (?:Client Error\. \(Request ID|Forbidden: .{0,200}(?:gated|authorized list))",
        "hub_gated",
        cause="needs_license",
        kind="hf",
    ),
    _sign(
        "restricted",
        r"Access to model (?P<model>\S+) is restricted\. You must have access to it and be authenticated",
        "hub_auth",
        cause="needs_token",
        kind="hf",
        extract=_numbers,
    ),
    _sign(
        "authorized",
        r"Access to model (?P<model>\S+) is restricted and you are not in the authorized list",
        "hub_gated",
        cause="needs_license",
        kind="hf",
        extract=_numbers,
    ),
    _sign("gatedrepoerror", r"GatedRepoError", "hub_gated", EFFECT, cause="needs_license"),
    _sign(
        "unauthorized",
        r"401 Client Error: Unauthorized for url: (?P<url>https://huggingface\.co\S*)",
        "hub_auth",
        cause="needs_token",
        extract=_numbers,
    ),
    _sign("repositorynotfounderror", r"RepositoryNotFoundError", "hub_missing", EFFECT),
    _sign("revisionnotfounderror", r"RevisionNotFoundError", "hub_missing"),
    _sign("listed", r"is not a local folder and is not a valid model identifier listed on", "hub_missing"),
    _sign(
        "429",
        r"429 (?:Client Error: )?Too Many Requests",
        "hub_rate_limited",
        values={"status": 429, "retry_after_s": None},
        kind="hf",
    ),
    _sign("traffic", r"outgoing traffic has been disabled", "hub_offline", cause="offline_not_cached", kind="hf"),
    _sign("offlinemodeisenabled", r"OfflineModeIsEnabled", "hub_offline", cause="offline_not_cached", kind="hf"),
    _sign(
        "connect",
        r"[Ww]e couldn'?t connect to '?https://huggingface\.co",
        "hub_unreachable",
        cause="no_internet",
        kind="hf",
    ),
    _sign(
        "resolve nameresolutionerror",
        r"Failed to resolve 'huggingface\.co'|NameResolutionError.{0,200}huggingface\.co",
        "hub_unreachable",
        cause="no_internet",
        kind="hf",
    ),
    _sign(
        "maxretryerror",
        r"MaxRetryError.{0,200}(?:huggingface\.co|hf\.co)",
        "hub_unreachable",
        cause="no_internet",
        kind="hf",
    ),
    _sign("hf_transfer", r"'hf_transfer' package is not available", "hf_transfer_missing", kind="hf"),
    _sign("repo", r"HFValidationError: Repo id must", "model_path_missing", EFFECT),
    _sign("cannot", r"Cannot find any model weights with", "model_path_missing"),
    _sign("appear", r"does not appear to have a file named (?P<file>\S+?)\.? ", "model_path_missing", extract=_numbers),
    _sign("repository", r"Invalid repository ID or local directory specified", "model_path_missing"),
    _sign(
        "safetensorerror",
        r"SafetensorError: .*(?:incomplete|InvalidHeader|HeaderTooLarge|MetadataIncompleteBuffer)",
        "manifest_mismatch",
    ),
    # Engine, arguments, GPU code
    _sign(
        "heads",
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
        "tp_indivisible",
        kind="vllm",
        extract=_numbers,
    ),
    _sign("divisible", r"(?P<heads>\d+) is not divisible by (?P<tp>\d+)", "tp_indivisible", EFFECT, extract=_numbers),
    _sign(
        "unrecognized", r"error: unrecognized arguments: (?P<flag>-\S+)", "bad_args", kind="vllm", extract=_unknown_flag
    ),
    _sign(
        "argument",
        r"(?:^|\s)\S*(?:vllm|launch_server|serve|llama)\S*: error: argument (?P<flag>\S+?): ",
        "bad_args",
        extract=_first_flag,
    ),
    _sign("choice", r": error: argument (?P<flag>\S+?): invalid choice", "bad_args", extract=_first_flag),
    _sign("invalid", r"^error: invalid argument: (?P<flag>\S+)", "bad_args", kind="llamacpp", extract=_first_flag),
    _sign(
        "bind",
        r"\[Errno 98\] error while attempting to bind on address \('(?P<host>[^']*)', (?P<port>\d+)\)",
        "port_busy",
        kind="vllm",
        extract=_port,
    ),
    _sign("98", r"OSError: \[Errno 98\] Address already in use", "port_busy", cause="port_in_use"),
    _sign(
        "bind eaddrinuse",
        r"couldn't bind to server socket|bind\(\) failed.*(?:in use)|EADDRINUSE",
        "port_busy",
        cause="port_in_use",
    ),
    _sign(
        "gpu",
        r"ptxas fatal\s+: Value '(?P<arch>sm_\w+)' is not defined for option 'gpu-name'",
        "ptxas_too_old",
        extract=_numbers,
    ),
    _sign("kernel", r"no kernel image is available for execution on the device", "kernel_unsupported"),
    _sign(
        "found",
        r"The NVIDIA driver on your system is too old \(found version (?P<found>\d+)\)",
        "driver_too_old",
        extract=_cuda_of,
    ),
    _sign("insufficient", r"CUDA driver version is insufficient for CUDA runtime version", "driver_too_old"),
    _sign(
        "unsatisfied", r"unsatisfied condition: cuda ?>= ?(?P<needs_cuda>[\d.]+)", "driver_too_old", extract=_numbers
    ),
    _sign("driver", r"(?:Failed to initialize NVML: )?Driver/library version mismatch", "driver_mismatch"),
    _sign(
        "architectures",
        r"Model architectures \[(?P<architectures>[^\]]{0,200})\] (?:are not supported|failed to be inspected)",
        "unsupported_model",
        extract=_numbers,
    ),
    _sign("recognize", r"Transformers does not recognize this architecture", "unsupported_model"),
    _sign("exec", r"exec format error", "image_arch", cause="exec_format_error"),
    _sign(
        "modulenotfounderror",
        r"ModuleNotFoundError: No module named '(?P<module>ray)'",
        "image_too_old",
        extract=_numbers,
    ),
    _sign("select", r"could not select device driver .{0,20}with capabilities: \[\[gpu\]\]", "toolkit_missing"),
    _sign("manifest", r"manifest (?:for \S+ )?(?:not found|unknown)", "image_not_found", kind="docker-pull"),
    _sign("cuda", r"No CUDA GPUs are available", "no_driver", EFFECT),
    _sign("device", r"Failed to infer device type", "no_driver", ECHO, kind="vllm"),
    _sign(
        "joined",
        r"DistStoreError.{0,200}?(?P<joined>\d+)/(?P<expected>\d+) clients joined",
        "rank_lost",
        EFFECT,
        extract=_numbers,
    ),
    _sign("segmentation", r"Segmentation fault", "engine_crashed", EFFECT),
    _sign(
        "nccl ncclsystemerror ncclremoteerror ncclunhandledcudaerror",
        r"NCCL error(?: in)?: .*(?:unhandled system error|internal error|remote "
        r"process)|ncclSystemError|ncclRemoteError|ncclUnhandledCudaError",
        "nccl_init",
        EFFECT,
    ),
    _sign("watchdog", r"Watchdog caught collective operation timeout", "nccl_init", EFFECT),
    _sign("enginedeaderror", r"EngineDeadError", "engine_dead", EFFECT, kind="vllm"),
    # Ray
    _sign("ray", r"Could not find any running Ray instance", "ray_not_running", cause="no_cluster", kind="ray"),
    _sign(
        "ray",
        r"Ray is trying to start at (?P<address>\S+?), but is already running at",
        "ray_already_running",
        kind="ray",
        extract=_numbers,
    ),
    _sign("ray", r"Started a local Ray instance", "ray_local_instance", EFFECT, cause="local_ray", kind="ray"),
    _sign(
        "placement",
        r"Waiting for creating a placement group of specs for (?P<waited_s>\d+) seconds",
        "ray_placement_wait",
        ECHO,
        kind="ray",
        extract=_numbers,
    ),
    _sign("placement", r"Cannot provide a placement group of", "ray_placement_wait", EFFECT, kind="ray"),
    _sign("mismatch", r"Version mismatch: The cluster was started with", "ray_version_mismatch", kind="ray"),
    _sign(
        "marked",
        r"The node with node id: \S+ and address: (?P<dead_node>\S+) .{0,120}marked dead",
        "ray_node_dead",
        kind="ray",
        extract=_numbers,
    ),
    _sign(
        "pressure",
        r"(?P<killed>\d+) Workers \(tasks / actors\) killed due to memory pressure \(OOM\)",
        "ray_oom_killer",
        kind="ray",
    ),
    _sign(
        "threshold",
        r"Memory on the node \(IP: (?P<node>[^,]+),.{0,400}?memory usage threshold",
        "ray_oom_killer",
        kind="ray",
    ),
    _sign(
        "gcs",
        r"Failed to connect to GCS|connect(?:ing)? to GCS.{0,60}timed out",
        "ray_join_timeout",
        EFFECT,
        kind="ray",
    ),
    _sign("actordiederror rayactorerror", r"ActorDiedError|RayActorError", "rank_lost", EFFECT, kind="ray"),
    # Echoes
    _sign(
        "core",
        r"Engine core initialization failed\. See root cause above\. Failed core proc\(s\): "
        r"(?P<codes>\{[^}\n]{0,1000}\})",
        "exited",
        ECHO,
        kind="vllm",
        extract=exit_codes,
    ),
    _sign("workerproc", r"WorkerProc (?:failed to start|initialization failed)", "exited", ECHO, kind="vllm"),
    _sign(
        "scheduler",
        r"Rank (?P<rank>\d+) scheduler died \(exit code: (?P<exit_code>-?\d+)\)",
        "exited",
        ECHO,
        kind="sglang",
        extract=_numbers,
    ),
    _sign("sigquit", r"Received sigquit from a child process", "exited", ECHO, kind="sglang"),
)
