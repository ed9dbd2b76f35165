"""Settings that can't work together, or not with this model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apps.diagnosis.findings.holders import discrete
from apps.diagnosis.findings.versions import capability
from apps.facts.sheet import Sheet
from apps.facts.values import ModelFolder
from apps.plan import options
from apps.plan.fit import GIB, claim_bytes, model_of
from apps.plan.kvcache import is_hybrid_gdn, text_config
from apps.plan.spec import TITLES, Spec, validate
from apps.plan.step import Problem


def fields(spec: Spec) -> Iterator[Problem]:
    """Fields that are nonsense by themselves."""
    for error in validate(spec):
        yield Problem("bad_args", "stop", f"{error.field}: {error.message}", remedy=error.remedy)


def check(spec: Spec, sheets: Sequence[Sheet]) -> Iterator[Problem]:
    """Settings against the nodes and the model's config."""
    model = model_of(spec, sheets)
    config: Mapping[str, Any] | None = model.config if model else None
    if spec.engine == "command":
        return  # what it is told is its own business
    yield from _ranks(spec, sheets)
    if spec.engine == "llamacpp":
        return  # it splits layers and rows as they come, and takes what memory it needs
    yield from _heads(spec, config)
    yield from _attention(spec, sheets, config)
    yield from _unequal(spec, sheets, model)
    yield from _share(spec, sheets)


def _ranks(spec: Spec, sheets: Sequence[Sheet]) -> Iterator[Problem]:
    if len(sheets) != len(spec.nodes):
        return
    per_node = [len(sheet.gpus.gpus) if sheet.gpus and sheet.gpus.gpus else 1 for sheet in sheets]
    if options.data_parallel(spec) > 1:
        return  # its replicas may be started in several ways
    stages = options.pipeline_parallel(spec)
    bytes_each = _bytes_each(spec, sheets)
    if stages > 1:
        yield _stages(spec, stages, sum(per_node), bytes_each)
    elif len(spec.nodes) > 1 and spec.tensor_parallel != sum(per_node):
        yield Problem(
            "tp_mismatch",
            "stop",
            f"Tensor parallel is {spec.tensor_parallel}, the nodes have {sum(per_node)} GPUs together",
            meaning="Each rank takes one GPU; a spare GPU is of no use, and a rank without one waits for ever.",
            remedy=f"Set tensor parallel to {sum(per_node)}, or choose other nodes.",
            change={"tensor_parallel": sum(per_node)},
        )
    elif len(spec.nodes) == 1 and spec.tensor_parallel > per_node[0]:
        more = "" if spec.engine == "llamacpp" else ", or add nodes"
        yield Problem(
            "tp_mismatch",
            "stop",
            f"Tensor parallel is {spec.tensor_parallel}, {sheets[0].node} has {per_node[0]} GPU",
            sheets[0].node,
            "Each rank takes one GPU.",
            f"Set tensor parallel to {per_node[0]}{more}.",
            change={"tensor_parallel": per_node[0]},
        )
    else:
        title = f"{spec.tensor_parallel} rank(s) on {len(spec.nodes)} node(s)"
        yield Problem("ranks", "fine", f"{title}{bytes_each}")


def _bytes_each(spec: Spec, sheets: Sequence[Sheet]) -> str:
    """`, 55.4 GiB of weights on each node`: what each node reads and holds; nothing where the files' size is unknown."""
    model = model_of(spec, sheets)
    if model is None or not model.weights_bytes or not sheets:
        return ""
    return (
        f", {model.weights_bytes / len(sheets) / GIB:.1f} GiB of weights on {'each node' if len(sheets) > 1 else 'it'}"
    )


def _stages(spec: Spec, stages: int, gpus: int, bytes_each: str) -> Problem:
    """Pipeline parallel: a stage is as many ranks as tensor parallel says."""
    wanted, where = spec.tensor_parallel * stages, f"{len(spec.nodes)} node(s)"
    if wanted <= gpus:
        return Problem("ranks", "fine", f"{wanted} rank(s) in {stages} stages on {where}{bytes_each}")
    return Problem(
        "tp_mismatch",
        "stop",
        f"{stages} stages of {spec.tensor_parallel} ranks want {wanted} GPUs, {where} have {gpus} together",
        meaning="Each rank takes one GPU, and a rank without one waits for ever.",
        remedy=f"Set tensor parallel and {options.PIPELINE[spec.engine]} so that their product is {gpus}, or add nodes.",
    )


def _heads(spec: Spec, config: Mapping[str, Any] | None) -> Iterator[Problem]:
    text = text_config(config or {})
    heads, kv_heads = text.get("num_attention_heads"), text.get("num_key_value_heads")
    size = spec.tensor_parallel
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1 or size < 1:
        return
    refuses = f"{TITLES[spec.engine]} refuses to start."
    if heads % size:
        lower = max((one for one in range(1, size) if heads % one == 0 and _kv_fits(kv_heads, one)), default=1)
        yield Problem(
            "tp_indivisible",
            "stop",
            f"{heads} attention heads can't be split over {size} ranks",
            meaning=refuses,
            remedy=f"Use a tensor parallel size that divides {heads}, e.g. {lower}{_in_stages(spec)}.",
            change={"tensor_parallel": lower} if len(spec.nodes) == 1 else {},
        )
    elif not _kv_fits(kv_heads, size):
        yield Problem(
            "tp_indivisible",
            "stop",
            f"{kv_heads} KV heads can't be split over {size} ranks, nor {size} ranks over them",
            meaning=refuses,
            remedy=f"Use a size that divides {kv_heads} or a multiple of it{_in_stages(spec)}.",
        )
    else:
        yield Problem("heads", "fine", f"{heads} attention heads split over {size} rank(s)")


def _kv_fits(kv_heads: Any, size: int) -> bool:
    whole = isinstance(kv_heads, int) and not isinstance(kv_heads, bool) and kv_heads > 0
    return not whole or kv_heads % size == 0 or size % kv_heads == 0


def _in_stages(spec: Spec) -> str:
    """The way round for several nodes: stages split layers, not heads."""
    return f", or split the layers with {options.PIPELINE[spec.engine]}" if len(spec.nodes) > 1 else ""


def _attention(spec: Spec, sheets: Sequence[Sheet], config: Mapping[str, Any] | None) -> Iterator[Problem]:
    if not is_hybrid_gdn(config):
        return
    asked = spec.attention_backend or options.values(spec).get("--attention-backend", "")
    if spec.engine == "sglang":
        yield from _attention_of_sglang(sheets, asked)
    elif asked.lower().startswith("flashinfer"):
        yield Problem(
            "kernel_unsupported",
            "stop",
            "flashinfer does not support this model's GDN layers",
            meaning="The recipe asks for it; the engine would fail or give wrong answers.",
            remedy="Use TRITON_ATTN as attention backend.",
            evidence=f"attention backend {asked}",
            change={"attention_backend": "TRITON_ATTN"},
        )
    else:
        yield Problem("attention", "fine", f"Attention backend {asked or 'left to the engine'} with GDN layers")


GDN_OF_SGLANG = ("triton", "trtllm_mha", "fa4")  # sglang/srt/layers/attention/attention_registry.py
PARTITION = {"vllm": "VLLM_PP_LAYER_PARTITION", "sglang": "SGLANG_PP_LAYER_PARTITION"}
BLACKWELL = 10  # compute capability, major


def _attention_of_sglang(sheets: Sequence[Sheet], asked: str) -> Iterator[Problem]:
    """On Blackwell it asserts that one of a few backends was chosen; its own choice has not always been one of them."""
    names = [gpu.name for sheet in sheets for gpu in (sheet.gpus.gpus if sheet.gpus else ())]
    blackwell = any((found := capability(name)) and found[0] >= BLACKWELL for name in names)
    if blackwell and asked not in GDN_OF_SGLANG:
        said = f"attention backend {asked}" if asked else "no attention backend is chosen"
        yield Problem(
            "kernel_unsupported",
            "stop",
            f"SGLang does not run this model's GDN layers with {asked or 'its own choice of attention'} on this GPU",
            meaning="On Blackwell it ends at the start, unless triton or trtllm_mha is asked for.",
            remedy="Use triton as attention backend.",
            evidence=said,
            change={"attention_backend": "triton"},
        )
    else:
        yield Problem("attention", "fine", f"Attention backend {asked or 'left to the engine'} with GDN layers")


def _unequal(spec: Spec, sheets: Sequence[Sheet], model: ModelFolder | None) -> Iterator[Problem]:
    """Tensor parallel gives every node the same bytes. Where the smallest can't hold its part but all together could, that is
    why; where it can, the smallest decides how much cache there is, which is only said."""
    sizes = {sheet.node: sheet.memory.total_bytes for sheet in sheets if sheet.memory and sheet.memory.total_bytes}
    if len(sizes) < 2 or len(sizes) != len(sheets) or model is None or not model.weights_bytes:
        return
    if options.pipeline_parallel(spec) > 1 or any(discrete(sheet) for sheet in sheets):
        return
    each, floor = model.weights_bytes / len(sheets), spec.os_floor_gib * GIB
    smallest = min(sizes, key=lambda node: (sizes[node], node))
    if each <= sizes[smallest] - floor or model.weights_bytes > sum(sizes.values()) - floor * len(sizes):
        return
    yield Problem(
        "unequal_memory",
        "stop",
        f"{smallest} has {sizes[smallest] / GIB:.1f} GiB, and its part of the weights is {each / GIB:.1f} GiB",
        smallest,
        "Tensor parallel gives every node the same part, whatever memory it has.",
        f"Choose nodes of equal memory, or split the layers unevenly: {options.PIPELINE[spec.engine]} {len(sheets)}, tensor "
        f"parallel {max(1, spec.tensor_parallel // len(sheets))}, and how many each takes in {PARTITION[spec.engine]}.",
        ", ".join(f"{node} {size / GIB:.1f} GiB" for node, size in sizes.items()),
    )


def _share(spec: Spec, sheets: Sequence[Sheet]) -> Iterator[Problem]:
    share = spec.gpu_memory_utilization
    unified = [sheet for sheet in sheets if sheet.gpus and any(gpu.unified for gpu in sheet.gpus.gpus)]
    if share is not None and share >= 0.9 and unified:
        yield Problem(
            "os_floor_reached",
            "warn",
            f"gpu_memory_utilization {share:g} leaves the system too little on unified memory",
            meaning="Sparks have frozen at 0.90 and more; the system, Ray and the page cache live in the same memory.",
            remedy="Use 0.85 or less.",
        )
    for sheet in unified:
        claim, memory = claim_bytes(spec, sheet), sheet.memory
        if claim and memory and memory.free_bytes is not None and memory.available_bytes is not None:
            hidden = memory.available_bytes - memory.free_bytes
            if memory.free_bytes < claim <= memory.available_bytes:
                yield Problem(
                    "page_cache",
                    "fine",
                    f"{hidden / GIB:.1f} GiB of {sheet.node} is page cache, dropped before the start",
                    sheet.node,
                )
