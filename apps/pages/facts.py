"""A sheet as the Node page shows it: every fact in words, grouped, each group with the raw output behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from apps.diagnosis.findings.engines import words_of
from apps.diagnosis.findings.machine import skew_of
from apps.diagnosis.findings.services import owner_of
from apps.facts.network import ipv4, management
from apps.facts.sheet import Evidence, Sheet
from apps.facts.systemd import matters
from apps.facts.values import EngineProcess, Gpu, Hca, Interface, Unit
from apps.pages.words import duration_words, gigabytes

GIB = 1 << 30
UNREAD = "could not be read"


@dataclass(frozen=True)
class Group:
    """Facts of one kind with the raw output that they were read from."""

    name: str
    pairs: tuple[tuple[str, Any], ...] = ()
    heads: tuple[str, ...] = ()
    table: tuple[tuple[Any, ...], ...] = ()
    evidence: tuple[tuple[str, Evidence], ...] = ()
    missing: str = ""

    @property
    def gist(self) -> str:
        """What stands beside the name while it is folded: how many rows, else the first two facts."""
        if self.heads:
            return str(len(self.table)) if self.table else "none"
        return " · ".join(str(value) for _, value in self.pairs[:2]) or f"{len(self.evidence)}"


def groups(sheet: Sheet) -> list[Group]:
    """Every fact, grouped as the page shows it; what belongs to none of them stands raw at the end."""
    made = [
        _machine(sheet),
        _login(sheet),
        _memory(sheet),
        _gpus(sheet),
        _processes(sheet),
        _disks(sheet),
        _docker(sheet),
        _images(sheet),
        _units(sheet),
        _user_units(sheet),
        _boot_jobs(sheet),
        _network(sheet),
        _ports(sheet),
        _models(sheet),
        _software(sheet),
        _launchers(sheet),
    ]
    used = {name for group in made for name, _ in group.evidence}
    rest = tuple((name, one) for name, one in sheet.evidence.items() if name not in used)
    return [*made, Group("Further output", evidence=rest)] if rest else made


def _raw(sheet: Sheet, *names: str) -> tuple[tuple[str, Evidence], ...]:
    return tuple((name, one) for name, one in sheet.evidence.items() if name in names)


def _missing(sheet: Sheet, section: str) -> str:
    """Why there is no value: the section gave none, or an older probe did not ask."""
    return UNREAD if section in sheet.evidence else "not asked by this probe"


def _size(value: int | None) -> str:
    return "unknown" if value is None else f"{value / GIB:.1f} GiB"


def _known(value: Any) -> Any:
    """A value in words: unknown, yes and no, a list with commas."""
    if value is None or value == "" or value == ():
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def _pairs(pairs: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _known(value)) for name, value in pairs)


def _limit(value: int | None, *, bytes_: bool = False) -> str:
    if value is None:
        return "unknown"
    if value < 0:
        return "unlimited"
    return f"{value / (1 << 20):.0f} MiB" if bytes_ else str(value)


def _machine(sheet: Sheet) -> Group:
    one = sheet.machine
    raw = _raw(sheet, "machine", "time", "internet")
    if one is None:
        return Group("Machine", evidence=raw, missing=UNREAD)
    pairs = [
        ("Model", one.model),
        ("System", one.os),
        ("Kernel", one.kernel),
        ("Processor", " · ".join(filter(None, (one.arch, f"{one.cpus} cores" if one.cpus else "")))),
        ("Host name", one.hostname),
        ("Locale", one.locale or "none"),
        ("Clock", _clock(sheet)),
        ("Boot id", one.boot_id),
        ("Internet", sheet.internet),
    ]
    if one.virtualization not in (None, "none"):
        pairs.insert(1, ("Runs in", one.virtualization))
    return Group("Machine", _pairs(pairs), evidence=raw)


def _clock(sheet: Sheet) -> str:
    """`0.3 s behind ours, kept by chrony, Europe/Berlin`."""
    skew, sync = skew_of(sheet), sheet.time_sync
    said = [] if skew is None else [f"{abs(skew):.1f} s {'ahead of' if skew >= 0 else 'behind'} ours"]
    if sync is not None:
        by = f" by {sync.service}" if sync.service else ""
        kept = {True: f"synchronized{by}", False: "not synchronized"}
        said += [kept[sync.synchronized]] if sync.synchronized is not None else [f"kept{by}"] if by else []
        said += [sync.timezone] if sync.timezone else []
    return ", ".join(said)


def _login(sheet: Sheet) -> Group:
    raw = _raw(sheet, "privileges", "sshd")
    one, rights, server = sheet.machine, sheet.privileges, sheet.ssh_server
    if one is None and rights is None and server is None:
        return Group("Login and limits", evidence=raw, missing=UNREAD)
    pairs: list[tuple[str, Any]] = []
    if one is not None:
        pairs += [("User", f"{one.user} ({one.shell})" if one.user and one.shell else one.user), ("Groups", one.groups)]
    if rights is not None:
        others = [name for name in rights.lingering if one is None or name != one.user]
        lingering = {True: "on", False: "off"}.get(rights.linger) if rights.linger is not None else None
        pairs += [
            ("Sudo", rights.sudo),
            ("In the group docker", rights.docker_group),
            ("Lingering", f"{lingering or 'unknown'}; others: {', '.join(others)}" if others else lingering),
            ("RemoveIPC", rights.remove_ipc),
            ("Open files", _limit(rights.open_files)),
            ("Locked memory", _limit(rights.memlock_bytes, bytes_=True)),
        ]
    if server is not None:
        startups = f"{_known(server.startups_begin)} to {_known(server.startups_full)}"
        pairs += [
            ("OpenSSH", server.version),
            ("Sessions a connection", server.max_sessions),
            ("Logins at a time", startups),
            ("TCP forwarding", server.tcp_forwarding),
            ("Limits said by", f"{server.source}{', with Match blocks' if server.conditional else ''}"),
        ]
    return Group("Login and limits", _pairs(pairs), evidence=raw)


def _memory(sheet: Sheet) -> Group:
    one = sheet.memory
    raw = _raw(sheet, "memory", "killed", "memory-owners")
    if one is None:
        return Group("Memory", evidence=raw, missing=UNREAD)
    pairs = [
        ("Total", _size(one.total_bytes)),
        ("In use", _size(one.used_bytes)),
        ("Available", _size(one.available_bytes)),
        ("Free", _size(one.free_bytes)),
        ("Page cache", _size(one.cached_bytes)),
        ("Programs", _size(one.anonymous_bytes)),
        ("Shared", _size(one.shared_bytes)),
        ("GPU and unattributed", _size(one.unattributed_bytes)),
        ("Contiguous (CMA)", f"{_size(one.cma_free_bytes)} of {_size(one.cma_total_bytes)} free"),
        ("Swap", f"{_size(one.swap_free_bytes)} of {_size(one.swap_total_bytes)} free"),
    ]
    if sheet.killed is not None:
        ended = tuple(dict.fromkeys(each.process or each.unit or "a process" for each in sheet.killed))
        pairs.append(("Ended for memory", ", ".join(ended) or "nobody"))
    names = {each.id: each.name for each in sheet.containers or () if each.id}
    rows = tuple(
        (_owner(each.name, names), _size(each.bytes), _size(each.swap_bytes) if each.swap_bytes else "")
        for each in (sheet.owners or ())[:12]
        if each.bytes
    )
    return Group(
        "Memory", tuple(pairs), ("Owner, page cache included", "Memory", "Swapped out") if rows else (), rows, raw
    )


def _owner(name: str, containers: dict[str, str]) -> str:
    """A container's cgroup by the container's name."""
    bare = name.removeprefix("docker-").removesuffix(".scope")
    return f"container {containers[bare]}" if bare in containers else name


def _gpus(sheet: Sheet) -> Group:
    one = sheet.gpus
    raw = _raw(sheet, "gpu", "gpu-query", "gpu-list", "gpu-processes")
    if one is None:
        return Group("GPU", evidence=raw, missing=UNREAD)
    pairs = [("Driver", one.driver), ("CUDA", one.cuda)]
    pairs += [("Problem", one.problem.replace("_", " "))] if one.problem else []
    for gpu in one.gpus:
        parts = [
            f"{each.profile or 'instance'} {_mib(each.mem_used_mib, each.mem_total_mib)}" for each in gpu.instances
        ]
        pairs += (
            [(f"MIG of GPU {gpu.index}", ", ".join(parts) or gpu.mig)] if (gpu.mig or "").startswith("Enabled") else []
        )
    pairs += [
        (f"Xid {each.code}", f"{each.count} times, GPU {each.bus_id or 'unknown'}") for each in sheet.gpu_errors or ()
    ]
    return Group(
        "GPU", _pairs(pairs), ("", "Name", "Memory", "Busy", "Power", "Clock", "Temp"), tuple(map(_gpu, one.gpus)), raw
    )


def _gpu(gpu: Gpu) -> tuple[Any, ...]:
    cap = f" of {gpu.power_cap_w:.0f}" if gpu.power_cap_w is not None else ""
    return (
        gpu.index,
        _known(gpu.name),
        "unified" if gpu.unified else _mib(gpu.memory_used_mib, gpu.memory_total_mib),
        f"{gpu.util_pct} %" if gpu.util_pct is not None else "unknown",
        f"{gpu.power_w:.0f}{cap} W" if gpu.power_w is not None else "unknown",
        f"{gpu.clock_mhz} MHz" if gpu.clock_mhz is not None else "unknown",
        f"{gpu.temp_c} °C" if gpu.temp_c is not None else "unknown",
    )


def _mib(used: int | None, total: int | None) -> str:
    return f"{_known(used)} of {_known(total)} MiB"


def _processes(sheet: Sheet) -> Group:
    """Of inference stacks, and whatever else holds GPU memory."""
    raw = _raw(sheet, "processes")
    name = "Engines and GPU processes"
    if sheet.processes is None and sheet.gpus is None:
        return Group(name, evidence=raw, missing=_missing(sheet, "processes"))
    clock = (sheet.machine.clock_unix_s if sheet.machine else None) or sheet.taken_at
    rows = [_process(one, clock) for one in sheet.processes or ()]
    known = {one.pid for one in sheet.processes or ()}
    for other in sheet.gpus.processes if sheet.gpus else ():
        if other.pid not in known:
            size = f"{_size(other.mib << 20)} of the GPU" if other.mib is not None else "unknown"
            rows.append((other.pid, _known(other.name), "", "", size, "", other.container or other.unit or "unknown"))
    return Group(name, (), ("Process", "Runs", "User", "For", "Memory", "Ports", "Kept by"), tuple(rows), raw)


def _process(one: EngineProcess, clock: float) -> tuple[Any, ...]:
    """`clock`: the node's, in unix seconds."""
    place = f" from {one.venv}" if one.venv else ""
    gpu = f"{_size(one.gpu_bytes)} of the GPU, " if one.gpu_bytes else ""
    return (
        one.pid,
        f"{words_of(one.starts)}{place}",
        _known(one.user),
        duration_words(max(0.0, clock - one.started_unix_s)) if one.started_unix_s is not None else "unknown",
        f"{gpu}{_size(one.resident_bytes)}",
        ", ".join(map(str, one.ports)),
        one.container or one.unit or (f"sparkweb, run {one.run}" if one.run else "nothing"),
    )


def _disks(sheet: Sheet) -> Group:
    raw = _raw(sheet, "disk", "disk-network")
    if sheet.disks is None:
        return Group("Disk", evidence=raw, missing=UNREAD)
    return Group(
        "Disk",
        (),
        ("Mount", "Type", "Free", "Size"),
        tuple((d.mount, _known(d.type), _size(d.available_bytes), _size(d.size_bytes)) for d in sheet.disks),
        raw,
    )


def _docker(sheet: Sheet) -> Group:
    raw = _raw(sheet, "docker", "docker-info", "cdi", "containers", "container-details", "container-memory")
    about = sheet.docker
    pairs: list[tuple[str, Any]] = []
    if about is not None:
        version = about.server_version or ("not there" if not about.present else "unknown")
        pairs = [
            ("Docker", f"{version} (snap)" if about.snap else version),
            ("Runtimes", about.runtimes),
            ("Cgroup", about.cgroup),
            ("Root", about.root),
        ]
        pairs += [("Problem", about.problem.replace("_", " "))] if about.problem else []
    rows = tuple(
        (
            c.name,
            _known(c.image),
            _known(c.status or c.state),
            _known(c.restart_policy),
            f"{_size(c.memory_bytes) if c.memory_bytes else ''}"
            f"{f' (limit {_size(c.memory_limit_bytes)})' if c.memory_limit_bytes else ''}",
            f"deployment {c.labels['sparkweb.deployment']}" if "sparkweb.deployment" in c.labels else "not ours",
        )
        for c in sheet.containers or ()
    )
    heads = ("Name", "Image", "State", "Restarts", "Memory", "Whose")
    missing = "" if sheet.containers is not None else UNREAD
    return Group("Containers", _pairs(pairs), heads, rows, raw, missing)


def _images(sheet: Sheet) -> Group:
    raw = _raw(sheet, "images", "image-details")
    if sheet.images is None:
        return Group("Images", evidence=raw, missing=UNREAD)
    rows = tuple(
        (
            one.ref or "no name",
            _known(one.arch),
            gigabytes(one.size_bytes) if one.size_bytes else "unknown",
            (one.digest or one.id or "unknown").removeprefix("sha256:")[:12],
            (one.created or "unknown")[:10],
        )
        for one in sheet.images
    )
    return Group("Images", (), ("Image", "Processor", "Size", "Digest", "Made"), rows, raw)


UNIT_HEADS = ("Unit", "State", "At boot", "Starts")


def _unit(one: Unit) -> tuple[str, ...]:
    state = f"{one.active or 'unknown'}{f' ({one.sub})' if one.sub else ''}"
    return one.name, state, _known(one.enabled), ", ".join(one.containers)


def _units(sheet: Sheet) -> Group:
    raw = _raw(sheet, "units", "unit-files", "unit-details")
    if sheet.units is None:
        return Group("Units", evidence=raw, missing=UNREAD)
    return Group("Units", (), UNIT_HEADS, tuple(map(_unit, sorted(sheet.units, key=lambda one: not matters(one)))), raw)


def _user_units(sheet: Sheet) -> Group:
    raw = _raw(sheet, "user-units")
    if sheet.user_units is None:
        return Group("The user's own units", evidence=raw, missing=_missing(sheet, "user-units"))
    return Group("The user's own units", (), UNIT_HEADS, tuple(map(_unit, sheet.user_units)), raw)


def _boot_jobs(sheet: Sheet) -> Group:
    raw = _raw(sheet, "boot-jobs")
    if sheet.boot_jobs is None:
        return Group("At boot by cron and rc.local", evidence=raw, missing=_missing(sheet, "boot-jobs"))
    rows = tuple(
        (one.where, one.user or "", one.command, ", then ".join(map(words_of, one.starts))) for one in sheet.boot_jobs
    )
    return Group("At boot by cron and rc.local", (), ("Where", "User", "Command", "Starts"), rows, raw)


def _port(port: Hca) -> str:
    """An RDMA port in words: `ACTIVE / LinkUp, 200 Gb/s, enp1s0f0np0, GID 3`."""
    state = " / ".join(filter(None, (port.state or "unknown", port.physical_state)))
    gid = f"GID {port.gid_index}" if port.gid_index is not None else ""
    return ", ".join(filter(None, (state, f"{port.rate_gbps:.0f} Gb/s" if port.rate_gbps else "", port.netdev, gid)))


RAILS = {
    "ok": "full frames arrive",
    "too_long": "full frames do not arrive",
    "no_answer": "no answer",
    "unreachable": "unreachable",
    "no_interface": "no such interface",
    "no_ping": "ping can't be used",
}


def _network(sheet: Sheet) -> Group:
    raw = _raw(sheet, "addresses", "links", "routes", "fabric", "fabric-tools", "rails")
    chosen = management(sheet.interfaces or ())
    address = ipv4(chosen) if chosen else None
    pairs = [("Management", f"{chosen.name} {address.ip}" if chosen and address else None)]
    pairs += [(f"{port.name}/{port.port}", _port(port)) for port in sheet.fabric or ()]
    pairs += [(f"{one.interface} to {one.peer}", RAILS.get(one.result or "")) for one in sheet.rails or ()]
    rows = tuple(map(_interface, (i for i in sheet.interfaces or () if i.physical is not False or i.addresses)))
    heads = ("Interface", "Link", "Addresses", "Speed", "MTU", "Role")
    missing = "" if sheet.interfaces is not None else UNREAD
    return Group("Network and fabric", _pairs(pairs), heads, rows, raw, missing)


def _interface(one: Interface) -> tuple[Any, ...]:
    return (
        one.name,
        {True: "up", False: "down"}.get(one.up, "unknown") if one.up is not None else "unknown",
        ", ".join(f"{a.ip}/{a.prefix}" for a in one.addresses),
        f"{one.speed_mbps / 1000:.0f}G" if one.speed_mbps else "",
        one.mtu or "",
        one.role or "",
    )


def _ports(sheet: Sheet) -> Group:
    raw = _raw(sheet, "listeners")
    if sheet.listeners is None:
        return Group("Listening ports", evidence=raw, missing=UNREAD)
    found: dict[tuple[int, str], list[str]] = {}
    for one in sheet.listeners:
        found.setdefault((one.port, owner_of(sheet, one) or "unknown"), []).append(one.address)
    rows = tuple((port, owner, ", ".join(dict.fromkeys(where))) for (port, owner), where in sorted(found.items()))
    return Group("Listening ports", (), ("Port", "Owner", "Addresses"), rows, raw)


def _models(sheet: Sheet) -> Group:
    raw = _raw(sheet, "models")
    if sheet.models is None:
        return Group("Models on disk", evidence=raw, missing=UNREAD)
    rows = tuple(
        (
            m.name or m.path,
            {True: "complete", False: "incomplete"}.get(m.complete, "") if m.complete is not None else "",
            f"{m.shards or 0} of {m.shards_expected}" if m.shards_expected else m.shards or "",
            gigabytes(m.bytes) if m.bytes else "",
            m.path,
        )
        for m in sheet.models
    )
    return Group("Models on disk", (), ("Model", "State", "Shards", "Size", "Path"), rows, raw)


def _software(sheet: Sheet) -> Group:
    raw = _raw(sheet, "software")
    if not sheet.software:
        return Group("Software inside images", evidence=raw, missing="" if sheet.software == () else UNREAD)
    rows = tuple(
        (
            one.where.partition(":")[2] or one.where,
            one.where.partition(":")[0],
            ", ".join(f"{name} {version}" for name, version in one.versions.items()) or "unknown",
            one.cuda_arch_list or "",
        )
        for one in sheet.software
    )
    return Group("Software inside images", (), ("Where", "Kind", "Versions", "Built for"), rows, raw)


def _launchers(sheet: Sheet) -> Group:
    raw = _raw(sheet, "launchers")
    if sheet.launchers is None:
        return Group("Launch scripts and checkouts", evidence=raw, missing=_missing(sheet, "launchers"))
    rows: list[tuple[Any, ...]] = [
        (
            one.path,
            f"{one.remote or 'no remote'}, {one.branch or 'no branch'} {(one.commit or 'unknown')[:12]}{_changed(one.changed)}",
        )
        for one in sheet.checkouts or ()
    ]
    rows += [(one.path, "starts " + ", then ".join(map(words_of, one.starts))) for one in sheet.launchers]
    return Group("Launch scripts and checkouts", (), ("Where", "What"), tuple(rows), raw)


def _changed(files: int | None) -> str:
    return f", {files} changed {'file' if files == 1 else 'files'}" if files else ""
