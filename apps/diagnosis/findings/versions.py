"""Which version of what knows which model, GPU or driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from apps.facts.values import ModelFolder

# The first vLLM release that knows a model type, by its release notes; only where an older image is likely to be met.
FIRST_VLLM: dict[str, tuple[int, ...]] = {
    "qwen3_next": (0, 11),
    "qwen3_5": (0, 17),
    "qwen3_5_moe": (0, 17),
    "gpt_oss": (0, 10, 1),
    "glm4_moe_lite": (0, 14),
    "qwen3_vl": (0, 11),
    "qwen3_vl_moe": (0, 11),
    "deepseek_v32": (0, 11),
}
# The same of SGLang, by what its documentation of the model asks for.
FIRST_SGLANG: dict[str, tuple[int, ...]] = {
    "qwen3_next": (0, 5, 2),
    "qwen3_5": (0, 5, 9),
    "qwen3_5_moe": (0, 5, 9),
}
FIRST: dict[str, dict[str, tuple[int, ...]]] = {"vllm": FIRST_VLLM, "sglang": FIRST_SGLANG}
# Compute capability by a part of the name that nvidia-smi gives (CUDA GPU list of NVIDIA); only parts that name one.
CAPABILITIES = {
    "GB10": (12, 1),
    "RTX PRO 6000 Blackwell": (12, 0),
    "RTX 5090": (12, 0),
    "B200": (10, 0),
    "H200": (9, 0),
    "H100": (9, 0),
    "L40": (8, 9),
    "RTX 4090": (8, 9),
    "A100": (8, 0),
}
_ARCHITECTURE = re.compile(r"(\d{1,2})\.(\d)([af]?)(\+PTX)?", re.IGNORECASE)
_CONDITION = re.compile(r"cuda>=(\d{1,3})\.(\d{1,3})")
_DRIVERS = re.compile(r"driver(>=|<)(\d{3,4})")


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "0.14.0rc2.dev262" -> (0, 14, 0)."""
    found = re.match(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?", text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else ()


def spoken(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def model_type(model: ModelFolder | None) -> str:
    """config.json's, of the language part; "" when unknown."""
    config: Mapping[str, Any] = (model.config if model else None) or {}
    return str(config.get("model_type", "")).removesuffix("_text")


def too_old(seen: str, kind: str, engine: str = "vllm") -> tuple[int, ...] | None:
    """The first version of the engine that knows this model type, where `seen` is older; None when it is not, or when nobody
    knows."""
    first, have = FIRST.get(engine, {}).get(kind), version(seen)
    return first if first and have and have < first else None


def surely_too_old(seen: str, kind: str, engine: str = "vllm") -> bool:
    """Whether it can't know this model type. A build between releases may know what only the next release is known for."""
    first = too_old(seen, kind, engine)
    if first is None:
        return False
    have = version(seen)[: len(first)]
    if re.search(r"dev|rc|a\d|b\d|\+", seen):
        have = (*have[:-1], have[-1] + 1)
    return have < first


def capability(gpu: str | None) -> tuple[int, int] | None:
    """Compute capability of a GPU by its name, None when the name says nothing certain."""
    return next((found for part, found in CAPABILITIES.items() if part.lower() in (gpu or "").lower()), None)


def has_code(arch_list: str, wanted: tuple[int, int]) -> bool | None:
    """Whether an image built for TORCH_CUDA_ARCH_LIST has code for this capability; None when the list can't be read.

    Code runs on the same major version from its own minor upwards, unless it was built for one GPU alone (`12.0a`;
    `12.0f` runs in its family); `+PTX` can be compiled for anything later (CUDA C++ programming guide, 3.1).
    """
    entries = _ARCHITECTURE.findall(arch_list)
    if not entries:
        return None
    for major, minor, suffix, ptx in entries:
        built = (int(major), int(minor))
        if built == wanted or (ptx and built <= wanted):
            return True
        if suffix.lower() != "a" and built[0] == wanted[0] and built <= wanted:
            return True
    return False


def cuda_wanted(require: str, cuda: str | None, driver: str | None) -> str | None:
    """The CUDA version of NVIDIA_REQUIRE_CUDA that this driver lacks, e.g. "13.1"; None when it is met, or may be.

    Blanks stand for *or*, commas for *and* (nvidia-container-toolkit); clauses that name older drivers count when this
    driver's branch is among them.
    """
    have = version(cuda or "")[:2]
    clauses = require.split()
    asked = next((found for clause in clauses if (found := _CONDITION.search(clause))), None)
    if asked is None or len(have) < 2:
        return None
    wanted = (int(asked[1]), int(asked[2]))
    branch = version(driver or "")[:1]
    if have >= wanted or any(_branch_allowed(clause, branch) for clause in clauses):
        return None
    return spoken(wanted)


def _branch_allowed(clause: str, branch: tuple[int, ...]) -> bool:
    limits = _DRIVERS.findall(clause)
    if not limits or not branch:
        return False
    return all(branch[0] >= int(number) if sign == ">=" else branch[0] < int(number) for sign, number in limits)
