"""The files that a provision run writes, whole. Every name in them was looked up or checked before."""

from __future__ import annotations

from collections.abc import Sequence

from apps.plan.provision.wish import Place

LIMITS_FILE = "/etc/security/limits.d/60-sparkweb.conf"
CLOCK_UNIT = "sparkweb-gpu-clock.service"
CLOCK_FILE = f"/etc/systemd/system/{CLOCK_UNIT}"
OPEN_FILES = 1048576
EARLYOOM = 'EARLYOOM_ARGS="-m 2 -s 100 -r 3600 --avoid ^(sshd|systemd|dockerd|containerd)$"\n'


def limits(user: str) -> str:
    return (
        "# Written by sparkweb: RDMA and CUDA lock memory, engines open many files.\n"
        f"{user} - memlock unlimited\n{user} - nofile {OPEN_FILES}\n"
    )


def sudoers_file(user: str) -> str:
    """Sudo leaves out files whose name holds a dot or ends in a tilde."""
    return f"/etc/sudoers.d/sparkweb-{user.replace('.', '_')}"


def sudoers(user: str, *, units: Sequence[str], interfaces: Sequence[str]) -> str:
    """One line for exactly the commands of plans. Arguments in ^…$ are regular expressions (sudo 1.9.10 and newer; an
    older one takes them literally and so allows nothing)."""
    commands = ["/usr/bin/tee /proc/sys/vm/drop_caches"]
    if units:
        named = "|".join(sorted({_literal(unit.removesuffix(".service")) for unit in units}))
        commands.append(f"/usr/bin/systemctl ^(stop|start|enable|disable)( ({named})([.]service)?)+$")
    if interfaces:
        named = "|".join(sorted(_literal(name) for name in interfaces))
        for program in ("/usr/sbin/ip", "/sbin/ip"):
            commands.append(f"{program} ^link set dev ({named}) (up|down|up mtu [0-9]+|mtu [0-9]+)$")
            commands.append(
                f"{program} ^addr (add|replace|del) [0-9]+[.][0-9]+[.][0-9]+[.][0-9]+/[0-9]+ dev ({named})$"
            )
    listed = ", \\\n    ".join(commands)
    about = "# Written by sparkweb: what its plans use, without a password. A restore run takes it away."
    return f"{about}\n{user} ALL=(root) NOPASSWD: {listed}\n"


def _literal(name: str) -> str:
    return name.replace(".", "[.]")


def netplan(places: Sequence[Place], mtu: int) -> str:
    rows = [
        "# Written by sparkweb for the fabric; a restore run takes it away.",
        "network:",
        "  version: 2",
        "  ethernets:",
    ]
    for one in places:
        rows += [
            f"    {one.interface}:",
            "      dhcp4: false",
            "      link-local: [ipv6]",
            f"      mtu: {mtu}",
            f"      addresses: [{one.address}/{one.prefix}]",
        ]
    return "\n".join(rows) + "\n"


def gpu_clock(mhz: int) -> str:
    return f"""# Written by sparkweb
[Unit]
Description=Highest clock of the GPU: {mhz} MHz
After=nvidia-persistenced.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-smi --lock-gpu-clocks=0,{mhz}
ExecStop=/usr/bin/nvidia-smi --reset-gpu-clocks

[Install]
WantedBy=multi-user.target
"""
