"""Files of a node through which a script looks at the machine: /proc figures, /sys/class, /etc."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

from apps.lab import scene
from apps.lab.world import Node

OS_RELEASE = """PRETTY_NAME="Ubuntu 24.04.3 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.3 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
HOME_URL="https://www.ubuntu.com/"
SUPPORT_URL="https://help.ubuntu.com/"
BUG_REPORT_URL="https://bugs.launchpad.net/ubuntu/"
PRIVACY_POLICY_URL="https://www.ubuntu.com/legal/terms-and-policies/privacy-policy"
UBUNTU_CODENAME=noble
LOGO=ubuntu-logo
"""
PASSWD = """root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
aurora:x:1000:1000:aurora:{home}:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
GROUP = "root:x:0:\nadm:x:4:aurora\nsudo:x:27:aurora\ndocker:x:988:aurora\naurora:x:1000:\nnogroup:x:65534:\n"


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def meminfo(node: Node) -> dict[str, int]:
    """kB by name. GPU memory is in no category, as on the real machine: only MemFree and MemAvailable know of it."""
    kib = 1 << 20
    free, available, cache = int(node.free_gib * kib), int(node.available_gib * kib), int(node.cache_gib * kib)
    system = int(node.claims["system"].held * kib) if "system" in node.claims else 0
    return {
        "MemTotal": node.seed.total_kb,
        "MemFree": free,
        "MemAvailable": available,
        "Buffers": 63156,
        "Cached": max(0, cache - 63156),
        "SwapCached": 0,
        "Active": int(system * 0.4),
        "Inactive": int(cache * 0.7),
        "SwapTotal": 16777212,
        "SwapFree": 16777212,
        "Dirty": 412,
        "Writeback": 0,
        "AnonPages": int(system * 0.7),
        "Mapped": 2110244,
        "Shmem": 187392,
        "KReclaimable": 712000,
        "Slab": 1535520,
        "SReclaimable": 712000,
        "SUnreclaim": 823520,
        "KernelStack": 36032,
        "PageTables": 190164,
        "CmaTotal": 131072,
        "CmaFree": 69320,
        "HugePages_Total": 0,
        "HugePages_Free": 0,
        "Hugepagesize": 2048,
    }


def meminfo_text(node: Node) -> str:
    lines = []
    for name, value in meminfo(node).items():
        unit = "" if name.startswith("HugePages") else " kB"
        lines.append(f"{name + ':':<16}{value:>8}{unit}\n")
    return "".join(lines)


def load(node: Node) -> tuple[float, float, float]:
    level = 6.2 if node.busy else 0.4 + 0.2 * len(node.listeners)
    return level, level * 0.95, level * 0.8


def write_fixed(node: Node, files: Path) -> None:
    """What changes only with a boot."""
    put(files / "boot_id", f"{node.boot_id}\n")
    kernel = node.seed.kernel
    put(files / "osrelease", f"{kernel}\n")
    put(files / "ostype", "Linux\n")
    put(
        files / "version",
        f"Linux version {kernel} (buildd@bos03-arm64-054) (aarch64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0, "
        "GNU ld (GNU Binutils for Ubuntu) 2.42) #15-Ubuntu SMP PREEMPT_DYNAMIC\n",
    )
    cpu = "".join(
        f"processor\t: {number}\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics sve sve2 i8mm bf16\n"
        f"CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {'0xd85' if number % 10 >= 5 else '0xd87'}\nCPU revision\t: 1\n\n"
        for number in range(20)
    )
    if node.seed.arch == "x86_64":
        cpu = "".join(
            f"processor\t: {number}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9355 32-Core Processor\n\n"
            for number in range(20)
        )
    put(files / "cpuinfo", cpu)
    put(
        files / "modules",
        "nvidia_uvm 1769472 4 - Live 0x0000000000000000\nnvidia 14385152 89 nvidia_uvm, Live 0x0000000000000000\n"
        "mlx5_ib 475136 0 - Live 0x0000000000000000\nmlx5_core 2293760 1 mlx5_ib, Live 0x0000000000000000\n",
    )


def write_moving(node: Node, files: Path) -> None:
    """What moves by itself. Written in place and at a fixed length: a reader never sees half a file, and bindings stay."""
    put(files / "meminfo", meminfo_text(node))
    put(files / "uptime", f"{node.uptime:.2f} {node.uptime * 19:.2f}\n", width=48)
    one, five, fifteen = load(node)
    put(files / "loadavg", f"{one:.2f} {five:.2f} {fifteen:.2f} 2/1184 48213\n", width=48)
    ticks = int(node.uptime * 100)
    rows = [f"cpu  {ticks} 0 {ticks // 3} {ticks * 18} {ticks // 50} 0 {ticks // 90} 0 0 0"]
    rows += [
        f"cpu{number} {ticks // 20} 0 {ticks // 60} {ticks * 18 // 20} {ticks // 1000} 0 {ticks // 1800} 0 0 0"
        for number in range(20)
    ]
    rows += [
        "intr 0",
        f"ctxt {ticks * 40}",
        f"btime {int(node.booted)}",
        f"processes {ticks // 10}",
        "procs_running 2",
        "procs_blocked 0",
    ]
    put(files / "stat", "\n".join(rows) + "\n", width=2600)


def put(path: Path, content: str, *, width: int = 0) -> None:
    data = content.encode()
    if width > len(data):
        data = data[:-1] + b" " * (width - len(data)) + b"\n"
    if not path.exists():
        path.write_bytes(data)
        return
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, 0)
        if os.fstat(descriptor).st_size != len(data):
            os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def _dgx_release(node: Node) -> None:
    text(
        node.root / "etc/dgx-release",
        'DGX_NAME="DGX Spark"\nDGX_PRETTY_NAME="NVIDIA DGX Spark"\nDGX_SWBUILD_DATE="2025-09-10-13-50-03"\nDGX_SWBUILD_VERSION="7.2.3"\n'
        f'DGX_PLATFORM="DGX Server for P4242"\nDGX_SERIAL_NUMBER="{node.seed.serial}"\n',
    )


def write_etc(node: Node) -> None:
    etc = node.root / "etc"
    home = node.machine.home if node.machine else "/home/aurora"
    text(etc / "os-release", OS_RELEASE)
    text(
        etc / "lsb-release",
        'DISTRIB_ID=Ubuntu\nDISTRIB_RELEASE=24.04\nDISTRIB_CODENAME=noble\nDISTRIB_DESCRIPTION="Ubuntu 24.04.3 LTS"\n',
    )
    if node.seed.spark:
        _dgx_release(node)
    text(etc / "hostname", node.name + "\n")
    text(
        etc / "hosts",
        f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n"
        + "".join(f"{ip} {name}\n" for name, ip in scene.KNOWN_NAMES.items()),
    )
    text(etc / "machine-id", hashlib.md5(node.name.encode()).hexdigest() + "\n")
    text(etc / "passwd", PASSWD.format(home=home))
    text(etc / "group", GROUP)
    text(etc / "nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")
    text(etc / "timezone", "Etc/UTC\n")
    text(
        etc / "docker/daemon.json",
        json.dumps({"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}, indent=4) + "\n",
    )


def write_bare(node: Node) -> None:
    """/etc of a Spark that nobody has set up: no group docker for its user, no GPU runtime, its fabric left to itself."""
    etc, owner = node.root / "etc", node.ground.owner
    (node.root / "var/lib/systemd/linger").mkdir(parents=True, exist_ok=True)
    text(etc / "group", GROUP.replace("docker:x:988:aurora", "docker:x:988:"))
    (etc / "docker/daemon.json").unlink(missing_ok=True)
    for card in (card for card in node.cards if card.hca and card.cable):
        if owner == "networkd":
            text(
                etc / f"systemd/network/40-{card.name}.network",
                f"[Match]\nName={card.name}\n\n[Network]\nLinkLocalAddressing=ipv4\n",
            )
    if owner == "netplan":
        rows = [
            f"    {c.name}:\n      dhcp4: false\n      link-local: [ipv4]\n" for c in node.cards if c.hca and c.cable
        ]
        text(etc / "netplan/40-cx7.yaml", "network:\n  version: 2\n  ethernets:\n" + "".join(rows))


def write_sys(node: Node) -> None:
    base = node.root / "sys"
    shutil.rmtree(base / "class", ignore_errors=True)
    for number, card in enumerate(node.cards, start=2):
        place = base / "class/net" / card.name
        device = base / f"devices/pci/{card.name}"
        device.mkdir(parents=True, exist_ok=True)
        text(place / "mtu", f"{card.mtu}\n")
        text(place / "operstate", "up\n" if card.up else "down\n")
        text(place / "address", card.mac + "\n")
        text(place / "ifindex", f"{number}\n")
        text(place / "speed", f"{card.speed if card.up else -1}\n")
        text(place / "carrier", f"{int(card.up)}\n")
        text(place / "type", "1\n")
        os.symlink(f"../../../devices/pci/{card.name}", place / "device")
        if card.hca:
            (device / "infiniband" / card.hca).mkdir(parents=True, exist_ok=True)
            (device / "net" / card.name).mkdir(parents=True, exist_ok=True)
            hca_files(base / "class/infiniband" / card.hca, card)
    for name, mtu, state in (("lo", 65536, "unknown"), ("docker0", 1500, "down")):
        place = base / "class/net" / name
        text(place / "mtu", f"{mtu}\n")
        text(place / "operstate", f"{state}\n")
        text(place / "address", "00:00:00:00:00:00\n" if name == "lo" else "02:42:ac:11:00:02\n")
    for place in (base / "class/dmi/id", base / "devices/virtual/dmi/id"):
        for name, value in (
            ("product_name", node.seed.product),
            ("sys_vendor", "NVIDIA" if node.seed.spark else "Supermicro"),
            ("board_name", "P4242"),
            ("bios_version", "5.36_0ACUM018"),
            ("product_family", "DGX Spark"),
            ("chassis_vendor", "NVIDIA"),
        ):
            text(place / name, value + "\n")
    (base / "fs/cgroup").mkdir(parents=True, exist_ok=True)
    text(base / "fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n")


def write_link(node: Node, card: scene.Card) -> None:
    """What /sys says of one card, in place: others may be reading."""
    place = node.root / "sys/class/net" / card.name
    for name, value in (
        ("mtu", card.mtu),
        ("operstate", "up" if card.up else "down"),
        ("speed", card.speed if card.up else -1),
        ("carrier", int(card.up)),
    ):
        put(place / name, f"{value}\n")
    if card.hca:
        hca_files(node.root / "sys/class/infiniband" / card.hca, card)


def hca_files(place: Path, card: scene.Card) -> None:
    port = place / "ports/1"
    text(port / "state", "4: ACTIVE\n" if card.up else "1: DOWN\n")
    text(port / "phys_state", "5: LinkUp\n" if card.up else ("3: Disabled\n" if card.disabled else "2: Polling\n"))
    text(port / "rate", "200 Gb/sec (4X HDR)\n" if card.up else "40 Gb/sec (4X QDR)\n")
    text(port / "link_layer", "Ethernet\n")
    zero = "0000:0000:0000:0000:0000:0000:0000:0000"
    gids = [zero] * 8
    kinds = ["IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"]
    if card.up:
        parts = card.mac.split(":")
        local = (
            f"fe80:0000:0000:0000:{int(parts[0], 16) ^ 2:02x}{parts[1]}:{parts[2]}ff:fe{parts[3]}:{parts[4]}{parts[5]}"
        )
        octets = [int(word) for word in (card.address or "0.0.0.0").split(".")]
        mapped = f"0000:0000:0000:0000:0000:ffff:{octets[0]:02x}{octets[1]:02x}:{octets[2]:02x}{octets[3]:02x}"
        gids[:4] = [local, local, mapped, mapped]
    for number, gid in enumerate(gids):
        text(port / f"gids/{number}", gid + "\n")
        if card.up and number < 4:
            text(port / f"gid_attrs/types/{number}", kinds[number] + "\n")
            text(port / f"gid_attrs/ndevs/{number}", card.name + "\n")
    text(place / "node_guid", "4cbb:4703:005e:" + card.mac.replace(":", "")[-4:] + "\n")
    text(place / "fw_ver", "28.45.4028\n")
    (place / "device").mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(place / "device/net"):
        (place / "device/net" / card.name).mkdir(parents=True)


def write_model(folder: Path, name: str, shards: int, total: int, config: dict[str, object]) -> None:
    """A model folder of sparse files with index and config."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    text(place / "config.json", json.dumps(config, indent=2) + "\n")
    each, weights = total // shards, {}
    for number in range(1, shards + 1):
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        size = each if number < shards else total - each * (shards - 1)
        with open(place / file, "wb") as out:
            header = json.dumps(
                {
                    "__metadata__": {"format": "pt"},
                    f"model.layers.{number}.weight": {
                        "dtype": "F8_E4M3",
                        "shape": [size - 4096],
                        "data_offsets": [0, size - 4096],
                    },
                }
            ).encode()
            header += b" " * (4096 - 8 - len(header))
            out.write(len(header).to_bytes(8, "little") + header)
            out.truncate(size)
        weights[f"model.layers.{number}.weight"] = file
    text(
        place / "model.safetensors.index.json",
        json.dumps({"metadata": {"total_size": total}, "weight_map": weights}, indent=2) + "\n",
    )
    text(
        place / "tokenizer_config.json",
        json.dumps({"tokenizer_class": "Qwen2Tokenizer", "chat_template": "{{ messages }}"}) + "\n",
    )
    text(
        place / "tokenizer.json",
        json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}) + "\n",
    )
    text(place / "generation_config.json", json.dumps({"temperature": 0.6, "top_p": 0.95, "top_k": 20}) + "\n")


def write_gguf(models: Path) -> None:
    file = models / scene.GGUF
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "wb") as out:
        out.write(b"GGUF\x03\x00\x00\x00")
        out.truncate(scene.GGUF_BYTES)


def write_server(node: Node, models: Path, shards: int) -> None:
    """The third machine: its models, and programs outside of PATH."""
    config = {name: value for name, value in scene.MODEL_CONFIG.items() if name != "quantization_config"}
    write_model(models, scene.BF16, shards, scene.BF16_BYTES, config)
    write_gguf(models)
    venv = node.root / "opt/sglang"
    text(venv / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.3\n")
    for name, version in (("sglang", "0.5.9"), ("torch", "2.9.1+cu130"), ("transformers", "5.2.0")):
        text(venv / f"lib/python3.12/site-packages/{name}-{version}.dist-info/METADATA", f"Name: {name}\n")
    assert node.machine is not None
    for name in ("python", "python3"):  # a virtual environment has both
        node.machine.install(f"/opt/sglang/bin/{name}", "venv-python3")
    node.machine.install("/opt/llama.cpp/bin/llama-server", "own-llama-server")
    node.machine.install("/opt/acme/bin/openai-server", "own-openai-server")


def write_checkout(place: Path) -> None:
    """A clone of the kit with which the old stack was once tried, and the script that somebody wrote for it."""
    text(place / ".git/HEAD", "ref: refs/heads/main\n")
    text(place / ".git/refs/heads/main", hashlib.sha1(place.name.encode()).hexdigest() + "\n")
    remote = '[remote "origin"]\n\turl = https://github.com/eugr/spark-vllm-docker.git\n'
    text(place / ".git/config", f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n{remote}")
    text(
        place / "serve-glm.sh",
        "#!/bin/bash\n# one node, no Ray\nPORT=${PORT:-8000}\n"
        "./launch-cluster.sh -t vllm-node --solo exec vllm serve /models/GLM-4.7-Flash --port $PORT --max-model-len 131072\n",
    )


def write_files(node: Node, shards: int) -> None:
    """Models, unit files and scripts of the start scene."""
    models = node.root / "models"
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir()
    if not node.seed.spark:
        write_server(node, models, shards)
        return
    write_model(models, scene.MODEL, shards, scene.MODEL_BYTES, dict(scene.MODEL_CONFIG))
    if node.name == scene.SECOND:
        write_gguf(models)
    cache = node.root / "home/aurora/.cache/huggingface/hub"
    if node.name == scene.HEAD:
        write_model(models, "GLM-4.7-Flash", 24, 31_400_000_000, dict(scene.GLM_CONFIG))
        write_model(models, "Qwen3-Embedding-4B", 2, 8_040_000_000, dict(scene.SMALL_CONFIG))
        write_model(models, "Qwen3-Reranker-4B", 2, 8_040_000_000, dict(scene.SMALL_CONFIG))
        snapshot = cache / "models--Qwen--Qwen3-Embedding-4B/snapshots/5cf2132abc99cad020ac570b19d031efec650f2b"
        text(snapshot / "config.json", json.dumps(scene.SMALL_CONFIG) + "\n")
        text(cache / "models--Qwen--Qwen3-Embedding-4B/refs/main", "5cf2132abc99cad020ac570b19d031efec650f2b")
    for unit in node.seed.units:
        ask = f"ExecStartPre=-/usr/bin/docker rm -f {unit.container}\n" if unit.container else ""
        stop = f"ExecStop=/usr/bin/docker stop {unit.container}\n" if unit.container else ""
        text(
            node.root / f"etc/systemd/system/{unit.name}",
            f"[Unit]\nDescription={unit.description}\nAfter=docker.service network-online.target\nRequires=docker.service\n\n[Service]\n{ask}"
            f"ExecStart={unit.exec_start}\n{stop}Restart=always\nRestartSec=10\n\n[Install]\nWantedBy=multi-user.target\n",
        )
        if unit.exec_start.endswith(".sh"):
            words = " ".join(unit.arguments)
            text(
                node.root / unit.exec_start.lstrip("/"),
                f"#!/bin/bash\n# started by {unit.name}\nexec docker run --rm --name {unit.container} --gpus all --network host --ipc host \\\n"
                f"  -v /models:/models vllm-node \\\n  {words}\n",
            )
            os.chmod(node.root / unit.exec_start.lstrip("/"), 0o755)
    if node.seed.units:
        text(node.root / "opt/vllm/proxy.py", "# forwards /v1 to 8000, /embed to 8001 and /rerank to 8002\n")
        write_checkout(node.root / "home/aurora/spark-vllm-docker")
    wants = node.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
