"""The lab's own process: both nodes, their doors, and a control socket."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from apps.lab import figures, runtime, scene, tools  # noqa: F401
from apps.lab.call import CONTAINER_TOOLS, HIDDEN, TOOLS, answer
from apps.lab.doors import Door
from apps.lab.machine import Machine, sweep
from apps.lab.tools import systemd
from apps.lab.world import FAULTS, Ground, Node, Unit, World, stop_task


class LabWorld(World):
    """The world with its doors; reboot and reset live here."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.doors: dict[str, Door] = {}
        self.redirect = ""
        self.rebooting: dict[str, asyncio.Task[None]] = {}
        self.unstranded: dict[str, list[scene.Card]] = {}

    async def up(self, redirect: str, ports: dict[str, int], *, third: bool = False) -> None:
        for seed in (*scene.NODES, *((scene.PRO6000,) if third else ())):
            folder = self.folder / "nodes" / seed.name
            folder.mkdir(parents=True, exist_ok=True)
            node = Node(self, seed, folder)
            self.nodes[seed.name] = node
            with contextlib.suppress(OSError):
                node.authorized = (folder / "authorized").read_text().splitlines()
        for node in self.nodes.values():
            await self._start_machine(node, redirect)
            assert node.machine is not None
            self.doors[node.name] = Door(node, node.machine, ports.get(node.name, 0))
        for door in self.doors.values():
            door.doors = self.doors
        await asyncio.gather(*(self.fresh(node) for node in self.nodes.values()))
        for door in self.doors.values():
            await door.open()
        for node in self.nodes.values():
            assert node.machine is not None
            for other in self.doors.values():
                await asyncio.start_unix_server(other.carry, path=str(node.machine.runtime / f"ssh-{other.node.name}"))
        self.spawn(self._moving())

    async def _start_machine(self, node: Node, redirect: str) -> None:
        modes = ["mount", "rewrite"] if redirect == "auto" and not self.redirect else [self.redirect or redirect]
        for mode in modes:
            shutil.rmtree(node.root, ignore_errors=True)
            programs = [name for name in TOOLS if name not in HIDDEN and name not in node.seed.without]
            machine = Machine(node, mode, answer, programs, CONTAINER_TOOLS)
            node.machine = machine
            try:
                await machine.start()
                self.redirect = mode
                return
            except OSError as error:
                await machine.stop()
                if mode == modes[-1]:
                    raise
                print(
                    f"lab: no mount namespace here ({error}); paths are rewritten instead", file=sys.stderr, flush=True
                )

    async def _moving(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            for node in self.nodes.values():
                node.tick(now - last)
                if node.machine is not None:
                    with contextlib.suppress(OSError):
                        figures.write_moving(node, node.machine.files)
            last = now

    async def fresh(self, node: Node) -> None:
        """The start scene of one node whose processes run."""
        node.containers, node.units, node.images = {}, {}, list(scene.IMAGES)
        node.faults.clear()
        node.booted, node.boot_id = time.time() - node.seed.uptime_s, str(uuid.uuid4())
        node.kept_cards, node.ground = list(node.seed.cards), Ground()
        node.begin()
        figures.write_files(node, self.shards)
        assert node.machine is not None
        figures.write_fixed(node, node.machine.files)
        for name, description in systemd.STANDARD:
            node.units[name] = Unit(
                name,
                description,
                enabled="enabled" if not name.startswith("systemd-j") else "static",
                since=node.booted,
                fragment=f"/usr/lib/systemd/system/{name}",
                pid=800 + len(node.units) * 37,
            )
        for seed in node.seed.units:
            node.units[seed.name] = Unit(
                seed.name,
                seed.description,
                seed.exec_start,
                "enabled",
                "inactive",
                "dead",
                seed,
                fragment=f"/etc/systemd/system/{seed.name}",
            )
        await self.start_units(node, ready=True)
        for claim in node.claims.values():
            claim.held = claim.target
        figures.write_moving(node, node.machine.files)

    async def start_units(self, node: Node, *, ready: bool) -> None:
        for unit in list(node.units.values()):
            if unit.seed is not None and unit.enabled == "enabled":
                await systemd.start_unit(node, unit, ready=ready)
        if ready:
            for _ in range(500):
                wanted = [
                    unit.seed.container for unit in node.units.values() if unit.seed is not None and unit.seed.container
                ]
                if all(
                    name in node.containers and node.containers[name].engines and node.containers[name].engines[0].ready
                    for name in wanted
                ):
                    return
                await asyncio.sleep(0.01)

    async def _halt(self, node: Node) -> None:
        for unit in node.units.values():
            if unit.seed is not None:
                unit.active, unit.sub = "inactive", "dead"
                await stop_task(unit.task)
                unit.task = None
        for container in list(node.containers.values()):
            container.user_stopped = True
            if container.running:
                container.state, container.exit_code, container.finished = "exited", 255, time.time()
                await runtime.take_down(node, container)
                container.ended.set()
                container.log.wake()
            if container.remove:
                node.containers.pop(container.name, None)
        assert node.machine is not None
        await node.machine.power_off()

    async def reboot(self, node: Node) -> None:
        if node.name in self.rebooting and not self.rebooting[node.name].done():
            return
        task = self.spawn(self._reboot(node))
        self.rebooting[node.name] = task
        await asyncio.shield(task)

    async def _reboot(self, node: Node) -> None:
        door = self.doors[node.name]
        await door.shut()
        await self._halt(node)
        await asyncio.sleep(max(1.0, 75 / self.factor))
        node.booted, node.boot_id = time.time(), str(uuid.uuid4())
        containers = node.containers
        node.begin()
        node.containers = containers
        node.cache_gib = 2.5
        assert node.machine is not None
        for entry in (node.root / "tmp").iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() and not entry.is_symlink() else entry.unlink(
                missing_ok=True
            )
        figures.write_fixed(node, node.machine.files)
        figures.write_moving(node, node.machine.files)
        await node.machine.boot()
        for unit in node.units.values():
            if unit.seed is None:
                unit.since = time.time()
        await self.start_units(node, ready=False)
        for container in list(node.containers.values()):
            if container.restart_policy in ("always", "unless-stopped") and not container.running:
                await runtime.start_container(node, container)
        await door.open()

    async def reset(self) -> None:
        """Both nodes back at the start scene; keys, ports and who may come in stay."""
        await asyncio.gather(*(self._reset(node) for node in self.nodes.values()))

    async def _reset(self, node: Node) -> None:
        door = self.doors[node.name]
        node.faults.clear()
        door.thaw()
        await door.shut()
        await stop_task(self.rebooting.pop(node.name, None))
        await self._halt(node)
        assert node.machine is not None
        shutil.rmtree(node.root, ignore_errors=True)
        node.machine.build()
        await node.machine.boot()
        await self.fresh(node)
        await door.open()

    async def network_changed(self, node: Node) -> None:
        for card in node.cards:
            figures.write_link(node, card)
        if "strands" in node.faults:
            door = self.doors[node.name]
            await (door.open() if node.cards == self.unstranded[node.name] else door.shut())

    def bare(self, node: Node, owner: str, *, sudo: str, login: str) -> None:
        """The node as it comes out of its box, its fabric owned by `owner`."""
        node.kept_cards = list(scene.bare(node.seed))
        node.cards = list(node.kept_cards)
        node.ground = Ground(sudo_password=sudo, login_password=login, ntp=False, owner=owner)
        figures.write_bare(node)
        for card in node.cards:
            figures.write_link(node, card)

    async def down(self) -> None:
        for door in self.doors.values():
            await door.shut()
        for node in self.nodes.values():
            with contextlib.suppress(Exception):
                await self._halt(node)
            if node.machine is not None:
                await node.machine.stop()
        for task in list(self.tasks):
            await stop_task(task)

    # faults

    def fault(self, node: Node, name: str, value: str) -> None:
        """Raises KeyError for an unknown fault."""
        name, _, inline = name.partition(":")
        value = value or inline
        if name not in FAULTS and name not in ("docker-denied", "docker-down", "sudo-password"):
            raise KeyError(name)
        door = self.doors[node.name]
        node.faults[name] = value
        if name == "cut":
            self.spawn(self._cut(node, door, float(value or 5)))
        elif name == "freeze":
            self.spawn(self._freeze(node, door, float(value or 10)))
        elif name == "host-key-changed":
            door.drop()
        elif name == "strands":
            self.unstranded[node.name] = list(node.cards)
        elif name == "unit-revives":
            for unit in node.units.values():
                if (
                    unit.seed is not None
                    and unit.active == "inactive"
                    and value in ("", unit.name, unit.name.removesuffix(".service"))
                ):
                    self.spawn(systemd.revive(node, unit))

    async def _cut(self, node: Node, door: Door, seconds: float) -> None:
        await door.shut()
        await asyncio.sleep(seconds)
        if node.name not in self.rebooting or self.rebooting[node.name].done():
            await door.open()
        node.faults.pop("cut", None)

    async def _freeze(self, node: Node, door: Door, seconds: float) -> None:
        door.freeze()
        await asyncio.sleep(seconds)
        door.thaw()
        node.faults.pop("freeze", None)

    def clear(self, node: Node) -> None:
        node.faults = {name: value for name, value in node.faults.items() if name in ("cut", "freeze")}

    def state(self) -> dict[str, Any]:
        return {
            "redirect": self.redirect,
            "factor": self.factor,
            "shards": self.shards,
            "shard_s": self.shard_s,
            "nodes": {
                node.name: {
                    "port": self.doors[node.name].port,
                    "boot_id": node.boot_id,
                    "uptime_s": node.uptime,
                    "used_gib": round(node.used_gib, 2),
                    "free_gib": round(node.free_gib, 2),
                    "cache_gib": round(node.cache_gib, 2),
                    "claims": {key: [round(c.held, 2), round(c.target, 2)] for key, c in node.claims.items()},
                    "containers": {
                        c.name: {
                            "state": c.state,
                            "exit_code": c.exit_code,
                            "image": c.image.repository,
                            "labels": c.labels,
                            "ready": any(e.ready for e in c.engines),
                        }
                        for c in node.containers.values()
                    },
                    "programs": {one.name: one.ready for one in node.programs},
                    "gpus": [round(node.gpu_held(number), 2) for number in node.gpu_numbers],
                    "units": {u.name: [u.active, u.sub, u.enabled] for u in node.units.values() if u.seed is not None},
                    "listeners": sorted(node.listeners),
                    "faults": node.faults,
                    "processes": {p.pid: p.title for p in node.processes.values()},
                    "host_keys": self.doors[node.name].fingerprints(),
                }
                for node in self.nodes.values()
            },
        }


class Control:
    """JSON lines over a unix socket: {"do": …} -> {"ok": true, …} or {"ok": false, "error": …}."""

    def __init__(self, world: LabWorld, ending: asyncio.Event) -> None:
        self.world, self.ending = world, ending

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    said = {"ok": True, **(await self.act(json.loads(line)) or {})}
                except KeyError as error:
                    said = {
                        "ok": False,
                        "error": f"unknown name {error.args[0]!r}: nodes are {', '.join(self.world.nodes)}; faults are listed by `manage.py lab faults`",
                    }
                except (ValueError, TypeError) as error:
                    said = {"ok": False, "error": str(error)}
                writer.write(json.dumps(said).encode() + b"\n")
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def act(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        world, do = self.world, asked.get("do")
        if do == "state":
            return world.state()
        if do == "stop":
            self.ending.set()
            return None
        if do == "reset":
            await world.reset()
            return None
        if do == "set":
            for name in ("factor", "shard_s"):
                if name in asked:
                    setattr(world, name, float(asked[name]))
            if "rank_order" in asked:
                world.rank_order = str(asked["rank_order"])
            if "memory_strict" in asked:
                world.memory_strict = str(asked["memory_strict"]).lower() not in ("0", "false", "no", "off")
            if "shards" in asked:
                world.shards = int(asked["shards"])
                for node in world.nodes.values():
                    name, size = (scene.MODEL, scene.MODEL_BYTES) if node.seed.spark else (scene.BF16, scene.BF16_BYTES)
                    shutil.rmtree(node.root / "models" / name, ignore_errors=True)
                    figures.write_model(node.root / "models", name, world.shards, size, dict(scene.MODEL_CONFIG))
            return None
        nodes = list(world.nodes.values()) if asked.get("node") in (None, "", "all") else [world.nodes[asked["node"]]]
        for node in nodes:
            if do == "fault":
                world.fault(node, str(asked["fault"]), str(asked.get("value", "")))
            elif do == "clear":
                world.clear(node)
            elif do == "reboot":
                world.spawn(world.reboot(node))
            elif do == "authorize":
                key = str(asked["key"]).strip()
                if len(key.split()) < 2:
                    raise ValueError("not an OpenSSH public key: it should read like 'ssh-ed25519 AAAA… name'")
                if key not in node.authorized:
                    node.authorized.append(key)
                (node.folder / "authorized").write_text("\n".join(node.authorized) + "\n")
            elif do == "bare":
                words = {name: str(asked.get(name, "")) for name in ("owner", "sudo", "login")}
                world.bare(node, words["owner"], sudo=words["sudo"], login=words["login"])
            elif do == "remove-image":
                node.images = [
                    image
                    for image in node.images
                    if asked["image"] not in (image.repository, f"{image.repository}:{image.tag}")
                ]
            else:
                raise KeyError(do)
        return None


async def serve(
    folder: Path, *, factor: float, shards: int, redirect: str, shard_s: float, rank_order: str, third: bool = False
) -> int:
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / "lock", "w")  # noqa: SIM115 (held until the end)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print(f"lab: another lab is running on {folder}; stop it first", file=sys.stderr)
        return 1
    sweep(folder)
    ports: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, KeyError):
        ports = {
            name: int(entry["port"]) for name, entry in json.loads((folder / "lab.json").read_text())["nodes"].items()
        }
    world, ending = (
        LabWorld(folder, factor=factor, shards=shards, shard_s=shard_s, rank_order=rank_order),
        asyncio.Event(),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    try:
        await world.up(redirect, ports, third=third)
        machine = next(iter(world.nodes.values())).machine
        assert machine is not None
        control = str(machine.runtime / "control")
        server = await asyncio.start_unix_server(Control(world, ending).serve, path=control)
        os.chmod(control, 0o600)
        body = {
            "pid": os.getpid(),
            "control": control,
            "redirect": world.redirect,
            "factor": factor,
            "user": "aurora",
            "nodes": {
                name: {
                    "address": "127.0.0.1",
                    "port": door.port,
                    "host_keys": door.fingerprints(),
                    "addresses": world.nodes[name].addresses,
                }
                for name, door in world.doors.items()
            },
        }
        written = folder / "lab.json.new"
        written.write_text(json.dumps(body, indent=2) + "\n")
        written.replace(folder / "lab.json")
        print(
            json.dumps(
                {
                    "lab": str(folder),
                    "redirect": world.redirect,
                    "ports": {name: door.port for name, door in world.doors.items()},
                }
            ),
            flush=True,
        )
        await ending.wait()
        server.close()
    finally:
        await world.down()
        lock.close()
    return 0


def main(words: list[str]) -> int:
    """python -m apps.lab.daemon '{"folder": …}'"""
    given = json.loads(words[0])
    return asyncio.run(
        serve(
            Path(given["folder"]),
            factor=float(given.get("factor", 35)),
            shards=int(given.get("shards", 39)),
            redirect=given.get("redirect", "auto"),
            shard_s=float(given.get("shard_s", 18)),
            rank_order=str(given.get("rank_order", "01")),
            third=bool(given.get("third")),
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
