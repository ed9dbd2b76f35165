"""python3, pip, hf: what is installed on the host and in the images."""

from __future__ import annotations

import json

from apps.lab import scene
from apps.lab.call import Call, tool
from apps.lab.machine import python_path
from apps.lab.scene import Software
from apps.lab.tools import setup
from apps.lab.tools.network import doors_of

HOST = Software(
    python="3.12.3",
    other=(
        ("pip", "24.0"),
        ("numpy", "2.1.3"),
        ("huggingface-hub", "0.34.4"),
        ("requests", "2.31.0"),
        ("PyYAML", "6.0.1"),
        ("setuptools", "68.1.2"),
    ),
)


def software(call: Call) -> Software:
    container = call.container
    return container.image.software if container is not None else HOST


PRELUDE = r"""
import sys, types, os, platform, importlib
V, HOST, CONTAINER = @VALUES@
class Version(tuple):
    major, minor, micro, releaselevel, serial = 3, 12, 3, "final", 0
sys.version_info = Version((3, 12, 3, "final", 0))
sys.version = "3.12.3 (main, Aug 14 2025, 17:47:21) [GCC 13.3.0]"
sys.executable, sys.prefix, sys.base_prefix = "/usr/bin/python3", "/usr", "/usr"
sys.platform = "linux"
platform.python_version = lambda: "3.12.3"
platform.machine = platform.processor = lambda: "@ARCH@"
platform.node = lambda: HOST
platform.release = lambda: "@KERNEL@"
platform.platform = lambda *a, **k: "Linux-@KERNEL@-@ARCH@-with-glibc2.39"
os.uname = lambda: os.uname_result(("Linux", HOST, "@KERNEL@", "#15-Ubuntu SMP PREEMPT_DYNAMIC", "@ARCH@"))
os.cpu_count = lambda: 20
class PackageNotFoundError(ModuleNotFoundError): pass
class Distribution:
    def __init__(self, name): self.name, self.version, self.metadata = name, V[name], {"Name": name, "Version": V[name]}
def distribution(name):
    key = name.lower().replace("_", "-")
    if key not in V: raise PackageNotFoundError(name)
    return Distribution(key)
def true_metadata(name):  # it takes longer to load than all the rest: only for what is not said below
    ours = sys.modules.pop("importlib.metadata")
    try: return getattr(importlib.import_module("importlib.metadata"), name)
    finally: sys.modules["importlib.metadata"] = importlib.metadata = ours
def module(name, **values):
    made = types.ModuleType(name); made.__dict__.update(values); made.__path__ = []; sys.modules[name] = made; return made
importlib.metadata = module("importlib.metadata", distribution=distribution, version=lambda name: distribution(name).version, PackageNotFoundError=PackageNotFoundError,
                            distributions=lambda **k: [Distribution(name) for name in V], __getattr__=true_metadata)
for name in ("vllm", "torch", "ray", "transformers", "triton", "safetensors", "huggingface_hub", "numpy"):
    if name.replace("_", "-") in V: module(name, __version__=V[name.replace("_", "-")])
if "torch" in sys.modules:
    torch = sys.modules["torch"]
    torch.version = module("torch.version", cuda="13.0")
    torch.cuda = module("torch.cuda", is_available=lambda: True, device_count=lambda: 1, get_device_name=lambda *a: "NVIDIA GB10", get_device_capability=lambda *a: (12, 1),
                        get_arch_list=lambda: ["sm_80", "sm_90", "sm_100", "sm_120", "compute_120"])
    torch.cuda.nccl = module("torch.cuda.nccl", version=lambda: (2, 28, 9))
@SOCKETS@
@RUN@
"""

# For programs that talk to what listens on their node: a connection to one of its ports goes to a socket file of the lab's, any other
# is refused, so that nothing is dialled.
SOCKETS = r"""
import socket
DOORS = @DOORS@
class Socket(socket.socket):
    def connect(self, address):
        if self.family == socket.AF_UNIX: return super().connect(address)
        if address[0] not in ("127.0.0.1", "::1", "localhost") or address[1] not in DOORS: raise ConnectionRefusedError(111, "Connection refused")
        blocking = self.gettimeout() != 0
        with Plain(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.connect(DOORS[address[1]])
            os.dup2(door.fileno(), self.fileno())
        os.set_blocking(self.fileno(), blocking)
    def connect_ex(self, address):
        try: self.connect(address)
        except OSError as problem: return problem.errno
        return 0
    def setsockopt(self, *words):
        pass  # of TCP; the file behind it knows none of them
Plain, socket.socket = socket.socket, Socket
"""


@tool("python3", "python", "python3.12", inside=True)
async def python(call: Call) -> int:
    """This machine's interpreter, dressed: versions, platform and packages are the node's or the image's."""
    installed, words, sockets = software(call), list(call.arguments), False
    while words and words[0] in ("-u", "-I", "-s", "-E", "-S", "-B", "-q"):
        words = words[1:]
    if words and words[0] in ("--version", "-V"):
        await call.out(f"Python {installed.python}\n")
        return 0
    if words[:2] == ["-m", "pip"]:
        return await pip(
            Call(
                call.machine,
                ["pip", *words[2:]],
                call.cwd,
                call.environment,
                call.pid,
                call.reader,
                call.writer,
                call.taken,
                call.sink,
            )
        )
    if words[:2] == ["-m", "vllm.entrypoints.openai.api_server"] and call.container is not None:
        from apps.lab.tools.docker import inside_program

        return await inside_program(call, ["vllm", "serve", *words[2:]])
    if words[:1] == ["-m"]:
        return await call.fail(f"/usr/bin/python3: No module named {words[1] if len(words) > 1 else ''}\n", 1)
    if words[:1] == ["-c"] and "# sparkweb bandwidth" in words[1]:
        return await setup.bandwidth(call, words[2:])
    if words[:1] == ["-c"]:
        given, run = (
            ["-c", *words[2:]],
            f"exec(compile({words[1] if len(words) > 1 else ''!r}, '<string>', 'exec'), {{'__name__': '__main__'}})",
        )
    elif not words or words[0] == "-":
        sockets = bool(words)  # a program that was sent along
        given, run = ["-", *words[1:]], "exec(compile(sys.stdin.read(), '<stdin>', 'exec'), {'__name__': '__main__'})"
    else:
        path = call.machine.inside(
            words[0]
            if words[0].startswith("/")
            else f"{call.cwd}/{words[0]}"
            if call.machine.mode == "mount"
            else words[0]
        )
        if not path.is_file():
            return await call.fail(f"python3: can't open file '{words[0]}': [Errno 2] No such file or directory\n", 2)
        given, run = (
            list(words),
            f"exec(compile({path.read_text(errors='replace')!r}, {words[0]!r}, 'exec'), {{'__name__': '__main__'}})",
        )
    run = f"sys.argv = {given!r}\n{run}"
    values = repr((installed.packages(), call.node.name, call.container is not None))
    text = (
        PRELUDE.replace("@VALUES@", values)
        .replace("@KERNEL@", call.node.seed.kernel)
        .replace("@ARCH@", call.node.seed.arch)
        .replace("@SOCKETS@", SOCKETS.replace("@DOORS@", repr(await doors_of(call))) if sockets else "")
        .replace("@RUN@", run)
    )
    prefix = "/run/lab/host" if call.machine.mode == "mount" else ""
    return await call.become(prefix + python_path(), ["python3", "-IS", "-c", text], call.environment)


@tool("venv-python3", hidden=True)
async def venv_python(call: Call) -> int:
    """The Python of SGLang's own environment."""
    from apps.lab import engine_sglang

    if call.arguments[:2] == ["-m", "sglang.launch_server"]:
        return await engine_sglang.serve(call, None, call.arguments[2:])
    return await python(call)


@tool("own-llama-server", hidden=True)
async def llama_server(call: Call) -> int:
    from apps.lab import engine_llamacpp

    return await engine_llamacpp.serve(call, None, call.arguments)


@tool("own-openai-server", hidden=True)
async def openai_server(call: Call) -> int:
    from apps.lab import engine_command

    return await engine_command.serve(call, None, call.arguments)


@tool("pip", "pip3", inside=True)
async def pip(call: Call) -> int:
    packages, words = software(call).packages(), call.arguments
    where = (
        "/usr/local/lib/python3.12/dist-packages" if call.container is not None else "/usr/lib/python3/dist-packages"
    )
    if not words or words[0] in ("--version", "-V"):
        await call.out(f"pip 24.0 from {where}/pip (python 3.12)\n")
    elif words[0] in ("list", "freeze"):
        if "--format=json" in words or "json" in words:
            await call.out(
                json.dumps([{"name": name, "version": version} for name, version in sorted(packages.items())]) + "\n"
            )
        elif words[0] == "freeze" or "--format=freeze" in words:
            await call.out("".join(f"{name}=={version}\n" for name, version in sorted(packages.items())))
        else:
            width = max(len(name) for name in packages)
            await call.out(
                f"{'Package':<{width}} Version\n{'-' * width} -------\n"
                + "".join(f"{name:<{width}} {version}\n" for name, version in sorted(packages.items()))
            )
    elif words[0] == "show":
        found = False
        for name in words[1:]:
            if name in packages:
                await call.out(
                    f"{'---' + chr(10) if found else ''}Name: {name}\nVersion: {packages[name]}\nLocation: {where}\n"
                )
                found = True
            elif not name.startswith("-"):
                await call.err(f"WARNING: Package(s) not found: {name}\n")
        return 0 if found else 1
    elif words[0] == "install":
        return await call.fail("error: externally-managed-environment\n\n× This environment is externally managed\n", 1)
    return 0


@tool("hf", "huggingface-cli", inside=True)
async def hf(call: Call) -> int:
    words = call.arguments
    if not words or words[0] in ("version", "--version"):
        await call.out("huggingface_hub version: 0.34.4\n")
        return 0
    if words[0] in ("download", "auth", "whoami"):
        return await call.fail(
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the files on the Hub and we cannot find the appropriate snapshot folder "
            "for the specified revision on the local disk. Please check your internet connection and try again.\n",
            1,
        )
    if words[0] in ("cache", "scan-cache"):
        await call.out(
            "REPO ID                 REPO TYPE SIZE ON DISK NB FILES LAST_ACCESSED LAST_MODIFIED REFS LOCAL PATH\n"
        )
    return 0


@tool("nvcc", inside=True)
async def nvcc(call: Call) -> int:
    await call.out(
        "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2025 NVIDIA Corporation\nCuda compilation tools, release 13.0, V13.0.88\n"
    )
    return 0


__all__ = ["HOST", "hf", "pip", "python", "scene", "software"]
