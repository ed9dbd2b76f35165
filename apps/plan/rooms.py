"""A node's memory as an engine will find it: its own MemTotal, or a GPU's, minus what others really hold. Live figures
of its sheet; nothing is assumed of a machine's size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from apps.diagnosis.findings.holders import Holder, discrete, holders
from apps.facts.sheet import Sheet
from apps.facts.values import Gpu
from apps.plan import options
from apps.plan.asked import share_of, static_of
from apps.plan.checks.others import of_holders
from apps.plan.found import is_root
from apps.plan.spec import Given, Spec

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Room:
    """The memory of one node, or of the tightest of its GPUs, in bytes. `unified`: GPU memory is the machine's own."""

    node: str
    total: int
    available: int  # now, and what our own leftovers give back: they go without asking
    freed: int  # by what was consented to
    freeable: int  # by everything that is in the way
    claim: int | None  # what the engine will ask for; None where it takes what it needs
    floor: int
    unified: bool
    others: tuple[tuple[str, int], ...] = ()  # other deployments of ours and what they hold: stopped, not cleared
    pending: int = 0  # of `others`: not taken yet by those that are being launched
    static: float | None = None  # SGLang's share of what is free at the start
    cache: int = 0  # page cache, which the engine does not see as free where memory is unified
    droppable: bool = True  # whether the launch may drop it
    gpu: int | None = None  # which GPU this is, where each has memory of its own
    gpus: int = 1  # that the deployment uses here
    ranks: int = 1  # of the deployment that share this memory

    @property
    def after(self) -> int:
        """Free once the consented clearing is done."""
        return min(self.total, self.available + self.freed)

    @property
    def at_best(self) -> int:
        return min(self.total, self.available + self.freeable)


def claim_bytes(spec: Spec, sheet: Sheet) -> int | None:
    """What the engine will want to find free on this node: its share of the whole memory. None where it claims no
    share (no GPU known, or another engine)."""
    if discrete(sheet):
        sizes = [size for gpu in used_gpus(spec, sheet) if (size := gpu.memory_total_mib or 0) > 0]
        return _claimed(spec, sheet, min(sizes) * MIB) if sizes else None
    total = sheet.memory.total_bytes if sheet.memory else None
    return None if total is None else _claimed(spec, sheet, total)


def _claimed(spec: Spec, sheet: Sheet, total: int) -> int | None:
    """The claims of all services of the deployment that are on this node."""
    each: tuple[Spec, ...] = getattr(spec, "each", (spec,))
    shares = [share_of(one) for one in each if len(each) == 1 or sheet.node in one.nodes]
    known = [share for share in shares if share is not None]
    return sum(int(total * share) for share in known) if known and sheet.gpus and sheet.gpus.gpus else None


def used_gpus(spec: Spec, sheet: Sheet) -> tuple[Gpu, ...]:
    """The GPUs of a node that the deployment uses: those that CUDA_VISIBLE_DEVICES names, else the first so many."""
    there = sheet.gpus.gpus if sheet.gpus else ()
    named = [word.strip() for word in dict(spec.environment).get("CUDA_VISIBLE_DEVICES", "").split(",")]
    chosen = tuple(gpu for gpu in there if str(gpu.index) in named) or there
    return chosen[: max(1, -(-options.ranks(spec) // max(1, len(spec.nodes))))]


def room_of(spec: Spec, sheet: Sheet, given: Given) -> Room | None:
    """The node's memory, or its tightest GPU's. None when the node did not say how much memory it has."""
    if discrete(sheet):
        found = rooms_of(spec, sheet, given)
        return min(found, key=lambda room: (room.at_best, room.after)) if found else None
    total = sheet.memory.total_bytes if sheet.memory else None
    if total is None or total <= 0 or sheet.memory is None:
        return None
    available = sheet.memory.available_bytes if sheet.memory.available_bytes is not None else total
    free = sheet.memory.free_bytes
    unified = bool(sheet.gpus and any(gpu.unified for gpu in sheet.gpus.gpus))
    room = _room(spec, sheet, given, sheet, total, available)
    return replace(
        room,
        floor=int(spec.os_floor_gib * GIB),
        unified=True,
        cache=max(0, available - free) if unified and free is not None else 0,
        droppable=may_drop_cache(sheet),
        ranks=max(1, -(-options.ranks(spec) // max(1, len(spec.nodes)))) if spec.engine == "vllm" else 1,
    )


def rooms_of(spec: Spec, sheet: Sheet, given: Given) -> tuple[Room, ...]:
    """One for each GPU with memory of its own that the deployment uses."""
    used = [gpu for gpu in used_gpus(spec, sheet) if (gpu.memory_total_mib or 0) > 0]
    made = []
    for gpu in used:
        total = (gpu.memory_total_mib or 0) * MIB
        only = _on_gpu(sheet, gpu)
        room = _room(spec, sheet, given, only, total, total - (gpu.memory_used_mib or 0) * MIB)
        made.append(replace(room, gpu=gpu.index, gpus=len(used)))
    return tuple(made)


def _on_gpu(sheet: Sheet, gpu: Gpu) -> Sheet:
    """The same with what runs on one of its GPUs alone: what is cleared on one frees nothing on another. The main
    memory of a container is not the GPU's."""
    gpus, alone = sheet.gpus, len(sheet.gpus.gpus) == 1 if sheet.gpus else False
    kept = tuple(one for one in (gpus.processes if gpus else ()) if one.gpu == gpu.index or (alone and one.gpu is None))
    containers = tuple(replace(one, memory_bytes=None) for one in sheet.containers or ())
    return replace(sheet, gpus=replace(gpus, processes=kept) if gpus else None, containers=containers)


def _room(spec: Spec, sheet: Sheet, given: Given, seen: Sheet, total: int, available: int) -> Room:
    """`seen`: the sheet, or the part of it that is about one GPU."""
    consented = {(one.kind, one.name) for one in given.clear if one.node == sheet.node}
    found = holders(seen, given.deployment)
    theirs = of_holders(seen, given)
    held: dict[str, int] = {}
    for holder in found:
        if not holder.own and (holder.kind, holder.name) in theirs:
            name = theirs[holder.kind, holder.name].name
            held[name] = held.get(name, 0) + holder.bytes
    pending = _pending(sheet, given, held, total, available)
    for name, size in pending.items():
        held[name] = held.get(name, 0) + size
    own = _sum(one for one in found if one.own)
    freeable = _sum(one for one in found if not one.own)
    freed = _sum(one for one in found if not one.own and (one.kind, one.name) in consented)
    later = sum(pending.values())
    return Room(
        node=sheet.node,
        total=total,
        available=max(0, min(total, available + own) - later),
        freed=freed,
        freeable=freeable + later,
        claim=_claimed(spec, sheet, total),
        floor=0,
        unified=False,
        others=tuple(held.items()),
        pending=later,
        static=static_of(spec),
    )


def _sum(found: Iterable[Holder]) -> int:
    return sum(one.bytes for one in found)


def _pending(sheet: Sheet, given: Given, held: dict[str, int], total: int, available: int) -> dict[str, int]:
    """What other deployments of ours that are being launched here have claimed and not taken yet, by name. No more than
    is there: what is in their way goes before they take it."""
    made: dict[str, int] = {}
    for other in given.others:
        if other.state != "launching" or other.spec is None or sheet.node not in other.spec.nodes:
            continue
        share = share_of(other.spec)
        left = int(total * share) - held.get(other.name, 0) if share is not None else 0
        left = min(left, available - sum(made.values()))
        if left > 0:
            made[other.name] = left
    return made


def may_drop_cache(sheet: Sheet) -> bool:
    """Whether the launch may drop the page cache there; what is not known of counts as allowed, and is tried."""
    rights = sheet.privileges
    if is_root(sheet) or rights is None or rights.sudo == "all" or rights.drop_caches is True:
        return True
    return not (rights.drop_caches is False or rights.sudo in ("password", "none"))
