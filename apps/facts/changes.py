"""What is different between two sheets of one node, in words. What one of them does not know is no change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from apps.facts.sheet import Sheet
from apps.facts.values import Container, EngineProcess, GpuError, Gpus, Interface, ModelFolder, Unit

GIB = 1 << 30
MEMORY_BYTES = 4 * GIB  # what is in use moves by less on its own
DISK_BYTES = 10 * GIB
FACTS = ("machine", "memory", "gpus", "docker", "containers", "images", "units", "interfaces", "fabric", "models")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Change:
    """`sentence` alone says it; `before` and `after` are None where there was or is nothing."""

    group: str  # machine, memory, gpu, disk, docker, containers, images, units, processes, network, fabric, models, software
    subject: str  # what changed: a container's name, a mount, "kernel"
    sentence: str
    before: str | None = None
    after: str | None = None


def changes(before: Sheet, after: Sheet) -> list[Change]:
    """In the order of the sheet: machine, memory, GPU, disks, Docker, containers, images, units, processes, network,
    models, software; at the end what can no longer be read."""
    return [
        *_machine(before, after),
        *_memory(before, after),
        *_gpus(before.gpus, after.gpus),
        *_xids(before.gpu_errors, after.gpu_errors),
        *_disks(before, after),
        *_docker(before, after),
        *_containers(before.containers, after.containers),
        *_images(before, after),
        *_units(before.units, after.units),
        *_units(before.user_units, after.user_units, whose="the user's unit"),
        *_processes(before.processes, after.processes),
        *_checkouts(before, after),
        *_boot_jobs(before, after),
        *_interfaces(before.interfaces, after.interfaces),
        *_fabric(before, after),
        *_listeners(before, after),
        *_models(before.models, after.models),
        *_software(before, after),
        *_rights(before, after),
        *_readable(before, after),
    ]


def _pair(group: str, subject: str, old: Any, new: Any, *, called: str = "") -> Iterator[Change]:
    """A plain value that is known on both sides and differs."""
    if old is not None and new is not None and old != new:
        before, after = _said(old), _said(new)
        yield Change(group, subject, f"{called or subject} is {after}, was {before}", before, after)


def _said(value: Any) -> str:
    """Yes and no, lists with commas, ids in short."""
    if isinstance(value, bool):
        return _yes(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    text = str(value)
    return text[7:19] if text.startswith("sha256:") else text


def _fields(group: str, old: Any, new: Any, names: Mapping[str, str]) -> Iterator[Change]:
    if old is None or new is None:
        return
    for name, called in names.items():
        yield from _pair(group, name, getattr(old, name), getattr(new, name), called=called)


def _matched(
    old: Iterable[Item] | None, new: Iterable[Item] | None, key: Callable[[Item], Any]
) -> Iterator[tuple[Item | None, Item | None]]:
    """Items of both sides by their name; nothing where a side is not known."""
    if old is None or new is None:
        return
    first, second = {key(each): each for each in old}, {key(each): each for each in new}
    for name in dict.fromkeys((*first, *second)):
        yield first.get(name), second.get(name)


def _machine(before: Sheet, after: Sheet) -> Iterator[Change]:
    old, new = before.machine, after.machine
    if old and new and old.boot_id and new.boot_id and old.boot_id != new.boot_id:
        yield Change("machine", "boot", "it was rebooted", old.boot_id, new.boot_id)
    names = {"hostname": "host name", "os": "system", "kernel": "kernel", "user": "user", "groups": "groups"}
    yield from _fields("machine", old, new, names)
    if before.internet is not None and after.internet is not None and before.internet != after.internet:
        words = {True: "it has internet again", False: "it has no internet any more"}
        yield Change("machine", "internet", words[after.internet], _yes(before.internet), _yes(after.internet))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _memory(before: Sheet, after: Sheet) -> Iterator[Change]:
    old = before.memory.used_bytes if before.memory else None
    new = after.memory.used_bytes if after.memory else None
    if old is not None and new is not None and abs(new - old) >= MEMORY_BYTES:
        word = "more" if new > old else "less"
        yield Change("memory", "in use", f"{_size(abs(new - old))} {word} in use", _size(old), _size(new))
    total = [sheet.memory.total_bytes if sheet.memory else None for sheet in (before, after)]
    if total[0] and total[1] and abs(total[0] - total[1]) >= GIB:
        yield from _pair("memory", "total", _size(total[0]), _size(total[1]), called="total memory")


def _gpus(old: Gpus | None, new: Gpus | None) -> Iterator[Change]:
    if old is None or new is None:
        return
    yield from _fields("gpu", old, new, {"driver": "driver", "cuda": "CUDA"})
    if len(old.gpus) != len(new.gpus):
        sentence = f"{len(new.gpus)} GPUs are seen, were {len(old.gpus)}"
        yield Change("gpu", "count", sentence, str(len(old.gpus)), str(len(new.gpus)))
    if old.problem != new.problem:
        said = f"the GPU can't be used: {new.problem}" if new.problem else "the GPU can be used again"
        yield Change("gpu", "problem", said.replace("_", " "), old.problem, new.problem)


def _disks(before: Sheet, after: Sheet) -> Iterator[Change]:
    for old, new in _matched(before.disks, after.disks, lambda disk: disk.mount):
        if old is None or new is None:
            mount = (old or new).mount  # type: ignore[union-attr]
            word = "is mounted" if new else "is not mounted any more"
            yield Change("disk", mount, f"{mount} {word}", mount if old else None, mount if new else None)
            continue
        free, now = old.available_bytes, new.available_bytes
        if free is not None and now is not None and abs(now - free) >= DISK_BYTES:
            word = "more" if now > free else "less"
            sentence = f"{_size(abs(now - free))} {word} free on {new.mount}"
            yield Change("disk", new.mount, sentence, _size(free), _size(now))


def _docker(before: Sheet, after: Sheet) -> Iterator[Change]:
    old, new = before.docker, after.docker
    if old is None or new is None:
        return
    if (old.present, old.problem) != (new.present, new.problem):
        words = [
            (each.problem or ("answers" if each.present else "not there")).replace("_", " ") for each in (old, new)
        ]
        yield Change("docker", "docker", f"Docker: {words[1]}, was: {words[0]}", words[0], words[1])
    yield from _fields("docker", old, new, {"server_version": "Docker"})


def _containers(old: tuple[Container, ...] | None, new: tuple[Container, ...] | None) -> Iterator[Change]:
    for was, now in _matched(old, new, lambda each: each.name):
        if was is None and now is not None:
            yield Change(
                "containers", now.name, f"container {now.name} is new ({now.state or 'state unknown'})", None, now.state
            )
        elif now is None and was is not None:
            yield Change("containers", was.name, f"container {was.name} is gone", was.state, None)
        elif was is not None and now is not None:
            yield from _container(was, now)


def _container(was: Container, now: Container) -> Iterator[Change]:
    called = f"container {now.name}"
    if was.id and now.id and was.id != now.id:
        yield Change("containers", now.name, f"{called} was made anew", was.id[:12], now.id[:12])
    elif was.started_at and now.started_at and was.started_at != now.started_at and now.state == "running":
        yield Change("containers", now.name, f"{called} was started again", was.started_at, now.started_at)
    yield from _pair("containers", now.name, was.state, now.state, called=called)
    yield from _pair("containers", now.name, was.image_id, now.image_id, called=f"the image of {called}")
    yield from _pair("containers", now.name, was.health, now.health, called=f"the health of {called}")
    yield from _pair("containers", now.name, was.restarts, now.restarts, called=f"the restart count of {called}")


def _images(before: Sheet, after: Sheet) -> Iterator[Change]:
    named = [None if each.images is None else [one for one in each.images if one.ref] for each in (before, after)]
    for was, now in _matched(named[0], named[1], lambda each: each.ref):
        if was is None and now is not None:
            yield Change("images", str(now.ref), f"image {now.ref} is new", None, now.id)
        elif now is None and was is not None:
            yield Change("images", str(was.ref), f"image {was.ref} is gone", was.id, None)
        elif was is not None and now is not None and was.id and now.id and was.id != now.id:
            yield Change("images", str(now.ref), f"image {now.ref} is another one", was.id, now.id)


def _xids(old: tuple[GpuError, ...] | None, new: tuple[GpuError, ...] | None) -> Iterator[Change]:
    for was, now in _matched(old, new, lambda each: (each.bus_id, each.code)):
        if now is not None and (was is None or now.count > was.count):
            subject = f"Xid {now.code}"
            yield Change(
                "gpu", subject, f"the driver reported {subject} of GPU {now.bus_id or 'unknown'}", None, now.line
            )


def _processes(old: tuple[EngineProcess, ...] | None, new: tuple[EngineProcess, ...] | None) -> Iterator[Change]:
    """Of those that no container has: containers say it themselves."""
    sides = [None if side is None else [one for one in side if one.container is None] for side in (old, new)]
    for was, now in _matched(sides[0], sides[1], lambda one: (one.pid, one.command)):
        one = now or was
        if one is not None and (was is None or now is None):
            called = f"process {one.pid} ({one.starts.engine or 'an engine'})"
            sentence = f"{called} of {one.user or 'an unknown user'} {'is new' if now else 'has ended'}"
            yield Change(
                "processes", str(one.pid), sentence, was.command if was else None, now.command if now else None
            )


def _boot_jobs(before: Sheet, after: Sheet) -> Iterator[Change]:
    for was, now in _matched(before.boot_jobs, after.boot_jobs, lambda each: (each.where, each.user, each.command)):
        one = now or was
        if one is not None and (was is None or now is None):
            word = "starts at boot now" if now else "does not start at boot any more"
            commands = was.command if was else None, now.command if now else None
            yield Change("units", one.where, f"{one.command[:200]} ({one.where}) {word}", *commands)


def _checkouts(before: Sheet, after: Sheet) -> Iterator[Change]:
    for was, now in _matched(before.checkouts, after.checkouts, lambda each: each.path):
        if was is not None and now is not None:
            commits = [each.commit and each.commit[:12] for each in (was, now)]
            yield from _pair("software", now.path, commits[0], commits[1], called=f"the commit of {now.path}")


def _units(old: tuple[Unit, ...] | None, new: tuple[Unit, ...] | None, *, whose: str = "unit") -> Iterator[Change]:
    for was, now in _matched(old, new, lambda each: each.name):
        if was is None and now is not None:
            yield Change(
                "units", now.name, f"{whose} {now.name} is new ({now.active or 'state unknown'})", None, now.active
            )
        elif now is None and was is not None:
            yield Change("units", was.name, f"{whose} {was.name} is gone", was.active, None)
        elif was is not None and now is not None:
            yield from _pair("units", now.name, was.active, now.active, called=f"{whose} {now.name}")
            yield from _pair("units", now.name, was.enabled, now.enabled, called=f"{whose} {now.name}")
            yield from _pair("units", now.name, was.exec_start, now.exec_start, called=f"the command of {now.name}")


def _interfaces(old: tuple[Interface, ...] | None, new: tuple[Interface, ...] | None) -> Iterator[Change]:
    for was, now in _matched(old, new, lambda each: each.name):
        one = now or was
        if one is None or one.physical is False:
            continue  # bridges and pairs of containers come and go
        if was is None or now is None:
            yield Change(
                "network",
                one.name,
                f"interface {one.name} is {'new' if now else 'gone'}",
                one.name if was else None,
                one.name if now else None,
            )
            continue
        states = [{True: "up", False: "down", None: None}[each.up] for each in (was, now)]
        yield from _pair("network", one.name, states[0], states[1], called=one.name)
        yield from _pair("network", one.name, was.mtu, now.mtu, called=f"the MTU of {one.name}")
        if was.up and now.up:
            yield from _pair(
                "network", one.name, was.speed_mbps, now.speed_mbps, called=f"the speed (Mbit/s) of {one.name}"
            )
        addresses = [", ".join(sorted(f"{each.ip}/{each.prefix}" for each in side.addresses)) for side in (was, now)]
        if addresses[0] != addresses[1]:
            sentence = f"{one.name} has {addresses[1] or 'no address'}, had {addresses[0] or 'none'}"
            yield Change("network", one.name, sentence, addresses[0] or None, addresses[1] or None)


def _fabric(before: Sheet, after: Sheet) -> Iterator[Change]:
    for was, now in _matched(before.fabric, after.fabric, lambda each: (each.name, each.port)):
        if was is None or now is None:
            one = now or was
            name = one.name if one else ""
            yield Change("fabric", name, f"RDMA port {name} is {'new' if now else 'gone'}")
            continue
        yield from _pair("fabric", now.name, was.state, now.state, called=now.name)
        yield from _pair("fabric", now.name, was.gid_index, now.gid_index, called=f"the GID index of {now.name}")
        if was.active and now.active:
            yield from _pair("fabric", now.name, was.rate_gbps, now.rate_gbps, called=f"the rate (Gb/s) of {now.name}")


def _listeners(before: Sheet, after: Sheet) -> Iterator[Change]:
    if before.listeners is None or after.listeners is None:
        return
    owners = [{each.port: each.program for each in side} for side in (before.listeners, after.listeners)]
    for port in sorted({*owners[0], *owners[1]}):
        if (port in owners[0]) == (port in owners[1]):
            continue
        opened = port in owners[1]
        program = owners[1 if opened else 0][port]
        sentence = f"port {port} is {'open' if opened else 'free again'}{f' ({program})' if program else ''}"
        yield Change("network", f"port {port}", sentence, None if opened else str(port), str(port) if opened else None)


def _models(old: tuple[ModelFolder, ...] | None, new: tuple[ModelFolder, ...] | None) -> Iterator[Change]:
    for was, now in _matched(old, new, lambda each: each.path):
        one = now or was
        if one is None:
            continue
        called = one.name or one.path
        if was is None or now is None:
            sentence = f"model {called} is {'new' if now else 'gone'}"
            yield Change("models", one.path, sentence, one.path if was else None, one.path if now else None)
            continue
        whole = [{True: "complete", False: "incomplete", None: None}[each.complete] for each in (was, now)]
        yield from _pair("models", one.path, whole[0], whole[1], called=f"model {called}")
        yield from _pair("models", one.path, was.shards, now.shards, called=f"the number of weight files of {called}")
        if was.shards == now.shards:
            sizes = (was.weights_bytes, now.weights_bytes)
            yield from _pair("models", one.path, *sizes, called=f"the size of the weights (bytes) of {called}")


def _software(before: Sheet, after: Sheet) -> Iterator[Change]:
    for was, now in _matched(before.software, after.software, lambda each: each.where):
        if was is None or now is None:
            continue  # containers and images say it themselves
        for name in sorted({*was.versions, *now.versions}):
            old, new = was.versions.get(name), now.versions.get(name)
            yield from _pair("software", now.where, old, new, called=f"{name} in {now.where.partition(':')[2]}")


def _rights(before: Sheet, after: Sheet) -> Iterator[Change]:
    names = {"sudo": "sudo", "linger": "lingering", "remove_ipc": "RemoveIPC", "docker_group": "the docker group"}
    yield from _fields("machine", before.privileges, after.privileges, names)
    limits = {
        "max_sessions": "MaxSessions of sshd",
        "tcp_forwarding": "AllowTcpForwarding of sshd",
        "version": "OpenSSH",
    }
    yield from _fields("machine", before.ssh_server, after.ssh_server, limits)
    synchronized = {"synchronized": "synchronized clock", "service": "time service"}
    yield from _fields("machine", before.time_sync, after.time_sync, synchronized)


def _readable(before: Sheet, after: Sheet) -> Iterator[Change]:
    for name in FACTS:
        was, now = getattr(before, name) is not None, getattr(after, name) is not None
        if was != now:
            yield Change(name, name, f"{name} can {'be read again' if now else 'no longer be read'}")
