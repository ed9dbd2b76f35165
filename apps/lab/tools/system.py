"""Names, users, processes, logs, clock, power."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from apps.lab import scene
from apps.lab.call import Call, tool
from apps.lab.tools import setup
from apps.lab.world import Container, Process


@tool("hostname", inside=True)
async def hostname(call: Call) -> int:
    node = call.node
    if "-I" in call.arguments or "--all-ip-addresses" in call.arguments:
        await call.out(" ".join([*node.addresses, "172.17.0.1"]) + " \n")
    elif "-i" in call.arguments:
        await call.out("127.0.1.1\n")
    else:
        await call.out(node.name + "\n")
    return 0


@tool("hostnamectl")
async def hostnamectl(call: Call) -> int:
    await call.out(
        f" Static hostname: {call.node.name}\n       Icon name: computer-desktop\n         Chassis: desktop\nOperating System: Ubuntu 24.04.3 LTS\n"
        f"          Kernel: Linux {scene.KERNEL}\n    Architecture: arm64\n Hardware Vendor: NVIDIA\n  Hardware Model: NVIDIA_DGX_Spark\n"
    )
    return 0


@tool("lsb_release")
async def lsb_release(call: Call) -> int:
    words = "".join(word.lstrip("-") for word in call.arguments)
    values = {
        "i": ("Distributor ID", "Ubuntu"),
        "d": ("Description", "Ubuntu 24.04.3 LTS"),
        "r": ("Release", "24.04"),
        "c": ("Codename", "noble"),
    }
    for letter, (name, value) in values.items():
        if "a" in words or letter in words:
            await call.out(f"{value}\n" if "s" in words else f"{name}:\t{value}\n")
    return 0


@tool("systemd-detect-virt")
async def detect_virt(call: Call) -> int:
    kind = call.node.seed.virtualization
    await call.out(f"{kind}\n")
    return int(kind == "none")


@tool("dmidecode")
async def dmidecode(call: Call) -> int:
    if not call.root:
        return await call.fail("/sys/firmware/dmi/tables/smbios_entry_point: Permission denied\n", 1)
    await call.out("NVIDIA_DGX_Spark\n")
    return 0


@tool("id", inside=True)
async def identity(call: Call) -> int:
    root, words = call.root, "".join(word.lstrip("-") for word in call.arguments if word.startswith("-"))
    asked = next((word for word in call.arguments if not word.startswith("-")), None)
    name = asked or ("root" if root else "aurora")
    if name not in ("root", "aurora"):
        return await call.fail(f"id: ‘{name}’: no such user\n", 1)
    uid = 0 if name == "root" else 1000
    more = call.node.groups_of(name) if asked else setup.groups_of_login(call)
    groups = [(0, "root")] if uid == 0 else [(1000, "aurora"), *more]
    if "G" in words:
        await call.out(" ".join(g[1] if "n" in words else str(g[0]) for g in groups) + "\n")
    elif "u" in words:
        await call.out((name if "n" in words else str(uid)) + "\n")
    elif "g" in words:
        await call.out((groups[0][1] if "n" in words else str(groups[0][0])) + "\n")
    else:
        await call.out(
            f"uid={uid}({name}) gid={groups[0][0]}({groups[0][1]}) groups="
            + ",".join(f"{n}({g})" for n, g in groups)
            + "\n"
        )
    return 0


@tool("whoami", inside=True)
async def whoami(call: Call) -> int:
    await call.out("root\n" if call.root else "aurora\n")
    return 0


@tool("logname")
async def logname(call: Call) -> int:
    await call.out("aurora\n")
    return 0


@tool("groups", inside=True)
async def groups(call: Call) -> int:
    await call.out("root\n" if call.root else " ".join(["aurora", *(n for _, n in setup.groups_of_login(call))]) + "\n")
    return 0


@tool("who", "w", "users")
async def who(call: Call) -> int:
    if call.name == "who" and "-b" in call.arguments:
        await call.out(time.strftime("         system boot  %Y-%m-%d %H:%M\n", time.gmtime(call.node.booted)))
    return 0


@tool("last")
async def last(call: Call) -> int:
    await call.out(
        time.strftime(
            f"reboot   system boot  {scene.KERNEL} %a %b %e %H:%M   still running\n", time.gmtime(call.node.booted)
        )
    )
    return 0


@tool("getent", inside=True)
async def getent(call: Call) -> int:
    words = [word for word in call.arguments if not word.startswith("-")]
    database, keys = (words[0] if words else ""), words[1:]
    if database in ("passwd", "group"):
        for line in (call.node.root / "etc" / database).read_text().splitlines():
            parts = line.split(":")
            if not keys or parts[0] in keys or parts[2] in keys:
                await call.out(line + "\n")
                if keys:
                    return 0
        return 2 if keys else 0
    if database in ("hosts", "ahosts", "ahostsv4"):
        for key in keys:
            address = scene.KNOWN_NAMES.get(key) or (
                "127.0.0.1" if key == "localhost" else key if re.fullmatch(r"[\d.]+", key) else ""
            )
            if address:
                await call.out(f"{address:<15} {key}\n")
                return 0
        return 2
    return 1


@tool("sudo")
async def sudo(call: Call) -> int:
    words, environment = (
        call.arguments,
        {**call.environment, "LAB_ROOT": "1", "SUDO_USER": "aurora", "USER": "root", "LOGNAME": "root"},
    )
    only_list = reads = False
    while words and words[0].startswith("-"):
        flag = words.pop(0)
        reads = reads or flag in ("-S", "--stdin")
        if flag in ("-u", "-g", "-p", "-h", "-C", "-D", "--user", "--group"):
            who_ = words.pop(0) if words else ""
            if flag in ("-u", "--user") and who_ != "root":
                environment["LAB_ROOT"] = ""
        elif flag in ("-l", "--list", "-ln", "-nl"):
            only_list = True
        elif flag in ("-i", "-s"):
            words = ["bash", *(["-c", " ".join(words)] if words else [])]
            break
        elif flag in ("-v", "-nv", "-K") or (flag == "-k" and not words):
            return 0
        elif flag == "--":
            break
    if "sudo-password" in call.node.faults:
        return await call.fail("sudo: a password is required\n", 1)
    if call.node.ground.sudo_password and not call.root:
        if only_list:
            return await setup.listed(call)
        if not setup.allowed(call, words):
            if not reads:
                return await call.fail("sudo: a password is required\n", 1)
            if (await call.stdin()).split(b"\n")[0].decode() != call.node.ground.sudo_password:
                return await call.fail(
                    "Sorry, try again.\nsudo: no password was provided\nsudo: 1 incorrect password attempt\n", 1
                )
    if only_list:
        if words:
            await call.out(f"/usr/bin/{words[0].rsplit('/', 1)[-1]}\n")
            return 0
        await call.out(
            f"Matching Defaults entries for aurora on {call.node.name}:\n    env_reset, mail_badpass, secure_path=/usr/local/sbin\\:/usr/local/bin\\:/usr/sbin\\:/usr/bin\\:/sbin\\:/bin, use_pty\n\n"
            f"User aurora may run the following commands on {call.node.name}:\n    (ALL : ALL) ALL\n    (ALL) NOPASSWD: ALL\n"
        )
        return 0
    while words and re.match(r"^[A-Za-z_]\w*=", words[0]):
        key, _, value = words.pop(0).partition("=")
        environment[key] = value
    if not words:
        return await call.fail(
            "usage: sudo -h | -K | -k | -V\nusage: sudo [-ABbEHknPS] [-u user] [VAR=value] [command [arg ...]]\n", 1
        )
    path = program(call, words[0])
    if path is None:
        return await call.fail(f"sudo: {words[0]}: command not found\n", 1)
    return await call.become(path, words, environment)


def program(call: Call, name: str) -> str | None:
    """Where the node's PATH finds a program; stand-ins stand where the real ones do."""
    if "/" in name:
        base = name.rsplit("/", 1)[-1]
        if os.path.lexists(call.node.root / "usr/bin" / base) and name.rsplit("/", 1)[0] in (
            "/usr/bin",
            "/bin",
            "/usr/sbin",
            "/sbin",
            "/usr/local/bin",
        ):
            return f"{call.machine.bin}/{base}"
        return name if call.machine.inside(name if name.startswith("/") else f"{call.cwd}/{name}").exists() else None
    return f"{call.machine.bin}/{name}" if os.path.lexists(call.node.root / "usr/bin" / name) else None


def processes(call: Call) -> list[dict[str, Any]]:
    """The node's own processes: the real ones, with pretend owners and titles."""
    node, found, ticks = call.node, [], os.sysconf("SC_CLK_TCK")
    with open("/proc/stat") as source:
        boot = next(int(line.split()[1]) for line in source if line.startswith("btime"))
    found.append(
        {
            "pid": 1,
            "ppid": 0,
            "pgid": 1,
            "sid": 1,
            "user": "root",
            "uid": 0,
            "args": "/sbin/init splash",
            "comm": "systemd",
            "started": node.booted,
            "rss": 14120,
            "stat": "Ss",
        }
    )
    for host_pid, pid in call.machine.host_pids().items():
        if host_pid == call.machine.init_pid:
            continue
        try:
            raw = Path(f"/proc/{host_pid}/stat").read_text()
            args = Path(f"/proc/{host_pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            status = Path(f"/proc/{host_pid}/status").read_text()
        except OSError:
            continue
        if not args:
            continue
        fields = raw.rsplit(")", 1)[1].split()
        ours = node.processes.get(pid)
        if call.container is not None and not _inside(call.container, ours, host_pid):
            continue
        if (args.startswith(("/run/lab/host", "/usr/bin/perl")) and "standin" in args) or "/usr/lib-lab/" in args.split(
            " "
        )[0]:
            args = args.split("standin", 1)[-1].strip()
        if "/perl" in args.split(" ")[0] and ours is None:
            words = args.split(" ")
            args = " ".join([words[1].rsplit("/", 1)[-1], *words[2:]]) if len(words) > 1 else args
        numbers = {}
        for line in status.splitlines():
            if line.startswith(("NSpgid:", "NSsid:", "NStgid:")):
                numbers[line.split(":")[0]] = int(line.split()[-1])
        found.append(
            {
                "pid": pid,
                "ppid": 1,
                "pgid": numbers.get("NSpgid", pid),
                "sid": numbers.get("NSsid", pid),
                "user": ours.user if ours else "aurora",
                "uid": 0 if ours and ours.user == "root" else 1000,
                "args": ours.title if ours else args,
                "comm": (ours.title if ours else args).split()[0].rsplit("/", 1)[-1][:15],
                "started": ours.started if ours else boot + int(fields[19]) / ticks,
                "rss": 5_200_000 if ours and ours.gpu_mib else int(fields[21]) * 4,
                "stat": "Sl" if ours else fields[0] + "s",
                "ppid_real": int(fields[1]),
                "host": host_pid,
            }
        )
    hosts = {entry.get("host"): entry["pid"] for entry in found}
    for entry in found:
        if "ppid_real" in entry:
            entry["ppid"] = hosts.get(entry["ppid_real"], 1)
    return sorted(found, key=lambda entry: entry["pid"])


def _inside(container: Container, ours: Process | None, host_pid: int) -> bool:
    """A container sees its own processes only."""
    if ours is not None:
        return ours.container == container.name
    with contextlib.suppress(OSError):
        return f"LAB_CONTAINER={container.id}".encode() in Path(f"/proc/{host_pid}/environ").read_bytes().split(b"\0")
    return False


def column(entry: dict[str, Any], name: str, node_now: float) -> str:
    age = max(0, int(time.time() - entry["started"]))
    days, rest = divmod(age, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    elapsed = f"{days}-{clock}" if days else clock if rest >= 3600 else clock[3:]
    return str(
        {
            "pid": entry["pid"],
            "ppid": entry["ppid"],
            "pgid": entry["pgid"],
            "pgrp": entry["pgid"],
            "sid": entry["sid"],
            "sess": entry["sid"],
            "user": entry["user"],
            "euser": entry["user"],
            "uid": entry["uid"],
            "args": entry["args"],
            "cmd": entry["args"],
            "command": entry["args"],
            "comm": entry["comm"],
            "ucmd": entry["comm"],
            "etimes": age,
            "etime": elapsed,
            "lstart": time.strftime("%a %b %e %H:%M:%S %Y", time.gmtime(entry["started"])),
            "rss": entry["rss"],
            "vsz": entry["rss"] * 3,
            "pcpu": "0.0",
            "%cpu": "0.0",
            "pmem": "0.1",
            "%mem": "0.1",
            "stat": entry["stat"],
            "state": entry["stat"][0],
            "s": entry["stat"][0],
            "tty": "?",
            "tt": "?",
            "time": "00:00:01",
            "start": "10:00",
            "ni": 0,
            "pri": 19,
            "nlwp": 1,
            "cgroup": "0::/",
            "unit": "-",
        }.get(name, "-")
    )


@tool("ps", inside=True)
async def ps(call: Call) -> int:
    words, names, picked, every, titled = list(call.arguments), [], None, False, True
    by_user = None
    while words:
        word = words.pop(0)
        if word in ("-o", "o", "-eo", "-Ao", "-axo", "axo", "-e -o", "--format") or re.fullmatch(r"-?[aexwA]*o", word):
            every = every or any(letter in word for letter in "eAx")
            columns = re.split(r"[,\s]+", words.pop(0) if words else "")
            names += [re.sub(r":\d+(?==|$)", "", part) for part in columns if part]
        elif word.startswith("-o") and len(word) > 2:
            names += word[2:].split(",")
        elif word in ("-p", "--pid", "p") or re.fullmatch(r"-p[\d,]+", word) or word.startswith("--pid="):
            value = (
                word.split("=", 1)[1]
                if "=" in word
                else word[2:]
                if word.startswith("-p") and len(word) > 2
                else words.pop(0)
                if words
                else ""
            )
            picked = {int(part) for part in re.split(r"[,\s]+", value) if part.isdigit()}
        elif word.startswith("-g") or word in ("--group", "-s", "--sid"):
            value = word[2:] or (words.pop(0) if words else "")
            picked = {
                entry["pid"]
                for entry in processes(call)
                if str(entry["sid"]) in value.split(",") or str(entry["pgid"]) in value.split(",")
            }
        elif word in ("-u", "-U", "--user"):
            by_user = (words.pop(0) if words else "").split(",")
        elif word in ("-C",):
            wanted = words.pop(0) if words else ""
            picked = {entry["pid"] for entry in processes(call) if entry["comm"] == wanted[:15]}
        elif word in ("aux", "-aux", "auxww", "auxf"):
            every, names = (
                True,
                ["user", "pid", "%cpu", "%mem", "vsz", "rss", "tty", "stat", "start", "time", "command"],
            )
        elif word.startswith("-") and "f" in word and not word.startswith("--"):
            every = every or "e" in word or "A" in word
            names = names or ["uid_name", "pid", "ppid", "c", "stime", "tty", "time", "cmd"]
        elif word in ("-e", "-A", "-ax", "ax", "-ef", "a", "x"):
            every = True
        elif word in ("--no-headers", "--no-heading", "h", "--noheader"):
            titled = False
    names = names or ["pid", "tty", "time", "cmd"]
    titles, plain = [], []
    for name in names:
        key, _, title = name.partition("=")
        if "=" in name and not title:
            titles.append("")
        else:
            titles.append(
                title
                or {
                    "args": "COMMAND",
                    "comm": "COMMAND",
                    "etimes": "ELAPSED",
                    "etime": "ELAPSED",
                    "uid_name": "UID",
                    "lstart": "STARTED",
                }.get(key, key.upper())
            )
        plain.append({"uid_name": "user", "c": "ni", "stime": "start"}.get(key, key))
    rows = []
    for entry in processes(call):
        if picked is not None and entry["pid"] not in picked:
            continue
        if by_user and entry["user"] not in by_user and str(entry["uid"]) not in by_user:
            continue
        if picked is None and not every and not by_user and entry["user"] != "aurora":
            continue
        rows.append([column(entry, name, 0) for name in plain])
    table = ([titles] if titled and any(titles) else []) + rows
    widths = [max([len(row[number]) for row in table] or [0]) for number in range(len(plain))]
    left = {"args", "cmd", "command", "comm", "user", "ucmd", "stat", "lstart", "tty"}
    for row in table:
        await call.out(
            " ".join(
                cell.ljust(width) if name in left else cell.rjust(width)
                for cell, width, name in zip(row, widths, plain, strict=True)
            ).rstrip()
            + "\n"
        )
    return 0 if rows else 1


@tool("pgrep", "pkill", "pidof", inside=True)
async def pgrep(call: Call) -> int:
    flags = "".join(
        word[1:]
        for word in call.arguments
        if word.startswith("-") and not word.startswith("--") and not word[1:].isupper()
    )
    words = [word for word in call.arguments if not word.startswith("-")]
    if not words:
        return await call.fail(
            f"{call.name}: no matching criteria specified\nTry `{call.name} --help' for more information.\n", 2
        )
    try:
        pattern = re.compile(words[-1])
    except re.error:
        return 2
    found = []
    for entry in processes(call):
        if entry["pid"] == call.pid or (call.name != "pidof" and entry["args"].startswith(call.name)):
            continue
        text = entry["args"] if "f" in flags else entry["comm"]
        if pattern.fullmatch(text) if "x" in flags or call.name == "pidof" else pattern.search(text):
            found.append(entry)
    if call.name == "pkill":
        for entry in found:
            call.machine.signal(entry["pid"], signal.SIGTERM)
    elif call.name == "pidof":
        await call.out(" ".join(str(entry["pid"]) for entry in found) + ("\n" if found else ""))
    elif "c" in flags:
        await call.out(f"{len(found)}\n")
    else:
        await call.out(
            "".join(
                f"{entry['pid']} {entry['args']}\n"
                if "a" in flags
                else f"{entry['pid']} {entry['comm']}\n"
                if "l" in flags
                else f"{entry['pid']}\n"
                for entry in found
            )
        )
    return 0 if found else 1


@tool("top")
async def top(call: Call) -> int:
    return 0


@tool("timedatectl")
async def timedatectl(call: Call) -> int:
    words, on = call.arguments, call.node.ground.ntp
    synced = "no" if call.node.faults.get("clock-off") or not on else "yes"
    if words and words[0] == "set-ntp":
        if not call.root:
            return await call.fail("Failed to set ntp: Interactive authentication required.\n", 1)
        call.node.ground.ntp = words[1:] in (["true"], ["yes"], ["1"])
        return 0
    if words and words[0] == "show":
        values = {
            "Timezone": "Etc/UTC",
            "LocalRTC": "no",
            "CanNTP": "yes",
            "NTP": "yes" if on else "no",
            "NTPSynchronized": synced,
        }
        names = [
            words[n + 1] if word == "-p" else word.split("=", 1)[1]
            for n, word in enumerate(words)
            if word == "-p" or word.startswith("--property=")
        ]
        names = [name for group in names for name in group.split(",")] or list(values)
        for name in names:
            await call.out(f"{values.get(name, '')}\n" if "--value" in words else f"{name}={values.get(name, '')}\n")
        return 0
    now = time.gmtime(call.node.now())
    await call.out(
        f"               Local time: {time.strftime('%a %Y-%m-%d %H:%M:%S UTC', now)}\n           Universal time: {time.strftime('%a %Y-%m-%d %H:%M:%S UTC', now)}\n"
        f"                Time zone: Etc/UTC (UTC, +0000)\nSystem clock synchronized: {synced}\n              NTP service: active\n          RTC in local TZ: no\n"
    )
    return 0


FIRST_KERNEL_LINE = "Booting Linux on physical CPU 0x0000000000 [0x410fd870]"


@tool("dmesg")
async def dmesg(call: Call) -> int:
    if not call.root:
        return await call.fail("dmesg: read kernel buffer failed: Operation not permitted\n", 1)
    await call.out(
        f"[    0.000000] {FIRST_KERNEL_LINE}\n"
        + "".join(f"[{at:12.6f}] {line}\n" for at, line in call.node.kernel_lines)
    )
    return 0


@tool("journalctl")
async def journalctl(call: Call) -> int:
    words = call.arguments
    node = call.node
    if "--list-boots" in words:
        await call.out(
            f"IDX BOOT ID                          FIRST ENTRY                 LAST ENTRY\n  0 {node.boot_id.replace('-', '')} {time.strftime('%a %Y-%m-%d %H:%M:%S UTC', time.gmtime(node.booted))} "
            f"{time.strftime('%a %Y-%m-%d %H:%M:%S UTC', time.gmtime(node.now()))}\n"
        )
        return 0
    units, limit, kernel = [], 100000, False
    position = 0
    while position < len(words):
        word = words[position]
        if word in ("-u", "--unit"):
            position += 1
            units.append(words[position] if position < len(words) else "")
        elif word.startswith(("-u", "--unit=")):
            units.append(word.split("=", 1)[-1].removeprefix("-u"))
        elif word in ("-n", "--lines"):
            position += 1
            limit = int(words[position]) if position < len(words) and words[position].isdigit() else 10
        elif word.startswith("-n"):
            limit = int(word[2:]) if word[2:].isdigit() else limit
        elif word in ("-k", "--dmesg"):
            kernel = True
        position += 1
    units = [unit if "." in unit else unit + ".service" for unit in units]
    lines = []
    if kernel or not units:
        kernel_lines = [(0.0, FIRST_KERNEL_LINE), *node.kernel_lines]
        lines += [(node.booted + at, f"{node.name} kernel: {text}") for at, text in kernel_lines]
    if not kernel:
        lines += [(at, f"{node.name} {text}") for at, unit, text in node.journal if not units or unit in units]
    lines.sort(key=lambda line: line[0])
    if not lines:
        await call.out("-- No entries --\n")
        return 0
    for at, text in lines[-limit:]:
        await call.out(time.strftime("%b %d %H:%M:%S ", time.gmtime(at)) + text + "\n")
    return 0


@tool("loginctl")
async def loginctl(call: Call) -> int:
    words = call.arguments
    if "show-user" in words:
        values = {"UID": "1000", "Name": "aurora", "Linger": setup.lingers(call), "State": "active"}
        names = [
            words[n + 1] if word == "-p" else word.split("=", 1)[1]
            for n, word in enumerate(words)
            if word == "-p" or word.startswith("--property=")
        ] or list(values)
        for name in names:
            await call.out(f"{values.get(name, '')}\n" if "--value" in words else f"{name}={values.get(name, '')}\n")
        return 0
    if "enable-linger" in words or "disable-linger" in words:
        return await setup.linger(call, on="enable-linger" in words)
    await call.out(
        "SESSION  UID USER   SEAT  TTY   STATE  IDLE SINCE\n      1 1000 aurora -     -     active no   -\n\n1 sessions listed.\n"
    )
    return 0


@tool("busctl")
async def busctl(call: Call) -> int:
    if "RemoveIPC" in call.arguments:
        await call.out("b true\n")
        return 0
    if "KillUserProcesses" in call.arguments:
        await call.out("b false\n")
        return 0
    return await call.fail("Failed to get property: Unknown property or interface.\n", 1)


SSHD = """port 22
logingracetime 120
x11displayoffset 10
maxauthtries 6
maxsessions 10
clientaliveinterval 0
clientalivecountmax 3
usedns no
allowtcpforwarding yes
allowstreamlocalforwarding yes
disableforwarding no
maxstartups 10:30:100
permitopen any
permitlisten any
"""


@tool("sshd")
async def sshd(call: Call) -> int:
    if "-V" in call.arguments:
        return await call.fail("OpenSSH_9.6p1 Ubuntu-3ubuntu13.14, OpenSSL 3.0.13 30 Jan 2024\n", 0)
    if not call.root:
        return await call.fail("sshd: no hostkeys available -- exiting.\n", 1)
    await call.out(SSHD)
    return 0


@tool("sync")
async def sync(call: Call) -> int:
    return 0


@tool("tee")
async def tee(call: Call) -> int:
    from apps.lab.machine import host_path

    targets = [word for word in call.arguments if not word.startswith("-")]
    if "/proc/sys/vm/drop_caches" in targets:
        data = await call.stdin()
        if not call.root:
            await call.out(data)
            return await call.fail("tee: /proc/sys/vm/drop_caches: Permission denied\n", 1)
        await drop_caches(call)
        await call.out(data)
        return 0
    path = host_path("tee") or "/usr/bin/tee"
    return await call.become(
        path if call.machine.mode == "rewrite" else "/run/lab/host" + path, ["tee", *call.arguments], call.environment
    )


async def drop_caches(call: Call) -> None:
    call.node.cache_gib = 1.1
    from apps.lab import figures

    figures.write_moving(call.node, call.machine.files)
    call.node.kernel("tee (4121): drop_caches: 3")


@tool("sysctl")
async def sysctl(call: Call) -> int:
    words = call.arguments
    for word in words:
        if "vm.drop_caches=" in word:
            if not call.root:
                return await call.fail('sysctl: permission denied on key "vm.drop_caches"\n', 255)
            await drop_caches(call)
            await call.out(f"{word.replace('=', ' = ')}\n")
            return 0
    values = {
        "vm.swappiness": "60",
        "kernel.hostname": call.node.name,
        "kernel.osrelease": scene.KERNEL,
        "net.core.rmem_max": "212992",
    }
    for word in words:
        if word in values:
            await call.out(f"{values[word]}\n" if "-n" in words else f"{word} = {values[word]}\n")
    return 0


@tool("reboot", "shutdown", "poweroff", "halt")
async def reboot(call: Call) -> int:
    if not call.root:
        return await call.fail("Call to Reboot failed: Interactive authentication required.\n", 1)
    call.node.world.spawn(later(call))
    return 0


async def later(call: Call) -> None:
    await asyncio.sleep(0.15)
    await call.node.world.reboot(call.node)


@tool("lsof", "fuser", "numactl", "chronyc", "apt", "snap", "dpkg-query", "dpkg")
async def quiet(call: Call) -> int:
    name = call.name
    if name == "chronyc":
        await call.out(
            f"Leap status     : Normal\nSystem time     : {float(call.node.faults.get('clock-off') or 0):.9f} seconds fast of NTP time\n"
        )
        return 0
    if name in ("dpkg-query", "dpkg"):
        return await call.fail("dpkg-query: no packages found matching that\n", 1)
    if name in ("apt", "snap"):
        return await call.fail(
            "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)\n", 100
        )
    return 1
