"""Nodes for the scripts alone: a mount namespace each, with a root's home and a /srv of its own and a real sshd in it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from apps.plan.copying.wish import Place

CODE = "c0de5eed01"
IN = """
set -e
mount --make-rprivate /
mount --bind "$1/home" /root
mount --bind "$1/srv" /srv
exec "$2" -D -e -f "$1/sshd_config"
"""


def possible() -> bool:
    """Whether this machine lets us make such nodes."""
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("unshare", "nsenter", "rsync", "ssh", "sshd")):
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@dataclass
class Machine:
    name: str
    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    programs: str = field(default_factory=lambda: os.environ["PATH"])
    values: dict[str, str] = field(default_factory=dict)

    @property
    def srv(self) -> Path:
        return self.folder / "srv"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def place(self) -> Place:
        public = (self.folder / "host.pub").read_text().split()[:2]
        return Place(self.name, "root", "127.0.0.1", self.port, (" ".join(public),))

    def start(self) -> None:
        (self.folder / "srv").mkdir(parents=True)
        (self.folder / "home").mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "host")], check=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        os.makedirs("/run/sshd", exist_ok=True)
        (self.folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n"
        )
        words = ["unshare", "-m", "sh", "-c", IN, "sh", str(self.folder), shutil.which("sshd")]
        with (self.folder / "sshd.log").open("wb") as log:
            self.process = subprocess.Popen(words, stderr=log, stdout=log)
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError((self.folder / "sshd.log").read_text())

    def begin(self, script: str, **variables: str) -> subprocess.Popen[bytes]:
        """A job of this node, in a session of its own, as detached jobs are."""
        assert self.process is not None
        environment = {"PATH": self.programs, "HOME": "/root", "SPARKWEB_CODE": CODE, **variables}
        words = [shutil.which("nsenter"), "-t", str(self.process.pid), "-m", "/bin/sh", "-c", script]
        return subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def do(self, script: str, **variables: str) -> tuple[int, str]:
        process = self.begin(script, **variables)
        said = process.communicate(timeout=60)[0].decode()
        return process.returncode, said

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def value(said: str) -> str:
    return [line for line in said.splitlines() if line.startswith("sparkweb-value: ")][-1].removeprefix(
        "sparkweb-value: "
    )
