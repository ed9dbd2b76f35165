"""systemctl, and what systemd does with the units of the old stack."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import time

from apps.lab import runtime
from apps.lab.call import Call, tool
from apps.lab.world import Node, Unit

STANDARD = (
    ("containerd.service", "containerd container runtime"),
    ("docker.service", "Docker Application Container Engine"),
    ("ssh.service", "OpenBSD Secure Shell server"),
    ("nvidia-persistenced.service", "NVIDIA Persistence Daemon"),
    ("systemd-journald.service", "Journal Service"),
    ("systemd-logind.service", "User Login Management"),
    ("systemd-resolved.service", "Network Name Resolution"),
    ("systemd-timesyncd.service", "Network Time Synchronization"),
    ("NetworkManager.service", "Network Manager"),
    ("dgx-dashboard.service", "DGX Dashboard"),
    ("cron.service", "Regular background program processing daemon"),
)


def full(name: str) -> str:
    return (
        name
        if name.rsplit(".", 1)[-1] in ("service", "target", "timer", "socket", "mount", "slice")
        else name + ".service"
    )


@tool("systemctl")
async def systemctl(call: Call) -> int:
    words = list(call.arguments)
    node = call.node
    options, rest, properties = set(), [], []
    kinds: list[str] = []
    states: list[str] = []
    user = False
    while words:
        word = words.pop(0)
        if word in ("-p", "--property", "-P"):
            properties += (words.pop(0) if words else "").split(",")
            options |= {"--value"} if word == "-P" else set()
        elif word.startswith("--property="):
            properties += word.split("=", 1)[1].split(",")
        elif word.startswith("-p") and len(word) > 2:
            properties += word[2:].split(",")
        elif word in ("-t", "--type"):
            kinds += words.pop(0).split(",")
        elif word.startswith("--type="):
            kinds += word.split("=", 1)[1].split(",")
        elif word in ("--state",):
            states += words.pop(0).split(",")
        elif word.startswith("--state="):
            states += word.split("=", 1)[1].split(",")
        elif word in ("-n", "--lines", "-o", "--output", "--job-mode", "-s", "--signal"):
            words.pop(0) if words else None
        elif word == "--user":
            user = True
        elif word.startswith("-"):
            options.add(word)
        else:
            rest.append(word)
    verb, names = (rest[0] if rest else "list-units"), [full(name) if "*" not in name else name for name in rest[1:]]
    if user:
        await call.out(
            "running\n" if verb == "is-system-running" else "" if verb != "list-units" else "0 loaded units listed.\n"
        )
        return 0
    if verb in (
        "start",
        "stop",
        "restart",
        "enable",
        "disable",
        "daemon-reload",
        "mask",
        "unmask",
        "reset-failed",
        "kill",
        "reboot",
        "poweroff",
        "try-restart",
        "reload-or-restart",
        "reload",
        "isolate",
    ):
        if not call.root:
            action = {"stop": f"stop {names[0]}", "start": f"start {names[0]}"}.get(verb, verb) if names else verb
            del action
            if verb == "reboot":
                return await call.fail("Call to Reboot failed: Interactive authentication required.\n", 1)
            subject = names[0] if names else "systemd manager configuration"
            return await call.fail(
                f"Failed to {verb} {subject}: Interactive authentication required.\nSee system logs and 'systemctl status {subject}' for details.\n",
                1,
            )
        return await change(call, verb, names, options)
    if verb == "is-system-running":
        await call.out("running\n")
        return 0
    if verb == "list-units":
        return await list_units(call, kinds, states, names, options)
    if verb == "list-unit-files":
        found = [
            unit
            for unit in node.units.values()
            if matches(unit.name, kinds, names) and (not states or unit.enabled in states)
        ]
        if "--no-legend" not in options:
            await call.out(f"{'UNIT FILE':<32} {'STATE':<15} PRESET\n")
        for each in sorted(found, key=lambda each: each.name):
            await call.out(f"{each.name:<32} {each.enabled:<15} enabled\n")
        if "--no-legend" not in options:
            await call.out(f"\n{len(found)} unit files listed.\n")
        return 0
    if verb == "show":
        return await show(call, names, properties, "--value" in options)
    if verb in ("is-active", "is-enabled", "is-failed"):
        good = False
        for name in names:
            unit = node.units.get(name)
            if verb == "is-enabled":
                if unit is None:
                    await call.err(
                        f"Failed to get unit file state for {name}: No such file or directory\n"
                    ) if "-q" not in options else None
                    continue
                word, fine = unit.enabled, unit.enabled in ("enabled", "static")
            else:
                word = unit.active if unit else "inactive"
                fine = word == ("failed" if verb == "is-failed" else "active")
            good = good or fine
            if "-q" not in options and "--quiet" not in options:
                await call.out(word + "\n")
        return 0 if good else 1 if verb != "is-active" else 3
    if verb == "cat":
        for name in names:
            path = node.root / "etc/systemd/system" / name
            if path.is_file():
                await call.out(f"# /etc/systemd/system/{name}\n{path.read_text()}")
            elif name in node.units:
                await call.out(
                    f"# /usr/lib/systemd/system/{name}\n[Unit]\nDescription={node.units[name].description}\n"
                )
            else:
                return await call.fail(f"No files found for {name}.\n", 1)
        return 0
    if verb == "status":
        for name in names:
            unit = node.units.get(name)
            if unit is None:
                return await call.fail(f"Unit {name} could not be found.\n", 4)
            at = time.strftime("%a %Y-%m-%d %H:%M:%S UTC", time.gmtime(unit.since))
            await call.out(
                f"{'●' if unit.active == 'active' else '○'} {name} - {unit.description}\n     Loaded: loaded (/etc/systemd/system/{name}; {unit.enabled}; preset: enabled)\n"
                f"     Active: {unit.active} ({unit.sub}) since {at}\n   Main PID: {unit.pid}\n"
            )
            if unit.active != "active":
                return 3
        return 0
    if verb == "--version" or "--version" in options:
        await call.out("systemd 255 (255.4-1ubuntu8.10)\n")
        return 0
    if verb in ("list-timers", "list-sockets", "get-default", "list-jobs", "show-environment", "list-dependencies"):
        await call.out(
            "No jobs running.\n" if verb == "list-jobs" else "graphical.target\n" if verb == "get-default" else ""
        )
        return 0
    return await call.fail(f"Unknown command verb '{verb}'.\n", 1)


def matches(name: str, kinds: list[str], patterns: list[str]) -> bool:
    return (not kinds or name.rsplit(".", 1)[-1] in kinds) and (
        not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)
    )


async def list_units(call: Call, kinds: list[str], states: list[str], names: list[str], options: set[str]) -> int:
    found = [unit for unit in call.node.units.values() if matches(unit.name, kinds, names)]
    if states:
        found = [unit for unit in found if unit.active in states or unit.sub in states]
    elif not options & {"--all", "-a"}:
        found = [unit for unit in found if unit.active != "inactive"]
    found.sort(key=lambda unit: unit.name)
    if options & {"--output=json", "-ojson"}:
        import json

        await call.out(
            json.dumps(
                [
                    {"unit": u.name, "load": "loaded", "active": u.active, "sub": u.sub, "description": u.description}
                    for u in found
                ]
            )
            + "\n"
        )
        return 0
    width = max([len(unit.name) for unit in found] or [4])
    legend = "--no-legend" not in options and "--legend=false" not in options
    plain = "--plain" in options
    if legend:
        await call.out(f"{'' if plain else '  '}{'UNIT':<{width}} LOAD   ACTIVE     SUB          DESCRIPTION\n")
    for unit in found:
        mark = "" if plain else "● " if unit.active == "failed" else "  "
        await call.out(f"{mark}{unit.name:<{width}} loaded {unit.active:<10} {unit.sub:<12} {unit.description}\n")
    if legend:
        await call.out(
            "\nLegend: LOAD   → Reflects whether the unit definition was properly loaded.\n        ACTIVE → The high-level unit activation state, i.e. generalization of SUB.\n"
            f"        SUB    → The low-level unit activation state, values depend on unit type.\n\n{len(found)} loaded units listed.\nTo show all installed unit files use 'systemctl list-unit-files'.\n"
        )
    return 0


def stamp(at: float) -> str:
    return time.strftime("%a %Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def exec_lines(unit: Unit, line: str) -> tuple[dict[str, str], dict[str, str]]:
    """ExecStartPre and ExecStart, and ExecStop, as `systemctl show` writes them."""

    def braces(words: str, ignore: str = "no") -> str:
        return (
            f"{{ path={words.split()[0]} ; argv[]={words} ; ignore_errors={ignore} ; "
            f"start_time=[{stamp(unit.since)}] ; stop_time=[n/a] ; pid={unit.pid} ; code=(null) ; status=0/0 }}"
        )

    container = unit.seed.container if unit.seed else ""
    before = {"ExecStartPre": braces(f"/usr/bin/docker rm -f {container}", "yes")} if container else {}
    after = {"ExecStop": braces(f"/usr/bin/docker stop {container}")} if container else {}
    return {**before, "ExecStart": braces(line)}, after


async def show(call: Call, names: list[str], properties: list[str], only_value: bool) -> int:
    properties = [name for name in properties if name]
    for number, name in enumerate(names or [""]):
        if number:
            await call.out("\n")
        unit = call.node.units.get(name)
        values: dict[str, str] = {
            "Id": name,
            "Names": name,
            "LoadState": "not-found",
            "ActiveState": "inactive",
            "SubState": "dead",
            "MainPID": "0",
            "NRestarts": "0",
            "UnitFileState": "",
        }
        if not name:
            values = {
                "Version": "255.4-1ubuntu8.10",
                "Architecture": "arm64",
                "SystemState": "running",
                "NFailedUnits": "0",
            }
        elif unit is not None:
            line = unit.exec_start or "/usr/bin/" + name.rsplit(".", 1)[0]
            running = unit.active == "active"
            starts, stops = exec_lines(unit, line)
            values = {  # in the order in which systemd prints them: what a service has, then what every unit has
                "Type": "simple",
                "Restart": "always" if unit.seed else "no",
                "MainPID": str(unit.pid if running else 0),
                "Result": unit.result,
                "NRestarts": str(unit.restarts),
                "ExecMainPID": str(unit.pid),
                "ExecMainCode": "0",
                "ExecMainStatus": "0",
                **starts,
                **stops,
                "ControlGroup": f"/system.slice/{name}" if running else "",
                "MemoryCurrent": "[not set]",
                "WorkingDirectory": "",
                "User": "",
                "Id": name,
                "Names": name,
                "Requires": "docker.service" if unit.seed else "",
                "WantedBy": "multi-user.target",
                "Description": unit.description,
                "LoadState": "loaded",
                "ActiveState": unit.active,
                "SubState": unit.sub,
                "FragmentPath": unit.fragment,
                "DropInPaths": "",
                "UnitFileState": unit.enabled,
                "UnitFilePreset": "enabled",
                "StateChangeTimestamp": stamp(unit.since),
                "ActiveEnterTimestamp": stamp(unit.since) if running else "",
                "InactiveEnterTimestamp": "" if running else stamp(unit.since),
                "CanStart": "yes",
                "CanStop": "yes",
            }
        order = [key for key in values if not properties or key in properties]
        for key in order:
            await call.out(f"{values[key]}\n" if only_value else f"{key}={values[key]}\n")
    return 0


async def change(call: Call, verb: str, names: list[str], options: set[str]) -> int:
    node = call.node
    if verb == "daemon-reload" or (verb == "reset-failed" and not names):
        load_unit_files(node)
        return 0
    if verb in ("reboot", "poweroff"):
        from apps.lab.tools.system import later

        node.world.spawn(later(call))
        return 0
    code = 0
    for name in names:
        unit = node.units.get(name)
        if unit is None:
            load_unit_files(node)
            unit = node.units.get(name)
        if unit is None:
            word = {
                "enable": f"Failed to enable unit: Unit file {name} does not exist.",
                "disable": f"Failed to disable unit: Unit file {name} does not exist.",
                "stop": f"Failed to stop {name}: Unit {name} not loaded.",
            }.get(verb, f"Failed to {verb} {name}: Unit {name} not found.")
            await call.err(word + "\n")
            code = 1 if verb in ("enable", "disable") else 5
            continue
        if verb in ("enable", "disable"):
            if verb == "disable" and unit.enabled == "enabled":
                await call.err(f'Removed "/etc/systemd/system/multi-user.target.wants/{name}".\n')
            if verb == "enable" and unit.enabled != "enabled":
                await call.err(
                    f"Created symlink /etc/systemd/system/multi-user.target.wants/{name} → /etc/systemd/system/{name}.\n"
                )
            unit.enabled = verb + "d"
            if "--now" in options:
                await (stop_unit(node, unit) if verb == "disable" else start_unit(node, unit))
        elif verb in ("mask", "unmask"):
            unit.enabled = "masked" if verb == "mask" else "disabled"
        elif verb in ("stop", "kill"):
            await stop_unit(node, unit)
        elif verb in ("start", "try-restart", "reload-or-restart", "restart"):
            if unit.enabled == "masked":
                await call.err(f"Failed to start {name}: Unit {name} is masked.\n")
                code = 1
                continue
            if "restart" in verb:
                await stop_unit(node, unit)
            await start_unit(node, unit)
    return code


def load_unit_files(node: Node) -> None:
    """daemon-reload: unit files that somebody wrote become units, and those whose file is gone go."""
    for name, unit in list(node.units.items()):
        written = unit.seed is None and unit.fragment.startswith("/etc/systemd/system/")
        if written and not (node.root / unit.fragment.lstrip("/")).exists():
            del node.units[name]
    for path in sorted((node.root / "etc/systemd/system").glob("*.service")):
        if path.name in node.units or not path.is_file():
            continue
        fields = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
        node.units[path.name] = Unit(
            path.name,
            fields.get("Description", path.name),
            fields.get("ExecStart", ""),
            "disabled",
            "inactive",
            "dead",
            None,
            fragment=f"/etc/systemd/system/{path.name}",
        )


async def start_unit(node: Node, unit: Unit, *, ready: bool = False) -> None:
    """Start one unit; `ready` is the start scene, in which all has been running for long."""
    if unit.active == "active":
        return
    unit.active, unit.sub, unit.since, unit.result = (
        "active",
        "running",
        time.time() - (node.uptime - 40 if ready else 0),
        "success",
    )
    node.say(unit.name, f"systemd[1]: Started {unit.name} - {unit.description}.")
    if unit.seed is None:
        unit.pid = 900 + abs(hash(unit.name)) % 900
        return
    if unit.seed.container:
        unit.task = node.world.spawn(keep(node, unit, ready))
        if ready:
            await asyncio.sleep(0)
    else:
        await runtime.start_program(node, unit)


async def keep(node: Node, unit: Unit, ready: bool) -> None:
    """What Restart=always does: the container comes back some seconds after it was removed."""
    while unit.active in ("active", "activating"):
        container = await runtime.start_old(node, unit, ready=ready)
        ready = False
        unit.pid = container.pid
        unit.active, unit.sub = "active", "running"
        await container.ended.wait()
        if unit.active != "active":
            return
        node.say(
            unit.name, f"systemd[1]: {unit.name}: Main process exited, code=exited, status={container.exit_code}/n/a"
        )
        unit.active, unit.sub = "activating", "auto-restart"
        node.say(
            unit.name, f"systemd[1]: {unit.name}: Scheduled restart job, restart counter is at {unit.restarts + 1}."
        )
        await asyncio.sleep(max(0.6, 10 / node.world.factor))
        unit.restarts += 1


async def stop_unit(node: Node, unit: Unit) -> None:
    if unit.active == "inactive":
        return
    unit.active, unit.sub, unit.since = "inactive", "dead", time.time()
    node.say(unit.name, f"systemd[1]: Stopped {unit.name} - {unit.description}.")
    task, unit.task = unit.task, None
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
    if unit.seed is None:
        return
    if unit.seed.container:
        container = node.containers.get(unit.seed.container)
        if container is not None and container.labels.get("lab.unit") == unit.name:
            await runtime.stop_container(node, container, 15)
    else:
        await runtime.stop_program(node, unit)
    if "unit-revives" in node.faults and node.faults["unit-revives"] in (
        "",
        unit.name,
        unit.name.removesuffix(".service"),
    ):
        node.world.spawn(revive(node, unit))


async def revive(node: Node, unit: Unit) -> None:
    await asyncio.sleep(max(1.0, 20 / node.world.factor))
    if "unit-revives" in node.faults and unit.active == "inactive":
        await start_unit(node, unit)
