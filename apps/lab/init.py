"""The first process of a pretend node: it starts what the SSH server asks for, reaps it, and takes all of it along when it ends.

Run as a script with nothing but the standard library. With `mount` it is PID 1 of fresh mount, pid, network, uts and ipc
namespaces and gives the node a root folder of its own; with `rewrite` it is an ordinary process (a subreaper).
Spoken over a SEQPACKET socket, one JSON object per message; a spawn carries its three file descriptors along.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CLONE_NEWUSER = 0x10000000
libc = ctypes.CDLL(None, use_errno=True)


MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
KEPT = ((2, 2), (4, 4), (8, 8), (1024, 1024), (2048, 2048), (4096, 1 << 21))  # statvfs flag -> mount flag


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """mount(2). Raises OSError."""
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), None if data is None else data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {source} at {target}: {os.strerror(number)}")


def bind(source: str, target: str, *, read_only: bool = False, recursive: bool = True) -> None:
    mount(source, target, None, MS_BIND | (MS_REC if recursive else 0))
    if read_only:  # flags that another namespace has locked must be given again
        held = os.statvfs(target).f_flag
        mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | sum(flag for seen, flag in KEPT if held & seen))


def build_root(root: str, runtime: str, files: str) -> None:
    """Give the namespace the node's own root: the host's libraries read-only, the node's files and figures, fresh /proc."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    bind(root, root, recursive=False)
    bind("/", f"{root}/run/lab/host", read_only=True, recursive=False)
    if os.path.ismount("/usr"):
        bind("/usr", f"{root}/run/lab/host/usr", read_only=True)
    bind(runtime, f"{root}/run/lab/door")
    for name in ("lib", "lib64", "lib32", "libx32"):
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
            bind(f"/{name}", f"{root}/{name}", read_only=True)
    bind("/usr/lib", f"{root}/usr/lib", read_only=True)
    if os.path.isdir("/usr/lib64"):
        bind("/usr/lib64", f"{root}/usr/lib64", read_only=True)
    if os.path.exists(f"{root}/usr/lib/os-release"):
        bind(f"{root}/etc/os-release", f"{root}/usr/lib/os-release", read_only=True)
    # Room for /dev/shm too, where probes work: on a Spark it is half of the memory.
    mount("tmpfs", f"{root}/dev", "tmpfs", 0, "size=256m,mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        with open(f"{root}/dev/{name}", "w"):
            pass
        bind(f"/dev/{name}", f"{root}/dev/{name}")
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        os.symlink(target, f"{root}/dev/{name}")
    os.makedirs(f"{root}/dev/shm")
    os.makedirs(f"{root}/dev/infiniband")
    mount("proc", f"{root}/proc", "proc")
    for name in ("meminfo", "uptime", "stat", "loadavg", "version", "cpuinfo", "modules"):
        if os.path.exists(f"{files}/{name}") and os.path.exists(f"{root}/proc/{name}"):
            bind(f"{files}/{name}", f"{root}/proc/{name}", read_only=True)
    bind(f"{root}/proc/sys", f"{root}/proc/sys", read_only=True)
    bind(f"{files}/boot_id", f"{root}/proc/sys/kernel/random/boot_id", read_only=True)
    for name in ("ostype", "osrelease", "version"):
        if os.path.exists(f"{files}/{name}"):
            bind(f"{files}/{name}", f"{root}/proc/sys/kernel/{name}", read_only=True)
    if os.path.exists(f"{root}/proc/sysrq-trigger"):
        bind("/dev/null", f"{root}/proc/sysrq-trigger")


def enter_root(root: str) -> None:
    """pivot_root rather than chroot: in a chroot no user namespace may be made."""
    os.makedirs(f"{root}/run/lab/old", exist_ok=True)
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "run/lab/old"], check=True, capture_output=True)
    os.chroot(".")
    os.chdir("/")
    if libc.umount2(b"/run/lab/old", 2) != 0:  # MNT_DETACH
        raise OSError(ctypes.get_errno(), "umount of the old root")


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh", b"lo", 0x1 | 0x40)
        fcntl.ioctl(probe.fileno(), 0x8914, request)  # SIOCSIFFLAGS, IFF_UP|IFF_RUNNING


def become_user(uid: int) -> None:
    """A user namespace in which the lab's own user is uid 1000: no right over the host remains, its files still belong to it."""
    inside, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER) != 0:
        return
    try:
        with open("/proc/self/setgroups", "w") as out:
            out.write("deny")
        with open("/proc/self/uid_map", "w") as out:
            out.write(f"{uid} {inside} 1")
        with open("/proc/self/gid_map", "w") as out:
            out.write(f"{uid} {group} 1")
    except OSError:
        pass


def start(asked: dict[str, Any], descriptors: list[int], mode: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        os.closerange(3, 4096)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if asked.get("tty"):
            fcntl.ioctl(0, 0x540E, 0)  # TIOCSCTTY
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if mode == "mount":
            become_user(1000)
        try:
            os.chdir(asked["cwd"])
        except OSError:
            os.chdir("/")
        os.umask(0o022)
        os.execve(asked["argv"][0], asked.get("words") or asked["argv"], asked["env"])
    except BaseException as error:
        os.write(2, f"{asked['argv'][0]}: {error}\n".encode())
    os._exit(127)


def show_cgroup(pid: int, text: str) -> None:
    """Let /proc/PID/cgroup of a process say where the real machine would have it. Fails silently: it is a nicety."""
    path = f"/run/lab/cgroup-{pid}"
    try:
        with open(path, "w") as out:
            out.write(text)
        libc.mount(path.encode(), f"/proc/{pid}/cgroup".encode(), None, 4096, None)  # MS_BIND
    except OSError:
        pass


def descendants(mark: str) -> list[int]:
    """Processes that carry this node's mark in their environment, or that descend from us."""
    found, parents = [], {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as source:
                parents[int(name)] = int(source.read().rsplit(b")", 1)[1].split()[1])
            with open(f"/proc/{name}/environ", "rb") as source:
                if mark.encode() in source.read().split(b"\0"):
                    found.append(int(name))
        except (OSError, IndexError):
            continue
    ours = {os.getpid()}
    for _ in range(64):
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        if not more:
            break
        ours |= more
    return sorted((set(found) | ours) - {os.getpid()})


def kill_all(mark: str, mode: str) -> None:
    for _ in range(50):
        if mode == "mount" and os.getpid() == 1:  # of our own pid namespace: -1 is everybody in it
            try:
                os.kill(-1, signal.SIGKILL)
            except OSError:
                return
            return
        left = descendants(mark)
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except OSError:
            pass
        time.sleep(0.02)


def serve(door: socket.socket, mode: str, mark: str) -> None:
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    ids: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([door.fileno(), wake_read], [], [])
        if wake_read in ready:
            try:
                os.read(wake_read, 4096)
            except BlockingIOError:
                pass
        if door.fileno() in ready:
            data, ancillary, _, _ = door.recvmsg(1 << 20, socket.CMSG_SPACE(16 * 4))
            if not data:
                return
            descriptors: list[int] = []
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                    descriptors.extend(numbers)
            asked = json.loads(data)
            if asked["op"] == "spawn":
                pid = start(asked, descriptors, mode)
                ids[pid] = asked["id"]
                if asked.get("cgroup") and mode == "mount":
                    show_cgroup(pid, asked["cgroup"])
                door.send(json.dumps({"id": asked["id"], "pid": pid}).encode())
            elif asked["op"] == "signal":
                try:
                    os.kill(asked["pid"], asked["signal"])
                except OSError:
                    pass
            for descriptor in descriptors:
                os.close(descriptor)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid in ids:
                code = os.waitstatus_to_exitcode(status)
                door.send(json.dumps({"id": ids.pop(pid), "exit": code}).encode())


def main() -> None:
    given = json.loads(sys.argv[1])
    door = socket.socket(fileno=given["fd"])
    mode, mark = given["mode"], given["mark"]
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) if mode == "mount" else libc.prctl(
        PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        if mode == "mount":
            build_root(given["root"], given["runtime"], given["files"])
            loopback_up()
            socket.sethostname(given["hostname"])
            enter_root(given["root"])
    except (OSError, subprocess.CalledProcessError) as error:
        detail = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else ""
        door.send(json.dumps({"failed": f"{error} {detail}"}).encode())
        return
    door.send(json.dumps({"ready": os.getpid()}).encode())
    try:
        serve(door, mode, mark)
    finally:
        kill_all(mark, mode)


if __name__ == "__main__":
    main()
