"""What differs between nodes that should be alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from apps.diagnosis.findings.finding import GIB, Finding, gib, listed, seen
from apps.diagnosis.findings.software import ENGINES, Wanted, full_reference, name_of
from apps.facts.sheet import Sheet
from apps.facts.values import Image

UNEQUAL_BYTES = 4 * GIB  # firmware takes a little more here and there
COMPARED = ("vllm", "sglang", "torch", "ray", "transformers", "nccl")


def between(sheets: Sequence[Sheet], wanted: Wanted | None) -> Iterator[Finding]:
    """Of nodes that a deployment is to span; without one, of those with the same kind of GPU."""
    for group in [tuple(sheets)] if wanted is not None else alike(sheets):
        if len(group) > 1:
            yield from unequal_memory(group)
            yield from different_drivers(group)
            yield from _images(group, wanted)
            yield from _versions(group, wanted)


def alike(sheets: Sequence[Sheet]) -> list[tuple[Sheet, ...]]:
    """Nodes by processor and kinds of GPU; those without a GPU are no group."""
    groups: dict[tuple[str, ...], list[Sheet]] = {}
    for sheet in sheets:
        names = sorted({gpu.name or "" for gpu in sheet.gpus.gpus}) if sheet.gpus else []
        arch = (sheet.machine.arch if sheet.machine else None) or ""
        if names:
            groups.setdefault((arch, *names), []).append(sheet)
    return [tuple(group) for group in groups.values()]


def unequal_memory(sheets: Sequence[Sheet]) -> Iterator[Finding]:
    sizes = {sheet.node: sheet.memory.total_bytes for sheet in sheets if sheet.memory and sheet.memory.total_bytes}
    if sizes and max(sizes.values()) - min(sizes.values()) > UNEQUAL_BYTES:
        smallest = min(sizes, key=lambda node: sizes[node])
        yield seen(
            "unequal_memory",
            sheets,
            f"{smallest} has less memory than the others",
            evidence=", ".join(f"{node} {gib(size)}" for node, size in sizes.items()),
            section="memory",
            total_bytes=sizes,
        )


def different_drivers(sheets: Sequence[Sheet]) -> Iterator[Finding]:
    drivers = {sheet.node: sheet.gpus.driver for sheet in sheets if sheet.gpus and sheet.gpus.driver}
    if len(set(drivers.values())) > 1:
        yield seen(
            "driver_differs",
            sheets,
            "The nodes have different drivers",
            evidence=", ".join(f"{node} {driver}" for node, driver in drivers.items()),
            section="gpu",
            drivers=drivers,
        )


def _images(sheets: Sequence[Sheet], wanted: Wanted | None) -> Iterator[Finding]:
    """The same name and tag for different images, of the wanted image or of all in which an engine was seen."""
    named = [{full_reference(one.ref): one for one in sheet.images or () if one.ref and one.id} for sheet in sheets]
    names = [full_reference(wanted.image)] if wanted is not None and wanted.image else _with_engine(sheets)
    for name in names:
        ids = {sheet.node: images[name].id for sheet, images in zip(sheets, named, strict=True) if name in images}
        if len(ids) > 1 and len(set(ids.values())) > 1:
            yield seen(
                "image_differs",
                [sheet for sheet in sheets if sheet.node in ids],
                f"Image {name} is not the same on {listed(ids)}",
                evidence=", ".join(f"{node} {_short(identity)}" for node, identity in ids.items()),
                section="images",
                image=name,
                ids=ids,
            )


def _with_engine(sheets: Sequence[Sheet]) -> list[str]:
    """References, in the nodes' order."""
    return list(
        dict.fromkeys(
            full_reference(image.ref)
            for sheet in sheets
            for image in sheet.images or ()
            if image.ref and _is_engine(sheet, image)
        )
    )


def _is_engine(sheet: Sheet, image: Image) -> bool:
    inside = {one.image_id for one in sheet.software or () if set(ENGINES) & set(one.versions)}
    return image.id is not None and image.id in inside


def _short(identity: str | None) -> str:
    return (identity or "unknown").removeprefix("sha256:")[:12]


def _versions(sheets: Sequence[Sheet], wanted: Wanted | None) -> Iterator[Finding]:
    """What is called the same on several nodes (an image, a container, a virtual environment) and holds different
    versions."""
    places: dict[str, dict[str, Mapping[str, str]]] = {}
    for sheet in sheets:
        for one in sheet.software or ():
            if _is_meant(one.where, wanted):
                places.setdefault(_place(one.where), {})[sheet.node] = one.versions
    for where, found in places.items():
        different = {
            name: said
            for name in COMPARED
            if len(set((said := {node: inside[name] for node, inside in found.items() if name in inside}).values())) > 1
        }
        if different:
            yield seen(
                "versions_differ",
                [sheet for sheet in sheets if sheet.node in found],
                f"{name_of(where)} has different versions of {listed(different)} on {listed(found)}",
                evidence="; ".join(
                    f"{name}: {', '.join(f'{node} {version}' for node, version in said.items())}"
                    for name, said in different.items()
                ),
                section="software",
                versions=different,
            )


def _place(where: str) -> str:
    kind, _, name = where.partition(":")
    return f"image:{full_reference(name)}" if kind == "image" else where


def _is_meant(where: str, wanted: Wanted | None) -> bool:
    if wanted is None:
        return not where.startswith("user:")
    if wanted.runtime == "process":
        return where.startswith("venv:") and wanted.executable.startswith(f"{name_of(where).rstrip('/')}/")
    return where.startswith("image:") and full_reference(name_of(where)) == full_reference(wanted.image)
