"""Benchmark `logs`: from a job's file on a node to the lines that people see, and what other ways would cost.

A job behind a real OpenSSH server prints stamped lines at a rate; the product's executor reads, masks and stores them; the
product's web process sends them to sockets and to one real Chromium. All on one machine, so that stamps and clocks agree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import CannotMeasure, Figures, load, say

BASE = Path(__file__).resolve().parent.parent
FILLER = "(EngineCore_0 pid=271) INFO loggers.py:100 Engine 000: generation throughput: 41.3 tokens/s"
PRINT = """exec python3 -c '
import sys, time
rate, total = {rate}, {total}
began, n = time.time(), 0
while n < total:
    due = total if not rate else min(total, int((time.time() - began) * rate))
    while n < due:
        now, to = time.time(), min(due, n + 2000)
        sys.stdout.write("".join(f"{{now:.6f}} {{i:08d}} {filler}\\n" for i in range(n, to)))
        n = to
    sys.stdout.flush()
    time.sleep(0.02)
'
"""
DOM = """() => {
  const rows = document.querySelector('[data-log=rows]');
  const seen = window.benched = { last: 0, samples: [] };
  const look = () => {
    const now = Date.now() / 1000;
    const fresh = [...rows.children].filter((row) => Number(row.dataset.n) > seen.last);
    if (!fresh.length) return;
    const stamps = [fresh[0], fresh.at(-1)].map((row) => parseFloat(row.querySelector('.line-text').textContent));
    const count = Number(fresh.at(-1).dataset.n) - seen.last;
    seen.last = Number(fresh.at(-1).dataset.n);
    for (const stamp of stamps) if (stamp > 1e9) seen.samples.push([now - stamp, count / 2]);
  };
  new MutationObserver(look).observe(rows, { childList: true });
}"""


def measured(quick: bool = False) -> Figures:
    """All parts. Raises CannotMeasure where sshd, ssh-keygen or a Redis server is missing."""
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        site = held.enter_context(running(folder))
        stored = of_storing(site, 20_000 if quick else 400_000)
        rates: Sequence[tuple[int, int, int]] = (
            [(200, 2, 3)] if quick else [(200, 1, 20), (5000, 1, 20), (5000, 20, 25), (200, 50, 20), (5000, 50, 20)]
        )
        shown = []
        for rate, viewers, seconds in rates:
            shown.append(of_showing(site, rate, viewers, seconds, browser=not quick))
            say(json.dumps(shown[-1]))
        others = compared(site, 20_000 if quick else 200_000, stored["run"], viewers=2 if quick else 20)
    failures = sum(each["failures"] for each in (stored, *shown))
    return {"failures": failures, "stored": stored, "shown": shown, "compared": others}


@dataclass
class Site:
    url: str
    cookie: str
    web: int  # process ids
    worker: int
    process: subprocess.Popen[str]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise CannotMeasure("the worker ended; its words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def until_stored(self, run: int, within_s: float) -> dict[str, Any]:
        until = time.monotonic() + within_s
        while True:
            told = self.ask("told", run=run)
            if told["stored"] and told["state"] not in ("queued", "reserving", "running"):
                return told
            if time.monotonic() > until:
                raise CannotMeasure(f"run {run} was not stored within {within_s:.0f} s: {told}")
            time.sleep(0.5)


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    """Node, Redis, web and worker of their own until the `with` ends."""
    from tests.openssh import SSHD, OpenSsh, _me, free_port

    if SSHD is None:
        raise CannotMeasure("no sshd here: apt-get install openssh-server")
    nodes = OpenSsh(folder)
    with ExitStack() as held:
        held.callback(lambda: [server.stop() for server in nodes.running])
        node, port = nodes.start("node"), free_port()
        environment = {
            **os.environ, "VAR": str(folder / "var"), "PORT": str(port), "ORIGINS": f"http://127.0.0.1:{port}",
            "REDIS_URL": held.enter_context(_redis(folder)), "DJANGO_SETTINGS_MODULE": "sparkweb.settings",
            "LOG_HEAD_MIB": "64", "LOG_TAIL_MIB": "1024",
        }  # fmt: skip
        worker = held.enter_context(_process(environment, "-m", "bench.logs_site"))
        assert worker.stdin is not None and worker.stdout is not None
        setup = {"private_key": node.private_key, "port": node.port, "user": _me(), "host_keys": node.host_keys}
        worker.stdin.write(json.dumps(setup) + "\n")
        worker.stdin.flush()
        greeting = worker.stdout.readline()
        if not greeting:
            raise CannotMeasure("the worker did not start; its words are above")
        told = json.loads(greeting)
        web = held.enter_context(_process(environment, *told["web"]))
        _wait_for(f"http://127.0.0.1:{port}/healthz")
        yield Site(f"http://127.0.0.1:{port}", told["cookie"], web.pid, told["pid"], worker)


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    from sparkweb.supervising import CannotStart, _redis_binary

    try:
        program = _redis_binary()
    except CannotStart as missing:
        raise CannotMeasure(str(missing)) from None
    words = [program, "--port", "0", "--unixsocket", str(folder / "redis"), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        yield f"unix://{folder / 'redis'}"
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def _process(environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *words], cwd=BASE, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(url: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(url, timeout=2)
            return
        except OSError:
            time.sleep(0.1)
    raise CannotMeasure(f"{url} does not answer")


class Memory:
    """Resident memory of processes while something happens, looked at twice a second, in MiB."""

    def __init__(self, **processes: int) -> None:
        self._processes, self._over = processes, threading.Event()
        self.seen: dict[str, list[float]] = {name: [] for name in processes}
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            for name, pid in self._processes.items():
                self.seen[name].append(resident(pid))
            if self._over.wait(0.5):
                return

    def told(self) -> Figures:
        return {f"{name}_rss_mib": _over_time(seen) for name, seen in self.seen.items()}


def _over_time(seen: Sequence[float]) -> Figures:
    chosen = {"before": seen[0], "middle": seen[len(seen) // 2], "peak": max(seen), "after": seen[-1]}
    return {name: round(value) for name, value in chosen.items()}


def resident(pid: int) -> float:
    """Resident memory of a process in MiB; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS")), 0.0)


def percentiles(samples: Sequence[Sequence[float]]) -> Figures:
    """Of (seconds, weight) pairs: p50, p95, p99 and the largest, in milliseconds."""
    ordered = sorted(samples)
    total = sum(weight for _, weight in ordered)
    found: Figures = {}
    for name, part in (("p50_ms", 0.50), ("p95_ms", 0.95), ("p99_ms", 0.99)):
        reached = 0.0
        for value, weight in ordered:
            reached += weight
            if reached >= part * total:
                found[name] = round(1000 * value)
                break
    return {**found, "largest_ms": round(1000 * ordered[-1][0]) if ordered else None, "samples": len(ordered)}


def of_storing(site: Site, total: int) -> Figures:
    """How many lines a second one worker reads, masks and stores of a file that is there already."""
    say(f"storing {total} lines")
    began = load()
    with Memory(worker=site.worker) as memory:
        run = site.ask("begin", script=PRINT.format(rate=0, total=total, filler=FILLER))["run"]
        told = site.until_stored(run, 400)
    return {
        "run": run,
        "lines": told["lines"],
        "load_average_before": began,
        "lines_per_s": round(told["later_lines"] / told["seconds"]) if told["seconds"] else None,
        "failures": int(told["lines"] != total),
        **memory.told(),
    }


def of_showing(site: Site, rate: int, viewers: int, seconds: int, *, browser: bool) -> Figures:
    """`viewers` see `rate` lines a second for `seconds`; one of them is Chromium where there is one."""
    say(f"{viewers} viewers at {rate} lines/s for {seconds} s")
    began, total = load(), rate * seconds
    with ExitStack() as held:
        page = held.enter_context(_chromium(site)) if browser else None
        sockets = viewers - (page is not None)
        begin = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))) / "begin"
        script = f"until [ -e {begin} ]; do sleep 0.1; done\n" + PRINT.format(rate=rate, total=total, filler=FILLER)
        run = site.ask("begin", script=script)["run"]
        asked = {
            "url": f"{site.url.replace('http', 'ws', 1)}/ws/live", "origin": site.url, "cookie": site.cookie,
            "viewers": sockets, "run": run, "lines": total, "after": 0,
        }  # fmt: skip
        if page is not None:
            page.goto(f"{site.url}/runs/{run}")
            page.wait_for_selector("[data-log=badge][data-state=live]", timeout=60_000)
            page.evaluate(DOM)
        memory = held.enter_context(Memory(web=site.web, worker=site.worker))
        if sockets:
            answer = _viewers(asked, begin)
        else:
            begin.touch()
            answer = {"failures": [], "gaps": 0, "lines": total, "mib": 0, "samples": []}
        dom: dict[str, Any] = {}
        if page is not None:
            dom = _dom_of(page, total)
        told = site.until_stored(run, 120)
    short = answer["lines"] != total or (bool(dom) and dom["last"] != total) or told["lines"] != total
    return {
        "lines_per_s": rate,
        "viewers": viewers,
        "seconds": seconds,
        "load_average_before": began,
        **({"to_sockets": percentiles(answer["samples"])} if sockets else {}),
        **({"to_dom": percentiles(dom["samples"])} if dom else {"to_dom": "not measured: no Chromium or Playwright"}),
        "sent_mib": round(answer["mib"], 1),
        "gaps": answer["gaps"],
        **memory.told(),
        "failures": len(answer["failures"]) + answer["gaps"] + int(short),
        "failed": answer["failures"][:3],
    }


def _viewers(asked: dict[str, Any], begin: Path | None = None) -> dict[str, Any]:
    """What bench.logs_viewers says; `begin` is made once all of them are there."""
    words = [sys.executable, "-m", "bench.logs_viewers"]
    with subprocess.Popen(words, cwd=BASE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        process.stdout.readline()
        if begin is not None:
            begin.touch()
        said = process.stdout.read()
    if process.returncode or not said:
        raise CannotMeasure("the viewers ended; their words are above")
    answer: dict[str, Any] = json.loads(said)
    return answer


@contextmanager
def _chromium(site: Site) -> Iterator[Any]:
    """A page of a signed-in browser, or None."""
    import shutil

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        yield None
        return
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--headless", "--no-sandbox", "--disable-gpu"])
        window = browser.new_context(viewport={"width": 1440, "height": 900})
        name, _, value = site.cookie.partition("=")
        window.add_cookies([{"name": name, "value": value, "url": site.url}])
        yield window.new_page()
        browser.close()


def _dom_of(page: Any, total: int) -> dict[str, Any]:
    until = time.monotonic() + 60
    while page.evaluate("window.benched.last") < total and time.monotonic() < until:
        page.wait_for_timeout(200)
    found: dict[str, Any] = page.evaluate("window.benched")
    return found


def compared(site: Site, lines: int, run: int, *, viewers: int) -> Figures:
    """One row a line against chunks; re-reading a file over SSH for each viewer against a snapshot."""
    say(f"comparing with one row a line ({lines} lines) and with re-reading")
    job = site.ask("job", run=run)["job"]
    again = [site.ask("reread", job=job) for _ in range(3)]
    asked = {
        "url": f"{site.url.replace('http', 'ws', 1)}/ws/live", "origin": site.url, "cookie": site.cookie,
        "viewers": viewers, "run": run, "lines": 1, "after": None,
    }  # fmt: skip
    ours = _viewers(asked)
    return {
        "storage": site.ask("compared", lines=lines),
        "a_viewer_comes": {
            "reread_over_ssh": sorted(again, key=lambda one: one["seconds"])[1],
            "ours": {
                "viewers_at_once": viewers,
                "first_lines_p50_s": round(sorted(ours["first_frame_s"])[viewers // 2], 3),
                "first_lines_largest_s": round(max(ours["first_frame_s"]), 3),
                "mib_per_viewer": round(ours["mib"] / viewers, 3),
            },
        },
    }
