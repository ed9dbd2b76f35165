"""`make demo`: the whole story as a person starts it; twice on one VAR, two at once, without a network, interrupted, and failing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.stack.conftest import BASE, PYTHON, Started, until

pytestmark = [pytest.mark.demo, pytest.mark.timeout(600)]
FIELDS = ["deployment", "state", "reason", "run", "seconds", "lines", "smoke", "relaunch", "url"]
AGAIN = ["run", "state", "was", "seconds", "audit_entry"]
STORY_S = 300.0  # far more than it takes (see the figures in docs); a busy machine shall not fail it
QUICK = ("--factor", "100", "--shards", "7")


def last(stack: Started) -> dict[str, Any]:
    return json.loads(stack.out.splitlines()[-1])


def is_good(told: dict[str, Any], stack: Started) -> None:
    assert list(told) == FIELDS and list(told["relaunch"]) == AGAIN, told
    assert (told["state"], told["reason"], told["smoke"]) == ("serving", None, "passed"), told
    again = told["relaunch"]
    assert (again["state"], again["was"]) == ("serving", "replaced") and again["run"] > told["run"]
    assert told["url"] == f"http://127.0.0.1:{stack.port}/deployments/{told['deployment']}"
    assert told["lines"] > 50 and told["seconds"] > again["seconds"] > 0
    (entry,) = stack.rows(
        "select actor_name, actor_role, action, reason, run_id from audit_entry where seq = ?", again["audit_entry"]
    )
    assert entry[:3] == ("otto", "operator", "deployment:relaunch") and entry[3] and entry[4] == again["run"]
    for run in (told["run"], again["run"]):
        assert stack.rows("select state from runs_run where id = ?", run) == [("succeeded",)]


def loaded(stack, run: int) -> dict[str, tuple[int, int]]:
    """Per rank, the shards that the log told of and how many there are, as stored at the end."""
    ((told,),) = stack.rows(
        "select progress from runs_step where run_id = ? and key = ?", run, "serve.engine.spark-1a32"
    )
    ranks = (json.loads(told) if isinstance(told, str) else told)["ranks"]
    return {rank: (seen["done"], seen["total"]) for rank, seen in ranks.items()}


@pytest.mark.long
def test_two_copies_at_once_and_again_on_an_old_var(start, tmp_path):
    """The first copy over make, as a person types it."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed: apt-get install make")
    one = start("-s", "demo", before=("make",), var=tmp_path / "one", ONCE="1", FACTOR="100", SHARDS="7")
    two = start("demo", "--once", *QUICK, var=tmp_path / "a second one")
    for copy in (one, two):
        assert copy.process.wait(STORY_S) == 0, copy.said()
        is_good(last(copy), copy)
        copy.all_gone()
    assert "/7" in one.out.partition("shards ")[2][:6], "the load was not followed shard by shard"
    assert loaded(one, last(one)["run"]) == {"0": (7, 7), "1": (7, 7)}
    labs = [json.loads((copy.var / "lab" / "lab.json").read_text()) for copy in (one, two)]
    ports = [{node["port"] for node in lab["nodes"].values()} for lab in labs]
    assert len(ports[0] | ports[1]) == 4
    assert not any(Path(lab["control"]).parent.exists() for lab in labs), "a lab left files behind"

    again = start("-s", "demo", before=("make",), var=tmp_path / "one", ONCE="1", FACTOR="100", SHARDS="9")
    assert again.process.wait(STORY_S) == 0, again.said()
    is_good(last(again), again)
    assert last(again)["deployment"] == last(one)["deployment"] and last(again)["run"] > last(one)["relaunch"]["run"]
    assert "104 of" in again.out and "clears 7 things" in again.out, "the Sparks were not put back to the start scene"
    assert "/9" in again.out.partition("shards ")[2][:6], "the load was not followed shard by shard"
    assert again.rows("select count(*) from runs_run where id = ?", last(one)["run"]) == [(1,)]
    again.all_gone()
    done = subprocess.run(
        [PYTHON, "manage.py", "verify_audit"], env=again.environment, cwd=BASE, capture_output=True, text=True
    )
    assert done.returncode == 0 and json.loads(done.stdout)["ok"] is True, done


@pytest.mark.long
def test_with_nothing_but_loopback_it_serves_until_ctrl_c(start):
    """A network namespace of its own: no packet could leave. Then Ctrl-C, once the dashboard is served."""
    if os.geteuid() or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("unshare -n is not allowed here (it needs root)")
    bring_up = ("unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    stack = start("demo", *QUICK, before=bring_up, DATABASE_URL="")  # no server is in that network
    stack.waits_for('{"deployment"', STORY_S)
    told = json.loads(stack.out.splitlines()[-1])
    is_good(told, stack)
    links = re.findall(r"sign in as (\w+): (http://127\.0\.0\.1:(\d+)/\S+)\n", stack.out)
    assert [role for role, *_ in links] == ["viewer", "operator", "admin"]
    assert {int(port) for *_, port in links} == {stack.port}
    inside = ("nsenter", "-t", str(stack.process.pid), "-n", "curl", "-fsS", links[0][1])
    if shutil.which("nsenter") and shutil.which("curl"):
        page = subprocess.run(inside, capture_output=True, text=True, timeout=30)
        assert page.returncode == 0 and "vera" in page.stdout, page
    os.kill(stack.process.pid, signal.SIGINT)
    began = time.monotonic()
    assert stack.process.wait(40) == 0, stack.said()
    assert time.monotonic() - began < 30
    assert stack.out.splitlines()[-1] == json.dumps(told), "the object is no longer the last line"
    stack.all_gone()


def test_ctrl_c_in_the_middle_ends_everything_and_says_so(start):
    stack = start("demo", "--once", *QUICK)
    stack.waits_for("launch: loading", 150)
    os.kill(stack.process.pid, signal.SIGINT)
    os.kill(stack.process.pid, signal.SIGINT)  # impatience changes nothing
    assert stack.process.wait(40) == 1, stack.said()
    stack.all_gone()
    told = last(stack)
    assert list(told) == [*FIELDS, "evidence"]
    assert (told["state"], told["smoke"], told["relaunch"]) == ("failed", None, None) and told["run"], told
    assert "interrupted" in told["evidence"] and "Traceback" not in stack.err + stack.out


def test_a_failing_story_says_why(start):
    stack = start("demo", "--once", *QUICK)
    stack.waits_for("confirmed", 120)
    until(
        lambda: _fault(stack).returncode == 0,
        20,
        stack.said,
        pause=1,
    )
    assert stack.process.wait(STORY_S) == 1, stack.said()
    stack.all_gone()
    told = last(stack)
    assert list(told) == [*FIELDS, "evidence"]
    assert told["state"] == "failed" and told["reason"] not in (None, "internal") and told["evidence"], told
    assert (told["smoke"], told["relaunch"]) == (None, None) and told["run"]
    assert stack.rows("select state, reason from runs_run where id = ?", told["run"]) == [("failed", told["reason"])]
    assert "Traceback" not in stack.err + stack.out


def _fault(stack: Started) -> subprocess.CompletedProcess[bytes]:
    """The engine will die while it loads."""
    words = ["lab", "--folder", str(stack.var / "lab"), "fault", "spark-1a32", "engine-dies", "loading"]
    return subprocess.run([PYTHON, "manage.py", *words], env=stack.environment, capture_output=True, timeout=60)


@pytest.mark.parametrize(("option", "value"), [("--factor", "fast"), ("--factor", "0"), ("--shards", "-3")])
def test_a_bad_option_is_named(start, option, value):
    stack = start("demo", "--once", f"{option}={value}")
    assert stack.process.wait(60) != 0
    assert option in stack.err and "Traceback" not in stack.err and not stack.everything()
