# ruff: noqa: E501 (texts of real tools stay on one line)
"""Processes of inference stacks, in containers or not: whose they are, what they run, what would bring them back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from apps.facts.commands import asked_for, engine_of
from apps.facts.fact import Fact, fact
from apps.facts.masking import masked
from apps.facts.quantities import size
from apps.facts.sheet import Evidence
from apps.facts.values import Container, EngineProcess, Gpus, Listener

MOST = 200
_PID = re.compile(r"\d{1,10}\Z")
_DAYS = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,2}):)?(\d{1,2}):(\d{2})\Z")
_CONTAINER = re.compile(r"(?:docker|libpod|crio|cri-containerd)[-/]([0-9a-f]{64})")
_UNIT = re.compile(r"/([^/\s]+\.service)(?=/|\s|$)")
# Columns that hold what we look for, by the names of procps, busybox and BSD style.
_COLUMNS = {
    "PID": "pid",
    "PPID": "parent",
    "USER": "user",
    "UID": "user",
    "ELAPSED": "age",
    "RSS": "rss",
    "COMMAND": "command",
    "CMD": "command",
    "ARGS": "command",
}


def listed(text: str) -> tuple[EngineProcess, ...]:
    """`ps` with a header, in the forms `-eo pid,ppid,user,etimes,rss,args`, `-ef`, `aux` and busybox's; then `@of PID<TAB>key<TAB>value`
    lines (cgroup, folder, venv, run) and `@now SECONDS`."""
    header: list[str] = []
    now: float | None = None
    found: dict[int, EngineProcess] = {}
    ages: dict[int, int] = {}
    about: dict[int, dict[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("@now "):
            now = float(line[5:]) if _PID.match(line[5:].strip()) else None
        elif line.startswith("@of "):
            pid, _, rest = line[4:].partition("\t")
            key, _, value = rest.partition("\t")
            if _PID.match(pid):
                about.setdefault(int(pid), {}).setdefault(key, value.strip())
        elif {"PID"} <= set(line.split()) and set(line.split()) & {"COMMAND", "CMD", "ARGS"}:
            header = line.split()
        elif header and len(found) < MOST:
            row = dict(
                zip((_COLUMNS.get(name, name) for name in header), line.split(None, len(header) - 1), strict=False)
            )
            process = _process(row)
            if process is not None:
                found[process.pid] = process
                age = _seconds(row.get("age", ""))
                if age is not None:
                    ages[process.pid] = age
    return tuple(
        _placed(each, about.get(pid, {}), None if now is None or pid not in ages else now - ages[pid])
        for pid, each in found.items()
    )


def _process(row: Mapping[str, str]) -> EngineProcess | None:
    command, pid = row.get("command", "").strip().lstrip("\\_| "), row.get("pid", "")
    if not _PID.match(pid):
        return None
    words = words_of(command)
    if engine_of(words) is None:
        return None
    parent, rss = row.get("parent", ""), row.get("rss", "")
    return EngineProcess(
        pid=int(pid),
        starts=asked_for(words),
        parent=int(parent) if _PID.match(parent) else None,
        user=row.get("user"),
        command=masked(command)[:4000],
        resident_bytes=int(rss) * 1024 if rss.isascii() and rss.isdecimal() and len(rss) < 16 else size(rss),
    )


def words_of(command: str) -> list[str]:
    """The words of a command line as `ps` prints it: blanks within a word are lost there, quotes are its own."""
    try:
        return shlex.split(command) if len(command) < 16384 and ("'" in command or '"' in command) else command.split()
    except ValueError:
        return command.split()


def _seconds(text: str) -> int | None:
    """`etimes` (seconds) or `etime` ([[DD-]HH:]MM:SS)."""
    if _PID.match(text):
        return int(text)
    found = _DAYS.match(text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _placed(process: EngineProcess, about: Mapping[str, str], started: float | None) -> EngineProcess:
    path = about.get("cgroup", "")
    container, units = _CONTAINER.search(path), [name for name in _UNIT.findall(path) if not name.startswith("user@")]
    return replace(
        process,
        started_unix_s=started,
        venv=about.get("venv") or _venv(process.command or ""),
        folder=about.get("folder") or None,
        run=about["run"] if _PID.match(about.get("run", "")) else None,
        container=container.group(1) if container else None,
        unit=units[-1] if units and not container else None,
    )


_VENV = re.compile(r"^(/\S+?)/bin/python[\d.]*(?:\s|$)")


def _venv(command: str) -> str | None:
    """By the interpreter's path; the system's own is none."""
    found = _VENV.match(command)
    root = found.group(1) if found else None
    return None if root in {None, "/usr", "/usr/local", "/bin", "/opt/bin"} else root


def joined(
    processes: Iterable[EngineProcess],
    listeners: Iterable[Listener],
    gpus: Gpus | None,
    containers: Sequence[Container],
    owners: Mapping[int, str],
) -> tuple[EngineProcess, ...]:
    """With the ports on which they listen, their GPU memory and their container's name.

    Where the cgroup does not tell the container: `owners` (container ids by pid), else the container whose first process
    it is, else its parent's.
    """
    ports: dict[int, list[int]] = {}
    for listener in listeners:
        if listener.pid is not None:
            ports.setdefault(listener.pid, []).append(listener.port)
    mib: dict[int, int] = {}
    for one in gpus.processes if gpus else ():
        if one.mib is not None:  # one process may hold memory on several GPUs
            mib[one.pid] = mib.get(one.pid, 0) + one.mib
    names = {box.id: box.name for box in containers if box.id}
    places = {box.pid: box.name for box in containers if box.pid is not None}
    places |= {pid: names.get(identity, identity) for pid, identity in owners.items()}
    places |= {one.pid: one.container for one in (gpus.processes if gpus else ()) if one.container}
    found = []
    for each in sorted(processes, key=lambda one: one.pid):  # a parent is older than its children, nearly always
        inside = names.get(each.container, each.container) if each.container else places.get(each.pid)
        inside = inside or (places.get(each.parent) if each.parent is not None else None)
        if inside:
            places[each.pid] = inside
        found.append(
            replace(
                each,
                ports=tuple(sorted(set(ports.get(each.pid, ())))),
                gpu_bytes=mib[each.pid] << 20 if each.pid in mib else None,
                container=inside,
                unit=None if inside else each.unit,
            )
        )
    return tuple(found)


@fact
class ProcessesFact(Fact):
    """vLLM, SGLang, llama-server, Ray, torchrun and the like, with cgroup, folder and virtual environment of each."""

    name = "processes"
    reads = "ps -ww -eo pid,ppid,user:32,etimes,rss,args (or ps -ef, ps aux); /proc/PID/cgroup, cwd, environ (VIRTUAL_ENV and SPARKWEB_RUN alone)"
    timeout_s = 8
    script = r"""
printf '@now %s\n' "$(date +%s)"
rows=$({ ps -ww -eo pid,ppid,user:32,etimes,rss,args 2>/dev/null || ps -o pid,ppid,user,etime,rss,args 2>/dev/null || ps -ef; } | awk '
  NR == 1 { print; next }
  ($1 ~ /^[0-9]+$/ || $2 ~ /^[0-9]+$/) && tolower($0) ~ /vllm|sglang|llama|(^|[ \/])ray|gcs_server|torchrun|torch\.distributed|trtllm|tensorrt_llm|triton|text-generation|lmdeploy|mlc_llm|aphrodite|litellm|koboldcpp|local-ai|infinity_emb|tabby|fastchat/ {
    base = $6; sub(/.*\//, "", base)
    if (base !~ /^(sh|bash|dash|timeout|awk|gawk|mawk|grep|sed|find|docker|ssh|sshd:|tail|less|cat|vi|vim|nano|tmux.*|screen|sudo|man)$/ && seen++ < 200) print
  }' | sed -e "$SPARKWEB_MASK")
printf '%s\n' "$rows" | cut -c 1-4096
set --
for pid in $(printf '%s\n' "$rows" | awk 'NR > 1 { print ($1 ~ /^[0-9]+$/) ? $1 : $2 }' | head -n 64); do
  { while read -r line; do printf '@of %s\tcgroup\t%s\n' "$pid" "$line"; done <"/proc/$pid/cgroup"; } 2>/dev/null
  [ -r "/proc/$pid/environ" ] || continue
  set -- "$@" "/proc/$pid/environ"
  folder=$(readlink "/proc/$pid/cwd" 2>/dev/null) && printf '@of %s\tfolder\t%s\n' "$pid" "$folder"
done
[ $# = 0 ] || grep -saHzE '^(VIRTUAL_ENV|SPARKWEB_RUN)=' "$@" /dev/null 2>/dev/null | tr '\000' '\n' |
  sed -n -e 's|^/proc/\([0-9]*\)/environ:VIRTUAL_ENV=|@of \1	venv	|p' -e 's|^/proc/\([0-9]*\)/environ:SPARKWEB_RUN=|@of \1	run	|p'
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[EngineProcess, ...] | None:
        found = listed(evidence.stdout)
        return found if found or re.search(r"\bPID\b", evidence.stdout) else None
