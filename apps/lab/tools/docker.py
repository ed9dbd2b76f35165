"""The docker command."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from typing import Any

from apps.lab import ray, runtime, scene
from apps.lab.call import Call, tool
from apps.lab.scene import ImageSeed
from apps.lab.template import Template, TemplateError, go_json
from apps.lab.tools import setup
from apps.lab.world import Container, Node

VERSION = "28.3.3"
SOCKET = "unix:///var/run/docker.sock"


def rfc(at: float | None) -> str:
    if at is None:
        return "0001-01-01T00:00:00Z"
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1e9) % 1_000_000_000:09d}Z"


def ago(seconds: float) -> str:
    value = max(0, int(seconds))
    if value < 1:
        return "Less than a second"
    for limit, size, name in (
        (60, 1, "second"),
        (3600, 60, "minute"),
        (129600, 3600, "hour"),
        (1209600, 86400, "day"),
        (5184000, 604800, "week"),
        (63072000, 2592000, "month"),
    ):
        if value < limit:
            count = value // size
            if count == 1 and name == "minute":
                return "About a minute"
            if count == 1 and name == "hour":
                return "About an hour"
            return f"{count} {name}{'s' if count != 1 else ''}"
    return f"{value // 31536000} years"


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.3g}{unit}"
        size /= 1000
    return ""


def state(container: Container) -> dict[str, Any]:
    return {
        "Status": container.state,
        "Running": container.running,
        "Paused": False,
        "Restarting": False,
        "OOMKilled": container.oom_killed,
        "Dead": False,
        "Pid": container.pid if container.running else 0,
        "ExitCode": container.exit_code,
        "Error": "",
        "StartedAt": rfc(container.started),
        "FinishedAt": rfc(container.finished),
    }


def status_text(container: Container) -> str:
    if container.running:
        return f"Up {ago(time.time() - (container.started or 0))}"
    if container.state == "created":
        return "Created"
    return f"Exited ({container.exit_code}) {ago(time.time() - (container.finished or 0))} ago"


def visible_labels(container: Container) -> dict[str, str]:
    return {key: value for key, value in container.labels.items() if key != "lab.unit"}


def row(container: Container) -> dict[str, Any]:
    command = " ".join([*container.entrypoint, *container.argv] or container.image.command)
    short = command if len(command) <= 19 else command[:19] + "…"
    created = time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC", time.gmtime(container.created))
    return {
        "Command": f'"{short}"',
        "CreatedAt": created,
        "HealthStatus": "none",
        "ID": container.id[:12],
        "Image": container.image_ref or container.image.repository,
        "Labels": ",".join(f"{k}={v}" for k, v in visible_labels(container).items()),
        "LocalVolumes": "0",
        "Mounts": ",".join(m[0] for m in container.mounts),
        "Names": container.name,
        "Networks": container.network,
        "Platform": None,
        "Ports": ", ".join(f"0.0.0.0:{a}->{b}/tcp" for a, b in container.ports) if container.running else "",
        "RunningFor": f"{ago(time.time() - container.created)} ago",
        "Size": "0B",
        "State": container.state,
        "Status": status_text(container),
    }


def inspect_container(node: Node, container: Container) -> dict[str, Any]:
    words = [*container.entrypoint, *container.argv] or list(container.image.command)
    environment = [f"{k}={v}" for k, v in container.environment.items()] + list(container.image.environment)
    return {
        "Id": container.id,
        "Created": rfc(container.created),
        "Path": words[0] if words else "",
        "Args": words[1:],
        "State": state(container),
        "Image": "sha256:" + container.image.id,
        "ResolvConfPath": f"/var/lib/docker/containers/{container.id}/resolv.conf",
        "LogPath": f"/var/lib/docker/containers/{container.id}/{container.id}-json.log",
        "Name": "/" + container.name,
        "RestartCount": container.restarts,
        "Driver": "overlay2",
        "Platform": "linux",
        "HostConfig": {
            "Binds": [f"{a}:{b}" + (":ro" if ro else "") for a, b, ro in container.mounts] or None,
            "NetworkMode": container.network,
            "IpcMode": container.ipc,
            "ShmSize": container.shm_bytes,
            "Privileged": container.privileged,
            "AutoRemove": container.remove,
            "Memory": 0,
            "RestartPolicy": {"Name": container.restart_policy, "MaximumRetryCount": 0},
            "DeviceRequests": [
                {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
            ],
            "Devices": [{"PathOnHost": d, "PathInContainer": d, "CgroupPermissions": "rwm"} for d in container.devices],
            "Runtime": "runc",
            "LogConfig": {"Type": "json-file", "Config": {}},
        },
        "Mounts": [
            {
                "Type": "bind",
                "Source": a,
                "Destination": b,
                "Mode": "ro" if ro else "",
                "RW": not ro,
                "Propagation": "rprivate",
            }
            for a, b, ro in container.mounts
        ],
        "Config": {
            "Hostname": node.name if container.network == "host" else container.id[:12],
            "User": "",
            "Env": environment,
            "Cmd": container.argv or None,
            "Image": container.image_ref or container.image.repository,
            "WorkingDir": "/workspace",
            "Entrypoint": container.entrypoint or None,
            "Labels": visible_labels(container),
        },
        "NetworkSettings": {
            "Ports": {},
            "IPAddress": "",
            "Networks": {container.network: {"IPAddress": "", "Gateway": ""}},
        },
    }


def inspect_image(image: ImageSeed) -> dict[str, Any]:
    return {
        "Id": "sha256:" + image.id,
        "RepoTags": [f"{image.repository}:{image.tag}"],
        "RepoDigests": [f"{image.repository}@{image.digest}"],
        "Parent": "",
        "Comment": "",
        "Created": image.created,
        "DockerVersion": "",
        "Author": "",
        "Architecture": "arm64",
        "Variant": "v8",
        "Os": "linux",
        "Size": image.size_bytes,
        "Config": {
            "Env": list(image.environment),
            "Cmd": list(image.command),
            "Entrypoint": list(image.entrypoint) or None,
            "Labels": {"org.opencontainers.image.version": image.software.vllm},
            "WorkingDir": "/workspace",
        },
        "GraphDriver": {"Name": "overlay2", "Data": None},
        "RootFS": {"Type": "layers", "Layers": ["sha256:" + image.id]},
        "Metadata": {"LastTagTime": image.created},
    }


def image_row(image: ImageSeed) -> dict[str, Any]:
    at = time.mktime(time.strptime(image.created[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    return {
        "Containers": "N/A",
        "CreatedAt": image.created[:19].replace("T", " ") + " +0000 UTC",
        "CreatedSince": f"{ago(time.time() - at)} ago",
        "Digest": "<none>",
        "ID": image.id[:12],
        "Repository": image.repository,
        "SharedSize": "N/A",
        "Size": size_text(image.size_bytes),
        "Tag": image.tag,
        "UniqueSize": "N/A",
        "VirtualSize": size_text(image.size_bytes),
    }


def pick(words: list[str], *names: str) -> str | None:
    """Take an option with a value out of `words`."""
    for number, word in enumerate(words):
        if word in names and number + 1 < len(words):
            value = words[number + 1]
            del words[number : number + 2]
            return value
        for name in names:
            if name.startswith("--") and word.startswith(name + "="):
                del words[number]
                return word.split("=", 1)[1]
    return None


def pick_all(words: list[str], *names: str) -> list[str]:
    found = []
    while (value := pick(words, *names)) is not None:
        found.append(value)
    return found


async def listing(call: Call, rows: list[dict[str, Any]], form: str | None, columns: list[tuple[str, str]]) -> int:
    if form in ("json", "{{json .}}", "{{ json . }}"):
        for item in rows:
            await call.out(go_json(item) + "\n")
        return 0
    if form and form != "table":
        titled = form.startswith("table ")
        template = Template(form.removeprefix("table "))
        if titled:
            await call.out(
                re.sub(r"\{\{\s*\.(\w+)\s*\}\}", lambda m: m.group(1).upper(), form[6:]).replace("\\t", "   ") + "\n"
            )
        for item in rows:
            await call.out(template.render(item) + "\n")
        return 0
    table = [[title for title, _ in columns]] + [[str(item[key]) for _, key in columns] for item in rows]
    widths = [max(len(line[number]) for line in table) for number in range(len(columns))]
    for line in table:
        await call.out("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")
    return 0


@tool("docker")
async def docker(call: Call) -> int:
    words = list(call.arguments)
    while words and words[0].startswith("-"):
        flag = words.pop(0)
        if flag in ("-v", "--version"):
            await call.out(f"Docker version {VERSION}, build 980b856\n")
            return 0
        if flag in ("-H", "--host", "--context", "-c", "--config"):
            words.pop(0) if words else None
    verb = words.pop(0) if words else ""
    if not call.root and ("docker-denied" in call.node.faults or not setup.in_group(call, "docker")):
        return await call.fail(f"permission denied while trying to connect to the docker API at {SOCKET}\n")
    unit = call.node.units.get("docker.service")
    if (unit is not None and unit.active != "active") or "docker-down" in call.node.faults:
        return await call.fail(f"Cannot connect to the Docker daemon at {SOCKET}. Is the docker daemon running?\n")
    if verb == "container" and words:
        verb = {"ls": "ps", "list": "ps"}.get(words[0], words[0])
        words.pop(0)
    elif verb == "image" and words:
        verb = "image-" + words.pop(0)
    elif verb == "system" and words:
        verb = "system-" + words.pop(0)
    verb = {
        "images": "image-ls",
        "rmi": "image-rm",
        "pull": "image-pull",
        "load": "image-load",
        "save": "image-save",
        "tag": "image-tag",
        "image-list": "image-ls",
    }.get(verb, verb)
    function = VERBS.get(verb)
    if function is None:
        return await call.fail(
            f"docker: unknown command: docker {verb}\n\nRun 'docker --help' for more information\n", 1
        )
    try:
        return int(await function(call, words))
    except TemplateError as error:
        return await call.fail(f"template parsing error: {error}\n", 64)


async def formatted(call: Call, form: str, body: dict[str, Any]) -> int:
    """What --format makes of it."""
    await call.out((go_json(body) if form == "json" else Template(form).render(body)) + "\n")
    return 0


async def version(call: Call, words: list[str]) -> int:
    form = pick(words, "-f", "--format")
    body = {
        "Client": {
            "Platform": {"Name": "Docker Engine - Community"},
            "Version": VERSION,
            "ApiVersion": "1.51",
            "GitCommit": "980b856",
            "GoVersion": "go1.24.5",
            "Os": "linux",
            "Arch": "arm64",
            "Context": "default",
        },
        "Server": {
            "Platform": {"Name": "Docker Engine - Community"},
            "Version": VERSION,
            "ApiVersion": "1.51",
            "MinAPIVersion": "1.24",
            "GitCommit": "bea959c",
            "Os": "linux",
            "Arch": "arm64",
            "KernelVersion": scene.KERNEL,
            "Components": [
                {"Name": "Engine", "Version": VERSION},
                {"Name": "containerd", "Version": "1.7.27"},
                {"Name": "runc", "Version": "1.2.5"},
            ],
        },
    }
    if form:
        return await formatted(call, form, body)
    await call.out(
        f"Client: Docker Engine - Community\n Version:           {VERSION}\n API version:       1.51\n OS/Arch:           linux/arm64\n\nServer: Docker Engine - Community\n Engine:\n"
        f"  Version:          {VERSION}\n  API version:      1.51 (minimum version 1.24)\n  OS/Arch:          linux/arm64\n"
    )
    return 0


async def info(call: Call, words: list[str]) -> int:
    node, form = call.node, pick(words, "-f", "--format")
    containers = list(node.containers.values())
    running = sum(c.running for c in containers)
    body: dict[str, Any] = {
        "ID": "0a1b2c3d-1111-2222-3333-444455556666",
        "Containers": len(containers),
        "ContainersRunning": running,
        "ContainersPaused": 0,
        "ContainersStopped": len(containers) - running,
        "Images": len(node.images),
        "Driver": "overlay2",
        "MemoryLimit": True,
        "KernelVersion": scene.KERNEL,
        "OperatingSystem": "Ubuntu 24.04.3 LTS",
        "OSVersion": "24.04",
        "OSType": "linux",
        "Architecture": "aarch64",
        "NCPU": 20,
        "MemTotal": scene.MEM_TOTAL_KB * 1024,
        "DockerRootDir": "/var/lib/docker",
        "Name": node.name,
        "ServerVersion": VERSION,
        "CgroupDriver": "systemd",
        "CgroupVersion": "2",
        "LoggingDriver": "json-file",
        "DefaultRuntime": "runc",
        "Runtimes": {
            "io.containerd.runc.v2": {"path": "runc"},
            **({"nvidia": {"path": "nvidia-container-runtime"}} if setup.has_gpu_runtime(call) else {}),
            "runc": {"path": "runc"},
        },
        "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
        "Labels": [],
        "Warnings": None,
        "ClientInfo": {"Version": VERSION, "Context": "default", "Plugins": []},
    }
    if form:
        return await formatted(call, form, body)
    await call.out(
        f"Client: Docker Engine - Community\n Version:    {VERSION}\n\nServer:\n Containers: {len(containers)}\n  Running: {running}\n Server Version: {VERSION}\n Storage Driver: overlay2\n"
        f" Runtimes: io.containerd.runc.v2 {'nvidia ' if setup.has_gpu_runtime(call) else ''}runc\n Default Runtime: runc\n Kernel Version: {scene.KERNEL}\n Operating System: Ubuntu 24.04.3 LTS\n Architecture: aarch64\n CPUs: 20\n Name: {node.name}\n"
    )
    return 0


def flagged(words: list[str], *names: str) -> bool:
    letters = "".join(word[1:] for word in words if word.startswith("-") and not word.startswith("--"))
    return any(name in words or (len(name) == 2 and name[1] in letters) for name in names)


async def ps(call: Call, words: list[str]) -> int:
    form, filters, last = pick(words, "--format"), pick_all(words, "-f", "--filter"), pick(words, "-n", "--last")
    found = sorted(call.node.containers.values(), key=lambda c: -c.created)
    status = [f for f in filters if f.startswith("status=")]
    if not flagged(words, "-a", "--all") and not status and last is None:
        found = [c for c in found if c.running]
    for text in filters:
        key, _, value = text.partition("=")
        if key == "name":
            found = [c for c in found if re.search(value.lstrip("/"), c.name)]
        elif key == "label":
            name, equals, wanted = value.partition("=")
            found = [c for c in found if name in c.labels and (not equals or c.labels[name] == wanted)]
        elif key == "id":
            found = [c for c in found if c.id.startswith(value)]
        elif key == "ancestor":
            found = [c for c in found if c.image is call.node.image(value)]
    if status:
        found = [c for c in found if f"status={c.state}" in status]
    if flagged(words, "-q", "--quiet"):
        for c in found:
            await call.out((c.id if "--no-trunc" in words else c.id[:12]) + "\n")
        return 0
    rows = [row(c) for c in found]
    if "--no-trunc" in words:
        for item, c in zip(rows, found, strict=True):
            item["ID"], item["Command"] = c.id, '"' + " ".join([*c.entrypoint, *c.argv] or c.image.command) + '"'
    return await listing(
        call,
        rows,
        form,
        [
            ("CONTAINER ID", "ID"),
            ("IMAGE", "Image"),
            ("COMMAND", "Command"),
            ("CREATED", "RunningFor"),
            ("STATUS", "Status"),
            ("PORTS", "Ports"),
            ("NAMES", "Names"),
        ],
    )


async def inspect(call: Call, words: list[str]) -> int:
    form, kind = pick(words, "-f", "--format"), pick(words, "--type")
    found, code = [], 0
    names = [word for word in words if not word.startswith("-")]
    if not names:
        return await call.fail("docker: 'docker inspect' requires at least 1 argument\n", 1)
    for name in names:
        container = call.node.container(name) if kind in (None, "container") else None
        image = call.node.image(name) if container is None and kind in (None, "image") else None
        if container is not None:
            found.append(inspect_container(call.node, container))
        elif image is not None:
            found.append(inspect_image(image))
        else:
            await call.err(
                f"Error: No such {'object' if kind is None else kind}: {name}\n"
                if kind != "image"
                else f"Error: No such image: {name}\n"
            )
            code = 1
    return await shown(call, found, form, code)


async def shown(call: Call, found: list[dict[str, Any]], form: str | None, code: int) -> int:
    if form and form != "json":
        template = Template(form)
        for body in found:
            await call.out(template.render(body) + "\n")
    else:
        await call.out(json.dumps(found, indent=4) + "\n" if form != "json" else go_json(found) + "\n")
    return code


async def image_inspect(call: Call, words: list[str]) -> int:
    form = pick(words, "-f", "--format")
    found, code = [], 0
    for name in [word for word in words if not word.startswith("-")]:
        image = call.node.image(name)
        if image is None:
            await call.err(f"Error response from daemon: No such image: {name if ':' in name else name + ':latest'}\n")
            code = 1
        else:
            found.append(inspect_image(image))
    return await shown(call, found, form, code)


async def image_ls(call: Call, words: list[str]) -> int:
    form, filters = pick(words, "--format"), pick_all(words, "-f", "--filter")
    found = list(call.node.images)
    names = [word for word in words if not word.startswith("-")] + [
        f.split("=", 1)[1] for f in filters if f.startswith("reference=")
    ]
    if names:
        found = [
            image for image in found if any(n in (image.repository, f"{image.repository}:{image.tag}") for n in names)
        ]
    if flagged(words, "-q", "--quiet"):
        for image in found:
            await call.out(("sha256:" + image.id if "--no-trunc" in words else image.id[:12]) + "\n")
        return 0
    rows = [image_row(image) for image in found]
    for item, image in zip(rows, found, strict=True):
        if "--no-trunc" in words:
            item["ID"] = "sha256:" + image.id
        if "--digests" in words:
            item["Digest"] = image.digest
    return await listing(
        call,
        rows,
        form,
        [
            ("REPOSITORY", "Repository"),
            ("TAG", "Tag"),
            ("IMAGE ID", "ID"),
            ("CREATED", "CreatedSince"),
            ("SIZE", "Size"),
        ],
    )


async def image_rm(call: Call, words: list[str]) -> int:
    code = 0
    for name in [word for word in words if not word.startswith("-")]:
        image = call.node.image(name)
        if image is None:
            await call.err(f"Error response from daemon: No such image: {name if ':' in name else name + ':latest'}\n")
            code = 1
            continue
        user = next((c for c in call.node.containers.values() if c.image is image), None)
        if user is not None and not flagged(words, "-f", "--force"):
            await call.err(
                f'Error response from daemon: conflict: unable to remove repository reference "{name}" (must force) - container {user.id[:12]} is using its referenced image {image.id[:12]}\n'
            )
            code = 1
            continue
        call.node.images.remove(image)
        await call.out(f"Untagged: {image.repository}:{image.tag}\nDeleted: sha256:{image.id}\n")
    return code


async def image_pull(call: Call, words: list[str]) -> int:
    name = next((word for word in words if not word.startswith("-")), "")
    await call.world_pause(2) if hasattr(call, "world_pause") else await call.node.world.pause(2)
    address = (
        "lookup registry-1.docker.io on 127.0.0.53:53: server misbehaving"
        if not call.node.seed.internet
        else "net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)"
    )
    del name
    return await call.fail(
        f'Error response from daemon: Get "https://registry-1.docker.io/v2/": {"dial tcp: " if not call.node.seed.internet else ""}{address}\n',
        1,
    )


async def nothing(call: Call, words: list[str]) -> int:
    return 0


def parse_run(words: list[str]) -> tuple[dict[str, Any], list[str], str | None]:
    """The options of docker run, the image and command, and an unknown flag if there was one."""
    single = {
        "-d": "detach",
        "--detach": "detach",
        "-i": "interactive",
        "--interactive": "interactive",
        "-t": "tty",
        "--tty": "tty",
        "--rm": "rm",
        "--privileged": "privileged",
        "--init": "init",
        "--read-only": "read_only",
        "--no-healthcheck": "x",
        "-it": "interactive",
        "-ti": "interactive",
        "-dit": "detach",
        "-P": "x",
        "-q": "x",
        "--quiet": "x",
        "--oom-kill-disable": "x",
    }
    valued = {
        "--name": "name",
        "-e": "env",
        "--env": "env",
        "--env-file": "env_file",
        "-v": "volume",
        "--volume": "volume",
        "--mount": "mount",
        "--network": "network",
        "--net": "network",
        "--ipc": "ipc",
        "--shm-size": "shm",
        "--gpus": "gpus",
        "--device": "device",
        "--cap-add": "cap",
        "--cap-drop": "cap",
        "--ulimit": "ulimit",
        "-l": "label",
        "--label": "label",
        "--restart": "restart",
        "--entrypoint": "entrypoint",
        "-p": "publish",
        "--publish": "publish",
        "-w": "workdir",
        "--workdir": "workdir",
        "-u": "user",
        "--user": "user",
        "--hostname": "hostname",
        "-h": "hostname",
        "-m": "memory",
        "--memory": "memory",
        "--memory-swap": "x",
        "--pid": "x",
        "--runtime": "x",
        "--security-opt": "x",
        "--log-opt": "x",
        "--log-driver": "x",
        "--pull": "pull",
        "--platform": "x",
        "--stop-timeout": "x",
        "--add-host": "x",
        "--cpus": "x",
        "--tmpfs": "x",
        "--uts": "x",
        "--group-add": "x",
        "--cidfile": "x",
        "--stop-signal": "x",
        "--sysctl": "x",
        "--cgroupns": "x",
        "--oom-score-adj": "x",
        "--memory-swappiness": "x",
    }
    given: dict[str, Any] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in single and not (equals and value == "false"):
            given[single[name]] = True
        elif name in valued:
            given.setdefault(valued[name], []).append(value if equals else rest.pop(0) if rest else "")
        elif not word.startswith("--") and word[:2] in valued:
            given.setdefault(valued[word[:2]], []).append(word[2:].lstrip("="))
        elif not word.startswith("--") and all(f"-{letter}" in single for letter in word[1:]):
            given |= {single[f"-{letter}"]: True for letter in word[1:]}
        else:
            return given, rest, word
    return given, rest, None


def bytes_of(text: str) -> int:
    found = re.fullmatch(r"(\d+)([bkmg]?)b?", text.lower())
    return int(found.group(1)) << {"": 0, "b": 0, "k": 10, "m": 20, "g": 30}[found.group(2)] if found else 64 << 20


async def environment_of(call: Call, given: dict[str, Any]) -> dict[str, str] | int:
    found: dict[str, str] = {}
    for path in given.get("env_file", []):
        try:
            text = call.machine.inside(path if path.startswith("/") else f"{call.cwd}/{path}").read_text()
        except OSError:
            return await call.fail(f"docker: open {path}: no such file or directory\n", 125)
        found |= dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    for item in given.get("env", []):
        name, equals, value = item.partition("=")
        if equals:
            found[name] = value
        elif name in call.environment:
            found[name] = call.environment[name]
    return found


async def make(call: Call, words: list[str]) -> tuple[Container | None, dict[str, Any], int]:
    given, rest, unknown = parse_run(words)
    if unknown:
        return (
            None,
            given,
            await call.fail(
                f"unknown {'flag' if unknown.startswith('--') else 'shorthand flag'}: {unknown}\n\nUsage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]\n\nRun 'docker run --help' for more information\n",
                125,
            ),
        )
    if not rest:
        return (
            None,
            given,
            await call.fail(
                "docker: 'docker run' requires at least 1 argument\n\nUsage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]\n",
                1,
            ),
        )
    node, ref = call.node, rest[0]
    name = given.get(
        "name",
        [
            f"{node.random.choice(('quirky', 'eager', 'brave', 'calm'))}_{node.random.choice(('hopper', 'curie', 'noether', 'turing'))}{node.random.randint(1, 99)}"
        ],
    )[0]
    image = node.image(ref)
    if image is None:
        await call.err(f"Unable to find image '{ref if ':' in ref else ref + ':latest'}' locally\n")
        await node.world.pause(2)
        reason = (
            "dial tcp: lookup registry-1.docker.io on 127.0.0.53:53: server misbehaving"
            if not node.seed.internet
            else "net/http: request canceled while waiting for connection"
        )
        return (
            None,
            given,
            await call.fail(
                f"docker: Error response from daemon: Get \"https://registry-1.docker.io/v2/\": {reason}\n\nRun 'docker run --help' for more information\n",
                125,
            ),
        )
    if name in node.containers:
        other = node.containers[name]
        return (
            None,
            given,
            await call.fail(
                f'docker: Error response from daemon: Conflict. The container name "/{name}" is already in use by container "{other.id}". You have to remove (or rename) that container to be able '
                "to reuse that name.\n\nRun 'docker run --help' for more information\n",
                125,
            ),
        )
    if "disk-full" in node.faults:
        return (
            None,
            given,
            await call.fail(
                "docker: Error response from daemon: mkdir /var/lib/docker/overlay2/0a1b: no space left on device.\n",
                125,
            ),
        )
    environment = await environment_of(call, given)
    if isinstance(environment, int):
        return None, given, environment
    mounts = []
    for text in given.get("volume", []):
        parts = text.split(":")
        if len(parts) >= 2:
            mounts.append((parts[0], parts[1], "ro" in parts[2:] or (len(parts) > 2 and "ro" in parts[2].split(","))))
    for text in given.get("mount", []):
        pairs = dict(part.split("=", 1) if "=" in part else (part, "true") for part in text.split(","))
        mounts.append(
            (
                pairs.get("source", pairs.get("src", "")),
                pairs.get("target", pairs.get("dst", pairs.get("destination", ""))),
                "readonly" in pairs or "ro" in pairs,
            )
        )
    entrypoint = (
        shlex.split(given["entrypoint"][0])
        if given.get("entrypoint") and given["entrypoint"][0]
        else []
        if "entrypoint" in given
        else list(image.entrypoint)
    )
    for device in given.get("device", []):
        if device.startswith("/dev/infiniband") or device.startswith("/dev/nvidia"):
            continue
    ports = []
    for text in given.get("publish", []):
        numbers = [int(part) for part in re.findall(r"\d+", text.rsplit("/", 1)[0])][-2:]
        ports.append((numbers[0], numbers[-1]))
    labels = dict(text.split("=", 1) if "=" in text else (text, "") for text in given.get("label", []))
    container = Container(
        name,
        image,
        rest[1:],
        environment,
        labels,
        entrypoint,
        given.get("restart", ["no"])[0].split(":")[0],
        given.get("network", ["bridge"])[0],
        given.get("ipc", ["private"])[0],
        bytes_of(given.get("shm", ["64m"])[0]),
        bool(given.get("privileged")),
        mounts,
        given.get("device", []),
        ports,
        bool(given.get("rm")),
        ref,
    )
    return container, given, 0


async def run(call: Call, words: list[str]) -> int:
    container, given, code = await make(call, words)
    if container is None:
        return code
    node = call.node
    command = [*container.entrypoint, *container.argv] or list(container.image.command)
    if not exists(call, command[0]):
        if not container.remove:
            node.containers[container.name] = container
        container.exit_code = 127
        return await call.fail(
            f"docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
            f"error during container init: exec: \"{command[0]}\": executable file not found in $PATH: unknown\n\nRun 'docker run --help' for more information\n",
            127,
        )
    node.containers[container.name] = container
    await node.world.pause(0.6)
    if given.get("detach"):
        await runtime.start_container(node, container)
        await call.out(container.id + "\n")
        return 0
    if runtime.known(command) is None:
        return await attached(call, container, command)
    await runtime.start_container(node, container)
    return await follow(call, container)


def exists(call: Call, word: str) -> bool:
    base = word.rsplit("/", 1)[-1]
    return (call.node.root / "usr/lib-lab/bin" / base).is_symlink()


async def attached(call: Call, container: Container, command: list[str]) -> int:
    """docker run in the foreground of an ordinary program: the caller's own process becomes it."""
    container.state, container.started = "running", time.time()
    base = command[0].rsplit("/", 1)[-1]
    environment = {**runtime.container_environment(call.node, container)}

    async def gone() -> None:
        from pathlib import Path

        host = {pid: host for host, pid in call.machine.host_pids().items()}.get(call.pid)
        while host is not None and Path(f"/proc/{host}").exists():
            await asyncio.sleep(0.1)
        container.remove = container.remove
        await runtime.finish(call.node, container, 0)

    call.node.world.spawn(gone())
    return await call.become(f"{call.machine.container_bin}/{base}", command, environment)


async def follow(call: Call, container: Container) -> int:
    gone = asyncio.create_task(call.hung_up())
    try:
        position = 0
        while True:
            news, running = container.log.news, container.running
            for _, stream, data in container.log.entries[position:]:
                await (call.out(data) if stream == "stdout" else call.err(data))
                position += 1
            if not running and position >= len(container.log.entries):
                return container.exit_code
            waiting = [asyncio.create_task(news.wait()), asyncio.create_task(container.ended.wait()), gone]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting[:2]:
                task.cancel()
            if gone.done():
                return 0
    finally:
        gone.cancel()


async def create(call: Call, words: list[str]) -> int:
    container, _, code = await make(call, words)
    if container is None:
        return code
    call.node.containers[container.name] = container
    await call.out(container.id + "\n")
    return 0


async def missing(call: Call, name: str) -> int:
    return await call.fail(f"Error response from daemon: No such container: {name}\n", 1)


async def execute(call: Call, words: list[str]) -> int:
    given, rest, unknown = parse_run(words)
    if unknown or not rest:
        return await call.fail(f"unknown flag: {unknown}\n", 125)
    container = call.node.container(rest[0])
    if container is None:
        return await missing(call, rest[0])
    if not container.running:
        return await call.fail(f"Error response from daemon: container {container.id} is not running\n", 1)
    environment = await environment_of(call, given)
    if isinstance(environment, int):
        return environment
    command = rest[1:]
    if not command:
        return await call.fail("docker: 'docker exec' requires at least 2 arguments\n", 1)
    if not exists(call, command[0]):
        return await call.fail(
            f'OCI runtime exec failed: exec failed: unable to start container process: exec: "{command[0]}": executable file not found in $PATH: unknown\n',
            127,
        )
    full = {**runtime.container_environment(call.node, container), **environment}
    found = runtime.known(command)
    if given.get("detach"):
        quiet = Call(call.machine, command, "/", full, call.pid, None, None)

        async def drop(stream: str, data: bytes) -> None:
            if any("/proc/1/fd/" in word for word in command):
                container.log.write(data, stream)

        quiet.sink = drop
        task = call.node.world.spawn(
            runtime.program(
                quiet,
                container,
                [word.replace("> /proc/1/fd/1 2>&1", "").replace(">/proc/1/fd/1 2>&1", "") for word in command],
                False,
            )
        )
        container.tasks.add(task)
        task.add_done_callback(container.tasks.discard)
        return 0
    if found is not None and found[0] in ("vllm", "ray"):
        call.environment = full
        return await inside_program(call, found)
    base = command[0].rsplit("/", 1)[-1]
    if given.get("workdir"):
        pass
    return await call.become(f"{call.machine.container_bin}/{base}", command, full)


async def inside_program(call: Call, words: list[str]) -> int:
    """vllm or ray by `docker exec`: it goes on in the container when the caller hangs up, and ends with the container."""
    from apps.lab import engine

    container = call.container
    assert container is not None
    call.argv = words
    original, silent = call.writer, False

    async def send(stream: str, data: bytes) -> None:
        nonlocal silent
        if silent or original is None:
            return
        from apps.lab.machine import frame

        try:
            original.write(frame(b"O" if stream == "stdout" else b"E", data))
            await original.drain()
        except OSError:
            silent = True

    call.sink = send

    async def work() -> int:
        return await (engine.serve(call, container, words[1:]) if words[0] == "vllm" else ray.ray(call))

    task = call.node.world.spawn(work())
    container.tasks.add(task)
    task.add_done_callback(container.tasks.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled() or task.done():
            return 137
        raise


async def logs(call: Call, words: list[str]) -> int:
    tail, since = pick(words, "-n", "--tail"), pick(words, "--since")
    until = pick(words, "--until")
    del until
    names = [word for word in words if not word.startswith("-")]
    container = call.node.container(names[0]) if names else None
    if container is None:
        return await missing(call, names[0] if names else "")
    stamps, following = flagged(words, "-t", "--timestamps"), flagged(words, "-f", "--follow")
    begin = since_time(since)
    lines: list[tuple[float, str, bytes]] = []
    rest: dict[str, bytes] = {}
    first: dict[str, float] = {}

    def cut(entries: list[tuple[float, str, bytes]], end: bool) -> list[tuple[float, str, bytes]]:
        made = []
        for at, stream, data in entries:
            first.setdefault(stream, at)
            whole = rest.pop(stream, b"") + data
            while b"\n" in whole:
                line, whole = whole.split(b"\n", 1)
                made.append((first[stream], stream, line + b"\n"))
                first[stream] = at
            if whole:
                rest[stream] = whole
            else:
                first.pop(stream, None)
        if end:
            made += [(first.get(stream, 0), stream, data) for stream, data in rest.items()]
            rest.clear()
        return made

    async def put(found: list[tuple[float, str, bytes]]) -> None:
        for at, stream, line in found:
            if at < begin:
                continue
            text = (rfc(at).encode() + b" " if stamps else b"") + line
            await (call.out(text) if stream == "stdout" else call.err(text))

    position = len(container.log.entries)
    lines = cut(container.log.entries[:position], not following or not container.running)
    if tail is not None and tail != "all" and tail.isdigit():
        lines = lines[len(lines) - min(len(lines), int(tail)) :]
    await put(lines)
    gone = asyncio.create_task(call.hung_up()) if following else None
    try:
        while following and gone is not None and not gone.done():
            news, running = container.log.news, container.running
            new = container.log.entries[position:]
            position += len(new)
            await put(cut(new, not running))
            if not running:
                break
            waiting = [asyncio.create_task(news.wait()), asyncio.create_task(container.ended.wait())]
            await asyncio.wait([*waiting, gone], return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
    finally:
        if gone is not None:
            gone.cancel()
    return 0


def since_time(text: str | None) -> float:
    if not text:
        return 0.0
    if re.fullmatch(r"[\d.]+", text):
        return float(text)
    found = re.findall(r"([\d.]+)(h|m|s|ms)", text)
    if found and "T" not in text:
        return time.time() - sum(
            float(number) * {"h": 3600, "m": 60, "s": 1, "ms": 0.001}[unit] for number, unit in found
        )
    import datetime

    try:
        stamp = re.sub(r"(\.\d{6})\d*", r"\1", text.replace("Z", "+00:00"))
        at = datetime.datetime.fromisoformat(stamp)
        return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
    except ValueError:
        return 0.0


async def each(call: Call, words: list[str], act: Any, *, value_flags: tuple[str, ...] = ()) -> int:
    for flag in value_flags:
        pick(words, flag)
    code = 0
    for name in [word for word in words if not word.startswith("-")]:
        container = call.node.container(name)
        if container is None:
            code = await missing(call, name)
            continue
        code = await act(container, name) or code
    return code


async def stop(call: Call, words: list[str]) -> int:
    grace = float(pick(words, "-t", "--time", "--timeout") or 10)

    async def act(container: Container, name: str) -> int:
        await runtime.stop_container(call.node, container, grace)
        await call.out(name + "\n")
        return 0

    return await each(call, words, act)


async def kill(call: Call, words: list[str]) -> int:
    async def act(container: Container, name: str) -> int:
        if not container.running:
            return await call.fail(
                f"Error response from daemon: cannot kill container: {name}: container {container.id} is not running\n",
                1,
            )
        await runtime.kill_container(call.node, container)
        await call.out(name + "\n")
        return 0

    return await each(call, words, act, value_flags=("-s", "--signal"))


async def remove(call: Call, words: list[str]) -> int:
    force, code = flagged(words, "-f", "--force"), 0
    for name in [word for word in words if not word.startswith("-")]:
        container = call.node.container(name)
        if container is None:
            if not force:
                code = await missing(call, name)
            else:
                await call.err(f"Error response from daemon: No such container: {name}\n")
            continue
        if container.running and not force:
            code = await call.fail(
                f'Error response from daemon: cannot remove container "/{container.name}": container is running: stop the container before removing or force remove\n',
                1,
            )
            continue
        await runtime.remove_container(call.node, container)
        await call.out(name + "\n")
    return code


async def start(call: Call, words: list[str]) -> int:
    async def act(container: Container, name: str) -> int:
        if not container.running:
            await runtime.start_container(call.node, container)
        await call.out(name + "\n")
        return 0

    return await each(call, words, act)


async def restart(call: Call, words: list[str]) -> int:
    async def act(container: Container, name: str) -> int:
        await runtime.stop_container(call.node, container, 10)
        await runtime.start_container(call.node, container)
        await call.out(name + "\n")
        return 0

    return await each(call, words, act, value_flags=("-t", "--time"))


async def wait(call: Call, words: list[str]) -> int:
    async def act(container: Container, name: str) -> int:
        gone = asyncio.create_task(call.hung_up())
        ended = asyncio.create_task(container.ended.wait())
        if container.running:
            await asyncio.wait([gone, ended], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        ended.cancel()
        await call.out(f"{container.exit_code}\n")
        return 0

    return await each(call, words, act)


async def stats(call: Call, words: list[str]) -> int:
    form = pick(words, "--format")
    names = [word for word in words if not word.startswith("-")]
    rows = []
    for c in call.node.containers.values():
        if c.running and (not names or c.name in names or any(c.id.startswith(n) for n in names)):
            rows.append(
                {
                    "BlockIO": "1.2GB / 0B",
                    "CPUPerc": "3.15%",
                    "Container": c.id[:12],
                    "ID": c.id[:12],
                    "MemPerc": "4.31%",
                    "MemUsage": "5.157GiB / 119.7GiB",
                    "Name": c.name,
                    "NetIO": "0B / 0B",
                    "PIDs": "214",
                }
            )
    return await listing(
        call,
        rows,
        form,
        [
            ("CONTAINER ID", "ID"),
            ("NAME", "Name"),
            ("CPU %", "CPUPerc"),
            ("MEM USAGE / LIMIT", "MemUsage"),
            ("MEM %", "MemPerc"),
            ("PIDS", "PIDs"),
        ],
    )


async def system_df(call: Call, words: list[str]) -> int:
    form = pick(words, "--format")
    size = size_text(sum(image.size_bytes for image in call.node.images))
    rows = [
        {
            "Active": "1",
            "Reclaimable": "21.7GB (45%)",
            "Size": size,
            "TotalCount": str(len(call.node.images)),
            "Type": "Images",
        },
        {
            "Active": str(sum(c.running for c in call.node.containers.values())),
            "Reclaimable": "0B (0%)",
            "Size": "1.2MB",
            "TotalCount": str(len(call.node.containers)),
            "Type": "Containers",
        },
        {"Active": "0", "Reclaimable": "0B", "Size": "0B", "TotalCount": "0", "Type": "Local Volumes"},
        {"Active": "0", "Reclaimable": "0B", "Size": "0B", "TotalCount": "0", "Type": "Build Cache"},
    ]
    return await listing(
        call,
        rows,
        form,
        [
            ("TYPE", "Type"),
            ("TOTAL", "TotalCount"),
            ("ACTIVE", "Active"),
            ("SIZE", "Size"),
            ("RECLAIMABLE", "Reclaimable"),
        ],
    )


async def top(call: Call, words: list[str]) -> int:
    names = [word for word in words if not word.startswith("-")]
    container = call.node.container(names[0]) if names else None
    if container is None:
        return await missing(call, names[0] if names else "")
    await call.out(
        "UID                 PID                 PPID                C                   STIME               TTY                 TIME                CMD\n"
    )
    for process in call.node.processes.values():
        if process.container == container.name:
            await call.out(
                f"{process.user:<20}{process.pid:<20}{1:<20}{0:<20}{'10:00':<20}{'?':<20}{'00:00:01':<20}{process.title}\n"
            )
    return 0


async def rename(call: Call, words: list[str]) -> int:
    container = call.node.container(words[0]) if len(words) == 2 else None
    if container is None:
        return await missing(call, words[0] if words else "")
    del call.node.containers[container.name]
    container.name = words[1]
    call.node.containers[container.name] = container
    return 0


async def update(call: Call, words: list[str]) -> int:
    policy = pick(words, "--restart")

    async def act(container: Container, name: str) -> int:
        container.restart_policy = policy or container.restart_policy
        await call.out(name + "\n")
        return 0

    return await each(call, words, act)


async def unsupported(call: Call, words: list[str]) -> int:
    await call.out("")
    return 0


VERBS: dict[str, Any] = {
    "version": version,
    "info": info,
    "system-info": info,
    "ps": ps,
    "inspect": inspect,
    "image-inspect": image_inspect,
    "image-ls": image_ls,
    "image-rm": image_rm,
    "image-pull": image_pull,
    "run": run,
    "create": create,
    "exec": execute,
    "logs": logs,
    "stop": stop,
    "kill": kill,
    "rm": remove,
    "start": start,
    "restart": restart,
    "wait": wait,
    "stats": stats,
    "system-df": system_df,
    "top": top,
    "rename": rename,
    "update": update,
    "network": unsupported,
    "volume": unsupported,
    "context": unsupported,
    "image-prune": unsupported,
    "prune": unsupported,
    "system-prune": unsupported,
}


@tool("vllm", inside=True, outside=False)
async def vllm(call: Call) -> int:
    container = call.container
    if container is None or not container.image.software.vllm:
        return await call.fail("vllm: command not found", 127)
    if call.arguments[:1] in (["--version"], ["-v"], ["version"]):
        await call.out(container.image.software.vllm + "\n")
        return 0
    return await inside_program(call, ["vllm", *call.arguments])


@tool("llama-server", "openai-server", "sglang", inside=True, outside=False)
async def other_engine(call: Call) -> int:
    return await call.fail(f"{call.name}: runs as the main process of a container here", 1)


@tool("sleep_forever", inside=True, outside=False)
async def forever(call: Call) -> int:
    await call.hung_up()
    return 0
