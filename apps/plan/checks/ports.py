"""Which TCP ports a deployment needs on a node."""

from __future__ import annotations

from apps.plan.commands import ray
from apps.plan.spec import Spec

RENDEZVOUS_PORT = 29501


def needed_ports(spec: Spec, node: str) -> tuple[int, ...]:
    """On the head: the API's port and Ray's or the rendezvous'. On other nodes none that is fixed."""
    if not spec.nodes or node != spec.nodes[0]:
        return ()
    if spec.cluster == "ray" and spec.runtime == "docker":
        return (spec.port, ray.PORT)
    if spec.cluster == "native" and len(spec.nodes) > 1:
        return (spec.port, RENDEZVOUS_PORT)
    return (spec.port,)
