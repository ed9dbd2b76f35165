"""The steps that tie nodes together: the fabric with its way back, proofs both ways, SSH from node to node."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from apps.diagnosis.findings.links import candidates
from apps.facts.sheet import Sheet
from apps.facts.values import Interface
from apps.plan import steps
from apps.plan.provision import scripts, texts
from apps.plan.provision.offers import USER_BASE, Here, _done, _not_done, root_step
from apps.plan.provision.wish import BY_NAME, Place, Wish
from apps.plan.step import Problem, Step
from apps.shell import Command, Shell

PORT = 47291  # of the bandwidth check
SETTLE_S = 1.0


def interface_of(sheet: Sheet, name: str) -> Interface | None:
    return next((one for one in sheet.interfaces or () if one.name == name), None)


def is_so(sheet: Sheet, place: Place, mtu: int) -> bool:
    found = interface_of(sheet, place.interface)
    has = found is not None and any((one.ip, one.prefix) == (place.address, place.prefix) for one in found.addresses)
    return bool(found and found.up and found.mtu == mtu and has)


def fabric(here: Here) -> Step:
    """Link, address and MTU of every place of one node, by what owns each interface."""
    if not here.places:
        return _not_done(here, "fabric", "no interface of this node was given an address")
    if all(is_so(here.sheet, one, here.wish.mtu) for one in here.places):
        listed = ", ".join(f"{one.address}/{one.prefix} on {one.interface}" for one in here.places)
        return _done(here, "fabric", f"{listed} is up with an MTU of {here.wish.mtu}")
    owners = here.setup.owners
    rows = [f"{one.interface} {one.address}/{one.prefix} {owners.get(one.interface, 'ip')}" for one in here.places]
    planned = [one for one in here.places if owners.get(one.interface) == "netplan"]
    values = {
        "links": "\n".join(rows),
        "mtu": str(here.wish.mtu),
        "revert_s": str(here.wish.revert_s),
        "state": scripts.NETWORK_STATE,
        "netplan": texts.netplan(planned, here.wish.mtu) if planned else "",
        "watch": scripts.WATCH.strip(),
    }
    made = root_step(here, "fabric", scripts.FABRIC, values)
    kept = {name: value for name, value in values.items() if name == "state"}
    return replace(made, undo={**made.undo, "values": kept}) if made.undo else made


def answers(here: Here, *, changed: bool) -> Step:
    """Whether the node still answers us after the network changed: asked over SSH, again and again."""
    script = Command.of("cat", scripts.NETWORK_STATE) if changed else Command.of("echo", "unchanged")
    return Step(
        key=f"provision.answers.{here.node}",
        node=here.node,
        title=f"See whether {here.node} still answers",
        kind="wait",
        script=Shell(f"{script.text} 2>/dev/null || echo unchanged").text,
        commands=(script.text,),
        gate={"name": "network_answers"},
        every_s=SETTLE_S,
        within_s=float(here.wish.revert_s) * 2 + 60,
        why=f"the node puts its old network back alone {here.wish.revert_s} s after the change, unless all answer",
    )


def keep(here: Here) -> Step:
    values = {"state": scripts.NETWORK_STATE}
    made = root_step(here, "fabric", scripts.FABRIC_KEEP, values)
    return replace(
        made, key=f"provision.keep.{here.node}", title="Keep the new network", undo={}, why="all nodes answered over it"
    )


def pings(here: Here, others: Sequence[Here]) -> Step:
    """Full packets that must not be divided, to every other node, on every rail."""
    rows = []
    for mine in here.places:
        network = ipaddress.IPv4Interface(f"{mine.address}/{mine.prefix}").network
        rows += [
            f"{mine.interface} {place.address} {other.node}"
            for other in others
            for place in other.places
            if ipaddress.IPv4Address(place.address) in network
        ]
    key, title = f"provision.ping.{here.node}", f"Packets of {here.wish.mtu} bytes to the others"
    if not rows:
        return steps.note(key, here.node, title, why="not proved: no other node of this run shares a fabric subnet")
    values = {"peers": "\n".join(rows), "size": str(here.wish.mtu - 28), "mtu": str(here.wish.mtu)}
    whole = scripts.body("ping", scripts.PING, values, base=USER_BASE)
    shown = [f"ping -M do -s {here.wish.mtu - 28} -c 3 -I {row.split()[0]} {row.split()[1]}" for row in rows]
    return steps.job(
        key,
        here.node,
        title,
        scripts.as_user(whole),
        shown=shown,
        why="8972 bytes and 28 of headers, not to be divided",
    )


def measuring(all_of_them: Sequence[Here]) -> Iterator[Step]:
    """The first node serves, the others send one after the other."""
    wanted = [here for here in all_of_them if here.wish.ticked(here.node, "measure")]
    ready = [here for here in wanted if here.places]
    if len(ready) < 2:
        yield from (_not_done(here, "measure", "two nodes with fabric addresses are needed") for here in wanted)
        return
    first = ready[0]
    address = first.places[-1 if first.places[-1].interface.startswith("enp") else 0].address
    for here in ready:
        what = "serve" if here is first else "send"
        arguments = f"{what} {address} {PORT} {len(ready) - 1}"
        whole = scripts.body(
            "measure", scripts.MEASURE, {"program": scripts.BANDWIDTH.strip(), "arguments": arguments}, base=USER_BASE
        )
        yield steps.job(
            f"provision.measure.{here.node}",
            here.node,
            BY_NAME["measure"].title,
            scripts.as_user(whole),
            shown=(f"python3 bandwidth.py {arguments}\n{scripts.BANDWIDTH.strip()}",),
            why=BY_NAME["measure"].about,
            within_s=60.0,
        )


def addresses_of(here: Here) -> tuple[str, ...]:
    """Where others reach this node: its fabric addresses, the first one first."""
    placed = sorted(here.places, key=lambda one: (one.interface.startswith("enP"), one.interface))
    return tuple(one.address for one in placed) or tuple(address.ip for _, address in candidates(here.sheet))


def peers(all_of_them: Sequence[Here]) -> tuple[list[Step], list[Step], list[Step]]:
    """Keys, trust, proof: three stages. Each node's public key travels from the first to the second through us."""
    wanted = [here for here in all_of_them if here.wish.ticked(here.node, "peers")]
    ready = [here for here in wanted if addresses_of(here) and here.user]
    if len(ready) < 2:
        return [_not_done(here, "peers", "two nodes with fabric addresses are needed") for here in wanted], [], []
    keys, trust, proof = [], [], []
    for here in ready:
        others = [other for other in ready if other is not here]
        keys.append(_user_job(here, "peer-key", "A key of its own for node to node", scripts.PEERS_MAKE, {}, undo=True))
        keys[-1] = replace(keys[-1], key=_key_of(here))
        names = {other.node: f"SPARKWEB_PEER_{number}" for number, other in enumerate(others, start=1)}
        rows = [f"{other.node} {','.join(addresses_of(other))} {names[other.node]}" for other in others]
        made = _user_job(
            here,
            "peers",
            "Let the other nodes in",
            scripts.PEERS_TRUST,
            {"peers": "\n".join(rows), "known": _known_hosts(here.wish, others)},
            undo=True,
        )
        takes = {variable: _key_of(other) for other in others for variable in [names[other.node]]}
        trust.append(replace(made, gate={"takes": takes}))
        opened = [f"{other.node} {addresses_of(other)[0]} {other.user}" for other in others]
        proof.append(
            _user_job(here, "peers-prove", "Log in to the others", scripts.PEERS_PROVE, {"peers": "\n".join(opened)})
        )
    return keys, trust, proof


def _key_of(here: Here) -> str:
    return f"provision.peer-key.{here.node}"


def _known_hosts(wish: Wish, others: Sequence[Here]) -> str:
    keys: Mapping[str, list[str]] = {
        other.node: [key for node, key in wish.hosts if node == other.node] for other in others
    }
    return "".join(f"{','.join(addresses_of(other))} {key}\n" for other in others for key in sorted(keys[other.node]))


def _user_job(here: Here, name: str, title: str, text: str, values: Mapping[str, str], *, undo: bool = False) -> Step:
    whole = scripts.body("peers", text, values, base=USER_BASE)
    return steps.job(
        f"provision.{name}.{here.node}",
        here.node,
        title,
        scripts.as_user(whole),
        shown=(whole,),
        why=BY_NAME["peers"].about,
        undo={"node": here.node, "provision": "peers", "values": {}} if undo else {},
    )


def problems(heres: Sequence[Here]) -> Iterator[Problem]:
    """Places that must not be: on the way to the node itself, or on an interface that is not there."""
    for here in heres:
        if not here.wish.ticked(here.node, "fabric"):
            continue
        for place in here.places:
            found = interface_of(here.sheet, place.interface)
            if found is None:
                yield _stop(here, place, f"{here.node} has no interface {place.interface}")
            elif found.role == "management" or found.default_route:
                yield _stop(here, place, f"{place.interface} is the way to {here.node} itself")
            else:
                yield from _overlaps(here, place)


def _overlaps(here: Here, place: Place) -> Iterator[Problem]:
    network = ipaddress.IPv4Interface(f"{place.address}/{place.prefix}").network
    for other in here.sheet.interfaces or ():
        for address in other.addresses:
            inside = address.family == "inet" and ipaddress.IPv4Address(address.ip) in network
            if inside and other.name != place.interface and not any(one.interface == other.name for one in here.places):
                yield _stop(here, place, f"{network} is already used on {other.name} of {here.node}")


def _stop(here: Here, place: Place, title: str) -> Problem:
    return Problem(
        name="bad_input",
        severity="stop",
        title=title,
        node=here.node,
        meaning="The fabric needs an interface and a subnet of its own.",
        remedy="Choose another interface or address.",
        evidence=f"{place.address}/{place.prefix} on {place.interface}",
    )
