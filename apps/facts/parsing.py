"""`manage.py parse FACT [FILE]`: what the parsers make of a text that somebody pasted. Needs nothing but the text."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from apps.facts import commands, disk, docker, fabric, gpu, launchers, memory, network, probe, ray, systemd
from apps.facts.fact import FACTS
from apps.facts.masking import masked
from apps.facts.sheet import Evidence
from apps.facts.values import Gpus, Launcher

assert probe.PROBE  # importing it fills the registry

# Of a longer text, the first and the last part are read: memory stays flat whatever comes.
HEAD_BYTES = 2 * 1024 * 1024
TAIL_BYTES = 512 * 1024
MOST_INPUTS = 20_000
MOST_BYTES = 6 * 1024 * 1024  # of several inputs together
MOST_LABELS = 200
_SEPARATOR = re.compile(rb"\n---8<---[^\n]*")
_LABEL = re.compile(r"^# (?:node )?([A-Za-z0-9_-]{1,32})[ \t]*$", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")

USAGE = "usage: manage.py parse FACT [FILE] | manage.py parse --list"


def _gpu(evidence: Evidence) -> dict[str, Any]:
    return gpu.describe(
        gpu.from_table(evidence) or gpu.from_query(evidence) or gpu.from_list(evidence.stdout) or Gpus()
    )


def _query(evidence: Evidence) -> dict[str, Any]:
    return gpu.describe(
        gpu.from_query(evidence) or gpu.from_table(evidence) or gpu.from_list(evidence.stdout) or Gpus()
    )


def _memory(evidence: Evidence) -> dict[str, Any]:
    text = evidence.stdout
    found = memory.from_meminfo(text) or memory.from_free(text)
    told = memory.describe(found) if found else {}
    told |= {name: value for name, value in (disk.describe(text) or {}).items() if value not in (None, [])}
    kills = memory.killed(text)
    if kills:
        first = kills[0]
        told |= {
            "killed": {"process": first.process, "pid": first.pid} if first.process else None,
            "scope": first.scope,
            "killed_unit": next((kill.unit for kill in kills if kill.unit), None),
            "explains_exit": 137 if first.process else None,
            "kills": [dataclasses.asdict(kill) for kill in kills],
        }
    return told or {"problem": "unreadable", "evidence": text.strip()[:200]}


def _disk(evidence: Evidence) -> dict[str, Any]:
    return disk.describe(evidence.stdout) or {"disks": [], "problem": "unreadable"}


def _network(evidence: Evidence) -> dict[str, Any]:
    """`ip -j addr`, `ip addr`, `ip route`, ethtool, ibstat, ibdev2netdev, rdma link or sysfs lines, by their shape."""
    text = evidence.stdout
    speed = network.ethtool(text)
    if speed:
        return speed
    ports = fabric.hcas(text)
    known = network.addresses(text)
    told = fabric.describe(ports) if ports else {}
    if known:
        told |= network.describe(network.joined(known, {}, ports, text))
    elif network.default_interfaces(text) or network.subnet_of_two(text):
        subnet = network.subnet_of_two(text)
        told |= {"default": list(network.default_interfaces(text)), "subnet": subnet}
        told |= {"problem": "twins_same_subnet", "warn": ["same_subnet_twins"]} if subnet else {}
    return told or {"interfaces": [], "hcas": [], "problem": "no_interfaces" if not text.strip() else "unreadable"}


def _fabric(evidence: Evidence) -> dict[str, Any]:
    return fabric.describe(fabric.hcas(evidence.stdout))


def _value(name: str) -> Callable[[Evidence], dict[str, Any]]:
    """Facts without names of their own in the cases: the frozen value as it is."""

    def described(evidence: Evidence) -> dict[str, Any]:
        value = FACTS[name].parse(evidence)
        plain = _plain(value)
        return plain if dataclasses.is_dataclass(value) and isinstance(plain, dict) else {name.replace("-", "_"): plain}

    return described


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def _launchers(evidence: Evidence) -> dict[str, Any]:
    """The probe's parts, or one script or compose file as it is."""
    scripts, checkouts = launchers.found_in(evidence.stdout)
    if not (scripts or checkouts) and (starts := commands.in_script(masked(evidence.stdout))):
        scripts = (Launcher(path="", starts=starts),)
    return {"launchers": _plain(scripts), "checkouts": _plain(checkouts)}


def _container_memory(evidence: Evidence) -> dict[str, Any]:
    found = docker.ContainerMemoryFact.parse(evidence)
    return {"container_memory": {name: {"bytes": size, "swap_bytes": swap} for name, (size, swap) in found.items()}}


# Names beside those of the facts: one for each kind of question.
KINDS: dict[str, tuple[str, Callable[[Evidence], dict[str, Any]]]] = {
    "gpu": ("nvidia-smi, nvidia-smi --query-gpu=… --format=csv", _gpu),
    "gpu-query": (FACTS["gpu-query"].reads, _query),
    "memory": ("cat /proc/meminfo, free, df, dmesg -T, journalctl -t systemd-oomd", _memory),
    "killed": (FACTS["killed"].reads, _memory),
    "disk": (FACTS["disk"].reads, _disk),
    "disk-network": (FACTS["disk-network"].reads, _disk),
    "docker": (FACTS["docker"].reads, docker.describe),
    "docker-info": (FACTS["docker-info"].reads, docker.describe),
    "containers": (FACTS["containers"].reads, docker.describe),
    "container-details": (FACTS["container-details"].reads, docker.describe),
    "images": (FACTS["images"].reads, docker.describe),
    "image-details": (FACTS["image-details"].reads, docker.describe),
    "systemd": ("systemctl list-units --type=service --all --no-pager, list-unit-files, show", systemd.describe),
    "units": (FACTS["units"].reads, systemd.describe),
    "unit-files": (FACTS["unit-files"].reads, systemd.describe),
    "unit-details": (FACTS["unit-details"].reads, systemd.describe),
    "network": ("ip -j addr, ip route, ethtool IF, ibstat, ibdev2netdev, rdma link show", _network),
    "addresses": (FACTS["addresses"].reads, _network),
    "ethtool": ("ethtool IF", lambda evidence: network.ethtool(evidence.stdout) or {"mbps": None, "link": None}),
    "fabric": (FACTS["fabric"].reads, _fabric),
    "fabric-tools": (FACTS["fabric-tools"].reads, _fabric),
    "launchers": (FACTS["launchers"].reads, _launchers),
    "container-memory": (FACTS["container-memory"].reads, _container_memory),
    "ray": ("ray status", ray.describe),
}
_MERGED = {"network", "addresses", "fabric", "fabric-tools"}


def names() -> dict[str, str]:
    """Every FACT of the command and what it reads, sorted."""
    told = {name: kind.reads for name, kind in FACTS.items()} | {name: reads for name, (reads, _) in KINDS.items()}
    return dict(sorted(told.items()))


def described(name: str, evidence: Evidence) -> dict[str, Any]:
    """The JSON object of one output. Never raises for any evidence; KeyError for an unknown name."""
    reader = KINDS[name][1] if name in KINDS else _value(name)
    try:
        return reader(evidence)
    except Exception as error:  # a parser's own fault: the text is the user's, the page must still answer
        return {"problem": "internal", "evidence": f"{type(error).__name__}: {error}"[:300]}


def parsed(name: str, text: str) -> Any:
    """One pasted text: an output, an envelope `{"command", "rc", "stdout", "stderr"}` of one, or several with labels.

    Lines such as `# node A` give an object by label, `# 1`, `# 2` … an array, an array of envelopes an array;
    envelopes of different commands on one node are one answer for the network facts.
    """
    text = _ANSI.sub("", text.replace("\r\n", "\n")) if "\x1b" in text or "\r" in text else text
    envelopes = _envelopes(text)
    if envelopes is not None:
        evidences = [_opened(each) for each in envelopes]
        commands = {str(each.get("command")) for each in envelopes}
        if name in _MERGED and len(commands) == len(envelopes) and not any("node" in each for each in envelopes):
            return described(
                name,
                Evidence("\n".join(each.stdout for each in evidences), "\n".join(each.stderr for each in evidences)),
            )
        answers = [described(name, each) for each in evidences]
        return answers if _is_array(text) else answers[0]
    labels = list(islice(_LABEL.finditer(text), MOST_LABELS)) if text.lstrip("\n").startswith("# ") else []
    if labels and not text[: labels[0].start()].strip():
        ends = [label.start() for label in labels[1:]] + [len(text)]
        answers = [
            described(name, Evidence(text[label.end() : end].lstrip("\n")))
            for label, end in zip(labels, ends, strict=True)
        ]
        marks = [label.group(1) for label in labels]
        return answers if all(mark.isdecimal() for mark in marks) else dict(zip(marks, answers, strict=True))
    return described(name, Evidence(text))


def _is_array(text: str) -> bool:
    return text.lstrip().startswith("[")


def _envelopes(text: str) -> list[dict[str, Any]] | None:
    start = text.lstrip()[:1]
    if start not in {"{", "["} or '"stdout"' not in text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    several = value if isinstance(value, list) else [value]
    fits = bool(several) and all(isinstance(each, dict) and isinstance(each.get("stdout"), str) for each in several)
    return several if fits else None


_ASKED = re.compile(r"--query-(?:gpu|compute-apps)[= ]['\"]?(?P<columns>[a-z_][a-z0-9_.,]{0,2000})")


def _with_header(command: str, printed: str) -> str:
    """The rows of a query that was asked to print no header: its columns stand in the command."""
    asked = _ASKED.search(command)
    if asked is None or "noheader" not in command:
        return printed
    return ", ".join(asked["columns"].strip(",").split(",")) + "\n" + printed


def _opened(envelope: dict[str, Any]) -> Evidence:
    code, errors = envelope.get("rc", envelope.get("exit_code")), envelope.get("stderr")
    return Evidence(
        stdout=_with_header(str(envelope.get("command", "")), envelope["stdout"]),
        stderr=errors if isinstance(errors, str) else "",
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
    )


class _Piece:
    """One input as it comes: the first HEAD_BYTES and the last TAIL_BYTES are kept."""

    def __init__(self) -> None:
        self.head, self.tail, self.size = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        room = max(0, HEAD_BYTES - len(self.head))
        self.head += data[:room]
        self.tail += data[room:]
        self.size += len(data)
        if len(self.tail) > 2 * TAIL_BYTES:
            del self.tail[:-TAIL_BYTES]

    @property
    def cut(self) -> bool:
        return self.size > HEAD_BYTES + TAIL_BYTES

    def text(self) -> str:
        data = bytes(self.head) + (b"\n" if self.cut else b"") + bytes(self.tail[-TAIL_BYTES:])
        return data.removeprefix(b"\n").removesuffix(b"\r").decode("utf-8", "replace").replace("\0", "\ufffd")


def pieces(source: IO[bytes]) -> Iterator[_Piece]:
    """The inputs between `---8<---` lines, whatever the size of the blocks in which they come."""
    piece, pending = _Piece(), b"\n"
    while True:
        block = source.read(262144)
        data = pending + block
        # A separator may straddle two blocks: the last line waits, unless it is too long to be one.
        cut = data.rfind(b"\n") if block else len(data)
        if cut < 0 or len(data) - cut > 4096:
            cut = len(data)
        ready, pending, at = data[:cut], data[cut:], 0
        for mark in _SEPARATOR.finditer(ready):
            piece.add(ready[at : mark.start()])
            yield piece
            piece, at = _Piece(), mark.end()
        piece.add(ready[at:])
        if not block:
            yield piece
            return


def write(name: str, source: IO[bytes], stdout: IO[str]) -> None:
    """Print the object of one input, or the array of several, each as soon as it is known.

    A text that begins with a separator has no input before it.
    """
    told = _all_told(name, source)
    first, second = next(told), next(told, None)
    if second is None:
        stdout.write((first or _json(parsed(name, ""))) + "\n")
        return
    stdout.write("[" + (first + ",\n" if first else "") + (second or "null"))
    for each in told:
        stdout.write(",\n" + (each or "null"))
    stdout.write("]\n")


def _all_told(name: str, source: IO[bytes]) -> Iterator[str]:
    """The JSON texts of the inputs; a last one says so where not all were read."""
    read = 0
    for count, piece in enumerate(pieces(source)):
        if count >= MOST_INPUTS or read >= MOST_BYTES:
            evidence = f"only the first {count} were read: at most {MOST_INPUTS}, and {MOST_BYTES >> 20} MiB together"
            yield _json({"problem": "too_many_inputs", "evidence": evidence})
            return
        read += min(piece.size, HEAD_BYTES + TAIL_BYTES)
        yield _told(name, piece)


def _told(name: str, piece: _Piece) -> str:
    """The JSON text of one input; empty for an input without a word."""
    text = piece.text()
    if not text.strip():
        return ""
    value = parsed(name, text)
    if piece.cut and isinstance(value, dict):
        value["truncated"] = True
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, default=str)


def main(argv: list[str], stdin: IO[bytes], stdout: IO[str], stderr: IO[str] | None = None) -> int:
    """`argv` is what follows `parse`. 0 on any bytes, 2 for an unknown FACT or an unreadable FILE."""
    errors = stderr or sys.stderr
    if argv == ["--list"]:
        stdout.write("".join(f"{name}\t{reads}\n" for name, reads in names().items()))
        return 0
    if argv in (["--help"], ["-h"]):
        stdout.write(USAGE + "\n")
        return 0
    if not 1 <= len(argv) <= 2 or argv[0].startswith("-"):
        errors.write(USAGE + "\n")
        return 2
    if argv[0] not in names():
        errors.write(f"FACT {argv[0]!r} is unknown; `manage.py parse --list` names them all\n")
        return 2
    if len(argv) == 1 or argv[1] == "-":
        write(argv[0], stdin, stdout)
        return 0
    try:
        with Path(argv[1]).open("rb") as source:
            write(argv[0], source, stdout)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        errors.write(f"FILE {argv[1]!r} can't be read: {why}; name a file that exists and may be read\n")
        return 2
    return 0
