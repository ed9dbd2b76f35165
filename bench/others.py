"""The same nodes by us, by a loop of ssh, by pyinfra and by ansible, taking turns.

The nodes are one OpenSSH server on loopback under as many addresses. What it runs costs the same whoever asks, so two
works are measured: `probe`, the product's real script, and `line`, a script that only prints a word, which leaves the
cost of asking. Everybody checks pinned host keys and nobody reads this machine's own SSH settings. Ansible gathers what
its module `setup` gathers; it can't be given another script for that.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.facts import probe
from bench import environment
from bench.measure import CannotMeasure, Figures, load, say, seconds
from tests.openssh import SSHD, OpenSsh, Sshd

NONCE = "compared0nonce0compared0"
TIMEOUT_S = 300.0

# What is sent, and a word that is in the answer of every node that ran it to its end.
WORKS = {"line": ("echo here\n", "here"), "probe": (probe.script(probe.PROBE, nonce=NONCE), f"{NONCE} end")}

# A pyinfra fact is a command and what to make of its lines.
_PYINFRA_FACT = """
from pathlib import Path
from pyinfra.api import FactBase


class Probe(FactBase):
    def command(self):
        return Path("script.sh").read_text()

    def process(self, output):
        return list(output)
"""

_ANSIBLE = """
[defaults]
forks = {forks}
[ssh_connection]
ssh_args = -F none -o ControlMaster=auto -o ControlPersist=5s
ssh_common_args = -o UserKnownHostsFile={known} -o IdentitiesOnly=yes -o BatchMode=yes
control_path_dir = {folder}/c
"""


@dataclass(frozen=True)
class Fleet:
    """The addresses of one server, and a folder with what every contender needs: key, known_hosts, script, inventory."""

    server: Sshd
    addresses: tuple[str, ...]
    folder: Path
    key: Path

    @property
    def known(self) -> Path:
        return self.folder / "known_hosts"

    def endpoints(self) -> list[dict[str, Any]]:
        """As bench.asking wants them."""
        return [
            {
                "name": f"node-{address}",
                "address": address,
                "port": self.server.port,
                "user": getpass.getuser(),
                "host_keys": list(self.server.host_keys),
            }
            for address in self.addresses
        ]


@contextmanager
def fleet(folder: Path, nodes: int) -> Iterator[Fleet]:
    """One sshd on 127.0.0.1 to 127.0.0.`nodes`. Raises CannotMeasure where none is installed."""
    if SSHD is None:
        raise CannotMeasure("no OpenSSH server here: apt-get install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    addresses = tuple(f"127.0.0.{n}" for n in range(1, nodes + 1))
    place = folder / "servers"
    place.mkdir()
    servers = OpenSsh(place)
    try:
        # All addresses are one server here: without MaxStartups it drops some of those who knock at the same moment.
        listen = "\n".join(f"ListenAddress {address}" for address in addresses[1:])
        server = servers.start("nodes", kinds=("ed25519",), extra=listen, MaxStartups="256")
        found = Fleet(server, addresses, folder, place / "user")
        _lay_out(found)
        yield found
    finally:
        servers.stop()


def _lay_out(fleet: Fleet) -> None:
    port, folder = fleet.server.port, fleet.folder
    pinned = [(address, kind, text) for address in fleet.addresses for kind, text in fleet.server.host_keys]
    fleet.known.write_text("".join(f"[{address}]:{port} {kind} {text}\n" for address, kind, text in pinned))
    (folder / "probing.py").write_text(_PYINFRA_FACT)
    data = {
        "ssh_port": port,
        "ssh_user": getpass.getuser(),
        "ssh_key": str(fleet.key),
        "ssh_known_hosts_file": str(fleet.known),
        "ssh_strict_host_key_checking": "yes",
    }
    (folder / "inventory.py").write_text(f"nodes = {[(address, data) for address in fleet.addresses]!r}\n")
    (folder / "ansible.cfg").write_text(_ANSIBLE.format(forks=len(fleet.addresses), known=fleet.known, folder=folder))
    lines = [
        *fleet.addresses,
        "[all:vars]",
        f"ansible_port={port}",
        f"ansible_user={getpass.getuser()}",
        f"ansible_ssh_private_key_file={fleet.key}",
        f"ansible_remote_tmp={folder}/remote",
        f"ansible_python_interpreter={shutil.which('python3')}",
    ]
    (folder / "hosts.ini").write_text("\n".join(lines) + "\n")


def by_ssh(fleet: Fleet, work: str) -> str:
    """`ssh host sh -s <script` for all nodes, as many at a time as there are nodes. What went wrong, else empty."""
    word = WORKS[work][1]
    options = f"-F none -q -o BatchMode=yes -o IdentitiesOnly=yes -o UserKnownHostsFile={shlex.quote(str(fleet.known))}"
    door = f"-i {shlex.quote(str(fleet.key))} -p {fleet.server.port} {shlex.quote(getpass.getuser())}@{{}}"
    command = f"ssh {options} {door} /bin/sh -s <script.sh >answer.{{}}"
    words = ["xargs", f"-P{len(fleet.addresses)}", "-I{}", "sh", "-c", command]
    done = _run(words, fleet.folder, typed="\n".join(fleet.addresses))
    whole = [word in (fleet.folder / f"answer.{each}").read_text(errors="replace") for each in fleet.addresses]
    return "" if all(whole) else f"ssh: {whole.count(False)} of {len(whole)} without an answer: {done.stderr[-300:]}"


def by_pyinfra(programs: Path, fleet: Fleet, work: str) -> str:
    """A fact whose command is the script. What went wrong, else empty."""
    words = [str(programs / "pyinfra"), "inventory.py", "fact", "probing.Probe"]
    done = _run(words, fleet.folder)
    answers = (done.stdout + done.stderr).count(WORKS[work][1])
    wanted = len(fleet.addresses)
    return "" if answers >= wanted else f"pyinfra: {answers} of {wanted} answered: {done.stderr[-300:]}"


def by_ansible(programs: Path, fleet: Fleet, work: str) -> str:
    """`ansible -m setup`, all nodes at a time, no connection kept from before. What went wrong, else empty."""
    control = fleet.folder / "c"  # a new folder of control sockets: masters of the run before are not found
    shutil.rmtree(control, ignore_errors=True)
    words = [str(programs / "ansible"), "all", "-i", "hosts.ini", "-m", "setup"]
    own = {name: str(fleet.folder / "ansible") for name in ("ANSIBLE_HOME", "ANSIBLE_LOCAL_TEMP")}
    done = _run(words, fleet.folder, {**own, "ANSIBLE_CONFIG": str(fleet.folder / "ansible.cfg")})
    answers, wanted = done.stdout.count("| SUCCESS =>"), len(fleet.addresses)
    return "" if answers == wanted else f"ansible: {answers} of {wanted} answered: {(done.stdout + done.stderr)[-300:]}"


def _run(
    words: list[str], folder: Path, more: Mapping[str, str] | None = None, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    own = {"HOME": str(folder), "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1", **(more or {})}
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **own},
        input=typed,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )


Contender = Callable[[str], str]  # the work's name -> what went wrong, else empty


def compared(folder: Path, *, nodes: int, runs: int, only_ssh: bool = False) -> Figures:
    """`runs` rounds in which all contenders take their turn; medians and all samples by work and contender.

    `only_ssh` leaves pyinfra and ansible out. What could not be measured is named with the reason.
    """
    try:
        with ExitStack() as held:
            found = held.enter_context(fleet(folder, nodes))
            return _rounds(found, runs, only_ssh, held)
    except CannotMeasure as problem:
        return {"not_measured": {"all": str(problem)}}


def _rounds(found: Fleet, runs: int, only_ssh: bool, held: ExitStack) -> Figures:
    from bench.probe import asking  # that module reads this one first

    private_key = found.server.private_key
    ours = held.enter_context(asking(private_key, found.endpoints()))

    def from_nothing(work: str) -> str:
        with asking(private_key, found.endpoints()) as fresh:
            return "; ".join(fresh.ask("cold", work)["failures"])

    late: list[int] = []

    def asked(do: str, work: str) -> str:
        answer = ours.ask(do, work)
        late.append(answer["late_sections"])
        return "; ".join(answer["failures"])

    contenders: dict[str, Contender] = {
        "ours_cold": lambda work: asked("cold", work),
        "ours_warm": lambda work: asked("warm", work),
        "ours_new_process": from_nothing,
    }
    not_measured: dict[str, str] = {}
    if shutil.which("ssh") and shutil.which("xargs"):
        contenders["ssh_loop"] = lambda work: by_ssh(found, work)
    else:
        not_measured["ssh_loop"] = "ssh or xargs is missing: apt-get install openssh-client findutils"
    versions = {} if only_ssh else _with_installed(contenders, not_measured, found)
    took, loads, failed = _turns(contenders, found, runs)
    return {
        "nodes": len(found.addresses),
        "load_average_of_rounds": loads,
        "versions": versions,
        **{work: {name: seconds(samples) for name, samples in by_name.items()} for work, by_name in took.items()},
        "not_measured": not_measured,
        "late_sections": sum(late),
        "failures": len(failed),
        "failed": failed[:5],
    }


def _with_installed(contenders: dict[str, Contender], not_measured: dict[str, str], found: Fleet) -> dict[str, str]:
    """Add pyinfra and ansible, or why not; their versions."""
    try:
        programs = environment.ready()
    except CannotMeasure as problem:
        not_measured.update(dict.fromkeys(("pyinfra", "ansible_setup"), str(problem)))
        return {}
    contenders["pyinfra"] = lambda work: by_pyinfra(programs, found, work)
    contenders["ansible_setup"] = lambda work: by_ansible(programs, found, work)
    said = {name: _run([str(programs / name), "--version"], found.folder).stdout for name in ("pyinfra", "ansible")}
    return {name: text.partition("\n")[0] for name, text in said.items()}


def _turns(
    contenders: Mapping[str, Contender], found: Fleet, runs: int
) -> tuple[dict[str, dict[str, list[float]]], list[float], list[str]]:
    """Seconds by work and contender, the load before each round, and failures in words."""
    took: dict[str, dict[str, list[float]]] = {work: {} for work in WORKS}
    loads: list[float] = []
    failed: list[str] = []
    for turn in range(runs):
        for work, (script, _) in WORKS.items():
            (found.folder / "script.sh").write_text(script)
            loads.append(load()[0])
            for name, act in contenders.items():
                if name == "ansible_setup" and work == "line":
                    continue
                say(f"round {turn + 1} of {runs}: {work} by {name}")
                started = time.monotonic()
                trouble = act(work)
                took[work].setdefault(name, []).append(time.monotonic() - started)
                failed += [f"{work}: {trouble}"] if trouble else []
    return took, loads, failed


def main() -> None:
    """`python -m bench.others`: the comparison alone."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        print(json.dumps(compared(Path(name), nodes=16, runs=3), indent=2))


if __name__ == "__main__":
    main()
