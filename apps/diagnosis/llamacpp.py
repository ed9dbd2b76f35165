"""The log of llama.cpp's server (`llama_model_loader: …`, `srv  …`, `main: …`), old and new spellings."""

from __future__ import annotations

import re

from apps.diagnosis.alike import Found
from apps.diagnosis.book import Act, Book, Rule
from apps.diagnosis.following import LogReader
from apps.diagnosis.reading import Reading
from apps.diagnosis.signs import ENGINE_SIGNS, Sign, number
from apps.diagnosis.story import Line, Story


def _rule(trigger: str, pattern: str, act: Act, votes: int = 3) -> Rule:
    return Rule("llamacpp", trigger, re.compile(pattern), act, votes)


def _facts(story: Story, match: Found, line: Line) -> None:
    story.first(**{key: number(value) for key, value in match.groupdict().items() if value is not None})


def _build(story: Story, match: Found, line: Line) -> None:
    story.first(version=f"b{match['build']}")
    story.milestone("version", line, version=f"b{match['build']}")


def _loader(story: Story, match: Found, line: Line) -> None:
    story.first(model=match["model"], tensors=int(match["tensors"]))
    story.milestone("loading", line, tensors=int(match["tensors"]))
    story.enter("loading", line)


def _buffer(story: Story, match: Found, line: Line) -> None:
    gib = round(float(match["mib"]) / 1024, 3)
    story.fact(model_gib=round(story.facts.get("model_gib", 0.0) + gib, 3))
    story.enter("loading", line, 0.5)


def _kv(story: Story, match: Found, line: Line) -> None:
    story.first(kv_gib=round(float(match["mib"]) / 1024, 3))
    story.milestone("kv_cache", line, kv_gib=story.facts["kv_gib"])
    story.load.loaded(None)
    story.enter("profiling", line)


def _loaded(story: Story, match: Found, line: Line) -> None:
    story.milestone("model_loaded", line)
    story.load.loaded(None)
    story.enter("finishing", line)


def _listening(story: Story, match: Found, line: Line) -> None:
    story.first(port=int(match["port"]))
    story.milestone("api_starting", line, port=int(match["port"]))
    if story.load.phase == "finishing":
        story.become_ready(line)


def _ready(story: Story, match: Found, line: Line) -> None:
    story.become_ready(line)


RULES: tuple[Rule, ...] = (
    _rule("build", r"\bbuild(?:_info)?: (?:b)?(?P<build>\d{3,6})\b", _build),
    _rule(
        "llama_model_loader",
        r"llama_model_loader: loaded meta data with .*?(?P<tensors>\d+) tensors from (?P<model>\S+)",
        _loader,
        6,
    ),
    _rule("buffer", r"load_tensors: .*model buffer size = *(?P<mib>[\d.]+) MiB", _buffer, 4),
    _rule(
        "size",
        r"(?:llama_kv_cache\w*|llama_context|llama_new_context_with_model): (?:size|KV self size) *= "
        r"*(?P<mib>[\d.]+) MiB",
        _kv,
        4,
    ),
    _rule(
        "n_ctx",
        r"(?:llama_context|llama_new_context_with_model|llama_init_from_model): n_ctx *= (?P<max_len>\d+)",
        _facts,
    ),
    _rule("loaded", r"(?:main|srv\s+\S+?|llama_server)\S*: model loaded", _loaded, 5),
    _rule("listening", r"server is listening on http://\S*?:(?P<port>\d{1,5})", _listening, 5),
    _rule("hostname", r"HTTP server is listening, hostname: \S+, port: (?P<port>\d{1,5})", _listening, 5),
    _rule("idle", r"all slots are idle", _ready, 4),
)

SIGNS: tuple[Sign, ...] = (
    Sign(
        "llama_model_load",
        re.compile(r"llama_model_load: error loading model: (?:.*(?:tensor|corrupted|out of bounds))"),
        "manifest_mismatch",
        kind="llamacpp",
    ),
    Sign(
        "architecture",
        re.compile(r"unknown model architecture: '(?P<architecture>[^']+)'"),
        "unsupported_model",
        kind="llamacpp",
        extract=lambda match: {"architecture": match["architecture"]},
    ),
    Sign(
        "open",
        re.compile(r"(?:failed to open|error loading model:.*No such file).{0,200}(?:gguf|GGUF|No such file)"),
        "model_path_missing",
        kind="llamacpp",
    ),
    Sign(
        "magic",
        re.compile(r"gguf_init_from_file\w*: invalid magic"),
        "manifest_mismatch",
        kind="llamacpp",
    ),
    Sign("cudamalloc", re.compile(r"cudaMalloc failed: out of memory"), "oom_gpu", cause="cuda_oom", kind="llamacpp"),
    Sign(
        "bind",
        re.compile(r"couldn't bind (?:HTTP server socket|to server socket)"),
        "port_busy",
        cause="port_in_use",
        kind="llamacpp",
    ),
    Sign(
        "exiting", re.compile(r"exiting due to (?:model loading error|HTTP server error)"), "exited", 1, kind="llamacpp"
    ),
)

_BOOK = Book.of(RULES, (*SIGNS, *ENGINE_SIGNS))


class Reader(LogReader):
    """Follow one stream of llama-server's output."""

    def __init__(self) -> None:
        super().__init__(_BOOK, "llamacpp")


def read(data: bytes) -> Reading:
    """The Reading of a whole log."""
    reader = Reader()
    reader.feed(data)
    reader.close()
    return reader.reading()
