"""Settings that can't work together, or not with this model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apps.facts.sheet import Sheet
from apps.plan import options
from apps.plan.fit import GIB, claim_bytes, model_of
from apps.plan.kvcache import is_hybrid_gdn, text_config
from apps.plan.spec import Spec, validate
from apps.plan.step import Problem


def fields(spec: Spec) -> Iterator[Problem]:
    """Fields that are nonsense by themselves."""
    for error in validate(spec):
        yield Problem("bad_args", "stop", f"{error.field}: {error.message}", remedy=error.remedy)


def check(spec: Spec, sheets: Sequence[Sheet]) -> Iterator[Problem]:
    """Settings against the nodes and the model's config."""
    model = model_of(spec, sheets)
    config: Mapping[str, Any] | None = model.config if model else None
    yield from _ranks(spec, sheets)
    if spec.engine != "vllm":
        return
    yield from _heads(spec, config)
    yield from _attention(spec, config)
    yield from _share(spec, sheets)


def _ranks(spec: Spec, sheets: Sequence[Sheet]) -> Iterator[Problem]:
    if spec.engine != "vllm" or len(sheets) != len(spec.nodes):
        return
    per_node = [len(sheet.gpus.gpus) if sheet.gpus and sheet.gpus.gpus else 1 for sheet in sheets]
    if "--data-parallel-size" in options.values(spec):
        return  # its replicas may be started in several ways
    stages = options.pipeline_parallel(spec)
    if stages > 1:
        yield _stages(spec, stages, sum(per_node))
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
        yield Problem(
            "tp_mismatch",
            "stop",
            f"Tensor parallel is {spec.tensor_parallel}, {sheets[0].node} has {per_node[0]} GPU",
            sheets[0].node,
            "Each rank takes one GPU.",
            f"Set tensor parallel to {per_node[0]}, or add nodes.",
        )
    else:
        yield Problem("ranks", "fine", f"{spec.tensor_parallel} rank(s) on {len(spec.nodes)} node(s)")


def _stages(spec: Spec, stages: int, gpus: int) -> Problem:
    """Pipeline parallel: a stage is as many ranks as tensor parallel says."""
    wanted, where = spec.tensor_parallel * stages, f"{len(spec.nodes)} node(s)"
    if wanted <= gpus:
        return Problem("ranks", "fine", f"{wanted} rank(s) in {stages} stages on {where}")
    return Problem(
        "tp_mismatch",
        "stop",
        f"{stages} stages of {spec.tensor_parallel} ranks want {wanted} GPUs, {where} have {gpus} together",
        meaning="Each rank takes one GPU, and a rank without one waits for ever.",
        remedy=f"Set tensor parallel and --pipeline-parallel-size so that their product is {gpus}, or add nodes.",
    )


def _heads(spec: Spec, config: Mapping[str, Any] | None) -> Iterator[Problem]:
    text = text_config(config or {})
    heads, kv_heads = text.get("num_attention_heads"), text.get("num_key_value_heads")
    size = spec.tensor_parallel
    if not isinstance(heads, int) or size < 1:
        return
    if heads % size:
        yield Problem(
            "tp_indivisible",
            "stop",
            f"{heads} attention heads can't be split over {size} ranks",
            meaning="vLLM refuses to start.",
            remedy=f"Use a tensor parallel size that divides {heads}.",
        )
    elif isinstance(kv_heads, int) and kv_heads % size and size % kv_heads:
        yield Problem(
            "tp_indivisible",
            "stop",
            f"{kv_heads} KV heads can't be split over {size} ranks, nor {size} ranks over them",
            meaning="vLLM refuses to start.",
            remedy=f"Use a size that divides {kv_heads} or a multiple of it.",
        )
    else:
        yield Problem("heads", "fine", f"{heads} attention heads split over {size} rank(s)")


def _attention(spec: Spec, config: Mapping[str, Any] | None) -> Iterator[Problem]:
    asked = spec.attention_backend or options.values(spec).get("--attention-backend", "")
    if is_hybrid_gdn(config) and asked.lower().startswith("flashinfer"):
        yield Problem(
            "kernel_unsupported",
            "stop",
            "flashinfer does not support this model's GDN layers",
            meaning="The recipe asks for it; the engine would fail or give wrong answers.",
            remedy="Use TRITON_ATTN as attention backend.",
            evidence=f"attention backend {asked}",
            change={"attention_backend": "TRITON_ATTN"},
        )
    elif is_hybrid_gdn(config):
        yield Problem("attention", "fine", f"Attention backend {asked or 'left to the engine'} with GDN layers")


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
