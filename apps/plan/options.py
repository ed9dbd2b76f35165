"""An engine's further arguments as options: its short names and underscores are known, so that the plan, the fit and the
checks read them alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apps.plan.spec import Spec

# Names that mean the same, by the engines' own --help: vLLM 0.17, SGLang 0.5, llama.cpp b6000.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "-tp": "--tensor-parallel-size",
        "-pp": "--pipeline-parallel-size",
        "-dp": "--data-parallel-size",
        "-O": "-O",
    },
    "sglang": {
        "--model": "--model-path",
        "--tp": "--tp-size",
        "--tensor-parallel-size": "--tp-size",
        "--pp": "--pp-size",
        "--pipeline-parallel-size": "--pp-size",
        "--dp": "--dp-size",
        "--data-parallel-size": "--dp-size",
        "--nccl-init-addr": "--dist-init-addr",
    },
    "llamacpp": {
        "-m": "--model",
        "-a": "--alias",
        "-c": "--ctx-size",
        "-ngl": "--n-gpu-layers",
        "--gpu-layers": "--n-gpu-layers",
        "-hf": "--hf-repo",
        "-hfr": "--hf-repo",
        "-ctk": "--cache-type-k",
        "-ctv": "--cache-type-v",
        "-np": "--parallel",
        "--no-jinja": "--jinja",
    },
}
MOST_DIGITS = 15  # of a number that can mean something: bytes of a cache have 12
UNDERSCORES = ("vllm", "llamacpp")  # take _ for - in a long name
PIPELINE = {"vllm": "--pipeline-parallel-size", "sglang": "--pp-size"}
DATA = {"vllm": "--data-parallel-size", "sglang": "--dp-size"}


def canonical(flag: str, engine: str = "vllm") -> str:
    """The name under which an engine's option is known here."""
    if engine in UNDERSCORES and flag.startswith("--"):
        flag = flag.replace("_", "-")
    return ALIASES.get(engine, {}).get(flag, flag)


def group(words: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Further arguments by option: ("--a", "1", "--b=2") -> (("--a", ("--a", "1")), ("--b", ("--b=2",)))."""
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        starts = len(word) > 1 and word.startswith("-") and not word[1].isdigit() and word[1] != "."
        if starts or not groups:
            groups.append((word.partition("=")[0], [word]))
        else:
            groups[-1][1].append(word)
    return tuple((flag, tuple(parts)) for flag, parts in groups)


def values(spec: Spec) -> dict[str, str]:
    """Option -> its value ("" where it has none); of one that is given twice the last, as the engines take it."""
    made: dict[str, str] = {}
    for flag, words in group(spec.arguments):
        _, mark, value = words[0].partition("=")
        made[canonical(flag, spec.engine)] = value if mark else words[1] if len(words) > 1 else ""
    return made


def whole(spec: Spec, flag: str) -> int | None:
    """The value of an option as a whole number of at least 1; None where it is none, is larger than anything can be, or is not
    given."""
    value = values(spec).get(flag, "").lstrip("0")
    return int(value) if value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS else None


def pipeline_parallel(spec: Spec) -> int:
    """Stages that the model's layers are split over."""
    return whole(spec, PIPELINE.get(spec.engine, "")) or 1


def data_parallel(spec: Spec) -> int:
    """Replicas that have GPUs of their own; SGLang's data-parallel attention shares those of tensor parallel."""
    if spec.engine == "sglang" and "--enable-dp-attention" in values(spec):
        return 1
    return whole(spec, DATA.get(spec.engine, "")) or 1


def ranks(spec: Spec) -> int:
    """GPUs that the engine wants in all: tensor x pipeline x data parallel."""
    return max(1, spec.tensor_parallel) * pipeline_parallel(spec) * data_parallel(spec)
