"""The reader of an engine's output by the name that a plan's step gives (`Step.follows`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from apps.diagnosis import copying, fetching, llamacpp, sglang, vllm
from apps.diagnosis.reading import Reader

READERS: Mapping[str, Callable[[], Reader]] = {
    "vllm": vllm.Reader,
    "ray": vllm.Reader,  # on the head of a Ray cluster both print
    "sglang": sglang.Reader,
    "llamacpp": llamacpp.Reader,
    "fetch": fetching.Reader,
    "copy": copying.Reader,
}


def reader_of(name: str) -> Reader | None:
    """None for output that is in no format known here."""
    return READERS[name]() if name in READERS else None
