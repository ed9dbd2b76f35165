"""NCCL's own lines (NCCL_DEBUG=INFO): which way the ranks talk, RDMA or sockets, over which devices, and what broke.

`NET/IB` is the verbs API, used for RoCE too; `IBext_v11` is the same through a plugin. What counts is the network that
was
chosen ("Using network …") and the devices named after "Using [0]…".
"""

from __future__ import annotations

import re

from apps.diagnosis.alike import Found
from apps.diagnosis.book import Act, Rule, counted
from apps.diagnosis.signs import EFFECT, Sign
from apps.diagnosis.story import Line, Story


def _rule(trigger: str, pattern: str, act: Act, votes: int = 2) -> Rule:
    return Rule("nccl", trigger, re.compile(pattern), act, votes)


def _choose(story: Story, network: str, line: Line) -> None:
    transport = "Socket" if network.lower().startswith("socket") else "RDMA"
    if story.facts.get("transport") != transport:
        story.milestone("transport", line, transport=transport, network=network)
    story.fact(transport=transport, network=network)
    if transport == "Socket":
        story.warn(
            "nccl_socket_fallback",
            "NCCL talks over TCP sockets, not RDMA: it works, but slowly",
            line,
            severity="warning",
        )
        story.fact(severity="warning", cause=_why_sockets(story))
    elif "nccl_socket_fallback" in story.warnings:
        del story.warnings["nccl_socket_fallback"]
        story.facts.pop("severity", None)
        story.facts.pop("cause", None)


def _why_sockets(story: Story) -> str:
    """What was asked for explains sockets before what was found does."""
    if story.marks.get("ib_disabled"):
        return "rdma_disabled"
    if story.marks.get("no_ib"):
        return "no_matching_hca" if story.marks.get("hca_asked") and not story.marks.get("no_verbs") else _NO_DEVICE
    return "nccl_socket_fallback"


_NO_DEVICE = "no_infiniband_device_in_container"


def _asked(story: Story, match: Found, line: Line) -> None:
    story.marks["hca_asked"] = True
    story.fact(hca_asked=match["hcas"].split(",")[:16])


def _disabled(story: Story, match: Found, line: Line) -> None:
    story.marks["ib_disabled"] = True


def _no_verbs(story: Story, match: Found, line: Line) -> None:
    story.marks["no_verbs"] = True
    _no_device(story, match, line)


def _direct(story: Story, match: Found, line: Line) -> None:
    story.fact(gdrdma=True)


def _network(story: Story, match: Found, line: Line) -> None:
    _choose(story, match["network"], line)


_DEVICE = re.compile(r"\[\d{1,3}\](?P<name>[\w.-]{1,40}):\d{1,3}/(?P<link>RoCE|IB|[A-Za-z]+)")


def _devices(story: Story, match: Found, line: Line) -> None:
    found = _DEVICE.findall(line.text)
    if found:
        story.fact(
            hcas=[name for name, _ in found], link="RoCE" if any(link == "RoCE" for _, link in found) else found[0][1]
        )
    out_of_band = re.search(r"OOB (?P<interface>[^:\s]+):(?P<address>[^\s<]+)", line.text)
    if out_of_band:
        story.fact(oob=out_of_band["address"], oob_interface=out_of_band["interface"])


def _no_device(story: Story, match: Found, line: Line) -> None:
    story.marks["no_ib"] = True
    story.milestone("no_rdma_device", line)


def _socket_interfaces(story: Story, match: Found, line: Line) -> None:
    found = re.findall(r"\[\d+\]([\w.@-]+):", line.text)
    story.fact(socket_interfaces=found[:16])
    if any(name.startswith(("docker", "virbr", "br-", "veth")) for name in found):
        story.warn(
            "nccl_virtual_interfaces",
            "NCCL also picked virtual interfaces: set NCCL_SOCKET_IFNAME",
            line,
            severity="warning",
        )


def _via(story: Story, match: Found, line: Line) -> None:
    if "transport" not in story.facts:
        _choose(story, match["network"], line)
    if match["direct"]:
        story.fact(gdrdma=True)


def _complete(story: Story, match: Found, line: Line) -> None:
    story.first(nranks=int(match["ranks"]))
    if not story.facts.get("complete"):
        story.milestone("nccl_ready", line, rank=int(match["rank"]), nranks=int(match["ranks"]))
    story.fact(complete=True)


def _version(story: Story, match: Found, line: Line) -> None:
    story.first(nccl=match["version"])


def _bandwidth(story: Story, match: Found, line: Line) -> None:
    """The last line of an nccl-tests program, GB/s."""
    story.fact(bus_gb_per_s=float(match["gbps"]))
    story.milestone("bandwidth", line, bus_gb_per_s=float(match["gbps"]))


def _shm_size(story: Story, match: Found, line: Line) -> None:
    story.fact(shm=match["size"])


RULES: tuple[Rule, ...] = (
    _rule("network", r"NCCL INFO Using network (?P<network>\S+)", _network, 3),
    _rule("using", r"NCCL INFO NET/(?:IB|IBext\w*) ?: Using ", _devices, 3),
    _rule("device", r"NCCL INFO NET/IB ?: No device found", _no_device, 3),
    _rule("libibverbs", r"Failed to open libibverbs", _no_verbs),
    _rule("nccl_ib_hca", r"NCCL_IB_HCA set (?:by environment )?to (?P<hcas>\S+)", _asked),
    _rule("nccl_ib_disable", r"NCCL_IB_DISABLE set by environment to 1", _disabled),
    _rule("direct", r"GPU Direct RDMA (?:\(\w+\) )?[Ee]nabled", _direct),
    _rule(
        "event",
        r"NET/IB : \S+ Got (?:non-fatal )?async event : ",
        lambda story, match, line: story.warn(
            "rdma_event", "An RDMA port reported an event: a cable, or the other end", line, severity="warning"
        ),
    ),
    _rule("bandwidth", r"^# Avg bus bandwidth\s+: (?P<gbps>[\d.]+)", _bandwidth, 5),
    _rule("ngpus", r"^# nThread \d+ nGpus \d+ minBytes", counted, 5),
    _rule("socket", r"NCCL INFO NET/Socket ?: Using ", _socket_interfaces),
    _rule("via", r"NCCL INFO Channel .{0,80}? via NET/(?P<network>[\w]+)/\S*?(?P<direct>/GDRDMA)?(?:\s|$)", _via),
    _rule(
        "ncclcomminitrank",
        r"ncclCommInitRank(?:Config)? comm \S+ rank (?P<rank>\d+) nranks (?P<ranks>\d+) .*Init COMPLETE",
        _complete,
        3,
    ),
    _rule(
        "comm",
        r"NCCL INFO comm \S+ rank (?P<rank>\d+) nranks (?P<ranks>\d+) .*Init COMPLETE",
        _complete,
        3,
    ),
    _rule("nccl", r"NCCL version (?P<version>\d+\.[\d.]+(?:\+cuda[\d.]+)?)", _version),
    _rule("nccl", r"NCCL INFO |NCCL WARN ", counted, 1),
    _rule("shm", r"^shm\s+(?P<size>\d+(?:\.\d+)?[KMG])\s", _shm_size, 1),
)


def _pair(match: Found) -> dict[str, object]:
    local, remote = match["local"].removeprefix("::ffff:"), match["remote"].removeprefix("::ffff:")
    return {
        "dev": match["dev"],
        "local": local,
        "remote": remote,
        "errno": int(match["errno"]),
        **({} if _one_subnet(local, remote) else {"cause": "ports_not_connected_or_wrong_hca"}),
    }


def _gid(match: Found) -> dict[str, object]:
    found: dict[str, object] = {"errno": int(match["errno"]), "dev": match["dev"]}
    if match["index"]:
        found.update(gid_index=int(match["index"]), local=match["local"].removeprefix("::ffff:"))
    return found


def _one_subnet(local: str, remote: str) -> bool:
    """Whether both are in one /24, the size that fabrics here are given."""
    return local.rpartition(".")[0] == remote.rpartition(".")[0]


SIGNS: tuple[Sign, ...] = (
    Sign(
        "ibv_modify_qp",
        re.compile(
            r"ibv_modify_qp failed with (?P<errno>110) .{0,60}on dev (?P<dev>[^:,\s]+)\S*,.*local GID "
            r"(?P<local>[\da-fA-F.:]+), remote GID (?P<remote>[\da-fA-F.:]+)"
        ),
        "fabric_miswired",
        kind="nccl",
        extract=_pair,
    ),
    Sign(
        "ibv_modify_qp",
        re.compile(
            r"ibv_modify_qp failed with (?P<errno>22) .{0,60}on dev (?P<dev>[^:,\s]+)"
            r"(?:.{0,80}local GID index (?P<index>\d+), local GID (?P<local>[\da-fA-F.:]+))?"
        ),
        "nccl_init",
        cause="wrong_gid_index",
        kind="nccl",
        extract=_gid,
    ),
    Sign("ibv_modify_qp", re.compile(r"ibv_modify_qp failed with (?:\d+|error)"), "nccl_init", kind="nccl"),
    *(
        Sign(
            name,
            re.compile(r"Call to " + name + r" failed(?: with error (?:Cannot allocate memory|\d+))?"),
            "nccl_init",
            cause="rdma_memory",
            kind="nccl",
        )
        for name in (
            "ibv_reg_mr",
            "ibv_reg_mr_iova2",
            "ibv_reg_dmabuf_mr",
            "ibv_create_cq",
            "ibv_create_qp",
            "ibv_alloc_pd",
        )
    ),
    Sign(
        "completion",
        re.compile(
            r"Got completion from peer (?P<remote>[\d.]+)\S* with (?:status=(?P<status>\d+)|error (?P<error>\d+))"
            r"(?:.{0,160}? hca (?P<dev>\S+))?"
        ),
        "nccl_init",
        cause="rdma_completion_error",
        kind="nccl",
        extract=lambda match: {
            "remote": match["remote"],
            "status": int(match["status"] or match["error"]),
            "dev": match["dev"],
        },
    ),
    Sign(
        "out",
        re.compile(r"NCCL WARN Cuda failure (?:\d+ )?'out of memory'"),
        "oom_gpu",
        cause="cuda_oom",
        kind="nccl",
    ),
    Sign(
        "nccl",
        re.compile(
            r"NCCL WARN .{0,80}failed : (?:No route to host|Software caused connection abort|Network is unreachable)"
        ),
        "nccl_init",
        EFFECT,
        cause="wrong_interface",
        kind="nccl",
    ),
    Sign(
        "interface",
        re.compile(r"Bootstrap ?: no socket interface found|no socket interface found"),
        "nccl_init",
        kind="nccl",
        values={"cause": "nccl_no_interface"},
    ),
    Sign(
        "nccl",
        re.compile(
            r"NCCL WARN .*(?:Connection refused|Connection timed out|Connection closed by remote peer|socketProgress)"
        ),
        "nccl_init",
        EFFECT,
        kind="nccl",
    ),
)
