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

from apps.diagnosis.alike import Found

ROOT, EFFECT, ECHO, SUSPECT = 3, 2, 1, 0
Values = dict[str, Any]
Extract = Callable[[Found], Values]


def _nothing(_: Found) -> Values:
    return {}


def _numbers(match: Found) -> Values:
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
    until_milestone: bool = False  # says that something is waited for: the next milestone proves that it came


def _sign(trigger: str, pattern: str, reason: str, strength: int = ROOT, **more: Any) -> Sign:
    return Sign(trigger, re.compile(pattern), reason, strength, **more)


def _tried(match: Found) -> Values:
    size = float(match["tried"]) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[match["unit"]]
    made: Values = {"tried_mib": int(size) if size == int(size) else round(size, 2)}
    if match["total"]:
        made["total_gib"] = float(match["total"])
        free = float(match["free"]) * {"KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1}[match["free_unit"]]
        made["free_gib"] = round(free, 3)
    return made


def _cuda_of(match: Found) -> Values:
    found = int(match["found"])
    return {"driver_cuda": f"{found // 1000}.{found % 1000 // 10}"}


_SIGNALS = {-6: "SIGABRT", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM", -7: "SIGBUS", -4: "SIGILL"}


def exit_codes(match: Found) -> Values:
    """The braces of \"Failed core proc(s)\": exit codes by process, signals by name."""
    codes = {name: int(code) for name, code in re.findall(r"'([^']{1,80})': (-?\d{1,6})", match["codes"])}
    return {"exit_codes": {name: _SIGNALS.get(code, code) for name, code in codes.items()}}


def _port(match: Found) -> Values:
    return {"host": match["host"], "port": int(match["port"]), "cause": f"port_in_use:{int(match['port'])}"}


def _unknown_flag(match: Found) -> Values:
    return {"argument": match["flag"], "cause": f"unknown_argument:{match['flag']}"}


def _first_flag(match: Found) -> Values:
    return {"argument": match["flag"]}


def _beyond_model(match: Found) -> Values:
    found = {"max_len": int(match["max_len"]), "argument": match["argument"]}
    if match["limit"]:
        found["suggest"] = int(match["limit"])
    return found


def _missing_program(match: Found) -> Values:
    """A shell that does not find a command; for some commands that has a name of its own."""
    program = next(name for name in match.groupdict().values() if name).rsplit("/", 1)[-1]
    return {"program": program, "cause": f"command_not_found:{program}"}


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
        "warming",
        r"out of memory occurred when warming up sampler",
        "oom_gpu",
        cause="cuda_oom",
        kind="vllm",
        values={"phase": "graphs"},
    ),
    _sign(
        "profiling",
        r"Error in memory profiling\. Initial free memory (?P<before_gib>[\d.]+)(?: GiB)?, current free memory "
        r"(?P<now_gib>[\d.]+)",
        "memory_not_released",
        cause="memory_changed_while_profiling",
        kind="vllm",
        extract=_numbers,
    ),
    _sign(
        "unbalanced",
        r"The memory capacity is unbalanced",
        "memory_not_released",
        cause="memory_unbalanced",
        kind="sglang",
    ),
    _sign("cublas_status_alloc_failed", r"CUBLAS_STATUS_ALLOC_FAILED", "oom_gpu", EFFECT, cause="cuda_oom"),
    _sign(
        "outofmemoryerror",
        r"(?:^|[^.\w])(?:torch\.)?(?:cuda\.)?OutOfMemoryError: (?!CUDA out of memory\. Tried)",
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
    _sign("runtime", r"CUDA runtime error in cudaMalloc\w*: out of memory", "oom_gpu", cause="cuda_oom"),
    _sign("semlock", r"SemLock\._rebuild", "ipc_removed", EFFECT),
    _sign(
        "permissionerror",
        r"PermissionError: \[Errno 13\] Permission denied: (?P<path>\S{1,300})",
        "permission_denied",
        EFFECT,
        extract=_numbers,
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
    _sign(
        "client",
        r"^(?!.*RepositoryNotFound).*401 Client Error\. \(Request ID",
        "hub_auth",
        cause="needs_token",
        kind="hf",
    ),
    _sign(
        "client forbidden",
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
    # Without a token the hub hides what is private behind 401; the error's class says what it is.
    _sign("repositorynotfounderror", r"RepositoryNotFoundError", "hub_missing", kind="hf"),
    _sign("revisionnotfounderror", r"RevisionNotFoundError", "hub_missing", kind="hf"),
    _sign("listed", r"is not a local folder and is not a valid model identifier listed on", "hub_missing"),
    _sign(
        "many",
        r"429 (?:Client Error: )?Too Many Requests",
        "hub_rate_limited",
        values={"status": 429, "retry_after_s": None},
        kind="hf",
    ),
    _sign(
        "hf_transfer",
        r"error occurred while downloading using `hf_transfer`",
        "hub_unreachable",
        EFFECT,
        cause="hub_storage_error",
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
    _sign(
        "client",
        r"404 Client Error(?:\. \(Request ID|: Not Found for url: https://huggingface)",
        "hub_missing",
        kind="hf",
    ),
    _sign("entrynotfounderror", r"EntryNotFoundError: 404", "hub_missing", EFFECT, kind="hf"),
    _sign(
        "token",
        r"Token is required|Invalid user token|User [Aa]ccess [Tt]oken .{0,80}(?:is expired|not found)",
        "hub_auth",
        cause="needs_token",
        kind="hf",
    ),
    _sign(
        "locate",
        r"error happened while trying to locate the files? on the Hub",
        "hub_unreachable",
        cause="no_internet",
        kind="hf",
    ),
    _sign(
        "resolution known timed unreachable refused handshake",
        r"(?:httpx|httpcore|requests|urllib3|aiohttp)\.\S{1,80}: .{0,400}?(?:name resolution|Name or service not known"
        r"|[Tt]imed out|Network is unreachable|Connection refused|handshake)",
        "hub_unreachable",
        EFFECT,
        cause="no_internet",
        kind="hf",
    ),
    _sign(
        "cas",
        r"CAS service error|CAS Client Error",
        "hub_unreachable",
        EFFECT,
        cause="hub_storage_error",
        kind="hf",
    ),
    _sign(
        "server",
        r"(?P<status>5\d\d) Server Error(?:: .{0,60})? for url: https://(?:\w+\.)*(?:huggingface\.co|hf\.co)",
        "hub_unreachable",
        cause="hub_server_error",
        kind="hf",
        extract=_numbers,
    ),
    _sign(
        "consistency",
        r"Consistency check failed: file should be of size",
        "manifest_mismatch",
        cause="wrong_size",
        kind="hf",
    ),
    _sign("cannot", r"Cannot find any model weights with", "model_path_missing"),
    _sign(
        "tokenizer",
        r"Couldn't instantiate the backend tokenizer|Can't load tokenizer for",
        "model_path_missing",
        cause="tokenizer_missing",
    ),
    _sign(
        "tokenizer",
        r"Tokenizer class \S+ does not exist or is not currently imported",
        "unsupported_model",
        cause="tokenizer_unsupported",
    ),
    _sign(
        "directory",
        r"No such file or directory: ['\"]?(?P<file>[^'\"\s]{1,300}\.(?:safetensors|bin|gguf|pt|pth))\b",
        "manifest_mismatch",
        cause="file_missing",
        extract=_numbers,
    ),
    _sign(
        "pytorchstreamreader", r"PytorchStreamReader failed (?:reading zip archive|locating file)", "manifest_mismatch"
    ),
    _sign("appear", r"does not appear to have a file named (?P<file>\S+?)\.? ", "model_path_missing", extract=_numbers),
    _sign("repository", r"Invalid repository ID or local directory specified", "model_path_missing"),
    _sign(
        "safetensorerror",
        r"SafetensorError: .*(?:deserializing header|[Ii]ncomplete|InvalidHeader|HeaderTooLarge|Buffer)",
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
        "divisible",
        r"(?P<size>\d+) is not divisible by (?:min_thread_[kn]|weight quantization block_[nk]) = (?P<block>\d+)",
        "tp_indivisible",
        cause="weights_indivisible",
        kind="vllm",
        extract=_numbers,
    ),
    _sign(
        "unrecognized",
        r"^(?!.*(?:launch_server|sglang)).*error: unrecognized arguments: (?P<flag>-\S+)",
        "bad_args",
        kind="vllm",
        extract=_unknown_flag,
    ),
    _sign(
        "unrecognized",
        r"(?:launch_server|sglang).{0,60}error: unrecognized arguments: (?P<flag>-\S+)",
        "bad_args",
        kind="sglang",
        extract=_unknown_flag,
    ),
    _sign(
        "greater",
        r"User-specified (?P<argument>max_model_len|context_length) \((?P<max_len>\d+)\) is greater than the derived "
        r"\w+(?: \((?:\w+=)?(?P<limit>\d+))?",
        "bad_args",
        cause="max_len_exceeds_model",
        extract=_beyond_model,
    ),
    _sign(
        "trust_remote_code custom",
        r"contains custom code which must be executed|[Pp]lease pass the argument `trust_remote_code=True`",
        "bad_args",
        cause="trust_remote_code",
        values={"argument": "--trust-remote-code"},
    ),
    _sign(
        "quantization",
        r"Unknown quantization method: (?P<quantization>[\w-]+)",
        "unsupported_model",
        cause="quantization_unknown",
        kind="vllm",
        extract=_numbers,
    ),
    _sign(
        "quantization",
        r"[Qq]uantization method (?P<quantization>\S+) is not supported for the current GPU",
        "kernel_unsupported",
        cause="quantization_unsupported",
        kind="vllm",
        extract=_numbers,
    ),
    _sign(
        "bfloat16",
        r"Bfloat16 is only supported on GPUs with compute capability of at least",
        "bad_args",
        cause="dtype_unsupported",
        kind="vllm",
        values={"argument": "--dtype"},
    ),
    _sign(
        "world",
        r"World size \((?P<world_size>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)",
        "bad_args",
        cause="not_enough_gpus",
        kind="vllm",
        extract=_numbers,
    ),
    _sign(
        "required",
        r"number of required GPUs exceeds the total number of available GPUs",
        "ray_placement_wait",
        cause="not_enough_gpus_in_ray",
        kind="vllm",
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
        r"\[Errno 98\] error while attempting to bind on address \('(?P<host>[^']*)', (?P<port>\d+)[,)]",
        "port_busy",
        kind="vllm",
        extract=_port,
    ),
    _sign("errno", r"OSError: \[Errno 98\] Address already in use", "port_busy", cause="port_in_use"),
    _sign(
        "address",
        r"ZMQError: Address already in use(?: \(addr='tcp://(?P<host>[^']*):(?P<port>\d+)')?",
        "port_busy",
        cause="port_in_use",
        extract=_numbers,
    ),
    _sign(
        "tcp tcp4",
        r"listen tcp4? (?P<host>\S*):(?P<port>\d+): bind: address already in use",
        "port_busy",
        extract=_port,
    ),
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
    _sign(
        "unsupported",
        r"nvcc fatal\s+: Unsupported gpu architecture 'compute_(?P<arch>\w+)'",
        "ptxas_too_old",
        cause="nvcc_too_old",
        extract=_numbers,
    ),
    _sign(
        "nvcc",
        r"Could not find nvcc|No such file or directory: '[^']*nvcc'|nvcc: (?:command )?not found",
        "program_missing",
        cause="nvcc_missing",
        values={"program": "nvcc"},
    ),
    _sign(
        "compiler ninja",
        r"Failed to find C compiler|Ninja is required to load C\+\+ extensions|No such file or directory: 'ninja'",
        "program_missing",
        cause="compiler_missing",
    ),
    _sign("h", r"fatal error: Python\.h: No such file", "program_missing", cause="compiler_missing"),
    _sign("kernel", r"no kernel image is available for execution on the device", "kernel_unsupported"),
    _sign("image", r"device kernel image is invalid", "kernel_unsupported"),
    _sign("architectures", r"No supported CUDA architectures found", "kernel_unsupported"),
    _sign(
        "cublas_status_arch_mismatch",
        r"CUBLAS_STATUS_ARCH_MISMATCH",
        "kernel_unsupported",
    ),
    _sign("attention", r"No valid attention backend found", "kernel_unsupported", cause="no_attention_backend"),
    _sign("kernel", r"Failed to find a kernel that can implement", "kernel_unsupported", cause="no_matching_kernel"),
    _sign(
        "outofresources",
        r"OutOfResources: out of resource: (?P<resource>[\w ]{1,40})",
        "kernel_unsupported",
        cause="kernel_out_of_resources",
        extract=_numbers,
    ),
    _sign(
        "illegal unspecified misaligned device",
        r"CUDA error: (?:an illegal (?:memory access|instruction)|unspecified launch failure|misaligned address"
        r"|device-side assert)",
        "engine_crashed",
        cause="cuda_error",
    ),
    _sign(
        "cuda",
        r"CUDA error: (?!out of memory|no kernel image|uncorrectable|an illegal|unspecified|misaligned|device-side)\w",
        "engine_crashed",
        EFFECT,
        cause="cuda_error",
    ),
    _sign("ecc", r"CUDA error: uncorrectable ECC error", "gpu_lost", cause="ecc_error"),
    _sign("ptx", r"provided PTX was compiled with an unsupported toolchain", "driver_too_old", cause="ptx_too_new"),
    _sign(
        "compatibility",
        r"forward compatibility was attempted on non supported HW",
        "driver_too_old",
        cause="compat_not_supported",
    ),
    _sign(
        "unsupported",
        r"system has unsupported display driver / cuda driver combination",
        "driver_mismatch",
        cause="driver_combination",
    ),
    _sign("libcuda", r"libcuda\.so(?:\.1)?: cannot open shared object file", "no_driver"),
    _sign(
        "open",
        r"(?P<library>lib(?!cuda\.so|ibverbs)[\w.+-]{1,80}\.so[\d.]*): cannot open shared object file",
        "image_broken",
        cause="library_missing",
        extract=_numbers,
    ),
    _sign(
        "undefined",
        r"undefined symbol: (?P<symbol>\w{1,200})",
        "image_broken",
        cause="undefined_symbol",
        extract=_numbers,
    ),
    _sign("sgl_kernel", r"\[sgl_kernel\] CRITICAL", "image_broken", cause="kernel_library_unusable", kind="sglang"),
    _sign(
        "_opnamespace",
        r"'_OpNamespace' '\w+' object has no attribute",
        "image_broken",
        EFFECT,
        cause="operator_missing",
    ),
    _sign(
        "found",
        r"The NVIDIA driver on your system is too old \(found version (?P<found>\d+)\)",
        "driver_too_old",
        extract=_cuda_of,
    ),
    _sign("insufficient", r"CUDA driver version is insufficient for CUDA runtime version", "driver_too_old"),
    _sign(
        "unsatisfied",
        r"unsatisfied condition: cuda ?>= ?(?P<needs_cuda>\d+\.\d+)",
        "driver_too_old",
        extract=Found.groupdict,
    ),
    _sign(
        "driver", r"(?:Failed to initialize NVML: |nvml error: )?[Dd]river/library version mismatch", "driver_mismatch"
    ),
    _sign(
        "architectures",
        r"Model architectures \[(?P<architectures>[^\]]{0,200})\] (?:are not supported|failed to be inspected)",
        "unsupported_model",
        extract=_numbers,
    ),
    _sign("recognize", r"Transformers does not recognize this architecture", "unsupported_model"),
    _sign(
        "implementation",
        r"(?P<architectures>\w+) has no (?:SGlang|SGLang|vLLM) implementation",
        "unsupported_model",
        extract=_numbers,
    ),
    _sign(
        "architectures",
        r"Unsupported architectures: (?P<architectures>[^.]{1,200})\.",
        "unsupported_model",
        extract=_numbers,
    ),
    _sign("parameter", r"There is no module or parameter named", "unsupported_model", EFFECT, cause="weights_unknown"),
    _sign("exec", r"exec format error", "image_arch", cause="exec_format_error"),
    _sign(
        "matching",
        r"no matching manifest for (?P<platform>\S+)",
        "image_arch",
        cause="no_matching_manifest",
        kind="docker-pull",
        extract=_numbers,
    ),
    _sign(
        "modulenotfounderror",
        r"ModuleNotFoundError: No module named '(?P<module>ray)'",
        "image_too_old",
        cause="ray_missing",
        extract=_numbers,
    ),
    _sign(
        "ray",
        r"Unable to load Ray: |Ray is not installed|please install Ray",
        "image_too_old",
        cause="ray_missing",
        kind="vllm",
    ),
    _sign(
        "modulenotfounderror",
        r"ModuleNotFoundError: No module named '(?P<module>(?!ray')[\w.]{1,80})'",
        "image_broken",
        EFFECT,
        cause="module_missing",
        extract=_numbers,
    ),
    _sign("select", r"could not select device driver .{0,20}with capabilities: \[\[gpu\]\]", "toolkit_missing"),
    _sign(
        "runtime cdi gpu",
        r"unknown or invalid runtime name: nvidia|unresolvable CDI devices|failed to discover GPU vendor from CDI"
        r"|known GPU vendor found",
        "toolkit_missing",
    ),
    _sign(
        "nvml",
        r"nvidia-container-cli: .{0,80}nvml error: (?:driver not loaded|library not found)",
        "no_driver",
        kind="docker",
    ),
    _sign("libnvidia", r"load library failed: libnvidia-ml\.so", "no_driver", kind="docker"),
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
    _sign(
        "client",
        r"client socket has timed out after (?P<waited_ms>\d+) ?ms while trying to connect to \(?(?P<address>[^,)\s]+), "
        r"?(?P<port>\d+)",
        "rank_lost",
        cause="rendezvous_timeout",
        extract=_numbers,
    ),
    _sign("connectfullmesh", r"Gloo connectFullMesh failed", "nccl_init", cause="gloo_connect"),
    _sign(
        "address",
        r"Unable to find address for: (?P<interface>\S+)",
        "nccl_init",
        cause="nccl_no_interface",
        extract=_numbers,
    ),
    _sign(
        "timed",
        r"Timed out waiting for engine core processes|Timed out waiting for engines to send",
        "http_never_ready",
        EFFECT,
        cause="engine_ready_timeout",
        kind="vllm",
    ),
    _sign(
        "rpc",
        r"TimeoutError: RPC call to (?P<call>\w+) timed out",
        "engine_dead",
        EFFECT,
        cause="rpc_timeout",
        kind="vllm",
        extract=_numbers,
    ),
    _sign(
        "segmentation segfault",
        r"Segmentation fault|!!!!!!! Segfault encountered",
        "engine_crashed",
        EFFECT,
        cause="sigsegv",
    ),
    _sign(
        "fatal",
        r"Fatal Python error: (?:Aborted|Illegal instruction|Floating point exception)",
        "engine_crashed",
        EFFECT,
    ),
    _sign("bus", r"Fatal Python error: Bus error|^Bus error(?: \(core dumped\))?\s*$", "shm_too_small", EFFECT),
    _sign(
        "nccl ncclsystemerror ncclremoteerror ncclunhandledcudaerror",
        r"NCCL error(?: in)?: .*(?:unhandled system error|internal error|remote "
        r"process)|ncclSystemError|ncclRemoteError|ncclUnhandledCudaError",
        "nccl_init",
        EFFECT,
    ),
    _sign("watchdog", r"Watchdog caught collective operation timeout", "nccl_init", EFFECT, kind="nccl"),
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
        until_milestone=True,
    ),
    _sign(
        "unique",
        r"[Ee]very node should have a unique IP address|and (?P<unique>\d+) unique IP addresses",
        "ray_wrong_ip",
        kind="ray",
    ),
    _sign(
        "gpu",
        r"Current node has no GPU available",
        "ray_placement_wait",
        cause="ray_without_gpu",
        kind="ray",
    ),
    _sign("placement", r"Cannot provide a placement group of", "ray_placement_wait", EFFECT, kind="ray"),
    _sign("mismatch", r"Version mismatch: The cluster was started with", "ray_version_mismatch", kind="ray"),
    _sign(
        "marked",
        r"The node with node id: \S+ and address: (?P<dead_node>\S+) .{0,120}?marked dead",
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
        r"Failed to connect to GCS|Unable to connect to GCS|unable to connect to GCS|connect to GCS.{0,60}timed out"
        r"|connecting to GCS.{0,60}timed out|from GCS/raylet",
        "ray_join_timeout",
        EFFECT,
        kind="ray",
    ),
    _sign("actordiederror rayactorerror", r"ActorDiedError|RayActorError", "rank_lost", EFFECT, kind="ray"),
    _sign(
        "outofmemoryerror",
        r"ray\.exceptions\.OutOfMemoryError: ",
        "ray_oom_killer",
        kind="ray",
    ),
    _sign(
        "found",
        r"(?:^|\s)(?:/bin/)?(?:ba|da|z|k|a)?sh: (?:line )?(?:\d+: )?(?P<program>[\w./+-]{1,80}): (?:command )?not found\s*$",
        "program_missing",
        EFFECT,
        extract=_missing_program,
    ),
    _sign(
        "command found",
        r"fish: Unknown command:? '?(?P<fish>[\w./+-]{1,80})|zsh:\d+: command not found: (?P<zsh>[\w./+-]{1,80})"
        r"|exec: \"(?P<exec>[\w./+-]{1,80})\": executable file not found",
        "program_missing",
        EFFECT,
        extract=_missing_program,
    ),
    _sign("nvidia", r"nvidia-smi: (?:command )?not found", "no_driver"),
    _sign(
        "communicate",
        r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        "no_driver",
        cause="driver_not_loaded",
    ),
    _sign("devices", r"^No devices were found\s*$", "no_driver", cause="no_gpu"),
    _sign("nvml", r"Failed to initialize NVML: Driver Not Loaded", "no_driver", cause="driver_not_loaded"),
    _sign("lost", r"Unable to determine the device handle for .{0,80}(?:lost|Unknown Error)|GPU is lost", "gpu_lost"),
    # Echoes
    _sign("enginedeaderror", r"EngineDeadError", "engine_dead", ECHO, kind="vllm"),
    _sign("enginecore", r"EngineCore encountered a fatal error", "engine_dead", ECHO, kind="vllm"),
    _sign(
        "asyncenginedeaderror background",
        r"AsyncEngineDeadError|Background loop has errored",
        "engine_dead",
        ECHO,
        kind="vllm",
    ),
    _sign("mqengineerror mqenginedeaderror", r"MQEngineError|MQEngineDeadError", "engine_dead", ECHO, kind="vllm"),
    _sign("hit", r"WorkerProc hit an exception", "engine_dead", ECHO, kind="vllm"),
    _sign("start running", r"Engine process failed to start|Engine loop is not running", "exited", ECHO, kind="vllm"),
    _sign("enginecore", r"EngineCore failed to start", "exited", ECHO, kind="vllm"),
    _sign(
        "died",
        r"Worker proc VllmWorker-(?P<rank>\d+) died unexpectedly",
        "rank_lost",
        ECHO,
        kind="vllm",
    ),
    _sign("unexpectedly", r"Engine core proc \S+ died unexpectedly", "engine_dead", ECHO, kind="vllm"),
    _sign("childfailederror", r"ChildFailedError", "exited", ECHO),
    _sign("killed", r"^Killed\s*$", "exited", ECHO, values={"exit_code": -9}),
    _sign("terminate", r"terminate called after throwing an instance of", "engine_crashed", ECHO),
    _sign(
        "proc",
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
