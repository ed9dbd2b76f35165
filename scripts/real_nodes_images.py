"""The images of the real nodes and of the production set-up, made with mmdebstrap from this machine's Debian or Ubuntu release.

node    systemd, OpenSSH, sudo, Docker, the tools that a Spark has, and the stand-ins of real_nodes_files/
engine  what vLLM's environment needs around it; the environment itself is mounted into its containers
production  Python, PostgreSQL and Redis, for the images of docker-compose.yml

All are kept under a hash of what they are made of, so that they are made once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

FILES = Path(__file__).resolve().parent / "real_nodes_files"
IN_NODE = ("boot", "nvidia-smi", "runc")  # the plugin is mounted
NODE_PACKAGES = [
    "systemd",
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "openssh-server",
    "sudo",
    "iproute2",
    "iputils-ping",
    "procps",
    "rsync",
    "curl",
    "python3",
    "libnuma1",
    "iptables",
    "ca-certificates",
    "docker.io",
]
ENGINE_PACKAGES = ["python3", "libnuma1", "libgomp1", "libstdc++6", "procps", "iproute2", "ca-certificates"]
# A base for docker-compose.yml's own image, PostgreSQL and Redis: nothing is pulled from a registry.
PRODUCTION_PACKAGES = ["python3", "python3-venv", "postgresql", "redis-server", "ca-certificates"]
NOT_STARTED = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "getty.target",
    "console-getty.service",
    "systemd-timesyncd.service",
    "systemd-resolved.service",
    "systemd-networkd.service",
]
LEAN = (
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--aptopt=Acquire::Languages none",
    '--aptopt=APT::Install-Recommends "false"',
)
DOCKER_SETTINGS = (
    '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}, '
    '"storage-driver": "overlay2", "insecure-registries": ["registry.lab:5000"]}\n'
)
HOOK = "#!/bin/sh\nexit 0\n"  # its name is what makes Docker know --gpus


class BuildProblem(Exception):
    """An image could not be made; the text says why."""


def digest(*parts: object) -> str:
    """Twelve hex digits over values and the contents of files."""
    made = hashlib.sha256()
    for part in parts:
        made.update(part.read_bytes() if isinstance(part, Path) else repr(part).encode())
        made.update(b"\0")
    return made.hexdigest()[:12]


def release() -> str:
    """VERSION_CODENAME of this machine, e.g. bookworm."""
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    raise BuildProblem("/etc/os-release names no release; the nodes are built on Debian 12 or newer, or Ubuntu")


def node_recipe() -> str:
    files = (FILES / name for name in IN_NODE)
    return digest("node", release(), NODE_PACKAGES, NOT_STARTED, DOCKER_SETTINGS, *files)


def engine_recipe() -> str:
    return digest("engine", release(), ENGINE_PACKAGES)


def make_node(folder: Path, log: Path) -> Path:
    """The node's file system as a tar in `folder`. Raises BuildProblem."""
    hooks = [
        # Key pairs are made at each node's first boot, and its own machine id too.
        'rm -f "$1"/etc/ssh/ssh_host_*; : >"$1/etc/machine-id"',
        'chroot "$1" useradd --create-home --shell /bin/bash --groups docker,sudo spark',
        'echo "spark ALL=(ALL) NOPASSWD:ALL" >"$1/etc/sudoers.d/spark"; chmod 440 "$1/etc/sudoers.d/spark"',
        'mkdir -p "$1/etc/docker" "$1/etc/sparklab" "$1/opt/sparklab"; cp daemon.json "$1/etc/docker/daemon.json"',
        'install -m 755 boot "$1/opt/sparklab/boot"; install -m 755 nvidia-smi "$1/usr/bin/nvidia-smi"',
        'install -m 755 runc "$1/usr/bin/nvidia-container-runtime"',
        'install -m 755 hook "$1/usr/bin/nvidia-container-runtime-hook"',
        f'chroot "$1" systemctl mask --quiet {" ".join(NOT_STARTED)}',
        'chroot "$1" systemctl enable --quiet ssh.service docker.service containerd.service',
        'chroot "$1" systemctl set-default --quiet multi-user.target; rm -rf "$1"/var/log/journal',
    ]
    extra = {"daemon.json": DOCKER_SETTINGS, "hook": HOOK}
    return _bootstrap(folder / f"node-{node_recipe()}.tar", NODE_PACKAGES, hooks, extra, log)


def make_engine(folder: Path, log: Path) -> Path:
    """The engine's base as a tar in `folder`. Raises BuildProblem."""
    return _bootstrap(folder / f"engine-{engine_recipe()}.tar", ENGINE_PACKAGES, [], {}, log)


def production_recipe() -> str:
    return digest("production", release(), PRODUCTION_PACKAGES)


def make_production(folder: Path, log: Path) -> Path:
    """The base of the production set-up as a tar in `folder`. Raises BuildProblem."""
    return _bootstrap(folder / f"production-{production_recipe()}.tar", PRODUCTION_PACKAGES, [], {}, log)


def _bootstrap(target: Path, packages: Sequence[str], hooks: Sequence[str], extra: dict[str, str], log: Path) -> Path:
    if target.exists():
        return target
    new = target.with_suffix(".new.tar")
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        for name in IN_NODE:
            shutil.copy(FILES / name, place)
        for name, text in extra.items():
            Path(place, name).write_text(text)
        words = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}", *LEAN]
        words += [f"--customize-hook={hook}" for hook in hooks]
        words += [release(), str(new), "-"]
        environment = {**os.environ, "LC_ALL": "C", "TMPDIR": place}
        with log.open("ab") as output:
            done = subprocess.run(
                words, cwd=place, env=environment, input=_sources().encode(), stdout=output, stderr=output, check=False
            )
    if done.returncode:
        new.unlink(missing_ok=True)
        last = " | ".join(log.read_text(errors="replace").splitlines()[-4:])
        raise BuildProblem(f"mmdebstrap failed (see {log}): {last}")
    new.rename(target)
    return target


def _sources() -> str:
    """Where this machine's own apt gets the release from."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"]
    listed = subprocess.run([*words, "Created-By: Packages"], capture_output=True, text=True, check=False).stdout
    here, lines = release(), []
    for row in dict.fromkeys(listed.splitlines()):
        address, name, component, origin = [*row.split(), "", "", "", ""][:4]
        if origin in ("Debian", "Ubuntu") and name.startswith(here) and component in ("main", "universe"):
            lines.append(f"deb {address} {name} {component}")
    if not lines:
        raise BuildProblem(f"apt knows no source of {here}; run apt-get update first")
    return "\n".join(lines) + "\n"


def imported(
    docker: Callable[..., str], name: str, recipe: str, make: Callable[[], Path], changes: Sequence[str]
) -> str:
    """The image `name:recipe` in a daemon, made and imported when it is not there yet."""
    reference = f"{name}:{recipe}"
    if not docker("images", "-q", reference):
        path = make()
        docker("import", *(f"--change={change}" for change in changes), str(path), reference)
        path.unlink()
    return reference
