"""Two real nodes on one machine: containers with systemd, OpenSSH and a Docker of their own, in a network of their own.

    python scripts/real_nodes.py missing             name what this machine lacks for them; exit code 1 when anything
    python scripts/real_nodes.py start [--install]   start them (`--install` gets what is missing with apt-get first)
    python scripts/real_nodes.py build               make what they are made of, starting nothing: file systems and engine
    python scripts/real_nodes.py stop                end and remove them; what was built stays
    python scripts/real_nodes.py inside NODE WORD…   run a command in a node

    with Nodes(folder, engine=…) as nodes:
        nodes.head.address, nodes.head.port, nodes.head.host_keys, nodes.private_key

No service of this machine is touched: the outer Docker daemon is one of our own, with its data, socket and process id
in `folder`, and it lives in a network namespace that has no way out: bridges without an uplink, no default route. The
only door is one loopback port, which a small process forwards to the first node's sshd. The second node is on the
fabric alone and can be reached through the first only.

Needs root on Debian 12 or newer (or Ubuntu), 4 GiB of memory and 3 GiB of disk. Works with the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

BASE = Path(__file__).resolve().parent.parent
if str(BASE) not in sys.path:
    sys.path.insert(0, str(BASE))

from scripts import real_engine, real_nodes_images as images  # noqa: E402, I001

FILES = images.FILES
SBIN = "/usr/sbin:/sbin"
GIB = 1024**3
MEMORY_NEEDED, DISK_NEEDED = 4 * GIB, 3 * GIB
MANAGEMENT, FABRIC = "10.77.0", "10.77.1"  # /24 each, inside the namespace only
GATEWAY = f"{MANAGEMENT}.1"  # where registry and hub listen
HEAD, SECOND = "spark-1", "spark-2"
USER = "spark"
REGISTRY_PORT, HUB_PORT = 5000, 8080
ENGINE_IMAGE = "sparklab/engine:1"
MODEL_INSIDE = "/models/tiny-qwen3"
ENGINE_INSIDE = "/srv/sparklab"
BOOT_WITHIN_S = 90.0
NEEDED = (  # program, package
    ("dockerd", "docker.io"),
    ("docker", "docker.io"),
    ("mmdebstrap", "mmdebstrap"),
    ("docker-registry", "docker-registry"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("ssh-keygen", "openssh-client"),
)
TESTS_NEED = (
    ("chromium", "chromium"),
    ("docker-compose", "docker-compose"),
)  # besides: a browser, the production set-up
# By bit, as far as Docker 20.10 knows their names; a node gets those that this root has.
CAPABILITIES = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
]


class NodesProblem(Exception):
    """The nodes can't run here or did not start; the text says what is missing and what to do."""


@dataclass(frozen=True)
class HostKey:
    type: str  # ssh-ed25519
    sha256: str  # SHA256:… as ssh-keygen -lf prints it


@dataclass(frozen=True)
class Node:
    """How a node is reached: the head from this machine, the second from the head."""

    name: str
    address: str
    port: int
    fabric: str
    user: str
    host_keys: tuple[HostKey, ...]


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout holds results only."""
    print(f"real nodes: {text}", file=sys.stderr, flush=True)


def folder_from(environment: Mapping[str, str]) -> Path:
    """Where everything lies; SPARKWEB_CACHE outlives a VAR and is shared by many."""
    root = environment.get("SPARKWEB_CACHE") or environment.get("VAR") or str(BASE / "var")
    return Path(root).absolute() / "nodes"


# What the machine must have


def find(program: str) -> str | None:
    """A program's path. Docker's own client is wanted, the one that came with the daemon."""
    if program == "docker" and Path("/usr/bin/docker").exists():
        return "/usr/bin/docker"
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SBIN}")


def missing(folder: Path, needed: Sequence[tuple[str, str]] = NEEDED) -> list[str]:
    """What this machine lacks, one sentence each; empty when the nodes can run."""
    if sys.platform != "linux":
        return [f"Linux is needed; this is {sys.platform}"]
    found = []
    if os.geteuid() != 0:
        found.append("root is needed: run it with sudo, or as root in a virtual machine")
    packages = sorted({package for program, package in needed if find(program) is None})
    if packages:
        programs = ", ".join(program for program, package in needed if package in packages and find(program) is None)
        found.append(f"{programs} not installed: apt-get install -y --no-install-recommends {' '.join(packages)}")
    found += _lacks_rights() if os.geteuid() == 0 else []
    found += _lacks_room(folder)
    return found


def _lacks_rights() -> Iterator[str]:
    """Root of a container is often less than root."""
    names = capabilities()
    for name, purpose in (("SYS_ADMIN", "mounts"), ("NET_ADMIN", "networks"), ("MKNOD", "device files")):
        if name not in names:
            yield f"this root has no CAP_{name}, which {purpose} need: use a virtual machine or a privileged container"
    if "overlay" not in Path("/proc/filesystems").read_text():
        yield "the kernel has no overlay file system: modprobe overlay"
    if not Path("/sys/fs/cgroup").is_dir() or not os.access("/sys/fs/cgroup", os.W_OK):
        yield "/sys/fs/cgroup can't be written: systemd in the nodes needs it"


def _lacks_room(folder: Path) -> Iterator[str]:
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < DISK_NEEDED:
        yield (
            f"{folder} has {free / GIB:.1f} GiB free and {DISK_NEEDED // GIB} GiB are needed; "
            "name a folder on another disk with SPARKWEB_CACHE=…"
        )
    with contextlib.suppress(OSError, StopIteration, ValueError):
        rows = Path("/proc/meminfo").read_text().splitlines()
        available = int(next(row.split()[1] for row in rows if row.startswith("MemAvailable:"))) * 1024
        if available < MEMORY_NEEDED:
            yield f"{available / GIB:.1f} GiB of memory are available and {MEMORY_NEEDED // GIB} GiB are needed"


def capabilities() -> list[str]:
    """The bounding set of this process by name."""
    row = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd"))
    bits = int(row.split()[1], 16)
    return [name for bit, name in enumerate(CAPABILITIES) if bits >> bit & 1]


def install(environment: Mapping[str, str] = os.environ) -> None:
    """apt-get of what is missing; no service is started. Raises NodesProblem."""
    packages = sorted({package for program, package in (*NEEDED, *TESTS_NEED) if find(program) is None})
    if not packages:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NodesProblem(f"missing: {' '.join(packages)}; install with: sudo apt-get install -y {' '.join(packages)}")
    say(f"installing {' '.join(packages)}")
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:  # only the programs are wanted, not their services
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    quiet = {**environment, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", *words], env=quiet, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
            )
            if done.returncode:
                raise NodesProblem(f"apt-get {words[0]} failed: {_last(done.stderr)}")
    finally:
        if ours:
            policy.unlink(missing_ok=True)


def build(folder: Path) -> None:
    """File systems and engine, as `start` and the tests would make them later. Raises NodesProblem, NotPossible."""
    folder.mkdir(parents=True, exist_ok=True)
    real_engine.prepare(folder.parent / "real")
    for make in (images.make_node, images.make_engine):
        try:
            make(folder, folder / "nodes.log")
        except images.BuildProblem as problem:
            raise NodesProblem(str(problem)) from None


# The nodes


class Nodes:
    """Both nodes, from `start` to `stop`. `engine`: the folder of a prepared scripts/real_engine.py, or None for nodes
    without an engine's image."""

    def __init__(self, folder: Path, *, engine: Path | None = None) -> None:
        self.folder = folder.absolute()
        self.engine = engine.resolve() if engine else None  # its scripts name the true path
        self.log = self.folder / "nodes.log"
        mark = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:8]
        self.namespace = f"sparkweb-{mark}"
        # Sockets take 107 bytes of path, so they have a short folder of their own.
        self.runtime = Path(f"/run/{self.namespace}")
        self.port = 0
        self._lock: IO[str] | None = None

    def __enter__(self) -> Nodes:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def running(self) -> bool:
        """Whether both were started before, by hand; then they can be used as they are."""
        with contextlib.suppress(OSError, ValueError):
            self.port = int((self.folder / "port").read_text())
        names = self.docker("ps", "--format", "{{.Names}}", check=False).split() if self._alive("door") else []
        return {HEAD, SECOND} <= set(names)

    # What a test asks

    @property
    def head(self) -> Node:
        return Node(HEAD, "127.0.0.1", self.port, f"{FABRIC}.11", USER, self.host_keys(HEAD))

    @property
    def second(self) -> Node:
        return Node(SECOND, f"{FABRIC}.12", 22, f"{FABRIC}.12", USER, self.host_keys(SECOND))

    @property
    def private_key(self) -> str:
        """Of a key that opens both nodes."""
        return (self.folder / "key").read_text()

    def host_keys(self, name: str) -> tuple[HostKey, ...]:
        shown = self.inside(name, "sh", "-c", "for key in /etc/ssh/ssh_host_*_key.pub; do ssh-keygen -lf $key; done")
        types = {"(ED25519)": "ssh-ed25519", "(ECDSA)": "ecdsa-sha2-nistp256", "(RSA)": "ssh-rsa"}
        return tuple(HostKey(types[line.split()[-1]], line.split()[1]) for line in shown.splitlines())

    def inside(self, name: str, *words: str, given: str = "", check: bool = True) -> str:
        """Runs a command as root in a node, past SSH; returns what it printed. Raises NodesProblem when it fails."""
        return self.docker("exec", *(("-i",) if given else ()), name, *words, given=given, check=check)

    def authorize(self, public_key: str) -> None:
        for name in (HEAD, SECOND):
            self.inside(name, "sh", "-c", f"cat >>/home/{USER}/.ssh/authorized_keys", given=public_key.strip() + "\n")

    def boot_id(self, name: str) -> str:
        return self.inside(name, "cat", "/proc/sys/kernel/random/boot_id").strip()

    def power_loss(self, name: str) -> None:
        """As when the cord is pulled and plugged in again."""
        self.docker("kill", name)
        self.docker("start", name)
        self.wait_until_up(name)

    def wait_until_up(self, name: str, *, other_than: str = "") -> None:
        """Until systemd has started everything; `other_than`: the boot id that must be over first."""
        until, said = time.monotonic() + BOOT_WITHIN_S, ""
        while time.monotonic() < until:
            said = self.inside(name, "systemctl", "is-system-running", check=False).strip()
            if said in ("running", "degraded") and (not other_than or self.boot_id(name) != other_than):
                return
            time.sleep(0.3)
        jobs = self.inside(name, "systemctl", "list-jobs", "--no-pager", check=False)
        raise NodesProblem(f"{name} did not come up in {BOOT_WITHIN_S:.0f} s: {said or 'no answer'}; {jobs}")

    def docker(self, *words: str, given: str = "", check: bool = True) -> str:
        """The outer Docker."""
        program = find("docker") or "docker"
        done = subprocess.run(
            [program, "--host", f"unix://{self.runtime}/docker.sock", *words],
            capture_output=True, text=True, input=given or None, stdin=None if given else subprocess.DEVNULL,
            check=False, errors="replace",
        )  # fmt: skip
        if check and done.returncode:
            raise NodesProblem(f"`docker {' '.join(words)[:200]}` failed: {_last(done.stderr or done.stdout)}")
        return done.stdout

    # Start

    def start(self) -> None:
        """Removes what an earlier start left, builds what is missing, starts both nodes. Raises NodesProblem."""
        lacks = missing(self.folder)
        if lacks:
            raise NodesProblem("; ".join(lacks))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stop()
        self._claim()
        try:
            self._network_namespace()
            self._daemon()
            image = images.imported(
                self.docker,
                "sparklab/node",
                images.node_recipe(),
                self._build(images.make_node),
                ['CMD ["/opt/sparklab/boot"]'],
            )
            self._key()
            self._networks()
            self._serve_files()
            self._node(HEAD, image, management=f"{MANAGEMENT}.11", fabric=f"{FABRIC}.11")
            self._node(SECOND, image, management="", fabric=f"{FABRIC}.12")
            self._door()
            self._shares()
            for name in (HEAD, SECOND):
                self.wait_until_up(name)
            if self.engine:
                self._engine_image()
        except images.BuildProblem as problem:
            self.stop()
            raise NodesProblem(str(problem)) from problem
        except BaseException:
            self.stop()
            raise

    def _shares(self) -> None:
        """Processor time as for many processes: all of a group counts as one otherwise, and would starve on a busy
        machine, where Ray gives up waiting for itself."""
        for file, value in (("cpu/{}/cpu.shares", "32768"), ("{}/cpu.weight", "1000")):
            with contextlib.suppress(OSError):
                Path("/sys/fs/cgroup", file.format(self.namespace)).write_text(value)

    def _claim(self) -> None:
        """One start at a time on a folder; let go by the kernel when this process ends."""
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise NodesProblem(f"another process uses the nodes in {self.folder}") from problem

    def _build(self, make: Callable[[Path, Path], Path]) -> Callable[[], Path]:
        def made() -> Path:
            say(f"building an image ({make.__name__.removeprefix('make_')}); the log is {self.log}")
            return make(self.folder, self.log)

        return made

    def _network_namespace(self) -> None:
        """Loopback and bridges without an uplink: from here nothing leaves the machine."""
        self._run("ip", "netns", "add", self.namespace)
        self._in_namespace("ip", "link", "set", "lo", "up")

    def _daemon(self) -> None:
        """A Docker daemon that sees neither the system's containerd nor its sockets."""
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        (self.folder / "daemon.json").write_text("{}\n")  # not the system's
        hidden = "for place in /run/containerd /run/docker; do mkdir -p $place; mount -t tmpfs tmpfs $place; done"
        words = [
            "dockerd", f"--host=unix://{self.runtime}/docker.sock", f"--data-root={self.folder}/docker",
            f"--exec-root={self.runtime}/exec",
            f"--cgroup-parent=/{self.namespace}", f"--pidfile={self.runtime}/dockerd.pid", "--bridge=none",
            "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false", "--userland-proxy=false",
            "--storage-driver=overlay2", "--log-level=warn", f"--config-file={self.folder}/daemon.json",
        ]  # fmt: skip
        shell = f'{hidden}; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; exec "$@"'
        self._background("dockerd", "unshare", "--mount", "--propagation=private", "sh", "-c", shell, "sh", *words)
        until = time.monotonic() + 60
        while not self.docker("info", "--format", "{{.ServerVersion}}", check=False).strip():
            if time.monotonic() > until or not self._alive("dockerd"):
                raise NodesProblem(f"the outer dockerd did not start: {_last(self.log.read_text(errors='replace'))}")
            time.sleep(0.2)

    def _networks(self) -> None:
        for name, prefix, size in (("lab-mgmt", MANAGEMENT, 1500), ("lab-fabric", FABRIC, 9000)):
            self.docker(
                "network", "create", "--internal", "--subnet", f"{prefix}.0/24", "--gateway", f"{prefix}.1",
                "--opt", f"com.docker.network.bridge.name={name}", "--opt", f"com.docker.network.driver.mtu={size}", name,
            )  # fmt: skip
        # On the fabric there is no third one: the second node must not be reached but through the first.
        self._in_namespace("ip", "address", "flush", "dev", "lab-fabric")

    def plug(self, interface: str) -> None:
        """A second cable between both nodes, down and without addresses; Docker knows nothing of it."""
        self._in_namespace("ip", "link", "add", "rail-1", "type", "veth", "peer", "name", "rail-2")
        for end, node in (("rail-1", HEAD), ("rail-2", SECOND)):
            process = self.docker("inspect", "--format", "{{.State.Pid}}", node).strip()
            self._in_namespace("ip", "link", "set", end, "netns", process, "name", interface)

    def unplug(self, interface: str) -> None:
        """Takes both ends away."""
        self.inside(HEAD, "ip", "link", "delete", interface, check=False)

    def _node(self, name: str, image: str, *, management: str, fabric: str) -> None:
        words = [
            "create",
            "--name",
            name,
            "--hostname",
            name,
            "--cgroupns=private",
            "--tty",
            "--restart=unless-stopped",
        ]
        words += [f"--cap-add={capability}" for capability in capabilities()]
        words += ["--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"]
        words += ["--security-opt=systempaths=unconfined", "--device-cgroup-rule=a *:* rwm", "--stop-signal=SIGRTMIN+3"]
        words += [
            "--tmpfs=/run:exec",
            "--tmpfs=/run/lock",
            "--tmpfs=/tmp:exec",
            "--shm-size=1g",
            "--env=container=docker",
        ]
        words += [
            f"--env=LAB_MANAGEMENT={management}",
            f"--env=LAB_FABRIC={fabric}",
            f"--env=LAB_KEY={self._public_key()}",
        ]
        words += ["--volume=/var/lib/docker", *self._mounts()]
        if management:
            words += [
                "--network=lab-mgmt",
                f"--ip={management}",
                f"--add-host=registry.lab:{GATEWAY}",
                f"--add-host=hub.lab:{GATEWAY}",
            ]
        else:
            words += ["--network=lab-fabric", f"--ip={fabric}"]
        self.docker(*words, image, "/opt/sparklab/boot")
        if management:
            self.docker("network", "connect", f"--ip={fabric}", "lab-fabric", name)
        self.docker("start", name)

    def _mounts(self) -> Iterator[str]:
        """The engine's folders, read-only; where they must appear in a container stands in /etc/sparklab/mounts."""
        if not self.engine:
            return
        yield f"--volume={self._plugin()}:{ENGINE_INSIDE}/plugin:ro"
        yield f"--volume={self.engine / 'venv'}:{ENGINE_INSIDE}/venv:ro"
        yield f"--volume={self.engine / 'models' / real_engine.SERVED_MODEL_NAME}:{MODEL_INSIDE}:ro"
        rows = [f"{ENGINE_INSIDE}/venv {self.engine / 'venv'}", f"{ENGINE_INSIDE}/plugin {ENGINE_INSIDE}/plugin"]
        home = python_home(self.engine / "venv")
        if home:
            yield f"--volume={home}:{ENGINE_INSIDE}/python:ro"
            rows.append(f"{ENGINE_INSIDE}/python {home}")
        (self.folder / "mounts").write_text("".join(f"{row}\n" for row in rows))
        yield f"--volume={self.folder / 'mounts'}:/etc/sparklab/mounts:ro"
        yield f"--volume={self._engine_base()}:{ENGINE_INSIDE}/engine.tar:ro"

    def _plugin(self) -> Path:
        """vLLM's platform plugin as an installed distribution, in a folder for PYTHONPATH."""
        place = self.folder / "plugin"
        info = place / "sparklab_vllm-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        shutil.copy(FILES / "sparklab_vllm.py", place)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sparklab-vllm\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[vllm.platform_plugins]\nsparklab = sparklab_vllm:register\n")
        return place

    def _engine_base(self) -> Path:
        kept = self.folder / f"engine-{images.engine_recipe()}.tar"
        return kept if kept.exists() else self._build(images.make_engine)()

    def _engine_image(self) -> None:
        """Into both nodes' own Docker, with the environment first in PATH."""
        assert self.engine
        changes = (
            f"ENV PATH={self.engine / 'venv' / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            f"ENV PYTHONPATH={ENGINE_INSIDE}/plugin",
            "ENV SPARKLAB_ENGINE=1",
            "ENV LANG=C.UTF-8",
            'CMD ["/bin/bash"]',
        )
        options = [f"--change={change}" for change in changes]
        self.inside(HEAD, "docker", "import", *options, f"{ENGINE_INSIDE}/engine.tar", ENGINE_IMAGE)
        self.copy_image(ENGINE_IMAGE)

    def copy_image(self, reference: str) -> None:
        """From the head's Docker into the second's, past the fabric; the same id on both, as a pull would give."""
        words = [find("docker") or "docker", "--host", f"unix://{self.runtime}/docker.sock", "exec"]
        with subprocess.Popen([*words, HEAD, "docker", "save", reference], stdout=subprocess.PIPE) as source:
            done = subprocess.run(
                [*words, "-i", SECOND, "docker", "load"],
                stdin=source.stdout,
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode or source.returncode:
            raise NodesProblem(f"copying {reference} to {SECOND} failed: {_last(done.stderr)}")

    def _key(self) -> None:
        key = self.folder / "key"
        if not key.exists():
            self._run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "real-nodes", "-f", str(key))

    def _public_key(self) -> str:
        return (self.folder / "key.pub").read_text().strip()

    def _serve_files(self) -> None:
        """A registry and a hub on the management network."""
        settings = self.folder / "registry.yml"
        settings.write_text(
            f"version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {self.folder}/registry}}}}\n"
            f"http: {{addr: '{GATEWAY}:{REGISTRY_PORT}'}}\n"
        )
        self._background("registry", "docker-registry", "serve", str(settings))
        if self.engine:
            hub = BASE / "scripts" / "real_nodes_hub.py"
            words = [GATEWAY, str(HUB_PORT), str(self.engine / "models")]
            self._background("hub", sys.executable, "-IS", str(hub), *words)

    def _door(self) -> None:
        """One loopback port of this machine, forwarded to the head's sshd: listening here, connecting in there."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = int(listener.getsockname()[1])
            listener.set_inheritable(True)
            door, number = BASE / "scripts" / "real_nodes_door.py", listener.fileno()
            words = [sys.executable, "-IS", str(door), str(number), f"{MANAGEMENT}.11", "22"]
            self._background("door", *words, descriptors=(number,))
        (self.folder / "port").write_text(f"{self.port}\n")

    # Stop

    def stop(self) -> None:
        """Ends and removes everything of this folder that runs, also what a killed process left. Builds are kept."""
        if self._alive("dockerd") and self.docker("info", "--format", "up", check=False).strip():
            names = self.docker("ps", "-aq", check=False).split()
            if names:
                self.docker("rm", "--force", "--volumes", *names, check=False)
        for name in ("door", "hub", "registry", "dockerd"):
            self._end(name)
        self._end_containers()
        for part in ("containers", "volumes", "network"):
            shutil.rmtree(self.folder / "docker" / part, ignore_errors=True)
        for place in (self.runtime, self.folder / "registry"):
            shutil.rmtree(place, ignore_errors=True)
        for group in sorted(Path("/sys/fs/cgroup").glob(f"*/{self.namespace}/**/"), reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()
        if Path(f"/run/netns/{self.namespace}").exists():
            self._run("ip", "netns", "delete", self.namespace, check=False)
        if self._lock:
            self._lock.close()
            self._lock = None

    def _end_containers(self) -> None:
        """Processes of our containers, and their shims, that outlived the daemon."""
        place = self.folder / "docker" / "containers"
        ours = tuple(f"/{self.namespace}/{path.name}" for path in place.iterdir()) if place.is_dir() else ()
        mark = f"{self.runtime}/".encode()
        for _ in range(50):
            left = [pid for pid in _pids() if _belongs(pid, ours, mark)]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                return
            time.sleep(0.1)

    def _end(self, name: str) -> None:
        """TERM, ten seconds, KILL."""
        pid = self._pid(name)
        if not pid:
            return
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            until = time.monotonic() + patience
            while time.monotonic() < until and self._pid(name):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
                time.sleep(0.05)
        (self.folder / f"{name}.process").unlink(missing_ok=True)

    # Processes of this machine

    def _run(self, *words: str, check: bool = True) -> str:
        program = find(words[0]) or words[0]
        done = subprocess.run(
            [program, *words[1:]], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        if check and done.returncode:
            raise NodesProblem(f"`{' '.join(words)}` failed: {_last(done.stderr or done.stdout)}")
        return done.stdout

    def _in_namespace(self, *words: str) -> str:
        program = find(words[0]) or words[0]
        return self._run("nsenter", f"--net=/run/netns/{self.namespace}", program, *words[1:])

    def _background(self, name: str, *words: str, descriptors: Sequence[int] = ()) -> None:
        """A process in the namespace that stays until `stop`; its id is kept with its start time, against reuse."""
        enter = find("nsenter") or "nsenter"
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [enter, f"--net=/run/netns/{self.namespace}", *words], stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True, pass_fds=descriptors,
                env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SBIN}"},
            )  # fmt: skip
        (self.folder / f"{name}.process").write_text(f"{process.pid} {_started(process.pid)}")

    def _pid(self, name: str) -> int:
        """The id of a background process that runs, else 0."""
        try:
            pid, started = (self.folder / f"{name}.process").read_text().split()
        except (OSError, ValueError):
            return 0
        return int(pid) if _started(int(pid)) == started else 0

    def _alive(self, name: str) -> bool:
        return bool(self._pid(name))


def python_home(venv: Path) -> Path | None:
    """The installation that an environment's links point at; None when it is the system's own."""
    home = (venv / "bin" / "python3").resolve().parent.parent
    return None if home in (Path("/usr"), Path("/usr/local"), Path("/")) else home


def _started(pid: int) -> str:
    """Start time in clock ticks since boot; empty when there is no such process or it is a zombie."""
    try:
        cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if cells[0] == "Z" else cells[19]


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _belongs(pid: int, cgroups: Sequence[str], mark: bytes) -> bool:
    """Whether a process is in one of the cgroups, or is a shim or containerd with `mark` in its command line."""
    try:
        rows = Path(f"/proc/{pid}/cgroup").read_text()
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    if any(cgroup in rows for cgroup in cgroups):
        return bool(_started(pid))
    return words.partition(b"\0")[0].rpartition(b"/")[2].startswith(b"containerd") and mark in words


def _last(text: str, lines: int = 3) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-lines:])[-600:]


# By hand


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Two real nodes on one machine, for tests.")
    parser.add_argument("--folder", type=Path, help="where they lie (default: $SPARKWEB_CACHE/nodes, else $VAR/nodes)")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("missing", help="name what this machine lacks")
    start = actions.add_parser("start", help="start both nodes; they stay until `stop`")
    start.add_argument("--install", action="store_true", help="get what is missing with apt-get first")
    start.add_argument("--no-engine", action="store_true", help="without vLLM's environment and image")
    actions.add_parser("install", help="get what is missing with apt-get")
    actions.add_parser("build", help="make file systems and engine, starting nothing")
    actions.add_parser("stop", help="end and remove them")
    inside = actions.add_parser("inside", help="run a command in a node")
    inside.add_argument("node", choices=(HEAD, SECOND))
    inside.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    folder = options.folder.absolute() if options.folder else folder_from(os.environ)
    try:
        return _act(options, folder)
    except (NodesProblem, real_engine.NotPossible) as problem:
        say(str(problem))
        return 1
    except OSError as problem:
        say(f"{problem.strerror or problem}: {problem.filename or folder}")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130


def _act(options: argparse.Namespace, folder: Path) -> int:
    if options.action == "missing":
        found = missing(folder, (*NEEDED, *TESTS_NEED))
        for line in found:
            print(f"the real nodes can't run here: {line}")
        return 1 if found else 0
    if options.action == "build":
        build(folder)
    if options.action == "install" or getattr(options, "install", False):
        install()
    if options.action == "start":
        engine = None if options.no_engine else real_engine.folder_from(os.environ)
        if engine:
            real_engine.prepare(engine)
        nodes = Nodes(folder, engine=engine)
        nodes.start()
        print(f"ssh -i {folder}/key -p {nodes.port} {USER}@127.0.0.1")
    if options.action == "stop":
        Nodes(folder).stop()
    if options.action == "inside":
        print(Nodes(folder).inside(options.node, *options.words), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
