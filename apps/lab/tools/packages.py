"""python3, pip, hf: what is installed on the host and in the images."""

from __future__ import annotations

import json
import re

from apps.lab import scene
from apps.lab.call import Call, tool
from apps.lab.scene import Software

HOST = Software(python="3.12.3", other=(("pip", "24.0"), ("numpy", "2.1.3"), ("huggingface-hub", "0.34.4"), ("requests", "2.31.0"), ("PyYAML", "6.0.1"), ("setuptools", "68.1.2")))


def software(call: Call) -> Software:
    container = call.container
    return container.image.software if container is not None else HOST


@tool("python3", "python", "python3.12", inside=True)
async def python(call: Call) -> int:
    installed, words = software(call), call.arguments
    while words and words[0] in ("-u", "-I", "-s", "-E", "-S", "-B", "-W"):
        words = words[1:]
    if words and words[0] in ("--version", "-V"):
        await call.out(f"Python {installed.python}\n")
        return 0
    if words[:2] == ["-m", "pip"]:
        return await pip(Call(call.machine, ["pip", *words[2:]], call.cwd, call.environment, call.pid, call.reader, call.writer, call.taken, call.sink))
    if words[:2] and words[:2] == ["-m", "vllm.entrypoints.openai.api_server"]:
        from apps.lab.tools.docker import inside_program

        return await inside_program(call, ["vllm", "serve", *words[2:]])
    code = words[1] if words[:1] == ["-c"] and len(words) > 1 else ""
    if not code and (not words or words[0] == "-"):
        code = (await call.stdin()).decode(errors="replace")
    if not code:
        return await call.fail(f"python3: can't open file '{words[0] if words else ''}': [Errno 2] No such file or directory\n", 2)
    packages = installed.packages()
    for name in re.findall(r"(?:^|[\s;,])(?:import|from)\s+([\w, .]+)", code):
        for module in re.split(r"[,\s]+", name):
            top = module.split(".")[0]
            if top in ("vllm", "torch", "ray", "transformers", "sglang", "flash_attn") and top not in packages and "try" not in code:
                return await call.fail(f"Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\nModuleNotFoundError: No module named '{top}'\n", 1)
    if "metadata" in code:
        names = re.findall(r"['\"]([A-Za-z0-9_.-]+)['\"]", code)
        found = {name: packages[name.replace("_", "-")] for name in names if name.replace("_", "-") in packages}
        if "json" in code:
            await call.out(json.dumps(found) + "\n")
        elif "distributions()" in code:
            await call.out("".join(f"{name}=={version}\n" for name, version in sorted(packages.items())))
        else:
            separator = "==" if "==" in code else "=" if "'='" in code or "{n}={" in code or "={" in code else " "
            await call.out("".join(f"{version}\n" if len(names) == 1 and "name" not in code else f"{name}{separator}{version}\n" for name, version in found.items()))
        return 0 if found or "try" in code or "except" in code or not names else await call.fail("importlib.metadata.PackageNotFoundError: No package metadata was found\n", 1)
    out = []
    for name in re.findall(r"(\w+)\.__version__", code):
        out.append(packages.get(name, ""))
    if "get_arch_list" in code:
        out.append("['sm_80', 'sm_90', 'sm_100', 'sm_120', 'compute_120']")
    if "torch.version.cuda" in code:
        out.append("13.0")
    if "nccl.version" in code:
        out.append("(2, 28, 9)")
    if "sys.version" in code and not out:
        out.append("3.12.3" if "version_info" in code or "split" in code else f"{installed.python} (main, Aug 14 2025, 17:47:21) [GCC 13.3.0]")
    if "platform.machine" in code:
        out.append("aarch64")
    if "time.time" in code and not out:
        out.append(repr(call.node.now()))
    if out:
        await call.out(("\n" if code.count("print") > 1 else " ").join(out) + "\n")
    return 0


@tool("pip", "pip3", inside=True)
async def pip(call: Call) -> int:
    packages, words = software(call).packages(), call.arguments
    where = "/usr/local/lib/python3.12/dist-packages" if call.container is not None else "/usr/lib/python3/dist-packages"
    if not words or words[0] in ("--version", "-V"):
        await call.out(f"pip 24.0 from {where}/pip (python 3.12)\n")
    elif words[0] in ("list", "freeze"):
        if "--format=json" in words or "json" in words:
            await call.out(json.dumps([{"name": name, "version": version} for name, version in sorted(packages.items())]) + "\n")
        elif words[0] == "freeze" or "--format=freeze" in words:
            await call.out("".join(f"{name}=={version}\n" for name, version in sorted(packages.items())))
        else:
            width = max(len(name) for name in packages)
            await call.out(f"{'Package':<{width}} Version\n{'-' * width} -------\n" + "".join(f"{name:<{width}} {version}\n" for name, version in sorted(packages.items())))
    elif words[0] == "show":
        found = False
        for name in words[1:]:
            if name in packages:
                await call.out(f"{'---' + chr(10) if found else ''}Name: {name}\nVersion: {packages[name]}\nLocation: {where}\n")
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
        return await call.fail("huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the files on the Hub and we cannot find the appropriate snapshot folder "
                               "for the specified revision on the local disk. Please check your internet connection and try again.\n", 1)
    if words[0] in ("cache", "scan-cache"):
        await call.out("REPO ID                 REPO TYPE SIZE ON DISK NB FILES LAST_ACCESSED LAST_MODIFIED REFS LOCAL PATH\n")
    return 0


@tool("nvcc", inside=True)
async def nvcc(call: Call) -> int:
    await call.out("nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2025 NVIDIA Corporation\nCuda compilation tools, release 13.0, V13.0.88\n")
    return 0


__all__ = ["HOST", "hf", "pip", "python", "scene", "software"]
