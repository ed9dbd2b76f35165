"""Images and environments against the machine's processor, GPU and driver, and against the models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from apps.diagnosis.findings.finding import Finding, listed, seen, verb
from apps.diagnosis.findings.table import NOTE
from apps.diagnosis.findings.versions import capability, cuda_wanted, has_code, model_type, spoken, too_old
from apps.facts.processes import words_of
from apps.facts.sheet import Sheet
from apps.facts.values import Image, ModelFolder, Software

ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
ENGINES = ("vllm", "sglang")
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}


@dataclass(frozen=True)
class Wanted:
    """What of a deployment's spec or recipe the findings look at; empty is not said."""

    image: str = ""
    model_path: str = ""
    runtime: str = ""
    cluster: str = ""
    engine: str = ""
    executable: str = ""
    nodes: tuple[str, ...] = ()


def of_node(sheet: Sheet, wanted: Wanted | None) -> Iterator[Finding]:
    """With a deployment in mind only its image counts; without one, every image in which an engine was seen, and what
    is wrong with it is a note."""
    for image in _images(sheet, wanted):
        yield from _processor(sheet, image, aside=wanted is None)
        yield from _driver(sheet, image, aside=wanted is None)
    for one in _software(sheet, wanted):
        yield from _gpu_code(sheet, one, aside=wanted is None)
        if wanted is not None:
            yield from _ray(sheet, one, wanted)
    yield from _models(sheet, wanted)


def name_of(where: str) -> str:
    return where.partition(":")[2]


def same_reference(first: str, second: str) -> bool:
    return full_reference(first) == full_reference(second)


def full_reference(reference: str) -> str:
    """docker.io/library is implied, and so is :latest."""
    made = reference.removeprefix("docker.io/").removeprefix("library/")
    last = made.rpartition("/")[2]
    return made if ":" in last or "@" in last else f"{made}:latest"


def _images(sheet: Sheet, wanted: Wanted | None) -> Iterator[Image]:
    with_engine = {one.image_id for one in sheet.software or () if set(ENGINES) & set(one.versions)}
    for image in sheet.images or ():
        if wanted is not None:
            if image.ref and wanted.image and wanted.runtime != "process" and same_reference(image.ref, wanted.image):
                yield image
        elif image.id is not None and image.id in with_engine:
            yield image


def _software(sheet: Sheet, wanted: Wanted | None) -> Iterator[Software]:
    ids = {image.id for image in _images(sheet, wanted)}
    for one in sheet.software or ():
        if wanted is None:
            if set(ENGINES) & set(one.versions):
                yield one
        elif wanted.runtime == "process":
            if one.where.startswith("venv:") and wanted.executable.startswith(f"{name_of(one.where).rstrip('/')}/"):
                yield one
        elif (one.image_id is not None and one.image_id in ids) or (
            one.where.startswith("image:") and wanted.image and same_reference(name_of(one.where), wanted.image)
        ):
            yield one


def _processor(sheet: Sheet, image: Image, *, aside: bool) -> Iterator[Finding]:
    machine = sheet.machine.arch if sheet.machine else None
    fits = ARCHITECTURES.get(machine or "", machine)
    if image.arch and fits and image.arch != fits:
        yield seen(
            "image_arch",
            sheet,
            f"Image {image.ref or image.id} is built for {image.arch}, {sheet.node} is {machine}",
            severity=NOTE if aside else "",
            remedy=f"Use an image built for {fits}.",
            section="image-details",
            image=image.ref,
            arch=image.arch,
        )


def _driver(sheet: Sheet, image: Image, *, aside: bool) -> Iterator[Finding]:
    gpus = sheet.gpus
    if gpus is None or not gpus.cuda:
        return
    missing = cuda_wanted(image.env.get("NVIDIA_REQUIRE_CUDA", ""), gpus.cuda, gpus.driver)
    if missing:
        yield seen(
            "driver_too_old",
            sheet,
            f"Image {image.ref or image.id} needs CUDA {missing}, the driver of {sheet.node} has {gpus.cuda}",
            severity=NOTE if aside else "",
            evidence=image.env.get("NVIDIA_REQUIRE_CUDA", ""),
            section="image-details",
            image=image.ref,
            cuda=gpus.cuda,
            cuda_wanted=missing,
            driver=gpus.driver,
        )


def _gpu_code(sheet: Sheet, one: Software, *, aside: bool) -> Iterator[Finding]:
    gpus = sheet.gpus.gpus if sheet.gpus else ()
    if not one.cuda_arch_list or not gpus:
        return
    for name in dict.fromkeys(gpu.name for gpu in gpus):
        wanted = capability(name)
        if wanted is not None and has_code(one.cuda_arch_list, wanted) is False:
            yield seen(
                "image_gpu_code",
                sheet,
                f"{name_of(one.where)} on {sheet.node} is built for {one.cuda_arch_list}, not for {spoken(wanted)} ({name})",
                severity=NOTE if aside else "",
                evidence=f"TORCH_CUDA_ARCH_LIST={one.cuda_arch_list}",
                section="software",
                place=one.where,
                arch_list=one.cuda_arch_list,
                capability=spoken(wanted),
            )


def _ray(sheet: Sheet, one: Software, wanted: Wanted) -> Iterator[Finding]:
    """Only a list of packages can prove that one is missing; labels and variables of an image name a few."""
    if (
        wanted.cluster == "ray"
        and one.whole
        and "torch" in one.versions
        and "vllm" in one.versions
        and "ray" not in one.versions
    ):
        yield ray_missing(sheet, one.where)


def ray_missing(sheet: Sheet, where: str) -> Finding:
    return seen("ray_missing", sheet, f"The image on {sheet.node} has no Ray", evidence=where, section="software")


def image_too_old(
    sheet: Sheet, where: str, seen_version: str, kind: str, *, model: str = "", engine: str = "vllm"
) -> Iterator[Finding]:
    """The model type that this engine does not know yet. `model`: name it, where the sentence stands alone."""
    first, title = too_old(seen_version, kind, engine), TITLES[engine]
    if first:
        yield seen(
            "image_too_old",
            sheet,
            f"{title} {seen_version} in {name_of(where)} on {sheet.node} is too old for {model} ({kind})"
            if model
            else f"The image's {title} {seen_version} is too old for {kind}",
            remedy=f"Use an image with {title} {spoken(first)} or newer.",
            evidence=where,
            section="software",
            model_type=kind,
            **{engine: seen_version, f"{engine}_wanted": spoken(first)},
        )


def _models(sheet: Sheet, wanted: Wanted | None) -> Iterator[Finding]:
    """Models against the vLLM that is asked to serve them. What is old for the same models is one finding, whatever
    number of images and containers has it."""
    mine = [
        one for one in sheet.models or () if wanted is None or one.path.rstrip("/") == wanted.model_path.rstrip("/")
    ]
    groups: dict[tuple[str, ...], list[Software]] = {}
    for one in _software(sheet, wanted):
        vllm = one.versions.get("vllm")
        old = [
            model.path
            for model in mine
            if vllm and too_old(vllm, model_type(model)) and _asked(sheet, one, model, wanted)
        ]
        if old:
            groups.setdefault(tuple(old), []).append(one)
    for paths, places in groups.items():
        old_for = [model for model in mine if model.path in paths]
        kinds = sorted({model_type(model) for model in old_for})
        versions = list(dict.fromkeys(one.versions["vllm"] for one in places))
        first = max(filter(None, (too_old(vllm, kind) for vllm in versions for kind in kinds)))
        where = listed(f"vLLM {vllm} in {_where(places, vllm, wanted)}" for vllm in versions)
        yield seen(
            "image_too_old",
            sheet,
            f"{where} on {sheet.node} {verb(len(versions), 'is', 'are')} too old for {listed(map(_called, old_for))}",
            meaning=f"The engine will most likely say that the architecture ({', '.join(kinds)}) is not supported.",
            remedy=f"Use an image with vLLM {spoken(first)} or newer.",
            evidence=", ".join(f"{one.where}: vllm {one.versions['vllm']}" for one in places),
            section="software",
            vllm=versions[0],
            vllm_wanted=spoken(first),
            model_types=kinds,
        )


def _asked(sheet: Sheet, one: Software, model: ModelFolder, wanted: Wanted | None) -> bool:
    """Whether it is this vLLM that would serve the model: a deployment says so, or the command of its container does.
    Of what lies there, only where nothing else on the node could."""
    if wanted is not None:
        return True
    if not one.where.startswith("container:"):
        return not _another_can(sheet, [model])
    name = name_of(one.where)
    told = {word for each in sheet.containers or () if each.name == name for word in words_of(each.command or "")}
    told |= {each.starts.model for each in sheet.processes or () if each.container == name and each.starts.model}
    return bool(told & {model.path, model.path.rstrip("/"), model.name})


def _where(places: list[Software], vllm: str, wanted: Wanted | None) -> str:
    if wanted is not None and wanted.image and wanted.runtime != "process":
        return f"image {wanted.image}"  # whatever containers happen to have it
    return listed(dict.fromkeys(_spoken_where(one) for one in places if one.versions["vllm"] == vllm))


def _spoken_where(one: Software) -> str:
    kind, _, name = one.where.partition(":")
    return f"container {name}" if kind == "container" else f"image {name}" if kind == "image" else name


def _called(model: ModelFolder) -> str:
    return model.name or model.path.rstrip("/").rpartition("/")[2]


def _another_can(sheet: Sheet, models: list[ModelFolder]) -> bool:
    """Whether something else on the node is new enough for all of them: then the old one is only passed by."""
    versions = [one.versions["vllm"] for one in sheet.software or () if "vllm" in one.versions]
    return all(any(too_old(vllm, model_type(model)) is None for vllm in versions) for model in models)
