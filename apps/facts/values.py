"""The frozen values that facts parse into. Units stand in the names; None is unknown.

All of them are JSON-able by `dataclasses.asdict`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Machine:
    hostname: str | None = None
    model: str | None = None  # product name, e.g. "NVIDIA DGX Spark"
    arch: str | None = None  # uname -m
    os: str | None = None  # PRETTY_NAME
    kernel: str | None = None
    uptime_s: float | None = None
    boot_id: str | None = None
    clock_unix_s: float | None = None  # the node's clock when asked
    virtualization: str | None = None  # lxc, docker, kvm, none
    user: str | None = None
    uid: int | None = None
    home: str | None = None
    shell: str | None = None
    locale: str | None = None  # LANG or LC_ALL of the login, before the probe set C
    groups: tuple[str, ...] = ()
    cpus: int | None = None


@dataclass(frozen=True)
class Memory:
    total_bytes: int | None = None
    free_bytes: int | None = None
    available_bytes: int | None = None
    cached_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    cma_total_bytes: int | None = None
    cma_free_bytes: int | None = None
    buffers_bytes: int | None = None
    anonymous_bytes: int | None = None
    shared_bytes: int | None = None
    slab_bytes: int | None = None
    page_tables_bytes: int | None = None
    huge_pages_bytes: int | None = None  # reserved, whether used or not

    @property
    def used_bytes(self) -> int | None:
        """Total minus available: what planning counts as taken."""
        if self.total_bytes is None or self.available_bytes is None:
            return None
        return self.total_bytes - self.available_bytes

    @property
    def unattributed_bytes(self) -> int | None:
        """What no category of the kernel explains: on unified-memory parts this is the GPU's memory."""
        parts = (self.total_bytes, self.free_bytes, self.cached_bytes, self.anonymous_bytes)
        if any(part is None for part in parts):
            return None
        known = sum(
            part or 0
            for part in (
                self.free_bytes,
                self.buffers_bytes,
                self.cached_bytes,
                self.anonymous_bytes,
                self.slab_bytes,
                self.page_tables_bytes,
                self.huge_pages_bytes,
            )
        )
        return max(0, (self.total_bytes or 0) - known)


@dataclass(frozen=True)
class MigInstance:
    gi: int
    ci: int | None = None
    device: int | None = None
    mem_total_mib: int | None = None
    mem_used_mib: int | None = None
    profile: str | None = None  # 3g.20gb
    uuid: str | None = None


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str | None = None
    bus_id: str | None = None
    uuid: str | None = None
    memory_total_mib: int | None = None  # None on unified-memory parts
    memory_used_mib: int | None = None
    unified: bool = False  # memory is the machine's own (GB10)
    util_pct: int | None = None
    temp_c: int | None = None
    power_w: float | None = None
    power_cap_w: float | None = None
    clock_mhz: int | None = None
    mig: str | None = None  # Enabled, Disabled, Disabled (pending), Enabled (pending)
    instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    name: str | None = None
    mib: int | None = None
    type: str | None = None  # C, G, C+G
    gpu: int | None = None
    container: str | None = None  # name, if its cgroup says so
    unit: str | None = None


@dataclass(frozen=True)
class Gpus:
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    problem: str | None = None  # a reason of diagnosis.reasons, e.g. driver_mismatch, no_driver
    evidence: str | None = None  # the line that proves the problem
    tool: str | None = None  # version of nvidia-smi itself; under WSL it differs from the driver
    library: str | None = None  # on driver_mismatch: the user-space library
    kernel_module: str | None = None  # the module that is loaded, by /proc/driver/nvidia/version
    on_bus: tuple[str, ...] | None = None  # PCI addresses of NVIDIA GPUs that its driver holds, seen by it or not


@dataclass(frozen=True)
class GpuError:
    """An Xid that the driver wrote into the kernel's log since boot."""

    code: int
    bus_id: str | None = None
    count: int = 1
    line: str | None = None  # the first one


@dataclass(frozen=True)
class Disk:
    mount: str
    filesystem: str | None = None  # the device or HOST:/export
    type: str | None = None  # ext4, nfs4 …
    size_bytes: int | None = None
    used_bytes: int | None = None
    available_bytes: int | None = None


@dataclass(frozen=True)
class Docker:
    present: bool = False
    server_version: str | None = None
    client_version: str | None = None
    runtimes: tuple[str, ...] = ()
    problem: str | None = None  # docker_missing, docker_denied, docker_down …
    evidence: str | None = None  # the line that proves the problem
    cgroup: str | None = None  # driver and version, e.g. "systemd v2"
    storage: str | None = None
    root: str | None = None  # DockerRootDir
    snap: bool | None = None
    cdi_missing: tuple[str, ...] | None = None  # host paths of its CDI specifications that are not there; None: no CDI


@dataclass(frozen=True)
class Container:
    name: str
    id: str | None = None
    image: str | None = None
    image_id: str | None = None
    state: str | None = None  # created running paused restarting exited dead
    status: str | None = None  # docker's own words
    health: str | None = None
    exit_code: int | None = None
    restarts: int | None = None
    restart_policy: str | None = None
    started_at: str | None = None  # RFC 3339, as docker says it
    pid: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()
    memory_bytes: int | None = None  # GPU memory of its processes plus what its cgroup says, if known
    oom_killed: bool | None = None
    finished_at: str | None = None
    error: str | None = None
    command: str | None = None
    network: str | None = None
    compose_project: str | None = None
    memory_limit_bytes: int | None = None  # None: none was set, or it is not known
    shm_bytes: int | None = None
    swap_bytes: int | None = None  # what of its cgroup is swapped out


@dataclass(frozen=True)
class Image:
    ref: str | None  # repository:tag, None when dangling
    id: str | None = None
    digest: str | None = None
    arch: str | None = None
    size_bytes: int | None = None
    created: str | None = None
    env: dict[str, str] = field(default_factory=dict)  # the few variables that say what is inside
    labels: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()  # what runs with a command of `docker run` as its arguments


@dataclass(frozen=True)
class Unit:
    name: str
    description: str | None = None
    load: str | None = None
    active: str | None = None
    sub: str | None = None
    enabled: str | None = None  # enabled disabled static masked …
    containers: tuple[str, ...] = ()  # names that its ExecStart starts
    exec_start: str | None = None
    pid: int | None = None
    fragment: str | None = None  # the unit file's path
    restarts: int | None = None
    result: str | None = None  # success, exit-code, oom-kill …
    vendor: bool | None = None  # its file is not under /etc or /run


@dataclass(frozen=True)
class Address:
    ip: str
    prefix: int | None = None
    family: str = "inet"
    link_local: bool = False


@dataclass(frozen=True)
class Interface:
    name: str
    up: bool | None = None
    mtu: int | None = None
    speed_mbps: int | None = None
    physical: bool | None = None  # /sys/class/net/<if>/device exists
    addresses: tuple[Address, ...] = ()
    mac: str | None = None
    role: str | None = None  # fabric, management, ignore
    default_route: bool | None = None
    wireless: bool | None = None
    hca: str | None = None


@dataclass(frozen=True)
class Hca:
    name: str
    port: int = 1
    state: str | None = None  # ACTIVE, DOWN, INIT
    physical_state: str | None = None  # LinkUp, Disabled, Polling
    rate_gbps: float | None = None
    netdev: str | None = None
    link_layer: str | None = None
    gid_index: int | None = None

    @property
    def active(self) -> bool | None:
        return None if self.state is None else self.state.upper() == "ACTIVE"


@dataclass(frozen=True)
class Listener:
    address: str
    port: int
    pid: int | None = None
    program: str | None = None


@dataclass(frozen=True)
class ModelFolder:
    path: str
    bytes: int | None = None  # logical size of all files, symlinks followed
    shards: int | None = None  # weight files found
    shards_expected: int | None = None  # by the index or the -of-NNNNN names
    complete: bool | None = None
    config: dict[str, Any] | None = None  # config.json, parsed
    weights_bytes: int | None = None  # sum of the weight files
    name: str | None = None  # owner/name where the path says so
    missing: tuple[str, ...] = ()  # expected weight files that are not there
    # Of the headers of the safetensors files: (name with N for every number, how many there are, their bytes).
    tensors: tuple[tuple[str, int, int], ...] = ()
    partial_bytes: int | None = None  # of unfinished downloads beside it
    index_total_bytes: int | None = None  # metadata.total_size of the index
    gguf: tuple[tuple[str, int], ...] = ()  # (name, bytes) of its GGUF files: each may be a model of its own


@dataclass(frozen=True)
class Software:
    """What is inside a container, an image or a venv."""

    where: str  # container:NAME, image:REF, venv:PATH (conda's too), user:PATH, system:PATH
    versions: dict[str, str] = field(default_factory=dict)  # vllm, torch, ray, transformers, sglang, nccl, cuda
    cuda_arch_list: str | None = None
    image_id: str | None = None
    whole: bool = True  # every package was asked; False: what an image's variables or its build happened to name


@dataclass(frozen=True)
class Privileges:
    sudo: str | None = None  # all, some, password, none
    docker_group: bool | None = None
    linger: bool | None = None
    remove_ipc: bool | None = None
    drop_caches: bool | None = None  # sudo may write /proc/sys/vm/drop_caches without a password
    memlock_bytes: int | None = None  # of this login; -1 is unlimited
    open_files: int | None = None
    lingering: tuple[str, ...] = ()  # users whose own units run without a login


@dataclass(frozen=True)
class Starts:
    """What a command line, a script or a compose file starts, as far as it says so."""

    engine: str | None = None  # vllm, sglang, llama.cpp, ray, ollama … (commands.ENGINES)
    model: str | None = None
    served_name: str | None = None
    port: int | None = None
    tensor_parallel: int | None = None
    image: str | None = None
    container: str | None = None


@dataclass(frozen=True)
class EngineProcess:
    """A process of an inference stack."""

    pid: int
    starts: Starts
    parent: int | None = None
    user: str | None = None
    command: str | None = None  # secrets masked
    started_unix_s: float | None = None  # by the node's clock
    resident_bytes: int | None = None
    gpu_bytes: int | None = None
    venv: str | None = None
    folder: str | None = None  # where it was started
    container: str | None = None  # name, if its cgroup says so
    unit: str | None = None  # system unit, or the user's own
    ports: tuple[int, ...] = ()  # TCP ports on which it listens
    run: str | None = None  # number of the run of ours that started it

    @property
    def kept(self) -> bool:
        """Whether a container, a unit or a deployment of ours owns it, which could bring it back."""
        return self.container is not None or self.unit is not None or self.run is not None


@dataclass(frozen=True)
class Launcher:
    """A script or compose file that starts engines."""

    path: str
    starts: tuple[Starts, ...] = ()
    checkout: str | None = None  # the folder of the checkout in which it lies


@dataclass(frozen=True)
class Checkout:
    """A git checkout of something that starts or builds engines."""

    path: str
    remote: str | None = None
    branch: str | None = None
    commit: str | None = None
    committed_at: str | None = None  # ISO 8601
    subject: str | None = None
    changed: int | None = None  # tracked files with changes that are not committed


@dataclass(frozen=True)
class BootJob:
    """What cron or rc.local runs at every boot."""

    where: str  # crontab, /etc/cron.d/…, /etc/rc.local
    command: str  # secrets masked
    user: str | None = None
    starts: tuple[Starts, ...] = ()


@dataclass(frozen=True)
class SshServer:
    """Limits of sshd, as it says itself or as its files say; a `Match` block may change them for some."""

    version: str | None = None
    max_sessions: int | None = None  # channels of one connection
    startups_begin: int | None = None  # connections that are not logged in yet, from which some are dropped
    startups_full: int | None = None  # … from which all are dropped
    tcp_forwarding: str | None = None  # yes, no, local, remote
    permit_open: str | None = None  # where forwarding may lead: any, none, HOST:PORT …
    login_grace_s: int | None = None
    alive_interval_s: int | None = None  # 0: it never asks whether a silent client is there
    source: str | None = None  # sshd -T, files
    conditional: bool | None = None  # there are Match blocks


@dataclass(frozen=True)
class TimeSync:
    synchronized: bool | None = None
    ntp: bool | None = None  # a service is turned on
    service: str | None = None  # chrony, systemd-timesyncd …
    timezone: str | None = None
    offset_s: float | None = None  # how far its clock is ahead of its time server


@dataclass(frozen=True)
class MemoryOwner:
    """What the kernel counts for a cgroup: memory that its processes touched, page cache included."""

    name: str  # docker.service, user-1000.slice, docker-….scope
    bytes: int | None = None
    swap_bytes: int | None = None


@dataclass(frozen=True)
class RailPing:
    """A ping of a full frame that must not be broken up, from one interface to one address."""

    interface: str
    peer: str
    frame_bytes: int | None = None  # of the IP packet
    result: str | None = None  # ok, too_long, no_answer, unreachable, no_interface, no_ping
    mtu_bytes: int | None = None  # where the answer names a smaller one
    rtt_ms: float | None = None
    evidence: str | None = None


@dataclass(frozen=True)
class Folder:
    path: str
    owner: str | None = None
    group: str | None = None
    mode: str | None = None  # octal, as stat prints it
    writable: bool | None = None  # for this login


@dataclass(frozen=True)
class Setup:
    """How the node is set up: who owns what, and what is there of that which a provision run makes."""

    owners: dict[str, str] = field(default_factory=dict)  # interface -> netplan, networkmanager, networkd
    connections: dict[str, str] = field(default_factory=dict)  # interface -> active NetworkManager connection
    ntp: bool | None = None  # time synchronisation is switched on
    synchronised: bool | None = None
    docker_members: tuple[str, ...] | None = None  # of the group docker; None: there is no such group
    lingers: bool | None = None
    files: dict[str, str] = field(default_factory=dict)  # path -> SHA-256, of our files that this login may read
    folders: tuple[Folder, ...] = ()
    node_key: str | None = None  # public half of the key with which this node opens the others
    units: dict[str, str] = field(default_factory=dict)  # unit -> active, inactive …
    tools: tuple[str, ...] = ()  # of those that a provision run would use


@dataclass(frozen=True)
class Killed:
    """Somebody whom the kernel or systemd-oomd ended for memory."""

    scope: str  # global, cgroup, oomd
    process: str | None = None
    pid: int | None = None
    unit: str | None = None
    container: str | None = None  # id, as its cgroup says
    anon_bytes: int | None = None
    line: str | None = None


@dataclass(frozen=True)
class EngineApi:
    """What an engine's API said on its own node."""

    port: int
    health: int | None = None  # HTTP status of /health; 0: no answer
    tokens: float | None = None  # generated since it was started
    running: float | None = None  # requests
    waiting: float | None = None  # requests
    keyed: bool | None = None  # whether it wants a key; None: not asked
    asked_by: str | None = None  # curl, wget, bash, none: nothing there to ask with


@dataclass(frozen=True)
class ContainerEvent:
    """One event of `docker events`."""

    name: str
    action: str  # kill stop die destroy oom rename
    at: float  # unix seconds, by the node's clock
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class RayStatus:
    """What `ray status` says about a cluster."""

    active: int | None = None
    idle: int | None = None
    pending: int | None = None
    failures: int | None = None
    gpu_used: float | None = None
    gpu_total: float | None = None
    gpu_in_pg: float | None = None
    demands: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    resources: dict[str, tuple[str, str]] = field(default_factory=dict)
    problem: str | None = None

    @property
    def alive(self) -> int | None:
        """Active and idle nodes: an idle node is alive."""
        if self.active is None and self.idle is None:
            return None
        return (self.active or 0) + (self.idle or 0)
