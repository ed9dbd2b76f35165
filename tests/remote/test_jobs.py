"""Detached jobs on a real shell behind a real sshd: exactly once, every byte, the right end, nothing left behind."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from apps.remote.jobs import JobNotStarted, NodeJobs
from apps.remote.recorded import Recorded
from apps.remote.ssh import ParamikoTransport, connect
from apps.remote.transport import BadAnswer, ConnectionLost, JobLook, RemoteError, Result
from tests.openssh import OpenSsh, Sshd


@pytest.fixture
def server(openssh: OpenSsh) -> Iterator[Sshd]:
    made = openssh.start("node", kinds=("ed25519",))
    yield made
    for pid in carrying(str(made.home)):  # a failed test must not leave processes behind
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


@pytest.fixture
def node(server: Sshd) -> Iterator[ParamikoTransport]:
    with connect(server.endpoint()) as transport:
        yield transport


def folder(server: Sshd, job_id: str) -> Path:
    return server.home / ".local/state/sparkweb/jobs" / job_id


def carrying(*texts: str) -> list[int]:
    """Processes whose environment or command line holds all texts (this test's home is in all of its jobs')."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if all(text.encode() in words for text in texts):
                found.append(int(entry.name))
    return found


def until(check: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def ended(jobs: NodeJobs, job_id: str, seconds: float = 30) -> JobLook:
    looks: list[JobLook] = []

    def over() -> bool:
        looks.append(jobs.look([(job_id, 0)], limit=1 << 24)[0])
        return looks[-1].state != "running"

    until(over, seconds)
    return looks[-1]


# -- the whole life ----------------------------------------------------------------------------------------------------


def test_output_exit_code_and_where_it_runs(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    started = jobs.start("a.b-c_1", 'echo out; echo err >&2; pwd; umask; echo "$SPARKWEB_JOB"; cat; exit 7')
    assert started.state in ("running", "exited") and started.pid and started.boot_id
    look = ended(jobs, "a.b-c_1")
    mask = f"{os.umask(0o022):04o}"
    os.umask(int(mask, 8))
    assert look.data.decode().split() == ["out", "err", str(server.home), mask, "a.b-c_1"]
    assert (look.state, look.exit_code, look.reason, look.note) == ("exited", 7, None, None)
    until(lambda: not carrying(str(folder(server, "a.b-c_1"))))
    assert sorted(path.name for path in folder(server, "a.b-c_1").iterdir() if path.name != "hb") == [
        "child",
        "log",
        "pid",
        "rc",
        "script",
        "wrapper",
    ]
    jobs.remove("a.b-c_1")
    jobs.remove("a.b-c_1")
    assert jobs.look([("a.b-c_1", 0)])[0].state == "missing"


def test_a_script_of_any_text_and_a_log_of_any_bytes(node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    text = "".join(chr(code) for code in range(1, 0x500) if code not in (10, 39))
    jobs.start("text", f"printf %s '{text}'")
    assert ended(jobs, "text").data == text.encode()
    jobs.start("bytes", "head -c 300000 /dev/urandom > random; cat random; rm random")
    look = ended(jobs, "bytes")
    assert len(look.data) == look.size == 300_000


def test_many_jobs_in_one_look_keep_their_order(node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    for number in range(5):
        jobs.start(f"job{number}", f"printf '{'x' * number}'; exit {number}")
    for number in range(5):
        ended(jobs, f"job{number}")
    asked = [("job3", 1), ("none", 0), ("job0", 0), ("job4", 4), ("job3", 0)]
    looks = jobs.look(asked)
    assert [look.id for look in looks] == [job_id for job_id, _ in asked]
    assert [look.state for look in looks] == ["exited", "missing", "exited", "exited", "exited"]
    assert [look.data for look in looks] == [b"xx", b"", b"", b"", b"xxx"]
    assert [look.exit_code for look in looks] == [3, None, 0, 4, 3]
    assert jobs.look([]) == []


def test_the_end_is_told_only_with_the_last_byte(node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    jobs.start("long", "head -c 1000 /dev/zero; exit 3")
    ended(jobs, "long")
    half = jobs.look([("long", 0)], limit=999)[0]
    assert (half.state, half.exit_code, len(half.data), half.size) == ("running", None, 999, 1000)
    rest = jobs.look([("long", 999)], limit=999)[0]
    assert (rest.state, rest.exit_code, len(rest.data)) == ("exited", 3, 1)
    assert jobs.look([("long", 0)], limit=0)[0].state == "exited"


def test_a_log_that_shrank_is_noted_and_keeps_nobody_waiting(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    jobs.start("cut", "echo something long; exec sleep 60")
    until(lambda: jobs.look([("cut", 0)])[0].size > 10)
    (folder(server, "cut") / "log").write_bytes(b"x")
    look = jobs.look([("cut", 10)])[0]
    assert (look.state, look.data, look.size, look.note) == ("running", b"", 1, "log_shrunk")
    assert jobs.cancel("cut", grace_s=1).state == "exited"


def test_a_log_that_was_emptied_after_the_end_keeps_nobody_waiting(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    jobs.start("over", "echo something long")
    assert ended(jobs, "over").data == b"something long\n"
    (folder(server, "over") / "log").write_bytes(b"some")
    look = jobs.look([("over", 0)])[0]
    assert (look.state, look.data, look.size, look.note) == ("exited", b"some", 4, "log_gone")
    assert jobs.look([("over", 15)])[0].state == "exited"


def test_the_log_is_capped_and_the_job_goes_on(
    server: Sshd,
    node: ParamikoTransport,
) -> None:
    jobs = NodeJobs(node, largest_log=1000)
    jobs.start("loud", "head -c 500000 /dev/zero; echo done > finished; exit 5")
    look = ended(jobs, "loud")
    assert (look.size, look.exit_code, look.note) == (1000, 5, "log_capped")
    assert (server.home / "finished").exists()
    jobs.start("exact", "head -c 1000 /dev/zero")
    assert ended(jobs, "exact").note is None


def test_the_longest_time_is_kept_on_the_node(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    jobs.start("slow", "setsid sleep 60 & echo on; sleep 60", max_seconds=1)
    node.close()
    with connect(server.endpoint()) as again:
        look = ended(NodeJobs(again), "slow")
    assert (look.state, look.exit_code, look.data) == ("exited", 124, b"on\n")
    until(lambda: not carrying(str(server.home), "SPARKWEB_JOB=slow"))


def test_bad_names_are_refused_before_anything_is_asked(node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    for bad in ("", "../x", "a b", "a;b", "-x", ".x", "x" * 101, "ä", "a\n"):
        for act in (partial(jobs.start, bad, ":"), partial(jobs.look, [(bad, 0)]), partial(jobs.cancel, bad)):
            with pytest.raises(ValueError, match="job id"):
                act()
        with pytest.raises(ValueError, match="job id"):
            jobs.remove(bad)
    with pytest.raises(ValueError, match="environment variable"):
        jobs.start("x", ":", environment={"A B": ""})
    with pytest.raises(ValueError, match="NUL"):
        jobs.start("x", ":", environment={"A": "\0"})
    with pytest.raises(ValueError, match="negative"):
        jobs.look([("x", -1)])


def test_a_node_that_cannot_hold_a_job_says_why(server: Sshd, node: ParamikoTransport) -> None:
    (server.home / ".local").write_text("in the way")
    with pytest.raises(JobNotStarted) as caught:
        NodeJobs(node).start("x", ":")
    assert caught.value.reason == "exited" and "cannot make" in caught.value.evidence


# -- exactly once ------------------------------------------------------------------------------------------------------


def test_ten_starts_at_once_run_one_process(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    script = 'echo "$$" >> began; sleep 1'
    with ThreadPoolExecutor(10) as threads:
        looks = list(threads.map(lambda _: jobs.start("once", script, environment={"TOKEN": "s3cret"}), range(10)))
    assert len({look.pid for look in looks}) == 1
    ended(jobs, "once")
    assert jobs.start("once", script).state == "exited"
    assert len((server.home / "began").read_text().split()) == 1
    assert not list(folder(server, "once").glob("env.*"))


def test_a_start_that_died_half_way_is_completed(server: Sshd, node: ParamikoTransport) -> None:
    half = folder(server, "half")
    half.mkdir(parents=True)
    for name in ("script", "env", "wrapper", "pid"):
        (half / f"{name}.0123456789abcdef").write_text("half a")
    jobs = NodeJobs(node)
    assert jobs.look([("half", 0)])[0].state == "missing"
    jobs.start("half", "echo whole")
    assert ended(jobs, "half").data == b"whole\n"
    assert not list(half.glob("*.0123456789abcdef"))


class _Cuts:
    """Breaks the connection in the middle of the script that starts a job, after `after` bytes of it."""

    def __init__(self, transport: ParamikoTransport, after: int) -> None:
        self.name, self._transport, self._after = transport.name, transport, after

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> object:
        channel = self._transport._wire.open("session", timeout_s=5)
        channel.exec_command("/bin/sh -s")
        from apps.remote.ssh import written_out

        channel.sendall(written_out(script, stdin, "marker")[: self._after])
        channel.close()
        raise ConnectionLost("ssh_timeout", hop=self.name)


@pytest.mark.parametrize("after", [50, 2000, 6000, 9000, 10**6])
def test_a_connection_that_breaks_while_starting_never_starts_twice(
    server: Sshd,
    node: ParamikoTransport,
    after: int,
) -> None:
    with pytest.raises(ConnectionLost):
        NodeJobs(_Cuts(node, after)).start("cut", "echo x >> began")  # type: ignore[arg-type]
    jobs = NodeJobs(node)
    jobs.start("cut", "echo x >> began")
    assert ended(jobs, "cut").exit_code == 0
    time.sleep(0.3)
    assert (server.home / "began").read_text() == "x\n"


# -- surviving ---------------------------------------------------------------------------------------------------------


def test_a_job_survives_close_cut_and_a_dead_server(openssh: OpenSsh, server: Sshd) -> None:
    script = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $n; sleep 0.25; done; exit 9"
    with connect(server.endpoint()) as node:
        NodeJobs(node).start("long", script)
    node = connect(server.endpoint())
    assert NodeJobs(node).look([("long", 0)])[0].state == "running"
    server.cut()
    until(lambda: not node.alive)
    server.process.kill()
    server.process.wait()
    again = openssh.start("node", kinds=("ed25519",))
    with connect(again.endpoint()) as node:
        look = ended(NodeJobs(node), "long")
    assert look.exit_code == 9
    assert look.data.decode().splitlines() == [f"line {n}" for n in range(1, 13)]


def test_following_through_disconnects_gives_every_byte_once(openssh: OpenSsh, server: Sshd) -> None:
    """Random limits, five forced disconnects, one of them while the answer is on its way."""
    choose = random.Random(7)
    script = """
i=0
while [ $i -lt 30 ]; do head -c 40000 /dev/urandom | tee -a copy; i=$((i + 1)); sleep 0.05; done
exit 11
"""
    node = connect(server.endpoint())
    NodeJobs(node).start("bytes", script)
    seen, cuts = bytearray(), 0
    for _ in range(2000):
        try:
            if not node.alive:
                node = connect(server.endpoint())
            look = NodeJobs(node).look([("bytes", len(seen))], limit=choose.choice((1, 4096, 65536, 200_000)))[0]
        except RemoteError:
            continue
        seen += look.data
        if look.state != "running":
            break
        if cuts < 5 and len(seen) > cuts * 100_000:
            cuts += 1
            server.cut()
    node.close()
    assert (look.state, look.exit_code, cuts) == ("exited", 11, 5)
    assert hashlib.sha256(seen).digest() == hashlib.sha256((server.home / "copy").read_bytes()).digest()


def test_what_a_job_leaves_running_does_not_keep_it_open(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    jobs.start("leaves", "sleep 60 & echo done; exit 2")
    look = ended(jobs, "leaves")
    assert (look.exit_code, look.data) == (2, b"done\n")
    jobs.cancel("leaves", grace_s=1)
    assert not carrying(str(server.home), "SPARKWEB_JOB=leaves")


# -- ending ------------------------------------------------------------------------------------------------------------

MARK = f"3{os.getpid()}"  # seconds; tells this test's process from those of its neighbours
TREE = """
sh -c 'trap "" TERM; echo stubborn; while :; do sleep 0.2; done' &
setsid sh -c 'echo away; exec sleep 300' &
env -i setsid sleep MARK &
sleep 302 &
echo up
wait
"""


def test_cancel_ends_the_whole_tree_and_keeps_the_log(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    jobs.start("tree", TREE.replace("MARK", MARK))
    until(lambda: jobs.look([("tree", 0)])[0].data.count(b"\n") == 3)
    look = jobs.cancel("tree", grace_s=1)
    assert (look.state, look.exit_code) == ("exited", 143)
    assert not carrying(str(server.home), "SPARKWEB_JOB=tree")
    assert not carrying(f"sleep\x00{MARK}")
    until(lambda: not carrying(str(folder(server, "tree"))))
    assert jobs.cancel("tree").state == "exited"
    assert sorted(jobs.look([("tree", 0)])[0].data.split()) == [b"away", b"stubborn", b"up"]


@pytest.mark.parametrize("heartbeat", [False, True])
def test_a_job_whose_folder_was_deleted_is_not_taken_for_dead(
    openssh: OpenSsh, server: Sshd, node: ParamikoTransport, heartbeat: bool
) -> None:
    """It goes on, is not started a second time, can be ended, and only then is missing. Its namesakes are somebody else."""
    with connect(openssh.start("other", kinds=("ed25519",)).endpoint()) as other:
        jobs, others = NodeJobs(node), NodeJobs(other)
        script = "echo begun >> ~/begun; setsid sleep 300 & sleep 300"
        jobs.start("gone", script)
        jobs.start("gone-1", script)
        others.start("gone", script)
        until(lambda: (server.home / "begun").read_text().count("begun") == 2)
        shutil.rmtree(folder(server, "gone"))
        if heartbeat:  # it came while the folder was being emptied, so that the folder itself stayed
            folder(server, "gone").mkdir()
            (folder(server, "gone") / "hb").touch()
        (look,) = jobs.look([("gone", 5)])
        assert (look.state, look.note, look.size, look.data) == ("running", "log_gone", 0, b"")
        (again,) = [jobs.start("gone", script)]
        assert (again.state, again.note) == ("running", "log_gone")
        time.sleep(1)
        assert (server.home / "begun").read_text().count("begun") == 2, "it was started a second time"
        assert jobs.cancel("gone", grace_s=1).state == "exited"
        until(lambda: not carrying(str(server.home), "SPARKWEB_JOB=gone\0"))
        assert jobs.look([("gone-1", 0)])[0].state == others.look([("gone", 0)])[0].state == "running"
        jobs.remove("gone")
        assert jobs.look([("gone", 0)])[0].state == "missing"
        for each, name in ((jobs, "gone-1"), (others, "gone")):
            each.cancel(name, grace_s=1)


def test_cancel_leaves_a_namesake_in_another_home_alone(openssh: OpenSsh, node: ParamikoTransport) -> None:
    with connect(openssh.start("other", kinds=("ed25519",)).endpoint()) as other:
        jobs, others = NodeJobs(node), NodeJobs(other)
        jobs.start("same", "sleep 300")
        others.start("same", "sleep 300")
        assert jobs.cancel("same", grace_s=1).state == "exited"
        assert others.look([("same", 0)])[0].state == "running"
        assert others.cancel("same", grace_s=1).state == "exited"


def test_cancel_touches_nothing_else(node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    jobs.start("one", "sleep 300")
    jobs.start("one1", "sleep 300")
    jobs.start("on", "sleep 300")
    jobs.cancel("one", grace_s=1)
    assert [look.state for look in jobs.look([("one", 0), ("one1", 0), ("on", 0)])] == ["exited", "running", "running"]
    with pytest.raises(ValueError, match="cancel it first"):
        jobs.remove("on")
    jobs.cancel("one1", grace_s=1)
    jobs.cancel("on", grace_s=1)


def test_a_gentle_end_is_given_its_time(node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    # The signal reaches the sleep too, and some shells report such an end on their own stderr: not what is tested here.
    jobs.start("gentle", 'trap "sleep 1; echo goodbye; exit 5" TERM; echo up; while :; do sleep 0.1; done 2>/dev/null')
    until(lambda: jobs.look([("gentle", 0)])[0].data)
    look = jobs.cancel("gentle", grace_s=10)
    assert (look.state, look.exit_code) == ("exited", 5)
    assert jobs.look([("gentle", 0)])[0].data == b"up\ngoodbye\n"


def test_a_job_cancelled_before_its_start_never_starts(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    assert (jobs.cancel("early").state, jobs.cancel("early").exit_code) == ("exited", 143)
    assert jobs.start("early", "echo x > began").state == "exited"
    time.sleep(0.3)
    assert not (server.home / "began").exists()
    jobs.remove("early")
    assert jobs.look([("early", 0)])[0].state == "missing"


def test_a_killed_keeper_is_lost_and_its_tree_can_still_be_ended(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    pid = jobs.start("killed", "echo up; sleep 300").pid
    assert pid is not None
    until(lambda: jobs.look([("killed", 0)])[0].data)
    os.kill(pid, signal.SIGKILL)
    until(lambda: jobs.look([("killed", 0)])[0].state != "running")
    look = jobs.look([("killed", 0)])[0]
    assert (look.state, look.reason, look.data, look.exit_code) == ("lost", "killed", b"up\n", None)
    assert carrying(str(server.home), "SPARKWEB_JOB=killed")
    assert jobs.cancel("killed", grace_s=1).state == "lost"
    assert not carrying(str(server.home), "SPARKWEB_JOB=killed")


def test_a_reboot_is_told_by_the_boot_id(tmp_path: Path, node: ParamikoTransport) -> None:
    boot_id = tmp_path / "boot id"
    boot_id.write_text("first\n")
    jobs = NodeJobs(node, boot_id_path=str(boot_id))
    assert jobs.start("old", "echo up; sleep 300").boot_id == "first"
    until(lambda: jobs.look([("old", 0)])[0].data)
    boot_id.write_text("second\n")
    look = jobs.look([("old", 0)])[0]
    assert (look.state, look.reason, look.boot_id, look.data) == ("lost", "rebooted", "first", b"up\n")
    boot_id.write_text("first\n")
    jobs.cancel("old", grace_s=1)


def test_a_number_that_was_given_to_another_process_is_not_the_job(server: Sshd, node: ParamikoTransport) -> None:
    jobs = NodeJobs(node)
    jobs.start("reused", "sleep 300")
    jobs.cancel("reused", grace_s=1)
    place = folder(server, "reused")
    (place / "rc").unlink()
    _, start, boot = (place / "pid").read_text().split()
    (place / "pid").write_text(f"{os.getpid()} {start} {boot}\n")
    (place / "child").write_text(f"{os.getpid()} {start}\n")
    assert jobs.look([("reused", 0)])[0].reason == "killed"
    jobs.cancel("reused", grace_s=0.5)  # this very process would die of it


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_secrets_are_in_no_command_line_and_no_file(server: Sshd, node: ParamikoTransport) -> None:
    secret = "hf_" + "Q7" * 20 + "'\"$`\\ \n\t ü"
    jobs = NodeJobs(node)
    jobs.start("secret", 'printf %s "$TOKEN" | sha256sum; sleep 2; sh -c "sleep 2"', environment={"TOKEN": secret})
    until(lambda: jobs.look([("secret", 0)])[0].data)
    plain = secret[:43].encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert plain not in (entry / "cmdline").read_bytes()
            except OSError:
                continue
    for path in folder(server, "secret").iterdir():
        assert not path.is_file() or plain not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0
    look = ended(jobs, "secret")
    assert look.data.split()[0].decode() == hashlib.sha256(secret.encode()).hexdigest()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"job-1 running 0 - - - -",  # a word too few
        b"job-1 exited " + b"9" * 5000 + b" 0 - - - -",  # a number that no int takes
        b"job-1 exited 3 zero 12 boot - -",
        b"job-1 dancing 3 0 12 boot - -",
        b"job-2 exited 3 0 12 boot - -",  # of another job
        b"job-1 lost 3 - 12 boot <script> -",
        b"job-1 exited 3 0 12 " + b"b" * 4000 + b" - -",
        b"\xff\xfe\x00 running 0 - - - - -",
    ],
)
def test_a_node_that_answers_nonsense_is_told_so(said: bytes) -> None:
    def answer(script: str, _: bytes) -> Result:
        nonce = script.partition("nonce=")[2].split("\n")[0].encode()
        return Result(nonce + b" " + said + b"\nabc" + nonce + b".\n", b"", 0)

    jobs = NodeJobs(Recorded("node").on("look job-1", answer))
    with pytest.raises(BadAnswer) as caught:
        jobs.look([("job-1", 0)])
    assert (caught.value.reason, caught.value.hop) == ("bad_answer", "node")
    assert len(caught.value.evidence) < 1000
