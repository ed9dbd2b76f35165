"""The log of SGLang: `[2026-03-05 20:43:58 TP0] …`. Memory is printed in "GB" and means GiB."""

from __future__ import annotations

import re

from apps.diagnosis.alike import Found
from apps.diagnosis.book import Act, Book, Rule, counted
from apps.diagnosis.following import LogReader
from apps.diagnosis.nccl import RULES as NCCL_RULES
from apps.diagnosis.nccl import SIGNS as NCCL_SIGNS
from apps.diagnosis.reading import Reading
from apps.diagnosis.signs import ENGINE_SIGNS, Sign, number
from apps.diagnosis.story import Line, Story
from apps.diagnosis.vllm import RULES as VLLM_RULES

_TAG = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: DP\d+)?(?: PP\d+)? TP(?P<rank>\d{1,4})")


def _rank(line: Line) -> int | None:
    tag = _TAG.match(line.text) if line.text[:1] == "[" else None
    return int(tag[1]) if tag else line.rank


def _rule(trigger: str, pattern: str, act: Act, votes: int = 3) -> Rule:
    def of_rank(story: Story, match: Found, line: Line) -> None:
        story.marks["sglang"] = True
        rank = _rank(line)
        if rank != line.rank:
            line = Line(line.number, line.text, line.origin, rank, line.bars, line.stamped)
        act(story, match, line)

    return Rule("sglang", trigger, re.compile(pattern), of_rank, votes)


_ARGUMENT = re.compile(
    r"\b(?P<name>model_path|tp_size|mem_fraction_static|port|served_model_name|context_length|nnodes|node_rank)="
    r"(?P<value>'[^']{0,400}'|[^,)\s]{1,60})"
)
_KEPT = {
    "model_path": "model",
    "tp_size": "tp",
    "mem_fraction_static": "share",
    "port": "port",
    "served_model_name": "served_as",
    "context_length": "max_len",
    "nnodes": "nnodes",
    "node_rank": "node_rank",
}


def _arguments(story: Story, match: Found, line: Line) -> None:
    story.start_again(line)
    if story.marks.get("arguments") != hash(line.text):  # the same once more says nothing new
        story.marks["arguments"] = hash(line.text)
        for found in _ARGUMENT.finditer(line.text):
            value = found["value"]
            if value != "None":
                story.first(**{_KEPT[found["name"]]: value.strip("'") if value.startswith("'") else number(value)})
    story.milestone("arguments", line)
    story.enter("starting", line)


def _dist_begins(story: Story, match: Found, line: Line) -> None:
    story.marks["in_dist_init"] = True
    story.fact(meeting=True)
    story.milestone("distributed_init", line)
    story.enter("starting", line)


def _dist_ends(story: Story, match: Found, line: Line) -> None:
    story.marks["in_dist_init"] = False
    story.fact(meeting=False)
    story.milestone("distributed_ready", line)
    story.enter("starting", line, 0.5)


def _load_begins(story: Story, match: Found, line: Line) -> None:
    story.marks["in_dist_init"] = False
    story.fact(meeting=False)
    story.first(available_gib=float(match["avail"]))
    story.milestone("loading", line)
    story.enter("loading", line)


def _load_ends(story: Story, match: Found, line: Line) -> None:
    story.first(architecture=match["type"], model_gib=float(match["used"]))
    story.milestone("model_loaded", line, model_gib=float(match["used"]))
    story.load.loaded(line.rank)
    story.enter("loading", line)


def _kv(story: Story, match: Found, line: Line) -> None:
    tokens = int(match["tokens"])
    story.first(kv_tokens=tokens)
    if match["k"]:
        story.first(kv_gib=round(float(match["k"]) + float(match["v"]), 2))
    story.milestone("kv_cache", line, kv_tokens=tokens)
    story.enter("profiling", line, 1.0)


def _pool(story: Story, match: Found, line: Line) -> None:
    story.fact(free_gib=float(match["avail"]))


def _capture(story: Story, match: Found, line: Line) -> None:
    story.milestone("graphs_started", line)
    story.enter("graphs", line)


def _captured(story: Story, match: Found, line: Line) -> None:
    story.first(capture_s=float(match["s"]))
    story.milestone("graphs_captured", line, capture_s=float(match["s"]))
    story.enter("graphs", line, 1.0)


def _limits(story: Story, match: Found, line: Line) -> None:
    story.first(kv_tokens=int(match["tokens"]))
    if match["context"]:
        story.first(max_len=int(match["context"]))


def _bar(story: Story, match: Found, line: Line) -> None:
    if story.ready:
        return  # bars after that are no part of the load
    for bar in line.bars:
        if bar.label.startswith("Capturing batches"):
            story.votes["sglang"] += 2
            story.enter("graphs", line, bar.percent / 100)
            story.fact(graphs=[round(bar.done), round(bar.total or 0)])


def _ready(story: Story, match: Found, line: Line) -> None:
    story.become_ready(line)


def _version(story: Story, match: Found, line: Line) -> None:
    story.first(nccl=match["version"])


def _speaks(story: Story, match: Found, line: Line) -> None:
    """The traceback that follows bears no tag: it is this rank's."""
    story.marks["speaker"] = line.rank


def _serving(story: Story, match: Found, line: Line) -> None:
    if not story.ready:
        story.become_ready(line)


def _without_api(story: Story, match: Found, line: Line) -> None:
    """Nodes after the first have no API of their own: they are ready with rank 0."""
    story.fact(ready="with_rank0")
    story.milestone("engine_ready", line)
    story.enter("finishing", line, 1.0)


def _waited_too_long(story: Story, match: Found, line: Line) -> None:
    if story.marks.get("in_dist_init"):
        story.suspect(_HANG, line.number, line.text, line.rank, {"phase": "nccl_init_hang"})


def _died(story: Story, match: Found, line: Line) -> None:
    """A scheduler that ends while the ranks still look for each other was ended by the watchdog: NCCL's set-up
    hangs."""
    story.fact(exit_code=int(match["code"]))
    if story.marks.get("in_dist_init"):
        story.suspect(_HANG, line.number, line.text, int(match["rank"]), {"phase": "nccl_init_hang"})


_HANG = Sign("init torch", re.compile(r"(?!)"), "nccl_init_hang", kind="sglang")  # told by what is missing, by no line

RULES: tuple[Rule, ...] = (
    Rule("sglang", "%|", re.compile("Capturing batches"), _bar, 0),
    _rule("server_args", r"server_args=ServerArgs\(", _arguments, 6),
    _rule("torch", r"Init torch distributed begin", _dist_begins),
    _rule("torch", r"Init torch distributed ends", _dist_ends),
    _rule("load", r"Load weight begin\. avail mem=(?P<avail>[\d.]+) GB", _load_begins, 5),
    _rule(
        "load",
        r"Load weight end\.(?: elapsed=[\d.]+ s,)? type=(?P<type>\w+),.*?mem usage=(?P<used>[\d.]+) GB",
        _load_ends,
        5,
    ),
    _rule(
        "allocated",
        r"KV Cache is allocated\..*?#tokens: (?P<tokens>\d+)(?:, K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB)?",
        _kv,
        5,
    ),
    _rule("pool", r"Memory pool end\. avail mem=(?P<avail>[\d.]+) GB", _pool),
    _rule("capture", r"Capture cuda graph begin", _capture, 4),
    _rule("capture", r"Capture cuda graph end\. Time elapsed: (?P<s>[\d.]+) s", _captured, 4),
    _rule(
        "max_total_num_tokens", r"max_total_num_tokens=(?P<tokens>\d+)(?:.*?context_len=(?P<context>\d+))?", _limits, 5
    ),
    _rule("scheduler", r"Scheduler hit an exception", _speaks),
    _rule("watchdog", r"Watchdog timeout \(", _waited_too_long),
    _rule("dummy", r"Dummy health check server (?:is running|scheduled)", _without_api),
    _rule("decode", r"Decode batch[.,\s].{0,20}#running-req", _serving),
    _rule("prefill", r"Prefill batch[.,\s].{0,20}#new-seq", counted),
    _rule(
        "health",
        r"Health check failed\. Server couldn't get a response",
        lambda story, match, line: story.warn(
            "health_check", "The engine did not answer its own health check in time", line, severity="warning"
        ),
    ),
    _rule("roll", r"The server is fired up and ready to roll!", _ready, 8),
    _rule("sglang", r"sglang is using nccl==(?P<version>[\d.]+)", _version, 5),
    _rule("scheduler", r"Rank (?P<rank>\d+) scheduler died \(exit code: (?P<code>-?\d+)\)", _died, 5),
    _rule(
        "customallreduce",
        r"CustomAllreduce is disabled",
        lambda story, match, line: story.warn("custom_allreduce", "Custom allreduce is off across nodes; fine", line),
    ),
)


# The shard bar and the API server's lines are the same as vLLM's.
_BOOK = Book.of((*VLLM_RULES, *RULES, *NCCL_RULES), (*ENGINE_SIGNS, *NCCL_SIGNS))


class Reader(LogReader):
    """Follow one stream of SGLang output."""

    def __init__(self) -> None:
        super().__init__(_BOOK, "sglang")


def read(data: bytes) -> Reading:
    """The Reading of a whole log."""
    reader = Reader()
    reader.feed(data)
    reader.close()
    return reader.reading()
