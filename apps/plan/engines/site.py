"""What an engine needs to know of one node, taken from its sheet once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apps.facts.commands import engine_of
from apps.facts.sheet import Sheet
from apps.plan import options
from apps.plan.fabric import Fabric, fabric_address
from apps.plan.preflight import find_image
from apps.plan.spec import Spec, container_base
from apps.plan.step import Problem


@dataclass(frozen=True)
class Site:
    """One rank's place: node, rank, fabric, container name."""

    node: str
    rank: int
    container: str
    fabric: Fabric | None  # None on a single node
    has_gpu: bool
    gpus: int  # that this deployment uses here
    shared_ipc: bool
    root: bool
    home: str
    gpus_there: int = 0
    entrypoint_is_engine: bool = False  # of the image: it would take our program for its own first argument


CLUSTER_PORTS = {"ray": 6379, "vllm": 29501, "sglang": 25000}  # where ranks usually meet


def cluster_port(spec: Spec) -> int | None:
    """The port of the head at which the ranks meet: Ray's, or the rendezvous of an engine that spans nodes by itself. The
    spec's, else the usual one; None where nobody meets."""
    if spec.engine == "vllm" and spec.cluster == "ray" and spec.runtime == "docker":
        return spec.cluster_port or CLUSTER_PORTS["ray"]
    if len(spec.nodes) > 1 and spec.engine in CLUSTER_PORTS:
        return spec.cluster_port or CLUSTER_PORTS[spec.engine]
    return None


def container_name(spec: Spec, rank: int) -> str:
    """`{container}-rN`; the base is the deployment's name where none was chosen."""
    return f"{container_base(spec)}-r{rank}"


def sites(spec: Spec, sheets: Mapping[str, Sheet]) -> tuple[Site, ...] | tuple[Problem, ...]:
    """The places in rank order, or the problems that leave none: a sheet or a fabric address that is missing."""
    missing = tuple(no_sheet(node) for node in spec.nodes if node not in sheets)
    if missing:
        return missing
    chosen = [sheets[node] for node in spec.nodes]
    fabrics = [_fabric(sheet, chosen) for sheet in chosen]
    lost = tuple(fabric for fabric in fabrics if isinstance(fabric, Problem))
    if lost:
        return lost
    gpus = gpus_of(spec, chosen)
    return tuple(
        _site(spec, rank, sheet, fabric, gpus[rank])
        for rank, (sheet, fabric) in enumerate(zip(chosen, fabrics, strict=True))
        if not isinstance(fabric, Problem)
    )


def no_sheet(node: str) -> Problem:
    return Problem(
        name="not_probed",
        severity="stop",
        title=f"Nothing is known of {node} yet",
        node=node,
        meaning="A plan is made from what a node says of itself; this one has not answered so far.",
        remedy=f"Probe {node}. If it can't be reached, the probe says at which hop and why.",
    )


def _fabric(sheet: Sheet, everyone: Sequence[Sheet]) -> Fabric | Problem | None:
    if len(everyone) < 2:
        return None
    return fabric_address(sheet, [other for other in everyone if other is not sheet])


def gpus_of(spec: Spec, sheets: Sequence[Sheet]) -> tuple[int, ...]:
    """GPUs that the deployment uses on each node: as many on one as on the other, or all of each where one has fewer."""
    even = -(-options.ranks(spec) // len(sheets))
    there = [len(sheet.gpus.gpus) if sheet.gpus else 0 for sheet in sheets]
    enough = all(has >= even for has in there if has)
    return tuple(even if enough or not has else has for has in there)


def _site(spec: Spec, rank: int, sheet: Sheet, fabric: Fabric | None, gpus: int) -> Site:
    privileges, machine = sheet.privileges, sheet.machine
    image = find_image(sheet, spec.image) if spec.runtime == "docker" and spec.image else None
    ipc_is_swept = bool(privileges and privileges.remove_ipc and privileges.linger is False)
    return Site(
        node=sheet.node,
        rank=rank,
        container=container_name(spec, rank),
        fabric=fabric,
        has_gpu=bool(sheet.gpus and sheet.gpus.gpus),
        gpus=gpus,
        shared_ipc=not ipc_is_swept,
        root=bool(machine and machine.uid == 0),
        home=(machine.home if machine and machine.home else ""),
        gpus_there=len(sheet.gpus.gpus) if sheet.gpus else 0,
        entrypoint_is_engine=bool(image and image.entrypoint and engine_of(image.entrypoint)),
    )
