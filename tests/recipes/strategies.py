"""Bodies of recipes, any that a deployment's own checks accept."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from apps.recipes.formats import bodies

LETTERS = "abcXYZ019"


def starting(first: str, more: str, most: int) -> st.SearchStrategy[str]:
    """Text that begins with a character of `first`."""
    return st.tuples(st.sampled_from(first), st.text(more, max_size=most - 1)).map("".join)


WORD = starting(LETTERS, LETTERS + "_.+-", 12)
TEXT = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=20)
NASTY = [
    '{"a": {"b": 1}}',
    "{",
    "}}",
    "{port}",
    "$HOME",
    "a'b",
    '"',
    "`x`",
    "a b",
    "\\",
    "#",
    "*",
    "-1",
    "yes",
    "1:30",
    "~",
    "null",
    "é",
    "a: b",
]
VALUE = st.one_of(WORD, st.sampled_from(NASTY), TEXT)
MODEL = st.one_of(WORD, st.tuples(WORD, WORD).map("/".join)).filter(lambda text: "+" not in text)
PATH = st.lists(st.text(LETTERS + "._- ", min_size=1, max_size=8), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
FLAG = st.lists(st.text("abcdefgh", min_size=3, max_size=8), min_size=1, max_size=2).map(
    lambda parts: "--" + "-".join(parts)
)
KNOWN_FLAGS = st.sampled_from(
    ["--trust-remote-code", "--max-num-seqs", "--enforce-eager", "-O3", "--speculative-config"]
)
OPTION = st.tuples(st.one_of(FLAG, KNOWN_FLAGS), st.lists(VALUE, max_size=2)).map(lambda one: [one[0], *one[1]])
NAME = st.one_of(
    starting("ABC", "ABC_019", 8), st.sampled_from(["HF_TOKEN", "NCCL_DEBUG", "NCCL_IB_HCA", "LD_PRELOAD"])
)


def _pairs(made: dict[str, str]) -> list[list[str]]:
    return [[name, value] for name, value in made.items()]


def body_fields(*, engine: str, runtime: str) -> st.SearchStrategy[dict[str, Any]]:
    optional = {
        "model_path": st.one_of(st.just(""), PATH),
        "container": st.one_of(st.just(""), starting(LETTERS, LETTERS + "_.-", 12)),
        "served_model_name": st.one_of(st.just(""), WORD),
        "port": st.integers(1024, 65535),
        "api_host": st.sampled_from(["0.0.0.0", "127.0.0.1", "::", "node-a"]),
        "tensor_parallel": st.integers(1, 8),
        "gpu_memory_utilization": st.one_of(st.none(), st.floats(0.01, 0.99), st.sampled_from([0.85, 0.9])),
        "max_model_len": st.one_of(st.none(), st.integers(1, 1 << 20)),
        "reasoning_parser": st.one_of(st.just(""), WORD),
        "tool_call_parser": st.one_of(st.just(""), WORD),
        "attention_backend": st.one_of(st.just(""), WORD),
        "kv_cache_dtype": st.one_of(st.just(""), WORD),
        "arguments": st.lists(OPTION, max_size=4).map(
            lambda many: (["/bin/server"] if engine == "command" else []) + [word for one in many for word in one]
        ),
        "environment": st.dictionaries(NAME, VALUE, max_size=3).map(_pairs),
        "secrets": st.lists(NAME, max_size=2, unique=True).map(
            lambda names: [{"variable": name, "name": f"s-{at}"} for at, name in enumerate(names)]
        ),
        "os_floor_gib": st.sampled_from([8.0, 0.0, 12.5]),
        "smoke_max_tokens": st.integers(1, 500),
    }
    clusters = ["ray", "native", "single"] if runtime == "docker" else ["native", "single"]
    clusters = ["single"] if engine in ("command", "llamacpp") else clusters if engine == "vllm" else clusters[-2:]
    fixed = {
        "model": MODEL,
        "image": st.just("registry.example:5000/vllm/vllm-openai:v1@sha256:ab") if runtime == "docker" else st.just(""),
        "engine": st.just(engine),
        "runtime": st.just(runtime),
        "cluster": st.sampled_from(clusters),
    }
    if engine == "llamacpp":
        for name in ("gpu_memory_utilization", "tool_call_parser", "attention_backend", "reasoning_parser"):
            del optional[name]
        optional |= {
            "kv_cache_dtype": st.sampled_from(["", "f16", "q8_0"]),
            "model_path": st.one_of(st.just(""), PATH.map(lambda path: f"{path}.gguf")),
        }
    if engine == "command":
        fixed["arguments"] = optional.pop("arguments")
    return st.fixed_dictionaries(fixed, optional=optional)


def nodes(body: dict[str, Any]) -> int:
    return 1 if body.get("cluster") == "single" else 2


def valid(body: dict[str, Any]) -> bool:
    return not bodies.errors(body, nodes(body))
