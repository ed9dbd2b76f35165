"""What NCCL and Gloo are told of one node's place in the fabric: the same for every engine that spans nodes."""

from __future__ import annotations

from apps.plan.engines.argument import Variable
from apps.plan.fabric import Fabric


def variables(fabric: Fabric | None) -> tuple[Variable, ...]:
    """Nothing on a single node. The GID index only where the node's own tables name one for all of these ports."""
    if fabric is None:
        return ()
    at = "the interface that has the address by which the other nodes reach this one"
    made = [
        Variable("NCCL_SOCKET_IFNAME", fabric.nccl_interface, reason=at),
        Variable("GLOO_SOCKET_IFNAME", fabric.interface, reason=at),
        Variable("TP_SOCKET_IFNAME", fabric.interface, reason=at),
    ]
    if fabric.hcas:
        made.append(
            Variable("NCCL_IB_HCA", ",".join(fabric.hcas), reason="the active RDMA ports of the cable that is used")
        )
    if fabric.gid_index is not None:
        made.append(
            Variable(
                "NCCL_IB_GID_INDEX",
                str(fabric.gid_index),
                reason="RoCE v2 over IPv4, as this node's own GID tables say",
            )
        )
    proof = "the only proof of the path: a misspelt HCA falls back to TCP without a word"
    made.append(Variable("NCCL_DEBUG", "INFO", reason=proof))
    made.append(Variable("NCCL_DEBUG_SUBSYS", "INIT,NET", reason="no more of it than that proof needs"))
    return tuple(made)
