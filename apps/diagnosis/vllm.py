"""The log of vLLM, 0.6 to current: milestones with values, shards per rank, readiness, and the first cause of a
failure.

Formats: vllm/v1 loggers (`INFO 05-30 07:10:12 [core.py:112] …`), the older `INFO 11-18 18:07:26 config.py:350] …`,
prefixes
`(APIServer pid=1)`, `(EngineCore_DP0 pid=2)`, `(Worker_TP1 pid=3)`, `(VllmWorker rank=1 pid=4)`, `(RayWorkerWrapper
pid=5, ip=…)`.
"""

from __future__ import annotations

import re
from typing import Any

from apps.diagnosis.alike import Found
from apps.diagnosis.book import Act, Book, Rule
from apps.diagnosis.following import LogReader
from apps.diagnosis.masking import MASK, mask_text
from apps.diagnosis.nccl import RULES as NCCL_RULES
from apps.diagnosis.nccl import SIGNS as NCCL_SIGNS
from apps.diagnosis.ray import RULES as RAY_RULES
from apps.diagnosis.ray import SIGNS as RAY_SIGNS
from apps.diagnosis.reading import Reading
from apps.diagnosis.signs import ENGINE_SIGNS, number
from apps.diagnosis.signs import exit_codes as _exit_codes
from apps.diagnosis.story import Line, Story


def _rule(trigger: str, pattern: str, act: Act, votes: int = 1) -> Rule:
    return Rule("vllm", trigger, re.compile(pattern), act, votes)


def _phase(phase: str, name: str = "", share: float = 0.0) -> Act:
    """A line that means: this phase has begun. Named groups of the pattern become facts and values of the milestone."""

    def act(story: Story, match: Found, line: Line) -> None:
        values: dict[str, Any] = {}
        if not story.told_before(match):
            values = {key: number(value) for key, value in match.groupdict().items() if value is not None}
            story.first(**values)
        if name:
            story.milestone(name, line, **values)
        story.enter(phase, line, share)

    return act


def _facts(story: Story, match: Found, line: Line) -> None:
    if match.names() <= story.facts.keys():
        return
    story.first(**{key: number(value) for key, value in match.groupdict().items() if value is not None})


def _texts(story: Story, match: Found, line: Line) -> None:
    if match.names() <= story.facts.keys():
        return
    story.first(**{key: value for key, value in match.groupdict().items() if value is not None})


def _version(story: Story, match: Found, line: Line) -> None:
    if "version" not in story.facts:
        story.first(version=match["version"])
        story.milestone("version", line, version=match["version"])


def _api_server(story: Story, match: Found, line: Line) -> None:
    """The first line of a start; after one that was ready it is a start anew."""
    story.start_again(line)
    _version(story, match, line)


def _headless(story: Story, match: Found, line: Line) -> None:
    _version(story, match, line)
    story.marks["headless"] = True
    story.fact(headless=True, head_address=match["head"])


_ARGUMENT = re.compile(r"'(?P<name>\w{1,60})': (?P<value>\[[^\]]{0,400}\]|'[^']{0,400}'|[^,}\s]{1,60})")
_KEPT = {
    "model": "model",
    "model_tag": "model",
    "served_model_name": "served_as",
    "max_model_len": "max_len",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "nnodes": "nnodes",
    "node_rank": "rank",
    "master_addr": "master_addr",
    "port": "port",
    "quantization": "quantization",
    "gpu_memory_utilization": "share",
    "distributed_executor_backend": "executor",
}


def _arguments(story: Story, match: Found, line: Line) -> None:
    dump = match["dump"]
    if story.marks.get("arguments") != hash(dump):  # the same once more says nothing new
        story.marks["arguments"] = hash(dump)
        _arguments_once(story, dump)
    if "speculative_config" in dump and "'speculative_config': None" not in dump:
        story.load.expected_loads = 2
    story.milestone("arguments", line)


def _arguments_once(story: Story, dump: str) -> None:
    if MASK.decode() in mask_text(dump):
        story.fact(secret_redacted=True)
    for found in _ARGUMENT.finditer(dump):
        name = _KEPT.get(found["name"])
        if name:
            value = found["value"].strip("[]'\"").split("'")[0]
            story.first(**{name: number(value) if name not in ("model", "served_as") else value})
        if found["name"] == "headless" and found["value"] == "True":
            story.marks["headless"] = True


_CONFIG = re.compile(
    r"\b(?P<name>model|max_seq_len|tensor_parallel_size|pipeline_parallel_size|served_model_name|block_size"
    r"|quantization)=(?P<value>'[^']{0,400}'|[^,\s]{1,80})"
)


_CONFIGURED = {
    "model": "model",
    "max_seq_len": "max_len",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "served_model_name": "served_as",
    "quantization": "quantization",
}


def _engine_config(story: Story, match: Found, line: Line) -> None:
    if story.marks.get("config") != hash(line.text):  # the same once more says nothing new
        story.marks["config"] = hash(line.text)
        for found in _CONFIG.finditer(line.text):
            name, value = _CONFIGURED.get(found["name"]), found["value"].strip("'")
            if name is not None and value != "None":
                story.first(**{name: value if name in ("model", "served_as") else number(value)})
    if "speculative_config=" in line.text and "speculative_config=None" not in line.text:
        story.load.expected_loads = 2
    story.milestone("engine_started", line)
    story.enter("starting", line)


def _world(story: Story, match: Found, line: Line) -> None:
    rank, size = int(match["rank"]), int(match["size"])
    story.fact(world_size=size)
    story.first(rank=rank)
    if line.origin.key and len(story.processes) < 2048:
        story.processes[line.origin.key] = rank
    story.marks.setdefault("local_ranks", [])
    if rank not in story.marks["local_ranks"] and len(story.marks["local_ranks"]) < 64:
        story.marks["local_ranks"].append(rank)


def _bar(story: Story, match: Found, line: Line) -> None:
    if story.ready:
        return  # bars after that are no part of the load
    for bar in line.bars:
        label = bar.label
        if "shards" in label or (label.startswith("Loading") and "loader" in label) or "Model Streamer" in label:
            unit = (
                "bytes"
                if bar.unit == "bytes"
                else "shards"
                if "shards" in label
                else "tensors"
                if "Streamer" in label
                else "files"
            )
            known = story.load.ranks.get(line.rank or 0)
            if known is None or known.total is None:
                story.milestone("load_started", line, shards=None if bar.total is None else int(bar.total))
            story.enter("loading", line)
            state = story.load.bar(line.rank, bar, unit=unit)
            story.facts["pct"] = bar.percent
            if (
                unit in ("shards", "files")
                and "loads_seen" not in story.marks
                and bar.total is not None
                and state.load == 0
            ):
                story.facts["shards"] = [round(bar.done), int(bar.total)]
            story.votes["vllm"] += 1
        elif "apturing" in label and ("CUDA graph" in label or "cudagraph" in label.lower()):
            story.enter("graphs", line, _share(bar.percent, story.load.phase == "graphs" and "FULL" in label))
            story.fact(graphs=[round(bar.done), round(bar.total or 0)])
            story.votes["vllm"] += 1
        elif "AutoTuner" in label or "utotun" in label:
            story.enter("autotuning", line, bar.percent / 100)
            story.fact(autotuned=[round(bar.done), round(bar.total or 0)])
            if bar.percent == 100:
                story.milestone("autotuned", line, profiles=round(bar.done))
        elif ".safetensors" in label or ".bin" in label or ".gguf" in label:
            story.enter("downloading", line)


def _share(percent: int, last: bool) -> float:
    """Of the graph phase: the bar of mixed batches comes first and takes the larger part."""
    return 0.6 + 0.4 * percent / 100 if last else 0.6 * percent / 100


def _weights_took(story: Story, match: Found, line: Line) -> None:
    seconds = float(match["s"])
    story.load.weights_took(line.rank, seconds)
    story.first(weights_s=seconds)
    story.milestone("weights_loaded", line, s=seconds, load=story.load.rank(line.rank).load + 1)
    story.enter("loading", line)


def _model_took(story: Story, match: Found, line: Line) -> None:
    gib = float(match["gib"])
    values: dict[str, Any] = {"model_gib": gib}
    if match["s"]:
        values["load_s"] = float(match["s"])
    story.first(model_gib=gib)
    story.fact(**{key: max(value, story.facts.get(key, 0.0)) for key, value in values.items() if key == "load_s"})
    story.milestone("model_loaded", line, **values)
    story.load.loaded(line.rank)
    story.enter("loading", line)


def _drafter(story: Story, match: Found, line: Line) -> None:
    story.load.expected_loads = max(story.load.expected_loads, 2)
    story.marks["loads_seen"] = True
    story.milestone("drafter_load_started", line)


def _compile_took(story: Story, match: Found, line: Line) -> None:
    seconds = float(match["s"])
    story.first(compile_s=seconds)
    story.milestone("compiled", line, s=seconds)
    story.enter("compiling", line, 1.0)


def _kv_tokens(story: Story, match: Found, line: Line) -> None:
    tokens = int(match["tokens"].replace(",", ""))
    # Every rank says it; the smallest decides how much fits.
    story.fact(kv_tokens=min(tokens, story.facts.get("kv_tokens", tokens)))
    story.milestone("kv_cache", line, kv_tokens=tokens)
    story.enter("profiling", line, 1.0)


def _kv_blocks(story: Story, match: Found, line: Line) -> None:
    blocks, size = int(match["gpu"]), int(story.facts.get("block_size", 16))
    story.fact(kv_blocks=blocks, cpu_blocks=int(match["cpu"]), kv_tokens=blocks * size)
    story.milestone("kv_cache", line, kv_blocks=blocks, kv_tokens=blocks * size)
    story.enter("profiling", line, 1.0)


def _concurrency(story: Story, match: Found, line: Line) -> None:
    times = float(match["times"])
    story.fact(concurrency=min(times, story.facts.get("concurrency", times)))
    story.first(max_len=int(match["tokens"].replace(",", "")))
    story.milestone(
        "concurrency", line, concurrency=float(match["times"]), max_len=int(match["tokens"].replace(",", ""))
    )


def _graphs_done(story: Story, match: Found, line: Line) -> None:
    values = {"graphs_s": number(match["s"]), "graphs_gib": float(match["gib"])}
    story.first(**values)
    story.milestone("graphs_captured", line, **values)
    story.enter("graphs", line, 1.0)
    if story.marks.get("headless"):
        story.fact(ready="with_rank0")
        story.enter("finishing", line, 1.0)


def _init_took(story: Story, match: Found, line: Line) -> None:
    story.first(init_s=float(match["s"]))
    story.milestone("engine_ready", line, init_s=float(match["s"]))
    story.enter("finishing", line)


def _serving_at(story: Story, match: Found, line: Line) -> None:
    story.fact(port=int(match["port"]))
    story.milestone("api_starting", line, port=int(match["port"]))


def _ready(story: Story, match: Found, line: Line) -> None:
    # SGLang's API starts before its warm-up; it says itself when it is ready.
    if not story.marks.get("sglang"):
        story.become_ready(line)


def _uvicorn(story: Story, match: Found, line: Line) -> None:
    story.fact(port=int(match["port"]))
    _ready(story, match, line)


def _serving(story: Story, match: Found, line: Line) -> None:
    """A log whose head is missing: what answers requests is ready."""
    if not story.ready:
        story.become_ready(line)


def _stopped(story: Story, match: Found, line: Line) -> None:
    story.stop(line)


def _kv_memory(story: Story, match: Found, line: Line) -> None:
    gib = float(match["kv_gib"])
    # Every rank says it; the smallest decides how much fits.
    story.fact(kv_gib=min(gib, story.facts.get("kv_gib", gib)))
    story.milestone("kv_memory", line, kv_gib=gib)
    story.enter("profiling", line, 0.9)


def _max_len_chosen(story: Story, match: Found, line: Line) -> None:
    """`--max-model-len auto`: the engine takes what fits."""
    story.fact(max_len=int(match["max_len"].replace(",", "")))


_TRACED = {
    "create_weights": "loading",
    "load_model": "loading",
    "load_weights": "loading",
    "profile_run": "profiling",
    "determine_available_memory": "profiling",
    "initialize_cache": "profiling",
    "capture_model": "graphs",
}


def _traced(story: Story, match: Found, line: Line) -> None:
    """A traceback names the phase, even where the log before it is missing."""
    story.marks["traced"] = _TRACED[match["function"]]


def _exits(story: Story, match: Found, line: Line) -> None:
    exits = story.marks.setdefault("exits", [])
    if len(exits) < 32:
        exits.append(dict(_exit_codes(match)["exit_codes"]))
    if len(exits) > 1:
        story.fact(exits=exits)


def _harmless(name: str, title: str) -> Act:
    return lambda story, match, line: story.warn(name, title, line)


RULES: tuple[Rule, ...] = (
    Rule("progress", "%|", re.compile(r"%"), _bar, 0),
    _rule("version", r"vLLM API server version v?(?P<version>\d\S*)", _api_server, 5),
    _rule("version", r"\u2588\s+version (?P<version>\d\S*)", _version, 5),
    _rule("█", r"\u2588\s+model\s+(?P<model>\S+)", _texts),
    _rule("initializing", r"Initializing (?:a|an) (?:V\d )?LLM engine \(v(?P<version>[^)]+)\)", _version, 5),
    _rule("initializing", r"Initializing (?:a|an) (?:V\d )?LLM engine", _engine_config, 5),
    _rule(
        "headless",
        r"Launching vLLM \(v(?P<version>[^)]+)\) headless(?: .{0,60}?head node address (?P<head>[\w.:\[\]-]+))?",
        _headless,
        5,
    ),
    _rule("non", r"non-default args: (?P<dump>\{.*)", _arguments, 5),
    _rule("resolved", r"Resolved architecture: (?P<architecture>\w+)", _texts, 2),
    _rule("using", r"Using max model len (?P<max_len>\d+)", _facts, 2),
    _rule("rank", r"\brank (?P<rank>\d{1,5}) in world size (?P<size>\d{1,5}) is assigned as", _world, 3),
    _rule(
        "world_size",
        r"world_size=(?P<size>\d{1,5}) rank=(?P<rank>\d{1,5}) local_rank=\d+ distributed_init_method=(?P<method>\S+)",
        _world,
        3,
    ),
    _rule("distributed_init_method", r"distributed_init_method=(?P<init_method>\S+)", _texts, 1),
    _rule("starting", r"Starting to load model (?P<model>\S+?)(?:\.\.\.)?$", _phase("loading", "loading"), 4),
    _rule(
        "downloading",
        r"Time spent downloading weights for \S+: (?P<download_s>[\d.]+) seconds",
        _phase("downloading", "downloaded", 1.0),
        3,
    ),
    _rule("checkpoint", r"Checkpoint size: (?P<checkpoint_gib>[\d.]+) GiB", _facts, 2),
    _rule("weights", r"Loading weights took (?P<s>[\d.]+) seconds", _weights_took, 4),
    _rule(
        "took",
        r"(?:Model loading|Loading model weights) took (?P<gib>[\d.]+) (?:GiB|GB)(?: memory)?(?: and (?P<s>[\d.]+) "
        r"seconds)?",
        _model_took,
        5,
    ),
    _rule("drafter", r"Loading drafter model", _drafter, 3),
    _rule(
        "dynamo", r"Dynamo bytecode transform time: (?P<dynamo_s>[\d.]+) s", _phase("compiling", "compiling", 0.2), 3
    ),
    _rule("compile", r"torch\.compile (?:took|takes) (?P<s>[\d.]+) s in total", _compile_took, 3),
    _rule(
        "graph",
        r"Compiling a graph for .{0,80}?takes (?P<s>[\d.]+) s",
        lambda story, match, line: story.enter("compiling", line, 0.7),
        2,
    ),
    _rule(
        "profiling",
        r"Initial profiling/warmup run took (?P<profile_s>[\d.]+) s",
        _phase("profiling", "profiled", 0.8),
        3,
    ),
    _rule("profiling", r"Memory profiling (?:takes|results)", _phase("profiling", "profiled", 0.8), 3),
    _rule(
        "reserved",
        r"model weights take (?P<model_gib>[\d.]+)GiB;.{0,200}reserved for KV Cache is (?P<kv_gib>[\d.]+)GiB",
        _facts,
        3,
    ),
    _rule("kv_cache_size", r"kv_cache_size=(?P<kv_gib>[\d.]+)GiB", _facts, 1),
    _rule("available", r"Available KV cache memory: (?P<kv_gib>-?[\d.]+) GiB", _kv_memory, 4),
    _rule(
        "fit",
        r"[Aa]uto-fit max_model_len: .{0,40}?from [\d,]+ to (?P<max_len>\d[\d,]*)",
        _max_len_chosen,
        3,
    ),
    _rule("cache", r"(?:GPU|CPU) KV cache size: (?P<tokens>[\d,]+) tokens", _kv_tokens, 4),
    _rule("blocks", r"# (?:GPU|CUDA|cuda|CPU) blocks: (?P<gpu>\d+), # CPU blocks: (?P<cpu>\d+)", _kv_blocks, 4),
    _rule(
        "concurrency",
        r"Maximum concurrency for (?P<tokens>[\d,]+) tokens per request: (?P<times>[\d.]+)x",
        _concurrency,
        4,
    ),
    _rule("autotuning", r"[Aa]utotuning process starts", _phase("autotuning"), 1),
    _rule("capturing", r"Capturing (?:the model for CUDA graphs|cudagraphs)", _phase("graphs", "graphs_started"), 2),
    _rule("capturing", r"Graph capturing finished in (?P<s>[\d.]+) secs?, took (?P<gib>-?[\d.]+) GiB", _graphs_done, 4),
    _rule("init", r"init engine \(profile, create kv cache, warmup model\) took (?P<s>[\d.]+) s", _init_took, 5),
    _rule("vllm", r"Starting vLLM (?:API )?server(?: \d+)? on http://\S*?:(?P<port>\d{1,5})\b", _serving_at, 5),
    _rule("vllm", r"vLLM is using nccl==(?P<nccl>[\d.]+)", _texts, 3),
    _rule("uvicorn", r"Uvicorn running on https?://\S*?:(?P<port>\d{1,5})\b", _uvicorn, 1),
    _rule("startup", r"Application startup complete", _ready, 2),
    _rule("generation", r"Avg generation throughput: [\d.]+ tokens/s", _serving, 3),
    Rule(
        "vllm",
        "post",
        re.compile(r'"POST /v1/(?:chat/)?(?:completions|responses|messages) HTTP/[\d.]+" 200'),
        _serving,
        0,
    ),
    _rule("shutdown", r"Application shutdown complete", _stopped, 1),
    _rule("shutting", r"Shutting down FastAPI HTTP server|received signal \d+, shutting down", _stopped, 2),
    *(
        Rule("vllm", function, re.compile(r"line \d+, in (?P<function>" + function + r")\b"), _traced, in_paths=True)
        for function in _TRACED
    ),
    _rule("proc", r"Failed core proc\(s\): (?P<codes>\{[^}\n]{0,1000}\})", _exits, 3),
    # Said in every normal start on a Spark.
    _rule(
        "native",
        r"does not have native support for FP4",
        _harmless("fp4_weight_only", "FP4 runs weight-only through Marlin; fine, a little slower"),
    ),
    _rule(
        "symmmemcommunicator",
        r"SymmMemCommunicator: .*not (?:supported|available)",
        _harmless("symm_mem", "Symmetric memory is not used on this GPU; fine"),
    ),
    _rule(
        "allreduce",
        r"Custom [Aa]llreduce is disabled",
        _harmless("custom_allreduce", "Custom allreduce is off across nodes; fine"),
    ),
    _rule(
        "moe",
        r"Using default MoE config",
        _harmless("moe_config", "No tuned MoE config for this GPU; fine, maybe slower"),
    ),
    _rule(
        "capability",
        r"cuda capability \d+\.\d+",
        _harmless("torch_capability", "torch lists older GPUs only; fine on GB10"),
    ),
    _rule(
        "unauthenticated",
        r"unauthenticated requests to the HF Hub",
        _harmless("hub_unauthenticated", "No hub token; fine for open models"),
    ),
    _rule(
        "sms",
        r"Not enough SMs to use max_autotune_gemm",
        _harmless("few_sms", "GEMM autotuning is off on this GPU; fine"),
    ),
    _rule(
        "min_p",
        r"min_p and logit_bias parameters won't work",
        _harmless("speculative_sampling", "Some sampling parameters are off with a drafter"),
    ),
    _rule(
        "destroy_process_group",
        r"destroy_process_group\(\) was not called",
        _harmless("process_group", "Not closed cleanly; says nothing about the cause"),
    ),
    _rule(
        "broadcast",
        r"No available shared memory broadcast block found in \d+ seconds",
        _harmless("slow_step", "A rank waits long for the others: fine while compiling, a hang when it goes on"),
        3,
    ),
    _rule("deprecated", r"\[DEPRECATED\]", _harmless("deprecated_argument", "An argument is deprecated")),
)

_BOOK = Book.of((*RULES, *NCCL_RULES, *RAY_RULES), (*ENGINE_SIGNS, *NCCL_SIGNS, *RAY_SIGNS))


class Reader(LogReader):
    """Follow one stream of vLLM output: `feed`, `close`, and `reading` at any time."""

    def __init__(self) -> None:
        super().__init__(_BOOK, "vllm")


def read(data: bytes) -> Reading:
    """The Reading of a whole log."""
    reader = Reader()
    reader.feed(data)
    reader.close()
    return reader.reading()
