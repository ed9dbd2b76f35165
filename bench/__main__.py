"""`python -m bench [NAME …] [--quick]`: every benchmark prints one JSON object on standard output, progress on standard
error. Exit code 1 when a benchmark counted failures or could not run, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from bench import cancel, explain, loadgen, logs, probe, takeover, watch
from bench.measure import CannotMeasure, Figures, machine

BENCHMARKS: dict[str, tuple[str, Callable[[bool], Figures]]] = {
    "takeover": ("from kill -9 of the worker in the middle of a load to the next stored line", takeover.measured),
    "cancel": ("a cancel while no worker lives: from a worker's return until the nodes are clean", cancel.measured),
    "probe": ("what it costs to probe 1, 16 and 64 nodes, and the same by ssh, pyinfra and ansible", probe.measured),
    "watch": (
        "what watching 64 nodes costs one worker: cycle, processor, memory, with 10 that hang, and a loop of ssh",
        watch.measured,
    ),
    "logs": (
        "from a job's file to the browser: lines a second, latency, memory, and the same by other ways",
        logs.measured,
    ),
    "loadgen": (
        "the load generator against a known schedule, and its top speed beside a client of httpx",
        loadgen.measured,
    ),
    "explain": ("processor seconds and memory of explain and parse with 100 MB of anything", explain.measured),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure sparkweb; JSON on standard output.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all without")
    parser.add_argument("--quick", action="store_true", help="few nodes and runs: shows that it works, measures little")
    parser.add_argument("--list", action="store_true", help="print the names and what they measure")
    asked = parser.parse_args(arguments)
    if asked.list:
        print("\n".join(f"{name}\t{about}" for name, (about, _) in BENCHMARKS.items()))
        return 0
    unknown = [name for name in asked.names if name not in BENCHMARKS]
    if unknown:
        print(f"bench: no benchmark is named {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    codes = [_one(name, asked.quick) for name in dict.fromkeys(asked.names or BENCHMARKS)]
    return max(codes)


def _one(name: str, quick: bool) -> int:
    report: Figures = {"name": name, "quick": quick, "machine": machine()}
    try:
        report["figures"] = BENCHMARKS[name][1](quick)
    except CannotMeasure as problem:
        report["cannot_measure"] = str(problem)
    print(json.dumps(report, indent=2), flush=True)
    return 1 if "cannot_measure" in report or report["figures"].get("failures") else 0


if __name__ == "__main__":
    sys.exit(main())
