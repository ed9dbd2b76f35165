"""SSH: keys, sftp, detached work, where the doors lead, and that nothing dials out."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import asyncssh
import pytest

from apps.lab import Lab
from tests.lab.visit import HEAD, SECOND, Visit, until


def test_host_keys_are_what_the_lab_says(look: Visit) -> None:
    port = look.lab.nodes[HEAD].port
    scanned = subprocess.run(["ssh-keyscan", "-p", str(port), "127.0.0.1"], capture_output=True, text=True).stdout
    offered = {tuple(line.split()[1:3]) for line in scanned.splitlines() if not line.startswith("#")}
    assert offered == {tuple(key["public"].split()[:2]) for key in look.lab.nodes[HEAD].host_keys} and len(offered) == 2
    assert all(key["sha256"].startswith("SHA256:") for key in look.lab.nodes[HEAD].host_keys)


def test_only_aurora_with_a_known_key_comes_in(look: Visit, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    stranger = Visit(look.lab, other).run("true")
    assert stranger.returncode == 255
    words = [word.replace("aurora@", "root@") for word in look.words(HEAD)]
    assert subprocess.run([*words, "true"], capture_output=True, stdin=subprocess.DEVNULL).returncode == 255


def test_sftp_sees_the_nodes_own_files(look: Visit) -> None:
    async def work(connection: asyncssh.SSHClientConnection) -> None:
        async with connection.start_sftp_client() as sftp:
            home = await sftp.realpath(".")
            async with sftp.open("a.txt", "wb") as out:
                await out.write(b"x" * 100_000)
            assert (await sftp.stat(f"{home}/a.txt")).size == 100_000
            assert "vllm-cluster.service" in await sftp.listdir("/etc/systemd/system")
            assert "Qwen3.5-122B-A10B-FP8" in await sftp.listdir("/models")

    look.asyncly(work)
    assert look.out("wc -c < ~/a.txt").strip() == "100000"


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("10.1.230.190", 22, "No route to host"),
        ("127.0.0.1", 4, "Connection refused"),
        ("192.168.200.13", 30000, "Connection refused"),
        ("1.1.1.1", 443, "Network is unreachable"),
        ("example.org", 80, "Name or service not known"),
    ],
)
def test_tunnels_lead_nowhere_else(look: Visit, host: str, port: int, words: str) -> None:
    async def work(connection: asyncssh.SSHClientConnection) -> str:
        with pytest.raises(asyncssh.ChannelOpenError) as caught:
            await connection.open_connection(host, port)
        return caught.value.reason

    assert words in look.asyncly(work)


def test_tunnel_to_a_served_port(look: Visit) -> None:
    async def work(connection: asyncssh.SSHClientConnection) -> bytes:
        reader, writer = await connection.open_connection("127.0.0.1", 8000)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        return await reader.read()

    head, _, body = look.asyncly(work).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and json.loads(body)["data"][0]["id"] == "GLM-4.7-Flash"


@pytest.mark.parametrize(
    "command",
    [
        "curl -sS -m 3 http://1.1.1.1/",
        "curl -sS -m 3 https://huggingface.co/",
        "ssh -o ConnectTimeout=2 8.8.8.8 true",
        "ping -c 1 8.8.8.8",
        "rsync -a /etc/hostname 8.8.8.8:/tmp/",
        "scp /etc/hostname 8.8.8.8:/tmp/",
        "wget -q http://1.1.1.1/",
        "nc -z 1.1.1.1 80",
        "docker pull busybox",
        "hf download Qwen/Qwen3-0.6B",
    ],
)
def test_nothing_dials_out(look: Visit, command: str) -> None:
    for node in (HEAD, SECOND):
        assert look.run(command, node).returncode != 0


def test_all_listening_is_on_loopback(started: Lab) -> None:
    pid = started.about["pid"]
    family = {pid}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if int(Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[1]) in family:
                    family.add(int(name))
            except OSError:
                continue
    inodes = set()
    for member in family:
        for entry in Path(f"/proc/{member}/fd").iterdir() if Path(f"/proc/{member}/fd").exists() else []:
            try:
                found = re.match(r"socket:\[(\d+)\]", os.readlink(entry))
            except OSError:
                continue
            if found:
                inodes.add(found[1])
    seen = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                seen += 1
                assert fields[1].startswith("0100007F:"), fields[1]
    assert seen == 2


def test_detached_work_survives_its_channel_and_can_be_killed(look: Visit) -> None:
    look.out(
        "mkdir -p ~/j; setsid -f sh -c 'echo $$ > ~/j/pid; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.1; done' > ~/j/log 2>&1 < /dev/null"
    )
    first = int(look.out("sleep 0.5; wc -l < ~/j/log"))
    pid, start = look.out("p=$(cat ~/j/pid); echo $p; cut -d' ' -f22 /proc/$p/stat").split()
    assert int(look.out("sleep 0.5; wc -l < ~/j/log")) > first and int(start) > 0
    assert f"{pid} " in look.out("ps -eo pid,args") and look.run(f"kill -0 {pid}").returncode == 0
    assert look.run(f"kill -0 {pid}", SECOND).returncode != 0 or look.lab.redirect == "rewrite"
    look.out(f"kill -TERM -{pid}; sleep 0.3")
    assert look.run(f"kill -0 {pid}").returncode != 0


def test_many_sessions_at_once(look: Visit) -> None:
    async def work(connection: asyncssh.SSHClientConnection) -> list[str]:
        done = await asyncio.gather(
            *(connection.run("/bin/sh -s", input=f"sleep 0.2; docker ps -q | wc -l; echo {n}") for n in range(25))
        )
        return [str(result.stdout) for result in done]

    assert [out.split() for out in look.asyncly(work)] == [["3", str(n)] for n in range(25)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def marked(folder: Path) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if f"LAB_NODE={folder}/".encode() in Path(f"/proc/{name}/environ").read_bytes() and alive(int(name)):
                    found.append(int(name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("redirect", ["auto", "rewrite"])
def test_it_takes_all_it_started_along(tmp_path: Path, key: Path, redirect: str) -> None:
    folder = tmp_path / "lab"
    lab = Lab.start(folder, factor=200, redirect=redirect)
    lab.authorize(key.with_suffix(".pub").read_text())
    ports = {name: node.port for name, node in lab.nodes.items()}
    Visit(lab, key).out(
        "setsid -f sh -c 'sleep 300' >/dev/null 2>&1 </dev/null; setsid -f sleep 301 >/dev/null 2>&1 </dev/null"
    )
    assert len(marked(folder)) > 2
    assert lab.process is not None
    lab.process.send_signal(signal.SIGKILL)
    lab.process.wait()
    again = Lab.start(folder, factor=200, redirect=redirect)
    try:
        assert {
            name: node.port for name, node in again.nodes.items()
        } == ports  # and the keys, so that a pinned node stays known
        assert [node.host_keys for node in again.nodes.values()] == [node.host_keys for node in lab.nodes.values()]
        assert "sleep 30" not in Visit(again, key).out("ps -eo args")
    finally:
        again.stop()
        lab.stop()
    until(lambda: not marked(folder), within_s=10)
    assert not [
        entry for entry in os.scandir("/tmp") if entry.is_symlink() and os.readlink(entry.path).startswith(str(folder))
    ]


def test_ports_are_free_ones_and_two_labs_do_not_meet(started: Lab, rewritten: Lab) -> None:
    ports = [node.port for lab in (started, rewritten) for node in lab.nodes.values()]
    assert len(set(ports)) == 4
    assert time.time() > 0
