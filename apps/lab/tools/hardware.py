"""nvidia-smi and the shape of the machine."""

from __future__ import annotations

import asyncio
import hashlib
import time

from apps.lab import scene
from apps.lab.call import Call, tool
from apps.lab.figures import load, meminfo
from apps.lab.world import Node

HEAD = """{date:<31}
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   {temp:>2}C    {state:<3}           {power:>4}W /  N/A  | Not Supported          |    {util:>3}%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
"""
RULE = "+-----------------------------------------------------------------------------------------+\n"


def uuid_of(node: Node, number: int = 0) -> str:
    text = hashlib.md5(f"{node.name}{number or ''}".encode()).hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def bus_of(node: Node, number: int) -> str:
    return f"00000000:{0x41 + 0x20 * number:02X}:00.0" if node.discrete else "0000000F:01:00.0"


def readings(node: Node, number: int = 0) -> dict[str, str]:
    """What nvidia-smi knows of one GPU."""
    made = _of_gpu(node, number)
    if node.discrete:
        held = int(node.gpu_held(number) * 1024) + 4
        power = f"{(210.0 if node.busy else 18.0) + node.random.random() * 6:.2f} W"
        made |= {
            "memory.total": f"{node.seed.gpu_mib} MiB",
            "memory.used": f"{held} MiB",
            "memory.free": f"{node.seed.gpu_mib - held} MiB",
            "memory.reserved": "600 MiB",
            "power.limit": "600.00 W",
            "enforced.power.limit": "600.00 W",
            **{name: power for name in made if name.startswith("power.draw")},
        }
    return made


def _of_gpu(node: Node, number: int) -> dict[str, str]:
    temp = 64 if node.busy else 41
    power = 38.4 + node.random.random() * 6 if node.busy else 4.6 + node.random.random()
    none = "[N/A]"
    return {
        "index": str(number),
        "count": str(node.seed.gpus),
        "name": node.seed.gpu_name,
        "gpu_name": node.seed.gpu_name,
        "uuid": uuid_of(node, number),
        "gpu_uuid": uuid_of(node, number),
        "driver_version": scene.DRIVER,
        "pci.bus_id": bus_of(node, number),
        "gpu_bus_id": bus_of(node, number),
        "memory.total": none,
        "memory.used": none,
        "memory.free": none,
        "memory.reserved": none,
        "utilization.gpu": f"{node.util} %",
        "utilization.memory": "0 %",
        "power.draw": f"{power:.2f} W",
        "power.draw.average": f"{power:.2f} W",
        "power.draw.instant": f"{power:.2f} W",
        "power.limit": none,
        "enforced.power.limit": none,
        "power.max_limit": none,
        "power.default_limit": none,
        "temperature.gpu": str(temp),
        "temperature.memory": "N/A",
        "clocks.sm": f"{2418 if node.busy else 208} MHz",
        "clocks.current.sm": f"{2418 if node.busy else 208} MHz",
        "clocks.gr": f"{2418 if node.busy else 208} MHz",
        "clocks.current.graphics": f"{2418 if node.busy else 208} MHz",
        "clocks.mem": none,
        "clocks.current.memory": none,
        "clocks.max.sm": "3003 MHz",
        "clocks.max.graphics": "3003 MHz",
        "pstate": "P0" if node.busy else "P8",
        "compute_cap": node.seed.compute,
        "compute_mode": "Default",
        "persistence_mode": "Enabled",
        "display_active": "Disabled",
        "mig.mode.current": none,
        "ecc.mode.current": none,
        "fan.speed": none,
        "serial": none,
        "vbios_version": "9A.0B.25.00.00",
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(node.now())) + ".112",
        "pcie.link.gen.current": "1",
        "pcie.link.width.current": "1",
        "clocks_throttle_reasons.active": "0x0000000000000000",
        "clocks_event_reasons.active": "0x0000000000000000",
    }


UNITS = {"memory.": " [MiB]", "utilization.": " [%]", "power.": " [W]", "enforced.power": " [W]", "clocks.": " [MHz]"}


def header(name: str) -> str:
    return name + next((unit for start, unit in UNITS.items() if name.startswith(start)), "")


def bare(value: str) -> str:
    return value.rsplit(" ", 1)[0] if value.endswith((" %", " W", " MHz", " MiB")) else value


@tool("nvidia-smi", inside=True)
async def nvidia_smi(call: Call) -> int:
    node, words = call.node, call.arguments
    options = {name: value for name, _, value in (word.partition("=") for word in words)}
    form = options.get("--format", "").split(",")
    values = readings(node)
    query = options.get("--query-gpu")
    if query is not None:
        names = [name.strip() for name in query.split(",")]
        for name in names:
            if name not in values:
                return await call.fail(f'Field "{name}" is not a valid field to query.\n', 2)
        every = [readings(node, number) for number in node.gpu_numbers]
        return await rows(call, names, [[one[name] for name in names] for one in every], form)
    query = options.get("--query-compute-apps")
    if query is not None:
        names = [name.strip() for name in query.split(",")]
        found = [
            {
                "pid": str(p.pid),
                "process_name": p.title,
                "name": p.title,
                "used_gpu_memory": f"{p.gpu_mib} MiB",
                "used_memory": f"{p.gpu_mib} MiB",
                "gpu_uuid": uuid_of(node, number),
                "gpu_name": node.seed.gpu_name,
                "gpu_bus_id": bus_of(node, number),
            }
            for p in node.processes.values()
            if p.gpu_mib
            for number in p.gpus
        ]
        for name in names:
            if found and name not in found[0]:
                return await call.fail(f'Field "{name}" is not a valid field to query.\n', 2)
        return await rows(call, names, [[row[name] for name in names] for row in found], form)
    if "-L" in words or "--list-gpus" in words:
        for number in node.gpu_numbers:
            await call.out(f"GPU {number}: {node.seed.gpu_name} (UUID: {uuid_of(node, number)})\n")
        return 0
    if "--version" in words:
        await call.out(
            f"NVIDIA-SMI version  : {scene.DRIVER}\nNVML version        : 580.95\nDRIVER version      : {scene.DRIVER}\nCUDA Version        : 13.0\n"
        )
        return 0
    if words and words[0] in ("-q", "--query"):
        await call.out(
            f"\n==============NVSMI LOG==============\n\nDriver Version                                         : {scene.DRIVER}\n"
            "CUDA Version                                           : 13.0\n\nAttached GPUs                                          : 1\n"
            "GPU 0000000F:01:00.0\n    Product Name                                       : NVIDIA GB10\n    FB Memory Usage\n"
            "        Total                                          : N/A\n        Used                                           : N/A\n"
        )
        return 0
    if words and words[0] not in ("-i", "--id"):
        return await call.fail("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 1)
    if node.discrete:
        return await discrete_table(call)
    date = time.strftime("%a %b %e %H:%M:%S %Y", time.gmtime(node.now()))
    text = HEAD.format(
        date=date,
        driver=scene.DRIVER,
        temp=values["temperature.gpu"],
        state=values["pstate"],
        power=int(float(bare(values["power.draw"]))),
        util=node.util,
    )
    for process in sorted(node.processes.values(), key=lambda p: p.pid):
        if process.gpu_mib:
            kind = "G" if "Xorg" in process.title or "gnome" in process.title else "C"
            text += f"|    0   N/A  N/A  {process.pid:>14}      {kind}   {process.title[:30]:<30} {process.gpu_mib:>11}MiB |\n"
    if not any(p.gpu_mib for p in node.processes.values()):
        text += "|  No running processes found                                                             |\n"
    await call.out(text + RULE)
    return 0


async def discrete_table(call: Call) -> int:
    """The table of GPUs with memory of their own: one block each."""
    node = call.node
    lines = HEAD.format(
        date=time.strftime("%a %b %e %H:%M:%S %Y", time.gmtime(node.now())),
        driver=scene.DRIVER,
        temp="",
        state="",
        power="",
        util="",
    ).splitlines()
    first = next(place for place, line in enumerate(lines) if "NVIDIA GB10" in line)
    text = "\n".join(lines[:first]) + "\n"
    for number in node.gpu_numbers:
        values = readings(node, number)
        used = f"{bare(values['memory.used'])}MiB / {node.seed.gpu_mib}MiB"
        text += (
            f"| {number:>3}  {node.seed.gpu_name[:30]:<31}On  |   {bus_of(node, number)} Off |                    0 |\n"
            f"| N/A   {values['temperature.gpu']:>2}C    {values['pstate']:<3}         {int(float(bare(values['power.draw']))):>6}W / 600W "
            f"| {used:>22} | {node.util:>6}%      Default |\n"
            "|                                         |                        |             Disabled |\n"
            "+-----------------------------------------+------------------------+----------------------+\n"
        )
    text += "\n".join(lines[first + 4 :]) + "\n"
    shown = [(number, one) for one in node.processes.values() if one.gpu_mib for number in one.gpus]
    for number, one in sorted(shown, key=lambda pair: (pair[0], pair[1].pid)):
        text += f"| {number:>4}   N/A  N/A  {one.pid:>14}      C   {one.title[:30]:<30} {one.gpu_mib:>11}MiB |\n"
    if not shown:
        text += "|  No running processes found                                                             |\n"
    await call.out(text + RULE)
    return 0


async def rows(call: Call, names: list[str], values: list[list[str]], form: list[str]) -> int:
    if "noheader" not in form:
        await call.out(", ".join(names if "nounits" in form else [header(name) for name in names]) + "\n")
    for row in values:
        await call.out(", ".join([bare(value) for value in row] if "nounits" in form else row) + "\n")
    return 0


@tool("free", inside=True)
async def free(call: Call) -> int:
    values, words = (
        meminfo(call.node),
        "".join(word.lstrip("-") for word in call.arguments if not word.startswith("--")),
    )
    total, unused, cached = (
        values["MemTotal"],
        values["MemFree"],
        values["Cached"] + values["Buffers"] + values["SReclaimable"],
    )
    rows_ = [
        ("Mem:", [total, total - values["MemAvailable"], unused, values["Shmem"], cached, values["MemAvailable"]]),
        ("Swap:", [values["SwapTotal"], values["SwapTotal"] - values["SwapFree"], values["SwapFree"]]),
    ]

    def show(kib: int) -> str:
        if "b" in words or "--bytes" in call.arguments:
            return str(kib * 1024)
        if "m" in words or "--mebi" in call.arguments:
            return str(kib // 1024)
        if "g" in words or "--gibi" in call.arguments:
            return str(kib // (1 << 20))
        if "h" in words or "--human" in call.arguments:
            return human(kib * 1024)
        return str(kib)

    text = f"{'':<8}{'total':>12}{'used':>12}{'free':>12}{'shared':>12}{'buff/cache':>12}{'available':>12}\n"
    for name, numbers in rows_:
        text += f"{name:<8}" + "".join(f"{show(number):>12}" for number in numbers) + "\n"
    await call.out(text)
    return 0


def human(size: float) -> str:
    for unit in ("B", "Ki", "Mi", "Gi", "Ti"):
        if size < 1024 or unit == "Ti":
            return f"{size:.0f}{unit}" if unit == "B" or size >= 10 else f"{size:.1f}{unit}"
        size /= 1024
    return ""


MOUNTS = (
    ("tmpfs", "tmpfs", 12 << 30, 3 << 20, "/run"),
    ("/dev/nvme0n1p2", "ext4", 3_936_818_806_784, 0, "/"),
    ("tmpfs", "tmpfs", 60 << 30, 0, "/dev/shm"),
    ("/dev/nvme0n1p1", "vfat", 535_805_952, 6_479_872, "/boot/efi"),
)


def disk_used(node: Node) -> int:
    held = sum(image.size_bytes for image in node.images)
    for path in (node.root / "models").rglob("*"):
        if path.is_file():
            held += path.stat().st_size
    return held + 611_000_000_000


@tool("df", inside=True)
async def df(call: Call) -> int:
    words = call.arguments
    flags = "".join(word[1:] for word in words if word.startswith("-") and not word.startswith("--"))
    output = next((word.split("=", 1)[1].split(",") for word in words if word.startswith("--output=")), None)
    paths = [word for word in words if not word.startswith("-")]
    only = None
    for word in words:
        if word.startswith("--block-size=") or word.startswith("-B"):
            flags += "B1" if word.endswith("1") else ""
        if word.startswith("--type="):
            only = word.split("=", 1)[1]
    unit = 1 if "B1" in flags or "-B1" in words else 1024
    entries = []
    code = 0
    picked = list(MOUNTS)
    if paths:
        picked = []
        for path in paths:
            if path in ("1", "1K"):
                continue
            if not call.machine.inside(path).exists() and path not in (
                "/",
                "/dev/shm",
                "/boot/efi",
                "/run",
                "/var/lib/docker",
            ):
                await call.err(f"df: {path}: No such file or directory\n")
                code = 1
                continue
            picked.append(
                next(
                    (
                        mount
                        for mount in MOUNTS
                        if mount[4] == path or (mount[4] != "/" and path.startswith(mount[4] + "/"))
                    ),
                    MOUNTS[1],
                )
            )
        if code and not picked:
            return code
    for source, kind, size, used, where in picked:
        if only and kind != only:
            continue
        if where == "/":
            used = disk_used(call.node)
            if "disk-full" in call.node.faults:
                used = size - (size // 20)
        spare = max(0, size - used - (size // 20 if where == "/" else 0))
        entries.append(
            {
                "source": source,
                "fstype": kind,
                "size": -(-size // unit),
                "used": -(-used // unit),
                "avail": spare // unit,
                "pcent": f"{min(100, -(-used * 100 // max(1, used + spare)))}%",
                "target": where,
                "itotal": 244195328,
                "iused": 1284121,
                "iavail": 242911207,
                "ipcent": "1%",
                "file": "-",
            }
        )
    titles = {
        "source": "Filesystem",
        "fstype": "Type",
        "size": "1B-blocks" if unit == 1 else "1K-blocks",
        "used": "Used",
        "avail": "Avail" if output else "Available",
        "pcent": "Use%",
        "target": "Mounted on",
        "itotal": "Inodes",
        "iused": "IUsed",
        "iavail": "IFree",
        "ipcent": "IUse%",
        "file": "File",
    }
    if "P" in flags:
        titles |= {"size": "1024-blocks" if unit == 1024 else "1-blocks", "pcent": "Capacity"}
    names = output or (
        ["source", *(["fstype"] if "T" in flags else []), "size", "used", "avail", "pcent", "target"]
        if "i" not in flags
        else ["source", "itotal", "iused", "iavail", "ipcent", "target"]
    )
    table = [[titles.get(name, name) for name in names]]
    for entry in entries:
        table.append(
            [
                human(int(str(entry[name])) * unit).replace("i", "")
                if "h" in flags and name in ("size", "used", "avail")
                else str(entry[name])
                for name in names
            ]
        )
    widths = [max(len(row[column]) for row in table) for column in range(len(names))]
    for row in table:
        cells = [
            cell.ljust(width) if name in ("source", "fstype", "target") else cell.rjust(width)
            for cell, width, name in zip(row, widths, names, strict=True)
        ]
        await call.out(" ".join(cells).rstrip() + "\n")
    return code


@tool("lsblk")
async def lsblk(call: Call) -> int:
    if "-J" in call.arguments or "--json" in call.arguments:
        await call.out(
            '{"blockdevices": [{"name":"nvme0n1","maj:min":"259:0","rm":false,"size":"3.7T","ro":false,"type":"disk","mountpoints":[null]}]}\n'
        )
        return 0
    await call.out(
        "NAME        MAJ:MIN RM   SIZE RO TYPE MOUNTPOINTS\nnvme0n1     259:0    0   3.7T  0 disk \n"
        "├─nvme0n1p1 259:1    0   511M  0 part /boot/efi\n└─nvme0n1p2 259:2    0   3.7T  0 part /\n"
    )
    return 0


@tool("uname", inside=True)
async def uname(call: Call) -> int:
    flags = "".join(word[1:] for word in call.arguments if word.startswith("-")) or "s"
    parts = {
        "s": "Linux",
        "n": call.node.name,
        "r": call.node.seed.kernel,
        "v": "#15-Ubuntu SMP PREEMPT_DYNAMIC Fri Aug 29 14:02:33 UTC 2025",
        "m": call.node.seed.arch,
        "p": call.node.seed.arch,
        "i": call.node.seed.arch,
        "o": "GNU/Linux",
    }
    names = "snrvmpio" if "a" in flags else [name for name in "snrvmpio" if name in flags]
    await call.out(" ".join(parts[name] for name in names) + "\n")
    return 0


@tool("arch", inside=True)
async def arch(call: Call) -> int:
    await call.out(f"{call.node.seed.arch}\n")
    return 0


@tool("nproc", inside=True)
async def nproc(call: Call) -> int:
    await call.out("20\n")
    return 0


@tool("lscpu", inside=True)
async def lscpu(call: Call) -> int:
    if call.node.seed.arch == "x86_64":
        await call.out(
            "Architecture:                x86_64\nCPU(s):                      20\nVendor ID:                   AuthenticAMD\n"
            "  Model name:                AMD EPYC 9355 32-Core Processor\n    Thread(s) per core:      2\n"
        )
        return 0
    await call.out(
        "Architecture:                aarch64\n  CPU op-mode(s):            64-bit\n  Byte Order:                Little Endian\nCPU(s):                      20\n"
        "  On-line CPU(s) list:       0-19\nVendor ID:                   ARM\n  Model name:                Cortex-X925\n    Thread(s) per core:      1\n"
        "    Core(s) per socket:      10\n    Socket(s):               1\n  Model name:                Cortex-A725\n    Core(s) per socket:      10\n"
        "NUMA:                        \n  NUMA node(s):              1\n  NUMA node0 CPU(s):         0-19\n"
    )
    return 0


@tool("uptime")
async def uptime(call: Call) -> int:
    node = call.node
    now = time.strftime("%H:%M:%S", time.gmtime(node.now()))
    if "-s" in call.arguments:
        await call.out(time.strftime("%Y-%m-%d %H:%M:%S\n", time.gmtime(node.booted)))
        return 0
    days, rest = divmod(int(node.uptime), 86400)
    day = f"{days} day{'s' if days != 1 else ''}, " if days else ""
    await call.out(
        f" {now} up {day}{rest // 3600:>2}:{rest % 3600 // 60:02d},  1 user,  load average: "
        + ", ".join(f"{x:.2f}" for x in load(node))
        + "\n"
    )
    return 0


@tool("date", inside=True)
async def date(call: Call) -> int:
    """The node's clock, by the machine's own `date` with the moment given: skew is a fault, formats are real."""
    from apps.lab.machine import host_path

    program = host_path("date") or "/bin/date"
    path = program if call.machine.mode == "rewrite" else "/run/lab/host" + program
    words = call.arguments
    offset = float(call.node.faults.get("clock-off") or 0)
    if offset and not any(word.startswith(("-d", "--date", "-r", "-s")) for word in words):
        words = ["-d", f"@{call.node.now():.9f}", *words]
    environment = {key: value for key, value in call.environment.items()}
    await asyncio.sleep(0)
    return await call.become(path, ["date", *words], environment)
