"""What a person wants of a provision run, and the table of its steps."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

JUMBO = 9000  # bytes
REVERT_S = 60  # a node puts its network back after this long without a word from us
SHORTEST_REVERT_S, LONGEST_REVERT_S = 5, 600
CLOCK_MHZ = 2400  # a GB10 boosts to about 3000; a cap keeps two Sparks under one supply cool
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,80}(?:\.service)?")
FOLDER = re.compile(r"/[A-Za-z0-9._/-]{1,200}")


@dataclass(frozen=True)
class Offer:
    """One thing that a provision run can do. `mends`: the findings that it settles."""

    name: str
    title: str
    about: str
    mends: tuple[str, ...] = ()
    optional: bool = False  # never ticked by itself
    root: bool = True  # asks for sudo


OFFERS: tuple[Offer, ...] = (
    Offer("docker", "Docker for this user", "puts the user into the group docker", ("docker_denied",)),
    Offer(
        "toolkit",
        "GPU in containers",
        "registers the NVIDIA container toolkit with Docker and has Docker read its settings again; no container is touched",
        ("toolkit_missing",),
    ),
    Offer(
        "linger",
        "Keep shared memory after the last logout",
        "lets the user linger, so that logind leaves the shared memory of an engine alone",
        ("remove_ipc",),
    ),
    Offer("limits", "Locked memory and open files", "memlock unlimited and 1048576 open files for this user"),
    Offer("clock", "Time synchronisation", "switches NTP on", ("clock_skew",)),
    Offer("folders", "Folders for models and caches", "made and owned by this user; says how much room there is"),
    Offer(
        "sudoers",
        "Sudo without a password, for few commands",
        "one file in /etc/sudoers.d with exactly the commands that plans use, checked by visudo before it counts",
        ("sudo_password",),
    ),
    Offer(
        "fabric",
        "Fabric: link, addresses, MTU 9000",
        "by the mechanism that owns each interface; the node puts the old network back alone if nobody can reach it",
        (
            "fabric_not_shared",
            "fabric_down",
            "fabric_half_up",
            "twins_in_same_subnet",
            "twin_without_address",
            "fabric_mtu",
            "fabric_mtu_unequal",
            "fabric_link_local",
        ),
    ),
    Offer(
        "measure",
        "Small bandwidth check",
        "64 MiB over TCP in buffers of 64 KiB between two nodes; never large buffers, which froze a node in the field",
        optional=True,
        root=False,
    ),
    Offer(
        "peers",
        "SSH from node to node",
        "a key of its own on each node that opens the others, pinned both ways; for copies over the fabric",
        optional=True,
        root=False,
    ),
    Offer(
        "earlyoom",
        "earlyoom",
        "ends the largest process when memory runs out, before the node freezes; an engine may be what is ended",
        optional=True,
    ),
    Offer(
        "gpuclock",
        "Cap of the GPU's clock",
        "a unit that locks the highest clock at every boot: a little slower, cooler and steadier",
        optional=True,
    ),
)
BY_NAME = {offer.name: offer for offer in OFFERS}
MENDS = {finding: offer.name for offer in OFFERS for finding in offer.mends}


@dataclass(frozen=True)
class Place:
    """An address that an interface of a node is to have."""

    node: str
    interface: str
    address: str
    prefix: int = 24


@dataclass(frozen=True)
class Wish:
    """What is to be done where. `ticks`: (node, name of an offer), sorted. `key`: nodes whose door is opened first with a
    password, to put our public key in. `hosts`: (node, "type base64"), the pinned host keys, for `peers`."""

    nodes: tuple[str, ...]
    ticks: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    units: tuple[
        tuple[str, str], ...
    ] = ()  # (node, unit) that the scoped sudoers file may start, stop, enable, disable
    models: str = "/models"
    mtu: int = JUMBO
    revert_s: int = REVERT_S
    clock_mhz: int = CLOCK_MHZ
    internet: str = ""  # the node through which the others fetch packages, for the length of a step
    hosts: tuple[tuple[str, str], ...] = ()
    public_keys: tuple[tuple[str, str], ...] = field(default=())  # (node, public key of its credential), for `key`

    def ticked(self, node: str, name: str) -> bool:
        return (node, name) in self.ticks

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class BadWish(ValueError):
    """`field` is wrong; `remedy` says what to write instead."""

    def __init__(self, name: str, detail: str, remedy: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.field, self.detail, self.remedy = name, detail, remedy


def wish_from(body: Mapping[str, Any]) -> Wish:
    """A wish out of plain JSON values: nodes, ticks {node: [offer]}, key [node], fabric [{node, interface, address}],
    units {node: [unit]}, models, mtu, revert_s, clock_mhz, internet. Raises BadWish naming the field."""
    nodes = _names(body.get("nodes"))
    return Wish(
        nodes=nodes,
        ticks=_ticks(body.get("ticks") or {}, nodes),
        key=tuple(sorted(set(_listed("key", body.get("key") or [], nodes)))),
        places=_places(body.get("fabric") or [], nodes),
        units=_units(body.get("units") or {}, nodes),
        models=_matching("models", body.get("models") or "/models", FOLDER, "an absolute path, e.g. /models"),
        mtu=_whole("mtu", body.get("mtu", JUMBO), 1280, JUMBO),
        revert_s=_whole("revert_s", body.get("revert_s", REVERT_S), SHORTEST_REVERT_S, LONGEST_REVERT_S),
        clock_mhz=_whole("clock_mhz", body.get("clock_mhz", CLOCK_MHZ), 300, 4000),
        internet=_internet(body.get("internet") or "", nodes),
    )


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise BadWish("nodes", "no node is named", "Name at least one node.")
    for place, name in enumerate(value):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise BadWish(f"nodes[{place}]", "this is no name of a node", "Use a name of the list of nodes.")
    if len(set(value)) != len(value):
        raise BadWish("nodes", "a node is named twice", "Name each node once.")
    return tuple(value)


def _listed(name: str, value: Any, nodes: Sequence[str]) -> Sequence[str]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BadWish(name, "a list is expected", "Give a list of names.")
    for place, item in enumerate(value):
        if item not in nodes:
            raise BadWish(f"{name}[{place}]", f"{item!r} is no node of this run", "Name it in `nodes` too.")
    return value


def _ticks(value: Any, nodes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    made = set()
    for node, names in _by_node("ticks", value, nodes):
        for place, name in enumerate(names):
            if name not in BY_NAME:
                raise BadWish(
                    f"ticks.{node}[{place}]", f"there is no step {name!r}", f"Use one of {', '.join(BY_NAME)}."
                )
            made.add((node, str(name)))
    return tuple(sorted(made))


def _by_node(name: str, value: Any, nodes: Sequence[str]) -> list[tuple[str, Sequence[Any]]]:
    if not isinstance(value, Mapping):
        raise BadWish(name, "an object is expected", "Give lists by node.")
    for node, items in value.items():
        if node not in nodes:
            raise BadWish(f"{name}.{str(node)[:63]}", "this is no node of this run", "Name it in `nodes` too.")
        if not isinstance(items, Sequence) or isinstance(items, str):
            raise BadWish(f"{name}.{node}", "a list is expected", "Give a list of names.")
    return [(str(node), items) for node, items in value.items()]


def _units(value: Any, nodes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    made = set()
    for node, units in _by_node("units", value, nodes):
        for place, unit in enumerate(units):
            made.add((node, _matching(f"units.{node}[{place}]", unit, UNIT, "the name of a service")))
    return tuple(sorted(made))


def _places(value: Any, nodes: Sequence[str]) -> tuple[Place, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BadWish("fabric", "a list is expected", "Give a list of {node, interface, address}.")
    made = []
    for number, item in enumerate(value):
        where = f"fabric[{number}]"
        if not isinstance(item, Mapping) or set(item) - {"node", "interface", "address", "prefix"}:
            raise BadWish(where, "an item has other keys", "Use node, interface and address (e.g. 192.168.100.11/24).")
        if item.get("node") not in nodes:
            raise BadWish(f"{where}.node", f"{item.get('node')!r} is no node of this run", "Name it in `nodes` too.")
        interface = _matching(f"{where}.interface", item.get("interface"), INTERFACE, "the name of an interface")
        made.append(_place(where, str(item["node"]), interface, item))
    _distinct(made)
    return tuple(sorted(made, key=lambda one: (one.node, one.interface)))


def _place(where: str, node: str, interface: str, item: Mapping[str, Any]) -> Place:
    text = str(item.get("address", ""))
    text = text if "/" in text else f"{text}/{item.get('prefix', 24)}"
    try:
        found = ipaddress.IPv4Interface(text)
    except ValueError:
        raise BadWish(f"{where}.address", f"{text!r} is no IPv4 address", "Write e.g. 192.168.100.11/24.") from None
    network = found.network
    if not found.ip.is_private or found.ip.is_loopback or found.ip.is_link_local:
        raise BadWish(f"{where}.address", f"{found} is no private address", "Use e.g. 192.168.100.11/24.")
    if found.ip in (network.network_address, network.broadcast_address) or not 8 <= network.prefixlen <= 30:
        raise BadWish(f"{where}.address", f"{found} is no address of a host", "Use e.g. 192.168.100.11/24.")
    return Place(node, interface, str(found.ip), network.prefixlen)


def _distinct(places: Sequence[Place]) -> None:
    if len({(one.node, one.interface) for one in places}) != len(places):
        raise BadWish("fabric", "an interface stands there twice", "Give each interface one address.")
    if len({one.address for one in places}) != len(places):
        raise BadWish("fabric", "an address stands there twice", "Give each interface an address of its own.")
    seen: dict[tuple[str, str], str] = {}
    for one in places:
        network = str(ipaddress.IPv4Interface(f"{one.address}/{one.prefix}").network)
        if seen.setdefault((one.node, network), one.interface) != one.interface:
            raise BadWish(
                "fabric", f"two interfaces of {one.node} are in {network}", "Give each of them a subnet of its own."
            )


def _matching(name: str, value: Any, pattern: re.Pattern[str], words: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value) or "/../" in f"{value}/":
        raise BadWish(name, f"{str(value)[:80]!r} can't be used", f"Give {words}.")
    return value


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadWish(name, f"{str(value)[:40]!r} is out of range", f"Give a whole number from {least} to {most}.")
    return value


def _internet(value: Any, nodes: Sequence[str]) -> str:
    if value and value not in nodes:
        raise BadWish("internet", f"{str(value)[:63]!r} is no node of this run", "Name the node that has internet.")
    return str(value)
