"""Further arguments of vLLM as options: its short names and underscores are known, so that the plan, the fit and the
checks read them alike."""

from __future__ import annotations

from collections.abc import Sequence

from apps.plan.spec import Spec

ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-O": "-O",
}


def canonical(flag: str) -> str:
    """vLLM takes underscores for dashes and short names."""
    return ALIASES.get(flag, flag.replace("_", "-") if flag.startswith("--") else flag)


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
    """Option -> its value ("" where it has none); of one that is given twice the last, as vLLM takes it."""
    made: dict[str, str] = {}
    for flag, words in group(spec.arguments):
        _, mark, value = words[0].partition("=")
        made[canonical(flag)] = value if mark else words[1] if len(words) > 1 else ""
    return made


def whole(spec: Spec, flag: str) -> int | None:
    """The value of an option as a whole number of at least 1; None where it is none or is not given."""
    value = values(spec).get(flag, "")
    return int(value) if value.isascii() and value.isdecimal() and int(value) else None


def pipeline_parallel(spec: Spec) -> int:
    """Stages that the model's layers are split over."""
    return whole(spec, "--pipeline-parallel-size") or 1


def ranks(spec: Spec) -> int:
    """GPUs that the engine wants in all: tensor x pipeline x data parallel."""
    return max(1, spec.tensor_parallel) * pipeline_parallel(spec) * (whole(spec, "--data-parallel-size") or 1)
