"""`manage.py up`: what dies comes back, what ends ends wholly, and nobody comes in before the administrator."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sparkweb.supervising import Program, write_config
from tests.stack.conftest import PYTHON, Started, until

SLACK_S = 2.0  # for a busy machine; the promise is 2 s
CHILDREN = ("web", "worker", "beat", "redis")


def heard_of(stack: Started, worker: int) -> bool:
    return bool(stack.rows("select 1 from runs_workerbeat where name like ?", f"%:{worker}"))


def test_each_killed_child_returns_and_the_others_stay(start):
    stack = start("up")
    stack.waits_for("serves at")
    for name in CHILDREN:
        before = {child: stack.child(child) for child in CHILDREN}
        assert None not in before.values(), before
        os.kill(before[name], signal.SIGKILL)
        killed = time.monotonic()
        now = until(lambda name=name, old=before[name]: (p := stack.child(name)) != old and p, 15, stack.said)
        assert time.monotonic() - killed < 2 + SLACK_S, name
        until(stack.ready, 30, stack.said)
        if name == "worker":
            until(lambda pid=now: heard_of(stack, pid), 30, stack.said)
        assert {c: stack.child(c) for c in CHILDREN} == {**before, name: now}, stack.said()
    assert set(stack.everything()) == {stack.process.pid, *stack.tree()}
    stack.process.terminate()
    assert stack.process.wait(30) == 0
    stack.all_gone()


def test_a_child_that_dies_at_once_is_tried_ever_more_rarely_and_stops_nobody(tmp_path):
    deaths, quiet = tmp_path / "deaths", tmp_path / "quiet"
    dying = Program("dying", ("/bin/sh", "-c", f"date +%s.%N >> '{deaths}'; exit 3"), 10)
    steady = Program("steady", ("/bin/sh", "-c", f"echo $$ >> '{quiet}'; exec sleep 600"), 20)
    config = write_config(tmp_path, [dying, steady])
    supervisor = subprocess.Popen([PYTHON, "-m", "supervisor.supervisord", "-c", str(config)], start_new_session=True)
    try:
        until(lambda: deaths.exists() and len(deaths.read_text().split()) >= 4, 30)
        times = [float(word) for word in deaths.read_text().split()][:4]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert pauses[0] < 2 + SLACK_S and pauses[2] > pauses[0] and pauses[2] > 2, pauses
        assert len(quiet.read_text().split()) == 1 and Path(f"/proc/{quiet.read_text().strip()}").exists()
    finally:
        supervisor.terminate()
        supervisor.wait(20)
    assert not Path(f"/proc/{quiet.read_text().strip()}").exists()


def test_first_page_one_holder_leftovers_and_ctrl_c(start, tmp_path):
    """One VAR with a long name that holds spaces and a per cent sign, through a life: first run, kill -9, a second start, Ctrl-C."""
    var = tmp_path / ("with spaces, 100 %, (and) 'quotes' " + "x" * 90) / "var %(here)s"
    first = start("up", var=var)
    first.waits_for("one-time code")
    _nobody_comes_in(first)
    assert not list(var.rglob("*setup*"))

    second = start("up", var=var)
    assert second.process.wait(20) == 1
    assert f"process {first.process.pid}" in second.err and "VAR=" in second.err and "Traceback" not in second.err
    other = start("demo", "--once", var=tmp_path / "other", port=first.port)
    assert other.process.wait(20) == 1
    assert f"127.0.0.1:{first.port}" in other.err and "PORT=" in other.err and "Traceback" not in other.err
    assert '"state": "failed"' in other.out.splitlines()[-1] and str(first.port) in other.out
    assert first.ready(), "a second start disturbed the first"

    first.process.kill()
    first.process.wait()
    left = set(first.everything())
    assert len(left) == 5, first.everything()
    again = start("up", var=var, port=first.port)
    again.waits_for("one-time code")
    assert not left & set(first.everything())
    assert again.ready() and again.process.pid in again.everything()
    os.kill(again.process.pid, signal.SIGINT)
    assert again.process.wait(30) == 0, again.said()
    again.all_gone()
    assert "Traceback" not in again.err + again.out


def _nobody_comes_in(stack: Started) -> None:
    code = re.search(r"one-time code: (\w{5}(-\w{5}){3})\n", stack.out)
    assert code and f"http://127.0.0.1:{stack.port}/first-run" in stack.out
    status, _, headers = stack.ask("/")
    assert (status, headers["Location"]) == (302, "/first-run")
    status, page, _ = stack.ask("/first-run")
    assert status == 200 and 'name="code"' in page and code[1] not in page
    for path in ("/nodes", "/deployments", "/audit", "/settings/people", "/sign-in", "/nowhere"):
        status, _, headers = stack.ask(path)
        assert status == 302 and headers["Location"].partition("?")[0] == "/first-run", path
    for path in ("nodes", "deployments", "audit", "openapi.json"):
        assert stack.ask(f"/api/v1/{path}")[0] == 401, path
    assert stack.ask("/healthz")[0] == 200


def test_a_supervisor_that_is_killed_leaves_nobody_behind(start):
    stack = start("up")
    stack.waits_for("serves at")
    os.kill(stack.child("supervisor"), signal.SIGKILL)
    assert stack.process.wait(30) == 1
    stack.all_gone()
    assert "the supervisor ended" in stack.err and "Traceback" not in stack.err


@pytest.mark.parametrize(
    ("port", "words"), [("no", "PORT"), ("0", "PORT"), ("99999", "PORT"), ("8000", "VAR=/proc/nothing")]
)
def test_what_can_not_be_is_said_in_words(start, tmp_path, port, words):
    more = {"VAR": words.removeprefix("VAR=")} if words.startswith("VAR=") else {"PORT": port}
    stack = start("up", **more)
    assert stack.process.wait(30) == 1
    assert words in stack.err and "Traceback" not in stack.err and not stack.everything()
