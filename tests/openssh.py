"""Real OpenSSH servers on loopback, each with its own host keys and account rules, for any test that wants a door."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from apps.remote.transport import Endpoint

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin:/bin")
KINDS = ("ed25519", "ecdsa")  # RSA keys take long to make: ask for them where they matter


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def make_key(path: Path, kind: str = "ed25519") -> str:
    """A new key pair in OpenSSH format at `path`; the private text."""
    size = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(["ssh-keygen", "-q", "-t", kind, *size, "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path.read_text()


@dataclass
class Sshd:
    """One running server. `endpoint()` has all its host keys pinned."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    folder: Path
    private_key: str = field(repr=False)
    home: Path

    @property
    def host_keys(self) -> tuple[tuple[str, str], ...]:
        lines = [path.read_text().split() for path in sorted(self.folder.glob("host_*.pub"))]
        return tuple((words[0], words[1]) for words in lines)

    def endpoint(
        self, *, via: Endpoint | None = None, kinds: tuple[str, ...] | None = None, **changes: object
    ) -> Endpoint:
        keys = tuple(key for key in self.host_keys if kinds is None or any(kind in key[0] for kind in kinds))
        base: dict[str, object] = dict(
            name=self.name,
            address="127.0.0.1",
            port=self.port,
            user=_me(),
            private_key=self.private_key,
            host_keys=keys,
            via=via,
        )
        return Endpoint(**{**base, **changes})  # type: ignore[arg-type]

    def children(self) -> list[int]:
        """Process ids of the server's session processes, all generations."""
        return _descendants(self.process.pid)

    def freeze(self) -> None:
        for pid in [self.process.pid, *self.children()]:
            _signal(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in [self.process.pid, *self.children()]:
            _signal(pid, signal.SIGCONT)

    def cut(self) -> None:
        """Kill the session processes: every connection breaks, the server stays."""
        for pid in self.children():
            if b"sshd" in _command_line(pid):
                _signal(pid, signal.SIGKILL)

    def stop(self) -> None:
        self.thaw()
        self.cut()
        self.process.terminate()
        self.process.wait(10)


class OpenSsh:
    """Starts servers: `openssh.start("spark-1", MaxSessions="10")`. All end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[Sshd] = []
        self.private_key = make_key(folder / "user")

    def start(
        self, name: str, *, kinds: tuple[str, ...] = KINDS, port: int | None = None, extra: str = "", **settings: str
    ) -> Sshd:
        """A server with host keys of these kinds. `settings` are sshd_config lines; `extra` is appended (Match
        blocks)."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        home = folder / "home"
        home.mkdir(exist_ok=True)
        for kind in kinds:
            if not (folder / f"host_{kind}").exists():
                make_key(folder / f"host_{kind}", kind)
        (folder / "authorized_keys").write_text((self.folder / "user.pub").read_text())
        for _ in range(5):
            process = self._launch(folder, home, kinds, port or free_port(), extra, settings)
            if process is not None:
                server = Sshd(name, process[1], process[0], folder, self.private_key, home)
                self.running.append(server)
                return server
        raise RuntimeError((folder / "log").read_text())

    def _launch(
        self,
        folder: Path,
        home: Path,
        kinds: tuple[str, ...],
        port: int,
        extra: str,
        settings: dict[str, str],
    ) -> tuple[subprocess.Popen[bytes], int] | None:
        rules = {
            "ListenAddress": "127.0.0.1",
            "Port": str(port),
            "PidFile": "none",
            "UsePAM": "no",
            "StrictModes": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "AuthorizedKeysFile": str(folder / "authorized_keys"),
            "LogLevel": "ERROR",
            "UseDNS": "no",
            "SetEnv": f"HOME={home} SPARKWEB_LOCKS={home}",  # each server is a machine of its own
            "Subsystem": "sftp internal-sftp",
            **settings,
        }
        lines = [f"{key} {value}" for key, value in rules.items()]
        lines += [f"HostKey {folder / f'host_{kind}'}" for kind in kinds]
        (folder / "sshd_config").write_text("\n".join([*lines, extra, ""]))
        log = (folder / "log").open("ab")
        process = subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    return process, port
            time.sleep(0.02)
        process.kill()
        process.wait()
        return None

    def stop(self) -> None:
        for server in self.running:
            server.stop()


@pytest.fixture
def openssh(tmp_path: Path) -> Iterator[OpenSsh]:
    """Real sshd on loopback; skipped, with the reason, where none is installed or allowed."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no OpenSSH server here: apt-get install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    servers = OpenSsh(tmp_path)
    yield servers
    servers.stop()


def _me() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _descendants(root: int) -> list[int]:
    """Children of a process in all generations, deepest last."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            except (OSError, IndexError):
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        children = parents.get(waiting.pop(0), [])
        found += children
        waiting += children
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
