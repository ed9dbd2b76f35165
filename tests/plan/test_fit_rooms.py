"""The machine's side: a GPU with memory of its own, page cache, other deployments, and engines that take what they
need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from apps.facts.sheet import Sheet
from apps.facts.values import Container, Gpu, GpuProcess, Gpus, Memory, ModelFolder, Privileges
from apps.plan.fit import fit, load_of
from apps.plan.rooms import claim_bytes, room_of, rooms_of, used_gpus
from apps.plan.spec import Clear, Given, Other, Spec
from apps.plan.step import Fit
from tests.plan.sheets import GIVEN, SMALL, TOTAL, pair, plain, qwen35, servers, tiny

GIB, MIB = 1 << 30, 1 << 20
EIGHT = "/models/Qwen3-8B"


def small(**changes: object) -> Spec:
    """Qwen3-8B on one Spark."""
    made = {"model": "Qwen/Qwen3-8B", "model_path": EIGHT, "nodes": ("spark-1a32",), "tensor_parallel": 1}
    return qwen35(**{**made, "cluster": "single", "max_model_len": 32768, **changes})


def alone(sheet: Sheet | None = None, given: Given = GIVEN, **changes: object) -> Fit:
    return fit(small(**changes), {"spark-1a32": sheet or pair(busy=False)["spark-1a32"]}, given)


def four(*used_gib: float, held: tuple[tuple[str, int, int], ...] = ()) -> Sheet:
    """A server with four GPUs; `held`: (container, GPU, GiB)."""
    gpus = tuple(
        Gpu(at, "H100", memory_total_mib=80 << 10, memory_used_mib=int(used * 1024)) for at, used in enumerate(used_gib)
    )
    processes = tuple(
        GpuProcess(100 + place, "vllm", gib << 10, gpu=gpu, container=name)
        for place, (name, gpu, gib) in enumerate(held)
    )
    boxes = tuple(
        Container(name, f"id-{name}", "vllm", None, "running", memory_bytes=30 * GIB)
        for name in dict.fromkeys(name for name, _, _ in held)
    )
    base = servers(4, 4)["spark-1a32"]
    return replace(base, gpus=Gpus("580", "13.0", gpus, processes), containers=boxes)


# GPUs with memory of their own


def test_each_gpu_has_its_own_room_and_the_tightest_decides() -> None:
    sheet = four(0, 30, 10, 0, held=(("a", 1, 30), ("b", 2, 10)))
    spec = small(tensor_parallel=4)
    rooms = rooms_of(spec, sheet, GIVEN)
    assert [(room.gpu, room.available // GIB, room.freeable // GIB) for room in rooms] == [
        (0, 80, 0),
        (1, 50, 30),
        (2, 70, 10),
        (3, 80, 0),
    ], "the main memory of a container is not the GPU's"
    found = alone(sheet, tensor_parallel=4, gpu_memory_utilization=0.8)
    assert found.verdict == "fits_after_clearing" and "14.0 GiB on GPU 1 of spark-1a32 is cleared" in found.sentence
    assert (found.bars[0].gpu, found.bars[0].gpus, found.bars[0].total_bytes) == (1, 4, 80 * GIB)


def test_what_is_cleared_on_one_gpu_frees_nothing_on_another() -> None:
    """As a sum over all cards 20 + 20 would have been enough for the 30 that the first lacks."""
    sheet = four(30, 20, 20, 0, held=(("b", 1, 20), ("c", 2, 20)))
    given = replace(GIVEN, clear=(Clear("spark-1a32", "container", "b"), Clear("spark-1a32", "container", "c")))
    found = alone(sheet, given, tensor_parallel=4, gpu_memory_utilization=0.9)
    assert found.verdict == "does_not_fit" and "GPU 0 of spark-1a32 by 22.0 GiB" in found.sentence
    first, second, *_ = rooms_of(small(tensor_parallel=4), sheet, given)
    assert (first.freed, second.freed) == (0, 20 * GIB) and second.after == 80 * GIB


def test_only_the_gpus_that_are_used_count() -> None:
    sheet = four(0, 0, 79, 79)
    assert alone(sheet, tensor_parallel=2, gpu_memory_utilization=0.9).verdict == "fits"
    chosen = small(tensor_parallel=2, environment=(("CUDA_VISIBLE_DEVICES", "2, 3"),))
    assert [gpu.index for gpu in used_gpus(chosen, sheet)] == [2, 3]
    room = room_of(chosen, sheet, GIVEN)
    assert room and room.gpu == 2 and room.available == GIB
    unequal = replace(sheet, gpus=Gpus("580", "13.0", tuple(replace(g, memory_total_mib=(80 - 40 * g.index) << 10) for g in sheet.gpus.gpus[:2]) if sheet.gpus else ()))  # fmt: skip
    assert claim_bytes(small(tensor_parallel=2, gpu_memory_utilization=0.5), unequal) == 20 * GIB


# The page cache, the floor, unequal nodes


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        (Privileges("all", True), "the launch drops it"),
        (Privileges("none", True, drop_caches=False), "this login may not drop it: run sync"),
        (None, "the launch drops it"),
    ],
)
def test_page_cache_is_said_where_the_engine_would_miss_it(rights: Privileges | None, said: str) -> None:
    sheet = replace(
        pair(busy=False)["spark-1a32"], memory=Memory(TOTAL, 40 * GIB, 112 * GIB, 72 * GIB), privileges=rights
    )
    found = alone(sheet)
    assert found.verdict == "fits"
    assert any("72.0 GiB of spark-1a32 is page cache" in one and said in one for one in found.remarks), found.remarks
    assert not any("page cache" in one for one in alone(sheet, gpu_memory_utilization=0.3).remarks), "40 GiB are enough"


def test_the_floor_is_a_persons() -> None:
    assert alone(gpu_memory_utilization=0.9, os_floor_gib=8.0).verdict == "fits"
    refused = alone(gpu_memory_utilization=0.9, os_floor_gib=16.0)
    assert refused.verdict == "does_not_fit" and "less than the floor of 16.0 GiB" in refused.sentence
    assert refused.largest["gpu_memory_utilization"] == 0.86
    assert alone(**{"os_floor_gib": 16.0, **refused.largest}).verdict == "fits"


def test_half_of_a_pair_with_64_gib() -> None:
    sheets = pair(busy=False)
    sheets["spark-5be3"] = replace(sheets["spark-5be3"], memory=Memory(60 * GIB, 55 * GIB, 57 * GIB))
    found = fit(qwen35(), sheets, GIVEN)
    assert found.verdict == "does_not_fit" and "on spark-5be3 by" in found.sentence, found.sentence


# Other deployments of ours


def test_a_launching_deployment_has_what_it_claimed() -> None:
    """It took 5 GiB so far and will take 60 % of the memory; a second one must not be told that there is room."""
    other = Other(
        9, "embeddings", "launching", small(name="embeddings", gpu_memory_utilization=0.6, max_model_len=None)
    )
    given = replace(GIVEN, others=(other,))
    found = alone(given=given, gpu_memory_utilization=0.5)
    claimed = int(TOTAL * 0.6)
    assert found.verdict == "fits_after_clearing" and "stop embeddings" in found.sentence
    assert dict(found.bars[0].deployments) == {"embeddings": claimed}
    assert any("claimed by embeddings and not taken yet" in one for one in found.remarks)
    assert alone(given=given, gpu_memory_utilization=0.3).verdict == "fits"
    serving = replace(given, others=(replace(other, state="serving"),))
    assert alone(given=serving, gpu_memory_utilization=0.5).verdict == "fits", "what it holds shows in MemAvailable"


def test_more_than_there_is_shows_as_such() -> None:
    found = alone(model="meta-llama/Llama-3.1-70B", model_path="", gpu_memory_utilization=0.85)
    bar = found.bars[0]
    assert (
        found.verdict == "does_not_fit" and bar.over_bytes == sum(size for _, size in bar.segments) - TOTAL > 20 * GIB
    )
    assert alone().bars[0].over_bytes == 0


# Engines


def test_options_count_like_fields() -> None:
    fields = alone(gpu_memory_utilization=0.5, max_model_len=16384, kv_cache_dtype="fp8")
    words = ("--gpu_memory_utilization=0.5", "--max-model-len", "16K", "--kv-cache-dtype", "fp8")
    options = alone(gpu_memory_utilization=None, max_model_len=None, arguments=words)
    assert options == fields and options.length == 16384


def test_sglang_takes_a_share_of_what_is_free_and_the_rest_beside_it() -> None:
    free = 112 * GIB
    sheet = replace(pair(busy=False)["spark-1a32"], memory=Memory(TOTAL, free, free, 0))
    half = alone(sheet, engine="sglang", gpu_memory_utilization=0.5)
    weights = load_of(small(engine="sglang"), [sheet]).weights or 0
    assert half.verdict == "fits" and claim_bytes(small(engine="sglang"), sheet) is None
    segments = dict(half.bars[0].segments)
    assert segments["kv"] == free // 2 - weights and segments["graphs"] == 4 * GIB
    assert (
        alone(sheet, engine="sglang", gpu_memory_utilization=None, arguments=("--mem-fraction-static", "0.5")) == half
    )
    tight = alone(sheet, engine="sglang", gpu_memory_utilization=0.97)
    assert tight.verdict == "does_not_fit" and "for graphs and activations" in tight.sentence
    assert alone(sheet, engine="sglang", **tight.largest).verdict == "fits"


def test_llamacpp_takes_its_whole_context_at_once() -> None:
    """--ctx-size is shared by the slots; the KV cache is as large as that, not as large as what is left."""
    whole = alone(engine="llamacpp", gpu_memory_utilization=None, max_model_len=65536)
    per_token = 36 * 2 * 8 * 128 * 2
    assert whole.verdict == "fits" and dict(whole.bars[0].segments)["kv"] == 65536 * per_token
    slots = alone(
        engine="llamacpp", gpu_memory_utilization=None, max_model_len=None, arguments=("-c", "65536", "-np", "4")
    )
    assert (slots.length, slots.sequences, slots.kv_tokens) == (16384, 4, 65536)
    vast = alone(engine="llamacpp", gpu_memory_utilization=None, max_model_len=1 << 20)
    assert vast.verdict == "does_not_fit" and "for the KV cache" in vast.sentence
    assert alone(engine="llamacpp", gpu_memory_utilization=None, **vast.largest).verdict == "fits"


def test_a_gguf_is_as_large_as_its_file() -> None:
    folder = ModelFolder(
        "/models/gguf",
        weights_bytes=100 * GIB,
        complete=True,
        config=SMALL.config,
        gguf=(("m-Q4.gguf", 5 * GIB), ("m-Q8-00001-of-00002.gguf", 6 * GIB), ("m-Q8-00002-of-00002.gguf", 3 * GIB)),
    )
    sheet = replace(pair(busy=False)["spark-1a32"], models=(folder,))
    for name, size in (("m-Q4.gguf", 5), ("m-Q8-00001-of-00002.gguf", 9)):
        spec = small(engine="llamacpp", model="local", model_path=f"/models/gguf/{name}", gpu_memory_utilization=None)
        assert load_of(spec, [sheet]).weights == pytest.approx(size * GIB, rel=1e-6)
    gone = small(engine="llamacpp", model="local", model_path="/models/gguf/other.gguf", gpu_memory_utilization=None)
    assert load_of(gone, [sheet]).weights is None
    named = replace(gone, model="Qwen/Qwen3-8B")
    assert load_of(named, [sheet]).weights is None, "the catalogue knows another quantisation"


def test_an_unfinished_download_is_as_large_as_its_index_says() -> None:
    part = replace(SMALL, complete=False, weights_bytes=3 * GIB, index_total_bytes=16_381_470_720)
    sheet = replace(pair(busy=False)["spark-1a32"], models=(part,))
    assert load_of(small(), [sheet]).weights == pytest.approx(16_381_470_720, rel=1e-6)
    silent = replace(sheet, models=(replace(part, index_total_bytes=None),))
    assert load_of(small(), [silent]).weights == pytest.approx(16_381_470_720, rel=1e-6), "the catalogue's"


def test_speculative_decoding_takes_its_part() -> None:
    plain = alone()
    ngram = alone(arguments=("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'))
    assert ngram.kv_tokens == plain.kv_tokens
    own = alone(arguments=("--speculative-config", '{"model": "Qwen/Qwen3-8B", "num_speculative_tokens": 4}'))
    assert own.kv_tokens and plain.kv_tokens and own.kv_tokens < plain.kv_tokens / 2, (
        "its weights and as much cache again"
    )
    unseen = alone(arguments=("--speculative-config", '{"method": "eagle3", "model": "some/drafter"}'))
    assert unseen.verdict == "unknown" and "the drafter some/drafter was not seen" in unseen.sentence
    broken = alone(arguments=("--speculative-config", "{"))
    assert broken.verdict == "unknown" and "it is not said what drafts" in broken.sentence


# What a person gives


def test_files_beat_what_is_given_and_that_beats_the_catalogue() -> None:
    given = replace(GIVEN, config={**(SMALL.config or {}), "num_hidden_layers": 18}, weights_bytes=8 * GIB)
    assert alone(given=given) == alone()
    away = alone(given=given, model_path="/models/nowhere")
    assert away.kv_tokens and (alone().kv_tokens or 0) * 2 < away.kv_tokens * 1.1, "half the layers"
    assert any("their size is from what was given" in one for one in away.remarks)
    counted = alone(given=replace(given, weights_bytes=None), model_path="/models/nowhere", model="my/own")
    assert counted.verdict == "unknown", "this config says no vocabulary, so its weights can't be counted"
    whole = {**(SMALL.config or {}), "vocab_size": 151936, "intermediate_size": 12288}
    counted = alone(given=replace(GIVEN, config=whole), model_path="/models/nowhere", model="my/own")
    assert counted.verdict == "fits" and any(
        "worked out from the config.json that was given" in one for one in counted.remarks
    )


# The largest setting


def test_a_larger_tensor_parallel_is_found_where_there_are_gpus() -> None:
    made = alone(four(0, 0, 0, 0), model="meta-llama/Llama-3.1-70B", model_path="", max_model_len=131072)
    assert made.verdict == "does_not_fit" and made.largest["tensor_parallel"] == 4, made.largest
    again = alone(
        four(0, 0, 0, 0), model="meta-llama/Llama-3.1-70B", model_path="", **{"max_model_len": 131072, **made.largest}
    )
    assert again.verdict == "fits"


def test_how_many_sparks_would_hold_it_is_said() -> None:
    one = alone(model="meta-llama/Llama-3.1-70B", model_path="", max_model_len=8192, gpu_memory_utilization=0.85)
    assert one.largest == {} and "2 such nodes would hold it (tensor parallel 2)" in one.sentence
    vast = alone(model="deepseek-ai/DeepSeek-V3", model_path="", max_model_len=8192, gpu_memory_utilization=0.85)
    assert "8 such nodes would hold it (tensor parallel 8)" in vast.sentence


def test_a_larger_share_is_found() -> None:
    low = alone(gpu_memory_utilization=0.1)
    assert low.verdict == "does_not_fit" and low.largest["gpu_memory_utilization"] > 0.8
    assert alone(**{"max_model_len": 32768, **low.largest}).verdict == "fits"


def test_the_cpu_run_shares_its_memory_among_its_ranks() -> None:
    one, two = (fit(tiny(tensor_parallel=size), {"box": plain()}, GIVEN) for size in (1, 2))
    assert dict(two.bars[0].segments)["graphs"] == 2 * dict(one.bars[0].segments)["graphs"]
