"""To launch again exactly what was launched: the image by its recorded id, and what is otherwise than then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from apps.facts.sheet import Sheet
from apps.facts.values import Image
from apps.plan.preflight import find_image, find_model
from apps.plan.recorded import Recorded, of_settings, of_spec
from apps.plan.spec import Given, Spec
from apps.plan.step import Difference, Problem, Setting


@dataclass(frozen=True)
class Pinned:
    """A spec whose images are named so that exactly the recorded ones run. `said`: id -> the reference that the revision says."""

    spec: Spec
    said: Mapping[str, str]
    differences: tuple[Difference, ...] = ()
    problems: tuple[Problem, ...] = ()


def pinned(story: str, spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Pinned:
    """Of a relaunch of the revision that served last: where a tag names another image by now, the recorded one is taken by its id;
    where that is gone, a problem says so. A launch, and a changed revision, take what the tag names."""
    last = given.last_good
    if last is None:
        return Pinned(spec, {})
    found = [_of_one(story, one, sheets, last, same=_is_same(last, spec)) for one in spec.each]
    services = tuple(one.spec for one in found[1:])
    return Pinned(
        replace(found[0].spec, services=services),
        {key: value for one in found for key, value in one.said.items()},
        tuple(dict.fromkeys(difference for one in found for difference in one.differences)),
        _once(problem for one in found for problem in one.problems),
    )


def _once(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Several services of one image say the same."""
    found: list[Problem] = []
    for problem in problems:
        if problem not in found:
            found.append(problem)
    return tuple(found)


def _is_same(last: Recorded, spec: Spec) -> bool:
    """Whether this is what served last. Where the ranks met then is no part of it: a relaunch may have moved that."""
    try:
        then = Spec.from_json(dict(last.spec))
    except (TypeError, ValueError):  # stored by a version whose specs had other fields
        return False
    return replace(then, cluster_port=spec.cluster_port) == spec


def _of_one(story: str, spec: Spec, sheets: Mapping[str, Sheet], last: Recorded, *, same: bool) -> Pinned:
    recorded = last.image_ids(spec.image) if spec.runtime == "docker" and spec.image else {}
    now = {node: image.id for node in recorded if (image := _image(sheets.get(node), spec.image)) and image.id}
    moved = [node for node in spec.nodes if node in recorded and now.get(node, "") != recorded[node]]
    moved = [node for node in moved if (sheet := sheets.get(node)) and sheet.images is not None]
    if not moved:
        return Pinned(spec, {})
    ids = set(recorded[node] for node in spec.nodes if node in recorded)
    there = len(ids) == 1 and all(_image(sheets.get(node), next(iter(ids))) for node in spec.nodes)
    if story != "relaunch" or not same:
        return Pinned(spec, {}, tuple(_taken(spec, node, recorded[node], now.get(node, "")) for node in moved))
    if there:
        return Pinned(
            replace(spec, image=next(iter(ids))),
            {next(iter(ids)): spec.image},
            tuple(_kept(spec, node, recorded[node], now.get(node, "")) for node in moved),
        )
    return Pinned(spec, {}, problems=tuple(_gone(spec, node, recorded[node], now.get(node, "")) for node in moved))


def _image(sheet: Sheet | None, reference: str) -> Image | None:
    return find_image(sheet, reference) if sheet else None


def _taken(spec: Spec, node: str, before: str, after: str) -> Difference:
    return Difference(
        "image", before, after, f"{spec.image} names another image there by now", node, "files", spec.service
    )


def _kept(spec: Spec, node: str, before: str, after: str) -> Difference:
    now = f"now names {after[:19]}" if after else "names no image any more"
    return Difference(
        "image",
        spec.image,
        before,
        f"{spec.image} {now}; the image that served last is taken by its id",
        node,
        "files",
        spec.service,
    )


def _gone(spec: Spec, node: str, before: str, after: str) -> Problem:
    return Problem(
        "image_changed",
        "stop",
        f"The image that served last is not on {node} any more",
        node,
        f"{spec.image} {f'names {after[:19]} now' if after else 'names no image now'}; it was {before[:19]}, so this would not be "
        "what served last.",
        "Load that image on the node again, or look at the plan of a launch, which takes what the tag names now.",
        before,
    )


def differences(
    last: Recorded, spec: Spec, settings: Sequence[Setting], sheets: Mapping[str, Sheet], revision: int
) -> tuple[Difference, ...]:
    """What this plan does otherwise than the last good launch: the revision first, then the files, then what the nodes say."""
    changed = of_spec(last, spec.to_json(), revision)
    because = f"follows from revision {revision}" if changed else ""
    nodes = tuple(dict.fromkeys(spec.nodes))
    return (*changed, *_weights(last, spec, sheets), *of_settings(last, settings, nodes, because=because))


def _weights(last: Recorded, spec: Spec, sheets: Mapping[str, Sheet]) -> Iterator[Difference]:
    for one in spec.each:
        before = last.weights(one.model_path) if one.model_path else {}
        for node in one.nodes:
            sheet = sheets.get(node)
            model = find_model(sheet, one.model_path) if sheet and node in before else None
            if model is not None and model.weights_bytes is not None and model.weights_bytes != before[node]:
                yield Difference(
                    "weights",
                    f"{before[node]} bytes",
                    f"{model.weights_bytes} bytes",
                    f"the files at {one.model_path} are others than those that were loaded then",
                    node,
                    "files",
                    one.service,
                )
