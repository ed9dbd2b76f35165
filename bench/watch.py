"""Benchmark `watch`: what it costs one worker to watch 64 nodes, also while 10 of them hang, and what a person would do without us.

The nodes are SSH servers in another process that answer every look at once with a recording: the sections that the watch asks for, of
the recorded probe, and an engine's API. Cycles are played one after another without the pause that beat makes between them, so that
memory over many cycles is seen within minutes; the share of a core is the processor time of a cycle over the period.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from apps.facts import probe as facts
from apps.facts.sheet import Evidence
from bench.logs import _redis
from bench.measure import CannotMeasure, Figures, load, say, seconds, spread
from bench.probe import BASE, USER, replaying
from bench.replay import ANSWER, NONCE
from tests.openssh import make_key

NODES, HANGING, CYCLES = 64, 10, 40
PERIOD_S = 20.0
PORT = 30000
REACH = {"cycle_p95_s": 5.0, "share_of_a_core": 0.15}
API = (
    f"@api {PORT} health=200 metrics=200 models=200 by=curl\n"
    f'@metric {PORT} vllm:num_requests_running{{engine="0"}} 0.0\n'
    f'@metric {PORT} vllm:generation_tokens_total{{engine="0"}} 1234.0\n'
)


def measured(quick: bool = False) -> Figures:
    """Raises CannotMeasure where ssh-keygen or Redis is missing."""
    nodes, cycles = (4, 3) if quick else (NODES, CYCLES)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        try:
            key = make_key(folder / "user")
        except FileNotFoundError:
            raise CannotMeasure("ssh-keygen is missing: apt-get install openssh-client") from None
        public = (folder / "user.pub").read_text()
        rounds = 1 if quick else 3
        all_answer = of_cycles(folder / "all", nodes, 0, cycles, key, public, rounds=rounds)
        some_hang: Figures = {"not_seen": 0, "not_measured": "quick"}
        if not quick:
            some_hang = of_cycles(folder / "some", nodes, HANGING, rounds, key, public)
    failures = all_answer["not_seen"] + some_hang["not_seen"] + all_answer["compared"]["failures"]
    return {
        "failures": failures,
        "period_s": PERIOD_S,
        "reach": REACH,
        "all_answer": all_answer,
        "some_hang": some_hang,
    }


def recording() -> bytes:
    """What a node prints for a look: the sections of the recorded probe that it asks for, and an engine's API."""
    sections = facts.read(NONCE.decode(), ANSWER.read_bytes())
    nothing = Evidence("", exit_code=0, seconds=0.01)
    extra = {"engine-api": Evidence(API, exit_code=0, seconds=0.01), "container-events": nothing}
    return answer({name: extra.get(name) or sections[name] for name in facts.WATCH})


def answer(sections: Mapping[str, Evidence]) -> bytes:
    """In the frames of facts.probe, under the nonce that bench.replay replaces."""
    mark = NONCE.decode()
    made = [f"\n{mark} begin\n"]
    made += [f"{mark} section {name} {one.exit_code} 20 1.00 1.50\n" for name, one in sections.items()]
    for name, one in sections.items():
        made.append(f"{mark} size {name}.out {len(one.stdout.encode())}\n")
        made.append(f"{mark} size {name}.err {len(one.stderr.encode())}\n")
    for name, one in sections.items():
        made.append(f"\n{mark} {name} out\n{one.stdout}\n{mark} {name} err\n{one.stderr}")
    return "".join([*made, f"\n{mark} end\n"]).encode()


def of_cycles(
    folder: Path,
    nodes: int,
    hanging: int,
    cycles: int,
    private_key: str,
    public_key: str,
    *,
    rounds: int = 0,
    limit_s: float = 0.0,
) -> Figures:
    """`cycles` of all nodes, the first one (connecting) apart; then `rounds` in turn with others."""
    say(f"{nodes} nodes, {hanging} of them hang, {cycles} cycles")
    folder.mkdir()
    recorded = folder / "watch.txt"
    recorded.write_bytes(recording())
    before = load()
    with ExitStack() as held:
        servers = held.enter_context(replaying(nodes, public_key, str(hanging), str(recorded)))
        ports, host_key = servers[1]["ports"], servers[1]["host_key"]
        setup = {
            "private_key": private_key,
            "containers": ["vllm_node"],
            "port": PORT,
            "nodes": [
                {"name": f"node-{place}", "port": port, "user": USER, "host_keys": [host_key]}
                for place, port in enumerate(ports)
            ],
        }
        ask = held.enter_context(site(folder, setup))
        cold = ask({"do": "cycle"})
        told = [ask({"do": "cycle"}) for _ in range(cycles)]
        thinned = ask({"do": "thin"})
        others = compared(folder, folder.parent / "user", servers[1], ask, rounds) if rounds else {}
        if os.environ.get("BENCH_PROFILE"):
            ask({"do": "profile", "cycles": 5, "file": os.environ["BENCH_PROFILE"]})
    answering = nodes - hanging
    cpu = sorted(one["cpu_s"] for one in told)
    rss = [round(one["rss_mib"], 1) for one in told]
    quarter = max(1, len(rss) // 4)
    return {
        "nodes": nodes,
        "hanging": hanging,
        "load_average_before": before,
        "first_cycle_s": round(cold["wall_s"], 3),
        "cycle": spread([one["wall_s"] for one in told]),
        "last_answer_kept": spread([one["answered_s"] for one in told if one["answered_s"] is not None]),
        "cpu_s_per_cycle": round(cpu[len(cpu) // 2], 3),
        "cpu_ms_per_node": round(1000 * cpu[len(cpu) // 2] / nodes, 2),
        "share_of_a_core": round(cpu[len(cpu) // 2] / PERIOD_S, 4),
        "rss_mib": {"first": rss[0], "last": rss[-1], "largest": max(rss)},
        "rss_grew_mib": round(sum(rss[-quarter:]) / quarter - sum(rss[:quarter]) / quarter, 1),
        "thin": {name: round(value, 3) for name, value in thinned.items()},
        "not_seen": sum(max(0, answering - one["seen"]) for one in told),
        "serving_at_last": told[-1]["serving"],
        "deployments": told[-1]["deployments"],
        **({"compared": others} if rounds else {}),
    }


@contextmanager
def site(folder: Path, setup: Figures) -> Iterator[Any]:
    """The worker; what is called with an object gives its answer."""
    with _redis(folder) as redis:
        environment = {
            **os.environ,
            "VAR": str(folder),
            "REDIS_URL": redis,
            "DJANGO_SETTINGS_MODULE": "sparkweb.settings",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.watch_site"],
            cwd=BASE, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

        def ask(said: Any) -> Any:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(said) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise CannotMeasure("the worker ended; its words are above")
            return json.loads(line)

        try:
            ask(setup)
            yield ask
        finally:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def by_ssh(folder: Path, key: Path, told: Mapping[str, Any], *, at_once: int) -> tuple[float, float, int]:
    """What one would do without us: a loop of `ssh` over the same nodes with the same script, nothing read of the answers. Seconds,
    processor seconds of all clients, and how many gave no whole answer."""
    ports = [str(port) for port in told["ports"]]
    kind, base64 = told["host_key"]
    known = "".join(f"[127.0.0.1]:{port} {kind} {base64}\n" for port in ports)
    (folder / "known").write_text(known)
    (folder / "script.sh").write_text(
        "printf %s 0123456789abcdef;\n" + facts.script(facts.WATCH, nonce="b" * 24, extra={"apis": "", "missed": ""})
    )
    options = (
        f"-F none -q -o BatchMode=yes -o IdentitiesOnly=yes -o UserKnownHostsFile={shlex.quote(str(folder / 'known'))}"
    )
    door = f"-i {shlex.quote(str(key))} -p {{}} {USER}@127.0.0.1"
    words = ["xargs", f"-P{at_once}", "-I{}", "sh", "-c", f"ssh {options} {door} /bin/sh -s <script.sh >answer.{{}}"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(words, cwd=folder, input="\n".join(ports), text=True, capture_output=True, timeout=300)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = [f"{'b' * 24} end" in (folder / f"answer.{port}").read_text(errors="replace") for port in ports]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, whole.count(False)


def compared(folder: Path, key: Path, told: Mapping[str, Any], ask: Any, rounds: int) -> Figures:
    """We and two loops of ssh take turns over the same nodes."""
    if shutil.which("ssh") is None or shutil.which("xargs") is None:
        return {"not_measured": "no ssh or xargs here", "failures": 0}
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "ssh_16_at_once": [], "ssh_one_by_one": []}
    failures = 0
    for _ in range(rounds):
        ours = ask({"do": "cycle"})
        found["ours"].append((ours["wall_s"], ours["cpu_s"]))
        for name, at_once in (("ssh_16_at_once", 16), ("ssh_one_by_one", 1)):
            wall, cpu, failed = by_ssh(folder, key, told, at_once=at_once)
            found[name].append((wall, cpu))
            failures += failed
    return {
        "failures": failures,
        **{
            name: {
                **seconds([wall for wall, _ in each]),
                "cpu_s": round(sorted(cpu for _, cpu in each)[len(each) // 2], 3),
            }
            for name, each in found.items()
        },
    }
