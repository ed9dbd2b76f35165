# ruff: noqa: E501 (shapes of real tools stay on one line)
"""Which command printed a pasted text, by its shape; None where it looks like no command whose output is a fact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from apps.facts import parsing
from apps.facts.docker import objects, text_of
from apps.facts.probe import sheet_from
from apps.facts.sheet import Evidence, Sheet

LOOKED_AT = 256 * 1024  # characters in which the shape must show
PARSED = 2 * 1024 * 1024
MOST_NODES = 64
_NODE = re.compile(r"^# (?:node )?([A-Za-z0-9_-]{1,32})[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Recognised:
    """`fact`: a name of `manage.py parse`; `reads`: the command; `value`: what its parser says."""

    fact: str
    reads: str
    value: Any
    sheets: tuple[Sheet, ...] = ()  # the same as facts of nodes of which nothing else is known


# fact, section of the probe, shape: the most telling first
_SHAPES: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (fact, section, re.compile(pattern, re.MULTILINE))
    for fact, section, pattern in (
        ("gpu", "gpu", r"^\|\s*NVIDIA-SMI\s|^NVIDIA-SMI has failed|Failed to initialize NVML|nvidia-smi['\"]?: (?:command )?not found"),
        ("gpu-query", "gpu-query", r"^(?:index|name|uuid|gpu_name|driver_version)(?:, [a-z_][a-z0-9_.]*(?: \[[^\]\n]+\])?){1,30}\r?$"),
        ("gpu-query", "gpu-query", r"^\d{1,3}, (?:NVIDIA|Tesla|Quadro|GeForce)[^,\n]{0,60}(?:, [^,\n]{1,80}){3,14}\r?$"),
        ("gpu-list", "gpu-list", r"^GPU \d{1,3}: .{1,200} \(UUID: \S+\)"),
        ("sshd", "sshd", r"^maxsessions \d+\s*$|^maxstartups \d+:\d+:\d+\s*$"),
        ("time", "time", r"^\s*(?:System clock|NTP) synchronized: (?:yes|no)|^NTPSynchronized=|^System time\s+: [0-9.]+ seconds (?:fast|slow) of NTP"),
        ("rails", "", r"^PING \S+ .{0,120} \d{4,5}\(\d{4,5}\) bytes of data"),
        ("processes", "", r"^ *(?:USER|UID|PID) .*\b(?:COMMAND|CMD)\s*$"),
        ("killed", "killed", r"oom-kill:constraint=|Out of memory: Kill|systemd-oomd(?:\[\d+\])?: Killed"),
        ("ray", "", r"^=+ Autoscaler status: |^Node status\r?\n-{10,}"),
        ("units", "units", r"^\s*UNIT\s+LOAD\s+ACTIVE\s+SUB\b|^\s*(?:[●*] )?\S{1,200}\.service\s+(?:loaded|not-found|masked|error|bad-setting)\s+\w+\s+\w+"),
        ("unit-files", "unit-files", r"^UNIT FILE\s+STATE\b|^\S{1,200}\.service\s+(?:enabled|disabled|static|masked)\b"),
        ("unit-details", "unit-details", r"^(?:Id=\S+\.service|ExecStart=\{ path=|UnitFileState=)"),
        ("systemd", "units", r"System has not been booted with systemd|Failed to connect to bus"),
        ("ethtool", "", r"^Settings for \S+:|^\s*Link detected: (?:yes|no)"),
        ("fabric-tools", "fabric-tools", r"^\S+ port \d+ ==> \S+ \(\w+\)|^CA '[^'\n]+'|^(?:\d+: )?link \S+/\d+ state "),
        ("fabric", "fabric", r"^@port \S+ \d+\t|^\S+[ \t]+\d: [A-Z]+[ \t]+\d: \w+[ \t]+[\d.]+ Gb/sec"),
        ("listeners", "listeners", r"^LISTEN\s+\d+\s+\d+\s+\S+:\d+|^tcp6?\s+\d+\s+\d+\s+\S+:\d+\s+\S+\s+LISTEN"),
        ("network", "addresses", r"^\d+: [^\s:]+: <[A-Z_,0-9-]+> mtu \d+|^\d+: \S+\s+inet6? |\"ifname\"\s*:"),
        ("network", "routes", r"^default (?:via \S+ )?dev \S+|^default via "),
        ("memory", "memory", r"^MemTotal:\s+\d+ kB|^(?:\s+total\s+used\s+free|[^\s:：][^:：\n]{1,40}[:：](?:\s+[0-9][0-9.,]*[KMGTPE]?i?B?){6}\s*$)"),
        ("disk", "disk", r"^\S.*\s\d+%\s+/\S*\s*$|^[0-9][0-9.,]*[KMGTPE]?\t/"),
        ("docker", "", r"^CONTAINER ID\s{2,}IMAGE\b|^REPOSITORY\s{2,}TAG\b|^IMAGE\s{2,}ID\s{2,}DISK USAGE\b"),
        ("docker", "docker", r"(?:permission denied|Cannot connect|failed to connect)[^\n]{0,200}docker|unsatisfied condition: cuda|docker['\"]?: (?:command )?not found"),
    )
)  # fmt: skip


def recognised(text: str) -> Recognised | None:
    """Never raises for any text."""
    start = text[:LOOKED_AT]
    found = _of_docker(start) or next(((fact, part) for fact, part, shape in _SHAPES if shape.search(start)), None)
    if found is None:
        return None
    fact, section = found
    value = parsing.parsed(fact, text[:PARSED])
    if _says_nothing(value):
        return None
    return Recognised(fact, parsing.names()[fact], value, _sheets(section, text[:PARSED]))


def _says_nothing(value: Any) -> bool:
    return isinstance(value, dict) and value.get("problem") in ("unreadable", "internal")


def _of_docker(text: str) -> tuple[str, str] | None:
    """Docker's JSON has the same braces everywhere: the names in its first object tell what it lists."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        first: dict[str, Any] = next(objects(text), {})
    except RecursionError:
        return None
    if "ServerVersion" in first or "DockerRootDir" in first:
        return "docker-info", "docker-info"
    if isinstance(first.get("State"), dict) and "HostConfig" in first:
        return "container-details", "container-details"
    if "RootFS" in first or ("RepoTags" in first and "Architecture" in first):
        return "image-details", "image-details"
    if text_of(first.get("Names")) and "Image" in first:
        return "containers", "containers"
    return ("images", "images") if "Repository" in first and "Tag" in first else None


def _sheets(section: str, text: str) -> tuple[Sheet, ...]:
    """One a node, where lines of `# node NAME` tell them apart; none for envelopes and lists of outputs."""
    if not section or '"stdout"' in text or "---8<---" in text:
        return ()
    text = text.replace("\r\n", "\n")
    parts = _NODE.split(text) if text.lstrip("\n").startswith("# ") else ["", "this node", text]
    return tuple(
        sheet_from(name, 0.0, {section: Evidence(part, exit_code=0)})
        for name, part in list(zip(parts[1::2], parts[2::2], strict=True))[:MOST_NODES]
    )
