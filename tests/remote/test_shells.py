"""The same jobs on every shell and tool set that is at hand here: dash, bash, busybox; with and without setsid."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from apps.remote.jobs import NodeJobs
from apps.remote.printer import Printer
from apps.remote.ssh import written_out
from apps.remote.transport import Result

SHELLS = {"dash": "dash", "bash": "bash --posix", "busybox": "busybox sh"}
TOOLS = (
    *("mkdir", "cat", "chmod", "mv", "rm", "ln", "mkfifo", "sleep", "touch", "wc", "tail", "head", "dd", "tr", "grep"),
    *("env", "true", "nohup", "base64", "sh", "dash", "bash", "perl"),
)


class Here(Printer):
    """This machine as a node, with a chosen shell in place of /bin/sh and a chosen PATH."""

    def __init__(self, home: Path, shell: str, path: str) -> None:
        super().__init__("here")
        self._home, self._shell, self._path = home, shell, path

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Result:
        text = written_out(script, stdin, "MARKER").decode().replace("/bin/sh", self._shell)
        done = subprocess.run(
            [*self._shell.split(), "-s"],
            input=text.encode(),
            capture_output=True,
            timeout=timeout_s,
            env={"HOME": str(self._home), "PATH": self._path},
        )
        return Result(done.stdout.partition(b"MARKER")[2], done.stderr.partition(b"MARKER")[2], done.returncode)


def tools(folder: Path, names: list[str]) -> str:
    """A PATH with only these programs."""
    folder.mkdir()
    for name in names:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return str(folder)


@pytest.mark.parametrize("kind", ["dash", "bash", "busybox", "no setsid", "nothing to detach with"])
def test_the_life_of_a_job(tmp_path: Path, kind: str) -> None:
    shell, path = SHELLS.get(kind, "dash"), os.environ["PATH"]
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"no {shell.split()[0]} here")
    if kind == "busybox":
        path = tools(tmp_path / "bin", ["busybox"])
        subprocess.run(["busybox", "--install", "-s", tmp_path / "bin"], check=True)
    elif kind not in SHELLS:
        path = tools(tmp_path / "bin", [name for name in TOOLS if name != "perl" or kind == "no setsid"])
    jobs = NodeJobs(Here(tmp_path, shell, path))
    secret = "s3cret '\"$`\\ \n ü"
    text = "".join(chr(code) for code in range(1, 0x300) if code not in (10, 39))
    jobs.start("a", f"printf %s \"$TOKEN\"; printf %s '{text}' >&2; exit 6", environment={"TOKEN": secret})
    assert jobs.start("a", "echo twice").id == "a"
    jobs.start("tree", "trap '' TERM; (while :; do sleep 0.2; done) & echo up; while :; do sleep 0.2; done")
    jobs.start("slow", "sleep 60", max_seconds=1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        looks = jobs.look([("a", 0), ("tree", 1), ("slow", 0), ("none", 0)])
        if looks[0].state == looks[2].state == "exited" and looks[1].data:
            break
        time.sleep(0.1)
    assert (looks[0].state, looks[0].exit_code, looks[0].data.decode()) == ("exited", 6, secret + text)
    assert (looks[1].state, looks[1].data, looks[1].exit_code) == ("running", b"p\n", None)
    assert (looks[2].state, looks[2].exit_code) == ("exited", 124)
    assert looks[3].state == "missing"
    cancelled = jobs.cancel("tree", grace_s=0.5)
    assert (cancelled.state, cancelled.exit_code) == ("exited", 137)
    for job_id in ("a", "tree", "slow"):
        jobs.remove(job_id)
    assert not list((tmp_path / ".local/state/sparkweb/jobs").iterdir())


SYSTEMD_RUN = """#!/bin/sh
echo "$@" >> "$HOME/asked"
[ ! -e "$HOME/refuses" ] || exit 1
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_with_a_systemd_of_the_users_own_keeper_and_job_get_scopes(tmp_path: Path, shell: str, refuses: bool) -> None:
    """A program in its place that only notes how it was called; where it refuses, the job begins without it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "systemd-run").write_text(SYSTEMD_RUN)
    (tmp_path / "bin" / "systemd-run").chmod(0o755)
    linger = tmp_path / "linger"
    linger.mkdir()
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    (linger / user).touch()
    if refuses:
        (tmp_path / "refuses").touch()
    here = Here(tmp_path, SHELLS[shell], f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    jobs = NodeJobs(here, linger_path=str(linger))
    jobs.start("job-1", 'echo "hello $SECRET"; exit 3', environment={"SECRET": "hunter2"})
    deadline = time.monotonic() + 20
    while (look := jobs.look([("job-1", 0)])[0]).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (look.data, look.exit_code) == (b"hello hunter2\n", 3)
    asked = (tmp_path / "asked").read_text().splitlines()
    units = [word for line in asked for word in line.split() if word.startswith("--unit=")]
    assert "hunter2" not in "".join(asked)
    if refuses:
        assert [unit.rpartition("-")[0] for unit in units] == ["--unit=sparkweb-try"]
        return
    assert [unit.rpartition("-")[0] for unit in units] == [
        "--unit=sparkweb-try",
        "--unit=sparkweb-keeper-job-1",
        "--unit=sparkweb-job-job-1",
    ]
    assert all(line.startswith("--user --scope --quiet --collect") for line in asked)
    scope = (tmp_path / ".local/state/sparkweb/jobs/job-1/scope").read_text().strip()
    assert units[2] == f"--unit={scope}" and scope.endswith(".scope")
    jobs.start("job-2", "sleep 300 & sleep 300")
    assert jobs.cancel("job-2", grace_s=1).state == "exited"
