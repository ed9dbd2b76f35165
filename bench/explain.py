"""What `manage.py explain` and `parse` cost with 100 MB of anything: processor seconds and memory of the one process.

Inputs are the handed cases, repeated until they are that large (the same lines again and again), and logs of eighteen kinds in
which no two lines are the same; in most of them nearly every line means something.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from bench.explain_logs import FAMILIES
from bench.measure import CannotMeasure, Figures, say

WHOLE, QUICK = 100_000_000, 4_000_000  # bytes of an input
REACH_S = 10.0
_ROOT = Path(__file__).resolve().parent.parent
_CASES = _ROOT / "tests" / "cases"
_SEPARATOR = b"\n---8<---\n"


def measured(quick: bool) -> Figures:
    """`quick`: inputs of 4 MB instead of 100."""
    cases = _cases()
    if not cases:
        raise CannotMeasure(f"no case is in {_CASES}; run it from a checkout that has tests/cases")
    size = QUICK if quick else WHOLE
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "input"
        explained = [_of_case(path, name, text, size) for name, text in cases.items()]
        different = [_of_family(path, name, size) for name in FAMILIES]
        parsed = [_of_fact(path, name, cases, size) for name in _facts()]
    return {
        "input_bytes": size,
        "reach_cpu_s": REACH_S,
        "explain_cases": sorted(explained, key=lambda one: -one["cpu_s"]),
        "explain_all_different": different,
        "parse": sorted(parsed, key=lambda one: -max(one["one_input_cpu_s"], one["many_inputs_cpu_s"])),
        "over_reach": [
            one.get("case") or one.get("family") for one in (*explained, *different) if one["cpu_s"] > REACH_S
        ],
        "failures": sum(one["exit_code"] != 0 for one in (*explained, *different, *parsed)),
    }


def _cases() -> dict[str, bytes]:
    found = {path.parent.name: path.read_bytes() for path in sorted(_CASES.glob("*/input.*"))}
    return {name: text for name, text in found.items() if text.strip()}


def _facts() -> list[str]:
    listed = subprocess.run(_command("parse", "--list"), capture_output=True, text=True, check=True, cwd=_ROOT).stdout
    return [line.split("\t")[0] for line in listed.splitlines()]


def _of_case(path: Path, name: str, text: bytes, size: int) -> Figures:
    lines = _write_again_and_again(path, text, size)
    return {"case": name, "lines": lines, **_cost("explain", str(path), name=name)}


def _of_family(path: Path, name: str, size: int) -> Figures:
    lines = _write(path, (FAMILIES[name](number).encode() for number in count()), size)
    return {"family": name, "lines": lines, **_cost("explain", str(path), name=name)}


def _of_fact(path: Path, name: str, cases: dict[str, bytes], size: int) -> Figures:
    """All cases one after another: as one input, and as many between separators."""
    _write_again_and_again(path, b"\n".join(cases.values()), size)
    one = _cost("parse", name, str(path), name=f"{name}, one input")
    _write_again_and_again(path, _SEPARATOR.join(cases.values()) + _SEPARATOR, size)
    many = _cost("parse", name, str(path), name=f"{name}, many inputs")
    return {
        "fact": name,
        "one_input_cpu_s": one["cpu_s"],
        "many_inputs_cpu_s": many["cpu_s"],
        "peak_rss_mib": max(one["peak_rss_mib"], many["peak_rss_mib"]),
        "exit_code": one["exit_code"] or many["exit_code"],
    }


def _write_again_and_again(path: Path, text: bytes, size: int) -> int:
    if not text.endswith(b"\n"):
        text += b"\n"
    block = text * (1_000_000 // len(text) + 1)
    return _write(path, iter(lambda: block, b""), size)


def _write(path: Path, parts: Iterator[bytes], size: int) -> int:
    """How many line ends were written."""
    written = lines = 0
    with path.open("wb") as stream:
        for part in parts:
            written += stream.write(part)
            lines += part.count(b"\n") + part.count(b"\r") - part.count(b"\r\n")
            if written >= size:
                return lines
    return lines


def _command(*words: str) -> list[str]:
    return [sys.executable, str(_ROOT / "manage.py"), *words]


def _cost(*words: str, name: str) -> Figures:
    """Of a process of its own: user and system time, and resident memory at its largest."""
    process = subprocess.Popen(_command(*words), stdout=subprocess.DEVNULL, cwd=_ROOT)
    peak = 0  # what the system says of a process that has ended counts the memory of the one that started it
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        peak = max(peak, _peak_kib(process.pid))
        time.sleep(0.05)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = used.ru_utime + used.ru_stime
    say(f"{words[0]} {name}: {seconds:.1f} s of processor time, {peak // 1024} MiB")
    return {"cpu_s": round(seconds, 2), "peak_rss_mib": peak // 1024, "exit_code": process.returncode}


def _peak_kib(pid: int) -> int:
    """The most resident memory of a process since it began its program; 0 once that has ended."""
    try:
        rows = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows.splitlines() if row.startswith("VmHWM:")), 0)
