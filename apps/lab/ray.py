"""ray start, ray status, ray stop inside containers; who has joined whom."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from dataclasses import dataclass

from apps.lab import runtime
from apps.lab.call import Call, tool
from apps.lab.world import Container, Listener, Node, RayNode


@dataclass
class RayListener(Listener):
    """One that belongs to a container."""


def option(words: list[str], name: str, default: str = "") -> str:
    for number, word in enumerate(words):
        if word == name and number + 1 < len(words):
            return words[number + 1]
        if word.startswith(name + "="):
            return word.split("=", 1)[1]
    return default


def stamp(node: Node) -> str:
    now = node.now()
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)) + f",{int(now * 1000) % 1000:03d}"


def log_stamp(node: Node) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.gmtime(node.now()))


NO_CLUSTER = (
    'Traceback (most recent call last):\n  File "/usr/local/bin/ray", line 10, in <module>\n    sys.exit(main())\n  ...\nConnectionError: Could not find any running Ray instance. '
    "Please specify the one to connect to by setting `--address` flag or `RAY_ADDRESS` environment variable.\n"
)


@tool("ray", inside=True, outside=False)
async def ray(call: Call) -> int:
    words, container = call.arguments, call.container
    if container is None or not container.image.software.ray:
        return await call.fail("ray: command not found", 127)
    verb = words[0] if words else ""
    if verb in ("--version", "version"):
        await call.out(f"ray, version {container.image.software.ray}\n")
        return 0
    if verb == "start":
        return await start(call, container, words[1:])
    if verb == "status":
        return await status(call, container)
    if verb == "stop":
        if container.ray is None:
            await call.out("Did not find any active Ray processes.\n")
            return 0
        leave(call.node, container)
        await call.out("Stopped all 6 Ray processes.\n")
        return 0
    if verb == "list":
        return await status(call, container)
    await call.out("Usage: ray [OPTIONS] COMMAND [ARGS]...\n")
    return 0 if verb in ("", "--help") else 2


async def start(call: Call, container: Container, words: list[str]) -> int:
    node = call.node
    head, block = "--head" in words, "--block" in words
    port = int(option(words, "--port", "6379") or 6379)
    address = (
        option(words, "--node-ip-address")
        or call.environment.get("VLLM_HOST_IP")
        or container.environment.get("VLLM_HOST_IP")
        or node.addresses[0]
    )
    if "wrong-interface" in node.faults:
        address = node.management or "10.1.230.181"
    await call.err(f"{stamp(node)}\tINFO usage_lib.py:447 -- Usage stats collection is disabled.\n")
    if container.ray is not None or (head and port in node.listeners):
        return await call.fail(
            "Traceback (most recent call last):\n  ...\nConnectionError: Ray is trying to start at "
            f"{address}:{port}, but is already running at {address}:{port}. Please specify a different port using the `--port` flag of `ray start` command.\n"
        )
    await node.world.pause(3)
    if head:
        return await start_head(call, container, address, port, block)
    return await join(
        call, container, address, option(words, "--address") or call.environment.get("RAY_ADDRESS", ""), block
    )


async def start_head(call: Call, container: Container, address: str, port: int, block: bool) -> int:
    node = call.node
    await call.err(f"{stamp(node)}\tINFO scripts.py:917 -- Local node IP: {address}\n")
    if not node.owns(address):
        await node.world.pause(30)
        return await call.fail(
            f"RuntimeError: Failed to start GCS. Last 0 lines of error files: cannot bind {address}:{port}: Cannot assign requested address\n"
        )
    member = RayNode(hashlib.sha224(uuid.uuid4().bytes).hexdigest(), address, node, container, head=True)
    member.cluster = [member]
    container.ray = member
    for number, program in ((port, "gcs_server"), (8265, "ray::dashboard"), (10001, "ray::client")):
        if number == port or number not in node.listeners:
            node.listeners[number] = RayListener(
                address if number == port else "127.0.0.1", number, program, container.pid, None, container.id
            )
    node.claim(f"container {container.id}", 0.45)
    await spawn(node, container, member)
    await call.err(
        f"{stamp(node)}\tSUCC scripts.py:954 -- --------------------\n{stamp(node)}\tSUCC scripts.py:955 -- Ray runtime started.\n{stamp(node)}\tSUCC scripts.py:956 -- --------------------\n"
        f"{stamp(node)}\tINFO scripts.py:958 -- Next steps\n{stamp(node)}\tINFO scripts.py:961 -- To add another node to this Ray cluster, run\n"
        f"{stamp(node)}\tINFO scripts.py:964 --   ray start --address='{address}:{port}'\n"
    )
    return await blocked(call, container, block)


async def join(call: Call, container: Container, address: str, target: str, block: bool) -> int:
    node, world = call.node, call.node.world
    await call.err(f"{stamp(node)}\tINFO scripts.py:1101 -- Local node IP: {address}\n")
    host, _, port = target.rpartition(":")
    refused = "ray-no-join" in node.faults
    head = None
    waited = 0.0
    while waited < 60:
        other = world.find(host)
        if other is not None and not refused:
            head = next(
                (
                    c.ray
                    for c in other.containers.values()
                    if c.running
                    and c.ray is not None
                    and c.ray.head
                    and c.ray.address == host
                    and int(port or 0) in other.listeners
                ),
                None,
            )
        if head is not None:
            break
        await world.pause(5)
        waited += 5
        await call.err(
            f"[{stamp(node)} E {container.pid} {container.pid}] gcs_rpc_client.h:179: Failed to connect to GCS at address {target} within 5 seconds.\n"
        )
    if head is None:
        return await call.fail(
            "Traceback (most recent call last):\n  ...\nray.exceptions.RpcError: Timed out while waiting for GCS to become available. "
            f"Failed to connect to GCS at address {target}.\n"
        )
    ours, theirs = container.image.software, head.container.image.software
    if (ours.ray, ours.python) != (theirs.ray, theirs.python):
        return await call.fail(
            f"RuntimeError: Version mismatch: The cluster was started with:\n    Ray: {theirs.ray}\n    Python: {theirs.python}\nThis process on node {address} was started with:\n"
            f"    Ray: {ours.ray}\n    Python: {ours.python}\n"
        )
    member = RayNode(hashlib.sha224(uuid.uuid4().bytes).hexdigest(), address, node, container)
    member.cluster = head.cluster
    head.cluster.append(member)
    container.ray = member
    node.claim(f"container {container.id}", 0.1)
    await spawn(node, container, member)
    await call.err(
        f"{stamp(node)}\tSUCC scripts.py:1117 -- --------------------\n{stamp(node)}\tSUCC scripts.py:1118 -- Ray runtime started.\n{stamp(node)}\tSUCC scripts.py:1119 -- --------------------\n"
    )
    return await blocked(call, container, block)


async def spawn(node: Node, container: Container, member: RayNode) -> None:
    """Ray's own processes in this container: when one of them ends, `ray start --block` ends with 1."""
    core = "/usr/local/lib/python3.12/dist-packages/ray/core/src/ray"
    titles = [f"{core}/raylet/raylet --raylet_socket_name=/tmp/ray/session_latest/sockets/raylet"]
    if member.head:
        titles.insert(0, f"{core}/gcs/gcs_server --log_dir=/tmp/ray/session_latest/logs")

    def broke(name: str) -> None:
        member.broken = member.broken or f"{name} [exit code=-9]"
        leave(node, container)

    for title in titles:
        process = await runtime.puppet(node, title, container=container.name)
        name = title.split()[0].rsplit("/", 1)[-1]
        process.on_death = lambda name=name: broke(name)
        member.processes.append(process)


async def blocked(call: Call, container: Container, block: bool) -> int:
    if not block:
        await call.err(
            f"{stamp(call.node)}\tINFO scripts.py:1130 -- To terminate the Ray runtime, run\n{stamp(call.node)}\tINFO scripts.py:1131 --   ray stop\n"
        )
        return 0
    await call.err(
        f"{stamp(call.node)}\tINFO scripts.py:1134 -- --block\n{stamp(call.node)}\tINFO scripts.py:1135 -- This command will now block forever until terminated by a signal.\n"
        f"{stamp(call.node)}\tINFO scripts.py:1138 -- Running subprocesses are monitored and a message will be printed if any of them terminate unexpectedly.\n"
    )
    member = container.ray
    while container.ray is member and member is not None:
        await asyncio.sleep(0.2)
        head = member.cluster[0] if member.cluster else None
        if not member.head and (head is None or not head.container.running):
            await call.node.world.pause(16)
            member.broken = "raylet [exit code=1]"
            break
    if member is None or not member.broken:
        return 0
    said = (
        "1147 -- Some Ray subprocesses exited unexpectedly:",
        f"1154 --   {member.broken}",
        "1159 -- Remaining processes will be killed.",
    )
    await call.err("".join(f"{stamp(call.node)}\tERR scripts.py:{line}\n" for line in said))
    return 1


def leave(node: Node, container: Container) -> None:
    member, container.ray = container.ray, None
    if member is None:
        return
    for process in member.processes:
        runtime.end_process(node, process)
    member.processes.clear()
    if member.head:
        for port in [
            port
            for port, item in node.listeners.items()
            if getattr(item, "container", "") == container.id and item.program.startswith(("gcs", "ray"))
        ]:
            del node.listeners[port]
        member.cluster.clear()
    elif member in member.cluster:
        member.cluster.remove(member)
    node.release(f"container {container.id}")


async def status(call: Call, container: Container) -> int:
    member = container.ray
    if member is None:
        address = call.environment.get("RAY_ADDRESS", "")
        other = call.node.world.find(address.partition(":")[0]) if address else None
        member = (
            next((c.ray for c in other.containers.values() if c.ray is not None and c.ray.head), None)
            if other
            else None
        )
    if member is None or not member.cluster:
        return await call.fail(NO_CLUSTER)
    await call.out(report(member))
    return 0


def report(member: RayNode) -> str:
    cluster = member.cluster
    now = member.node.now()
    title = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)) + f".{int(now * 1e6) % 1000000:06d}"
    gpus, used, placed = float(len(cluster)), sum(m.gpus_used for m in cluster), sum(m.placement for m in cluster)
    lines = [f"======== Autoscaler status: {title} ========", "Node status", "-" * 63, "Active:"]
    lines += [f" 1 node_{m.id}" for m in cluster]
    lines += [
        "Pending:",
        " (no pending nodes)",
        "Recent failures:",
        " (no failures)",
        "",
        "Resources",
        "-" * 63,
        "Total Usage:",
        f" {used}/{20.0 * gpus} CPU",
    ]
    lines.append(f" {used}/{gpus} GPU" + (f" ({used} used of {placed} reserved in placement groups)" if placed else ""))
    lines.append(f" 0.0/{gpus} accelerator_type:GB10")
    lines.append(f" 0B/{101.7 * gpus:.2f}GiB memory")
    for m in cluster:
        lines.append(f" {0.001 if placed and m.head else 0.0}/1.0 node:{m.address}")
        if m.head:
            lines.append(" 0.0/1.0 node:__internal_head__")
    lines.append(f" 0B/{8.9 * gpus:.2f}GiB object_store_memory")
    lines += ["", "From request_resources:", " (none)", "Pending Demands:"]
    waiting = [d for m in cluster for d in getattr(m, "demands", [])]
    lines += [f" {d}" for d in waiting] or [" (no resource demands)"]
    return "\n".join(lines) + "\n"
