"""Will it fit? The machine's own memory, minus what others really hold, minus an OS floor, against the files' real
sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from apps.facts.sheet import Sheet
from apps.plan import asked, kvcache, options, weights
from apps.plan.asked import DEFAULT_UTILIZATION
from apps.plan.loads import UNCORRECTED, Load, known_of, load_of, model_of, shape
from apps.plan.rooms import Room, claim_bytes, room_of
from apps.plan.spec import Given, Spec
from apps.plan.step import Bar, Fit

GIB = 1 << 30
SLACK_BYTES = 1 * GIB  # MemAvailable moves by that much on its own
LEAST_TOKENS = 4096  # below this a service is of no use
LONGEST_UNKNOWN = 32768  # tokens, for the sentence where neither spec nor config says a length
MOST_SHARE = 0.95  # that is offered, where no floor keeps it lower: the driver and others' contexts want a little
MOST_RANKS = 64  # that are tried for "so many would hold it"

__all__ = ["GIB", "SLACK_BYTES", "Load", "Room", "claim_bytes", "fit", "load_of", "longest", "model_of", "room_of"]


@dataclass(frozen=True)
class Place:
    """A rank on its node: what is left for its cache (negative when the weights alone do not fit), in bytes."""

    room: Room
    left: int


def fit(spec: Spec, sheets: Mapping[str, Sheet], given: Given, *, beside: Mapping[str, int] | None = None) -> Fit:
    """Of one service; `beside`: by node, bytes that the deployment's other services take there (see fit_together).
    The verdict (fits, fits_after_clearing, does_not_fit, unknown), its sentence, one bar per node, KV tokens of the
    whole deployment (the smallest rank decides) and, where it does not fit, the largest setting that does."""
    return _judged(spec, sheets, given, beside or {}, deeper=True)


def _judged(spec: Spec, sheets: Mapping[str, Sheet], given: Given, beside: Mapping[str, int], *, deeper: bool) -> Fit:
    missing = [node for node in spec.nodes if node not in sheets]
    if missing or not spec.nodes:
        return Fit("unknown", f"Unknown: nothing is known of {', '.join(missing) or 'any node'} yet.")
    rooms = [room_of(spec, sheets[node], given) for node in spec.nodes]
    if any(room is None for room in rooms):
        silent = [node for node, room in zip(spec.nodes, rooms, strict=True) if room is None]
        return Fit("unknown", f"Unknown: {', '.join(silent)} did not say how much memory it has.")
    known = [
        replace(room, available=max(0, room.available - beside.get(room.node, 0))) for room in rooms if room is not None
    ]
    load = load_of(spec, [sheets[node] for node in spec.nodes], given)
    if load.weights is None:
        bars = tuple(_bar(room, load, 0, 0) for room in known)
        return Fit(
            "unknown", f"Unknown: {_unseen(spec, sheets, given)}, so the size of its weights is not known.", bars
        )
    found = _verdict(spec, known, load)
    if found.verdict == "does_not_fit" and not found.largest and deeper:
        return _with_more_ranks(spec, sheets, given, beside, known, load, found)
    return found


def _unseen(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> str:
    """What would have said how large the model is."""
    known = known_of(spec, [sheets[node] for node in spec.nodes], given)
    where = spec.model_path or "the hub's cache (no model path is set)"
    said = f"the weight files at {where} were not seen"
    counted = weights.families(known.config)
    if spec.engine == "llamacpp":
        return said
    if known.config and isinstance(counted, kvcache.Unknown):
        return f"{said} and {counted.missing}"
    if known.config:
        return f"{said} and how its weights are quantised is not understood"
    return f"{said}, no config.json was given and the catalogue does not have {spec.model or 'it'}"


def _verdict(spec: Spec, rooms: Sequence[Room], load: Load) -> Fit:
    """Judged by the tightest node."""
    places = [Place(room, _left(room, load)) for room in rooms]
    tight = min(places, key=lambda place: (place.left, place.room.node))
    tokens = _tokens(tight.left, spec, load)
    why = _shortage(spec, places, load, tight)
    least = _least(spec, load)
    bars = tuple(
        _bar(place.room, load, max(place.left, least) if why else max(0, place.left), _state(spec, place.left, load))
        for place in places
    )
    remarks = _remarks(spec, rooms, load)
    if why:
        best = largest(spec, rooms, load)
        return Fit("does_not_fit", why + _at_best(best, rooms, _loose(spec, load)), bars, None, best, remarks=remarks)
    if tokens is None:
        missing = load.cache.missing if isinstance(load.cache, kvcache.Unknown) else ""
        return Fit(
            "unknown",
            f"The weights fit and leave {tight.left / GIB:.1f} GiB per node for the KV cache; how many tokens that "
            f"holds is unknown: {missing}.",
            bars,
            remarks=remarks,
        )
    short = [room for room in rooms if _wanted(room, load) > room.after + SLACK_BYTES]
    verdict = "fits_after_clearing" if short or any(room.freed for room in rooms) else "fits"
    length = longest(spec, load)
    return Fit(
        verdict,
        _sentence(spec, rooms, load, tight, tokens, short),
        bars,
        tokens,
        remarks=remarks,
        sequences=min(tokens // length, asked.sequences_of(spec) * load.replicas),
        length=length,
        predicted=_predicted(spec, tight, load, tokens),
    )


def _wanted(room: Room, load: Load) -> int:
    """What must be free on the node before the engine starts."""
    if room.claim is not None:
        return room.claim
    needed = ((load.weights or 0) + load.runtime) * room.ranks + (load.fixed_kv or 0)
    return needed if room.static is None else math.ceil((load.weights or 0) / room.static)


def _budget(room: Room) -> int:
    """What the engine may take there for weights and cache and, but for SGLang, for everything else."""
    if room.claim is not None:
        return room.claim
    if room.static is not None:
        return int(room.at_best * room.static)
    return max(0, room.at_best - room.floor)


def _left(room: Room, load: Load) -> int:
    """For the KV cache of one rank; negative when the weights alone do not fit."""
    beside = 0 if room.static is not None else load.runtime
    left = _budget(room) // room.ranks - (load.weights or 0) - beside
    return left if load.fixed_kv is None else min(left, load.fixed_kv)


def _least(spec: Spec, load: Load) -> int:
    """Bytes of one sequence, below which a service is of no use."""
    if isinstance(load.cache, kvcache.Unknown):
        return 0
    return math.ceil(load.cache.sequence_bytes(_needed(spec, load)) / load.corrected.tokens)


def _needed(spec: Spec, load: Load) -> int:
    """Tokens of a sequence that must fit. Where nothing is said vLLM takes the model's own length and refuses to start
    when one such sequence has no room; others make do with what is left."""
    if asked.length_of(spec) is None and (spec.engine != "vllm" or asked.fits_itself(spec)):
        return LEAST_TOKENS
    own = load.cache.max_length if isinstance(load.cache, kvcache.Cache) else None
    return asked.length_of(spec) or own or LEAST_TOKENS


def _shortage(spec: Spec, places: Sequence[Place], load: Load, tight: Place) -> str:
    """Why it can't fit even when everything in the way is cleared; empty when it can."""
    room, least = tight.room, max(_least(spec, load), load.fixed_kv or 0)
    where = f"on {_place(room)} " if len(places) > 1 or room.gpus > 1 else ""
    if tight.left < least or tight.left <= 0:
        cache = "the KV cache" if load.fixed_kv else f"one sequence of {_needed(spec, load):,} tokens"
        beside = "" if room.static is not None else f"{load.runtime / GIB:.1f} GiB for graphs and activations and "
        return (
            f"Does not fit {where}by {(least - tight.left) / GIB:.1f} GiB: {(load.weights or 0) / GIB:.1f} GiB of "
            f"weights, {beside}{least / GIB:.1f} GiB for {cache} want more than the {_budget(room) / GIB:.1f} GiB "
            "that the engine may take."
        )
    for place in places:
        why = _no_room(spec, place.room, load)
        if why:
            return why
    return ""


def _no_room(spec: Spec, room: Room, load: Load) -> str:
    """Why one node can't give what the engine will ask for; empty when it can."""
    wanted, total, best = _wanted(room, load), room.total, room.at_best
    taken = room.claim if room.claim is not None else 0
    if room.static is not None:
        taken = int(best * room.static) + load.runtime
        if taken > best:
            return (
                f"Does not fit on {_place(room)}: a share of {room.static:g} leaves "
                f"{(best - int(best * room.static)) / GIB:.1f} GiB for graphs and activations, which want "
                f"{load.runtime / GIB:.1f} GiB."
            )
    if taken and total - taken < room.floor:
        share = room.static if room.static is not None else _share(spec)
        return (
            f"Does not fit on {room.node}: {share:g} of {total / GIB:.1f} GiB leaves {(total - taken) / GIB:.1f} GiB "
            f"for the system, less than the floor of {room.floor / GIB:.1f} GiB."
        )
    if wanted > best + SLACK_BYTES:
        return (
            f"Does not fit on {_place(room)} by {(wanted - best) / GIB:.1f} GiB: the engine wants "
            f"{wanted / GIB:.1f} GiB free at its start and at most {best / GIB:.1f} GiB can be."
        )
    return ""


def _place(room: Room) -> str:
    return room.node if room.gpu is None or room.gpus < 2 else f"GPU {room.gpu} of {room.node}"


def _share(spec: Spec) -> float:
    return asked.share_of(spec) or DEFAULT_UTILIZATION


def _tokens(size: int, spec: Spec, load: Load) -> int | None:
    """Tokens of KV cache when it is full of sequences of the longest length; of all replicas together."""
    if isinstance(load.cache, kvcache.Unknown):
        return None
    length = longest(spec, load)
    per_sequence = load.cache.sequence_bytes(length)
    if not per_sequence:
        return None
    return max(0, int(size / per_sequence * length * load.corrected.tokens)) * load.replicas


def _state(spec: Spec, size: int, load: Load) -> int:
    """Of the cache: what keeps one value a sequence, for as many as will run."""
    if isinstance(load.cache, kvcache.Unknown) or size <= 0:
        return 0
    each = load.cache.state_bytes
    whole = load.cache.sequence_bytes(longest(spec, load))
    running = min(asked.sequences_of(spec), max(1, int(size / whole))) if whole else 0
    return min(size, math.ceil(each * running))


def longest(spec: Spec, load: Load) -> int:
    """Tokens of the longest sequence: the spec's, else the config's."""
    own = load.cache.max_length if isinstance(load.cache, kvcache.Cache) else None
    return asked.length_of(spec) or own or LONGEST_UNKNOWN


# In words


def _sentence(spec: Spec, rooms: Sequence[Room], load: Load, tight: Place, tokens: int, short: Sequence[Room]) -> str:
    each = " per GPU" if options.ranks(spec) > len(rooms) else " per node" if len(rooms) > 1 else ""
    said = [f"{_size(tight.left)} of KV cache{each} holds {_many(tokens)} tokens: {_count(spec, load, tokens)}."]
    if short:
        need = ", ".join(f"{(_wanted(room, load) - room.after) / GIB:.1f} GiB on {_place(room)}" for room in short)
        others = dict.fromkeys(name for room in short for name, _ in room.others)
        said.insert(
            0, f"Fits once {need} is free: stop {', '.join(others)}." if others else f"Fits once {need} is cleared."
        )
    elif any(room.freed for room in rooms):
        said.insert(0, f"Fits after clearing {sum(room.freed for room in rooms) / GIB:.1f} GiB.")
    else:
        said.insert(0, "Fits.")
    if len({round(room.total / GIB) for room in rooms}) > 1:
        said.append(f"The nodes' memory is unequal; {tight.room.node} is the smallest and decides.")
    elif tight.room.gpus > 1 and tight.room.others:
        said.append(f"{_place(tight.room)} has the least room and decides.")
    return " ".join(said)


def _count(spec: Spec, load: Load, tokens: int) -> str:
    length = longest(spec, load)
    sequences = tokens / length
    if sequences < 1:
        return f"less than one sequence of {length:,}"
    most = asked.sequences_of(spec) * load.replicas
    limited = f", of which {most:,} run at a time" if most < int(sequences) and asked.length_of(spec) else ""
    return f"{int(sequences):,} sequences of {length:,}{limited}" if sequences >= 2 else f"1 sequence of {length:,}"


def _remarks(spec: Spec, rooms: Sequence[Room], load: Load) -> tuple[str, ...]:
    """What the figures rest on, and what a person should know beside them."""
    made = []
    if load.about:
        made.append(load.about)
    made.append(
        load.corrected.sentence
        or f"{load.runtime / GIB:.0f} GiB for graphs and activations is assumed until a launch has been measured."
    )
    for room in rooms:
        needed = _wanted(room, load)
        if room.cache and room.after - room.cache < needed <= room.after:
            size = f"{room.cache / GIB:.1f} GiB of {room.node} is page cache, which the engine takes for used"
            made.append(
                f"{size}; the launch drops it."
                if room.droppable
                else f"{size}; this login may not drop it: run sync; echo 3 | sudo tee /proc/sys/vm/drop_caches there."
            )
        if room.pending:
            names = ", ".join(name for name, _ in room.others)
            made.append(f"{room.pending / GIB:.1f} GiB of {room.node} is claimed by {names} and not taken yet.")
    return tuple(made)


def _at_best(best: Mapping[str, Any], rooms: Sequence[Room], load: Load) -> str:
    """How many sequences the largest setting would hold; empty where there is none."""
    length = best.get("max_model_len")
    if not length or isinstance(load.cache, kvcache.Unknown):
        return ""
    size = min(_at_share(room, load, best.get("gpu_memory_utilization")) for room in rooms)
    each = load.cache.sequence_bytes(length) / load.corrected.tokens
    count = int(size / each) if each else 0
    return f" The largest that fits holds {max(1, count):,} sequence{'s' if count > 1 else ''} of {length:,} tokens."


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.1f} MiB"


def _many(tokens: int) -> str:
    return f"{tokens / 1e6:.2f} M" if tokens >= 1_000_000 else f"{tokens:,}"


# The largest setting that fits


def largest(spec: Spec, rooms: Sequence[Room], load: Load) -> dict[str, Any]:
    """The largest setting that fits once everything in the way is cleared: a share of the memory and the longest
    sequence at that share; {} when no setting does (then more ranks or a smaller model are needed)."""
    cache, load = load.cache, _loose(spec, load)
    if isinstance(cache, kvcache.Unknown):
        return {}
    own = rooms[0].static if rooms[0].static is not None else asked.share_of(spec) if rooms[0].claim else None
    most = _most_share(rooms, load)
    slots = asked.sequences_of(spec) if spec.engine == "llamacpp" else 1  # these share the length that is said
    for share in dict.fromkeys((None,) if own is None else (min(own, most), most)):
        size = min(_at_share(room, load, share) for room in rooms)
        tokens = _length_that_fits(cache, size * load.corrected.tokens / slots) if size > 0 else 0
        tokens = min(tokens, longest(spec, load)) // 1024 * 1024
        if tokens >= 1024:
            made: dict[str, Any] = {"max_model_len": tokens * slots}
            return made if share is None else {"gpu_memory_utilization": share, **made}
    return {}


def _loose(spec: Spec, load: Load) -> Load:
    """llama.cpp's cache is as large as the length that is looked for; vLLM's, where its bytes are said, is not."""
    return replace(load, fixed_kv=None) if spec.engine == "llamacpp" else load


def _most_share(rooms: Sequence[Room], load: Load) -> float:
    """The largest share, in hundredths, that every node can give above its floor."""
    shares = [MOST_SHARE]
    for room in rooms:
        usable = min(room.at_best, room.total - room.floor)
        if room.static is None:
            shares.append(usable / room.total)
        elif room.at_best:
            shares.append((usable - load.runtime) / room.at_best)
    return max(0.0, math.floor(min(shares) * 100) / 100)


def _at_share(room: Room, load: Load, share: float | None) -> int:
    """Left for one rank's cache at a share of the memory."""
    if share is None:
        return _left(room, load)
    changed = replace(room, static=share) if room.static is not None else replace(room, claim=int(room.total * share))
    return _left(changed, load)


def _length_that_fits(cache: kvcache.Cache, size: float) -> int:
    """The longest single sequence in `size` bytes, by halving: the windows make it a broken line."""
    low, high = 0, 1 << 24
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cache.sequence_bytes(middle) <= size else (low, middle - 1)
    return low


def _with_more_ranks(
    spec: Spec,
    sheets: Mapping[str, Sheet],
    given: Given,
    beside: Mapping[str, int],
    rooms: Sequence[Room],
    load: Load,
    found: Fit,
) -> Fit:
    """Where no setting fits at this tensor parallel: a larger one on the GPUs of these nodes, else how many such places
    would hold it."""
    if spec.engine not in ("vllm", "sglang") or isinstance(load.cache, kvcache.Unknown):
        return found
    gpus = [sheets[node].gpus for node in spec.nodes]
    there = sum(len(one.gpus) for one in gpus if one)
    for size in _sizes(spec, sheets, given):
        wider = replace(spec, tensor_parallel=size)
        if options.ranks(wider) <= there:
            again = _judged(wider, sheets, given, beside, deeper=False)
            if again.verdict in ("fits", "fits_after_clearing"):
                return replace(found, largest={"tensor_parallel": size})
            if again.largest and not found.largest:
                found = replace(found, largest={"tensor_parallel": size, **again.largest})
            continue
        if found.largest:
            return found
        needs = load_of(wider, [sheets[node] for node in spec.nodes], replace(given, measured=()))
        enough = all(
            _at_share(room, needs, _of_engine(room, rooms, needs)) >= max(1, _least(wider, needs)) for room in rooms
        )
        if enough:
            what = "GPUs" if rooms[0].gpu is not None else "nodes"
            said = f" {options.ranks(wider)} such {what} would hold it (tensor parallel {size})."
            return replace(found, sentence=found.sentence + said)
    return found


def _of_engine(room: Room, rooms: Sequence[Room], load: Load) -> float | None:
    return None if room.claim is None and room.static is None else _most_share(rooms, load)


def _sizes(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> list[int]:
    """Larger tensor parallel sizes that divide the attention heads."""
    known = known_of(spec, [sheets[node] for node in spec.nodes], given)
    heads = kvcache.text_config(known.config or {}).get("num_attention_heads")
    if not kvcache.is_size(heads):
        return []
    return [size for size in range(max(1, spec.tensor_parallel + 1), MOST_RANKS + 1) if heads % size == 0]


def _predicted(spec: Spec, tight: Place, load: Load, tokens: int) -> dict[str, Any]:
    """Of the tightest rank, without any correction: what a launch's own figures are compared with."""
    plain = replace(load, weights=load.plain_weights, runtime=load.plain_runtime, corrected=UNCORRECTED)
    left = _left(tight.room, plain)
    return {
        "model": spec.model,
        "engine": spec.engine,
        "shape": shape(spec),
        "claim": tight.room.claim,
        "weights": load.plain_weights,
        "cache": max(0, left),
        "tokens": (_tokens(max(0, left), spec, plain) or 0) // load.replicas,
        "shown_weights": load.weights,
        "shown_cache": tight.left,
        "shown_tokens": tokens // load.replicas,
    }


def _bar(room: Room, load: Load, cache: int, state: int) -> Bar:
    """os | weights | graphs | state | kv | deployments | others | free. The system is never drawn smaller than its
    floor; what nobody names is its. What is wanted beyond the whole is the bar's `over_bytes`."""
    weights_here, runtime = (load.weights or 0) * room.ranks, load.runtime * room.ranks if load.weights else 0
    cache, state = cache * room.ranks, state * room.ranks
    held = max(0, room.freeable - room.freed)
    ours = min(held, sum(size for _, size in room.others))
    unnamed = max(0, room.total - room.available - room.freeable)
    system = max(room.floor, unnamed)
    left = room.total - system - held - weights_here - runtime - cache
    return Bar(
        room.node,
        room.total,
        (
            ("os", system),
            ("weights", weights_here),
            ("graphs", runtime),
            ("state", min(state, cache)),
            ("kv", cache - min(state, cache)),
            ("deployments", ours),
            ("others", held - ours),
            ("free", max(0, left)),
        ),
        room.others,
        gpu=room.gpu,
        gpus=room.gpus,
    )
