"""A real OpenSSH server of our own: a free loopback port, the current user, its own host key, nothing of /etc/ssh.

    with OpenSshServer(folder, authorized=[public_key]) as server:
        server.address, server.port, server.user, server.host_keys()

Everything it keeps lies in its folder; the host keys stay from one start to the next, as on a real machine.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

ADDRESS = "127.0.0.1"
START_WITHIN_S = 15.0
SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
PRIVILEGE_SEPARATION = Path("/run/sshd")


class OpenSshProblem(Exception):
    """The server can't run here; the text says what is missing and what to do."""


@dataclass(frozen=True)
class HostKey:
    type: str  # ssh-ed25519
    sha256: str  # SHA256:… as ssh-keygen -lf prints it


class OpenSshServer:
    """One sshd. `port` is 0 until `start`; `folder` is made when it is not there."""

    address = ADDRESS

    def __init__(self, folder: Path, *, authorized: Sequence[str] = ()) -> None:
        self.folder = folder.absolute()
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.port = 0
        self.log = self.folder / "sshd.log"
        self._authorized = tuple(authorized)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OpenSshServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts sshd and waits until it greets. Raises OpenSshProblem."""
        sshd = find_program("sshd", package="openssh-server")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_host_key()
        (self.folder / "authorized_keys").write_text("")
        for key in self._authorized:
            self.authorize(key)
        if os.geteuid() == 0:  # sshd refuses to start as root without it; the system's own unit makes it the same way
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        for _ in range(5):  # somebody else may take a free port before sshd does
            self.port = _free_port()
            if self._started(sshd):
                return
        raise OpenSshProblem(f"sshd did not start: {self._last_words()}")

    def stop(self) -> None:
        """Ends sshd with every connection that it serves. Does nothing when it isn't running."""
        process, self._process = self._process, None
        if process is None:
            return
        connections = _descendants(process.pid, named="sshd")  # each leads a session of its own
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in connections:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def authorize(self, public_key: str) -> None:
        """Lets the owner of `public_key` (one line, as in authorized_keys) in; at any time."""
        line = public_key.strip()
        if "\n" in line or len(line.split()) < 2:
            raise OpenSshProblem(f"not a public key in one line: {line[:40]!r}")
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(f"{line}\n")

    def host_keys(self) -> list[HostKey]:
        """What a person would read on the machine's console to compare with what the product shows."""
        words = [find_program("ssh-keygen", package="openssh-client"), "-lf", str(self._host_key_path) + ".pub"]
        printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        kind = Path(f"{self._host_key_path}.pub").read_text().split()[0]
        return [HostKey(type=kind, sha256=printed.split()[1])]

    @property
    def _host_key_path(self) -> Path:
        return self.folder / "host_ed25519"

    def _make_host_key(self) -> None:
        if self._host_key_path.exists():
            return
        keygen = find_program("ssh-keygen", package="openssh-client")
        words = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self._host_key_path)]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise OpenSshProblem(f"ssh-keygen made no host key: {done.stderr.strip()}")

    def _started(self, sshd: str) -> bool:
        config = self.folder / "sshd_config"
        config.write_text(configuration(self.folder, port=self.port, user=self.user, pam=_needs_pam(self.user)))
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [sshd, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._process = process
        deadline = time.monotonic() + START_WITHIN_S
        while process.poll() is None and time.monotonic() < deadline:
            if _greets(self.port):
                return True
            time.sleep(0.05)
        self.stop()
        return False

    def _last_words(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:]) or "it said nothing"


def configuration(folder: Path, *, port: int, user: str, pam: bool) -> str:
    """The sshd_config: keys only, one user, loopback, no names looked up."""

    def quoted(path: Path) -> str:
        return '"' + str(path).replace("%", "%%") + '"'

    lines = [
        f"ListenAddress {ADDRESS}:{port}",
        f'HostKey "{folder / "host_ed25519"}"',
        f"AuthorizedKeysFile {quoted(folder / 'authorized_keys')}",
        "PidFile none",
        f"AllowUsers {user}",
        "PermitRootLogin prohibit-password",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        f"UsePAM {'yes' if pam else 'no'}",
        "StrictModes no",  # the folder may lie under a path that others may write, such as /tmp
        "UseDNS no",
        "AllowTcpForwarding yes",
        "AllowAgentForwarding no",
        "X11Forwarding no",
        "PrintMotd no",
        "PrintLastLog no",
        "MaxSessions 100",
        "MaxStartups 100",
        "Subsystem sftp internal-sftp",
        f'SetEnv "SPARKWEB_LOCKS={folder}"',  # a node of its own, although it is this machine
        "LogLevel VERBOSE",
    ]
    return "\n".join(lines) + "\n"


def find_program(name: str, *, package: str) -> str:
    """The absolute path of a program. Raises OpenSshProblem naming the package that holds it."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")
    if path is None:
        sudo = "" if os.geteuid() == 0 else "sudo "
        raise OpenSshProblem(f"{name} is not installed; install it with: {sudo}apt-get install -y {package}")
    return path


def _needs_pam(user: str) -> bool:
    """Without PAM, sshd as root refuses an account whose password is locked ('!'), even with a key; with PAM it asks
    the system, which does not mind. Only root can read this, and sshd checks it only as root."""
    try:
        lines = Path("/etc/shadow").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith(f"{user}:!") for line in lines)


def _descendants(root: int, *, named: str) -> list[int]:
    """Processes below `root` whose name begins with `named` (sshd; since OpenSSH 9.8 also sshd-session, sshd-auth)."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = stat.read_text(errors="replace").rpartition(")")
            if before.partition("(")[2].startswith(named):
                parents[int(stat.parent.name)] = int(after.split()[1])
    found = [root]
    for pid in found:  # grows while it is walked
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _greets(port: int) -> bool:
    try:
        with socket.create_connection((ADDRESS, port), timeout=5) as door:
            return door.recv(64).startswith(b"SSH-2.0-")
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])
