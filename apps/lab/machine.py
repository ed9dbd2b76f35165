"""The part of a pretend node that is real: its root folder, its first process, and the door its stand-ins knock at."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from apps.lab import figures
from apps.lab.redirect import Rewriter
from apps.lab.world import Node

ROOM = Path(__file__).parent
HOST_PROGRAMS = [
    "[",
    "awk",
    "base64",
    "basename",
    "bash",
    "bzip2",
    "cat",
    "chgrp",
    "chmod",
    "chown",
    "chunk",
    "cksum",
    "cmp",
    "comm",
    "cp",
    "csplit",
    "cut",
    "date",
    "dash",
    "dd",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "env",
    "expand",
    "expr",
    "false",
    "fgrep",
    "file",
    "find",
    "flock",
    "fmt",
    "fold",
    "grep",
    "gunzip",
    "gzip",
    "head",
    "install",
    "join",
    "kill",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mktemp",
    "mv",
    "nice",
    "nl",
    "nohup",
    "numfmt",
    "od",
    "paste",
    "pathchk",
    "perl",
    "pr",
    "printenv",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setsid",
    "sh",
    "sha1sum",
    "sha224sum",
    "sha256sum",
    "sha512sum",
    "shuf",
    "sleep",
    "sort",
    "split",
    "stat",
    "stdbuf",
    "stty",
    "sum",
    "tac",
    "tail",
    "tar",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "tsort",
    "tty",
    "uniq",
    "unlink",
    "wc",
    "xargs",
    "xz",
    "yes",
    "zcat",
    "zstd",
    "which",
    "tail",
    "mawk",
    "gawk",
    "cksum",
]


def host_path(program: str) -> str | None:
    for folder in ("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"):
        if os.access(f"{folder}/{program}", os.X_OK):
            return os.path.realpath(f"{folder}/{program}")
    return None


def python_path() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


class Machine:
    """Starts and ends real processes of one node. `mode` is mount or rewrite."""

    def __init__(
        self,
        node: Node,
        mode: str,
        answer: Callable[[Machine, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
        tools: Iterable[str],
        container_tools: Iterable[str],
    ) -> None:
        self.node, self.mode, self._answer = node, mode, answer
        self._tools, self._container_tools = list(tools), list(container_tools)
        self.runtime = Path(tempfile.mkdtemp(prefix="lab-"))
        (node.folder / "runtime").write_text(str(self.runtime))
        self.files = node.folder / "figures"
        self.rewriter: Rewriter | None = None
        self._door: socket.socket | None = None
        self._init: subprocess.Popen[bytes] | None = None
        self._server: asyncio.Server | None = None
        self._standin = ""
        self._next = 0
        self._started: dict[int, asyncio.Future[int]] = {}
        self._ended: dict[int, asyncio.Future[int]] = {}
        self.pids: dict[int, int] = {}
        self.mark = f"LAB_NODE={node.folder}"
        self.init_pid = 0

    # the root folder

    @property
    def bin(self) -> str:
        return "/usr/bin" if self.mode == "mount" else str(self.node.root / "usr/bin")

    @property
    def container_bin(self) -> str:
        return "/usr/lib-lab/bin" if self.mode == "mount" else str(self.node.root / "usr/lib-lab/bin")

    @property
    def home(self) -> str:
        return "/home/aurora" if self.mode == "mount" else str(self.node.root / "home/aurora")

    def inside(self, path: str) -> Path:
        """Where a path of the node lies on this machine."""
        if path.startswith(str(self.node.root)):
            return Path(path)
        if self.rewriter is not None:
            path = self.rewriter.out(path.encode()).decode()
        return self.node.root / path.lstrip("/")

    def build(self) -> None:
        root = self.node.root
        for name in (
            "usr/bin",
            "usr/lib",
            "usr/lib64",
            "usr/lib-lab/bin",
            "etc/systemd/system",
            "home/aurora/.ssh",
            "tmp",
            "run/lab/host",
            "run/lab/door",
            "var/tmp",
            "var/log",
            "opt",
            "root",
            "dev",
            "proc",
            "sys/class",
            "models",
            "mnt",
            "usr/local/bin",
            "usr/share",
            "etc/docker",
            "etc/cdi",
        ):
            (root / name).mkdir(parents=True, exist_ok=True)
        os.chmod(root / "tmp", 0o1777)
        for name, target in (("bin", "usr/bin"), ("sbin", "usr/bin"), ("usr/sbin", "bin")):
            if not os.path.lexists(root / name):
                os.symlink(target, root / name)
        for name in ("lib", "lib64", "lib32", "libx32"):
            if os.path.lexists(root / name):
                continue
            if os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}").lstrip("/"), root / name)
            elif os.path.isdir(f"/{name}"):
                (root / name).mkdir()
        if os.path.exists("/etc/ld.so.cache"):
            shutil.copyfile("/etc/ld.so.cache", root / "etc/ld.so.cache")
        figures.write_etc(self.node)
        figures.write_sys(self.node)
        self.files.mkdir(parents=True, exist_ok=True)
        figures.write_fixed(self.node, self.files)
        figures.write_moving(self.node, self.files)
        self._programs()

    def _programs(self) -> None:
        root, prefix = self.node.root, "/run/lab/host" if self.mode == "mount" else ""
        door = "/run/lab/door/s" if self.mode == "mount" else str(self.runtime / "s")
        perl = host_path("perl")
        if perl:
            text = (ROOM / "standin.pl").read_text().replace("@PERL@", prefix + perl)
        else:
            text = (ROOM / "standin.py.txt").read_text().replace("@PYTHON@", prefix + python_path())
        script = root / "usr/lib-lab/standin"
        self._standin = text.replace("@DOOR@", door)
        script.write_text(self._standin)
        os.chmod(script, 0o755)
        if perl:
            dial = root / "usr/lib-lab/dial"
            dial.write_text((ROOM / "dial.pl").read_text().replace("@PERL@", prefix + perl))
            os.chmod(dial, 0o755)
        lead = "/usr/lib-lab/standin" if self.mode == "mount" else str(script)
        for folder, tools in (("usr/bin", self._tools), ("usr/lib-lab/bin", self._container_tools)):
            place = root / folder
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            for name in dict.fromkeys(HOST_PROGRAMS):
                found = host_path(name)
                if found and name not in tools:
                    os.symlink(prefix + found, place / name)
            for name in tools:
                os.symlink(lead, place / name)

    def install(self, path: str, name: str) -> None:
        """A program anywhere on the node that is answered by the stand-in called `name`, whatever the file is called."""
        text = self._standin.replace("my ($name) = $0 =~ m{([^/]+)$};", f"my $name = '{name}';")
        file = self.inside(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace('sys.argv[0].rsplit("/", 1)[-1]', repr(name)))
        os.chmod(file, 0o755)

    # the first process

    async def start(self) -> None:
        """Raises OSError when the namespaces that `mount` needs are refused."""
        if self.mode == "rewrite":
            self.rewriter = Rewriter(self.node.root, self.files)
        self.build()
        self._server = await asyncio.start_unix_server(
            lambda r, w: self._answer(self, r, w), path=str(self.runtime / "s"), limit=1 << 22
        )
        os.chmod(self.runtime / "s", 0o777)
        await self.boot()

    async def boot(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        given = {
            "fd": theirs.fileno(),
            "mode": self.mode,
            "mark": self.mark,
            "root": str(self.node.root),
            "runtime": str(self.runtime),
            "files": str(self.files),
            "hostname": self.node.name,
        }
        words = [python_path(), "-IS", str(ROOM / "init.py"), json.dumps(given)]
        if self.mode == "mount":
            root = ["-r"] if os.geteuid() != 0 else []
            words = ["unshare", *root, "-m", "-p", "-n", "-u", "-i", "--fork", "--kill-child=KILL", *words]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LAB_NODE": str(self.node.folder)}
        try:
            self._init = subprocess.Popen(
                words,
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        finally:
            theirs.close()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            first = await asyncio.wait_for(loop.sock_recv(ours, 1 << 16), 20)
        except TimeoutError:
            first = b""
        said = json.loads(first) if first else {"failed": "no answer"}
        if "ready" not in said:
            with contextlib.suppress(OSError):
                self._init.kill()
            _, errors = await asyncio.to_thread(self._init.communicate)
            ours.close()
            raise OSError(f"{said.get('failed')} {errors.decode(errors='replace').strip()}")
        self._door = ours
        loop.add_reader(ours.fileno(), self._news, ours)
        self.init_pid = self._find_init()

    def _find_init(self) -> int:
        assert self._init is not None
        if self.mode != "mount":
            return self._init.pid
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()[0])
        return self._init.pid

    def _news(self, door: socket.socket) -> None:
        try:
            data = door.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(door.fileno())
            door.close()
            if self._door is door:
                self._door = None
            for future in [*self._started.values(), *self._ended.values()]:
                if not future.done():
                    future.set_result(-9)
            return
        said = json.loads(data)
        if "pid" in said and said["id"] in self._started:
            if not self._started[said["id"]].done():
                self._started[said["id"]].set_result(said["pid"])
        elif "exit" in said:
            ended = self._ended.pop(int(said["id"])) if int(said["id"]) in self._ended else None
            if ended is not None and not ended.done():
                ended.set_result(said["exit"])

    async def spawn(
        self,
        argv: list[str],
        environment: dict[str, str],
        cwd: str,
        descriptors: list[int],
        *,
        words: list[str] | None = None,
        tty: bool = False,
        cgroup: str = "",
    ) -> tuple[int, asyncio.Future[int]]:
        """Start a program on the node: its pid as the node sees it, and a future of its exit code (negative: the signal)."""
        loop = asyncio.get_running_loop()
        if self._door is None:
            raise ConnectionResetError("the node is down")
        self._next += 1
        number = self._next
        self._started[number], ended = loop.create_future(), loop.create_future()
        self._ended[number] = ended
        asked = {
            "op": "spawn",
            "id": number,
            "argv": argv,
            "env": {**environment, "LAB_NODE": str(self.node.folder)},
            "cwd": cwd,
            "tty": tty,
            "cgroup": cgroup,
        }
        if words is not None:
            asked["words"] = words
        body = json.dumps(asked).encode()
        for attempt in range(200):
            try:
                self._door.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
                break
            except BlockingIOError:
                await asyncio.sleep(0.01 * min(10, attempt + 1))
        pid = await self._started[number]
        del self._started[number]
        return pid, ended

    def signal(self, pid: int, number: int) -> None:
        if self._door is not None and pid > 1:
            with contextlib.suppress(OSError):
                self._door.send(json.dumps({"op": "signal", "pid": pid, "signal": number}).encode())

    def host_pids(self) -> dict[int, int]:
        """This machine's pids of the node's processes -> the node's pids."""
        found: dict[int, int] = {}
        waiting = [self.init_pid]
        while waiting:
            pid = waiting.pop()
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    waiting.extend(int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split())
                status = Path(f"/proc/{pid}/status").read_text()
            except (OSError, ValueError):
                continue
            line = next((line for line in status.splitlines() if line.startswith("NSpid:")), f"NSpid: {pid}")
            found[pid] = int(line.split()[-1]) if self.mode == "mount" else pid
        return found

    async def power_off(self) -> None:
        """End every process of the node."""
        if self._init is None:
            return
        if self._door is not None:
            asyncio.get_running_loop().remove_reader(self._door.fileno())
            self._door.close()
            self._door = None
        for future in [*self._started.values(), *self._ended.values()]:
            if not future.done():
                future.set_result(-9)
        self._ended.clear()
        if self.mode == "mount":
            for pid in (self.init_pid, self._init.pid):
                if pid > 1:  # 0 would be our own process group
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._init.wait, 5)
        if self._init.poll() is None:
            self._init.kill()
            await asyncio.to_thread(self._init.wait)
        if self._init.stderr is not None:
            self._init.stderr.close()
        self._init = None

    async def stop(self) -> None:
        await self.power_off()
        if self._server is not None:
            self._server.close()
        if self.rewriter is not None:
            self.rewriter.close()
        shutil.rmtree(self.runtime, ignore_errors=True)


def frame(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack(">I", len(payload)) + payload


def pack(items: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(item)) + item for item in items)


def unpack(data: bytes) -> list[bytes]:
    items: list[bytes] = []
    offset = 0
    while offset + 4 <= len(data):
        (size,) = struct.unpack_from(">I", data, offset)
        items.append(data[offset + 4 : offset + 4 + size])
        offset += 4 + size
    return items


def sweep(folder: Path) -> None:
    """End and remove what an earlier lab on the same folder left behind when it was killed: processes (they carry the folder in
    their environment), links and sockets under the temporary folder."""
    marks = f"LAB_NODE={folder}/".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{name}/environ").read_bytes()
            if any(word.startswith(marks) for word in environment.split(b"\0")):
                os.kill(int(name), signal.SIGKILL)
    with os.scandir("/tmp") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_symlink() and os.readlink(entry.path).startswith(f"{folder}/nodes/"):
                    os.unlink(entry.path)
    for path in folder.glob("nodes/*/runtime"):
        with contextlib.suppress(OSError):
            place = Path(path.read_text())
            if place.name.startswith("lab-") and place.parent == Path(tempfile.gettempdir()):
                shutil.rmtree(place, ignore_errors=True)
