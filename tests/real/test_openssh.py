"""The demo's own OpenSSH server: it lets in who holds the key, and nobody else, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.openssh import SBIN, OpenSshProblem, OpenSshServer, configuration, find_program

pytestmark = pytest.mark.skipif(
    shutil.which("sshd", path=f"{os.environ['PATH']}:{SBIN}") is None or shutil.which("ssh") is None,
    reason="sshd and ssh are not installed: apt-get install openssh-server openssh-client",
)


def make_key(folder: Path, name: str) -> Path:
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)], check=True)
    return path


def ask(server: OpenSshServer, key: Path, *words: str, known: Path) -> subprocess.CompletedProcess[str]:
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={known}"]
    options += ["-o", "StrictHostKeyChecking=accept-new", "-o", "IdentityAgent=none", "-i", str(key)]
    command = ["ssh", *options, "-p", str(server.port), f"{server.user}@{server.address}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def test_key_opens_and_another_key_does_not(tmp_path: Path) -> None:
    mine, other = make_key(tmp_path, "mine"), make_key(tmp_path, "other")
    with OpenSshServer(tmp_path / "a b%c", authorized=[(tmp_path / "mine.pub").read_text()]) as server:
        answer = ask(server, mine, "echo", "from-$((40+2))", known=tmp_path / "known")
        assert (answer.stdout, answer.returncode) == ("from-42\n", 0), answer.stderr
        refused = ask(server, other, "true", known=tmp_path / "known")
        assert refused.returncode == 255
        assert "Permission denied (publickey)" in refused.stderr
        server.authorize((tmp_path / "other.pub").read_text())
        assert ask(server, other, "true", known=tmp_path / "known").returncode == 0


def test_fingerprint_is_the_one_that_a_client_sees_and_it_stays(tmp_path: Path) -> None:
    mine = make_key(tmp_path, "mine")
    public = (tmp_path / "mine.pub").read_text()
    with OpenSshServer(tmp_path / "server", authorized=[public]) as server:
        ask(server, mine, "true", known=tmp_path / "known")
        shown = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "known")], capture_output=True, text=True)
        [key] = server.host_keys()
        assert key.type == "ssh-ed25519"
        assert shown.stdout.split()[1] == key.sha256
    with OpenSshServer(tmp_path / "server") as again:
        assert again.host_keys() == [key]
        assert ask(again, mine, "true", known=tmp_path / "known2").returncode == 255  # keys are given anew each time


def test_stop_ends_open_connections_and_may_be_repeated(tmp_path: Path) -> None:
    mine = make_key(tmp_path, "mine")
    server = OpenSshServer(tmp_path / "server", authorized=[(tmp_path / "mine.pub").read_text()])
    server.start()
    known = tmp_path / "known"
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={known}"]
    options += ["-o", "StrictHostKeyChecking=accept-new", "-i", str(mine)]
    words = ["ssh", *options, "-p", str(server.port), f"{server.user}@{server.address}", "echo here; exec sleep 60"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == b"here\n"
        server.stop()
        assert held.wait(timeout=20) == 255
    server.stop()
    assert ask(server, mine, "true", known=known).returncode == 255


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(OpenSshProblem, match=r"no-such-sshd is not installed.*apt-get install -y openssh-server"):
        find_program("no-such-sshd", package="openssh-server")


def test_configuration_listens_on_loopback_only_and_takes_no_password() -> None:
    text = configuration(Path("/x/y"), port=2222, user="ann", pam=False)
    assert "ListenAddress 127.0.0.1:2222\n" in text
    assert "AllowUsers ann\n" in text
    for line in ("PasswordAuthentication no", "KbdInteractiveAuthentication no", "UsePAM no"):
        assert f"{line}\n" in text


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-ed25519 AAAA\nssh-rsa BBBB"])
def test_authorize_refuses_what_is_no_key(tmp_path: Path, text: str) -> None:
    with pytest.raises(OpenSshProblem, match="not a public key"):
        OpenSshServer(tmp_path).authorize(text)
