"""What one rank needs: weights, cache by component, and what the engine takes beside them. From the files on a node,
else from a config.json that a person gave, else from the catalogue; where all are silent it is unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from apps.facts.sheet import Sheet
from apps.facts.values import ModelFolder
from apps.plan import asked, catalogue, kvcache, options, weights
from apps.plan.measured import Correction, correction, shape_of
from apps.plan.preflight import find_model
from apps.plan.spec import Given, Spec

GIB = 1 << 30
RUNTIME_BYTES = 4 * GIB  # activations, CUDA graphs and libraries: an assumption until a launch was measured
RUNTIME_OF = {"llamacpp": 2 * GIB}  # compute buffers alone
RUNTIME_WITHOUT_GPU = 1 * GIB
UNCORRECTED = Correction()


@dataclass(frozen=True)
class Model:
    """What is known of the model. `bytes` of all weight files; `origin`: where they and the config come from."""

    config: dict[str, Any] | None = None
    bytes: int | None = None
    tensors: tuple[tuple[str, int, int], ...] = ()
    origin: str = ""  # "", given, catalogue
    unknown: tuple[str, ...] = ()  # what the catalogue does not know of it
    folder: ModelFolder | None = None


@dataclass(frozen=True)
class Load:
    """What one rank needs, in bytes. `weights` and `runtime` are corrected by what launches said; `plain_weights` and
    `plain_runtime` are not."""

    weights: int | None
    runtime: int
    cache: kvcache.Cache | kvcache.Unknown
    fixed_kv: int | None = None  # --kv-cache-memory-bytes, or what llama.cpp takes at its start
    plain_weights: int | None = None
    plain_runtime: int = 0
    about: str = ""  # what the weights rest on, as a sentence; empty where they are weighed and split by their shapes
    estimated: bool = False  # no file was weighed
    replicas: int = 1  # of data parallel
    corrected: Correction = UNCORRECTED


def model_of(spec: Spec, sheets: Sequence[Sheet]) -> ModelFolder | None:
    """The model's folder as the first node that has it whole describes it; of a GGUF that is named, that file alone."""
    found = [model for sheet in sheets if spec.model_path and (model := _at(sheet, spec.model_path))]
    whole = [model for model in found if model.complete is not False and model.weights_bytes]
    return next(iter(whole or found), None)


def _at(sheet: Sheet, path: str) -> ModelFolder | None:
    found = find_model(sheet, path)
    folder, _, name = path.rpartition("/")
    around = find_model(sheet, folder) if found is None and name.endswith(".gguf") else None
    size = _gguf(name, around) if around else None
    return replace(around, path=path, weights_bytes=size, complete=True) if around and size else found


def known_of(spec: Spec, sheets: Sequence[Sheet], given: Given) -> Model:
    """Files beat what a person says, and that beats the catalogue."""
    folder = model_of(spec, sheets)
    listed = catalogue.find(spec.model, spec.model_path)
    config = folder.config if folder and folder.config else None
    origin = ""
    if config is None and given.config is not None:
        config, origin = given.config, "given"
    elif config is None and listed is not None:
        config, origin = listed.config, "catalogue"
    size = _files(folder) if folder else None
    if size is None:
        own = listed.weights_bytes if listed and origin != "given" and spec.engine != "llamacpp" else None
        size = given.weights_bytes or own
    unknown = listed.unknown if listed and origin == "catalogue" else ()
    return Model(config, size, folder.tensors if folder else (), origin, unknown, folder)


def _files(folder: ModelFolder) -> int | None:
    """Bytes of the files that will be loaded. Of an unfinished download what its index says, where it does."""
    if folder.complete is False:
        return folder.index_total_bytes
    return folder.weights_bytes or None


def _gguf(name: str, folder: ModelFolder) -> int | None:
    """One file, or with `-00001-of-0000N` all of its parts."""
    parts = set(weights.gguf_parts(name))
    sizes = [size for each, size in folder.gguf if each in parts]
    return sum(sizes) if len(sizes) == len(parts) else None


def load_of(spec: Spec, sheets: Sequence[Sheet], given: Given = Given()) -> Load:  # noqa: B008  # frozen
    """What the heaviest rank needs."""
    model, split = known_of(spec, sheets, given), asked.split_of(spec)
    speculation = asked.speculation_of(spec)
    found = weights.share(
        split, whole=model.bytes, tensors=model.tensors, config=model.config, drafting=speculation is not None
    )
    if found and found.estimated and spec.engine == "llamacpp":
        found = None  # config.json says nothing of how a GGUF is quantised
    drafter, more = _drafter(spec, sheets, model, speculation)
    cache = kvcache.cache(
        model.config,
        tensor_parallel=split.tensor,
        pipeline_parallel=split.pipeline,
        kv_dtype=asked.cache_type(spec),
        drafter=drafter,
    )
    gpu = any(sheet.gpus and sheet.gpus.gpus for sheet in sheets)
    runtime = RUNTIME_OF.get(spec.engine, RUNTIME_BYTES) if gpu else RUNTIME_WITHOUT_GPU
    mended = correction(given.measured, model=spec.model, engine=spec.engine, shape=shape(spec))
    plain = None if found is None else found.bytes + math.ceil(more / split.tensor)
    return Load(
        weights=None if plain is None else math.ceil(plain * mended.weights),
        runtime=mended.runtime if mended.runtime is not None else runtime,
        cache=cache,
        fixed_kv=_fixed(spec, cache),
        plain_weights=plain,
        plain_runtime=runtime,
        about=_about(model, found) if found else "",
        estimated=bool(found and found.estimated),
        replicas=split.data,
        corrected=mended,
    )


def _about(model: Model, found: weights.Share) -> str:
    """What a person should know of the figure for the weights."""
    source = {"given": "the config.json that was given", "catalogue": "the catalogue of known models"}.get(
        model.origin, "config.json"
    )
    if found.estimated:
        missing = "".join(f" Not counted: {one}." for one in model.unknown if "size of the files" not in one)
        return f"No weight file was seen: their size is worked out from {source}, and may be off by some per cent.{missing}"
    if model.folder is None or not model.folder.weights_bytes:
        return f"No weight file was seen: their size is from {'what was given' if model.origin == 'given' else source}."
    if found.even:
        return "The weights are counted as split evenly, because config.json says nothing of their shapes."
    return ""


def shape(spec: Spec) -> str:
    split = asked.split_of(spec)
    return shape_of(
        tensor=split.tensor, pipeline=split.pipeline, cache_type=asked.cache_type(spec), length=asked.length_of(spec)
    )


def _fixed(spec: Spec, cache: kvcache.Cache | kvcache.Unknown) -> int | None:
    """llama.cpp takes the cache for its whole context, shared by its slots, before the first request."""
    if spec.engine != "llamacpp":
        return options.whole(spec, "--kv-cache-memory-bytes")
    if isinstance(cache, kvcache.Unknown):
        return None
    length = asked.length_of(spec) or cache.max_length
    return math.ceil(cache.sequence_bytes(length) * asked.sequences_of(spec)) if length else None


def _drafter(
    spec: Spec, sheets: Sequence[Sheet], model: Model, said: asked.Speculation | None
) -> tuple[kvcache.Drafter | None, int]:
    """What speculative decoding keeps, and the bytes of a drafter's own weights."""
    if said is None:
        return None, 0
    if said.method in asked.NO_CACHE:
        return kvcache.Drafter(said.method, said.tokens), 0
    if not said.model and (
        said.method.endswith("mtp") or (spec.engine == "sglang" and said.method in ("nextn", "eagle"))
    ):
        heads = weights.drafting_layers(kvcache.text_config(model.config or {})) or 1
        return kvcache.Drafter(said.method, said.tokens, layers=heads), 0
    config, size = _other_model(said.model, sheets)
    if config is None:
        what = f"the drafter {said.model[:80]} was not seen" if said.model else "it is not said what drafts"
        return kvcache.Drafter(said.method, said.tokens, unknown=what), 0
    return kvcache.Drafter(said.method, said.tokens, config=config), size


def _other_model(name: str, sheets: Sequence[Sheet]) -> tuple[Mapping[str, Any] | None, int]:
    """By its folder on a node, else by its name at the hub."""
    for sheet in sheets:
        for folder in sheet.models or ():
            if folder.config and name and name in (folder.path.rstrip("/"), folder.name):
                return folder.config, folder.weights_bytes or 0
    listed = catalogue.find(name) if name else None
    return (listed.config, listed.weights_bytes or 0) if listed else (None, 0)
