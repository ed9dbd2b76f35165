"""What sets a node up: groups, sudo's own files, lingering, the GPU runtime, and the four that may own an interface."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import asyncssh

from apps.lab.call import Call, tool
from apps.lab.scene import Card
from apps.lab.world import Node, Unit

LINK_LOCAL = "169.254.77.13"
COMMANDS = re.compile(r"^(?!#)(\w+)\s+ALL=\(root\)\s+NOPASSWD:\s*(.*)$", re.MULTILINE)


def etc(call: Call, path: str) -> Path:
    return call.node.root / "etc" / path


# Groups


def groups_of_login(call: Call) -> list[tuple[int, str]]:
    """Those that the user was in when this connection was made: sshd asks once."""
    given = call.environment.get("LAB_GROUPS")
    if given is None:
        return call.node.groups_of("aurora")
    return [(int(number), name) for number, _, name in (word.partition(":") for word in given.split())]


def in_group(call: Call, name: str) -> bool:
    return name in [group for _, group in groups_of_login(call)]


def set_member(call: Call, user: str, group: str, *, member: bool) -> bool:
    rows, found = [], False
    for line in etc(call, "group").read_text().splitlines():
        name, mark, number, members = line.split(":")
        if name == group:
            found = True
            rest = [one for one in members.split(",") if one and one != user]
            line = ":".join((name, mark, number, ",".join([*rest, user] if member else rest)))
        rows.append(line + "\n")
    etc(call, "group").write_text("".join(rows))
    return found


@tool("usermod")
async def usermod(call: Call) -> int:
    words = [word for word in call.arguments if word != "--"]
    if not call.root:
        return await call.fail("usermod: Permission denied.\nusermod: cannot lock /etc/passwd; try again later.\n", 1)
    if len(words) != 3 or words[0] != "-aG":
        return await call.fail("Usage: usermod [options] LOGIN\n", 2)
    if not set_member(call, words[2], words[1], member=True):
        return await call.fail(f"usermod: group '{words[1]}' does not exist\n", 6)
    return 0


@tool("gpasswd")
async def gpasswd(call: Call) -> int:
    words = call.arguments
    if not call.root:
        return await call.fail("gpasswd: Permission denied.\n", 1)
    if (
        len(words) != 3
        or words[0] not in ("-a", "-d")
        or not set_member(call, words[1], words[2], member=words[0] == "-a")
    ):
        return await call.fail("Usage: gpasswd [option] GROUP\n", 2)
    await call.out(f"Removing user {words[1]} from group {words[2]}\n" if words[0] == "-d" else "")
    return 0


# sudo


def commands(call: Call) -> list[str]:
    """What files under /etc/sudoers.d allow without a password; names with a dot are left out, as sudo does."""
    found = []
    for path in sorted(etc(call, "sudoers.d").glob("*")):
        if "." not in path.name and not path.name.endswith("~"):
            text = path.read_text().replace("\\\n", " ")
            found += [one.strip() for _, listed in COMMANDS.findall(text) for one in listed.split(", ")]
    return found


def allowed(call: Call, words: list[str]) -> bool:
    for one in commands(call):
        program, _, arguments = one.partition(" ")
        given = " ".join(words[1:])
        same = re.fullmatch(arguments[1:-1], given) if arguments.startswith("^") else arguments.strip() == given
        if same and words[:1] and words[0].rsplit("/", 1)[-1] == program.rsplit("/", 1)[-1]:
            return True
    return False


async def listed(call: Call) -> int:
    found = commands(call)
    if not found:
        return await call.fail("sudo: a password is required\n", 1)
    await call.out(
        f"Matching Defaults entries for aurora on {call.node.name}:\n    env_reset, use_pty\n\n"
        f"User aurora may run the following commands on {call.node.name}:\n    (ALL : ALL) ALL\n    (root) NOPASSWD: {', '.join(found)}\n"
    )
    return 0


@tool("visudo")
async def visudo(call: Call) -> int:
    words = call.arguments
    place = words[words.index("-f") + 1] if "-f" in words else ""
    files = [call.machine.inside(place)] if place else sorted(etc(call, "sudoers.d").glob("*"))
    for path in files:
        text = path.read_text().replace("\\\n", " ")
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip() and not line.startswith("#") and not COMMANDS.match(line):
                await call.err(f"{place or path}:{number}:1: syntax error\n{line}\n^\n")
                return 1
        await call.out(f"{place or '/etc/sudoers.d/' + path.name}: parsed OK\n")
    return 0


# Sessions, packages, the GPU runtime


def lingering(call: Call) -> Path:
    return call.node.root / "var/lib/systemd/linger/aurora"


def lingers(call: Call) -> str:
    return "yes" if lingering(call).exists() else "no"


async def linger(call: Call, *, on: bool) -> int:
    if not call.root:
        return await call.fail("Could not enable linger: Interactive authentication required.\n", 1)
    place = lingering(call)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch() if on else place.unlink(missing_ok=True)
    return 0


def has_gpu_runtime(call: Call) -> bool:
    try:
        return "nvidia" in json.loads(etc(call, "docker/daemon.json").read_text())["runtimes"]
    except (OSError, ValueError, KeyError):
        return False


@tool("nvidia-ctk")
async def nvidia_ctk(call: Call) -> int:
    if call.arguments[:2] != ["runtime", "configure"]:
        await call.out(
            "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d\n"
        )
        return 0
    if not call.root:
        return await call.fail("unable to open /etc/docker/daemon.json: permission denied\n", 1)
    body = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}
    etc(call, "docker").mkdir(exist_ok=True)
    etc(call, "docker/daemon.json").write_text(json.dumps(body, indent=4) + "\n")
    await call.err("INFO Wrote updated config to /etc/docker/daemon.json\n")
    return 0


@tool("apt-get")
async def apt_get(call: Call) -> int:
    words = [word for word in call.arguments if not word.startswith("-")]
    if not call.root:
        return await call.fail(
            "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)\n", 100
        )
    place = call.node.root / "usr/bin/earlyoom"
    if words == ["remove", "earlyoom"]:
        place.unlink(missing_ok=True)
        call.node.units.pop("earlyoom.service", None)
        return 0
    if words != ["install", "earlyoom"]:
        return await call.fail("E: Unable to locate package\n", 100)
    if not call.node.seed.internet and not any("Proxy=socks5h" in word for word in call.arguments):
        return await call.fail("E: Failed to fetch http://ports.ubuntu.com  Temporary failure resolving\n", 100)
    place.write_text("#!/bin/sh\n")
    place.chmod(0o755)
    call.node.units["earlyoom.service"] = Unit(
        "earlyoom.service", "Early OOM Daemon", "/usr/bin/earlyoom", fragment="/usr/lib/systemd/system/earlyoom.service"
    )
    await call.out("Setting up earlyoom (1.7-2) ...\n")
    return 0


@tool("ssh-keygen")
async def ssh_keygen(call: Call) -> int:
    words = call.arguments
    if "-f" not in words or "-t" not in words:
        return await call.fail("ssh-keygen: only -t ed25519 -f FILE is played here\n", 1)
    place = call.machine.inside(words[words.index("-f") + 1])
    comment = words[words.index("-C") + 1] if "-C" in words else ""
    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    place.write_bytes(key.export_private_key())
    place.chmod(0o600)
    place.with_name(place.name + ".pub").write_bytes(key.export_public_key())
    return 0


async def bandwidth(call: Call, words: list[str]) -> int:
    what, address = words[0], words[1]
    target = call.node if address in call.node.addresses else call.node.world.find(address)
    if target is None or target.machine is None:
        return await call.fail(f"{address} does not answer: timed out\n", 1)
    await call.out(
        "served 1\n" if what == "serve" else f"64 MiB to {address} in 0.011 s: 48.81 Gb/s over one TCP connection\n"
    )
    return 0


# The network and its owners


def card_of(node: Node, name: str) -> Card | None:
    return next((card for card in node.cards if card.name == name), None)


async def taken(node: Node, name: str, settings: dict[str, str]) -> None:
    card = card_of(node, name)
    if card is not None:
        await take(node, card, settings)


async def changed(node: Node, name: str, *, kept: bool, **fields: object) -> None:
    """The card is another one now; `kept`: after a boot too."""
    for cards in (node.cards, *((node.kept_cards,) if kept else ())):
        for place, card in enumerate(cards):
            if card.name == name:
                cards[place] = replace(card, **fields)  # type: ignore[arg-type]
    await node.world.network_changed(node)


async def ip_change(call: Call, words: list[str]) -> int:
    """`ip link set`, `ip addr add|replace|del|flush`, until the next boot."""
    node, verb = call.node, words[0]
    name = words[words.index("dev") + 1] if "dev" in words else words[1]
    card = card_of(node, name)
    if card is None:
        return await call.fail(f'Cannot find device "{name}"\n', 1)
    if verb == "set":
        fields: dict[str, object] = {}
        if "mtu" in words:
            fields["mtu"] = int(words[words.index("mtu") + 1])
        if "up" in words:
            fields |= {"up": card.cable or card.up, "disabled": False}
        if "down" in words:
            fields |= {"up": False, "disabled": True}
        await changed(node, name, kept=False, **fields)
        return 0
    address, _, prefix = words[1].partition("/")
    if verb in ("add", "replace"):
        if verb == "add" and card.address == address:
            return await call.fail("RTNETLINK answers: File exists\n", 2)
        await changed(node, name, kept=False, address=address, prefix=int(prefix or 32))
    elif card.address != address:
        return await call.fail("RTNETLINK answers: Cannot assign requested address\n", 2)
    else:
        await changed(node, name, kept=False, address="", prefix=24)
    return 0


async def take(node: Node, card: Card, settings: dict[str, str]) -> None:
    """What a daemon makes of one interface by its files: mtu, addresses or a link-local one."""
    address, _, prefix = settings.get("address", "").partition("/")
    if not address and settings.get("link_local") == "ipv4" and (card.up or card.address):
        address, prefix = LINK_LOCAL, "16"
    was_off = card.disabled and not settings.get("address")
    await changed(
        node,
        card.name,
        kept=True,
        address=address,
        prefix=int(prefix or 24),
        mtu=int(settings.get("mtu", 1500)),
        up=card.cable and not was_off,
        disabled=was_off,
    )


def networkd_files(node: Node) -> dict[str, dict[str, str]]:
    """Interface -> settings of the first file that names it."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((node.root / "etc/systemd/network").glob("*.network")):
        fields = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
        settings = {"mtu": fields.get("MTUBytes", "1500"), "link_local": fields.get("LinkLocalAddressing", "")}
        settings |= {"address": fields["Address"]} if "Address" in fields else {}
        found.setdefault(fields["Name"], settings)
    return found


@tool("networkctl")
async def networkctl(call: Call) -> int:
    words = [word for word in call.arguments if not word.startswith("-")]
    known, node = networkd_files(call.node), call.node
    if words[:1] == ["list"] or not words:
        for number, card in enumerate(node.cards, start=2):
            state = "routable" if card.up and card.address else "off"
            setup = (
                "configured"
                if card.name in known and not card.disabled
                else "configuring"
                if card.name in known
                else "unmanaged"
            )
            await call.out(f"{number:>3} {card.name:<16} ether    {state:<11} {setup}\n")
        return 0
    if not call.root:
        return await call.fail("Failed to reload network settings: Interactive authentication required.\n", 1)
    if words[0] == "reconfigure" and words[1] in known:
        await taken(node, words[1], known[words[1]])
    return 0


def netplan_files(node: Node) -> dict[str, dict[str, str]]:
    """Interface -> merged settings of all files, later ones over earlier ones."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((node.root / "etc/netplan").glob("*.yaml")):
        name = ""
        for line in path.read_text().splitlines():
            key, _, value = line.strip().partition(":")
            value = value.strip().strip("[]")
            if line.startswith("    ") and not line.startswith("     "):
                name = key
                found.setdefault(name, {})
            elif name and key == "addresses":
                found[name]["address"] = value
            elif name and key in ("mtu", "link-local"):
                found[name][key.replace("-", "_")] = value
    return found


@tool("netplan")
async def netplan(call: Call) -> int:
    node, words = call.node, call.arguments
    known = netplan_files(node)
    if words[:1] == ["status"]:
        body: dict[str, object] = {"netplan-global-state": {"online": True}}
        for card in node.cards:
            body[card.name] = {
                "type": "ethernet",
                **({"id": card.name, "backend": "networkd"} if card.name in known else {}),
            }
        await call.out(json.dumps(body) + "\n")
        return 0
    if not call.root:
        return await call.fail("Permission denied\n", 1)
    if words[:1] == ["apply"]:
        for name, settings in known.items():
            await taken(node, name, settings)
    return 0


@tool("nmcli")
async def nmcli(call: Call) -> int:
    node, words = call.node, call.arguments
    ground = node.ground
    if "device" in words:
        for card in node.cards:
            mine = next(
                (name for name, one in ground.connections.items() if one["ifname"] == card.name and one.get("on")), ""
            )
            managed = ground.owner == "networkmanager" and card.hca and card.cable
            state = "connected" if mine or (managed and card.up) else "disconnected" if managed else "unmanaged"
            connection = mine or (f"Wired {card.name}" if managed and card.up else "")
            fields = {"DEVICE": card.name, "STATE": state, "CONNECTION": connection}
            wanted = words[words.index("-f") + 1].split(",") if "-f" in words else list(fields)
            await call.out(":".join(fields[name] for name in wanted) + "\n")
        return 0
    if not call.root:
        return await call.fail("Error: Failed to add connection: Insufficient privileges\n", 8)
    verb, rest = words[1], words[2:]
    if verb == "add":
        given = dict(zip(rest[::2], rest[1::2], strict=False))
        ground.connections[given["con-name"]] = {
            "ifname": given["ifname"],
            "address": given["ipv4.addresses"],
            "mtu": given["802-3-ethernet.mtu"],
        }
    elif verb == "up" and rest[0] in ground.connections:
        one = ground.connections[rest[0]]
        one["on"] = "1"
        await taken(node, one["ifname"], one)
    elif verb == "up" and rest[0].startswith("Wired "):
        await taken(node, rest[0].removeprefix("Wired "), {"link_local": "ipv4"})
    elif verb == "delete" and rest[0] in ground.connections:
        name = ground.connections.pop(rest[0])["ifname"]
        await changed(node, name, kept=True, address="", prefix=24)
    else:
        return await call.fail(f"Error: unknown connection '{rest[0]}'.\n", 10)
    return 0
