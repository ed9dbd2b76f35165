"""Interfaces, RoCE ports and routes."""

from __future__ import annotations

import json

from apps.lab.call import Call, tool
from apps.lab.scene import Card
from apps.lab.tools import setup
from apps.lab.world import Node


def flags(card: Card) -> list[str]:
    if card.disabled:
        return ["BROADCAST", "MULTICAST"]
    return ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"] if card.up else ["NO-CARRIER", "BROADCAST", "MULTICAST", "UP"]


def broadcast(address: str) -> str:
    return address.rsplit(".", 1)[0] + ".255"


def entries(node: Node, *, addresses: bool) -> list[dict[str, object]]:
    forever = 4294967295
    found: list[dict[str, object]] = [
        {
            "ifindex": 1,
            "ifname": "lo",
            "flags": ["LOOPBACK", "UP", "LOWER_UP"],
            "mtu": 65536,
            "qdisc": "noqueue",
            "operstate": "UNKNOWN",
            "group": "default",
            "txqlen": 1000,
            "link_type": "loopback",
            "address": "00:00:00:00:00:00",
            "broadcast": "00:00:00:00:00:00",
        }
    ]
    if addresses:
        found[0]["addr_info"] = [
            {
                "family": "inet",
                "local": "127.0.0.1",
                "prefixlen": 8,
                "scope": "host",
                "label": "lo",
                "valid_life_time": forever,
                "preferred_life_time": forever,
            }
        ]
    for number, card in enumerate(node.cards, start=2):
        entry: dict[str, object] = {
            "ifindex": number,
            "ifname": card.name,
            "flags": flags(card),
            "mtu": card.mtu,
            "qdisc": "mq" if card.up else "noqueue",
            "operstate": "UP" if card.up else "DOWN",
            "group": "default",
            "txqlen": 1000,
            "link_type": "ether",
            "address": card.mac,
            "broadcast": "ff:ff:ff:ff:ff:ff",
        }
        if addresses:
            info: list[dict[str, object]] = []
            if card.address:
                info.append(
                    {
                        "family": "inet",
                        "local": card.address,
                        "prefixlen": card.prefix,
                        "broadcast": broadcast(card.address),
                        "scope": "link" if card.address.startswith("169.254.") else "global",
                        **({"dynamic": True, "noprefixroute": True} if card.dynamic else {}),
                        "label": card.name,
                        "valid_life_time": forever,
                        "preferred_life_time": forever,
                    }
                )
                parts = card.mac.split(":")
                info.append(
                    {
                        "family": "inet6",
                        "local": f"fe80::{int(parts[0], 16) ^ 2:x}{parts[1]}:{parts[2]}ff:fe{parts[3]}:{parts[4]}{parts[5]}",
                        "prefixlen": 64,
                        "scope": "link",
                        "valid_life_time": forever,
                        "preferred_life_time": forever,
                    }
                )
            entry["addr_info"] = info
        found.append(entry)
    bridge: dict[str, object] = {
        "ifindex": 12,
        "ifname": "docker0",
        "flags": ["NO-CARRIER", "BROADCAST", "MULTICAST", "UP"],
        "mtu": 1500,
        "qdisc": "noqueue",
        "operstate": "DOWN",
        "group": "default",
        "link_type": "ether",
        "address": "02:42:ac:11:00:02",
        "broadcast": "ff:ff:ff:ff:ff:ff",
    }
    if addresses:
        bridge["addr_info"] = [
            {
                "family": "inet",
                "local": "172.17.0.1",
                "prefixlen": 16,
                "broadcast": "172.17.255.255",
                "scope": "global",
                "label": "docker0",
                "valid_life_time": forever,
                "preferred_life_time": forever,
            }
        ]
    found.append(bridge)
    return found


def routes(node: Node) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for card in node.cards:
        if card.address and card.up:
            if not card.hca and node.seed.internet:
                found.append(
                    {
                        "dst": "default",
                        "gateway": card.address.rsplit(".", 1)[0] + ".1",
                        "dev": card.name,
                        "protocol": "dhcp",
                        "metric": 100,
                        "flags": [],
                    }
                )
            found.append(
                {
                    "dst": card.address.rsplit(".", 1)[0] + ".0/24",
                    "dev": card.name,
                    "protocol": "kernel",
                    "scope": "link",
                    "prefsrc": card.address,
                    "flags": [],
                }
            )
    found.append(
        {
            "dst": "172.17.0.0/16",
            "dev": "docker0",
            "protocol": "kernel",
            "scope": "link",
            "prefsrc": "172.17.0.1",
            "flags": ["linkdown"],
        }
    )
    return found


@tool("ip", inside=True)
async def ip(call: Call) -> int:
    words = call.arguments
    options = [word for word in words if word.startswith("-")]
    rest = [word for word in words if not word.startswith("-")]
    plain = "".join(word.lstrip("-") for word in options)
    as_json, one_line, family4 = (
        any(w in ("-j", "-json", "--json") for w in options),
        any(w in ("-o", "-oneline") for w in options),
        "4" in plain,
    )
    what = rest[0] if rest else ""
    node = call.node
    if what and ("route".startswith(what) or what == "r"):
        if len(rest) > 2 and rest[1] == "get":
            return await route_get(call, rest[2], as_json)
        found = routes(node)
        if as_json:
            await call.out(json.dumps(found, separators=(",", ":")) + "\n")
            return 0
        for route in found:
            gateway = f" via {route['gateway']}" if "gateway" in route else ""
            scope = f" scope {route['scope']} src {route['prefsrc']}" if "scope" in route else " metric 100"
            await call.out(f"{route['dst']}{gateway} dev {route['dev']} proto {route['protocol']}{scope}\n")
        return 0
    if what and ("neighbour".startswith(what) or what == "neigh"):
        if as_json:
            await call.out("[]\n")
        return 0
    addresses = bool(what) and "address".startswith(what)
    if not addresses and not (what and "link".startswith(what)):
        return await call.fail(
            "Usage: ip [ OPTIONS ] OBJECT { COMMAND | help }\n"
            if not what
            else f'Object "{what}" is unknown, try "ip help".\n',
            255 if not what else 1,
        )
    if len(rest) > 1 and rest[1] in ("add", "replace", "del", "set", "flush"):
        if not call.root:
            return await call.fail("RTNETLINK answers: Operation not permitted\n", 2)
        return await setup.ip_change(call, rest[1:])
    wanted = next((word for word in rest[1:] if word not in ("show", "list", "dev", "up", "scope", "global")), None)
    found = entries(node, addresses=addresses)
    if wanted is not None:
        found = [entry for entry in found if entry["ifname"] == wanted]
        if not found:
            return await call.fail(f'Device "{wanted}" does not exist.\n', 1)
    if "up" in rest[1:]:
        found = [entry for entry in found if "UP" in entry["flags"]]  # type: ignore[operator]
    if family4:
        for entry in found:
            entry["addr_info"] = [info for info in entry.get("addr_info", []) if info["family"] == "inet"]  # type: ignore[attr-defined]
        found = [entry for entry in found if entry["addr_info"]]
    if as_json:
        await call.out(json.dumps(found, separators=(",", ":")) + "\n")
        return 0
    for entry in found:
        infos: list[dict[str, object]] = entry.get("addr_info", [])  # type: ignore[assignment]
        if one_line and addresses:
            for info in infos:
                family = info["family"]
                end = f" brd {info['broadcast']}" if "broadcast" in info else ""
                await call.out(
                    f"{entry['ifindex']}: {entry['ifname']}    {family} {info['local']}/{info['prefixlen']}{end} scope {info['scope']}"
                    f"{' ' + str(info['label']) if 'label' in info else ' '}\\       valid_lft forever preferred_lft forever\n"
                )
            continue
        text = (
            f"{entry['ifindex']}: {entry['ifname']}: <{','.join(entry['flags'])}> mtu {entry['mtu']} qdisc {entry['qdisc']} state {entry['operstate']}"  # type: ignore[arg-type]
            f" group default qlen 1000\n    link/{entry['link_type']} {entry['address']} brd {entry['broadcast']}\n"
        )
        for info in infos:
            text += f"    {info['family']} {info['local']}/{info['prefixlen']} scope {info['scope']} {info.get('label', '')}\n       valid_lft forever preferred_lft forever\n"
        await call.out(text)
    return 0


async def route_get(call: Call, target: str, as_json: bool) -> int:
    near = [
        card
        for card in call.node.cards
        if card.address and card.up and target.rsplit(".", 1)[0] == card.address.rsplit(".", 1)[0]
    ]
    if not near and not call.node.seed.internet:
        return await call.fail("RTNETLINK answers: Network is unreachable\n", 2)
    card = near[0] if near else call.node.cards[0]
    gateway = "" if near else card.address.rsplit(".", 1)[0] + ".1"
    if as_json:
        first = {"dst": target, "gateway": gateway} if gateway else {"dst": target}
        route = {**first, "dev": card.name, "prefsrc": card.address, "flags": [], "uid": 1000, "cache": []}
        await call.out(json.dumps([route]) + "\n")
    else:
        via = f" via {gateway}" if gateway else ""
        await call.out(f"{target}{via} dev {card.name} src {card.address} uid 1000 \n    cache \n")
    return 0


def fabric(node: Node) -> list[Card]:
    return [card for card in node.cards if card.hca]


@tool("ibdev2netdev")
async def ibdev2netdev(call: Call) -> int:
    for card in fabric(call.node):
        await call.out(f"{card.hca} port 1 ==> {card.name} ({'Up' if card.up else 'Down'})\n")
    return 0


@tool("ibstat")
async def ibstat(call: Call) -> int:
    wanted = [word for word in call.arguments if not word.startswith("-")]
    if "-l" in call.arguments:
        await call.out("".join(card.hca + "\n" for card in fabric(call.node)))
        return 0
    for card in fabric(call.node):
        if wanted and card.hca not in wanted:
            continue
        guid = "0x4cbb4703005e" + card.mac.replace(":", "")[-4:]
        physical = "LinkUp" if card.up else ("Disabled" if card.disabled else "Polling")
        await call.out(
            f"CA '{card.hca}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.45.4028\n\tHardware version: 0\n\tNode GUID: {guid}\n"
            f"\tSystem image GUID: {guid[:-1]}0\n\tPort 1:\n\t\tState: {'Active' if card.up else 'Down'}\n\t\tPhysical state: {physical}\n"
            f"\t\tRate: {200 if card.up else 40}\n\t\tBase lid: 0\n\t\tLMC: 0\n\t\tSM lid: 0\n\t\tCapability mask: 0x00010000\n\t\tPort GUID: {guid}\n"
            "\t\tLink layer: Ethernet\n"
        )
    return 0


@tool("ibv_devices")
async def ibv_devices(call: Call) -> int:
    await call.out("    device          \t   node GUID\n    ------          \t----------------\n")
    for card in fabric(call.node):
        await call.out(f"    {card.hca:<16}\t4cbb4703005e{card.mac.replace(':', '')[-4:]}\n")
    return 0


@tool("ibv_devinfo")
async def ibv_devinfo(call: Call) -> int:
    for card in fabric(call.node):
        await call.out(
            f"hca_id:\t{card.hca}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.45.4028\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n\t\t\tstate:\t\t\t"
            f"{'PORT_ACTIVE (4)' if card.up else 'PORT_DOWN (1)'}\n\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tactive_mtu:\t\t4096 (5)\n\t\t\tlink_layer:\t\tEthernet\n\n"
        )
    return 0


@tool("rdma")
async def rdma(call: Call) -> int:
    cards = fabric(call.node)
    if "-j" in call.arguments or "-jp" in call.arguments:
        await call.out(
            json.dumps(
                [
                    {
                        "ifindex": n,
                        "ifname": c.hca,
                        "port": 1,
                        "state": "ACTIVE" if c.up else "DOWN",
                        "physical_state": "LINK_UP" if c.up else ("DISABLED" if c.disabled else "POLLING"),
                        "netdev": c.name,
                        "netdev_index": n + 3,
                    }
                    for n, c in enumerate(cards)
                ]
            )
            + "\n"
        )
        return 0
    for card in cards:
        await call.out(
            f"link {card.hca}/1 state {'ACTIVE physical_state LINK_UP' if card.up else 'DOWN physical_state ' + ('DISABLED' if card.disabled else 'POLLING')} netdev {card.name} \n"
        )
    return 0


@tool("show_gids")
async def show_gids(call: Call) -> int:
    await call.out(
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n"
    )
    for card in fabric(call.node):
        if card.up and card.address:
            octets = "".join(f"{int(word):02x}" for word in card.address.split("."))
            await call.out(
                f"{card.hca}\t1\t3\t0000:0000:0000:0000:0000:ffff:{octets[:4]}:{octets[4:]}\t{card.address}  \tv2\t{card.name}\n"
            )
    return 0


@tool("ethtool")
async def ethtool(call: Call) -> int:
    names = [word for word in call.arguments if not word.startswith("-")]
    card = next((card for card in call.node.cards if names and card.name == names[0]), None)
    if card is None:
        return await call.fail(
            "netlink error: no device matches name (offset 24)\nnetlink error: No such device\nCannot get device settings: No such device\n",
            1,
        )
    if "-i" in call.arguments:
        await call.out(
            f"driver: {card.driver}\nversion: 6.14.0-1015-nvidia\nfirmware-version: 28.45.4028 (NVD0000000087)\nbus-info: 0000:01:00.0\n"
        )
        return 0
    await call.out(
        f"Settings for {card.name}:\n\tSpeed: {f'{card.speed}Mb/s' if card.up else 'Unknown!'}\n\tDuplex: {'Full' if card.up else 'Unknown! (255)'}\n"
        f"\tAuto-negotiation: on\n\tPort: {'Direct Attach Copper' if card.hca else 'Twisted Pair'}\n\tLink detected: {'yes' if card.up else 'no'}\n"
    )
    return 0
