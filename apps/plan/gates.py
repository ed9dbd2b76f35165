"""What a step waits for, judged from what its question printed. Pure: the executor asks, this says done, failed or not
yet."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from apps.facts.ray import status as ray_status
from apps.facts.sheet import Sheet
from apps.facts.values import RayStatus
from apps.plan import preflight
from apps.plan.commands import ray

GIB = 1 << 30
Gate = Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """done: goes on. failed: a reason; waiting longer would not help. Neither: ask again. message: one line for the
    log."""

    done: bool
    failed: str | None = None
    message: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def judge(gate: Gate, stdout: str, exit_code: int | None, stderr: str = "") -> Judged:
    """Judge one answer. `exit_code` None: the question itself ran out of time. Raises ValueError for a gate nobody
    knows."""
    name = str(gate.get("name", ""))
    if name not in JUDGES:
        raise ValueError(f"no gate is called {name!r}; known: {', '.join(sorted(JUDGES))}")
    if exit_code is None:
        return Judged(False, message="no answer yet")
    try:
        judged = JUDGES[name](gate, stdout, exit_code)
    except (ValueError, OverflowError, RecursionError) as problem:  # numbers of thousands of digits and the like
        return Judged(False, message=f"the answer can't be read: {str(problem)[:200]}")
    if judged.done or judged.failed or not exit_code:
        return judged
    complaint = _complaint(stderr, stdout)
    return replace(judged, message=f"{judged.message}: {complaint}") if complaint else judged


def _complaint(*texts: str) -> str:
    """The last line that a failed question printed: why nothing is known yet is not always that it is early."""
    for text in texts:
        lines = [line.strip() for line in text.splitlines() if line.strip() and line.strip() != ray.ADDRESSES]
        if lines:
            return lines[-1][:300]
    return ""


def timeout_reason(gate: Gate) -> str:
    """The reason that running out of time becomes; `internal` for a gate nobody knows."""
    return TIMEOUTS.get(str(gate.get("name", "")), "internal")


def judge_sheet(gate: Gate, sheet: Sheet) -> Judged:
    """Judge a fresh sheet for a `probe` step: `sheet` is always good, `preflight` compares with what the plan took for
    true."""
    name = gate.get("name")
    if name == "sheet":
        return Judged(True, message=f"{sheet.node} answered")
    if name != "preflight":
        raise ValueError(f"no gate for a sheet is called {name!r}; known: preflight, sheet")
    changes = preflight.changes(gate, sheet)
    if changes:
        told = {"changes": [{"reason": change.reason, "sentence": change.sentence} for change in changes]}
        said = "; ".join(change.sentence for change in changes)
        if gate.get("waits") and all(change.comes for change in changes):
            return Judged(False, message=f"waits: {said}", values={**told, "reason": changes[0].reason})
        lasting = next(change for change in (*(one for one in changes if not one.comes), *changes))
        return Judged(False, lasting.reason, said, told)
    return Judged(True, message=preflight.sentence(gate, sheet))


def _memory_free(gate: Gate, stdout: str, exit_code: int) -> Judged:
    kib = {name: int(value) for name, value in re.findall(r"^(Mem\w+):\s+(\d+) kB", stdout, re.MULTILINE)}
    if "MemAvailable" not in kib:
        return Judged(False, message=f"/proc/meminfo did not say MemAvailable (exit {exit_code})")
    available, wanted = kib["MemAvailable"] * 1024, int(gate["bytes"])
    free = f", {kib['MemFree'] * 1024 / GIB:.1f} of them without dropping the page cache" if "MemFree" in kib else ""
    return Judged(
        available >= wanted,
        message=f"{available / GIB:.1f} of {wanted / GIB:.1f} GiB are free{free}",
        values={"available_bytes": available, "free_bytes": kib.get("MemFree", 0) * 1024, "wanted_bytes": wanted},
    )


def _containers_gone(gate: Gate, stdout: str, exit_code: int) -> Judged:
    if exit_code != 0:
        return Judged(False, message=f"docker did not answer (exit {exit_code})")
    listed = stdout.split()
    wanted = gate.get("containers")
    left = [name for name in listed if (wanted is None or name in wanted) and name not in gate.get("but", ())]
    message = f"still there: {', '.join(left)}" if left else "the containers are gone"
    return Judged(not left, message=message, values={"left": left})


def _listening(stdout: str) -> set[int]:
    """Ports of `ss -H -ltn` lines, or of /proc/net/tcp and tcp6 (state 0A)."""
    ports: set[int] = set()
    for line in stdout.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0].endswith(":") and words[3] == "0A":
            ports.add(int(words[1].rpartition(":")[2], 16))
        elif len(words) >= 4 and words[0] in ("LISTEN", "tcp"):
            port = words[3].rpartition(":")[2]
            ports.update((int(port),) if port.isdigit() else ())
    return ports


def _ports_free(gate: Gate, stdout: str, exit_code: int) -> Judged:
    if exit_code != 0:
        return Judged(False, message=f"neither ss nor /proc/net/tcp answered (exit {exit_code})")
    busy = sorted(_listening(stdout) & {int(port) for port in gate["ports"]})
    if busy:
        return Judged(False, message=f"port {', '.join(map(str, busy))} is still taken", values={"busy": busy})
    return Judged(True, message=f"port {', '.join(map(str, gate['ports']))} is free")


def _port_listening(gate: Gate, stdout: str, exit_code: int) -> Judged:
    """`docker inspect`'s state of a container, then the node's listening sockets."""
    port, name = int(gate["port"]), gate.get("container", "the engine")
    first, _, rest = stdout.partition("\n")
    alive = _container_running(gate, first, 0)
    if alive.failed:
        return alive
    if exit_code != 0:
        return Judged(False, message=f"neither ss nor /proc/net/tcp answered (exit {exit_code})")
    if port in _listening(rest):
        return Judged(True, message=f"{name} listens on {port}")
    return Judged(False, message=f"nothing listens on {port} yet")


def _container_running(gate: Gate, stdout: str, exit_code: int) -> Judged:
    name = gate.get("container", "the container")
    words = stdout.split()
    if exit_code != 0 or not words:
        return Judged(False, message=f"{name} is not there yet")
    state, code = words[0], words[1] if len(words) > 1 else ""
    if state == "running":
        return Judged(True, message=f"{name} runs")
    if state in ("exited", "dead"):
        return Judged(
            False,
            "exited",
            f"{name} ended with exit code {code or 'unknown'}; its log says why",
            {"exit_code": int(code) if code.lstrip("-").isdigit() else None},
        )
    return Judged(False, message=f"{name} is {state}")


def _units_active(gate: Gate, stdout: str, exit_code: int) -> Judged:
    """`systemctl is-active` of the units: a word each, in their order."""
    units, words = [str(unit) for unit in gate["units"]], stdout.split()
    if len(words) != len(units):
        return Judged(False, message=f"systemctl did not say how they are (exit {exit_code})")
    said = ", ".join(f"{unit} is {word}" for unit, word in zip(units, words, strict=True) if word != "active")
    if "failed" in words:
        return Judged(False, "exited", f"{said}; its journal says why")
    return Judged(not said, message=said or f"{', '.join(units)}: active")


def _process_alive(gate: Gate, stdout: str, exit_code: int) -> Judged:
    if exit_code == 0:
        return Judged(True, message="the process is alive")
    return Judged(False, "exited", "the process is gone; its log says why")


def _ray_addresses(text: str) -> list[str] | None:
    """Addresses of the nodes that are alive; None when the question was not answered."""
    for line in reversed(text.splitlines()):
        if line.startswith("[") and line.rstrip().endswith("]"):
            try:
                nodes = json.loads(line)
                return sorted(str(node["address"]) for node in nodes if node.get("alive"))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return None


def _node_resources(status: RayStatus) -> list[str] | None:
    """Addresses from `node:IP` resources, for Ray builds whose `ray status` prints them; None when there are none."""
    found = sorted(name.removeprefix("node:") for name in status.resources if re.fullmatch(r"node:[\d.:a-f]*\d", name))
    return found or None


def _ray_nodes(gate: Gate, stdout: str, exit_code: int) -> Judged:
    """Exactly the wanted addresses, all GPUs, none in use. An address that nobody asked for will not go away by
    waiting."""
    wanted = sorted(str(address) for address in gate["addresses"])
    gpus = float(gate.get("gpus", len(wanted)))
    before, _, after = stdout.partition(ray.ADDRESSES)
    status = ray_status(before) or RayStatus()
    addresses = _ray_addresses(after)
    if addresses is None:
        addresses = _node_resources(status)
    values = {
        "alive": status.alive,
        "gpu_used": status.gpu_used,
        "gpu_total": status.gpu_total,
        "addresses": addresses,
        "wanted": wanted,
    }
    strangers = [address for address in addresses or () if address not in wanted]
    if strangers:
        return Judged(
            False,
            "ray_wrong_ip",
            f"Ray shows {', '.join(strangers)}, which is no fabric address of this deployment "
            f"(wanted: {', '.join(wanted)})",
            values,
        )
    if status.alive is None:
        return Judged(False, message="Ray does not answer yet", values=values)
    shown = (
        f"Ray shows {status.alive} of {len(wanted)} nodes, {_figure(status.gpu_used)}/{_figure(status.gpu_total)} GPU"
    )
    if addresses is None:
        return Judged(False, message=f"{shown}; its addresses are not known yet", values=values)
    at = f"{shown}: {', '.join(addresses) or 'none'}"
    complete = addresses == wanted and status.alive == len(wanted) and status.gpu_total == gpus and status.gpu_used == 0
    return Judged(complete, message=at, values=values)


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _network_answers(gate: Gate, stdout: str, exit_code: int) -> Judged:
    """What the watch on the node says: an answer of any kind proves that the node is reached over its new network."""
    said = stdout.strip()
    if said == "reverted":
        return Judged(False, "fabric_reverted", "the node has put its old network back: nobody reached it in time")
    if said in ("armed", "kept", "unchanged"):
        return Judged(True, message="the node answers")
    return Judged(False, message=f"the node is putting its network back: {said[:80]}" if said else "no answer yet")


_NEIGHBOUR = re.compile(r"\blladdr [0-9a-f:]{17}\b.* (?:REACHABLE|DELAY|PERMANENT)\b")


def _peer_answers(gate: Gate, stdout: str, exit_code: int) -> Judged:
    """An answered echo, or a hardware address that the link has confirmed just now."""
    peer, where = gate.get("peer", "the peer"), f"{gate.get('address')} through {gate.get('interface')}"
    if re.search(r"\b[1-9]\d* (?:packets )?received\b", stdout):
        return Judged(True, message=f"{peer} answers at {where}")
    if _NEIGHBOUR.search(stdout):
        return Judged(True, message=f"{peer} is on the link at {where}, though it answers no ping")
    return Judged(False, message=f"waits for {peer} at {where}: no answer yet")


JUDGES: dict[str, Callable[[Gate, str, int], Judged]] = {
    "memory_free": _memory_free,
    "containers_gone": _containers_gone,
    "ports_free": _ports_free,
    "ray_nodes": _ray_nodes,
    "container_running": _container_running,
    "port_listening": _port_listening,
    "process_alive": _process_alive,
    "units_active": _units_active,
    "network_answers": _network_answers,
    "peer_answers": _peer_answers,
}
TIMEOUTS = {
    "memory_free": "memory_not_released",
    "containers_gone": "cleanup_incomplete",
    "ports_free": "port_busy",
    "ray_nodes": "ray_join_timeout",
    "container_running": "exited",
    "port_listening": "load_stalled",
    "process_alive": "exited",
    "units_active": "exited",
    "network_answers": "fabric_reverted",
    "peer_answers": "fabric_down",
}


def known() -> Iterable[str]:
    """Names of all gates of `wait` steps."""
    return JUDGES.keys()
