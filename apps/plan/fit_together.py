"""Several services on the same nodes: each must fit beside what the others claim, and all together must leave the system its floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from apps.facts.sheet import Sheet
from apps.plan.fit import GIB, claim_bytes, fit, load_of, room_of
from apps.plan.spec import Given, Spec
from apps.plan.step import Bar, Fit

WORST = ("does_not_fit", "unknown", "fits_after_clearing", "fits")
OURS = ("weights", "graphs", "state", "kv")


def fit_all(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Fit:
    """`fit` of a deployment of one service; of several the worst verdict, each one's sentence behind its name, one bar a node with
    the sums, and the KV tokens and the prediction of the main service."""
    if not spec.services or not spec.nodes or any(node not in sheets for node in spec.nodes):
        return fit(spec.alone, sheets, given)
    parts = [(one, fit(one, sheets, _given_of(one, given), beside=_beside(spec, one, sheets))) for one in spec.each]
    verdict = min((part.verdict for _, part in parts), key=WORST.index)
    sentence = " ".join(f"{one.label.capitalize()}: {part.sentence}" for one, part in parts)
    too_much = _too_much(spec, sheets, given)
    if too_much:
        verdict, sentence = "does_not_fit", f"{too_much} {sentence}"
    main = parts[0][1]
    return replace(
        main,
        verdict=verdict,
        sentence=sentence,
        bars=tuple(_bars(fit(spec.alone, sheets, given), [part for _, part in parts])),
        largest=main.largest if main.verdict == "does_not_fit" else {},
        remarks=tuple(dict.fromkeys(remark for _, part in parts for remark in part.remarks)),
    )


def _given_of(one: Spec, given: Given) -> Given:
    """What was given or learned of a model is of the main service's."""
    return replace(given, config=None, weights_bytes=None, measured=()) if one.service else given


def _beside(spec: Spec, one: Spec, sheets: Mapping[str, Sheet]) -> dict[str, int]:
    """Node -> bytes that the other services take there."""
    return {
        node: sum(
            _taken(other, sheets, node) for other in spec.each if other.service != one.service and node in other.nodes
        )
        for node in one.nodes
    }


def _taken(spec: Spec, sheets: Mapping[str, Sheet], node: str) -> int:
    """Its claim; of an engine that claims no share what its files need, as far as they were seen."""
    claim = claim_bytes(spec, sheets[node])
    if claim is not None:
        return claim
    load = load_of(spec, [sheets[name] for name in spec.nodes])
    return (load.weights or 0) + load.runtime + (load.fixed_kv or 0)


def _too_much(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> str:
    """All claims of a node against its memory."""
    for node in spec.nodes:
        room = room_of(spec, sheets[node], given)
        here = [one for one in spec.each if node in one.nodes]
        if room is None or room.claim is None or len(here) < 2:
            continue
        left = room.total - room.claim
        if left < room.floor:
            names = [one.label for one in here]
            return (
                f"{', '.join(names[:-1])} and {names[-1]} together claim {room.claim / GIB:.1f} of {room.total / GIB:.1f} GiB on "
                f"{node}, which leaves {max(0, left) / GIB:.1f} GiB for the system, less than the floor of "
                f"{room.floor / GIB:.1f} GiB."
            )
    return ""


def _bars(base: Fit, parts: Sequence[Fit]) -> list[Bar]:
    made = []
    for bar in base.bars:
        mine = [dict(one.segments) for part in parts for one in part.bars if one.node == bar.node]
        sums = {name: sum(one.get(name, 0) for one in mine) for name in OURS}
        segments = dict(bar.segments) | sums
        segments["free"] = max(0, bar.total_bytes - sum(size for name, size in segments.items() if name != "free"))
        made.append(replace(bar, segments=tuple(segments.items())))
    return made
