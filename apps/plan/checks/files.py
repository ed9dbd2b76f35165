"""Image and model: there, whole, alike, and new enough for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from apps.diagnosis.findings.software import ARCHITECTURES, image_too_old, ray_missing
from apps.diagnosis.findings.versions import model_type, surely_too_old
from apps.facts.sheet import Sheet
from apps.facts.values import Image, Software
from apps.plan.checks.shared import warning
from apps.plan.fit import GIB
from apps.plan.preflight import find_image, find_model
from apps.plan.spec import TITLES, Spec
from apps.plan.step import Problem


def check(spec: Spec, sheet: Sheet) -> Iterator[Problem]:
    """One node's image and model folder."""
    if spec.runtime == "docker" and spec.image and not (sheet.docker and sheet.docker.problem):
        yield from _image(spec, sheet)
    if spec.runtime == "process":
        yield from _environment(spec, sheet)
    if spec.model_path:
        yield _model(spec, sheet)


def _image(spec: Spec, sheet: Sheet) -> Iterator[Problem]:
    if sheet.images is None:
        yield Problem(
            "images_unknown",
            "warn",
            f"The images of {sheet.node} could not be listed",
            sheet.node,
            "Whether the image is there shows only when it is started.",
            "Probe again.",
        )
        return
    image = find_image(sheet, spec.image)
    if image is None:
        yield Problem(
            "image_missing",
            "stop",
            f"Image {spec.image} is not on {sheet.node}",
            sheet.node,
            "Docker would try to pull it in the middle of the launch, and a node without internet can't.",
            "Pull it where there is internet and copy it over, or correct the image's name.",
            f"{len(sheet.images)} images are there: "
            + ", ".join(sorted(one.ref for one in sheet.images if one.ref)[:6]),
        )
        return
    yield from _architecture(spec, sheet, image)
    yield from _age(spec, sheet, image)


def _architecture(spec: Spec, sheet: Sheet, image: Image) -> Iterator[Problem]:
    machine = sheet.machine.arch if sheet.machine else None
    wanted = ARCHITECTURES.get(machine or "", machine)
    if image.arch and wanted and image.arch != wanted:
        yield Problem(
            "image_arch",
            "stop",
            f"Image {spec.image} is built for {image.arch}, {sheet.node} is {machine}",
            sheet.node,
            "It would end at once with an exec format error.",
            f"Use an image built for {wanted}.",
        )
    else:
        yield Problem("image", "fine", f"Image {spec.image} is on {sheet.node}", sheet.node, evidence=image.id or "")


def software_of(sheet: Sheet, spec: Spec, image: Image | None) -> Software | None:
    """What was seen inside the image, by its reference or its id."""
    for one in sheet.software or ():
        if spec.runtime == "process" and one.where.startswith("venv:"):
            if spec.executable.startswith(one.where.removeprefix("venv:").rstrip("/") + "/"):
                return one
        elif image and (one.where == f"image:{spec.image}" or (one.image_id and one.image_id == image.id)):
            return one
    return None


def _age(spec: Spec, sheet: Sheet, image: Image) -> Iterator[Problem]:
    software = software_of(sheet, spec, image)
    if software is not None and spec.engine in PACKAGES:
        yield from _inside(spec, sheet, software, f"The image on {sheet.node}", f"image {spec.image}")


def _environment(spec: Spec, sheet: Sheet) -> Iterator[Problem]:
    """The virtual environment that the program lies in, where the probe has seen it."""
    software = software_of(sheet, spec, None)
    if software is not None and spec.engine in PACKAGES:
        where = software.where.removeprefix("venv:")
        yield from _inside(spec, sheet, software, f"{where} on {sheet.node}", where)


PACKAGES = ("vllm", "sglang")  # engines that are Python packages: what a probe can see the version of


def _inside(spec: Spec, sheet: Sheet, software: Software, has: str, where: str) -> Iterator[Problem]:
    """Whether the engine is in there, with Ray where it needs it, and new enough for the model."""
    title, seen = TITLES[spec.engine], software.versions.get(spec.engine)
    if seen is None:
        if not (software.whole and "torch" in software.versions):
            return  # only a list of packages can prove that one is missing; labels and variables name a few
        other = next((TITLES[one] for one in PACKAGES if one in software.versions), "")
        yield Problem(
            "engine_missing",
            "stop",
            f"{has} has no {title}",
            sheet.node,
            "It would end at once: there is nothing to start.",
            f"Use an image or environment with {title}" + (f", or {other}, which is in this one." if other else "."),
            software.where,
        )
        return
    kind = model_type(find_model(sheet, spec.model_path) if spec.model_path else None)
    severity = "stop" if surely_too_old(seen, kind, spec.engine) else "warn"
    old = [
        warning(one, sheet.node, severity)
        for one in image_too_old(sheet, software.where, seen, kind, engine=spec.engine)
    ]
    if old:
        yield from old
    elif spec.engine == "vllm" and spec.cluster == "ray" and _lacks_ray(software):
        missing = warning(ray_missing(sheet, software.where), sheet.node, "stop")
        yield replace(missing, change={"cluster": "native"} if len(spec.nodes) > 1 else {"cluster": "single"})
    else:
        ray = f" and Ray {software.versions['ray']}" if spec.engine == "vllm" and "ray" in software.versions else ""
        yield Problem("software", "fine", f"{has} has {title} {seen}{ray}", sheet.node)


def _lacks_ray(software: Software) -> bool:
    """Only a list of packages can prove that one is missing; labels and variables of an image name a few."""
    return software.whole and "torch" in software.versions and "ray" not in software.versions


def _model(spec: Spec, sheet: Sheet) -> Problem:
    if sheet.models is None:
        return Problem(
            "models_unknown",
            "warn",
            f"The models of {sheet.node} could not be listed",
            sheet.node,
            "Whether the model is there shows only when the engine looks for it.",
            "Probe again.",
        )
    model = find_model(sheet, spec.model_path)
    if model is None:
        return Problem(
            "model_path_missing",
            "stop",
            f"There is no model at {spec.model_path} on {sheet.node}",
            sheet.node,
            "Every rank reads its own files.",
            "Copy the model there, or correct the path.",
            (", ".join(one.path for one in sheet.models[:6]) or "no model folders at all"),
        )
    count = f"{model.shards} of {model.shards_expected} shards"
    if model.complete is False:
        return Problem(
            "model_path_missing",
            "stop",
            f"The model at {spec.model_path} on {sheet.node} is incomplete: {count}",
            sheet.node,
            "The engine would fail in the middle of the load.",
            "Fetch or copy the missing files.",
        )
    size = f", {model.bytes / 1e9:.0f} GB" if model.bytes else ""
    return Problem("model", "fine", f"The model is complete on {sheet.node}, {count}{size}", sheet.node)


def compare(spec: Spec, sheets: Sequence[Sheet]) -> Iterator[Problem]:
    """The same image and the same model on all nodes."""
    if len(sheets) < 2:
        return
    if spec.runtime == "docker":
        images = {sheet.node: image.id for sheet in sheets if (image := find_image(sheet, spec.image)) and image.id}
        if len(images) == len(sheets):
            yield _alike(
                "image_differs",
                "The image is the same on all nodes",
                "The image is not the same on all nodes",
                images,
                "Ray and NCCL refuse to work together when their versions differ.",
                "Copy one node's image to the others.",
            )
    sizes = {
        sheet.node: str(model.weights_bytes)
        for sheet in sheets
        if spec.model_path and (model := find_model(sheet, spec.model_path)) and model.weights_bytes
    }
    if len(sizes) == len(sheets):
        yield _alike(
            "model_differs",
            f"The weights are the same size on all nodes, {int(next(iter(sizes.values()))) / GIB:.1f} GiB",
            "The weights are not the same size on all nodes",
            sizes,
            "Ranks would load different models.",
            "Copy the model again from the node that is right.",
        )


def _alike(name: str, good: str, bad: str, values: Mapping[str, str], meaning: str, remedy: str) -> Problem:
    evidence = ", ".join(f"{node} {value}" for node, value in values.items())
    if len(set(values.values())) == 1:
        return Problem(name.replace("_differs", "_alike"), "fine", good, evidence=evidence)
    return Problem(name, "stop", bad, meaning=meaning, remedy=remedy, evidence=evidence)
