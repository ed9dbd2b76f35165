"""What must hold for any setting: more memory, fewer tokens a sequence and more ranks never make it worse; nothing is
negative; the largest setting that is offered fits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from apps.facts.values import Memory
from apps.plan import catalogue, options
from apps.plan.fit import fit, load_of
from apps.plan.spec import Spec
from apps.plan.step import Fit
from tests.plan.sheets import GIVEN, pair, qwen35

GIB = 1 << 30
NAMES = sorted(known.models[0] for known in catalogue.everything())
RANKED = {"does_not_fit": 0, "unknown": 1, "fits_after_clearing": 2, "fits": 2}


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    engine = draw(st.sampled_from(["vllm", "sglang", "llamacpp", "command"]))
    share = draw(st.floats(0.05, 0.97)) if engine in ("vllm", "sglang") else None
    return qwen35(
        model=draw(st.sampled_from(NAMES)),
        model_path="",
        engine=engine,
        gpu_memory_utilization=share,
        max_model_len=draw(st.none() | st.integers(1, 1 << 22)),
        tensor_parallel=draw(st.sampled_from([1, 2])),
        kv_cache_dtype=draw(st.sampled_from(["", "fp8", "nvfp4"])),
        os_floor_gib=draw(st.floats(0, 40)),
        arguments=draw(st.sampled_from([(), ("--max-num-seqs", "4"), ("-np", "4"), ("--data-parallel-size", "2")])),
    )


def judged(spec: Spec, total_gib: float = 120.0, used_gib: float = 6.0) -> Fit:
    total, used = int(total_gib * GIB), int(min(used_gib, total_gib) * GIB)
    sheets = {
        node: replace(sheet, memory=Memory(total, total - used, total - used, 0))
        for node, sheet in pair(busy=False).items()
    }
    weights = 20 * GIB if spec.engine == "llamacpp" else None  # a GGUF's size is known by its file alone
    return fit(spec, sheets, replace(GIVEN, weights_bytes=weights))


@settings(max_examples=100, deadline=None)
@given(specs(), st.floats(8, 600), st.floats(0, 300))
def test_nothing_is_negative_and_every_bar_adds_up(spec: Spec, total: float, used: float) -> None:
    found = judged(spec, total, used)
    assert found.sentence and found.verdict in RANKED
    assert found.kv_tokens is None or found.kv_tokens >= 0
    assert (found.verdict in ("fits", "fits_after_clearing")) == (found.kv_tokens is not None)
    for bar in found.bars:
        assert all(size >= 0 for _, size in bar.segments)
        assert sum(size for _, size in bar.segments) == bar.total_bytes + bar.over_bytes
    if found.sequences is not None:
        least = 1 if spec.engine in ("vllm", "llamacpp") else 0  # the others make do with less than one of the longest
        assert found.length and found.sequences >= least, found.sentence


@settings(max_examples=100, deadline=None)
@given(specs(), st.floats(8, 300), st.floats(1, 300))
def test_more_memory_is_never_worse(spec: Spec, total: float, more: float) -> None:
    less, larger = judged(spec, total), judged(spec, total + more)
    assert RANKED[larger.verdict] >= RANKED[less.verdict], (less.sentence, larger.sentence)
    if less.kv_tokens is not None:
        assert (larger.kv_tokens or 0) >= less.kv_tokens


@settings(max_examples=100, deadline=None)
@given(specs(), st.integers(1, 1 << 21), st.integers(1, 1 << 21))
def test_a_longer_context_never_fits_better(spec: Spec, length: int, more: int) -> None:
    short, long = (judged(replace(spec, max_model_len=size)) for size in (length, length + more))
    assert RANKED[long.verdict] <= RANKED[short.verdict], (short.sentence, long.sentence)
    if spec.engine != "llamacpp" and short.sequences is not None and long.sequences is not None:
        assert long.sequences <= short.sequences


@settings(max_examples=100, deadline=None)
@given(specs(), st.sampled_from([1, 2, 4, 8]))
def test_more_ranks_never_make_one_heavier(spec: Spec, tp: int) -> None:
    assume(spec.engine in ("vllm", "sglang"))
    few, many = (replace(spec, tensor_parallel=size) for size in (tp, tp * 2))
    held = [load_of(one, list(pair().values())).weights for one in (few, many)]
    assert held[0] is not None and held[1] is not None and held[1] <= held[0] + 1
    assert held[1] * 2 >= held[0] - 2, "no rank below its share"
    if options.ranks(many) <= len(spec.nodes):  # at most one a node; more would share its memory
        assert RANKED[judged(many).verdict] >= RANKED[judged(few).verdict]


@settings(max_examples=100, deadline=None)
@given(specs(), st.floats(20, 200))
def test_the_largest_setting_that_is_offered_fits(spec: Spec, total: float) -> None:
    found = judged(spec, total)
    if found.verdict == "does_not_fit" and found.largest:
        again = judged(replace(spec, **found.largest), total)
        assert again.verdict in ("fits", "fits_after_clearing"), (found.sentence, found.largest, again.sentence)
