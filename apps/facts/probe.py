"""All facts of a node in one script and one round trip, and the way back from its output to a Sheet.

The output is framed by a nonce that no data can know. Noise before, between or after the frames belongs to no section;
noise within one makes its length wrong, and the section is then absent: it never enters a value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from apps.facts import boot_jobs, docker, fabric, gpu, launchers, network, processes, software, sshd, systemd
from apps.facts import disk as _disk
from apps.facts import machine as _machine
from apps.facts import memory as _memory
from apps.facts import models as _models
from apps.facts import privileges as _privileges
from apps.facts import ray as _ray
from apps.facts import serving as _serving
from apps.facts import setup as _setup
from apps.facts.fact import FACTS, Fact
from apps.facts.masking import SED
from apps.facts.sheet import Evidence, Sheet

__all__ = ["PROBE", "WATCH", "read", "script", "sheet_from"]

# Imported for their entry in the registry.
_REGISTERED = (_disk, _machine, _memory, _models, _privileges, _ray, _serving, _setup)

PROBE: tuple[str, ...] = (
    "machine",
    "memory",
    "killed",
    "memory-owners",
    "time",
    "gpu",
    "gpu-query",
    "gpu-list",
    "gpu-processes",
    "disk",
    "disk-network",
    "docker",
    "docker-info",
    "cdi",
    "containers",
    "container-details",
    "container-memory",
    "images",
    "image-details",
    "image-history",
    "units",
    "unit-files",
    "unit-details",
    "user-units",
    "boot-jobs",
    "processes",
    "launchers",
    "addresses",
    "links",
    "routes",
    "fabric",
    "fabric-tools",
    "listeners",
    "models",
    "software",
    "privileges",
    "setup",
    "sshd",
    "internet",
    "rails",
)
WATCH: tuple[str, ...] = (
    "machine",
    "memory",
    "gpu-query",
    "gpu-processes",
    "containers",
    "container-details",
    "container-events",
    "engine-api",
    "units",
    "addresses",
    "links",
    "listeners",
)

LARGEST_SECTION = 1 << 20  # bytes kept of each output of a section: a sheet is stored whole, many times
_NONCE = re.compile(r"[A-Za-z0-9]{8,64}\Z")
_KEY = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")

_HEAD = r"""
SPARKWEB_LOCALE=${LC_ALL:-${LANG:-}}; LC_ALL=C; LANG=C; TERM=dumb; PATH=$PATH:/usr/sbin:/sbin:/snap/bin
export SPARKWEB_LOCALE LC_ALL LANG TERM PATH
umask 077; work=; jobs=; watch=
for place in /dev/shm "${TMPDIR:-/tmp}" "$HOME"; do
  [ -d "$place" ] && [ -w "$place" ] && work=$(mktemp -d "$place/sparkweb.XXXXXXXX" 2>/dev/null) || continue
  head -c 4194304 /dev/zero >"$work/room" 2>/dev/null && rm "$work/room" && break
  rm -rf "$work"; work=
done
[ -n "$work" ] || { printf '\n%s failed no folder with room to write to\n' "$nonce"; exit 73; }
trap 'trap - EXIT; kill $watch $jobs 2>/dev/null; cd /; rm -rf "$work"' EXIT
trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 141' PIPE; trap 'exit 143' TERM
cd "$work" && mkfifo done && exec 9<>done || exit 73
gnu=; timeout --kill-after=1 5 true 2>/dev/null && gnu=1
setsid=; command -v setsid >/dev/null 2>&1 && setsid=setsid
limited() {
  if [ -n "$gnu" ]; then exec timeout --kill-after=2 "$2" /bin/sh -c "$3"; fi
  $setsid /bin/sh -c "$3" & job=$!
  (
    trap 'kill "$nap" 2>/dev/null; exit 0' TERM
    sleep "$2" & nap=$!; wait "$nap"; : >"$1.late"
    kill -TERM -- "-$job" 2>/dev/null || kill -TERM "$job"; sleep 1
    kill -KILL -- "-$job" 2>/dev/null || kill -KILL "$job"
  ) >/dev/null 2>&1 & guard=$!
  wait "$job"; code=$?
  [ -e "$1.late" ] && code=124
  kill -TERM "$guard" 2>/dev/null
  exit "$code"
}
section() {
  printf '\n%s %s out\n' "$nonce" "$1" >"$1.a"; printf '\n%s %s err\n' "$nonce" "$1" >"$1.b"; : >"$1.out"; : >"$1.err"
  (
    trap - EXIT HUP INT PIPE TERM
    start=; end=; { read -r start rest </proc/uptime; } 2>/dev/null
    ( ulimit -f 16384 2>/dev/null; limited "$1" "$2" "$3" ) >"$1.out" 2>"$1.err" 9>&-
    code=$?
    { read -r end rest </proc/uptime; } 2>/dev/null
    printf '%s %s %s\n' "$code" "${start:--}" "${end:--}" >"$1.new"; mv "$1.new" "$1.rc"
    echo over >&9
  ) >/dev/null 2>&1 &
  jobs="$jobs $!"; left=$((left + 1)); names="$names $1"
  eval "limit_$left=\$2"
}
left=0; names=
"""

_TAIL = r"""
(
  trap 'kill "$nap" 2>/dev/null; exit 0' TERM
  sleep "$longest" & nap=$!; wait "$nap"; echo late >&9
) >/dev/null 2>&1 & watch=$!
while [ "$left" -gt 0 ]; do
  read -r word <&9
  [ "$word" != late ] || break
  left=$((left - 1))
done
kill -TERM "$watch" 2>/dev/null; watch=; [ "$left" -gt 0 ] || jobs=
printf '\n%s begin\n' "$nonce"
files=; at=0
for name in $names; do
  at=$((at + 1)); code=; start=; end=; eval "limit=\$limit_$at"
  [ -f "$name.rc" ] && read -r code start end <"$name.rc"
  printf '%s section %s %s %s %s %s\n' "$nonce" "$name" "${code:--}" "$limit" "${start:--}" "${end:--}"
  files="$files $name.a $name.out $name.b $name.err"
done
wc -c *.out *.err | while read -r bytes file; do printf '%s size %s %s\n' "$nonce" "$file" "$bytes"; done
cat $files 2>/dev/null
printf '\n%s end\n' "$nonce"
exit 0
"""


def script(facts: Iterable[str], *, nonce: str, extra: Mapping[str, str] | None = None) -> str:
    """POSIX shell text that prints the evidence of all `facts` (names of `FACTS`), for `/bin/sh -s`.

    Sections run side by side, each under its own time limit; one that can't even be killed delays the answer by at
    most two seconds over its limit. `nonce`: 8 to 64 letters and digits, new each time. `extra` is seen by the
    sections as SPARKWEB_<KEY>: `models` (folders, one a line), `hub` (a URL that may be asked to learn whether
    there is internet), `peers` (an interface and an address of another node, one pair a line). Raises ValueError
    for a bad nonce or key, KeyError for an unknown fact.
    """
    if not _NONCE.match(nonce):
        raise ValueError("nonce: 8 to 64 letters and digits")
    for key, value in (extra or {}).items():
        if not _KEY.match(key) or "\0" in value:
            raise ValueError(f"extra: {key!r} is no name (lower case letters, digits, _), or its value holds a NUL")
    chosen = [FACTS[name] for name in dict.fromkeys(facts)]
    lines = ["{", f"nonce={nonce}"]
    lines += [
        f"SPARKWEB_{key.upper()}={shlex.quote(value)}; export SPARKWEB_{key.upper()}"
        for key, value in (extra or {}).items()
    ]
    if any("SPARKWEB_MASK" in each.script for each in chosen):
        lines.append(f"SPARKWEB_MASK={shlex.quote(SED)}; export SPARKWEB_MASK")
    lines.append(_HEAD.strip())
    lines += [f"section {each.name} {each.timeout_s} {shlex.quote(each.script.strip())}" for each in chosen]
    lines.append(f"longest={max((each.timeout_s for each in chosen), default=1) + 4}")
    lines += [_TAIL.strip(), "} </dev/null"]
    return "\n".join(lines) + "\n"


def read(nonce: str, stdout: bytes) -> dict[str, Evidence]:
    """The evidence by name of fact. Sections that are missing, cut off, or disturbed by noise are absent."""
    mark = nonce.encode()
    data = stdout
    if b"\n" + mark + b" begin\r\n" in data:  # a terminal was in between
        data = data.replace(b"\r\n", b"\n")
    start = data.rfind(b"\n" + mark + b" begin\n")
    if start < 0:
        return {}
    ended: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    bodies: dict[str, bytes] = {}
    for index, frame in enumerate(data[start:].split(b"\n" + mark + b" ")[1:]):
        head, _, body = frame.partition(b"\n")
        words = tuple(head.decode("ascii", "replace").split(" "))
        if words[0] == "section" and len(words) == 6:
            ended[words[1]] = words[2:]
        elif words[0] == "size" and len(words) == 3 and words[2].isdecimal():
            sizes[words[1]] = int(words[2])
        elif len(words) == 2 and words[1] in {"out", "err"} and index:
            bodies.setdefault(f"{words[0]}.{words[1]}", body)
    return {
        name: evidence
        for name, words in ended.items()
        if (evidence := _evidence(name, words, sizes, bodies)) is not None
    }


def _evidence(name: str, words: tuple[str, ...], sizes: dict[str, int], bodies: dict[str, bytes]) -> Evidence | None:
    code, limit, start, end = words
    out, err = bodies.get(name + ".out"), bodies.get(name + ".err")
    if out is None or err is None:
        return None
    finished = code.lstrip("-").isdecimal()
    if finished and (len(out) != sizes.get(name + ".out") or len(err) != sizes.get(name + ".err")):
        return None
    seconds = _seconds(start, end)
    late = (
        not finished
        or code == "124"
        or (code == "137" and seconds is not None and limit.isdecimal() and seconds >= int(limit))
    )
    return Evidence(
        stdout=_text(out[:LARGEST_SECTION]),
        stderr=_text(err[:LARGEST_SECTION]),
        exit_code=None if late else int(code),
        timed_out=late,
        seconds=seconds,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _seconds(start: str, end: str) -> float | None:
    try:
        return round(float(end) - float(start), 2)
    except ValueError:
        return None


class _Values:
    """Parsed values by fact. A parser that fails costs its own value only: the evidence stays."""

    def __init__(self, sections: Mapping[str, Evidence]) -> None:
        self.sections = sections

    def of(self, kind: type[Fact]) -> Any:
        evidence = self.sections.get(kind.name)
        if evidence is None or evidence.timed_out:
            return None
        return _safely(lambda: kind.parse(evidence))

    def text(self, kind: type[Fact]) -> str:
        evidence = self.sections.get(kind.name)
        return evidence.stdout if evidence is not None and not evidence.timed_out else ""


def _safely(made: Callable[[], Any]) -> Any:
    try:
        return made()
    except Exception:
        return None


def sheet_from(node: str, taken_at: float, sections: dict[str, Evidence]) -> Sheet:
    """The sheet of one probe (or of a cheaper one: what was not asked is None). Never raises."""
    values = _Values(sections)
    gpus = _safely(lambda: _gpus(values))
    containers = _safely(lambda: _containers(values, gpus))
    gpus = _safely(lambda: _with_names(gpus, containers)) or gpus
    images = _safely(lambda: _images(values))
    hcas = _safely(lambda: _hcas(values))
    launchers_found = values.of(launchers.LaunchersFact)
    return Sheet(
        node=node,
        taken_at=taken_at,
        machine=values.of(_machine.MachineFact),
        memory=values.of(_memory.MemoryFact),
        gpus=gpus,
        disks=_safely(lambda: _disks(values)),
        docker=_safely(lambda: _docker(values)),
        containers=containers,
        images=images,
        units=_safely(lambda: _units(values)),
        interfaces=_safely(lambda: _interfaces(values, hcas)),
        fabric=hcas,
        listeners=values.of(network.ListenersFact),
        models=values.of(_models.ModelsFact),
        software=_safely(lambda: _software(values, images)),
        privileges=values.of(_privileges.PrivilegesFact),
        internet=_safely(lambda: _internet(values)),
        setup=values.of(_setup.SetupFact),
        killed=values.of(_memory.KilledFact),
        processes=_safely(lambda: _processes(values, gpus, containers)),
        launchers=launchers_found[0] if launchers_found else None,
        checkouts=launchers_found[1] if launchers_found else None,
        user_units=values.of(systemd.UserUnitsFact),
        ssh_server=values.of(sshd.SshServerFact),
        time_sync=values.of(_machine.TimeFact),
        owners=values.of(_memory.OwnersFact),
        gpu_errors=_safely(lambda: _gpu_errors(values)),
        rails=values.of(network.RailsFact),
        boot_jobs=_safely(lambda: _boot_jobs(values, launchers_found)),
        apis=values.of(_serving.EngineApiFact),
        events=values.of(_serving.ContainerEventsFact),
        evidence=dict(sections),
    )


def _docker(values: _Values) -> Any:
    found = docker.server(_ended(values.sections, "docker"), _ended(values.sections, "docker-info"))
    return None if found is None else replace(found, cdi_missing=values.of(docker.CdiFact))


def _ended(sections: Mapping[str, Evidence], name: str) -> Evidence | None:
    evidence = sections.get(name)
    return None if evidence is None or evidence.timed_out else evidence


def _gpus(values: _Values) -> Any:
    return gpu.joined(
        values.of(gpu.GpuFact),
        values.of(gpu.GpuQueryFact),
        values.of(gpu.GpuProcessesFact),
        values.of(gpu.GpuListFact),
    )


def _gpu_errors(values: _Values) -> Any:
    """Asked alone, or with whom the kernel ended."""
    evidence = _ended(values.sections, "gpu-errors") or _ended(values.sections, "killed")
    return None if evidence is None else gpu.GpuErrorsFact.parse(evidence)


def _processes(values: _Values, gpus: Any, containers: Any) -> Any:
    found = values.of(processes.ProcessesFact)
    if found is None:
        return None
    owners = gpu.containers_of(values.text(gpu.GpuProcessesFact))
    return processes.joined(found, values.of(network.ListenersFact) or (), gpus, containers or (), owners)


def _containers(values: _Values, gpus: Any) -> Any:
    listed, inspected = values.of(docker.ContainersFact), values.of(docker.ContainerDetailsFact)
    if listed is None and not inspected:
        return None
    return docker.joined(
        listed or (), inspected or (), gpus.processes if gpus else (), values.of(docker.ContainerMemoryFact)
    )


def _with_names(gpus: Any, containers: Any) -> Any:
    """GPU processes know their container by id; people know it by name."""
    names = {each.id: each.name for each in containers or () if each.id}
    return gpu.named(gpus, names) if gpus else None


def _boot_jobs(values: _Values, found: Any) -> Any:
    jobs = values.of(boot_jobs.BootJobsFact)
    return None if jobs is None else boot_jobs.joined(jobs, found[0] if found else ())


def _images(values: _Values) -> Any:
    listed, inspected = values.of(docker.ImagesFact), values.of(docker.ImageDetailsFact)
    return None if listed is None and not inspected else docker.joined_images(listed or (), inspected or ())


def _disks(values: _Values) -> Any:
    local, remote = values.of(_disk.DiskFact), values.of(_disk.NetworkDiskFact)
    if local is None and not remote:
        return None
    return tuple({each.mount: each for each in (*(remote or ()), *(local or ()))}.values())


def _units(values: _Values) -> Any:
    listed, shown = values.of(systemd.UnitsFact), values.of(systemd.UnitDetailsFact)
    if listed == () or (listed is None and not (shown and shown[0])):
        return listed  # no systemd: what is installed never runs
    return systemd.joined(listed or (), values.of(systemd.UnitFilesFact) or {}, *(shown or ((), {})))


def _hcas(values: _Values) -> Any:
    first, bonus = values.of(fabric.FabricFact), values.of(fabric.FabricToolsFact)
    return None if first is None and not bonus else fabric.joined(first or (), bonus or ())


def _interfaces(values: _Values, hcas: Any) -> Any:
    known, links = values.of(network.AddressesFact), values.of(network.LinksFact)
    if known is None and not links:
        return None
    return network.joined(known or (), links or {}, hcas or (), values.text(network.RoutesFact))


def _software(values: _Values, images: Any) -> Any:
    inside = values.of(software.SoftwareFact)
    if inside is None and not images:
        return None
    running = {each.image_id for each in inside or ()}
    of_images = software.with_history(software.in_images(images or ()), values.of(software.ImageHistoryFact) or ())
    return (*(inside or ()), *(each for each in of_images if each.image_id not in running))


def _internet(values: _Values) -> bool | None:
    """What the hub answered; where it wasn't asked, no default route means no internet, and a route proves nothing."""
    asked: bool | None = values.of(network.InternetFact)
    routes = values.of(network.RoutesFact)
    if asked is not None:
        return asked
    return False if routes == () else None
