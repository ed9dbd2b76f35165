# ruff: noqa: E501 (texts of real tools stay on one line)
"""GPUs by nvidia-smi: the table of every age, the CSV query, processes, and the ways in which it fails."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from apps.facts.fact import Fact, fact
from apps.facts.quantities import decimal, unknown, whole
from apps.facts.sheet import Evidence
from apps.facts.values import Gpu, GpuError, GpuProcess, Gpus, MigInstance

_WIDEST = 512  # a longer line is no line of the table
_DRIVER = re.compile(r"(?:Driver|KMD) Version:\s*([0-9][0-9.]*)")
_CUDA = re.compile(r"CUDA (?:UMD )?Version:\s*([0-9][0-9.]*)")
_TOOL = re.compile(r"NVIDIA-SMI\s+([0-9][0-9.]*)")
_NO_BUS = re.compile(r"^\s*N/A\s{2,}")  # Jetson
_BUS = re.compile(r"^\s*((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])(?:\s|$)")
_NAME = re.compile(r"^\s*(\d{1,4})\s+(.*?)\s*$")
_PERSISTENCE = re.compile(r"\s+(?:On|Off|N/A|Enabled|Disabled)$")
_TEMPERATURE = re.compile(r"(?<!\d)(\d{1,3})C\b")
_POWER = re.compile(r"(\S+?)\s*W?\s*/\s*(\S+?)\s*W?\s*$")
_MEMORY = re.compile(r"(\d{1,9})\s*MiB\s*/\s*(\d{1,9})\s*MiB")
_PERCENT = re.compile(r"(\d{1,3})\s*%")
_MIG_MODE = re.compile(r"^\s*(Enabled|Disabled)(\*?)\s*$")
_PROCESS = re.compile(
    r"^\|\s+(\d{1,4})\s+(?:(?:N/A|\d{1,4})\s+(?:N/A|\d{1,4})\s+)?(\d{1,10})\s+([CGM](?:\+[CGM])?)\s+(\S.*?)\s*\|\s*$"
)
_PROCESS_MEMORY = re.compile(r"\s+(?:(\d{1,9})\s*MiB|N/A|Insufficient\s+\S*|\S*\.\.\.|-)$")
_LIBRARY = re.compile(r"NVML library version:\s*([0-9][0-9.]*)")
_MODULE = re.compile(r"NVRM version:.{0,200}?(?:Kernel Module|Kernel Module for \S+)\s+([0-9]+\.[0-9.]+)")
_UNIFIED_NAME = re.compile(r"\b(?:GB10|GB20B|N1X|Thor|Orin|Xavier|Tegra)\b", re.IGNORECASE)

PROBLEMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("driver_mismatch", re.compile(r"Driver/library version mismatch", re.IGNORECASE)),
    (
        "driver_not_running",
        re.compile(
            r"couldn't communicate with the NVIDIA driver|could not communicate with the NVIDIA driver|"
            r"Failed to initialize NVML: Driver Not Loaded",
            re.IGNORECASE,
        ),
    ),
    (
        "gpu_lost",
        re.compile(
            r"GPU is lost|Unable to determine the device handle for|fallen off the bus|GPU requires reset",
            re.IGNORECASE,
        ),
    ),
    ("no_gpu", re.compile(r"No devices (?:were )?found", re.IGNORECASE)),
    (
        "no_driver",
        re.compile(
            r"nvidia-smi['\"]?: (?:command )?not found|command not found: nvidia-smi|couldn't find libnvidia-ml\.so"
            r"|Failed to initialize NVML: (?:NVML Shared )?"
            r"Library Not Found|Unknown command:? '?nvidia-smi",
            re.IGNORECASE,
        ),
    ),
    ("gpu_denied", re.compile(r"Failed to initialize NVML: Insufficient Permissions", re.IGNORECASE)),
    (
        "gpu_failed",
        re.compile(r"Failed to initialize NVML: [^\n]{1,80}|NVIDIA-SMI has failed[^\n]{0,80}", re.IGNORECASE),
    ),
)


def problem(evidence: Evidence) -> tuple[str, str] | None:
    """(reason, the line that proves it), or None when nvidia-smi worked."""
    for text in (evidence.stdout, evidence.stderr):
        for reason, pattern in PROBLEMS:
            found = pattern.search(text)
            if found:
                return reason, _line_of(text, found.start())
    if evidence.exit_code == 127:
        return "no_driver", evidence.stderr.strip()[:300]
    return None


def _line_of(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    return text[start : end if end >= 0 else len(text)].strip()[:300]


def from_table(evidence: Evidence) -> Gpus | None:
    """The human table of drivers 3xx to 610 (where `Driver Version` became `KMD Version`)."""
    text = evidence.stdout
    wrong = problem(evidence)
    driver, cuda, tool = _DRIVER.search(text), _CUDA.search(text), _TOOL.search(text)
    gpus = _table_gpus(text)
    library, module = _LIBRARY.search(text), _MODULE.search(text)
    if not (wrong or driver or cuda or gpus or library or module):
        return None
    return Gpus(
        driver=driver.group(1) if driver else (module.group(1) if module else None),
        cuda=cuda.group(1) if cuda else None,
        gpus=gpus,
        processes=_table_processes(text),
        problem=wrong[0] if wrong else None,
        evidence=wrong[1] if wrong else None,
        tool=tool.group(1) if tool else None,
        library=library.group(1).rstrip(".") if library else None,
        kernel_module=module.group(1) if module else None,
    )


def _table_gpus(text: str) -> tuple[Gpu, ...]:
    gpus: dict[int, Gpu] = {}
    current: Gpu | None = None
    row = 0
    migs = False
    for line in text.splitlines():
        if len(line) > _WIDEST:
            continue
        if "MIG devices:" in line:
            migs, current = True, None
        if "Processes:" in line:
            break
        cells = line.strip().strip("|").split("|")
        if not line.lstrip().startswith("|") or len(cells) < 2:
            current = None if line.lstrip().startswith("+") else current
            continue
        bus, named = _BUS.match(cells[1]), _NAME.match(cells[0])
        if named and not migs and (bus or _NO_BUS.match(cells[1])):
            name = _PERSISTENCE.sub("", named.group(2)).strip() or None
            current, row = Gpu(index=int(named.group(1)), name=name, bus_id=bus.group(1) if bus else None), 1
        elif migs:
            _add_instance(gpus, cells)
        elif current is not None:
            row += 1
            current = _second_row(current, cells) if row == 2 else _third_row(current, cells)
        if current is not None:
            gpus[current.index] = current
    return tuple(gpus.values())


def _second_row(gpu: Gpu, cells: list[str]) -> Gpu:
    temperature, power = _TEMPERATURE.search(cells[0]), _POWER.search(cells[0])
    memory = _MEMORY.search(cells[1])
    percent = _PERCENT.search(cells[2]) if len(cells) > 2 else None
    unified = bool(_UNIFIED_NAME.search(gpu.name or "")) or "not supported" in cells[1].lower()
    return replace(
        gpu,
        temp_c=int(temperature.group(1)) if temperature else None,
        power_w=decimal(power.group(1)) if power else None,
        power_cap_w=decimal(power.group(2)) if power else None,
        memory_used_mib=int(memory.group(1)) if memory else None,
        memory_total_mib=int(memory.group(2)) if memory else None,
        util_pct=int(percent.group(1)) if percent else None,
        unified=unified and not memory,
    )


def _third_row(gpu: Gpu, cells: list[str]) -> Gpu:
    mode = _MIG_MODE.match(cells[-1])
    return replace(gpu, mig=mode.group(1) + (" (pending)" if mode.group(2) else "")) if mode else gpu


def _add_instance(gpus: dict[int, Gpu], cells: list[str]) -> None:
    """`|  0    1   0   0  |  107MiB / 40192MiB |`: the second line of an instance is BAR1 and has no ids."""
    ids, memory = cells[0].split(), _MEMORY.search(cells[1])
    if len(ids) != 4 or not all(word.isdecimal() for word in ids) or not memory:
        return
    index, gi, ci, device = (int(word[:6]) for word in ids)
    gpu = gpus.get(index)
    if gpu is not None:
        instance = MigInstance(
            gi=gi, ci=ci, device=device, mem_used_mib=int(memory.group(1)), mem_total_mib=int(memory.group(2))
        )
        gpus[index] = replace(gpu, instances=(*gpu.instances, instance))


def _table_processes(text: str) -> tuple[GpuProcess, ...]:
    start = text.find("Processes:")
    if start < 0:
        return ()
    found = []
    for line in text[start:].splitlines():
        row = _PROCESS.match(line.strip()) if len(line) <= _WIDEST else None
        if not row:
            continue
        index, pid, kind, rest = row.groups()
        memory = _PROCESS_MEMORY.search(rest)
        name = rest[: memory.start()].strip() if memory else rest
        mib = int(memory.group(1)) if memory and memory.group(1) else None
        found.append(GpuProcess(pid=int(pid), name=name or None, mib=mib, type=kind, gpu=int(index)))
    return tuple(found)


COLUMNS = (
    "index",
    "name",
    "uuid",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "clocks.current.sm",
    "mig.mode.current",
    "driver_version",
)
FEWER = COLUMNS[:10]
# The order that monitors ask for most often, used for headerless rows of ten cells.
_POLLED = (
    "index",
    "name",
    "uuid",
    "memory.total",
    "memory.used",
    "memory.free",
    "utilization.gpu",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)
_HEADER = re.compile(r"^[a-z_][a-z0-9_.]*(?: \[[^\]]+\])?$")


def from_query(evidence: Evidence) -> Gpus | None:
    """`nvidia-smi --query-gpu=… --format=csv`, with or without header and units (MiB, W, %, MHz)."""
    columns: tuple[str, ...] | None = None
    gpus: list[Gpu] = []
    driver = None
    for line in evidence.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 2:
            continue
        if all(_HEADER.match(cell) for cell in cells):
            columns = tuple(cell.split(" [")[0] for cell in cells)
            continue
        layout = columns or _headerless(cells)
        if layout is not None and len(cells) > len(layout) and "name" in layout:
            at, more = layout.index("name"), len(cells) - len(layout) + 1  # a name with a comma in it
            cells = [*cells[:at], ", ".join(cells[at : at + more]), *cells[at + more :]]
        if layout is None or len(layout) != len(cells) or "pid" in layout:
            continue
        row = dict(zip(layout, cells, strict=True))
        gpus.append(_row_gpu(row, len(gpus)))
        version = row.get("driver_version", "")
        driver = driver or (version if not unknown(version) else None)
    wrong = problem(evidence)
    if "is not a valid field to query" in evidence.stdout + evidence.stderr and not gpus:
        wrong = wrong or ("bad_query_field", (evidence.stdout + evidence.stderr).strip().splitlines()[0][:300])
    if not gpus and wrong is None:
        return None
    return Gpus(
        driver=driver, gpus=tuple(gpus), problem=wrong[0] if wrong else None, evidence=wrong[1] if wrong else None
    )


def _headerless(cells: list[str]) -> tuple[str, ...] | None:
    for layout in (COLUMNS, FEWER, _POLLED):
        if (
            cells[0].isdecimal()
            and len(layout) == len(cells)
            and ("pci.bus_id" in layout) == bool(_BUS.match(cells[3]))
        ):
            return layout
    return _guessed(cells)


_GPU_NAME = re.compile(r"(?:NVIDIA|Tesla|Quadro|GeForce|GRID|Orin|Thor)\b")
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("uuid", re.compile(r"GPU-[0-9a-f-]{8,}\Z")),
    ("pci.bus_id", re.compile(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\Z")),
    ("driver_version", re.compile(r"[3-9]\d\d\.\d{1,3}(?:\.\d{1,3})?\Z")),
    ("utilization.gpu", re.compile(r"\d{1,3} %\Z")),
    ("power.draw", re.compile(r"[\d.]+ W\Z")),
    ("clocks.sm", re.compile(r"\d+ MHz\Z")),
)


def _guessed(cells: list[str]) -> tuple[str, ...] | None:
    """Columns of a row without header whose order nobody told: what a cell's own shape says, the rest stays unknown.

    Bare numbers could be anything; only a first one before the name is the index. Of sizes with a unit the first is the
    total, as everybody asks for it first.
    """
    if not any(_GPU_NAME.match(cell) for cell in cells[:3]):
        return None
    layout: list[str] = []
    for place, cell in enumerate(cells):
        if place == 0 and cell.isdecimal():
            name = "index"
        elif _GPU_NAME.match(cell):
            name = "name"
        elif re.fullmatch(r"\d+ MiB", cell):
            name = next((each for each in ("memory.total", "memory.used") if each not in layout), "memory.free")
        else:
            name = next((name for name, shape in _SHAPES if shape.match(cell)), "")
        layout.append(name if name and name not in layout else f"column {place}")
    return tuple(layout)


def _row_gpu(row: dict[str, str], position: int) -> Gpu:
    def cell(*names: str) -> str | None:
        return next((row[name] for name in names if name in row and not unknown(row[name])), None)

    index = whole(cell("index"))
    name, total, mode = cell("name", "gpu_name"), row.get("memory.total"), cell("mig.mode.current")
    no_total = total is not None and total.strip("[]").strip().lower() in {"n/a", "not supported"}
    return Gpu(
        index=position if index is None else index,
        name=name,
        bus_id=cell("pci.bus_id", "gpu_bus_id"),
        uuid=cell("uuid", "gpu_uuid"),
        memory_total_mib=whole(total),
        memory_used_mib=whole(row.get("memory.used")),
        unified=whole(total) is None and (no_total or bool(_UNIFIED_NAME.search(name or ""))),
        util_pct=whole(cell("utilization.gpu")),
        temp_c=whole(cell("temperature.gpu")),
        power_w=decimal(cell("power.draw", "power.draw.instant", "power.draw.average")),
        power_cap_w=decimal(cell("power.limit", "enforced.power.limit")),
        clock_mhz=whole(cell("clocks.current.sm", "clocks.sm")),
        mig=mode if mode in {"Enabled", "Disabled"} else None,
    )


_OWNER_CONTAINER = re.compile(r"(?:docker|libpod|crio|cri-containerd)[-/]([0-9a-f]{64})")
_OWNER_UNIT = re.compile(r"/([^/\s]+\.service)(?:/|\s|$)")


def from_processes(evidence: Evidence) -> tuple[GpuProcess, ...] | None:
    """`--query-compute-apps=pid,process_name,used_memory,gpu_uuid` rows and `@owner PID CGROUP` lines (of /proc, else by `docker top`).

    `container` holds the 64 digit id here; `named` replaces it by the container's name.
    """
    owners = _owners(evidence.stdout)
    found: list[GpuProcess] = []
    columns: list[str] = []
    for line in evidence.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if "pid" in cells and all(_HEADER.match(cell) for cell in cells):
            columns = [cell.split(" [")[0] for cell in cells]
        elif columns and len(columns) == len(cells):
            row = dict(zip(columns, cells, strict=True))
            memory = row.get("used_memory") or row.get("used_gpu_memory")
            if row["pid"].isascii() and row["pid"].isdecimal():
                name = row.get("process_name") or row.get("name")
                found.append(GpuProcess(pid=int(row["pid"][:12]), name=name or None, mib=whole(memory), type="C"))
        elif len(cells) >= 3 and cells[0].isascii() and cells[0].isdecimal():
            at = 2 if len(cells) == 3 else len(cells) - 2
            found.append(
                GpuProcess(pid=int(cells[0][:12]), name=",".join(cells[1:at]) or None, mib=whole(cells[at]), type="C")
            )
    if not found and problem(evidence):
        return None
    return tuple(_owned(process, owners.get(process.pid, "")) for process in found)


def _owners(text: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for line in text.splitlines():
        _, pid, path = [*line.split(" ", 2), "", ""][:3]
        if line.startswith("@owner ") and pid.isascii() and pid.isdecimal():
            found[int(pid[:12])] = found.get(int(pid[:12]), "") + path + "\n"
    return found


def containers_of(text: str) -> dict[int, str]:
    """Every process of which the `@owner` lines name the container, whether it uses the GPU or not: its 64 digit id by pid."""
    found = {pid: _OWNER_CONTAINER.search(path) for pid, path in _owners(text).items()}
    return {pid: container.group(1) for pid, container in found.items() if container}


def _owned(process: GpuProcess, path: str) -> GpuProcess:
    container, unit = _OWNER_CONTAINER.search(path), _OWNER_UNIT.search(path)
    return replace(
        process,
        container=container.group(1) if container else None,
        unit=unit.group(1) if unit and not container else None,
    )


_LISTED = re.compile(r"^GPU (\d{1,4}): (.{1,200}?) \(UUID: ([^)\s]{1,100})\)[ \t]*$")
_LISTED_MIG = re.compile(r"^\s+MIG (\S{1,40})\s+Device\s+(\d{1,4}): \(UUID: ([^)\s]{1,200})\)[ \t]*$")
_ON_BUS = re.compile(r"^@pci (\S{1,20}) nvidia$", re.MULTILINE)


def from_list(text: str) -> Gpus | None:
    """`nvidia-smi -L` with its MIG devices, and `@pci ADDRESS DRIVER` rows of the GPUs on the bus.

    The list does not say to which GPU instance a MIG device belongs, so `gi` is -1 there until the table is joined.
    """
    gpus: list[Gpu] = []
    for line in text.splitlines():
        gpu, mig = _LISTED.match(line), _LISTED_MIG.match(line)
        if gpu:
            gpus.append(Gpu(index=int(gpu.group(1)), name=gpu.group(2), uuid=gpu.group(3)))
        elif mig and gpus:
            instance = MigInstance(gi=-1, device=int(mig.group(2)), profile=mig.group(1), uuid=mig.group(3))
            gpus[-1] = replace(gpus[-1], mig="Enabled", instances=(*gpus[-1].instances, instance))
    on_bus = tuple(_ON_BUS.findall(text))
    wrong = problem(Evidence(text[:65536]))
    if not gpus and not on_bus and not wrong:
        return None
    return Gpus(
        gpus=tuple(gpus), problem=wrong[0] if wrong else None, evidence=wrong[1] if wrong else None, on_bus=on_bus
    )


def _instances(table: tuple[MigInstance, ...], listed: tuple[MigInstance, ...]) -> tuple[MigInstance, ...]:
    """The table's instances, with profile and UUID of the list by their device number; the list's where there is no table."""
    by_device = {each.device: each for each in listed}
    return (
        tuple(
            replace(each, profile=other.profile, uuid=other.uuid) if (other := by_device.get(each.device)) else each
            for each in table
        )
        or listed
    )


_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{1,8}:[0-9A-Fa-f:.]{2,12})\): (\d{1,4}),?(.{0,300})")


def xids(text: str) -> tuple[GpuError, ...]:
    """`NVRM: Xid (PCI:0000:01:00): 79, …` of the kernel's log, one of each GPU and code, in order of appearance."""
    found: dict[tuple[str, int], GpuError] = {}
    for line in text.splitlines():
        row = _XID.search(line)
        if row:
            key = (row.group(1), int(row.group(2)))
            before = found.get(key) or GpuError(code=key[1], bus_id=key[0], count=0, line=line.strip()[:400])
            found[key] = replace(before, count=before.count + 1)
    return tuple(found.values())


def joined(
    table: Gpus | None,
    query: Gpus | None,
    processes: tuple[GpuProcess, ...] | None,
    listed_gpus: Gpus | None = None,
) -> Gpus | None:
    """One value of four readings: exact cells of the query before the table's rounded ones, owners of the process list,
    MIG profiles and the PCI bus of the list."""
    if table is None and query is None:
        return None
    first, second = query or Gpus(), table or Gpus()
    by_list = {gpu.index: gpu for gpu in (listed_gpus.gpus if listed_gpus else ())}
    by_index = {gpu.index: gpu for gpu in second.gpus}
    gpus = tuple(_filled(gpu, by_index.get(gpu.index)) for gpu in first.gpus) or second.gpus
    gpus = tuple(
        replace(gpu, uuid=gpu.uuid or other.uuid, instances=_instances(gpu.instances, other.instances))
        if (other := by_list.get(gpu.index))
        else gpu
        for gpu in gpus
    )
    listed = {process.pid: process for process in processes or ()}
    merged = [
        replace(
            process,
            container=listed[process.pid].container,
            unit=listed[process.pid].unit,
            name=listed[process.pid].name or process.name,
            mib=process.mib if process.mib is not None else listed[process.pid].mib,
        )
        if process.pid in listed
        else process
        for process in second.processes
    ]
    seen = {process.pid for process in merged}
    merged += [process for pid, process in listed.items() if pid not in seen]
    works = bool(gpus)
    wrong = second if second.problem else first
    reason = None if works and wrong.problem == "bad_query_field" else wrong.problem
    return Gpus(
        driver=second.driver or first.driver,
        cuda=second.cuda,
        gpus=gpus,
        processes=tuple(merged),
        problem=reason,
        evidence=wrong.evidence if reason else None,
        tool=second.tool,
        library=second.library,
        kernel_module=second.kernel_module,
        on_bus=listed_gpus.on_bus if listed_gpus else None,
    )


def named(gpus: Gpus, names: dict[str, str]) -> Gpus:
    """Processes with the container's name where they had its id."""
    return replace(
        gpus,
        processes=tuple(
            replace(each, container=names.get(each.container or "", each.container)) for each in gpus.processes
        ),
    )


def _filled(gpu: Gpu, other: Gpu | None) -> Gpu:
    if other is None:
        return gpu
    gaps = {
        name: getattr(other, name)
        for name in (
            "name",
            "bus_id",
            "memory_total_mib",
            "memory_used_mib",
            "util_pct",
            "temp_c",
            "power_w",
            "power_cap_w",
        )
        if getattr(gpu, name) is None
    }
    return replace(
        gpu, **gaps, mig=other.mig or gpu.mig, instances=other.instances, unified=gpu.unified or other.unified
    )


def describe(gpus: Gpus) -> dict[str, Any]:
    """The value and what follows from it: how many, which are free (under 1 % and 1 GiB used), the common size."""
    sizes = {gpu.memory_total_mib for gpu in gpus.gpus}
    known = [gpu for gpu in gpus.gpus if gpu.memory_used_mib is not None]
    computing = {process.gpu for process in gpus.processes if (process.type or "").startswith(("C", "M"))}
    busy = [
        gpu.index
        for gpu in gpus.gpus
        if (gpu.memory_used_mib or 0) >= 1024 or (gpu.util_pct or 0) > 5 or (gpu.unified and gpu.index in computing)
    ]
    aliases = {"driver_mismatch": "driver_library_mismatch"}
    return {
        "driver": gpus.driver,
        "cuda": gpus.cuda,
        "tool": gpus.tool,
        "gpus": [_described(gpu) for gpu in gpus.gpus],
        "rows": [_described(gpu) for gpu in gpus.gpus],
        "processes": [
            {
                "pid": process.pid,
                "type": process.type,
                "mib": process.mib,
                "name": process.name,
                "gpu": process.gpu,
                "container": process.container,
                "unit": process.unit,
            }
            for process in gpus.processes
        ],
        "gpu_count": len(gpus.gpus),
        "busy": busy,
        "free": [gpu.index for gpu in known if gpu.index not in busy],
        "memory_total_mib": sizes.pop() if len(sizes) == 1 else None,
        "problem": aliases.get(gpus.problem or "", gpus.problem),
        "reason": gpus.problem,
        "evidence": gpus.evidence,
        "library": gpus.library,
        "kernel_module": gpus.kernel_module,
    }


def _described(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "name": gpu.name,
        "bus_id": gpu.bus_id,
        "uuid": gpu.uuid,
        "memory_total_mib": gpu.memory_total_mib,
        "memory_used_mib": gpu.memory_used_mib,
        "unified": gpu.unified,
        "util_pct": gpu.util_pct,
        "temp_c": gpu.temp_c,
        "power_w": gpu.power_w,
        "power_cap_w": gpu.power_cap_w,
        "clock_mhz": gpu.clock_mhz,
        "mig": gpu.mig,
        "instances": [
            {
                "gi": each.gi if each.gi >= 0 else None,
                "ci": each.ci,
                "device": each.device,
                "mem_total_mib": each.mem_total_mib,
                "mem_used_mib": each.mem_used_mib,
                "profile": each.profile,
                "uuid": each.uuid,
            }
            for each in gpu.instances
        ],
    }


@fact
class GpuFact(Fact):
    """Driver, CUDA, GPUs and processes by the table."""

    name = "gpu"
    reads = "nvidia-smi"
    timeout_s = 20
    script = r"""
nvidia-smi; code=$?
[ "$code" = 0 ] || cat /proc/driver/nvidia/version 2>/dev/null
exit $code
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> Gpus | None:
        return from_table(evidence) or from_query(evidence)


@fact
class GpuQueryFact(Fact):
    """The exact cells."""

    name = "gpu-query"
    reads = "nvidia-smi --query-gpu=" + ",".join(COLUMNS) + " --format=csv"
    timeout_s = 20
    script = (
        f"nvidia-smi --query-gpu={','.join(COLUMNS)} --format=csv; code=$?\n"
        f"case $code in 0|127) exit $code ;; *) nvidia-smi --query-gpu={','.join(FEWER)} --format=csv ;; esac"
    )

    @classmethod
    def parse(cls, evidence: Evidence) -> Gpus | None:
        return from_query(evidence)


@fact
class GpuProcessesFact(Fact):
    """Compute processes with the cgroup that owns them."""

    name = "gpu-processes"
    reads = "nvidia-smi --query-compute-apps=pid,process_name,used_memory,gpu_uuid --format=csv,noheader,nounits; /proc/PID/cgroup, docker top"
    timeout_s = 20
    script = r"""
out=$(nvidia-smi --query-compute-apps=pid,process_name,used_memory,gpu_uuid --format=csv,noheader,nounits); code=$?
printf '%s\n' "$out"
hidden=
for pid in $(printf '%s\n' "$out" | sed -n 's/^ *\([0-9][0-9]*\),.*/\1/p' | sort -u); do
  owner=$(cat "/proc/$pid/cgroup" 2>/dev/null)
  [ -z "$owner" ] || printf '%s\n' "$owner" | sed "s|^|@owner $pid |"
  case $owner in *docker*|*libpod*|*.service*) ;; *) hidden=1 ;; esac
done
[ -z "$hidden" ] || for id in $(docker ps -q --no-trunc 2>/dev/null | head -n 32); do
  docker top "$id" 2>/dev/null | awk -v id="$id" 'NR > 1 && $2 ~ /^[0-9]+$/ { print "@owner " $2 " 0::/docker/" id }'
done
exit $code
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[GpuProcess, ...] | None:
        return from_processes(evidence)


@fact
class GpuListFact(Fact):
    """GPUs and MIG devices by name, and the GPUs that the PCI bus shows: one that the driver lost is missing in the first."""

    name = "gpu-list"
    reads = "nvidia-smi -L; /sys/bus/pci/devices as `@pci ADDRESS DRIVER`"
    timeout_s = 15
    script = r"""
nvidia-smi -L; code=$?
for path in /sys/bus/pci/devices/*; do
  vendor=; class=
  { read -r vendor <"$path/vendor"; } 2>/dev/null
  [ "$vendor" = 0x10de ] || continue
  { read -r class <"$path/class"; } 2>/dev/null
  case $class in 0x030[02]*) driver=$(readlink "$path/driver" 2>/dev/null); printf '@pci %s %s\n' "${path##*/}" "${driver##*/}" ;; esac
done
exit $code
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> Gpus | None:
        return from_list(evidence.stdout)


@fact
class GpuErrorsFact(Fact):
    """Xid errors since boot, as far as this login may read the kernel's log. The probe takes them from the section `killed`."""

    name = "gpu-errors"
    reads = "dmesg -T or journalctl -k -b: the lines with NVRM: Xid"
    timeout_s = 10
    script = r"""
log=$(dmesg -T 2>/dev/null) || log=$(journalctl -k -b -q --no-pager 2>/dev/null | grep -v '^-- ')
[ -n "$log" ] || { echo unreadable; exit 0; }
printf '%s\n' "$log" | grep 'NVRM: Xid' | tail -n 200
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[GpuError, ...] | None:
        found = xids(evidence.stdout)
        return None if not found and evidence.stdout.startswith("unreadable\n") else found
