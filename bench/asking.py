"""The product's own way to probe many nodes, in a process of its own, so that processor time and memory are ours alone.

    python -m bench.asking

The first line of standard input is {"private_key", "nodes": [{"name", "address", "port", "user", "host_keys"}]}; each
line after it is {"do": "cold" | "warm", "work": "probe" | "line"} and is answered with one line of JSON. `cold` opens a
new pool; `warm` asks through the connections that are there. As in apps/runs/executor.py: a thread a node from a pool of
threads, Pool.get, run, read, sheet_from.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import Any

from apps.facts import probe
from apps.remote.pool import Pool
from apps.remote.transport import Endpoint

TIMEOUT_S = 60.0  # as the executor's
LINE = "echo here"


class Asking:
    """One set of nodes, its warm connections and the threads that ask."""

    def __init__(self, private_key: str, nodes: list[dict[str, Any]]) -> None:
        self.endpoints = [
            Endpoint(
                **{**node, "host_keys": tuple((kind, text) for kind, text in node["host_keys"])},
                private_key=private_key,
            )
            for node in nodes
        ]
        self.pool = Pool()
        self.late: list[str] = []  # sections that their own limit on the node ended: a node's slowness, no failure
        self.threads = ThreadPoolExecutor(max_workers=max(4, min(64, 2 * len(nodes))))  # as the executor's

    def ask(self, do: str, work: str) -> dict[str, Any]:
        """All nodes once: wall seconds, our processor seconds, peak memory so far, and what went wrong."""
        if do == "cold":
            self.pool.close()
            self.pool = Pool()
        act = self.probe if work == "probe" else self.line
        self.late = []
        cpu, started = _cpu(), time.monotonic()
        failures = [text for text in self.threads.map(act, self.endpoints) if text]
        wall, cpu = time.monotonic() - started, _cpu() - cpu
        told = {"wall_s": wall, "cpu_s": cpu, "peak_rss_mib": _peak_mib(), "failures": failures}
        return {**told, "late_sections": len(self.late)}

    def probe(self, endpoint: Endpoint) -> str:
        """One node as the executor asks it; the failure in words, empty when its sheet has values."""
        nonce, taken_at = token_hex(12), time.time()
        try:
            text = probe.script(probe.PROBE, nonce=nonce, extra={"models": ""})
            result = self.pool.get(endpoint).run(text, timeout_s=TIMEOUT_S)
        except Exception as error:  # every failure counts, whatever it is
            return f"{type(error).__name__}: {error}"
        sheet = probe.sheet_from(endpoint.name, taken_at, probe.read(nonce, result.stdout))
        late = [name for name, evidence in sheet.evidence.items() if evidence.timed_out]
        self.late += late
        missing = set(probe.PROBE) - set(sheet.evidence)
        if sheet.machine is None and "machine" not in late:
            missing.add("a machine")
        return f"{endpoint.name}: a sheet without {', '.join(sorted(missing))}" if missing else ""

    def line(self, endpoint: Endpoint) -> str:
        """One node with a script that does nothing: what a round trip alone costs."""
        try:
            result = self.pool.get(endpoint).run(LINE, timeout_s=TIMEOUT_S)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "" if result.exit_code == 0 else f"{endpoint.name}: exit code {result.exit_code}"


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    asking = Asking(asked["private_key"], asked["nodes"])
    print(json.dumps({"idle_rss_mib": _peak_mib(), "start_cpu_s": _cpu()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(asking.ask(**json.loads(line))), flush=True)
    asking.pool.close()


if __name__ == "__main__":
    main()
