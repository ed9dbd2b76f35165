"""Benchmark `probe`: what probing many nodes costs us, and how long others take for the same.

Two parts. `replayed`: 1, 16 and 64 nodes that answer at once with a recording, so that what remains is our own cost.
`compared`: 16 nodes that are one OpenSSH server under 16 loopback addresses and run the real script; we, a loop of ssh,
pyinfra and ansible take turns, so that all of them meet the same load of the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import others
from bench.measure import CannotMeasure, Figures, cpu_of, load, say, seconds
from tests.openssh import make_key

COUNTS = (1, 16, 64)
USER = "spark"
BASE = Path(__file__).resolve().parent.parent


def measured(quick: bool = False) -> Figures:
    """Both parts. Raises CannotMeasure where ssh-keygen is missing."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        try:
            private_key = make_key(folder / "user")
        except FileNotFoundError:
            raise CannotMeasure("ssh-keygen is missing: apt-get install openssh-client") from None
        public_key = (folder / "user.pub").read_text()
        counts, runs = ((1, 2), 2) if quick else (COUNTS, 7)
        replayed = [of_replayed(count, runs, private_key, public_key) for count in counts]
        compared = others.compared(folder, nodes=2 if quick else 16, runs=1 if quick else 3, only_ssh=quick)
    failures = sum(each["failures"] for each in replayed) + compared.get("failures", 0)
    return {"failures": failures, "replayed": replayed, "compared": compared}


def of_replayed(count: int, runs: int, private_key: str, public_key: str) -> Figures:
    """`runs` cold and warm probes of `count` replaying nodes."""
    say(f"{count} replaying nodes, {runs} runs")
    began = load()
    with ExitStack() as held:
        servers, told = held.enter_context(replaying(count, public_key))
        nodes = [
            {"name": f"node-{n}", "address": "127.0.0.1", "port": port, "user": USER, "host_keys": [told["host_key"]]}
            for n, port in enumerate(told["ports"])
        ]
        ours = held.enter_context(asking(private_key, nodes))
        answers: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
        server_cpu = cpu_of(servers.pid)
        for _ in range(runs):
            for do, kept in answers.items():
                kept.append(ours.ask(do))
        server_cpu = cpu_of(servers.pid) - server_cpu
    failures = [text for kept in answers.values() for answer in kept for text in answer["failures"]]
    return {
        "nodes": count,
        "load_average_before": began,
        **{do: _told(kept, count) for do, kept in answers.items()},
        "servers_cpu_s_per_run": round(server_cpu / (2 * runs), 3),
        "idle_rss_mib": round(ours.greeting["idle_rss_mib"], 1),
        "peak_rss_mib": round(max(answer["peak_rss_mib"] for kept in answers.values() for answer in kept), 1),
        "failures": len(failures),
        "failed": failures[:5],
    }


def _told(answers: Sequence[dict[str, Any]], count: int) -> Figures:
    cpu = sorted(answer["cpu_s"] for answer in answers)[len(answers) // 2]
    return {**seconds([answer["wall_s"] for answer in answers]), "our_cpu_ms_per_node": round(1000 * cpu / count, 2)}


class Ours:
    """A running bench.asking."""

    def __init__(self, process: subprocess.Popen[str], setup: dict[str, Any]) -> None:
        self._process = process
        self.greeting = self._told(setup)

    def ask(self, do: str, work: str = "probe") -> dict[str, Any]:
        return self._told({"do": do, "work": work})

    def _told(self, said: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise CannotMeasure("the asking process ended; its words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def asking(private_key: str, nodes: Sequence[dict[str, Any]]) -> Iterator[Ours]:
    """The product's probing in a process of its own, until the `with` ends."""
    with _process("bench.asking") as process:
        yield Ours(process, {"private_key": private_key, "nodes": list(nodes)})


@contextmanager
def replaying(count: int, public_key: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`count` replaying servers; the process, and its ports and host key. `more`: further words of bench.replay."""
    with _process("bench.replay", str(count), *more) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(public_key.strip() + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise CannotMeasure("the replaying servers did not start; their words are above")
        yield process, json.loads(line)


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m module`, ended by the end of its input."""
    words = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(words, cwd=BASE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
