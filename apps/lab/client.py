"""The lab as a library: start it in its own process, and steer it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class LabError(Exception):
    """The lab could not do what was asked; the text says why."""


def ask(control: str, do: str, timeout_s: float = 60.0, **values: Any) -> dict[str, Any]:
    """One request to a running lab. Raises LabError."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(timeout_s)
            line.connect(control)
            line.sendall(json.dumps({"do": do, **values}).encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                piece = line.recv(65536)
                if not piece:
                    break
                data += piece
    except OSError as error:
        raise LabError(f"no lab answers at {control}: {error}; start it with: python manage.py lab serve") from error
    said: dict[str, Any] = json.loads(data or b'{"ok": false, "error": "no answer"}')
    if not said.pop("ok"):
        raise LabError(str(said.get("error")))
    return said


@dataclass(frozen=True)
class LabNode:
    name: str
    port: int  # of its SSH server on 127.0.0.1
    host_keys: tuple[dict[str, str], ...]  # type, sha256 (SHA256:…), public (one line)
    addresses: tuple[str, ...]  # what its facts say


class Lab:
    """A running lab. `with Lab.start(folder) as lab:` ends it."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder, self.process = folder, process
        self.about: dict[str, Any] = json.loads((folder / "lab.json").read_text())
        self.control = str(self.about["control"])

    @classmethod
    def start(
        cls,
        folder: Path | str,
        *,
        factor: float = 35.0,
        shards: int = 39,
        redirect: str = "auto",
        shard_s: float = 18.0,
        rank_order: str = "01",
        third: bool = False,
        timeout_s: float = 60.0,
    ) -> Lab:
        """Start the lab on `folder` in its own process. `redirect` is mount, rewrite or auto; `third`: with the x86 server of the
        story. Raises LabError when it does not come up."""
        folder = Path(folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        given = {
            "folder": str(folder),
            "factor": factor,
            "shards": shards,
            "redirect": redirect,
            "shard_s": shard_s,
            "rank_order": rank_order,
            "third": third,
        }
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]),
        }
        log = (folder / "lab.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "apps.lab.daemon", json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
        )
        log.close()
        assert process.stdout is not None
        ready = Waiter(process.stdout, timeout_s).line()
        if not ready:
            process.kill()
            process.wait()
            tail = (folder / "lab.log").read_text(errors="replace")[-1500:]
            raise LabError(f"the lab did not come up on {folder}: {tail}")
        return cls(folder, process)

    @property
    def nodes(self) -> dict[str, LabNode]:
        return {
            name: LabNode(name, entry["port"], tuple(entry["host_keys"]), tuple(entry["addresses"]))
            for name, entry in self.about["nodes"].items()
        }

    @property
    def redirect(self) -> str:
        return str(self.about["redirect"])

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        return ask(self.control, do, **values)

    def authorize(self, public_key: str, node: str = "all") -> None:
        """Let the holder of this OpenSSH public key in as aurora."""
        self.ask("authorize", node=node, key=public_key)

    def fault(self, node: str, name: str, value: str | float = "") -> None:
        """Switch a fault on; `apps.lab.world.FAULTS` lists them."""
        self.ask("fault", node=node, fault=name, value=str(value))

    def clear(self, node: str = "all") -> None:
        self.ask("clear", node=node)

    def reboot(self, node: str = "all") -> None:
        """Begin the reboot; it takes at least a second."""
        self.ask("reboot", node=node)

    def reset(self) -> None:
        self.ask("reset")

    def set(self, **values: Any) -> None:
        """factor, shard_s, rank_order ("01" or "10"), shards, memory_strict."""
        self.ask("set", **values)

    def bare(self, node: str, *, owner: str = "", sudo: str = "", login: str = "") -> None:
        """Turn the node into one that nobody has set up. `owner` of the fabric: netplan, networkd, networkmanager or nobody;
        `sudo`: the password that sudo asks for; `login`: one that opens the door."""
        self.ask("bare", node=node, owner=owner, sudo=sudo, login=login)

    def remove_image(self, node: str, image: str) -> None:
        self.ask("remove-image", node=node, image=image)

    def state(self) -> dict[str, Any]:
        return self.ask("state")

    def root(self, node: str) -> Path:
        """The node's root folder on this machine."""
        return self.folder / "nodes" / node / "root"

    def stop(self) -> None:
        if self.process is None:
            with contextlib.suppress(LabError):
                self.ask("stop")
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Waiter:
    """Reads one line of a pipe, but not longer than `timeout_s`."""

    def __init__(self, pipe: Any, timeout_s: float) -> None:
        self.pipe, self.end = pipe, time.monotonic() + timeout_s

    def line(self) -> bytes:
        import select

        data = b""
        while not data.endswith(b"\n"):
            left = self.end - time.monotonic()
            if left <= 0 or not select.select([self.pipe], [], [], left)[0]:
                return b""
            piece = os.read(self.pipe.fileno(), 4096)
            if not piece:
                return b""
            data += piece
        return data
