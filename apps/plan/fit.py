"""Will it fit? The machine's own memory, minus what others really hold, minus an OS floor, against the files' real
sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from apps.diagnosis.findings.holders import discrete, holders
from apps.facts.sheet import Sheet
from apps.facts.values import ModelFolder
from apps.plan import kvcache, options
from apps.plan.checks.others import of_holders
from apps.plan.preflight import find_model
from apps.plan.spec import Given, Spec
from apps.plan.step import Bar, Fit

GIB = 1 << 30
DEFAULT_UTILIZATION = 0.9  # vLLM's own when nothing is said
RUNTIME_BYTES = (
    4 * GIB
)  # activations, CUDA graphs and libraries inside the claim; an assumption until a launch was measured
SLACK_BYTES = 1 * GIB  # MemAvailable moves by that much on its own
LEAST_TOKENS = 4096  # below this a service is of no use
LONGEST_UNKNOWN = 32768  # tokens, for the sentence where neither spec nor config says a length


@dataclass(frozen=True)
class Room:
    """One node's memory as the engine will find it, in bytes. `unified`: GPU memory is the machine's own."""

    node: str
    total: int
    available: int  # now, and what our own leftovers give back: they go without asking
    freed: int  # by what was consented to
    freeable: int  # by everything that is in the way
    claim: int | None  # what the engine will ask for; None where it takes what it needs
    floor: int
    unified: bool
    others: tuple[tuple[str, int], ...] = ()  # other deployments of ours and what they hold: stopped, not cleared

    @property
    def after(self) -> int:
        """Free once the consented clearing is done."""
        return min(self.total, self.available + self.freed)

    @property
    def at_best(self) -> int:
        return min(self.total, self.available + self.freeable)


@dataclass(frozen=True)
class Load:
    """What one rank needs, in bytes."""

    weights: int | None
    runtime: int
    cache: kvcache.Cache | kvcache.Unknown
    fixed_kv: int | None = None  # --kv-cache-memory-bytes


def fit(spec: Spec, sheets: Mapping[str, Sheet], given: Given, *, beside: Mapping[str, int] | None = None) -> Fit:
    """Of one service; `beside`: by node, bytes that the deployment's other services take there (see fit_together).
    The verdict (fits, fits_after_clearing, does_not_fit, unknown), its sentence, one bar per node, KV tokens of the
    whole deployment (the smallest rank decides) and, where it does not fit, the largest setting that does."""
    missing = [node for node in spec.nodes if node not in sheets]
    if missing or not spec.nodes:
        return Fit("unknown", f"Unknown: nothing is known of {', '.join(missing) or 'any node'} yet.")
    rooms = [room_of(spec, sheets[node], given) for node in spec.nodes]
    if any(room is None for room in rooms):
        silent = [node for node, room in zip(spec.nodes, rooms, strict=True) if room is None]
        return Fit("unknown", f"Unknown: {', '.join(silent)} did not say how much memory it has.")
    taken = beside or {}
    known = [
        replace(room, available=max(0, room.available - taken.get(room.node, 0))) for room in rooms if room is not None
    ]
    load = load_of(spec, [sheets[node] for node in spec.nodes])
    if load.weights is None:
        where = spec.model_path or "the hub's cache (no model path is set)"
        return Fit(
            "unknown",
            f"Unknown: the weight files at {where} were not seen, so their size is not known.",
            tuple(_bar(room, 0, 0, 0) for room in known),
        )
    return _verdict(spec, known, load)


def claim_bytes(spec: Spec, sheet: Sheet) -> int | None:
    """What the engine will want to find free on this node: its share of the whole memory. None where it claims no
    share (no GPU known, or another engine)."""
    if spec.services:
        claims = [claim_bytes(one, sheet) for one in spec.each if sheet.node in one.nodes]
        known = [claim for claim in claims if claim is not None]
        return sum(known) if known else None
    if (
        spec.engine != "vllm"
        or not (sheet.gpus and sheet.gpus.gpus)
        or "--kv-cache-memory-bytes" in options.values(spec)
    ):
        return None
    total = _total(spec, sheet)
    share = spec.gpu_memory_utilization if spec.gpu_memory_utilization is not None else DEFAULT_UTILIZATION
    return None if total is None else int(total * share)


def _total(spec: Spec, sheet: Sheet) -> int | None:
    """One rank's memory: the machine's own on unified parts and without GPU, else the smallest GPU's that is used."""
    if discrete(sheet) and sheet.gpus:
        sizes = [gpu.memory_total_mib for gpu in sheet.gpus.gpus if gpu.memory_total_mib]
        return min(sizes) * (1 << 20) if sizes else None
    return sheet.memory.total_bytes if sheet.memory else None


def _available(sheet: Sheet, total: int) -> int:
    if discrete(sheet) and sheet.gpus:
        used = [gpu.memory_used_mib or 0 for gpu in sheet.gpus.gpus]
        return total - max(used) * (1 << 20)
    memory = sheet.memory
    return memory.available_bytes if memory and memory.available_bytes is not None else total


def room_of(spec: Spec, sheet: Sheet, given: Given) -> Room | None:
    """None when the node did not say how much memory it has."""
    total = _total(spec, sheet)
    if total is None:
        return None
    consented = {(one.kind, one.name) for one in given.clear if one.node == sheet.node}
    own = freed = freeable = 0
    theirs = of_holders(sheet, given)
    others: dict[str, int] = {}
    for holder in holders(sheet, given.deployment):
        if holder.own:
            own += holder.bytes
            continue
        if (holder.kind, holder.name) in theirs:
            name = theirs[holder.kind, holder.name].name
            others[name] = others.get(name, 0) + holder.bytes
        freeable += holder.bytes
        freed += holder.bytes if (holder.kind, holder.name) in consented else 0
    floor = 0 if discrete(sheet) else int(spec.os_floor_gib * GIB)
    return Room(
        sheet.node,
        total,
        min(total, _available(sheet, total) + own),
        freed,
        freeable,
        claim_bytes(spec, sheet),
        floor,
        not discrete(sheet),
        tuple(others.items()),
    )


def load_of(spec: Spec, sheets: Sequence[Sheet]) -> Load:
    """What a rank needs: the real files split over the ranks, and the cache by the config."""
    folder = model_of(spec, sheets)
    weights = folder.weights_bytes if folder else None
    gpu = any(sheet.gpus and sheet.gpus.gpus for sheet in sheets)
    stages = options.pipeline_parallel(spec)
    ranks = max(1, spec.tensor_parallel) * stages
    return Load(
        weights=None if weights is None else math.ceil(weights / ranks),
        runtime=RUNTIME_BYTES if gpu else GIB,
        cache=kvcache.cache(
            folder.config if folder else None,
            tensor_parallel=spec.tensor_parallel,
            pipeline_parallel=stages,
            kv_dtype=spec.kv_cache_dtype,
        ),
        fixed_kv=options.whole(spec, "--kv-cache-memory-bytes"),
    )


def model_of(spec: Spec, sheets: Sequence[Sheet]) -> ModelFolder | None:
    """The model's folder as the first node that has it whole describes it."""
    found = [model for sheet in sheets if spec.model_path and (model := find_model(sheet, spec.model_path))]
    whole = [model for model in found if model.complete is not False and model.weights_bytes]
    return next(iter(whole or found), None)


def _verdict(spec: Spec, rooms: Sequence[Room], load: Load) -> Fit:
    """Judged by the tightest node."""
    kv = [_kv_bytes(room, load) for room in rooms]
    bars = tuple(
        _bar(room, load.weights or 0, load.runtime, max(0, size)) for room, size in zip(rooms, kv, strict=True)
    )
    tight, size = min(zip(rooms, kv, strict=True), key=lambda pair: (pair[1], pair[0].node))
    tokens = _tokens(size, spec, load)
    why = _shortage(spec, rooms, load, tight, size)
    if why:
        return Fit("does_not_fit", why, bars, None, largest(spec, rooms, load))
    if tokens is None:
        missing = load.cache.missing if isinstance(load.cache, kvcache.Unknown) else ""
        return Fit(
            "unknown",
            f"The weights fit and leave {size / GIB:.1f} GiB per node for the KV cache; how many tokens that "
            f"holds is unknown: {missing}.",
            bars,
            None,
        )
    short = [room for room in rooms if _wanted(room, load) > room.after + SLACK_BYTES]
    verdict = "fits_after_clearing" if short or any(room.freed for room in rooms) else "fits"
    return Fit(verdict, _sentence(spec, rooms, load, tight, size, tokens, short), bars, tokens)


def _wanted(room: Room, load: Load) -> int:
    """What must be free on the node before the engine starts."""
    return room.claim if room.claim is not None else (load.weights or 0) + load.runtime + (load.fixed_kv or 0)


def _kv_bytes(room: Room, load: Load) -> int:
    """Left for the KV cache on one node; negative when the weights alone do not fit."""
    budget = room.claim if room.claim is not None else room.at_best - room.floor
    left = budget - (load.weights or 0) - load.runtime
    return left if load.fixed_kv is None else min(left, load.fixed_kv)


def _shortage(spec: Spec, rooms: Sequence[Room], load: Load, tight: Room, size: int) -> str:
    """Why it can't fit even when everything in the way is cleared; empty when it can."""
    where = f"on {tight.node} " if len(rooms) > 1 else ""
    least = (
        load.cache.sequence_bytes(spec.max_model_len or LEAST_TOKENS) if isinstance(load.cache, kvcache.Cache) else 0
    )
    if size < least or size <= 0:
        return (
            f"Does not fit {where}by {(least - size) / GIB:.1f} GiB: {(load.weights or 0) / GIB:.1f} GiB of weights, "
            f"{load.runtime / GIB:.1f} GiB for graphs and activations and {least / GIB:.1f} GiB for one sequence of "
            f"{spec.max_model_len or LEAST_TOKENS:,} tokens want more than the {_budget(tight) / GIB:.1f} GiB "
            "that the engine may take."
        )
    for room in rooms:
        wanted, total, best = _wanted(room, load) / GIB, room.total / GIB, room.at_best / GIB
        if room.claim is not None and room.total - room.claim < room.floor:
            return (
                f"Does not fit on {room.node}: {_share(spec):g} of {total:.1f} GiB leaves {total - wanted:.1f} GiB "
                f"for the system, less than the floor of {room.floor / GIB:.1f} GiB."
            )
        if _wanted(room, load) > room.at_best + SLACK_BYTES:
            return (
                f"Does not fit on {room.node} by {wanted - best:.1f} GiB: the engine wants {wanted:.1f} GiB free at "
                f"its start and at most {best:.1f} GiB can be."
            )
    return ""


def _budget(room: Room) -> int:
    return room.claim if room.claim is not None else max(0, room.at_best - room.floor)


def _share(spec: Spec) -> float:
    return spec.gpu_memory_utilization if spec.gpu_memory_utilization is not None else DEFAULT_UTILIZATION


def _tokens(size: int, spec: Spec, load: Load) -> int | None:
    """Tokens of KV cache when it is full of sequences of the longest length."""
    if isinstance(load.cache, kvcache.Unknown):
        return None
    length = longest(spec, load)
    per_sequence = load.cache.sequence_bytes(length)
    return int(size / per_sequence * length) if per_sequence else None


def longest(spec: Spec, load: Load) -> int:
    """Tokens of the longest sequence: the spec's, else the config's."""
    own = load.cache.max_length if isinstance(load.cache, kvcache.Cache) else None
    return spec.max_model_len or own or LONGEST_UNKNOWN


def _sentence(
    spec: Spec,
    rooms: Sequence[Room],
    load: Load,
    tight: Room,
    size: int,
    tokens: int,
    short: Sequence[Room],
) -> str:
    length = longest(spec, load)
    each = " per GPU" if options.ranks(spec) > len(rooms) else " per node" if len(rooms) > 1 else ""
    sequences = tokens / length
    count = (
        f"{int(sequences)} sequences"
        if sequences >= 2
        else "1 sequence"
        if sequences >= 1
        else "less than one sequence"
    )
    said = [f"{_size(size)} of KV cache{each} holds {_many(tokens)} tokens: {count} of {length:,}."]
    if short:
        need = ", ".join(f"{(_wanted(room, load) - room.after) / GIB:.1f} GiB on {room.node}" for room in short)
        others = dict.fromkeys(name for room in short for name, _ in room.others)
        said.insert(
            0, f"Fits once {need} is free: stop {', '.join(others)}." if others else f"Fits once {need} is cleared."
        )
    elif any(room.freed for room in rooms):
        said.insert(0, f"Fits after clearing {sum(room.freed for room in rooms) / GIB:.1f} GiB.")
    else:
        said.insert(0, "Fits.")
    if len({round(room.total / GIB) for room in rooms}) > 1:
        said.append(f"The nodes' memory is unequal; {tight.node} is the smallest and decides.")
    said.append(f"{load.runtime / GIB:.0f} GiB for graphs and activations is assumed until a launch has been measured.")
    return " ".join(said)


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.1f} MiB"


def _many(tokens: int) -> str:
    return f"{tokens / 1e6:.2f} M" if tokens >= 1_000_000 else f"{tokens:,}"


def largest(spec: Spec, rooms: Sequence[Room], load: Load) -> dict[str, Any]:
    """The largest setting that fits once everything in the way is cleared: a share of the memory and the longest
    sequence at that share; {} when no setting does (then more nodes or a smaller model are needed)."""
    tight = min(rooms, key=lambda room: min(room.at_best, room.total - room.floor))
    usable = min(tight.at_best, tight.total - tight.floor)
    share = math.floor(usable / tight.total * 100) / 100
    if tight.claim is not None:
        share = min(share, _share(spec))
        usable = int(tight.total * share)
    room_for_kv = usable - (load.weights or 0) - load.runtime
    if room_for_kv <= 0 or isinstance(load.cache, kvcache.Unknown):
        return {}
    tokens = _length_that_fits(load.cache, room_for_kv)
    tokens = min(tokens, longest(spec, load)) // 1024 * 1024
    if tokens < 1024:
        return {}
    made: dict[str, Any] = {"max_model_len": tokens}
    if tight.claim is not None:
        made = {"gpu_memory_utilization": share, **made}
    return made


def _length_that_fits(cache: kvcache.Cache, size: int) -> int:
    """The longest single sequence in `size` bytes, by halving: the windows make it a broken line."""
    low, high = 0, 1 << 24
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cache.sequence_bytes(middle) <= size else (low, middle - 1)
    return low


def _bar(room: Room, weights: int, runtime: int, kv: int) -> Bar:
    """os | weights | graphs | kv | deployments | others | free. The system is never drawn smaller than its floor; what nobody names
    is its."""
    held = max(0, room.freeable - room.freed)
    ours = min(held, sum(size for _, size in room.others))
    unnamed = max(0, room.total - room.available - room.freeable)
    system = max(room.floor, unnamed)
    left = room.total - system - held - weights - runtime - kv
    return Bar(
        room.node,
        room.total,
        (
            ("os", system),
            ("weights", weights),
            ("graphs", runtime if weights else 0),
            ("kv", kv),
            ("deployments", ours),
            ("others", held - ours),
            ("free", max(0, left if weights else left + runtime)),
        ),
        room.others,
    )
