"""What is true of a deployment beside its state: drift, exposed, wedged, readiness. Pure; a flag never changes the state."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from apps.facts.masking import masked
from apps.facts.values import Container, EngineApi, Listener
from apps.watch.judging import SURE, NodeSeen, RankWanted, listed
from apps.watch.recorded import Recorded

FLAGS = ("drift", "exposed", "wedged", "readiness")
STILL = 2  # looks at which the counter must have stood still while requests ran
LOW = 0.4  # of the largest power seen while tokens came
LOW_OF_CAP = 0.3  # of the power limit, where no tokens were seen to come yet
LEAST_W = 8.0  # a peak below that tells nothing: some readings are always tiny
EVERYWHERE = ("0.0.0.0", "::", "*", "")  # noqa: S104 - what a listener says
UP = 200
_COMMIT = re.compile(r"snapshots/([0-9a-f]{7,40})")
_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")  # what `docker ps` shows once the tag names another image


@dataclass(frozen=True)
class ServiceWanted:
    """The API of one service: on its head, at a port."""

    name: str
    label: str
    head: str
    port: int
    host: str = ""  # what the revision asks to listen on
    keyed: bool = False  # the revision gives the engine a key
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flagged:
    """`flags`: evidence by name, of those that are sure. `kept`: what the next look needs."""

    flags: Mapping[str, str]
    kept: Mapping[str, Any] = field(default_factory=dict)


def flagged(
    ranks: Sequence[RankWanted],
    services: Sequence[ServiceWanted],
    seen: Mapping[str, NodeSeen],
    plans: Mapping[int, Recorded],
    kept: Mapping[str, Any],
    *,
    launched: str,
    as_found: bool = False,
) -> Flagged:
    """`plans`: what the plan recorded, by number of rank. `kept`: of the look before; another `launched` begins anew. What a node
    that did not answer would show is neither said nor taken back."""
    memory: dict[str, Any] = deepcopy(dict(kept)) if kept.get("launched") == launched else {"launched": launched}
    bases, apis = memory.setdefault("ranks", {}), memory.setdefault("apis", {})
    drift: list[str] = []
    for rank in ranks:
        node = seen.get(rank.node)
        if node is not None and not node.reason:
            drift += _drift(rank, plans.get(rank.number), node, bases.setdefault(str(rank.number), {}), as_found)
    said = {"drift": drift, "exposed": [], "wedged": [], "readiness": list(_docker(ranks, seen))}
    for service in services:
        head = seen.get(service.head)
        if head is None or head.reason:
            continue
        known = apis.setdefault(service.name, {})
        api = next((one for one in head.apis or () if one.port == service.port), None)
        several = len(services) > 1
        if api is not None:
            nodes = [seen[name] for name in (service.head, *service.nodes[1:]) if _answered(name, seen)]
            _follow(known, api, nodes)
            said["wedged"] += _wedged(service, api, known, nodes, several)
            said["readiness"] += _readiness(service, api, several)
        said["exposed"] += _exposed(service, head, known, several)
    return Flagged(_sure(said, memory, whole=all(_answered(rank.node, seen) for rank in ranks)), memory)


def _answered(node: str, seen: Mapping[str, NodeSeen]) -> bool:
    return node in seen and not seen[node].reason


def _sure(said: Mapping[str, list[str]], memory: dict[str, Any], *, whole: bool) -> dict[str, str]:
    """Believed after two looks that agree, taken back at the first that does not, unless a node was out of sight."""
    doubts, before = memory.setdefault("doubts", {}), memory.setdefault("said", {})
    flags: dict[str, str] = {}
    for name in FLAGS:
        if said[name]:
            doubts[name] = min(SURE, doubts.get(name, 0) + 1)
            if doubts[name] >= SURE or name == "wedged":  # which has counted its looks already
                flags[name] = " ".join(dict.fromkeys(said[name]))
        elif not whole and name in before:
            flags[name] = before[name]
        else:
            doubts.pop(name, None)
    memory["said"] = flags
    return flags


# What runs is not what was recorded


def _drift(
    rank: RankWanted, plan: Recorded | None, node: NodeSeen, base: dict[str, Any], as_found: bool
) -> Iterator[str]:
    box = next((one for one in node.containers or () if rank.container and one.name == rank.container), None)
    if box is not None and box.state == "running":
        if plan is not None and not as_found:
            yield from _against_plan(rank, plan, box)
        yield from _against_base(rank, box, base)
    if node.gpu_problem:
        yield f"On {rank.node} the driver is not the one that runs: {node.gpu_problem}."
    elif node.driver:
        first = base.setdefault("driver", node.driver)
        if first != node.driver:
            yield f"On {rank.node} the driver is {node.driver}, was {first} at the launch."
    if plan is not None and node.interfaces is not None:
        yield from _of_the_network(rank, plan, node)


def _against_plan(rank: RankWanted, plan: Recorded, box: Container) -> Iterator[str]:
    called = f"{rank.container} on {rank.node}"
    foreign = {key: text for key, text in plan.labels.items() if box.labels.get(key) != text}
    if (box.labels and foreign) or (not box.labels and plan.labels and box.command is not None):
        key, text = next(iter(foreign.items()), ("sparkweb.deployment", ""))
        has = box.labels.get(key)
        yield (
            f"{called} was not started by this deployment's run: its label {key} is {has or 'missing'}, recorded was {text}."
        )
    named = [one for one in (plan.image, box.image) if one and not _ID.fullmatch(one)]
    if len(named) == 2 and _tagged(named[0]) != _tagged(named[1]):
        yield f"{called} runs the image {box.image}, recorded was {plan.image}."
    if box.command is not None and plan.arguments and not any("$" in word for word in plan.arguments):
        wanted, runs = masked(" ".join(plan.arguments)), box.command
        if not runs.endswith(wanted) and len(runs) < 4000:
            yield _differs(called, wanted, runs)


def _tagged(image: str) -> str:
    """`latest` is what Docker takes where no tag is named."""
    last = image.rpartition("/")[2]
    return image if ":" in last or "@" in last else f"{image}:latest"


def _differs(called: str, wanted: str, runs: str) -> str:
    commits = [_COMMIT.search(text) for text in (wanted, runs)]
    if commits[0] and commits[1] and commits[0][1] != commits[1][1]:
        return f"{called} runs the model commit {commits[1][1][:12]}, recorded was {commits[0][1][:12]}."
    old, new = wanted.split(), runs.split()
    lost = [word for word in old if word not in new]
    added = [word for word in new[1:] if word not in old]
    parts = [f"without {' '.join(lost)[:160]}"] if lost else []
    parts += [f"with {' '.join(added)[:160]}"] if added else []
    return f"{called} runs other arguments than recorded: {' and '.join(parts) or 'in another order'}."


def _against_base(rank: RankWanted, box: Container, base: dict[str, Any]) -> Iterator[str]:
    """The image behind a tag, and what an adopted engine was found with, by the first look after the launch."""
    for key, value, called in (
        ("image_id", box.image_id, "the image"),
        ("command", box.command, "the command"),
    ):
        if not value:
            continue
        first = base.setdefault(key, value)
        if first != value and key == "image_id":
            yield f"{rank.container} on {rank.node} runs {called} {value[7:19]}, {first[7:19]} was launched."
        elif first != value:
            yield _differs(f"{rank.container} on {rank.node}", first, value)


def _of_the_network(rank: RankWanted, plan: Recorded, node: NodeSeen) -> Iterator[str]:
    known = {one.name: one for one in node.interfaces or ()}
    places = {address.ip: one.name for one in known.values() for address in one.addresses}
    for name in dict.fromkeys(
        part.lstrip("^=").split(":")[0] for words in plan.interfaces for part in words.split(",")
    ):
        if not name or "^" in "".join(plan.interfaces):
            continue
        there = [one for one in known.values() if one.name.startswith(name)]  # NCCL takes a name as a beginning
        if not there:
            yield f"The interface {name} that rank {rank.number} uses is not there any more on {rank.node}."
        elif all(one.up is False for one in there):
            yield f"The interface {name} that rank {rank.number} uses is down on {rank.node}."
    for address in plan.addresses:
        if places and address not in places:
            yield f"No interface of {rank.node} has the address {address} any more, which rank {rank.number} was launched with."


# What its API says


def _follow(known: dict[str, Any], api: EngineApi, nodes: Sequence[NodeSeen]) -> None:
    """Whether tokens came since the last look, and how much power the GPUs drew while they did."""
    if api.keyed is not None:
        known["keyed"] = api.keyed
    before = known.get("tokens")
    busy = bool(api.running) and bool(known.get("running"))
    if api.tokens is None:
        known.pop("tokens", None)
    else:
        if before is not None and api.tokens > before and (power := _power(nodes)) is not None:
            known["peak_w"] = max(power, known.get("peak_w", 0.0) * 0.999)
        moved = before is None or api.tokens != before
        known["still"] = 0 if moved or not busy else known.get("still", 0) + 1
        if moved or not busy or "since" not in known:
            known["since"] = nodes[0].at if nodes else 0.0
        known["tokens"] = api.tokens
    known["running"] = api.running


def _power(nodes: Sequence[NodeSeen]) -> float | None:
    """Watts of all GPUs of these nodes; None where one does not say."""
    found = [gpu.get("power_w") for node in nodes for gpu in node.gpus]
    return None if not found or None in found else sum(float(one) for one in found if one is not None)


def _wedged(
    service: ServiceWanted, api: EngineApi, known: Mapping[str, Any], nodes: Sequence[NodeSeen], several: bool
) -> list[str]:
    """Health is green, requests run, and for some looks no token came. A long prefill makes none either, but takes power; so where
    power is read it must be low, and where it is not, twice the looks must agree."""
    if api.health != UP or not api.running or api.tokens is None:
        return []
    power, peak = _power(nodes), float(known.get("peak_w") or 0.0)
    cap = sum(float(gpu.get("power_cap_w") or 0.0) for node in nodes for gpu in node.gpus)
    if power is None or (peak < LEAST_W and not cap):
        low, looks, said = True, 2 * STILL, "what power it draws at work is not known"
    elif peak >= LEAST_W:
        low, looks = power < LOW * peak, STILL
        said = f"the GPUs draw {power:.0f} W, {peak:.0f} W while it worked"
    else:
        low, looks, said = power < LOW_OF_CAP * cap, STILL, f"the GPUs draw {power:.0f} of {cap:.0f} W"
    if not low or known.get("still", 0) < looks:
        return []
    called = _named(service, several)
    requests = f"{api.running:.0f} request{'s' if api.running != 1 else ''}"
    seconds = max(0.0, nodes[0].at - float(known.get("since", nodes[0].at))) if nodes else 0.0
    return [
        f"{called[0].upper()}{called[1:]} says that it is healthy and runs {requests}, but no token came for {seconds:.0f} s (counter at "
        f"{api.tokens:.0f}), and {said}."
    ]


def _named(service: ServiceWanted, several: bool) -> str:
    return f"the API of {service.label}" if several else "the API"


def _readiness(service: ServiceWanted, api: EngineApi, several: bool) -> list[str]:
    if api.health == UP or api.asked_by in (None, "none"):
        return []
    answer = "does not answer" if not api.health else f"answers with {api.health}"
    called = _named(service, several)
    return [
        f"{called[0].upper()}{called[1:]} at port {service.port} of {service.head} {answer} when asked for /health."
    ]


def _docker(ranks: Sequence[RankWanted], seen: Mapping[str, NodeSeen]) -> Iterator[str]:
    for name in dict.fromkeys(rank.node for rank in ranks if rank.container):
        node = seen.get(name)
        if node is not None and not node.reason and node.docker_problem:
            yield f"Docker on {name} does not say which containers run: {node.docker_problem}."


def _exposed(service: ServiceWanted, head: NodeSeen, known: Mapping[str, Any], several: bool) -> list[str]:
    """Bound to more than the node itself and its fabric, and no key is asked for."""
    keyed = known.get("keyed")
    if keyed or (keyed is None and service.keyed) or head.listeners is None:
        return []
    reached = _reached(service, head)
    if not reached:
        return []
    called = _named(service, several)
    wider = "" if _open(service.host) else f", although the revision asks for {service.host} alone"
    return [
        f"{called[0].upper()}{called[1:]} at port {service.port} of {service.head} wants no key and listens on {listed(reached)}{wider}."
    ]


def _open(host: str) -> bool:
    return host in EVERYWHERE


def _reached(service: ServiceWanted, head: NodeSeen) -> list[str]:
    """Addresses on which others reach the port; the fabric's and those of container bridges do not count."""
    bound = [one for one in head.listeners or () if one.port == service.port]
    if any(_bare(one) in EVERYWHERE for one in bound):
        found = [
            address.ip
            for interface in head.interfaces or ()
            if interface.up is not False and interface.name not in head.fabric and interface.role != "ignore"
            for address in interface.addresses
            if not address.link_local and not _loopback(address.ip)
        ]
        return found or (["all addresses"] if head.interfaces is None else [])
    fabric = {
        address.ip
        for interface in head.interfaces or ()
        if interface.name in head.fabric
        for address in interface.addresses
    }
    return [_bare(one) for one in bound if not _loopback(_bare(one)) and _bare(one) not in fabric]


def _bare(listener: Listener) -> str:
    return listener.address.strip("[]").partition("%")[0]


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
