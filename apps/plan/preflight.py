"""What a plan took for true of a node, and what of it a fresh sheet no longer says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from apps.diagnosis.findings.holders import NOTABLE_BYTES, is_ours
from apps.diagnosis.findings.software import full_reference
from apps.facts.sheet import Sheet
from apps.facts.values import Image, ModelFolder

Gate = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    reason: str  # a key of diagnosis.reasons
    sentence: str
    comes: bool = False  # a node that has just booted may not have it yet


def find_image(sheet: Sheet, reference: str) -> Image | None:
    """The image that `docker run REFERENCE` would take: a missing tag means latest; an id or a digest names it too."""
    wanted = full_reference(reference)
    for image in sheet.images or ():
        if image.ref is not None and full_reference(image.ref) == wanted:
            return image
        bare = reference.removeprefix("sha256:")
        if image.id and len(bare) >= 12 and image.id.removeprefix("sha256:").startswith(bare):
            return image
        if image.digest and "@" in reference and image.digest.endswith(reference.partition("@")[2]):
            return image
    return None


def find_model(sheet: Sheet, path: str) -> ModelFolder | None:
    """The model at this path: a folder, or one GGUF file (the first part of a split one) with its own size alone."""
    if path.lower().endswith(".gguf"):
        return _gguf(sheet, path)
    return next((model for model in sheet.models or () if model.path.rstrip("/") == path.rstrip("/")), None)


_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)


def _gguf(sheet: Sheet, path: str) -> ModelFolder | None:
    folder, _, name = path.rpartition("/")
    place = next((model for model in sheet.models or () if model.path.rstrip("/") == folder), None)
    sizes = dict(place.gguf) if place else {}
    if place is None or name not in sizes:
        return None
    part = _PART.search(name)
    count = int(part[2]) if part else 1
    names = [_PART.sub(f"-{number:05d}-of-{part[2]}", name) for number in range(1, count + 1)] if part else [name]
    there = [one for one in names if sizes.get(one)]
    total = sum(sizes[one] for one in there)
    return replace(
        place,
        path=path,
        bytes=total,
        weights_bytes=total,
        shards=len(there),
        shards_expected=count,
        complete=len(there) == count,
        missing=tuple(one for one in names if one not in there),
        partial_bytes=None,
        index_total_bytes=None,
    )


def gate(sheet: Sheet, **taken: Any) -> dict[str, Any]:
    """The gate of a preflight probe: the boot that the sheet was taken in and what the planner adds; empty values are
    left out, but for the containers that ran: that none did is something to compare with."""
    boot = sheet.machine.boot_id if sheet.machine else None
    body = {"name": "preflight", "boot_id": boot, **taken}
    return {name: value for name, value in body.items() if name == "seen" or value not in (None, "", [], {})}


def changes(gate: Gate, sheet: Sheet) -> tuple[Change, ...]:
    """Everything that the launch relies on and that is no longer so, worst first. `further` in the gate: images and models of
    further services."""
    gates = (gate, *gate.get("further", ()))
    found = (
        change for check in CHECKS for one in (gates if check in FILES else (gate,)) for change in check(one, sheet)
    )
    return tuple(dict.fromkeys(found))


def sentence(gate: Gate, sheet: Sheet) -> str:
    """What was found as planned, for the log."""
    said = [f"{sheet.node} is as planned"]
    if "image" in gate:
        said.append(f"image {gate['image']}")
    if "model_path" in gate:
        shards = f", {gate['shards']} of {gate['shards']} shards" if "shards" in gate else ""
        said.append(f"model {gate['model_path']}{shards}")
    return "; ".join(said)


def _rebooted(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    boot = sheet.machine.boot_id if sheet.machine else None
    if "boot_id" in gate and boot is not None and boot != gate["boot_id"]:
        yield Change("rebooted", f"{sheet.node} has rebooted since the plan was made; look at a new plan")


def _docker(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    if not gate.get("docker"):
        return
    if sheet.docker is None:
        yield Change("docker_down", f"Docker on {sheet.node} did not answer in time; the node may be busy", comes=True)
    elif sheet.docker.problem:
        said = f"Docker on {sheet.node} can no longer be used: {sheet.docker.problem}"
        yield Change(sheet.docker.problem, said, comes=sheet.docker.problem == "docker_down")
    elif not sheet.docker.present:
        yield Change("docker_missing", f"Docker is no longer there on {sheet.node}")


def _gpus(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    """Only of a relaunch: the driver comes up some time after SSH."""
    wanted = int(gate.get("gpus", 0))
    found = len(sheet.gpus.gpus) if sheet.gpus else 0
    if found < wanted:
        reason = (sheet.gpus.problem if sheet.gpus else None) or "driver_not_running"
        shown = "no GPU yet" if not found else f"{found} of {wanted} GPUs"
        yield Change(reason, f"{sheet.node} shows {shown}", comes=True)


def _fabric(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    """Only of a relaunch: addresses are given some time after SSH is there, and renamed interfaces want a new plan."""
    fabric = gate.get("fabric")
    if not fabric or sheet.interfaces is None:
        return
    has = [one.name for one in sheet.interfaces if any(own.ip == fabric["address"] for own in one.addresses)]
    if not has:
        said = f"{fabric['interface']} on {sheet.node} has no address {fabric['address']} yet"
        yield Change("fabric_down", said, comes=True)
    elif fabric["interface"] not in has:
        said = (
            f"{fabric['address']} on {sheet.node} is on {has[0]} now, not on {fabric['interface']}; look at a new plan"
        )
        yield Change("plan_changed", said)


def _image(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    if "image" not in gate or sheet.images is None:
        return
    image = find_image(sheet, gate["image"])
    if image is None:
        yield Change("image_missing", f"image {gate['image']} is not on {sheet.node}")
    elif "image_id" in gate and image.id and image.id != gate["image_id"]:
        yield Change(
            "plan_changed",
            f"image {gate['image']} on {sheet.node} is another one now: {image.id} instead of {gate['image_id']}",
        )


def _model(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    if "model_path" not in gate or sheet.models is None:
        return
    model = find_model(sheet, gate["model_path"])
    if model is None:
        yield Change("model_path_missing", f"there is no model at {gate['model_path']} on {sheet.node}")
    elif model.complete is False or ("shards" in gate and model.shards is not None and model.shards < gate["shards"]):
        expected = model.shards_expected or gate.get("shards", "?")
        yield Change(
            "model_path_missing",
            f"the model at {gate['model_path']} on {sheet.node} is incomplete: {model.shards} of {expected} shards",
        )
    elif "weights_bytes" in gate and model.weights_bytes is not None and model.weights_bytes != gate["weights_bytes"]:
        yield Change(
            "model_path_missing",
            f"the model at {gate['model_path']} on {sheet.node} is another one now: "
            f"{model.weights_bytes} bytes of weights instead of {gate['weights_bytes']}",
        )


def _containers(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    cleared, deployment = gate.get("cleared", ()), int(gate.get("deployment", 0))
    for container in sheet.containers or ():
        if (
            container.name in gate.get("containers", ())
            and container.name not in cleared
            and not is_ours(container, deployment)
        ):
            other = container.labels.get("sparkweb.deployment")
            yield Change(
                "other_deployment" if other else "foreign_container",
                f"a container called {container.name} on {sheet.node} "
                + (f"belongs to deployment {other}" if other else "does not belong to this deployment"),
            )


def _newcomers(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    """A container that holds the GPU's memory and that the plan had not seen."""
    if "seen" not in gate:
        return
    deployment = int(gate.get("deployment", 0))
    for container in sheet.containers or ():
        known = (
            container.name in gate["seen"]
            or container.name in gate.get("cleared", ())
            or is_ours(container, deployment)
        )
        if container.state == "running" and not known and (container.memory_bytes or 0) >= NOTABLE_BYTES:
            other = container.labels.get("sparkweb.deployment")
            whose = f" of deployment {other}" if other else ""
            yield Change(
                "other_deployment" if other else "foreign_container",
                f"{container.name}{whose} was started on {sheet.node} since the plan was made and holds "
                f"{(container.memory_bytes or 0) / (1 << 30):.1f} GiB",
            )


def _memory(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    available = sheet.memory.available_bytes if sheet.memory else None
    if "memory_bytes" in gate and available is not None and available < gate["memory_bytes"]:
        yield Change(
            "free_below_requested",
            f"only {available / (1 << 30):.1f} GiB are free on {sheet.node} now, and the engine claims "
            f"{gate['memory_bytes'] / (1 << 30):.1f} GiB",
        )


def _ports(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    released = set(gate.get("cleared_ports", ()))
    for listener in sheet.listeners or ():
        if listener.port in gate.get("ports", ()) and listener.port not in released:
            owner = listener.program or (f"process {listener.pid}" if listener.pid else "a process of another user")
            yield Change("port_busy", f"port {listener.port} on {sheet.node} is taken by {owner}")
            released.add(listener.port)


def names_of(sheet: Sheet, pid: int) -> tuple[str, ...]:
    """What the sheet calls a process: as the GPU's driver and as the list of listeners name it."""
    gpu = [one.name for one in (sheet.gpus.processes if sheet.gpus else ()) if one.pid == pid and one.name]
    return tuple(sorted({*gpu, *(one.program for one in sheet.listeners or () if one.pid == pid and one.program)}))


def _processes(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    """A pid is reused: what will be ended must still be what was consented to."""
    for wanted in gate.get("processes", ()):
        now = names_of(sheet, wanted["pid"])
        if now and not set(now) & set(wanted["names"]):
            yield Change(
                "plan_changed",
                f"process {wanted['pid']} on {sheet.node} is {', '.join(now)} now, not {', '.join(wanted['names'])}",
            )


def _disk(gate: Gate, sheet: Sheet) -> Iterator[Change]:
    root = next((disk for disk in sheet.disks or () if disk.mount == "/"), None)
    if "disk_bytes" in gate and root and root.available_bytes is not None and root.available_bytes < gate["disk_bytes"]:
        yield Change("disk_full", f"only {root.available_bytes / (1 << 30):.1f} GiB are free on / of {sheet.node}")


FILES = (_image, _model)
CHECKS = (
    _docker, _gpus, _fabric, _image, _model, _containers, _newcomers, _memory, _ports, _processes, _disk, _rebooted,
)  # fmt: skip
